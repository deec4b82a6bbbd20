"""What a file is and how large a picture is, from its first bytes."""

from __future__ import annotations

from typing import NamedTuple

JPEG_SEGMENTS = 256
"""How many segments of a JPEG are walked over at most; an embedded colour profile takes a few dozen."""

# Start-of-frame markers; 0xC4, 0xC8 and 0xCC stand for other things.
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_BARE = frozenset(range(0xD0, 0xDA)) | {0x01}


class Sniffed(NamedTuple):
    """`media_type` is empty where unknown; `width` and `height`, in pixels, are 0 where unknown."""

    media_type: str
    width: int
    height: int


def sniff(data: bytes) -> Sniffed:
    """Tells PNG, JPEG, GIF, WebP and PDF by their first bytes, and how large a picture is.

    Takes data cut off anywhere: what did not fit in is unknown. 32 bytes do for all but JPEG, whose size may stand
    behind metadata of many kilobytes. Work is bounded whatever the bytes are; never fails.
    """
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return Sniffed("image/png", _big(data[16:20], 4), _big(data[20:24], 4))
    if data.startswith(b"\xff\xd8\xff"):
        return _jpeg(data)
    if data.startswith((b"GIF87a", b"GIF89a")):
        return Sniffed("image/gif", _little(data[6:8], 2), _little(data[8:10], 2))
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _webp(data)
    if data.startswith(b"%PDF-"):
        return Sniffed("application/pdf", 0, 0)
    return Sniffed("", 0, 0)


def _big(data: bytes, size: int) -> int:
    return int.from_bytes(data, "big") if len(data) == size else 0


def _little(data: bytes, size: int) -> int:
    return int.from_bytes(data, "little") if len(data) == size else 0


def _jpeg(data: bytes) -> Sniffed:
    place = 2
    for _ in range(JPEG_SEGMENTS):
        if data[place : place + 2] == b"\xff\xff":  # a fill byte
            place += 1
            continue
        if data[place : place + 1] != b"\xff" or place + 4 > len(data):
            break
        marker = data[place + 1]
        if marker in _JPEG_FRAMES:
            return Sniffed("image/jpeg", _big(data[place + 7 : place + 9], 2), _big(data[place + 5 : place + 7], 2))
        place += 2 if marker in _JPEG_BARE else 2 + max(2, _big(data[place + 2 : place + 4], 2))
    return Sniffed("image/jpeg", 0, 0)


def _webp(data: bytes) -> Sniffed:
    """The three forms: lossy (VP8), lossless (VP8L) and extended (VP8X)."""
    width = height = 0
    form = data[12:16]
    if form == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = _little(data[26:28], 2) & 0x3FFF, _little(data[28:30], 2) & 0x3FFF
    elif form == b"VP8L" and data[20:21] == b"\x2f" and len(data) >= 25:
        bits = _little(data[21:25], 4)
        width, height = (bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1
    elif form == b"VP8X" and len(data) >= 30:
        width, height = _little(data[24:27], 3) + 1, _little(data[27:30], 3) + 1
    return Sniffed("image/webp", width, height)
