"""Relays a response's body to the client as it comes, while an observer reads a copy.

The observer understands usage, calls and errors for the ledger. Its errors never affect the client. If the response
must be stored first, the end of the body is held back until that is done. This module also has the wrapper of a
response whose body was rewritten, and removes headers.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from operator import itemgetter

import msgspec

from accordion.model.errors import AccordionError, UpstreamDisconnected
from accordion.model.http import stop_error
from accordion.model.insertions import ToolRoundInsertion
from accordion.model.ports import Clock, Headers, UpstreamResponse
from accordion.model.records import CLIENT_LEFT, ObservedResponse, ToolLoopUsage
from accordion.protocols.base import WireProtocol
from accordion.protocols.content_encoding import Decoder
from accordion.protocols.response_parser import ResponseObserver
from accordion.protocols.sse import SseBuffer

_log = logging.getLogger("accordion")

_MAX_COPY = 1 << 20
"""The longest body of which a copy is kept, in bytes."""
_BODY_HEADERS = frozenset({b"content-length", b"content-encoding"})
_PROXY_PREFIX = b"x-accordion-"
_header_name = itemgetter(0)


class ExchangeProgress(msgspec.Struct):
    """The progress of one exchange. Times are in seconds by the monotonic clock."""

    started_at: float
    is_sent: bool = False
    """Whether the request was handed to the provider, which may bill it whatever the client gets."""
    is_interrupted: bool = False
    """Whether the client left, or the proxy stopped, before the response began."""
    first_byte_at: float = 0.0
    status: int = 0
    error: str = ""
    compaction_seconds: float = 0.0
    """Seconds by which compaction delayed the request."""
    tool_loop_usage: ToolLoopUsage | None = None
    """Usage of the tool rounds within the response."""
    round_ids: tuple[str, ...] = ()
    """The provider's own ids of the rounds of a response with tool rounds."""
    last_output: bytes = b""
    """The bytes that a response with hidden calls of our own tool yielded last."""
    non_text_events: bytes | None = None
    """The whole events of `last_output` that contain more than text; None if they are not known."""
    insertion: ToolRoundInsertion | None = None
    """The tool rounds that the client does not know of, to be stored before the response ends."""
    response_copy: bytes = b""
    """The body of the response without content encoding, for a reader of its text; empty if none is kept."""


StoreResponse = Callable[[ObservedResponse], Awaitable[None]]
"""Stores the state that a later request needs of a response."""


class _ObserverFeed:
    """Feeds an observer with whole events of a stream, or a document's bytes, without content encoding."""

    def __init__(self, observer: ResponseObserver | None, encoding: str, *, is_stream: bool, keeps_copy: bool) -> None:
        self._observer = observer
        self._keeps_copy = keeps_copy
        self.copy = bytearray()
        """What was observed, for a reader of the text; empty if it is not kept, or too long."""
        self._decoder = Decoder(encoding) if encoding else None
        self._events = SseBuffer() if encoding and is_stream else None

    def observe(self, data: bytes, observable: bytes | None = None) -> None:
        """Takes bytes that were passed on.

        `observable` are the whole events among them that the observer needs, if those are known.
        """
        if self._observer is None:
            return
        whole, data = data, data if observable is None else observable
        try:
            if self._decoder is not None:
                data = self._decoder.feed(data)
            if self._events is not None:
                data = self._events.feed(data)
            if self._keeps_copy:
                self._add_to_copy(data if observable is None else whole)
            if data:
                self._observer.feed(data)
        except Exception:
            # Reading is optional; the response goes on unread.
            _log.exception("a response could not be read while it was relayed; it is passed on unchanged")
            self._observer = None

    def _add_to_copy(self, data: bytes) -> None:
        if len(self.copy) + len(data) <= _MAX_COPY:
            self.copy += data
        else:
            self._keeps_copy = False
            self.copy.clear()


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
        self._store, self._observer, self._observer_feed, self._progress = store, observer, observer_feed, progress
        self._is_stream = is_stream
        self._is_stored = False
        self._buffer = b""

    async def hold_back(self, out: bytes) -> bytes:
        """Takes the bytes that came; returns those that may be passed on."""
        if not out:
            return b""
        progress = self._progress
        self._observer_feed.observe(out, progress.non_text_events if out is progress.last_output else None)
        if not self._is_stream:
            passed_on, self._buffer = self._buffer, out
            return passed_on
        if progress.insertion is not None or (self._observer is not None and self._observer.has_ended):
            await self._store_once()
        return out

    async def close(self) -> bytes:
        """Stores the response at the end of the body; returns the bytes that were held."""
        await self._store_once()
        return self._buffer

    async def _store_once(self) -> None:
        if not self._is_stored:
            self._is_stored = True
            await self._store(_read_observer(self._observer))


def _ignore(_data: bytes, _observable: bytes | None = None) -> None:
    """Does nothing: used if the observer has read the bytes before they were passed on."""


async def relay(
    response: UpstreamResponse,
    protocol: WireProtocol | None,
    progress: ExchangeProgress,
    clock: Clock,
    request_id: str,
    record: Callable[[ObservedResponse], None],
    store: StoreResponse | None = None,
    *,
    counts_text: bool = False,
    keeps_copy: bool = False,
) -> AsyncGenerator[bytes, None]:
    """Yields the body as it comes; calls `record` with the observed response at the end, however it ends.

    A plain event stream is passed on event by event: only an incomplete event waits for its rest. A stream that breaks
    off can therefore end in an error event of the client's own protocol. Any other body is passed on piece by piece.
    Raises UpstreamDisconnected or UpstreamTimeout if the response did not end as it should.

    `protocol` is None if the body is not read; for `counts_text` see its `observer`. `store` is awaited before the end
    of the body is passed on: the protocol's last event in a stream, the last piece of a document. It is not called if
    the body breaks off. With `keeps_copy`, `progress` gets a copy of the body at the end.

    The first piece is empty and comes before anything is read. After taking it, the caller may close the relay at any
    time, which closes the response. Closing a generator that has not started would do nothing.
    """
    media_type, encoding = content_type_and_encoding(response.headers)
    is_stream = media_type == "text/event-stream"
    observer = protocol.observer(is_stream, counts_text=counts_text) if protocol is not None else None
    observer_feed = _ObserverFeed(observer, encoding, is_stream=is_stream, keeps_copy=keeps_copy)
    end = _ResponseEnd(store, observer, observer_feed, progress, is_stream=is_stream) if store is not None else None
    observe = observer_feed.observe if end is None else _ignore
    events = SseBuffer() if is_stream and not encoding else None
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
                    # Observed after it was passed on, so that the client does not wait for it; and also if the client
                    # then disconnects.
                    observe(out, progress.non_text_events if out is progress.last_output else None)
        is_mid_event = events is not None and bool(events.pending)
        if (
            is_stream
            and observer is not None
            and not (observer.has_ended or (observer.may_end and not is_mid_event))
            and not response.is_delimited
        ):
            # The body ends where the connection does, so a lost connection looks like a normal end.
            raise UpstreamDisconnected(
                "Connection lost: the provider closed it before the stream ended. Send the request again."
            )
        rest = events.flush() if events is not None else b""
        observer_feed.observe(rest)
        rest = rest if end is None else await end.close() + rest
        if rest:
            yield rest
        # Without a protocol the end of a stream is unknown, but it is never in the middle of a line.
        if observer is None and not response.is_delimited and rest and not rest.endswith((b"\n", b"\r")):
            raise UpstreamDisconnected("Connection lost: the provider closed it in the middle of an event.")
    except BaseException as exception:
        # Closed or cancelled from outside: the client went away, or the proxy is being stopped.
        error = exception if isinstance(exception, AccordionError) else stop_error(exception)
        progress.error = CLIENT_LEFT if error is None else error.code or error.type
        can_report = events is not None and not events.is_mid_event and content_length(response.headers) < 0
        if error is not None and can_report and protocol is not None:
            yield protocol.render_stream_error(error, request_id, last)
        raise
    finally:
        try:
            await pieces.aclose()
        finally:
            await response.close()
            progress.response_copy = bytes(observer_feed.copy)
            record(_read_observer(observer))


def _read_observer(observer: ResponseObserver | None) -> ObservedResponse:
    try:
        return observer.observation() if observer is not None else ObservedResponse()
    except Exception:
        # Reading is optional, and the response has been passed on.
        _log.exception("the end of a response could not be read; its usage is not recorded")
        return ObservedResponse()


def content_length(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Returns the announced length of a body in bytes; -1 if there is none."""
    for name, value in headers:
        if name.lower() == b"content-length" and value.isdigit():
            return int(value)
    return -1


def content_type_and_encoding(headers: Headers) -> tuple[str, str]:
    """Returns the media type (without parameters) and the content encoding of a body, in lower case."""
    media_type = encoding = ""
    for name, value in headers:
        low = name.lower()
        if low == b"content-type":
            media_type = value.split(b";", 1)[0].strip().lower().decode("latin-1")
        elif low == b"content-encoding":
            encoding = value.strip().lower().decode("latin-1")
    return media_type, "" if encoding == "identity" else encoding


def strip_proxy_headers(headers: Headers) -> Headers:
    """Returns the headers without those of an Accordion proxy."""
    # Most messages have none: searching all names at once is faster than checking each. `find` is used because `in`
    # first tries to read bytes as a number, which takes ten times as long.
    if b"\n".join(map(_header_name, headers)).lower().find(_PROXY_PREFIX) < 0:
        return headers
    return tuple([pair for pair in headers if not pair[0].lower().startswith(_PROXY_PREFIX)])


def strip_body_headers(headers: Headers) -> Headers:
    """Returns the headers that are still valid for a body that was read and may have changed."""
    return tuple([pair for pair in headers if pair[0].lower() not in _BODY_HEADERS])


async def read_body(response: UpstreamResponse, encoding: str) -> bytes:
    """Reads the whole body of a response without its content encoding (empty: none), and closes the response."""
    decoder, body = Decoder(encoding) if encoding else None, bytearray()
    try:
        async with aclosing(response.chunks()) as pieces:
            async for piece in pieces:
                body += piece if decoder is None else decoder.feed(piece)
    finally:
        await response.close()
    return bytes(body)


class RewrittenResponse:
    """An UpstreamResponse that yields `stream` in place of the provider's body."""

    def __init__(self, response: UpstreamResponse, stream: AsyncGenerator[bytes, None]) -> None:
        self.status = response.status
        self.headers = strip_body_headers(response.headers)
        self.is_delimited = response.is_delimited
        self._response = response
        self._stream = stream

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """Returns the rewritten stream."""
        return self._stream

    async def close(self) -> None:
        """Closes the stream and the provider's response."""
        await self._stream.aclose()
        await self._response.close()
