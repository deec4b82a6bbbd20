"""The way back: a reply's body goes on as it comes, while a tap listens to a copy."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable

import msgspec

from accordion.model.errors import AccordionError, UpstreamDisconnected
from accordion.model.http import stop_error
from accordion.model.insertions import ToolRoundInsertion
from accordion.model.ports import Clock, Headers, UpstreamResponse
from accordion.model.records import ObservedResponse, ToolLoopUsage
from accordion.protocols.base import ResponseObserver, WireProtocol
from accordion.protocols.content_encoding import Decoder
from accordion.protocols.sse import SseBuffer

_log = logging.getLogger("accordion")


class ExchangeProgress(msgspec.Struct):
    """How one exchange goes, as it goes. Times by the monotonic clock, in seconds."""

    started_at: float
    first_byte_at: float = 0.0
    status: int = 0
    error: str = ""
    compaction_seconds: float = 0.0
    """Seconds that folding held the request up."""
    tool_loop_usage: ToolLoopUsage | None = None
    """What was read back within the reply."""
    round_ids: tuple[str, ...] = ()
    """The provider's own ids of the rounds of a reply in which something was read back."""
    last_output: bytes = b""
    """What of a reply whose calls of our own tool are hidden was shown last."""
    observable_output: bytes | None = None
    """What of that, in whole events, says more than a text; None where that is not known."""
    insertion: ToolRoundInsertion | None = None
    """What the client cannot know of, to be stored before the response ends."""


StoreResponse = Callable[[ObservedResponse], Awaitable[None]]
"""Stores what a later request needs of a response."""


class _ObserverFeed:
    """Gives a tap what it can read: whole events of a stream, without any content encoding."""

    def __init__(self, observer: ResponseObserver | None, encoding: str, *, is_stream: bool) -> None:
        self._tap = observer
        self._decoder = Decoder(encoding) if encoding else None
        self._events = SseBuffer() if encoding and is_stream else None

    def observe(self, data: bytes, observable: bytes | None = None) -> None:
        """Takes what went on. `telling` is what of it, in whole events, can say something, where that is known."""
        if self._tap is None:
            return
        data = data if observable is None else observable
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


class _ResponseEnd:
    """Holds the end of a response back until the response is stored."""

    def __init__(
        self,
        store: StoreResponse,
        observer: ResponseObserver | None,
        observer_feed: _ObserverFeed,
        progress: ExchangeProgress,
        *,
        is_stream: bool,
    ) -> None:
        self._store, self._tap, self._listener, self._course = store, observer, observer_feed, progress
        self._streamed = is_stream
        self._stored = False
        self._held = b""

    async def hold_back(self, out: bytes) -> bytes:
        """Takes what came; gives what may go on."""
        if not out:
            return b""
        course = self._course
        self._listener.observe(out, course.observable_output if out is course.last_output else None)
        if not self._streamed:
            shown, self._held = self._held, out
            return shown
        if course.insertion is not None or (self._tap is not None and self._tap.ended):
            await self._store_once()
        return out

    async def close(self) -> bytes:
        """The body has ended: what was held of it."""
        await self._store_once()
        return self._held

    async def _store_once(self) -> None:
        if not self._stored:
            self._stored = True
            await self._store(_read_observer(self._tap))


def _ignore(_data: bytes, _observable: bytes | None = None) -> None:
    """In place of a listener that has heard it before it went on."""


async def relay(
    response: UpstreamResponse,
    protocol: WireProtocol | None,
    progress: ExchangeProgress,
    clock: Clock,
    request_id: str,
    record: Callable[[ObservedResponse], None],
    store: StoreResponse | None = None,
) -> AsyncGenerator[bytes, None]:
    """Yields the body as it comes; `settle` is told at the end, however it comes, what was understood.

    A plain event stream goes on event by event: only the incomplete end of a piece waits for its rest (no event is
    held once it is whole), so that a stream that is cut can end in an error event of the client's own dialect. Any
    other body goes on piece by piece. Raises UpstreamDisconnected or UpstreamTimeout where the reply did not end as it
    should.
    `dialect` is None where nothing is to be read. `store` is awaited before the end of the body goes on: that of a
    stream is the dialect's last event, that of a document its last piece. It is not called where the body breaks off.

    The first piece is empty and comes before anything is read. Whoever has taken it may close the relay at any time,
    which lets go of the reply; a generator that was closed before it began would do nothing.
    """
    kind, encoding = content_type_and_encoding(response.headers)
    streamed = kind == "text/event-stream"
    tap = protocol.observer(streamed) if protocol is not None else None
    listener = _ObserverFeed(tap, encoding, is_stream=streamed)
    end = _ResponseEnd(store, tap, listener, progress, is_stream=streamed) if store is not None else None
    hear = listener.observe if end is None else _ignore
    events = SseBuffer() if streamed and not encoding else None
    pieces, last = response.chunks(), b""
    try:
        yield b""
        async for piece in pieces:
            if not progress.first_byte_at:
                progress.first_byte_at = clock.monotonic()
            out = piece if events is None else events.feed(piece)
            out = out if end is None else await end.hold_back(out)
            if out:
                last = out
                try:
                    yield out
                finally:
                    # Heard after it went on, so that nobody waits for that; and also where the client then goes.
                    hear(out, progress.observable_output if out is progress.last_output else None)
        if streamed and tap is not None and not tap.ended and not response.delimited:
            # The body ends where the connection does, so a lost connection looks like a normal end.
            raise UpstreamDisconnected(
                "Connection lost: the provider closed it before the stream ended. Send the request again."
            )
        rest = events.flush() if events is not None else b""
        listener.observe(rest)
        rest = rest if end is None else await end.close() + rest
        if rest:
            yield rest
        # Nobody knows here how such a stream ends, but not in the middle of a line.
        if tap is None and not response.delimited and rest and not rest.endswith((b"\n", b"\r")):
            raise UpstreamDisconnected("Connection lost: the provider closed it in the middle of an event.")
    except BaseException as reason:
        # Closed or cancelled from outside: the client went away, or the proxy is being stopped.
        error = reason if isinstance(reason, AccordionError) else stop_error(reason)
        progress.error = "client_disconnected" if error is None else error.code or error.type
        tellable = events is not None and not events.is_mid_event and content_length(response.headers) < 0
        if error is not None and tellable and protocol is not None:
            yield protocol.render_stream_error(error, request_id, last)
        raise
    finally:
        try:
            await pieces.aclose()
        finally:
            await response.close()
            record(_read_observer(tap))


def _read_observer(observer: ResponseObserver | None) -> ObservedResponse:
    try:
        return observer.observation() if observer is not None else ObservedResponse()
    except Exception:
        # A favour, too; and the reply has gone.
        _log.exception("a response could not be read; it is passed on unchanged")
        return ObservedResponse()


def content_length(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """The announced length of a body, in bytes; -1 where that is not said."""
    for name, value in headers:
        if name.lower() == b"content-length" and value.isdigit():
            return int(value)
    return -1


def content_type_and_encoding(headers: Headers) -> tuple[str, str]:
    """The media type (without parameters) and the content encoding of a body, lower-case."""
    kind = encoding = ""
    for name, value in headers:
        low = name.lower()
        if low == b"content-type":
            kind = value.split(b";", 1)[0].strip().lower().decode("latin-1")
        elif low == b"content-encoding":
            encoding = value.strip().lower().decode("latin-1")
    return kind, "" if encoding == "identity" else encoding
