"""How many pages a PDF has, as far as that can be told without reading it properly.

Source: ISO 32000-1, 7.5.7 (object streams) and 7.7.3 (the page tree: leaves are `/Type /Page`, nodes `/Type /Pages`
with the `/Count` of the leaves below). Objects stand in the file as they are, or deflated in object streams.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from itertools import islice

MOST_PAGES = 1_000
"""No provider takes more pages of one file (Gemini's limit), whatever a file says of itself."""

LEAST = 100
"""Bytes that a page takes at least; a file that says more of them is not believed."""

# What is looked at: writers put some hundred objects into each stream, and few of them have a count.
COUNTS = 4_096
STREAMS = 256
STREAM_BYTES = 1 << 17
INFLATED = 1 << 22

_PAGE = re.compile(rb"/Type\s{0,8}/Page(?![^\s/<>\[\]()%])")
_COUNT = re.compile(rb"/Count\s{1,8}(\d{1,6})(?!\d|\s{1,8}\d{1,6}\s{1,8}R)")
_PACKED = b"/ObjStm"
_OPENS = re.compile(rb"stream\r?\n")
_DICTIONARY = 1_024  # how far behind its type a stream begins at most
# A search holds up every other thread until it finds something, so that much is searched at once, and what may stand
# across its end.
_SLICE, _ACROSS = 1 << 20, 64


def pages_of(data: bytes) -> int:
    """Pages of a PDF; 0 where that cannot be told (it is encrypted, broken, or none). An estimate: what was changed
    stands in a file twice, and bookmarks have a `/Count` too, so the lesser of both counts. Work is bounded whatever
    the bytes are; never fails."""
    leaves = counted = 0
    for piece in (data, *_inflated(data)):
        leaves += sum(1 for _ in islice(_found(_PAGE, piece), MOST_PAGES))
        counted = max(counted, max((int(found[1]) for found in islice(_found(_COUNT, piece), COUNTS)), default=0))
    pages = min(leaves, counted) if leaves and counted else leaves
    return min(pages, MOST_PAGES, len(data) // LEAST + 1)


def _found(pattern: re.Pattern[bytes], data: bytes) -> Iterator[re.Match[bytes]]:
    for end in range(_SLICE, len(data) + _SLICE, _SLICE):
        for found in pattern.finditer(data, end - _SLICE, end + _ACROSS):
            if found.start() < end:
                yield found


def _inflated(data: bytes) -> Iterator[bytes]:
    """The object streams, as many as are looked at."""
    place, room, whole = 0, INFLATED, memoryview(data)
    for _ in range(STREAMS):
        place = data.find(_PACKED, place)
        if place < 0 or room <= 0:
            return
        place += len(_PACKED)
        opened = _OPENS.search(data, place, place + _DICTIONARY)
        if opened is None:
            continue
        try:
            piece = zlib.decompressobj().decompress(whole[opened.end() : opened.end() + STREAM_BYTES], room)
        except zlib.error:
            continue
        room -= len(piece)
        yield piece
