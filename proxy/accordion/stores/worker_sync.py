"""Shares between the workers of one machine which of them recorded which prefix node.

Without it, a worker that shares its store must read the store at the start of every conversation and at its first
continuation, since another worker may have recorded the same opening. These reads take 25 to 40 % of the time of a
small request.

The workers have one array in shared memory: those on one SQLite file map a file beside it (`SlotsFile`), whichever
server they belong to; for a server such as Redis, a supervisor gives its own workers an array. A node's id is a hash; a
part of it selects a slot of the array, and the slot stores other bits of the id and the number of the worker that
recorded the node.

Each worker maps the file into its memory, so a slot that one of them writes is at once in the memory of all. Nothing
has to be registered: two servers see each other's slots, whichever started first. As long as a worker runs it has a
shared lock on the file. A worker that gets an exclusive lock is alone, so it clears the slots of earlier runs, whose
nodes are all in the store.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import mmap
import multiprocessing
import os
import secrets
import sys
from contextlib import suppress
from ctypes import Array, c_uint64
from pathlib import Path

from accordion.model.ports import WorkerSync
from accordion.stores.file_locks import lock_file
from accordion.stores.sqlite_path import file_identity

SLOTS = 2**18
"""Slots, of 8 bytes, each for its newest node. At 1,000 requests a second an entry lasts for minutes."""

_SIZE = 8 * SLOTS
_MAX_CLEARING = 0.5
"""Seconds to wait for a worker that clears the slots, which takes it some milliseconds."""


class SlotsFile:
    """The file with the slots of all workers on the SQLite file `store`.

    Raises OSError if the file cannot be created, mapped, or is not one of slots.
    """

    def __init__(self, store: Path) -> None:
        real_path = Path(os.path.realpath(store))
        self.path = real_path.with_name(f"{real_path.name}-workers")
        self._open()

    def _open(self) -> None:
        handle = os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            if os.fstat(handle).st_size not in (0, _SIZE):
                raise OSError(f"{self.path} has another size than a file of Accordion's")
            if _lock_exclusive(handle):
                _clear(handle)
            lock_file(handle, is_shared=True)
            self._map = mmap.mmap(handle, _SIZE)
        except BaseException:
            os.close(handle)
            raise
        status = os.fstat(handle)
        self._handle, self._identity = handle, (status.st_dev, status.st_ino)
        self.slots = memoryview(self._map).cast("Q")
        """The slots."""

    def renew(self) -> bool:
        """Opens the file at the path if it is not the open one; returns whether it did. Raises OSError."""
        if file_identity(self.path) == self._identity:
            return False
        handle = self._handle
        self._open()
        os.close(handle)
        return True

    def close(self) -> None:
        """Ends the use of the slots."""
        self.slots.release()
        self._map.close()
        os.close(self._handle)


def _lock_exclusive(handle: int) -> bool:
    """Takes an exclusive lock if no other worker has the file open, else a shared one; returns whether it is exclusive.

    Raises BlockingIOError if another worker clears the slots for too long.
    """
    if sys.platform == "win32":
        # Whether another worker has the file open is not known there; an empty file is new.
        return os.fstat(handle).st_size == 0
    try:
        lock_file(handle)
    except BlockingIOError:
        lock_file(handle, _MAX_CLEARING, is_shared=True)
        return False
    return True


def _clear(handle: int) -> None:
    """Writes zeros over the whole file, so that it has its space on the disk, without which a later write would fail.

    Raises OSError; then the file is empty.
    """
    try:
        if os.write(handle, bytes(_SIZE)) < _SIZE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        os.ftruncate(handle, 0)
        raise


_log = logging.getLogger("accordion")

Slots = Array[c_uint64]

_PAUSE = 0.02
"""Seconds of `wait_briefly`. A worker's writes are sent to the store every 0.05 s (write_queue.py)."""

_WORKER = (1 << 22) - 1
"""The bits of a slot for the worker's number; the other bits identify the node.

On Linux every process id fits (pid_max is at most 2^22); larger ids of other systems are cut off.
"""

_NODE = ~_WORKER & (1 << 64) - 1
"""The bits of a slot that identify the node."""

_SEVERAL_WORKERS = 0
"""Stands for the worker of a node that several workers recorded; none of them may know all of its records."""


class _BriefWait:
    async def wait_briefly(self) -> None:
        """See WorkerSync."""
        await asyncio.sleep(_PAUSE)


class UnknownWorkers(_BriefWait):
    """A WorkerSync for workers that cannot be reached, such as those on other machines.

    Any node may have been recorded by one of them. `local_board` is the board of this machine's workers, if a
    supervisor started several.
    """

    is_connected = False

    def __init__(self, local_board: SharedBoard | None = None) -> None:
        self._local_board = local_board

    def announce(self, node_id: str) -> None:
        """Tells only the workers of this machine."""
        if self._local_board is not None:
            self._local_board.announce(node_id)

    def is_own(self, node_id: str) -> bool | None:
        """Returns False, since another worker may always have recorded the node."""
        return False

    def is_pending(self, node_id: str) -> bool:
        """See WorkerSync."""
        return self._local_board is not None and self._local_board.is_pending(node_id)


class SharedBoard(_BriefWait):
    """A WorkerSync for workers that have the same `slots` in shared memory.

    A slot is written at once, so no lock is needed; another node may replace its entry at any time. `worker` is the
    number of this process. A restarted worker has another one, since the records of its predecessor are not in its
    memory.
    """

    is_connected = True

    def __init__(self, slots: Slots | memoryview, worker: int) -> None:
        self._slots = slots
        self._own_number = worker & _WORKER

    def announce(self, node_id: str) -> None:
        """See WorkerSync. A node's id is a hash in hexadecimal digits."""
        number = int(node_id[:16], 16)
        entry = number & _NODE | self._own_number
        previous = self._slots[number % SLOTS]
        if previous != entry:
            self._slots[number % SLOTS] = (
                entry & _NODE | _SEVERAL_WORKERS if (previous ^ entry) & _NODE == 0 and previous else entry
            )

    def is_own(self, node_id: str) -> bool | None:
        """See WorkerSync."""
        number = int(node_id[:16], 16)
        previous = self._slots[number % SLOTS]
        if previous == number & _NODE | self._own_number:
            return True
        return False if previous and (previous ^ number) & _NODE == 0 else None

    def is_pending(self, node_id: str) -> bool:
        """See WorkerSync."""
        return self.is_own(node_id) is False


class StoreBoard(SharedBoard):
    """The board of all workers on one SQLite file. Raises OSError if its slots cannot be shared."""

    def __init__(self, store: Path) -> None:
        self._file = SlotsFile(store)
        # Processes in two containers may have the same process id.
        super().__init__(self._file.slots, 1 + secrets.randbelow(_WORKER))

    def renew(self) -> None:
        """Opens the file of the slots again if it was deleted or replaced, as with the store. Never fails.

        To be called about every second. Nodes that no slot has are then read from the store.
        """
        with suppress(OSError):
            if self._file.renew():
                self._slots = self._file.slots

    def close(self) -> None:
        """Ends the use of the slots."""
        self._file.close()


def shared_slots() -> Slots:
    """Creates empty slots, which a supervisor passes to the processes that it spawns."""
    slots: Slots = multiprocessing.get_context("spawn").RawArray(c_uint64, SLOTS)
    return slots


def worker_sync_for(url: str, file: str, slots: Slots | None) -> WorkerSync | None:
    """Returns the WorkerSync for a store's URL; None if no other worker can use the store.

    `file` is the SQLite file, empty for other stores. `slots` are those of a supervisor's workers.
    """
    if url == "memory://":
        return None
    if file:
        try:
            return StoreBoard(Path(file))
        except OSError as error:
            _log.warning(
                "the workers on this SQLite file cannot share memory (%s): each conversation that begins is looked up "
                "in the store, which takes longer",
                error,
            )
    return UnknownWorkers(SharedBoard(slots, os.getpid()) if slots is not None else None)
