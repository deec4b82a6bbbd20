"""The configured store: its identity, and the spool for writes while it is unavailable.

The identity is the secret for tenant keys, and a mark that shows when the store was emptied or replaced.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from accordion.config import Settings
from accordion.insertions.store import is_insertion_key
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Key, KeyValueStore
from accordion.stores.spool import SpooledStore, StoreRecord
from accordion.stores.sqlite import SqliteStore

TENANT_SECRET = Key("", "secret/tenants")
"""The key of the tenants' secret, if none is configured."""
MARK = Key("", "mark")
"""The key of the mark."""
_FORMAT: Final = b"\x02"
"""The format of all stored values, the first byte of the mark."""
_IDENTITY, _SECRET_BYTES = 16, 32
_SPOILED_SECRET: Final = (
    f"the store's secret for the keys of tenants ({TENANT_SECRET.name}) is spoiled, so the store is not used: restore "
    "it from a backup, or remove it with all that is stored"
)
"""With another secret, nothing that is stored could be found."""
_OTHER_FORMAT: Final = (
    "the store was written by another version of Accordion, so it is not used: run that version again, or use another "
    "store"
)
_log = logging.getLogger("accordion")
_MEMORY_DISK = Path("/dev/shm")  # noqa: S108 - anybody can write there, so the folder in it is checked
"""Where Linux has a disk in memory, in containers too."""
_ESSENTIAL_PREFIXES = ("compaction/", "compaction_claim/", "form/", "insertion/", "link/", "point/")
"""The prefixes of essential keys (compaction/repository.py, insertions/store.py, archive/stored_responses.py,
sessions/prefix_nodes.py)."""


class StoreIdentity:
    """Detects an emptied or replaced store. Secret and mark are random bytes that the first worker writes.

    A `configured` secret is never written anywhere. `on_secret_change` is called when another secret holds from now on,
    `on_emptied` when the store lost its content. Neither may raise. `replacements` returns how often another store took
    the place of this one: a backup has the same mark. `on_identified` receives which store answered, when that is new.
    `proposed` is the secret until then.

    A mark begins with the format and the store's identity, which survives an emptied store: a worker that knows the
    identity writes the new mark with it. A store of another format is not used.
    """

    def __init__(
        self,
        store: KeyValueStore,
        configured: bytes,
        *,
        on_secret_change: Callable[[], object],
        on_emptied: Callable[[], object],
        replacements: Callable[[], int] = lambda: 0,
        on_identified: Callable[[StoreRecord], object] = lambda _: None,
        proposed: bytes = b"",
    ) -> None:
        self._store = store
        self._keys = [MARK] if configured else [MARK, TENANT_SECRET]
        self._is_configured, self._on_identified = bool(configured), on_identified
        self._identity = b""
        self._reported: StoreRecord | None = None
        self._on_secret_change, self._on_emptied, self._replacements = on_secret_change, on_emptied, replacements
        self._last_mark: tuple[bytes, int] | None = None
        self._lock = asyncio.Lock()
        self._reported_fault = ""
        self.secret = configured or proposed or secrets.token_bytes(_SECRET_BYTES)
        """The secret from which the tenants' keys are derived."""

    def recall(self, record: StoreRecord) -> None:
        """Restores the identity and the secret that the store last gave to a process of this machine."""
        self._identity = record.identity
        if not self._is_configured and record.secret != self.secret:
            self.secret = record.secret
            self._on_secret_change()

    async def poll(self) -> None:
        """Does the same as `check`, but never fails. To be called about every second."""
        with suppress(StoreUnavailable):
            await self.check()

    async def check(self) -> None:
        """Reads mark and secret, and writes what is missing. Raises StoreUnavailable."""
        async with self._lock:
            mark, replacements = b"", -1
            # A store that is replaced meanwhile is read again: its mark and the count must belong together, or its loss
            # is noticed twice.
            while replacements != self._replacements():
                replacements = self._replacements()
                mark = await self._read_mark()
            self._identity = self._read_identity(mark)
            record = StoreRecord(self._identity, b"" if self._is_configured else self.secret)
            if self._reported != record:
                self._on_identified(record)
                self._reported = record
            if (mark, replacements) != self._last_mark:
                former, self._last_mark = self._last_mark, (mark, replacements)
                if former is not None:
                    self._on_emptied()

    async def _read_mark(self) -> bytes:
        """Returns the store's mark, and takes its secret; writes what is missing."""
        mark, *stored_secret = await self._store.get_many(self._keys)
        if stored_secret and stored_secret[0] is not None and len(stored_secret[0]) != _SECRET_BYTES:
            self._refuse(_SPOILED_SECRET)
        if stored_secret and stored_secret[0] != self.secret:
            secret = await self._store.put_if_absent(TENANT_SECRET, self.secret)
            if secret != self.secret:
                self.secret = secret
                self._on_secret_change()
        if mark is not None:
            return mark
        # A new mark, so that other workers notice too: they may read it only after it is written again.
        return await self._store.put_if_absent(MARK, new_mark(self._identity))

    def _read_identity(self, mark: bytes) -> bytes:
        try:
            return identity_from_mark(mark)
        except StoreUnavailable as error:
            self._refuse(error.message)

    def _refuse(self, fault: str) -> NoReturn:
        """Raises StoreUnavailable, and logs a fault once."""
        if self._reported_fault != fault:
            self._reported_fault = fault
            _log.error(fault)
        raise StoreUnavailable(fault)


def new_mark(identity: bytes = b"") -> bytes:
    """Returns a mark for the store with this identity; without one, for a new store."""
    return _FORMAT + (identity or secrets.token_bytes(_IDENTITY)) + secrets.token_bytes(_IDENTITY)


def propose_secret(store: KeyValueStore) -> bytes:
    """Returns the tenants' secret if it can be read before the store answers, else a new one.

    An SQLite file that is new on this machine may be locked while the proxy starts. What is written with another secret
    than that of the file could not be found in it.
    """
    # Until the first checkpoint, right after the first write, the file's secret is in the write-ahead log alone. If no
    # checkpoint followed (a killed process), it is not found here: what waits has a new secret and stays in the spool.
    stored = store.peek(TENANT_SECRET) if isinstance(store, SqliteStore) else None
    return stored if stored is not None and len(stored) == _SECRET_BYTES else secrets.token_bytes(_SECRET_BYTES)


def identity_from_mark(mark: bytes) -> bytes:
    """Returns the identity of the store with this mark. Raises StoreUnavailable if the store has another format."""
    if mark[:1] != _FORMAT or len(mark) != 1 + 2 * _IDENTITY:
        raise StoreUnavailable(_OTHER_FORMAT)
    return mark[1 : 1 + _IDENTITY]


# -- the spool --------------------------------------------------------------------------------------------------------


def build_spool(settings: Settings, store: KeyValueStore) -> SpooledStore:
    """Puts the spool in front of the configured store."""
    path = settings.store.spool_path()
    return SpooledStore(
        store,
        spool_places(Path(path)) if path else (),
        address_hash=settings.store.address_hash(),
        tenant_key=settings.server.tenant_key.reveal().encode(),
        capacity=settings.store.spool_bytes,
        is_copied=is_needed_while_unavailable,
        is_merged=is_insertion_key,
    )


def spool_places(path: Path) -> list[Path]:
    """Returns the places of what waits: `path` and, where there is a disk in memory, a file there."""
    memory = find_memory_folder()
    name = f"spool-{hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:16]}.log"
    return [path] if memory is None else [path, memory / name]


def find_memory_folder() -> Path | None:
    """Returns this user's folder on a disk in memory; None if there is no such disk.

    Makes the folder. One that others may read, or that another user made, is not used.
    """
    with suppress(OSError):
        folder = _MEMORY_DISK / f"accordion-{os.getuid()}"
        if _MEMORY_DISK.is_dir():
            folder.mkdir(mode=0o700, exist_ok=True)
            status = folder.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077:
                return folder
    return None


def is_needed_while_unavailable(key: Key) -> bool:
    """Whether the next request of a conversation needs the value of a key.

    That holds for compactions, insertions, and the history behind a response's id.
    """
    return not key.collection and key.name.startswith(_ESSENTIAL_PREFIXES)
