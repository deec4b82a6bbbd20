"""Content encodings, undone on a copy: what goes by is read, what goes on stays as it came (RFC 9110 8.4.1)."""

from __future__ import annotations

import zlib
from typing import Protocol

import brotli
import zstandard


class _Inflater(Protocol):
    def __call__(self, data: bytes, /) -> bytes: ...


class Decoder:
    """Undoes one content encoding piece by piece. What cannot be decoded yields nothing, and never an error."""

    def __init__(self, encoding: str) -> None:
        self._inflate = _inflater(encoding.strip().lower())

    @property
    def readable(self) -> bool:
        """False once the data, or its encoding, turned out not to be understood."""
        return self._inflate is not None

    def feed(self, data: bytes) -> bytes:
        """The decoded bytes that `data` gives; empty when nothing more can be read."""
        if self._inflate is None:
            return b""
        try:
            return self._inflate(data)
        except (zlib.error, zstandard.ZstdError, brotli.error, EOFError):
            self._inflate = None
            return b""


class _Members:
    """gzip, which may come in several members, one behind the other (RFC 1952 2.2)."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=31)

    def feed(self, data: bytes) -> bytes:
        out = self._member.decompress(data)
        while self._member.eof and (rest := self._member.unused_data):
            self._member = zlib.decompressobj(wbits=31)
            out += self._member.decompress(rest)
        return out


def _inflater(encoding: str) -> _Inflater | None:
    if encoding in ("", "identity"):
        return bytes
    if encoding in ("gzip", "x-gzip"):
        return _Members().feed
    if encoding == "deflate":
        return zlib.decompressobj(wbits=47).decompress
    if encoding == "zstd":
        return zstandard.ZstdDecompressor().decompressobj().decompress
    if encoding == "br":
        inflate: _Inflater = brotli.Decompressor().process
        return inflate
    return None


def decoded(body: bytes, encoding: str, limit: int) -> bytes | None:
    """A whole body without its encoding; None where it cannot be read or would be larger than `limit` bytes."""
    decoder, out, size = Decoder(encoding), [], 0
    for at in range(0, len(body), 65_536):
        piece = decoder.feed(body[at : at + 65_536])
        size += len(piece)
        if size > limit or not decoder.readable:
            return None
        out.append(piece)
    return b"".join(out)
