"""A request as a face hands it in, and an answer as it takes it back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import field

from accordion.core.errors import Stopped
from accordion.core.ports import Headers
from accordion.core.values import dataclass

LEFT = "the client went away"
"""What a face says with the cancellation of a task whose client went away. Any other is the server's, which stops."""


def stopped(reason: BaseException) -> Stopped | None:
    """What the client is to be told where `reason` ended the work for it from outside; None where nobody is there any
    more, or where it was no cancellation."""
    gone = isinstance(reason, GeneratorExit | Exception) or LEFT in reason.args
    return None if gone else Stopped()


@dataclass(frozen=True, slots=True)
class Inbound:
    """A client's request. Header names are lower-case, `path` and `query` percent-encoded as they came.

    `body` is whole where the path is one that is read, else it may come in pieces; `start` is then the first of them,
    where it was waited for.
    """

    method: str
    path: str
    query: str
    headers: Headers = field(repr=False)
    body: bytes | AsyncIterator[bytes] = field(repr=False)
    request_id: str
    bare_query: bool = False
    """Whether the target ends in `?`, with no query behind it."""
    start: bytes = field(default=b"", repr=False)

    @property
    def target(self) -> str:
        """Path and query as they came."""
        return f"{self.path}?{self.query}" if self.query or self.bare_query else self.path

    @property
    def beginning(self) -> bytes:
        """As much of the body as is there."""
        return self.body if isinstance(self.body, bytes) else self.start

    @property
    def fields(self) -> dict[bytes, bytes]:
        """The headers by name; the first one where a name comes more than once."""
        return dict(reversed(self.headers))


@dataclass(frozen=True, slots=True)
class Outbound:
    """An answer. A body in pieces that raises has been cut short: the connection must not end as if all were well."""

    status: int
    headers: Headers
    body: bytes | AsyncGenerator[bytes, None]


class Told:
    """A reply (core/ports.py: UpstreamReply) that is known whole: a document with status 200. `headers` are all but its
    length."""

    def __init__(self, body: bytes, headers: Headers = ((b"content-type", b"application/json"),)) -> None:
        self.status = 200
        self.headers: Headers = (*headers, (b"content-length", b"%d" % len(body)))
        self.delimited = True
        self._body = body

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body in one piece."""
        yield self._body

    async def close(self) -> None:
        """Nothing is held."""
