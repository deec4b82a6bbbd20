"""Zstandard by the standard library's module (Python 3.14 and later) or its backport, which are a twentieth of the size
of the package `zstandard`."""

from __future__ import annotations

import sys
from collections.abc import Callable

if sys.version_info >= (3, 14):
    from compression.zstd import (
        CompressionParameter,
        DecompressionParameter,
        ZstdCompressor,
        ZstdDecompressor,
        ZstdError,
    )
else:
    from backports.zstd import CompressionParameter, DecompressionParameter, ZstdCompressor, ZstdDecompressor, ZstdError

__all__ = ["ZstdError", "compress", "decompress", "make_compressor", "make_decompressor"]

_DEFAULT_LEVEL = 3
_WINDOW_LOG = 27
"""The largest window that a decompressor accepts, as a power of 2: 128 MiB of memory."""


def compress(plain: bytes, *, level: int = _DEFAULT_LEVEL, has_checksum: bool = False) -> bytes:
    """Returns `plain` as one frame."""
    return make_compressor(level=level, has_checksum=has_checksum)(plain)


def make_compressor(*, level: int = _DEFAULT_LEVEL, has_checksum: bool = False) -> Callable[[bytes], bytes]:
    """Returns a function that compresses each of its arguments to one frame. It is for one thread."""
    options: dict[int, int] = {
        CompressionParameter.compression_level: level,
        CompressionParameter.checksum_flag: int(has_checksum),
    }
    compressor = ZstdCompressor(options=options)
    return lambda plain: compressor.compress(plain, ZstdCompressor.FLUSH_FRAME)


def decompress(frame: bytes, *, limit: int) -> bytes:
    """Returns the content of one frame. Raises ZstdError if it is damaged, incomplete, or longer than `limit` bytes."""
    decompressor = make_decompressor()
    plain = decompressor.decompress(frame, limit)
    if not decompressor.eof:
        raise ZstdError(f"the frame is incomplete, or its content is longer than {limit} bytes")
    return plain


def make_decompressor() -> ZstdDecompressor:
    """Returns a decompressor of one frame, piece by piece."""
    return ZstdDecompressor(options={DecompressionParameter.window_log_max: _WINDOW_LOG})
