"""The waiting log: one file of writes that wait for the store, which all workers of a machine read and write.

Theory of operation. The file is a row of records, each a header and a payload. The header has the payload's length, a
checksum, the record's state, and whether the record is the last of its batch. The payload is one write, with the store
that it is for (its `owner`). A batch is appended by one call. A reader takes a batch when its last record is there: a
batch that was cut short, by a crash or a full disk, does not exist, and the next append cuts it off. The order of the
file is the order in which the workers wrote.

A record changes its state in place, and is erased in place, by zeros over its payload. Neither needs disk space. A
record whose checksum does not fit does not count. The file is removed when all its writes are in the store, or replaced
by one with those records that still have a use. The states:

    WAITING     is to be published: written to the store
    PUBLISHED   is in the store, and stays until all is published, so that an erasure finds what a list names
    REFUSED     was not taken by the store, which takes others; the next process tries again
    COPY        is in the store, and is read while the store is unavailable, for an hour

Each process has the records in memory, and follows the file by one `stat` a call: a file with another inode is read
from its beginning, a longer one from the last batch on. While the file is open, its inode number is not used again.
What another worker changes in place is not seen that way. So a published record counts as waiting until the file is
replaced or removed, and whoever hears of an erasure, or writes old records to another file, reads the file again
(`reload`).

Whoever appends or erases holds the lock of the spool (spool.py). Whoever publishes, replaces or removes the file holds
the lock of the file, so that no record moves meanwhile.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import IO

import msgspec

from accordion.model.errors import StoreFull
from accordion.model.ports import Append, Key, Put
from accordion.stores.file_locks import try_lock

WAITING, PUBLISHED, REFUSED, COPY = range(4)
_MAGIC = b"ACCDLOG1"
"""The first bytes of the file."""
_HEADER, _STATE_BEFORE = struct.Struct("<IIBB"), 2
"""The header, and how far before the payload the state is."""
_COPY_SECONDS, _COPY_SHARE = 3_600.0, 16
"""A rewrite leaves copies up to a sixteenth of the capacity, so that they take at most an eighth between rewrites."""
_SMALL_FILE = 2**16
"""Bytes of a file that is not worth being rewritten."""
_FREE_BYTES = 3 * 2**20
"""Bytes that must stay free on the disk: a store on the same disk needs them for erasures (see DiskReserve)."""


class Record(msgspec.Struct, array_like=True, eq=False):
    """A write in the file. `written` is in seconds since the epoch.

    The fields from `state` on are not in the payload: the record's bytes in the file, and where its batch begins.
    """

    owner: bytes
    written: float
    write: Put | Append
    state: int = WAITING
    at: int = 0
    end: int = 0
    batch: int = 0

    def is_current(self, now: float) -> bool:
        """Whether it has not expired."""
        longest = _COPY_SECONDS if self.state == COPY else float("inf")
        return now < self.written + min(longest, longest if self.write.ttl is None else self.write.ttl)


_DECODER = msgspec.msgpack.Decoder(Record)


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
        self._file = None
        self.records: list[Record] = []
        """All records in order, also those of other stores."""
        self.by_key: dict[Key, list[Record]] = {}
        """The records of this store."""
        self.waiting = 0
        """The number of this store's writes that waited or were published when they were read."""
        self._remains: list[tuple[int, int]] = []
        """Where content of damaged records is, such as of one that a killed process began to erase."""
        self._inode, self._end, self._rewritten_end, self._copied = (0, 0), 0, 0, 0

    @property
    def has_file(self) -> bool:
        """Whether there is a file, with records or without."""
        return self._file is not None

    def reload(self) -> None:
        """Reads the file again from its beginning."""
        self.close()
        self.follow()

    def follow(self) -> None:
        """Reads what other workers appended."""
        if self._file is None and not os.access(self.path, os.F_OK):
            return
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return self.close()
        if not stat.S_ISREG(status.st_mode):
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
            raise OSError(errno.EEXIST, "the file belongs to another program or version", str(self.path))
        at, batch = 0 if start else len(_MAGIC), list[Record]()
        while len(data) - at >= _HEADER.size:
            length, checksum, state, is_last = _HEADER.unpack_from(data, at)
            at += _HEADER.size + length
            payload = data[at - length : at]
            if not length or len(data) < at:
                break
            if zlib.crc32(payload, is_last) == checksum:
                record = _DECODER.decode(payload)
                record.state, record.at, record.end, record.batch = state, start + at - length, start + at, self._end
                batch.append(record)
            elif any(payload):
                self._remains.append((start + at - length, start + at))
            if is_last:
                self._end = start + at
                self.records += batch
                for record in batch:
                    if record.owner in self.owners:
                        self._copied += record.end - record.at if record.state == COPY else 0
                        self.waiting += record.state in (WAITING, PUBLISHED)
                        self.by_key.setdefault(record.write.key, []).append(record)
                batch = []
        self._rewritten_end = self._rewritten_end if start else self._end

    def find(self, key: Key, *, copies: bool = False) -> bytes | None:
        """Returns the newest value of a key that waits; with `copies`, also that of a copy."""
        now = self._now()
        for record in reversed(self.by_key.get(key, ())):
            if isinstance(record.write, Put) and (copies or record.state != COPY) and record.is_current(now):
                return record.write.value
        return None

    def own(self, *states: int) -> list[Record]:
        """Returns the records of this store, in order: those in these states, or all."""
        own = [record for record in self.records if record.owner in self.owners]
        return [record for record in own if record.state in states] if states else own

    def append(self, records: Sequence[Record], share: float = 1.0) -> None:
        """Appends a batch, or nothing, within `share` of the capacity. Raises StoreFull if there is no space."""
        self.follow()
        data, capacity = _encode(records), self._capacity * share
        data = data if self._end else _MAGIC + data
        end, former_end = self._end + len(data), self._rewritten_end
        has_grown = end > min(capacity, 2 * former_end + _SMALL_FILE) and end > 9 * former_end // 8
        if has_grown or self._copied > 2 * self._capacity // _COPY_SHARE:
            self._shorten()
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

    def set_state(self, records: Iterable[Record], state: int) -> None:
        """Changes the state of records."""
        self._overwrite((record.at - _STATE_BEFORE, bytes([state])) for record in records)
        for record in records:
            record.state = state

    def erase(self, records: Iterable[Record]) -> None:
        """Overwrites records, and what processes left that were killed while they wrote."""
        places = [*((record.at, record.end) for record in records), *self._remains]
        self._overwrite((at, bytes(end - at)) for at, end in places)
        os.truncate(self.path, self._end)
        self._new_path.unlink(missing_ok=True)
        self.reload()

    def _overwrite(self, pieces: Iterable[tuple[int, bytes]]) -> None:
        with open(self.path, "r+b", buffering=0) as file:
            for at, piece in pieces:
                file.seek(at)
                file.write(piece)

    @contextmanager
    def publishing(self) -> Iterator[bool]:
        """Holds the lock of the file; yields whether nobody else holds it. Raises FileNotFoundError."""
        with open(self.path, "rb") as file:
            is_free = try_lock(file.fileno())
            self.follow()
            yield is_free and os.fstat(file.fileno()).st_ino == self._inode[1]

    def replace(self, records: Iterable[Record]) -> None:
        """Replaces the file by one of these records, in their batches; removes it if there are none."""
        data = b"".join(_encode(list(batch)) for _, batch in groupby(records, key=attrgetter("batch")))
        if data:
            with open(os.open(self._new_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(_MAGIC + data)
            os.replace(self._new_path, self.path)
        else:
            os.unlink(self.path)
        self.reload()

    def _shorten(self) -> None:
        """Leaves out what expired, puts that a later put of their key replaces, and the oldest copies."""
        with suppress(OSError), self.publishing() as is_free:
            self.reload()
            needed, now, copied = dict[object, Record](), self._now(), 0
            for record in self.records:
                is_put = isinstance(record.write, Put) and not record.write.if_absent
                # A put takes the place of the key's first put: in front of the claims that need it.
                needed[(record.owner, record.write.key, record.state) if is_put else id(record)] = record
            for name, record in reversed([*needed.items()]):
                copied += record.end - record.at if record.state == COPY else 0
                if not record.is_current(now) or (record.state == COPY and copied > self._capacity // _COPY_SHARE):
                    del needed[name]
            if is_free and len(needed) < len(self.records):
                self.replace(needed.values())


def _encode(records: Sequence[Record]) -> bytes:
    data = bytearray()
    for record in records:
        payload = msgspec.msgpack.encode((record.owner, record.written, record.write))
        is_last = record is records[-1]
        data += _HEADER.pack(len(payload), zlib.crc32(payload, is_last), record.state, is_last) + payload
    return bytes(data)
