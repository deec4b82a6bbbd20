"""The store's identity: the secret for tenant keys, and a mark that shows when the store was emptied or replaced."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress

from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Key, KeyValueStore

TENANT_SECRET = Key("", "secret/tenants")
"""The key of the tenants' secret, if none is configured."""
MARK = Key("", "mark")
"""The key of the mark."""
_IDENTITY = 16


class StoreIdentity:
    """Detects an emptied or replaced store. Secret and mark are random bytes that the first worker writes.

    A `configured` secret is never written anywhere. `on_secret_change` is called when another secret holds from now on,
    `on_emptied` when the store lost its content. Neither may raise. `replacements` returns how often another store took
    the place of this one: a backup has the same mark. `on_identified` receives the store's identity and the secret when
    either is new.

    A mark begins with the store's identity, which survives an emptied store: a worker that knows the identity writes
    the new mark with it.
    """

    def __init__(
        self,
        store: KeyValueStore,
        configured: bytes,
        *,
        on_secret_change: Callable[[], object],
        on_emptied: Callable[[], object],
        replacements: Callable[[], int] = lambda: 0,
        on_identified: Callable[[bytes, bytes], Awaitable[object]] | None = None,
    ) -> None:
        self._store = store
        self._keys = [MARK] if configured else [MARK, TENANT_SECRET]
        self._is_configured, self._on_identified = bool(configured), on_identified
        self._identity = b""
        self._reported = b"", b""
        self._on_secret_change, self._on_emptied, self._replacements = on_secret_change, on_emptied, replacements
        self._last_mark: tuple[bytes, int] | None = None
        self._lock = asyncio.Lock()
        self.secret = configured or secrets.token_bytes(32)
        """The secret from which the tenants' keys are derived."""

    def recall(self, identity: bytes, secret: bytes) -> None:
        """Restores the identity and the secret that the store last gave to a process of this machine."""
        self._identity = identity
        if not self._is_configured and secret != self.secret:
            self.secret = secret
            self._on_secret_change()

    async def poll(self) -> None:
        """Does the same as `check`, but never fails. To be called about every second."""
        with suppress(StoreUnavailable):
            await self.check()

    async def check(self) -> None:
        """Reads mark and secret, and writes what is missing. Raises StoreUnavailable."""
        async with self._lock:
            mark, *stored_secret = await self._store.get_many(self._keys)
            replacements = self._replacements()
            if stored_secret and stored_secret[0] != self.secret:
                secret = await self._store.put_if_absent(TENANT_SECRET, self.secret)
                if secret != self.secret:
                    self.secret = secret
                    self._on_secret_change()
            if mark is None:
                # A new mark, so that other workers notice too: they may read it only after it is written again.
                new = self._identity + secrets.token_bytes(_IDENTITY)
                mark = await self._store.put_if_absent(MARK, new)
            self._identity = identity_from_mark(mark)
            if self._on_identified is not None and self._reported != (self._identity, self.secret):
                await self._on_identified(self._identity, self.secret)
                self._reported = self._identity, self.secret
            if (mark, replacements) != self._last_mark:
                former, self._last_mark = self._last_mark, (mark, replacements)
                if former is not None:
                    self._on_emptied()


def identity_from_mark(mark: bytes) -> bytes:
    """Returns the identity of the store with this mark."""
    return mark[:_IDENTITY]
