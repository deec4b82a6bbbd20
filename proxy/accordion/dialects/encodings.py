"""Content encodings, undone on a copy: what goes by is read, what goes on stays as it came (RFC 9110 8.4.1).

A kilobyte can stand for gigabytes, so nothing is ever inflated further than it may be kept.
"""

from __future__ import annotations

import zlib
from typing import Protocol

import brotli
import zstandard

# How much one step may give, in bytes.
_STEP = 1 << 18
# How much of a reply is inflated at the most; what comes behind it is not heard.
_HEARD = 64 << 20


class _Inflater(Protocol):
    """Takes encoded bytes and gives decoded ones, `_STEP` at the most; `more` says that it holds back some."""

    @property
    def more(self) -> bool: ...

    def __call__(self, data: bytes) -> bytes: ...


class _Plain:
    more = False

    def __call__(self, data: bytes) -> bytes:
        return data


class _Zlib:
    """gzip, which may come in several members, one behind the other (RFC 1952 2.2), and deflate."""

    def __init__(self, wbits: int) -> None:
        self._wbits = wbits
        self._member = zlib.decompressobj(wbits=wbits)
        self._held = b""

    @property
    def more(self) -> bool:
        return bool(self._held)

    def __call__(self, data: bytes) -> bytes:
        if self._member.eof and (self._held or data) and self._wbits == 31:
            self._member = zlib.decompressobj(wbits=self._wbits)
        out = self._member.decompress(self._held + data, _STEP)
        self._held = self._member.unconsumed_tail or self._member.unused_data
        if self._member.eof and self._wbits != 31:
            self._held = b""
        return out


class _Brotli:
    def __init__(self) -> None:
        self._decompressor = brotli.Decompressor()
        self.more = False

    def __call__(self, data: bytes) -> bytes:
        out: bytes = self._decompressor.process(data, output_buffer_limit=_STEP)
        # It does not say whether it holds back some: asking once more is the way to know.
        self.more = bool(out) and not self._decompressor.is_finished()
        return out


class _Zstandard:
    """zstandard gives no bound on what a step inflates to; small steps of input keep it near one. There may be several
    frames, one behind the other (RFC 8878 3)."""

    def __init__(self) -> None:
        decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 27)
        self._decompressor = decompressor.decompressobj(write_size=_STEP, read_across_frames=True)
        self._held = memoryview(b"")

    @property
    def more(self) -> bool:
        return bool(self._held)

    def __call__(self, data: bytes) -> bytes:
        # A view, since a copy of the rest at each step would cost more than the inflating.
        held = memoryview(self._held.tobytes() + data) if data else self._held
        self._held = held[64:]
        return self._decompressor.decompress(held[:64])


class Decoder:
    """Undoes one content encoding piece by piece. What cannot be decoded yields nothing, and never an error.

    No more than `limit` bytes are given in all; then the rest counts as not understood.
    """

    def __init__(self, encoding: str, limit: int = _HEARD) -> None:
        self._inflate = _inflater(encoding.strip().lower())
        self._left = limit

    @property
    def readable(self) -> bool:
        """False once the data, or its encoding, turned out not to be understood, or to be too much."""
        return self._inflate is not None

    def feed(self, data: bytes) -> bytes:
        """The decoded bytes that `data` gives; empty when nothing more can be read."""
        out = []
        try:
            while self._inflate is not None:
                piece = self._inflate(data)
                self._left -= len(piece)
                if self._left < 0:
                    self._inflate = None
                    break
                out.append(piece)
                data = b""
                if not self._inflate.more:
                    break
        except (zlib.error, zstandard.ZstdError, brotli.error, EOFError):
            self._inflate = None
        return b"".join(out)


def _inflater(encoding: str) -> _Inflater | None:
    if encoding in ("", "identity"):
        return _Plain()
    if encoding in ("gzip", "x-gzip"):
        return _Zlib(31)
    if encoding == "deflate":
        return _Zlib(47)
    if encoding == "zstd":
        return _Zstandard()
    return _Brotli() if encoding == "br" else None


def decoded(body: bytes, encoding: str, limit: int) -> bytes | None:
    """A whole body without its encoding; None where it cannot be read or would be larger than `limit` bytes."""
    decoder, out = Decoder(encoding, limit), []
    for at in range(0, len(body), 65_536):
        out.append(decoder.feed(body[at : at + 65_536]))
        if not decoder.readable:
            return None
    return b"".join(out)
