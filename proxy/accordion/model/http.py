"""The HTTP request and response as values: the input and the output of the pipeline."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from functools import cached_property
from urllib.parse import unquote_plus, unquote_to_bytes

import msgspec
from msgspec.structs import replace

from accordion.model.errors import AccordionError, ShuttingDown
from accordion.model.hidden_fields import StructWithHiddenFields
from accordion.model.ports import Headers

GOOGLE_KEY = b"x-goog-api-key"
"""The header in which Google's clients send their key."""
_QUERY_CREDENTIALS = {"key": (GOOGLE_KEY, b""), "access_token": (b"authorization", b"Bearer ")}
"""The parameters in which Google's clients may send a credential, with the header that has the same meaning."""

CLIENT_DISCONNECTED = "the client went away"
"""The message with which `http/` cancels a task whose client disconnected. Any other cancellation is a shutdown."""


def stop_error(reason: BaseException) -> AccordionError | None:
    """Returns the error for the client whose task `reason` ended from outside: the one with which the task was
    cancelled; without one, that the proxy stops.

    Returns None if the client is gone, or if `reason` is no cancellation.
    """
    if isinstance(reason, GeneratorExit | Exception) or CLIENT_DISCONNECTED in reason.args:
        return None
    return next((error for error in reason.args if isinstance(error, AccordionError)), None) or ShuttingDown()


_IDEMPOTENCY = b"idempotency"
"""A part of the names of all headers with a key that makes a retry safe."""
_BODY_HEADERS = (b"content-encoding", b"content-length")


class Inbound(StructWithHiddenFields, frozen=True, dict=True):
    """A client's request. Header names are lower-case, `path` and `query` percent-encoded as they came.

    `body` is whole if the proxy reads requests of this path; otherwise it may be an iterator of chunks, and `start`
    is the first chunk, if it was waited for.
    """

    hidden_fields = frozenset({"headers", "body", "start", "query"})

    method: str
    path: str
    query: str
    headers: Headers
    body: bytes | AsyncIterator[bytes]
    request_id: str
    has_bare_query: bool = False
    """Whether the target ends in `?` and has no query."""
    start: bytes = b""
    has_marks: bool = False
    """Whether the body is read with marks in place of values that JSON lacks (protocols/odd_json.py)."""

    @property
    def target(self) -> str:
        """Path and query as the client sent them."""
        return f"{self.path}?{self.query}" if self.query or self.has_bare_query else self.path

    def with_body(self, body: bytes) -> Inbound:
        """Returns the request with another body, which has no content encoding."""
        headers = tuple([pair for pair in self.headers if pair[0] not in _BODY_HEADERS])
        return replace(self, headers=derive_idempotency_key(headers, body), body=body)

    @property
    def beginning(self) -> bytes:
        """The part of the body that has arrived."""
        return self.body if isinstance(self.body, bytes) else self.start

    @cached_property
    def headers_by_name(self) -> dict[bytes, bytes]:
        """The headers by name; the first one if a name occurs more than once.

        Google's clients may send their key in the query. It is the same credential as in the header, so it is here as
        that header.
        """
        fields = dict(reversed(self.headers))
        for name, value in self.query_credentials:
            fields.setdefault(name, value)
        return fields

    @property
    def query_credentials(self) -> Headers:
        """The credentials in the query, decoded, as the headers that have the same meaning."""
        if "=" not in self.query:
            return ()
        found = []
        for pair in self.query.split("&"):
            name, value = _split_parameter(pair)
            if value and name in _QUERY_CREDENTIALS:
                header, scheme = _QUERY_CREDENTIALS[name]
                found.append((header, scheme + value))
        return tuple(found)


def _split_parameter(pair: str) -> tuple[str, bytes]:
    """Returns the decoded name and value of a pair in a query."""
    name, _, value = pair.partition("=")
    return unquote_plus(name), unquote_to_bytes(value.replace("+", " "))


def without_query_credentials(target: str, is_hidden: Callable[[bytes], bool] | None = None) -> str:
    """Returns a target without the credentials in its query; all else stays as it was.

    With `is_hidden`, the values for which it is true are removed, whatever the names of their parameters.
    """
    path, _, query = target.partition("?")
    remaining = []
    for pair in query.split("&"):
        name, value = _split_parameter(pair)
        if not (name in _QUERY_CREDENTIALS if is_hidden is None else is_hidden(value)):
            remaining.append(pair)
    if len(remaining) > query.count("&"):
        return target
    return f"{path}?{'&'.join(remaining)}" if any(remaining) else path


def derive_idempotency_key(headers: Headers, content: bytes) -> Headers:
    """Returns the headers of a request whose content is not the client's, with a key of its own for this content.

    A provider refuses one key with two contents. The same key and content give the same key, so that a client's retry
    repeats it.
    """
    if not any(_IDEMPOTENCY in name for name, _ in headers):
        return headers
    return tuple([(name, _derive_key(value, content) if _IDEMPOTENCY in name else value) for name, value in headers])


def _derive_key(key: bytes, content: bytes) -> bytes:
    digest = hashlib.sha256(len(key).to_bytes(4, "big") + key + content).digest()
    derived = str(uuid.UUID(bytes=digest[:16])).encode()
    # The IETF's draft has the key in quotes.
    return b'"%b"' % derived if key.startswith(b'"') else derived


class Outbound(msgspec.Struct, frozen=True):
    """A response to the client.

    If an iterator in `body` raises, the body is incomplete, and the connection must not end as if it were whole.
    """

    status: int
    headers: Headers
    body: bytes | AsyncGenerator[bytes, None]


class CompleteResponse:
    """An `UpstreamResponse` (model/ports.py) whose body is complete.

    `headers` are all headers except the length.
    """

    def __init__(
        self, body: bytes, headers: Headers = ((b"content-type", b"application/json"),), status: int = 200
    ) -> None:
        self.status = status
        self.headers: Headers = (*headers, (b"content-length", b"%d" % len(body)))
        self.is_delimited = True
        self._body = body

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yields the body as one chunk."""
        yield self._body

    async def close(self) -> None:
        """Does nothing: no connection is open."""
