"""The format of sealed and plain values, and the sealer without a key.

A sealed (encrypted) value begins with a byte of its own; any other is as it was written. So a store that was written
without a key can still be read when there is one.
"""

from __future__ import annotations

import logging

from accordion.model.tenant import TenantScope

_log = logging.getLogger("accordion")

PLAIN, SEALED = b"\xf0", b"\xf1"
"""`SEALED` is the first byte of a sealed value; `PLAIN` is put before a plain value that begins with either."""


def escape(value: bytes) -> bytes:
    """Returns a plain value as it is stored."""
    return PLAIN + value if value[:1] in (PLAIN, SEALED) else value


def unescape(value: bytes) -> bytes:
    """Returns the plain value of a stored one that is not sealed."""
    return value[1:] if value[:1] == PLAIN else value


class PlainSealer:
    """A Sealer without a key: stores values as they are, and cannot open sealed ones."""

    def __init__(self) -> None:
        self._has_warned = False

    def seal(self, tenant: TenantScope, name: str, value: bytes) -> bytes:
        """See the port."""
        return escape(value)

    def open(self, tenant: TenantScope, name: str, value: bytes) -> bytes | None:
        """See the port."""
        if value[:1] != SEALED:
            return unescape(value)
        if not self._has_warned:
            self._has_warned = True
            _log.warning("the store holds encrypted values, and archive.key is not set: these values count as missing")
        return None
