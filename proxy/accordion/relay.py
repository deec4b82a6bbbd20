"""The way back: a reply's body goes on as it comes, while a tap listens to a copy."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable

import msgspec

from accordion.core.errors import AccordionError, UpstreamCut
from accordion.core.http import stopped
from accordion.core.ports import Clock, Headers, UpstreamReply
from accordion.core.records import ReplySeen, Unfolded
from accordion.core.weaves import Weave
from accordion.dialects.base import Dialect, Tap
from accordion.dialects.encodings import Decoder
from accordion.dialects.sse import Events

_log = logging.getLogger("accordion")


class Course(msgspec.Struct):
    """How one exchange goes, as it goes. Times by the monotonic clock, in seconds."""

    started: float
    first_byte: float = 0.0
    status: int = 0
    error: str = ""
    folding: float = 0.0
    """Seconds that folding held the request up."""
    unfolded: Unfolded | None = None
    """What was read back within the reply."""
    ids: tuple[str, ...] = ()
    """The provider's own ids of the rounds of a reply in which something was read back."""
    shown: bytes = b""
    """What of a reply whose calls of our own tool are hidden was shown last."""
    telling: bytes | None = None
    """What of that, in whole events, says more than a text; None where that is not known."""
    weave: Weave | None = None
    """What the client cannot know of, to be stored before the response ends."""


Store = Callable[[ReplySeen], Awaitable[None]]
"""Stores what a later request needs of a response."""


class _Listener:
    """Gives a tap what it can read: whole events of a stream, without any content encoding."""

    def __init__(self, tap: Tap | None, encoding: str, *, streamed: bool) -> None:
        self._tap = tap
        self._decoder = Decoder(encoding) if encoding else None
        self._events = Events() if encoding and streamed else None

    def hear(self, data: bytes, telling: bytes | None = None) -> None:
        """Takes what went on. `telling` is what of it, in whole events, can say something, where that is known."""
        if self._tap is None:
            return
        data = data if telling is None else telling
        try:
            if self._decoder is not None:
                data = self._decoder.feed(data)
            if self._events is not None:
                data = self._events.feed(data)
            if data:
                self._tap.feed(data)
        except Exception:
            # Listening is a favour; the reply goes on unheard.
            _log.exception("a response could not be read; it is passed on unchanged")
            self._tap = None


class _End:
    """Holds the end of a response back until the response is stored."""

    def __init__(self, store: Store, tap: Tap | None, listener: _Listener, course: Course, *, streamed: bool) -> None:
        self._store, self._tap, self._listener, self._course = store, tap, listener, course
        self._streamed = streamed
        self._stored = False
        self._held = b""

    async def feed(self, out: bytes) -> bytes:
        """Takes what came; gives what may go on."""
        if not out:
            return b""
        course = self._course
        self._listener.hear(out, course.telling if out is course.shown else None)
        if not self._streamed:
            shown, self._held = self._held, out
            return shown
        if course.weave is not None or (self._tap is not None and self._tap.ended):
            await self._now()
        return out

    async def close(self) -> bytes:
        """The body has ended: what was held of it."""
        await self._now()
        return self._held

    async def _now(self) -> None:
        if not self._stored:
            self._stored = True
            await self._store(_understood(self._tap))


def _deaf(_data: bytes, _telling: bytes | None = None) -> None:
    """In place of a listener that has heard it before it went on."""


async def relay(
    reply: UpstreamReply,
    dialect: Dialect | None,
    course: Course,
    clock: Clock,
    request_id: str,
    settle: Callable[[ReplySeen], None],
    store: Store | None = None,
) -> AsyncGenerator[bytes, None]:
    """Yields the body as it comes; `settle` is told at the end, however it comes, what was understood.

    A plain event stream goes on event by event: only the incomplete end of a piece waits for its rest (no event is
    held once it is whole), so that a stream that is cut can end in an error event of the client's own dialect. Any
    other body goes on piece by piece. Raises UpstreamCut or UpstreamTimeout where the reply did not end as it should.
    `dialect` is None where nothing is to be read. `store` is awaited before the end of the body goes on: that of a
    stream is the dialect's last event, that of a document its last piece. It is not called where the body breaks off.

    The first piece is empty and comes before anything is read. Whoever has taken it may close the relay at any time,
    which lets go of the reply; a generator that was closed before it began would do nothing.
    """
    kind, encoding = content(reply.headers)
    streamed = kind == "text/event-stream"
    tap = dialect.tap(streamed) if dialect is not None else None
    listener = _Listener(tap, encoding, streamed=streamed)
    end = _End(store, tap, listener, course, streamed=streamed) if store is not None else None
    hear = listener.hear if end is None else _deaf
    events = Events() if streamed and not encoding else None
    pieces, last = reply.chunks(), b""
    try:
        yield b""
        async for piece in pieces:
            if not course.first_byte:
                course.first_byte = clock.monotonic()
            out = piece if events is None else events.feed(piece)
            out = out if end is None else await end.feed(out)
            if out:
                last = out
                try:
                    yield out
                finally:
                    # Heard after it went on, so that nobody waits for that; and also where the client then goes.
                    hear(out, course.telling if out is course.shown else None)
        if streamed and tap is not None and not tap.ended and not reply.delimited:
            # The body ends where the connection does, so a lost connection looks like a normal end.
            raise UpstreamCut(
                "Connection lost: the provider closed it before the stream ended. Send the request again."
            )
        rest = events.flush() if events is not None else b""
        listener.hear(rest)
        rest = rest if end is None else await end.close() + rest
        if rest:
            yield rest
        # Nobody knows here how such a stream ends, but not in the middle of a line.
        if tap is None and not reply.delimited and rest and not rest.endswith((b"\n", b"\r")):
            raise UpstreamCut("Connection lost: the provider closed it in the middle of an event.")
    except BaseException as reason:
        # Closed or cancelled from outside: the client went away, or the proxy is being stopped.
        error = reason if isinstance(reason, AccordionError) else stopped(reason)
        course.error = "client_disconnected" if error is None else error.code or error.type
        tellable = events is not None and not events.mid_event and length_of(reply.headers) < 0
        if error is not None and tellable and dialect is not None:
            yield dialect.stream_error(error, request_id, last)
        raise
    finally:
        try:
            await pieces.aclose()
        finally:
            await reply.close()
            settle(_understood(tap))


def _understood(tap: Tap | None) -> ReplySeen:
    try:
        return tap.seen() if tap is not None else ReplySeen()
    except Exception:
        # A favour, too; and the reply has gone.
        _log.exception("a response could not be read; it is passed on unchanged")
        return ReplySeen()


def length_of(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """The announced length of a body, in bytes; -1 where that is not said."""
    for name, value in headers:
        if name.lower() == b"content-length" and value.isdigit():
            return int(value)
    return -1


def content(headers: Headers) -> tuple[str, str]:
    """The media type (without parameters) and the content encoding of a body, lower-case."""
    kind = encoding = ""
    for name, value in headers:
        low = name.lower()
        if low == b"content-type":
            kind = value.split(b";", 1)[0].strip().lower().decode("latin-1")
        elif low == b"content-encoding":
            encoding = value.strip().lower().decode("latin-1")
    return kind, "" if encoding == "identity" else encoding
