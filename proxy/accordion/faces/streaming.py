"""Lines of JSON as they are streamed to a client."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable

import msgspec

from accordion.core.errors import AccordionError

_log = logging.getLogger("accordion")

_PIECE = 65_536


async def in_pieces(
    first: bytes, lines: AsyncIterator[bytes], broken: Callable[[str], object]
) -> AsyncGenerator[bytes, None]:
    """Lines in pieces of a size that is worth a write, `first` before them. Where the store goes away meanwhile, the
    last line is what `broken` makes of the message."""
    held = bytearray(first)
    try:
        async for line in lines:
            held += line
            if len(held) >= _PIECE:
                yield bytes(held)
                held.clear()
    except AccordionError as error:
        _log.warning("an export stopped before its end: %s", error.message)
        held += msgspec.json.encode(broken(error.message)) + b"\n"
    yield bytes(held)
