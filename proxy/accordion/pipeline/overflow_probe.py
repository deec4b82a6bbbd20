"""Detects a provider's overflow error at the beginning of a response, before the client receives anything.

Only then can the request be compacted and sent once more. `probe_overflow` buffers the first pieces and reads a copy of
them: the whole body of an error or of a small document, or an event stream up to its first event with content. The
response that it returns still yields every byte.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress

import msgspec

from accordion.accounting.overflow import OTHER_ERROR_STATUSES, WindowOverflow, read_overflow
from accordion.model.ports import UpstreamResponse
from accordion.pipeline.relay import content_length, content_type_and_encoding
from accordion.protocols.base import WireProtocol
from accordion.protocols.content_encoding import Decoder, decode_body
from accordion.protocols.json_values import as_mapping, find_error
from accordion.protocols.response_parser import (
    KEEPALIVE,
    RESPONSE_START,
    CallPiece,
    Content,
    ErrorReport,
    Finish,
    ResponseEvent,
    ResponsePart,
    UsageReport,
)

_log = logging.getLogger("accordion")

MAX_KEEPALIVES = 4
"""Maximum number of comments and pings held in a row, or of blank pieces before a document. They exist to keep clients
from timing out."""
MAX_SMALL_DOCUMENT = 65_536
"""Maximum size in bytes of a document (no stream, no error) that is read whole before it goes on."""

_UNREAD_STATUSES = OTHER_ERROR_STATUSES - {403, 404, 405, 409, 410, 415}
"""Statuses of errors that are not read. By the others, some providers refuse tools (tool_refusals.py) or a list
(list_refusals.py)."""

_ANSWER_FIELDS = ("choices", "output", "content", "candidates")
"""The fields with an answer, which may be empty, in a document of each protocol."""
_JSON, _OPENERS = json.JSONDecoder(), (b"{", b"[")
_WINDOW_FULL_REASONS = frozenset({"model_context_window_exceeded"})


class ProbedResponse(msgspec.Struct, frozen=True):
    """A response that still yields its whole body, and the overflow that it reports."""

    response: UpstreamResponse
    overflow: WindowOverflow | None
    refusal: bytes = b""
    """The whole body of an error without content encoding, or an error event, if it was read and is no overflow."""


async def probe_overflow(
    response: UpstreamResponse,
    protocol: WireProtocol,
    *,
    is_near_window: bool,
    reads_start: bool = False,
    max_bytes: int = 1 << 20,
) -> ProbedResponse:
    """Reads as much of a response as shows whether it reports that the request was too long.

    Of an error (status 400 and above) the whole body is read. If `is_near_window` or `reads_start`, an event stream is
    held until its first event other than an opening or keep-alive event, and a small document is read whole; of a list
    of responses, the first one. A document of unknown length is read with `reads_start` only: where the window is
    unknown, each response would come to the client later. Otherwise neither is read. At most `max_bytes` are held.

    Errors while reading are raised to the reader of the returned response, after the bytes that came before them. If
    cancelled, this closes the response. Otherwise the caller closes the returned response, also before it sends again.
    """
    if response.status >= 400:
        if response.status in _UNREAD_STATUSES or content_length(response.headers) > max_bytes:
            return ProbedResponse(response, None)
        _, encoding = content_type_and_encoding(response.headers)
        return await _run_probe(
            _BufferedResponse(response), _ErrorProbe(response.status, encoding, is_near_window), max_bytes
        )
    if not (is_near_window or reads_start) or not 200 <= response.status < 300:
        return ProbedResponse(response, None)
    kind, encoding = content_type_and_encoding(response.headers)
    if kind == "text/event-stream":
        return await _run_probe(_BufferedResponse(response), _StreamProbe(protocol, encoding, max_bytes), max_bytes)
    max_bytes, length = min(MAX_SMALL_DOCUMENT, max_bytes), content_length(response.headers)
    is_small = 0 <= length <= max_bytes or (reads_start and length < 0)
    if (kind.endswith("json") or kind in ("", "text/plain")) and is_small:
        return await _run_probe(_BufferedResponse(response), _DocumentProbe(protocol, encoding, max_bytes), max_bytes)
    return ProbedResponse(response, None)


async def hold_until(
    response: UpstreamResponse, word: bytes, *, max_bytes: int = 16 << 20
) -> tuple[UpstreamResponse, bytes]:
    """Holds a response until its body has `word`, or more than `max_bytes`.

    Returns the response, which still yields its whole body, and that body without content encoding if it ended without
    the word; empty if it has the word, is longer, breaks off, or cannot be decoded. If cancelled, this closes the
    response.
    """
    _, encoding = content_type_and_encoding(response.headers)
    probed = await _run_probe(_BufferedResponse(response), _WordProbe(word, encoding), max_bytes)
    return probed.response, probed.refusal


class _BufferedResponse:
    """An UpstreamResponse whose first pieces were already read."""

    __slots__ = ("_buffer", "_pieces", "_response", "failure", "headers", "is_delimited", "size", "status")

    def __init__(self, response: UpstreamResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.is_delimited = response.is_delimited
        self.size = 0
        self._response = response
        self._pieces = response.chunks()
        self._buffer: deque[bytes] = deque()
        self.failure: Exception | None = None

    async def read_more(self) -> bytes | None:
        """Reads and buffers one more piece; returns None at the end or after an error, which is kept in `failure`."""
        try:
            piece = await anext(self._pieces, None)
        except Exception as error:
            self.failure = error
            return None
        if piece is not None:
            self._buffer.append(piece)
            self.size += len(piece)
        return piece

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yields the body: the buffered pieces as they came, then the rest as it arrives."""
        while self._buffer:
            yield self._buffer.popleft()
        if self.failure is not None:
            raise self.failure
        async for piece in self._pieces:
            yield piece

    async def close(self) -> None:
        """Closes the provider's response."""
        try:
            # The generator cannot be closed while it waits for a piece; closing the response then ends the wait.
            with suppress(RuntimeError):
                await self._pieces.aclose()
        finally:
            await self._response.close()


class _ErrorProbe:
    """Reads the whole body of an error."""

    def __init__(self, status: int, encoding: str, is_near_window: bool) -> None:
        self.is_decided = False
        self.refusal = b""
        self._status, self._encoding, self._is_near_window = status, encoding, is_near_window
        self._body = bytearray()

    def feed(self, piece: bytes) -> None:
        self._body += piece

    def find_overflow(self, limit: int) -> WindowOverflow | None:
        body = decode_body(bytes(self._body), self._encoding, limit)
        if body is None:
            return None
        self.refusal = body
        return read_overflow(self._status, body.decode(errors="replace"), is_near_window=self._is_near_window)


class _WordProbe:
    """Reads a body up to a word. `refusal` is the whole body if it does not have the word."""

    def __init__(self, word: bytes, encoding: str) -> None:
        self.is_decided = False
        self.refusal = b""
        self._word, self._decoder, self._body = word, Decoder(encoding), bytearray()

    def feed(self, piece: bytes) -> None:
        start = max(0, len(self._body) - len(self._word) + 1)
        self._body += self._decoder.feed(piece)
        self.is_decided = self._body.find(self._word, start) >= 0

    def find_overflow(self, limit: int) -> None:
        if not self.is_decided and self._decoder.readable:
            self.refusal = bytes(self._body)


class _DocumentProbe:
    """Reads a small document: an object to its end, of a list of responses, which is a stream, the first one."""

    def __init__(self, protocol: WireProtocol, encoding: str, limit: int) -> None:
        self.is_decided = False
        self.refusal = b""
        self._protocol, self._decoder = protocol, Decoder(encoding, limit)
        self._body, self._blank_pieces = b"", 0

    def feed(self, piece: bytes) -> None:
        self._body = (self._body + self._decoder.feed(piece)).lstrip()
        self._blank_pieces += not self._body
        is_other = bool(self._body) and not self._body.startswith(_OPENERS)
        is_list_begun = self._body.startswith(b"[") and _first_of_list(self._body) is not None
        is_kept_alive = self._blank_pieces > MAX_KEEPALIVES
        self.is_decided = is_other or is_list_begun or is_kept_alive or not self._decoder.readable

    def find_overflow(self, limit: int) -> WindowOverflow | None:
        if not self._decoder.readable or not self._body.startswith(_OPENERS):
            return None
        event = _parse_document(self._protocol, self._body)
        self.refusal = _find_error(event)
        return _find_overflow(event)


def _first_of_list(body: bytes) -> bytes | None:
    """Returns the first object of a JSON list whose end may still come; None if it is not whole."""
    text = body[1:].decode(errors="replace").lstrip()
    try:
        _, end = _JSON.raw_decode(text)
    except ValueError:
        return None
    return text[:end].encode()


class _StreamProbe:
    """Reads the beginning of an event stream, up to the first event with content."""

    def __init__(self, protocol: WireProtocol, encoding: str, limit: int) -> None:
        self.is_decided = False
        self.refusal = b""
        self._decoder = Decoder(encoding, limit)
        self._protocol = protocol
        self._parser = protocol.parser(stream=True, reads_content=True)
        self._keepalives = 0
        self._overflow: WindowOverflow | None = None

    def feed(self, piece: bytes) -> None:
        self._inspect(self._parser.feed(self._decoder.feed(piece)))
        self.is_decided = self.is_decided or not self._decoder.readable

    def find_overflow(self, limit: int) -> WindowOverflow | None:
        if not self.is_decided:
            # The stream ended; its last event may lack the empty line. Or it is no stream, but one error.
            events = self._parser.close()
            raw = b"".join(event.raw for event in events).strip()
            self._inspect([_parse_document(self._protocol, raw)] if raw.startswith(_OPENERS) else events)
        return self._overflow

    def _inspect(self, events: Sequence[ResponseEvent]) -> None:
        for event in events:
            if RESPONSE_START in event.parts:
                self._keepalives = 0
            elif KEEPALIVE in event.parts:
                self._count_keepalive()
            elif event.data is not None:
                self.is_decided = True
                if find_error(event.data):
                    _mark_if_error(event)
                self._overflow, self.refusal = _find_overflow(event), _find_error(event)
            if self.is_decided:
                return

    def _count_keepalive(self) -> None:
        self._keepalives += 1
        self.is_decided = self._keepalives > MAX_KEEPALIVES


async def _run_probe(
    response: _BufferedResponse, probe: _ErrorProbe | _WordProbe | _DocumentProbe | _StreamProbe, max_bytes: int
) -> ProbedResponse:
    """Reads until `probe` has decided, or the body ends, fails or is too long."""
    try:
        while not probe.is_decided and (piece := await response.read_more()) is not None:
            if response.size > max_bytes:
                return ProbedResponse(response, None)
            probe.feed(piece)
        if response.failure is not None:
            return ProbedResponse(response, None)
        overflow = probe.find_overflow(max_bytes)
        return ProbedResponse(response, overflow, probe.refusal if overflow is None else b"")
    except Exception:
        # Reading is optional; the response goes on unread.
        _log.exception("the beginning of a response could not be read; it is passed on unchanged")
        return ProbedResponse(response, None)
    except BaseException:
        await response.close()
        raise


def _parse_document(protocol: WireProtocol, body: bytes) -> ResponseEvent:
    """Parses a document, or the first one of a list."""
    document = (_first_of_list(body) if body.startswith(b"[") else None) or body
    event = protocol.parser(stream=False, reads_content=True).parse_document(document)
    if event.value and not any(as_mapping(event.value).get(name) for name in _ANSWER_FIELDS):
        _mark_if_error(event)
    return event


def _mark_if_error(event: ResponseEvent) -> None:
    """Marks a document or an event as an error if it has nothing of an answer: errors have any form and any words."""
    if not any(map(_is_of_answer, event.parts)):
        event.parts = (*event.parts, ErrorReport(""))


def _is_of_answer(part: ResponsePart) -> bool:
    if isinstance(part, UsageReport):
        return part.usage is not None
    return bool(part.reason) if isinstance(part, Finish) else isinstance(part, Content | CallPiece)


def _find_error(event: ResponseEvent) -> bytes:
    """Returns the error that a document or an event of a stream reports; empty if there is none."""
    return event.data or b"" if any(isinstance(part, ErrorReport) for part in event.parts) else b""


def _find_overflow(event: ResponseEvent) -> WindowOverflow | None:
    """Returns the overflow that a document or an event of a stream reports.

    This is an error, or an answer that ended for lack of space before it had any content.
    """
    parts = {type(part): part for part in event.parts}
    if ErrorReport in parts:
        return read_overflow(200, (event.data or b"").decode(errors="replace"))
    finish = parts.get(Finish)
    has_output = Content in parts or CallPiece in parts
    is_full = isinstance(finish, Finish) and finish.reason in _WINDOW_FULL_REASONS
    return WindowOverflow() if is_full and not has_output else None
