"""AWS's event stream (application/vnd.amazon.eventstream): splits it into frames as they arrive, and writes frames.

A frame is a prelude (the lengths of the whole frame and of its headers, and their checksum), headers, a payload, and
the checksum of all before it. Numbers are big-endian, checksums are CRC-32. A header is a name, a type and a value;
those that describe the event (`:message-type`, `:event-type`, `:exception-type`) are texts.

Source: Smithy's "Amazon Event Stream Specification"; botocore's `eventstream.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple
from zlib import crc32

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
