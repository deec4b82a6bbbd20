"""Decodes content encodings (RFC 9110 8.4.1), to read a copy of a body that is forwarded as it came.

A kilobyte can inflate to gigabytes, so decoding stops at a limit.
"""

from __future__ import annotations

import zlib
from typing import Protocol

import brotli

from accordion.protocols.zstd import ZstdError, make_decompressor

# Output limit of one step, in bytes.
_STEP = 1 << 18
# Limit of a decoded response, in bytes.
_MAX_DECODED = 64 << 20


class _Inflater(Protocol):
    """Takes encoded bytes and returns decoded ones, at most `_STEP`; `more` tells that some are left."""

    @property
    def more(self) -> bool: ...

    def __call__(self, data: bytes) -> bytes: ...


class _PlainInflater:
    more = False

    def __call__(self, data: bytes) -> bytes:
        return data


class _ZlibInflater:
    """Decodes deflate, and gzip, which may have several members in a row (RFC 1952 2.2)."""

    def __init__(self, wbits: int) -> None:
        self._wbits = wbits
        self._member = zlib.decompressobj(wbits=wbits)
        self._remaining = b""

    @property
    def more(self) -> bool:
        return bool(self._remaining)

    def __call__(self, data: bytes) -> bytes:
        if self._member.eof and (self._remaining or data) and self._wbits == 31:
            self._member = zlib.decompressobj(wbits=self._wbits)
        out = self._member.decompress(self._remaining + data, _STEP)
        self._remaining = self._member.unconsumed_tail or self._member.unused_data
        if self._member.eof and self._wbits != 31:
            self._remaining = b""
        return out


class _BrotliInflater:
    def __init__(self) -> None:
        self._decompressor = brotli.Decompressor()
        self.more = False

    def __call__(self, data: bytes) -> bytes:
        out: bytes = self._decompressor.process(data, output_buffer_limit=_STEP)
        # The decompressor does not tell whether output is left; the next call does.
        self.more = bool(out) and not self._decompressor.is_finished()
        return out


class _ZstandardInflater:
    """Decodes Zstandard, which may have several frames in a row (RFC 8878 3)."""

    def __init__(self) -> None:
        self._frame = make_decompressor()

    @property
    def more(self) -> bool:
        return bool(self._frame.unused_data) if self._frame.eof else not self._frame.needs_input

    def __call__(self, data: bytes) -> bytes:
        if self._frame.eof:
            data = self._frame.unused_data + data
            self._frame = make_decompressor()
        return self._frame.decompress(data, _STEP)


class Decoder:
    """Decodes one content encoding piece by piece. Invalid data decodes to nothing and never raises.

    Data that would decode to more than `limit` bytes in all is not decoded further.
    """

    def __init__(self, encoding: str, limit: int = _MAX_DECODED) -> None:
        self._inflate = _inflater(encoding.strip().lower())
        self._space_left = limit

    @property
    def readable(self) -> bool:
        """Whether the encoding is known and the data so far was valid and within the limit."""
        return self._inflate is not None

    def feed(self, data: bytes) -> bytes:
        """Decodes more data; empty once it is not `readable`."""
        out = []
        try:
            while self._inflate is not None:
                piece = self._inflate(data)
                self._space_left -= len(piece)
                if self._space_left < 0:
                    self._inflate = None
                    break
                out.append(piece)
                data = b""
                if not self._inflate.more:
                    break
        except (zlib.error, ZstdError, brotli.error, EOFError):
            self._inflate = None
        return b"".join(out)


def _inflater(encoding: str) -> _Inflater | None:
    if encoding in ("", "identity"):
        return _PlainInflater()
    if encoding in ("gzip", "x-gzip"):
        return _ZlibInflater(31)
    if encoding == "deflate":
        return _ZlibInflater(47)
    if encoding == "zstd":
        return _ZstandardInflater()
    return _BrotliInflater() if encoding == "br" else None


def decode_body(body: bytes, encoding: str, limit: int) -> bytes | None:
    """Decodes a complete body; None where it is invalid or would be larger than `limit` bytes."""
    decoder, out = Decoder(encoding, limit), []
    for index in range(0, len(body), 65_536):
        out.append(decoder.feed(body[index : index + 65_536]))
        if not decoder.readable:
            return None
    return b"".join(out)
