"""The spool against a model: two workers, a store, disks and locks that fail at any call, and erasures.

Nothing is lost."""

from __future__ import annotations

import asyncio
import builtins
import errno
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from accordion.model.errors import StoreFull, StoreUnavailable
from accordion.model.ports import Append, ErasedWrites, Key, Put
from accordion.stores import spool, waiting_log
from accordion.stores.file_locks import lock_file
from accordion.stores.memory_store import InMemoryStore
from accordion.stores.spool import SpooledStore, StoreRecord
from tests.tiers import examples

OURS, THEIRS = StoreRecord(b"o" * 16, b"our secret"), StoreRecord(b"t" * 16, b"their secret")
LOG = Key("", "log")


class Crash(BaseException):
    """The process is killed."""


class Disks:
    """The files of all places: a disk may be full or read-only, and a process may be killed within a call."""

    def __init__(self) -> None:
        self.states: dict[Path, str] = {}
        self.bytes_left: int | None = None
        """Bytes, counting one for each other call, after which the process is killed; None: it is not."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _spend(self, amount: int) -> int:
        """Returns how much of an amount can be done before the process is killed."""
        if self.bytes_left is None:
            return amount
        done = min(amount, self.bytes_left)
        self.bytes_left -= done
        return done

    def _change(self, path: object) -> None:
        """A call that changes a file or a folder."""
        if isinstance(path, Path) and self.states.get(path.parent) == "read-only":
            raise OSError(errno.EROFS, "read-only")
        if not self._spend(1):
            raise Crash

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        is_new = not path.exists()
        self._change(path)
        if is_new and self.states.get(path.parent) == "full":
            raise OSError(errno.ENOSPC, "full")
        return os.open(path, flags, mode)

    def replace(self, source: Path, target: Path) -> None:
        self._change(source)
        os.replace(source, target)

    def unlink(self, path: Path) -> None:
        self._change(path)
        os.unlink(path)

    def open_file(self, file: Any, mode: str = "r", buffering: int = -1) -> Any:
        """The function `open`."""
        if "+" in mode or "w" in mode:
            self._change(file)
        opened = builtins.open(file, mode, buffering=buffering)  # noqa: SIM115
        return File(self, opened) if "+" in mode or "w" in mode else opened


class File:
    """A file that is written."""

    def __init__(self, disks: Disks, file: Any) -> None:
        self._disks, self._file = disks, file
        self._path = Path(os.readlink(f"/proc/self/fd/{file.fileno()}"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> File:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, data: bytes) -> int:
        at, end = self._file.tell(), os.fstat(self._file.fileno()).st_size
        if self._disks.states.get(self._path.parent) == "full" and at + len(data) > end:
            self._file.write(data[: (at + len(data) - end) // 2])
            raise OSError(errno.ENOSPC, "full")
        done = self._disks._spend(len(data))
        self._file.write(data[:done])
        self._file.flush()
        if done < len(data):
            raise Crash
        return done

    def truncate(self, size: int | None = None) -> int:
        if not self._disks._spend(1):
            raise Crash
        return int(self._file.truncate(size))


class Store(InMemoryStore):
    """A store that may be away, full or read-only; a locked one is away for its caller."""

    def __init__(self, record: StoreRecord) -> None:
        super().__init__()
        self.record, self.state, self.writes_left = record, "up", -1

    @property
    def is_available(self) -> bool:
        return self.state == "up"

    def _check(self) -> None:
        if self.state == "away":
            raise StoreUnavailable("away")
        super()._check()

    async def write(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
        if self.state == "full":
            raise StoreFull("full")
        if self.state == "read-only":
            raise StoreUnavailable("read-only")
        if self.writes_left == 0:
            self.state, self.writes_left = "away", -1
            raise StoreUnavailable("away, half-way")
        self.writes_left -= self.writes_left > 0
        return await super().write(batch)

    async def delete(self, keys: Sequence[Key]) -> int:
        if self.state == "read-only":
            raise StoreUnavailable("read-only")
        return await super().delete(keys)


class Erasures:
    """Knows by their names which keys were erased."""

    def __init__(self) -> None:
        self.keys = set[Key]()

    async def find_erased(self, writes: Sequence[Put | Append]) -> ErasedWrites:
        keys = frozenset(write.key for write in writes if write.key in self.keys)
        return ErasedWrites(keys, frozenset(), keys)


class SpoolMachine(RuleBasedStateMachine):
    """Two workers and their store. `expected` has the possible values of each key: several after a crash."""

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(prefix="accordion-"))
        self.places = [self.folder / "disk" / "spool", self.folder / "memory" / "spool"]
        for place in self.places:
            place.parent.mkdir()
        self.disks, self.erasures = Disks(), Erasures()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(waiting_log, "os", self.disks)
        self.patch.setattr(waiting_log, "open", self.disks.open_file, raising=False)
        self.patch.setattr(spool, "_TRIES", 1)
        self.patch.setattr(spool, "_PAUSE", 0.0)
        self.patch.setattr(spool, "_PATIENCE", 0.0)
        self.locked: IO[bytes] | None = None
        self.ours, self.theirs = Store(OURS), Store(THEIRS)
        self.main = self.ours
        self.number = 0
        self.expected: dict[Key, set[bytes | None]] = {}
        self.entries: list[bytes] = []
        self.uncertain = set[bytes]()
        self.erased_values = list[bytes]()
        self.workers = [self.start(), self.start()]

    def start(self) -> SpooledStore:
        worker = SpooledStore(
            self.main, self.places, capacity=40_000, is_copied=lambda key: key.name.startswith("claim-")
        )
        worker.recall(OURS.secret)
        worker.find_erased = self.erasures.find_erased

        async def confirm() -> None:
            await worker._main.ping()
            worker.identify(worker._main.record)

        worker.confirm = confirm
        if self.main.is_available:
            self.loop.run_until_complete(confirm())
        return worker

    def run(self, index: int, call: Any) -> Any:
        """Runs a call of a worker; returns its result, `unavailable` or, if it was killed, `crash`."""
        worker = self.workers[index]
        try:
            return self.loop.run_until_complete(call(worker))
        except StoreUnavailable:
            return "unavailable"
        except Crash:
            self.disks.bytes_left = None
            for log in worker._logs:
                log.close()
            self.workers[index] = self.start()
            return "crash"
        finally:
            self.disks.bytes_left = None

    def value(self) -> bytes:
        self.number += 1
        return b"value-%06d;" % self.number * 20

    # -- what workers do --------------------------------------------------------------------------------------------

    worker = st.integers(0, 1)
    name = st.sampled_from("abcdef")
    bytes_left = st.one_of(st.none(), st.integers(0, 800))

    @rule(worker=worker, name=name, bytes_left=bytes_left)
    def put(self, worker: int, name: str, bytes_left: int | None) -> None:
        key, value = Key("rows", f"row-{name}"), self.value()
        self.disks.bytes_left = bytes_left
        result = self.run(worker, lambda store: store.put(key, value))
        if key not in self.erasures.keys:
            if result == "crash":
                self.expected.setdefault(key, {None}).add(value)
            elif result != "unavailable":
                self.expected[key] = {value}

    @rule(worker=worker, name=name, bytes_left=bytes_left)
    def compact(self, worker: int, name: str, bytes_left: int | None) -> None:
        """Archives a row, then claims the place of a compaction that needs it."""
        row, claim, value = Key("", f"archive-{name}"), Key("", f"claim-{name}"), self.value()
        self.disks.bytes_left = bytes_left

        async def call(store: SpooledStore) -> bytes:
            await store.write([Put(row, value), Put(Key("", f"list-{name}"), value)])
            return await store.put_if_absent(claim, value)

        known, was_up = self.expected.get(claim, {None}), self.main.state == "up"
        result = self.run(worker, call)
        if claim in self.erasures.keys:
            return
        if result == "crash":
            self.expected[claim] = known | {value}
        elif result != "unavailable":
            # While the store is away nobody knows what it has. The claim that it has wins in the end.
            assert result in known | {value}
            assert result in known or None in known or not (was_up and self.main.state == "up")
            self.expected[claim] = (known - {None}) | {result}

    @rule(worker=worker, bytes_left=bytes_left)
    def append(self, worker: int, bytes_left: int | None) -> None:
        value = self.value()
        self.disks.bytes_left = bytes_left
        result = self.run(worker, lambda store: store.write([Append(LOG, value)]))
        if result == "crash":
            self.uncertain.add(value)
        elif result != "unavailable":
            self.entries.append(value)

    @rule(worker=worker)
    def read(self, worker: int) -> None:
        for key, values in self.expected.items():
            result = self.run(worker, lambda store, key=key: store.get(key))
            if result == "unavailable" or (result is None and self.main.state == "away"):
                continue
            assert result in values, key
            if key.collection:
                self.expected[key] = {result}

    @rule(worker=worker, bytes_left=bytes_left)
    def poll(self, worker: int, bytes_left: int | None) -> None:
        self.disks.bytes_left = bytes_left
        self.run(worker, lambda store: store.poll())
        self.check_order()

    @precondition(lambda self: self.main.state != "away")
    @rule(worker=worker, name=name)
    def erase(self, worker: int, name: str) -> None:
        keys = [Key("", f"{kind}-{name}") for kind in ("archive", "list", "claim")] + [Key("rows", f"row-{name}")]
        self.erasures.keys.update(keys)
        values = [value for key in keys for value in self.expected.pop(key, ()) if value is not None]

        async def call(store: SpooledStore) -> None:
            await store.drop_erased()
            await store.delete(keys)

        # The other worker hears of it.
        if [self.run(index, call) for index in (worker, 1 - worker)] == [None, None]:
            self.erased_values += values
            content = b"".join(path.read_bytes() for path in self.folder.rglob("*") if path.is_file())
            assert not [value for value in self.erased_values if value[:12] in content]

    # -- what happens to them ---------------------------------------------------------------------------------------

    @rule(state=st.sampled_from(["up", "away", "full", "read-only"]), writes=st.integers(-1, 2))
    def change_store(self, state: str, writes: int) -> None:
        self.ours.state, self.ours.writes_left = state, writes if state == "up" else -1

    @rule(place=st.integers(0, 1), state=st.sampled_from(["", "full", "read-only"]))
    def change_disk(self, place: int, state: str) -> None:
        self.disks.states[self.places[place].parent] = state

    @rule(place=st.integers(0, 1), name=st.sampled_from(["spool", "spool-store"]))
    def lock(self, place: int, name: str) -> None:
        """Another process holds a lock until the next call of this rule."""
        self.unlock()
        if (path := self.places[place].with_name(name)).exists():
            self.locked = path.open("rb")
            lock_file(self.locked.fileno())

    def unlock(self) -> None:
        if self.locked is not None:
            self.locked.close()
        self.locked = None

    @precondition(lambda self: self.ours.state == "up" and self.ours.writes_left < 0)
    @rule()
    def swap_store(self) -> None:
        """Another store answers at the same address for a while."""
        for store in (self.theirs, self.ours):
            for index, worker in enumerate(self.workers):
                worker._main = store
                self.run(index, lambda each: each.confirm())
                self.run(index, lambda each: each.poll())
        self.check_order()

    def check_order(self) -> None:
        """No claim is in the store without what was written before it."""
        for key in self.ours._values:
            if key.name.startswith("claim-") and key not in self.erasures.keys:
                assert Key("", key.name.replace("claim", "archive")) in self.ours._values
        assert not [key for key in self.theirs._values if key.name != "probe"]
        assert not self.theirs._logs

    def teardown(self) -> None:
        if not hasattr(self, "workers"):
            return
        self.disks.states.clear()
        self.unlock()
        self.ours.state, self.ours.writes_left = "up", -1
        for _ in range(2):
            for index in range(2):
                self.run(index, lambda store: store.poll())
        self.check_order()
        for key, values in self.expected.items():
            assert self.loop.run_until_complete(self.ours.get(key)) in values, key
        stored = [value for _, value in self.loop.run_until_complete(self.ours.read(LOG))]
        assert set(self.entries) <= set(stored) <= {*self.entries, *self.uncertain}
        assert sorted(self.entries, key=stored.index) == self.entries
        assert not {each.value for each in self.ours._values.values()}.intersection(self.erased_values)
        files = {path.name for place in self.places for path in place.parent.iterdir()}
        # A killed process leaves the draft of a file; the next one that replaces the file, or an erasure, removes it.
        assert files <= {"spool-store", "spool-recent", "spool-recent-new"}
        for worker in self.workers:
            self.loop.run_until_complete(worker.close())
        self.patch.undo()
        self.loop.close()
        shutil.rmtree(self.folder)


def test_nothing_is_lost_whatever_fails_at_any_call():
    run_state_machine_as_test(
        SpoolMachine, settings=settings(max_examples=examples(400), stateful_step_count=30, phases=[Phase.generate])
    )
