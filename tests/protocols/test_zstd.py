"""Stored frames are compatible with the package `zstandard`, which wrote them up to version 0.1."""

import pytest
import zstandard

from accordion.protocols.zstd import ZstdError, compress, decompress, make_compressor

PLAIN = b'{"role": "user", "content": "hello"}' * 1_000


@pytest.mark.parametrize(
    "packed",
    [
        zstandard.ZstdCompressor().compress(PLAIN),
        zstandard.ZstdCompressor(level=1, write_checksum=True).compress(PLAIN),
        zstandard.ZstdCompressor(write_content_size=False).compress(PLAIN),
    ],
)
def test_frames_of_earlier_versions_can_be_read(packed: bytes) -> None:
    assert decompress(packed, limit=len(PLAIN)) == PLAIN


def test_earlier_versions_can_read_the_frames() -> None:
    pack = make_compressor(level=1)
    for packed in (compress(PLAIN), compress(PLAIN, has_checksum=True), pack(PLAIN), pack(PLAIN)):
        # Without the content's size in the frame, `zstandard` would refuse it.
        assert zstandard.ZstdDecompressor().decompress(packed) == PLAIN


def test_a_checksum_detects_a_changed_byte() -> None:
    packed = bytearray(compress(b"0123456789abcdef", has_checksum=True))
    packed[-8] ^= 1
    with pytest.raises(ZstdError):
        decompress(bytes(packed), limit=100)


@pytest.mark.parametrize("packed", [b"", b"no frame", compress(PLAIN)[:-1]])
def test_a_damaged_frame_is_an_error(packed: bytes) -> None:
    with pytest.raises(ZstdError):
        decompress(packed, limit=len(PLAIN))


def test_content_beyond_the_limit_is_an_error() -> None:
    assert decompress(compress(PLAIN), limit=len(PLAIN)) == PLAIN
    with pytest.raises(ZstdError, match="longer than"):
        decompress(compress(PLAIN), limit=len(PLAIN) - 1)
