"""The record of the store on this machine: which store it is, known before the store answers.

Theory of operation. What waits for a store names it, so the identity of the store and the secret of its tenants must be
known before the first write. A small file beside the waiting writes has both, as they were when the store last
answered. If it never has, the first worker proposes the secret; a new store takes it over (StoreIdentity). The file is
in the first of several places that takes it. It is created whole and changed in place, so that it can also be the lock
of what waits: whoever changes that holds it.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec

from accordion.model.errors import ConfigError, StoreUnavailable
from accordion.stores.file_locks import try_lock

_TRIES, _PAUSE = 200, 0.005


class StoreRecord(msgspec.Struct, array_like=True, frozen=True):
    """The identity of a store, empty before it has answered, and the secret of its tenants."""

    identity: bytes
    secret: bytes


class StoreRecordFile:
    """The file with the record, at the first of `paths` that takes it."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths

    def load(self) -> StoreRecord | None:
        """Returns the record, if there is one. Raises ConfigError if it is damaged."""
        for path in self._paths:
            with suppress(FileNotFoundError, NotADirectoryError):
                data = path.read_bytes()
                with suppress(msgspec.MsgspecError):
                    if zlib.crc32(data[4:]) == int.from_bytes(data[:4], "big"):
                        return msgspec.msgpack.decode(data[4:], type=StoreRecord)
                raise ConfigError(
                    f"{path} is damaged. It says for which store the writes beside it wait. Restore it, or, if none "
                    "wait or the store answers, delete it",
                    path="$.store.spool",
                )
        return None

    def save(self, record: StoreRecord) -> None:
        """Writes the record, unless another worker creates the file or holds the lock meanwhile. Never fails."""
        with suppress(OSError), self._open() as file:
            if try_lock(file.fileno()):
                self._save(record)
                return
        if not any(path.exists() for path in self._paths):
            self._save(record)

    def _save(self, record: StoreRecord) -> None:
        payload = msgspec.msgpack.encode(record)
        data = zlib.crc32(payload).to_bytes(4, "big") + payload
        for path in self._paths:
            with suppress(OSError):
                _write_in_place(path, data) if path.exists() else _create(path, data)
                for other in self._paths[self._paths.index(path) + 1 :]:
                    other.unlink(missing_ok=True)
                return

    @property
    def is_in_first_place(self) -> bool:
        """Whether the file is where it should be."""
        return not self._paths or self._paths[0].exists()

    def _open(self) -> IO[bytes]:
        for path in self._paths:
            with suppress(FileNotFoundError):
                return path.open("rb")
        raise FileNotFoundError("there is no record of the store")

    @asynccontextmanager
    async def lock(self) -> AsyncIterator[None]:
        """Holds the lock. Raises StoreUnavailable if another worker holds it for a second, and OSError."""
        for _ in range(_TRIES):
            with self._open() as file:
                # A file that was moved to another place is the lock no more.
                if try_lock(file.fileno()) and os.path.samestat(os.fstat(file.fileno()), os.stat(file.name)):
                    yield
                    return
            await asyncio.sleep(_PAUSE)
        raise StoreUnavailable("another process holds the lock of the spool")


def _write_in_place(path: Path, data: bytes) -> None:
    with path.open("r+b", buffering=0) as file:
        file.write(data)
        file.truncate()


def _create(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new_path = path.with_name(f"{path.name}-{os.getpid()}")
    try:
        with open(os.open(new_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
        with suppress(FileExistsError):
            os.link(new_path, path)
    finally:
        new_path.unlink(missing_ok=True)
