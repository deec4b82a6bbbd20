"""How values are told that are sealed, and what stands in where no key is set.

A sealed value begins with a byte of its own; any other is as it was written. So a store that was written without a key
can still be read when there is one.
"""

from __future__ import annotations

import logging

_log = logging.getLogger("accordion")

PLAIN, SEALED = b"\xf0", b"\xf1"
"""The first byte of a sealed value, and the one that stands before a plain value that begins with either."""


def escaped(value: bytes) -> bytes:
    """A plain value as it is stored."""
    return PLAIN + value if value[:1] in (PLAIN, SEALED) else value


def unescaped(value: bytes) -> bytes:
    """The other way round, of a value that is not sealed."""
    return value[1:] if value[:1] == PLAIN else value


class Unsealed:
    """A Sealer without a key: values are stored as they are, and what was sealed cannot be opened."""

    def __init__(self) -> None:
        self._told = False

    def seal(self, space: bytes, name: str, value: bytes) -> bytes:
        """See the port."""
        return escaped(value)

    def open(self, space: bytes, name: str, value: bytes) -> bytes | None:
        """See the port."""
        if value[:1] != SEALED:
            return unescaped(value)
        if not self._told:
            self._told = True
            _log.warning("the store holds encrypted values, and archive.key is not set: these values count as missing")
        return None
