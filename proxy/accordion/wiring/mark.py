"""What all workers find in a store: the key that tenants are told apart with, and a mark that is lost with the rest."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress

from accordion.core.errors import StoreUnavailable
from accordion.core.ports import Key, Store

TENANT_SECRET = Key("", "secret/tenants")
"""Where the key is kept that tenants are told apart with, where none is configured."""
MARK = Key("", "mark")
"""Where the mark is kept."""
_IDENTITY = 16


class Mark:
    """Watches that the store keeps what it has. Key and mark are random bytes, made by whoever came first; a
    `configured` key is never written anywhere.

    `changed` is called when another key is to be used from now on, `emptied` when the store lost what it had. Neither
    may raise. `replaced` says how often another store took its place: a backup of it has the same mark. `learned` hears
    the store's identity and the key whenever either is new.

    A mark begins with the identity of the store, which stays when the store is emptied: whoever knew it makes the new
    mark with it.
    """

    def __init__(
        self,
        store: Store,
        configured: bytes,
        *,
        changed: Callable[[], object],
        emptied: Callable[[], object],
        replaced: Callable[[], int] = lambda: 0,
        learned: Callable[[bytes, bytes], Awaitable[object]] | None = None,
    ) -> None:
        self._store = store
        self._keys = [MARK] if configured else [MARK, TENANT_SECRET]
        self._configured, self._learned = bool(configured), learned
        self._identity = b""
        self._told = b"", b""
        self._changed, self._emptied, self._replaced = changed, emptied, replaced
        self._found: tuple[bytes, int] | None = None
        self._checking = asyncio.Lock()
        self.secret = configured or secrets.token_bytes(32)
        """The key that tenants are told apart with."""

    def recall(self, identity: bytes, secret: bytes) -> None:
        """Takes what the store had when it last answered a process of this machine."""
        self._identity = identity
        if not self._configured and secret != self.secret:
            self.secret = secret
            self._changed()

    async def look(self) -> None:
        """The same as `check`. To be called about every second; never fails."""
        with suppress(StoreUnavailable):
            await self.check()

    async def check(self) -> None:
        """Takes what the store has, and puts what it has not. Raises StoreUnavailable."""
        async with self._checking:
            mark, *kept = await self._store.get_many(self._keys)
            replaced = self._replaced()
            if kept and kept[0] != self.secret:
                secret = await self._store.put_if_absent(TENANT_SECRET, self.secret)
                if secret != self.secret:
                    self.secret = secret
                    self._changed()
            if mark is None:
                # A new one, so that other workers notice too, who may look only when it is there again.
                new = self._identity + secrets.token_bytes(_IDENTITY)
                mark = await self._store.put_if_absent(MARK, new)
            self._identity = identity_of(mark)
            if self._learned is not None and self._told != (self._identity, self.secret):
                await self._learned(self._identity, self.secret)
                self._told = self._identity, self.secret
            if (mark, replaced) != self._found:
                former, self._found = self._found, (mark, replaced)
                if former is not None:
                    self._emptied()


def identity_of(mark: bytes) -> bytes:
    """The identity of the store that has this mark."""
    return mark[:_IDENTITY]
