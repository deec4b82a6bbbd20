"""Translates Bedrock's streams from frames to the events of an event stream, in which the proxy reads every stream, and
back.

Theory of operation. Bedrock streams in AWS's event stream (application/vnd.amazon.eventstream). A frame is a prelude
(the lengths of the whole frame and of its headers, and their checksum), headers, a payload, and the checksum of all
before it. Numbers are big-endian, checksums are CRC-32. A header is a name, a type and a value; those that describe the
event (`:message-type`, `:event-type`, `:exception-type`) are texts.

`invoke-with-response-stream` puts each event of the model's own stream into a frame `chunk`, as base64.
`converse-stream` has a frame for each event of the Converse API, named by its header `:event-type`. Both end with a
frame of the message type `exception` if they fail.

    provider --frames--> FrameReader --events--> tool loop, observer --events--> BedrockFrames.write --frames--> client

For each event the frame that it came in is kept. An event that comes back unchanged leaves as that frame, byte for
byte; for any other a frame is written. A frame that is no event, and bytes that are no frame, become a comment, which
passes as such and leaves as the same bytes. Some events never come back: the calls of the artifact tool, and those that
are changed. So only the newest frames are kept.

Sources: Smithy's "Amazon Event Stream Specification"; botocore's `eventstream.py`; `ResponseStream` and
`ConverseStreamOutput` in botocore's model of bedrock-runtime; the stream decoder of the anthropic SDK
(`lib/bedrock/_stream_decoder.py`).
"""

from __future__ import annotations

import base64
import re
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from accordion.protocols.json_values import as_mapping, as_string, encode
from accordion.protocols.message_keys import decode_json
from accordion.protocols.response_parser import BOUND
from accordion.protocols.sse import SseBuffer, parse, split_events

# -- AWS's event stream ------------------------------------------------------------------------------------------------


MEDIA_TYPE: Final = "application/vnd.amazon.eventstream"

MAX_FRAME: Final = 16 * 2**20 - 4_096
"""Limit of a frame, in bytes. With its checksums removed, its event is below the limit of one event."""
_PRELUDE = struct.Struct(">III")
_CHECKSUM = struct.Struct(">I")
_LENGTH = struct.Struct(">H")
_SMALLEST = _PRELUDE.size + _CHECKSUM.size
_TEXT = 7
_SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""Sizes of header values by their type, in bytes. A value of another type has its length before it."""
_COUNTED = frozenset({6, _TEXT})


class Frame(NamedTuple):
    """One frame. `raw` are its bytes as they came, `headers` those of its headers that are texts."""

    raw: bytes
    headers: Mapping[str, str]
    payload: bytes


class FrameBuffer:
    """Returns whole frames and keeps back the beginning of the next. Bytes that are no frame end the reading."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self.is_broken = False
        """Whether bytes came that are no frame, so that nothing after them can be read."""

    def feed(self, data: bytes) -> list[Frame]:
        """Takes bytes as they arrive; returns the frames that they complete."""
        pending, frames, start = self._pending, list[Frame](), 0
        pending += data
        while not self.is_broken and len(pending) - start >= _PRELUDE.size:
            try:
                size = _frame_size(pending, start)
                if len(pending) - start < size:
                    break
                frames.append(read_frame(bytes(pending[start : start + size])))
            except ValueError:
                self.is_broken = True
                break
            start += size
        del pending[:start]
        return frames

    def flush(self) -> bytes:
        """Returns the bytes that are kept back; empty afterwards."""
        out = bytes(self._pending)
        self._pending.clear()
        return out


def _frame_size(data: bytes | bytearray, start: int) -> int:
    size, headers_size, checksum = _PRELUDE.unpack_from(data, start)
    if crc32(data[start : start + 8]) != checksum or not _SMALLEST + headers_size <= size <= MAX_FRAME:
        raise ValueError("this is no frame")
    return size  # type: ignore[no-any-return]  # struct has no types


def read_frame(raw: bytes) -> Frame:
    """Reads one whole frame. Raises ValueError if its lengths or its checksums are wrong."""
    size, headers_size, _ = _PRELUDE.unpack_from(raw)
    end = size - _CHECKSUM.size
    if _frame_size(raw, 0) != len(raw) or crc32(raw[:end]) != _CHECKSUM.unpack_from(raw, end)[0]:
        raise ValueError("a frame has a wrong length or checksum")
    payload_start = _PRELUDE.size + headers_size
    return Frame(raw, _read_headers(raw[_PRELUDE.size : payload_start]), raw[payload_start:end])


def _read_headers(block: bytes) -> dict[str, str]:
    headers, position = dict[str, str](), 0
    try:
        while position < len(block):
            name_end = position + 1 + block[position]
            name, kind = block[position + 1 : name_end].decode(), block[name_end]
            position = name_end + 1
            if kind in _COUNTED:
                size = _LENGTH.unpack_from(block, position)[0]
                position += _LENGTH.size
            else:
                size = _SIZES[kind]
            if position + size > len(block):
                raise ValueError("a header is longer than the headers")
            if kind == _TEXT:
                headers[name] = block[position : position + size].decode()
            position += size
    except (KeyError, IndexError, struct.error) as error:
        raise ValueError("the headers of a frame cannot be read") from error
    return headers


def write_frame(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Returns a frame with these headers, all of them texts."""
    block = b"".join(_write_header(name.encode(), value.encode()) for name, value in headers.items())
    lengths = struct.pack(">II", _SMALLEST + len(block) + len(payload), len(block))
    frame = lengths + _CHECKSUM.pack(crc32(lengths)) + block + payload
    return frame + _CHECKSUM.pack(crc32(frame))


def _write_header(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + bytes([_TEXT]) + _LENGTH.pack(len(value)) + value


# -- Bedrock's streams -------------------------------------------------------------------------------------------------


_LINE_ENDS = re.compile(rb"[\r\n]")
_NAME = re.compile(r"\w+")
_JSON: Final = "application/json"
_EXCEPTIONS_BY_STATUS = {
    400: "validationException", 401: "accessDeniedException", 403: "accessDeniedException",
    404: "resourceNotFoundException", 408: "modelTimeoutException", 413: "validationException",
    429: "throttlingException", 500: "internalServerException", 504: "modelTimeoutException",
}  # fmt: skip
_MAX_KEPT: Final = 4 * 2**20
"""Limit of the frames that are kept when the next bytes come, in bytes: more than are ever on their way."""
_DEFAULT_EXCEPTION: Final = "modelStreamErrorException"
_EXCEPTIONS: Mapping[str, str] = {
    "invalid_request_error": "validationException",
    "rate_limit_error": "throttlingException",
    "overloaded_error": "serviceUnavailableException",
    "api_error": "internalServerException",
}
"""Bedrock's exceptions by the types of Anthropic's errors."""
_STREAMED_EXCEPTIONS = frozenset({*_EXCEPTIONS.values(), _DEFAULT_EXCEPTION})
"""The exceptions of both kinds of streams. AWS's clients read no text of any other."""


class _Chunk(msgspec.Struct):
    data: bytes = msgspec.field(name="bytes")


class _Event(msgspec.Struct):
    type: str = ""


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_decode_event = msgspec.json.Decoder(_Event).decode


class BedrockFrames(ABC):
    """The frames of one response to the client, which may be made of several responses of the provider."""

    def __init__(self) -> None:
        self._frames: dict[bytes, list[bytes]] = {}
        """The frames by the events that were read in them, in order."""
        self._kept_size = 0
        self._events = SseBuffer(BOUND)
        self._comments = 0

    def reader(self) -> FrameReader:
        """Creates a reader for one response of the provider."""
        return FrameReader(self)

    def read_frame(self, frame: Frame) -> bytes:
        """Returns the event that a frame stands for."""
        is_event = frame.headers.get(":message-type", "event") == "event"
        event = self.read_event(frame) if is_event else _read_exception(frame)
        return self.keep(event, frame.raw) if event else self.comment(frame.raw)

    def comment(self, raw: bytes) -> bytes:
        """Returns a comment that stands for bytes which are no event."""
        self._comments += 1
        return self.keep(b": frame %d\n\n" % self._comments, raw)

    def keep(self, event: bytes, raw: bytes) -> bytes:
        """Keeps the bytes that an event came in; returns the event."""
        self._frames.setdefault(event, []).append(raw)
        self._kept_size += len(raw)
        return event

    def forget_oldest(self) -> None:
        """Forgets the frames of the oldest events, if many are kept."""
        while self._kept_size > _MAX_KEPT:
            self._kept_size -= sum(map(len, self._frames.pop(next(iter(self._frames)))))

    def write(self, block: bytes) -> bytes:
        """Takes events, or pieces of large ones; returns their frames."""
        return b"".join(map(self._write_event, split_events(self._events.feed(block))))

    def flush(self) -> bytes:
        """Returns the frame of a last event that did not end with an empty line."""
        rest = self._events.flush()
        return self._write_event(rest) if rest.strip() else b""

    def _write_event(self, event: bytes) -> bytes:
        frames = self._frames.get(event)
        if frames:
            raw = frames.pop(0)
            if not frames:
                del self._frames[event]
            self._kept_size -= len(raw)
            return raw
        parsed = parse(event)
        if parsed is None:
            return b""
        return _write_exception(parsed.data) if parsed.name == b"error" else self.write_event(parsed.name, parsed.data)

    @abstractmethod
    def read_event(self, frame: Frame) -> bytes:
        """Returns the event in a frame that is no exception; empty if it has none."""

    @abstractmethod
    def write_event(self, name: bytes, data: bytes) -> bytes:
        """Returns the frame of an event."""


class FrameReader:
    """Reads the frames of one response of the provider."""

    def __init__(self, frames: BedrockFrames) -> None:
        self._frames = frames
        self._buffer = FrameBuffer()

    def feed(self, data: bytes) -> bytes:
        """Takes bytes as they arrive; returns the events in the frames that they complete."""
        self._frames.forget_oldest()
        events = b"".join(map(self._frames.read_frame, self._buffer.feed(data)))
        return events + self.flush() if self._buffer.is_broken else events

    def flush(self) -> bytes:
        """Returns a comment for the bytes that are kept back; empty if there are none."""
        rest = self._buffer.flush()
        return self._frames.comment(rest) if rest else b""


class InvokeFrames(BedrockFrames):
    """The frames of `invoke-with-response-stream`, with the events of Anthropic Messages."""

    def read_event(self, frame: Frame) -> bytes:
        """Reads the event in a `chunk`."""
        try:
            data = _decode_chunk(frame.payload).data
            name = _decode_event(data).type
        except (ValueError, RecursionError):
            return b""
        return _write_sse(name, data)

    def write_event(self, name: bytes, data: bytes) -> bytes:
        """Writes a `chunk`."""
        payload = b'{"bytes":"%s"}' % base64.b64encode(data)
        return _write_event_frame("chunk", payload)


class ConverseFrames(BedrockFrames):
    """The frames of `converse-stream`."""

    def read_event(self, frame: Frame) -> bytes:
        """Reads an event by the name in its frame."""
        try:
            is_object = type(decode_json(frame.payload)) is dict
        except ValueError:
            return b""
        return _write_sse(frame.headers.get(":event-type", ""), frame.payload) if is_object else b""

    def write_event(self, name: bytes, data: bytes) -> bytes:
        """Writes an event under its name."""
        return _write_event_frame(name.decode(errors="replace"), data)


def exception_name(status: int) -> str:
    """Returns the name of Bedrock's exception for the status of an error."""
    return _EXCEPTIONS_BY_STATUS.get(status, "serviceUnavailableException")


def exception_event(kind: str, message: str) -> bytes:
    """Returns an `error` event that stands for an exception."""
    error = {"type": "error", "error": {"type": kind, "message": message}}
    return b"event: error\ndata: " + encode(error) + b"\n\n"


def _write_sse(name: str, data: bytes) -> bytes:
    """Returns an event. A line end in JSON is white space."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), _LINE_ENDS.sub(b" ", data)) if _NAME.fullmatch(name) else b""


def _write_event_frame(kind: str, payload: bytes) -> bytes:
    headers = {":event-type": kind, ":content-type": _JSON, ":message-type": "event"}
    return write_frame(headers, payload)


def _read_exception(frame: Frame) -> bytes:
    """Returns an `error` event for an exception, or for an error that is only in headers."""
    kind = frame.headers.get(":exception-type") or frame.headers.get(":error-code", "")
    try:
        fields = as_mapping(decode_json(frame.payload or b"{}"))
    except ValueError:
        fields = {}
    message = as_string(fields.get("message")) or frame.headers.get(":error-message", "") or kind
    return exception_event(kind, message)


def _write_exception(data: bytes) -> bytes:
    """Returns the frame of an `error` event."""
    try:
        value = as_mapping(decode_json(data))
    except ValueError:
        value = {}
    error = as_mapping(value.get("error"))
    kind = as_string(error.get("type"))
    kind = kind if kind in _STREAMED_EXCEPTIONS else _EXCEPTIONS.get(kind, _DEFAULT_EXCEPTION)
    headers = {":exception-type": kind, ":content-type": _JSON, ":message-type": "exception"}
    return write_frame(headers, encode({"message": as_string(error.get("message")) or "error"}))
