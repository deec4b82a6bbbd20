"""The media type of a file, the size of an image and the number of a PDF's pages, from a file's bytes.

The work is bounded whatever the bytes are, and no function raises.

Source for PDF: ISO 32000-1, 7.5.7 (object streams) and 7.7.3 (the page tree: leaves are `/Type /Page`, nodes
`/Type /Pages` with the `/Count` of the leaves below). Objects are in the file as they are, or deflated in object
streams.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

JPEG_SEGMENTS = 256
"""The most segments of a JPEG that are read; an embedded colour profile takes a few dozen."""

MOST_PAGES = 1_000
"""The most pages that are counted: no provider takes more pages of one file (Gemini's limit)."""

LEAST = 100
"""The least bytes of a page; a file's claim of more pages than this allows is ignored."""

# Limits of the search: writers put some hundred objects into each stream, and few of them have a count.
COUNTS = 4_096
STREAMS = 256
STREAM_BYTES = 1 << 17
INFLATED = 1 << 22

_PAGE = re.compile(rb"/Type\s{0,8}/Page(?![^\s/<>\[\]()%])")
_COUNT = re.compile(rb"/Count\s{1,8}(\d{1,6})(?!\d|\s{1,8}\d{1,6}\s{1,8}R)")
_OBJECT_STREAM = b"/ObjStm"
_STREAM_START = re.compile(rb"stream\r?\n")
_LONGEST_DICTIONARY = 1_024  # the most bytes between a stream's type and its start
# A search blocks every other thread until it finds a match, so the data is searched in slices of this size. A match may
# extend this far beyond a slice.
_SLICE, _OVERLAP = 1 << 20, 64

# Start-of-frame markers; 0xC4, 0xC8 and 0xCC mean something else. Bare markers have no segment.
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_BARE = frozenset(range(0xD0, 0xDA)) | {0x01}


class FileType(NamedTuple):
    """A file's type. `media_type` is empty if unknown; `width` and `height`, in pixels, are 0 if unknown."""

    media_type: str
    width: int
    height: int


def detect_file_type(data: bytes) -> FileType:
    """Recognizes PNG, JPEG, GIF, WebP and PDF by their first bytes, and reads an image's size.

    The data may be cut off anywhere. 32 bytes are enough for all types but JPEG, whose size may follow many kilobytes
    of metadata.
    """
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return FileType("image/png", _read_big_endian(data[16:20], 4), _read_big_endian(data[20:24], 4))
    if data.startswith(b"\xff\xd8\xff"):
        return _read_jpeg(data)
    if data.startswith((b"GIF87a", b"GIF89a")):
        return FileType("image/gif", _read_little_endian(data[6:8], 2), _read_little_endian(data[8:10], 2))
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _read_webp(data)
    if data.startswith(b"%PDF-"):
        return FileType("application/pdf", 0, 0)
    return FileType("", 0, 0)


def _read_big_endian(data: bytes, size: int) -> int:
    return int.from_bytes(data, "big") if len(data) == size else 0


def _read_little_endian(data: bytes, size: int) -> int:
    return int.from_bytes(data, "little") if len(data) == size else 0


def _read_jpeg(data: bytes) -> FileType:
    offset = 2
    for _ in range(JPEG_SEGMENTS):
        if data[offset : offset + 2] == b"\xff\xff":  # a fill byte
            offset += 1
            continue
        if data[offset : offset + 1] != b"\xff" or offset + 4 > len(data):
            break
        marker = data[offset + 1]
        if marker in _JPEG_FRAMES:
            return FileType(
                "image/jpeg",
                _read_big_endian(data[offset + 7 : offset + 9], 2),
                _read_big_endian(data[offset + 5 : offset + 7], 2),
            )
        offset += 2 if marker in _JPEG_BARE else 2 + max(2, _read_big_endian(data[offset + 2 : offset + 4], 2))
    return FileType("image/jpeg", 0, 0)


def _read_webp(data: bytes) -> FileType:
    """Reads the size from each of the three forms: lossy (VP8), lossless (VP8L) and extended (VP8X)."""
    width = height = 0
    form = data[12:16]
    if form == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = _read_little_endian(data[26:28], 2) & 0x3FFF, _read_little_endian(data[28:30], 2) & 0x3FFF
    elif form == b"VP8L" and data[20:21] == b"\x2f" and len(data) >= 25:
        bits = _read_little_endian(data[21:25], 4)
        width, height = (bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1
    elif form == b"VP8X" and len(data) >= 30:
        width, height = _read_little_endian(data[24:27], 3) + 1, _read_little_endian(data[27:30], 3) + 1
    return FileType("image/webp", width, height)


def count_pages(data: bytes) -> int:
    """Estimates the pages of a PDF; 0 if the file is encrypted, broken or no PDF.

    A changed object is in a file twice, and bookmarks have a `/Count` too, so the lesser of both counts is taken.
    """
    leaf_count = count = 0
    for content in (data, *_inflate_streams(data)):
        leaf_count += sum(1 for _ in islice(_find_all(_PAGE, content), MOST_PAGES))
        count = max(count, max((int(match[1]) for match in islice(_find_all(_COUNT, content), COUNTS)), default=0))
    pages = min(leaf_count, count) if leaf_count and count else leaf_count
    return min(pages, MOST_PAGES, len(data) // LEAST + 1)


def _find_all(pattern: re.Pattern[bytes], data: bytes) -> Iterator[re.Match[bytes]]:
    for end in range(_SLICE, len(data) + _SLICE, _SLICE):
        for match in pattern.finditer(data, end - _SLICE, end + _OVERLAP):
            if match.start() < end:
                yield match


def _inflate_streams(data: bytes) -> Iterator[bytes]:
    """Yields the inflated object streams, within the limits."""
    offset, remaining_bytes, view = 0, INFLATED, memoryview(data)
    for _ in range(STREAMS):
        offset = data.find(_OBJECT_STREAM, offset)
        if offset < 0 or remaining_bytes <= 0:
            return
        offset += len(_OBJECT_STREAM)
        start = _STREAM_START.search(data, offset, offset + _LONGEST_DICTIONARY)
        if start is None:
            continue
        try:
            content = zlib.decompressobj().decompress(view[start.end() : start.end() + STREAM_BYTES], remaining_bytes)
        except zlib.error:
            continue
        remaining_bytes -= len(content)
        yield content
