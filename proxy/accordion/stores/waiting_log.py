"""The waiting log: one file of writes that wait for the store, which all workers of a machine read and write.

Theory of operation. The file is a row of records, each a header and a payload. The header has the payload's length, a
checksum, the record's state, and whether the record is the last of its batch. The payload is one write, with the store
that it is for (its `owner`). A batch is appended by one call. A reader takes a batch when its last record is there: a
batch that was cut short, by a crash or a full disk, does not exist, and the next append cuts it off. The order of the
file is the order in which the workers wrote.

A record changes its state in place, and is erased in place, by zeros over its payload. Neither needs disk space. A
record whose checksum does not fit does not count. `shorten` replaces the file by one with those records that still have
a use, or removes it. The states:

    WAITING     is to be published: written to the store
    PUBLISHED   is in the store, and stays until all is published, so that an erasure finds what a list names
    ERASED      its content is zeros, or was about to be when the process was killed

Each process has the records in memory, and follows the file by one `stat` a call: a file with another inode is read
from its beginning, a longer one from the last batch on. While the file is open, its inode number is not used again.
What another worker changes in place is not seen that way. So a published record counts as waiting until the file is
replaced or removed, and whoever hears of an erasure, or writes old records to another file, reads the file again
(`reload`).

Whoever appends or erases holds the lock of the spool (spool.py). Whoever publishes, replaces or removes the file holds
the lock of the file, so that no record moves meanwhile. Nobody holds the former across an `await`.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec

from accordion.model.errors import ConfigError, StoreFull
from accordion.model.ports import Append, Key, Put
from accordion.stores.file_locks import lock_file

WAITING, PUBLISHED, ERASED = range(3)
_MAGIC = b"ACCDLOG2"
"""The first bytes of the file."""
_HEADER = struct.Struct("<IIBB")
"""Length, checksum, whether it is the last record of its batch, and the state, which is in front of the payload."""
_SMALL_FILE = 2**16
"""Bytes of a file that is not worth being shortened."""
_FREE_BYTES = 3 * 2**20
"""Bytes that must stay free on the disk: a store on the same disk needs them for erasures (see DiskReserve)."""


class Record(msgspec.Struct, array_like=True, eq=False):
    """A write in the file, for the store with the name `owner`. `written` is in seconds since the epoch.

    The fields from `state` on are not in the payload: the payload's bytes in the file are those from `at` to `end`.
    """

    owner: bytes
    written: float
    write: Put | Append
    state: int = WAITING
    at: int = 0
    end: int = 0

    def is_current(self, now: float) -> bool:
        """Whether it has not expired."""
        return self.write.ttl is None or now < self.written + self.write.ttl


_DECODER = msgspec.msgpack.Decoder(Record)
_DAMAGED = Put(Key("", ""), b"")


class WaitingLog:
    """The log at `path`, of at most `capacity` bytes, as one process sees it. Its methods raise OSError.

    `owners` are the names of the process's own store, the present one first. Records of others stay in the file.
    `now` returns seconds since the epoch.
    """

    def __init__(self, path: Path, capacity: int, now: Callable[[], float]) -> None:
        self.path, self._capacity, self._now = path, capacity, now
        self._new_path = path.with_name(f"{path.name}-new")
        self.owners: Sequence[bytes] = ()
        self._file: IO[bytes] | None = None
        self.close()

    def close(self) -> None:
        """Closes the file and forgets its records."""
        if self._file is not None:
            self._file.close()
        self._file, self._inode, self._end, self._shortened_end = None, (0, 0), 0, 0
        self.records: list[Record] = []
        """All records in order, also those of other stores."""
        self.by_key: dict[Key, list[Record]] = {}
        """The records of this store."""
        self.own: list[Record] = []
        """The same in order."""
        self.damaged: list[Record] = []
        """Records with content whose checksum does not fit, such as what a killed process began to erase."""

    def reload(self) -> None:
        """Reads the file again from its beginning."""
        self.close()
        self.follow()

    def follow(self) -> None:
        """Reads what other workers appended. Raises ConfigError if the file is another program's."""
        status = None
        if self._file is not None or os.access(self.path, os.F_OK):
            with suppress(FileNotFoundError):
                status = os.stat(self.path)
        if status is None or not stat.S_ISREG(status.st_mode):
            return self.close()
        if self._file is None or (status.st_dev, status.st_ino) != self._inode:
            self.close()
            self._file = open(self.path, "rb", buffering=0)  # noqa: SIM115
            self._inode = status.st_dev, status.st_ino
        if status.st_size > self._end:
            self._file.seek(self._end)
            self._read(self._file.read(status.st_size - self._end), self._end)

    def _read(self, data: bytes, start: int) -> None:
        """Takes the batches in `data`, which begins at `start`, without one that was cut short."""
        if not start and not _MAGIC.startswith(data[: len(_MAGIC)]):
            raise ConfigError(f"{self.path} is another file: choose another path", path="$.store.spool")
        at, batch = 0 if start else len(_MAGIC), list[Record]()
        while len(data) - at >= _HEADER.size:
            length, checksum, is_last, state = _HEADER.unpack_from(data, at)
            at += _HEADER.size + length
            payload = data[at - length : at]
            if not length or len(data) < at:
                break
            is_whole = zlib.crc32(payload, is_last) == checksum and state != ERASED
            record = _DECODER.decode(payload) if is_whole else Record(b"", 0.0, _DAMAGED)
            record.state, record.at, record.end = state, start + at - length, start + at
            if is_whole or any(payload):
                (batch if is_whole else self.damaged).append(record)
            if is_last:
                self._end = start + at
                self.records += batch
                for record in batch:
                    if record.owner in self.owners:
                        self.by_key.setdefault(record.write.key, []).append(record)
                        self.own.append(record)
                batch = []
        self._shortened_end = self._shortened_end if start else self._end

    def find(self, key: Key) -> bytes | None:
        """Returns the newest value of a key."""
        now = self._now()
        for record in reversed(self.by_key.get(key, ())):
            if isinstance(record.write, Put) and record.is_current(now):
                return record.write.value
        return None

    def append(self, records: Sequence[Record], share: float = 1.0) -> None:
        """Appends a batch, or nothing, within `share` of the capacity. Raises StoreFull if there is no space."""
        self.follow()
        data, capacity, end = _encode(records), self._capacity * share, self._shortened_end
        if self._end + len(data) > max(end * 9 // 8, min(capacity, 2 * end + _SMALL_FILE)):
            with suppress(OSError), self.locked():
                self.shorten()
        data = data if self._end else _MAGIC + data
        if self._end + len(data) > capacity:
            raise StoreFull("the store is away, and the spool is full")
        if shutil.disk_usage(self.path.parent).free < _FREE_BYTES + len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with open(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0) as file:
            file.truncate(self._end)
            file.seek(self._end)
            if file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.follow()

    def append_newest(self, records: Sequence[Record]) -> None:
        """Appends a batch; if there is no space for it, the older half of the file goes. Raises StoreFull."""
        try:
            self.append(records)
        except StoreFull:
            with self.locked():
                self.shorten(lambda record: record.at > self._end // 2)
            self.append(records)

    def set_state(self, records: Sequence[Record], state: int) -> None:
        """Changes the state of records in the file; those that are ERASED lose their content."""
        with open(self.path, "r+b", buffering=0) as file:
            for record in records:
                file.seek(record.at - 1)
                file.write(bytes([state]) + bytes(record.end - record.at) * (state == ERASED))
                record.state = state

    def erase(self, is_erased: Callable[[Record], bool]) -> list[Put | Append]:
        """Erases records of this store, and what killed processes left; returns the writes of the former."""
        self.reload()
        if self._file is None:
            return []
        records = [record for record in self.own if is_erased(record)]
        self.set_state([*records, *self.damaged], ERASED)
        os.truncate(self.path, self._end)
        self._new_path.unlink(missing_ok=True)
        self.reload()
        if not self.records:
            with suppress(OSError), self.locked():
                self.remove()
        return [record.write for record in records]

    @contextmanager
    def locked(self, seconds: float = 0.0) -> Iterator[None]:
        """Holds the lock of the file, which it reads again. Raises BlockingIOError if somebody has it for longer."""
        with open(self.path, "rb") as file:
            lock_file(file.fileno(), seconds)
            self.reload()
            if self._inode[1] != os.fstat(file.fileno()).st_ino:
                raise BlockingIOError
            yield

    def shorten(self, is_needed: Callable[[Record], bool] = lambda _: True) -> None:
        """Replaces the file by one without what is not needed, what expired, and puts that a later one replaces."""
        newest, now = dict[object, Record](), self._now()
        for record in self.records:
            is_put = isinstance(record.write, Put) and not record.write.if_absent
            # A put takes the place of the key's first put: in front of the claims that need it.
            newest[(record.owner, record.write.key, record.state) if is_put else id(record)] = record
        needed = [record for record in newest.values() if record.is_current(now) and is_needed(record)]
        if not needed:
            return self.remove()
        with open(os.open(self._new_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(_MAGIC + _encode(needed))
        os.replace(self._new_path, self.path)
        self.reload()

    def remove(self) -> None:
        """Removes the file."""
        self._new_path.unlink(missing_ok=True)
        os.unlink(self.path)
        self.close()


def _encode(records: Sequence[Record]) -> bytes:
    data = bytearray()
    for record in records:
        payload = msgspec.msgpack.encode((record.owner, record.written, record.write))
        is_last = record is records[-1]
        data += _HEADER.pack(len(payload), zlib.crc32(payload, is_last), is_last, record.state) + payload
    return bytes(data)
