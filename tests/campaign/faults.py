"""What can fail around agents at work, one after the other, in an order that a seed decides."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.campaign.clock import Clock
from tests.campaign.failing_connection import FailingConnection
from tests.disks import fill
from tests.proxy_process import Proxy
from tests.valkey import Valkey

PROCESSES = ("kill-worker", "freeze-worker", "kill-supervisor", "kill-all", "freeze-all", "restart")
PROVIDER = ("kill-provider", "freeze-provider", "slow-provider", "cut-provider")
CLIENTS = ("slow-clients", "cut-clients")
CLOCK = ("clock-forward", "clock-back")
VALKEY = ("kill-store", "freeze-store", "slow-store", "cut-store")
SQLITE = ("freeze-store", "slow-store")
DISK = ("fill-disk",)
EMPTY = ("empty-store",)
"""Not among the others: what was stored before is gone, but for what clients send again."""
JUMP = 86_400.0
"""Seconds by which the clock jumps: well within the 30 days that everything is kept."""
SLOW = {"provider": 0.15, "clients": 0.03, "store": 0.05}
"""Seconds that each piece is late on a slow link."""


def faults_of(store: str, *, has_disk: bool = True) -> tuple[str, ...]:
    """The names of all faults that there are with a store; `has_disk`: whether its disk can be filled."""
    own = VALKEY if store == "valkey" else SQLITE
    return (*PROCESSES, *PROVIDER, *CLIENTS, *CLOCK, *own, *(DISK if has_disk else ()))


@dataclass(frozen=True)
class Fault:
    """One fault, or two at the same time: what fails, for how many seconds, and how many requests of each agent are
    answered before."""

    names: tuple[str, ...]
    seconds: float
    after: int

    def __str__(self) -> str:
        return f"{self.name} {self.seconds:.1f} s after {self.after}"

    @property
    def name(self) -> str:
        return " + ".join(self.names)


def schedule(seed: int, names: Sequence[str], count: int, longest: float) -> list[Fault]:
    """So many faults, the same for the same seed: all names in turn, in an order of chance; each fifth fault is two."""
    chance, out, left = random.Random(seed), list[Fault](), list[str]()

    def next_name() -> str:
        if not left:
            left.extend(chance.sample(list(names), len(names)))
        return left.pop()

    for number in range(count):
        first = next_name()
        second = next_name() if number % 5 == 4 else first
        both = tuple(dict.fromkeys((first, second)))
        if set(both) <= set(PROCESSES):
            # The one would end what the other works on.
            left.extend(both[1:])
            both = both[:1]
        out.append(Fault(both, chance.uniform(0.3, 1.0) * longest, chance.randint(1, 4)))
    return out


@dataclass
class ProxyConnections:
    """The connections of the proxy: to its clients, to the provider, and to the store where that is a server."""

    clients: FailingConnection
    provider: FailingConnection
    store: FailingConnection | None


@dataclass
class Faults:
    """Carries out faults."""

    proxy: Proxy
    links: ProxyConnections
    clock: Clock
    valkey: Valkey | None
    file: Path | None
    """The store where it is an SQLite file."""
    disk: Path | None
    chance: random.Random
    former_logs: list[str] = field(default_factory=list)
    """What the proxies wrote that were started before the one that runs."""
    _starts: int = 0

    @property
    def log(self) -> str:
        """All that was written by any of the proxies."""
        folder = self.proxy.folder
        files = [*sorted(folder.glob("log.*")), folder / "log"]
        return "".join(file.read_text("utf-8", errors="replace") for file in files)

    async def carry_out(self, fault: Fault) -> None:
        """Lets all of a fault's parts begin and end together."""
        ways = [getattr(self, f"_{name.replace('-', '_')}") for name in fault.names]
        async with asyncio.TaskGroup() as group:
            for way in ways:
                group.create_task(way(fault.seconds))

    # -- the proxy's processes ----------------------------------------------------

    def _alive(self) -> list[int]:
        return [pid for pid in self.proxy.workers if Path(f"/proc/{pid}").exists()]

    async def _kill_worker(self, seconds: float) -> None:
        if not (alive := self._alive()):
            return
        with suppress(ProcessLookupError):
            os.kill(self.chance.choice(alive), signal.SIGKILL)
        await asyncio.sleep(seconds)

    async def _freeze_worker(self, seconds: float) -> None:
        if alive := self._alive():
            await self._freeze([self.chance.choice(alive)], seconds)

    async def _freeze_all(self, seconds: float) -> None:
        await self._freeze([self.proxy.pid, *self._alive()], seconds)

    async def _freeze(self, pids: Sequence[int], seconds: float) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    async def _kill_supervisor(self, seconds: float) -> None:
        """Its workers end by themselves, while those of the next one work already."""
        self.proxy.kill()
        await self._start()

    async def _kill_all(self, seconds: float) -> None:
        """As where the machine fails: nothing can be written any more."""
        workers = self._alive()
        self.proxy.kill()
        for pid in workers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(seconds / 4)
        await self._start()

    async def _restart(self, seconds: float) -> None:
        """In order, as for an update."""
        await asyncio.to_thread(self.proxy.stop)
        await self._start()

    async def _start(self) -> None:
        self._starts += 1
        log = self.proxy.folder / "log"
        log.rename(log.with_name(f"log.{self._starts:03}"))
        await asyncio.to_thread(self.proxy.start)
        self.links.clients.target = self.proxy.port

    # -- links --------------------------------------------------------------------

    async def _kill_provider(self, seconds: float) -> None:
        await _within(self.links.provider.down, seconds)

    async def _freeze_provider(self, seconds: float) -> None:
        await _within(self.links.provider.hold, seconds)

    async def _slow_provider(self, seconds: float) -> None:
        await _within(lambda: self.links.provider.slow(SLOW["provider"]), seconds)

    async def _cut_provider(self, seconds: float) -> None:
        await _until_cut(self.links.provider, seconds)

    async def _slow_clients(self, seconds: float) -> None:
        await _within(lambda: self.links.clients.slow(SLOW["clients"]), seconds)

    async def _cut_clients(self, seconds: float) -> None:
        await _until_cut(self.links.clients, seconds)

    # -- the store ----------------------------------------------------------------

    async def _kill_store(self, seconds: float) -> None:
        assert self.valkey is not None
        os.kill(self.valkey.pid, signal.SIGKILL)
        self.valkey.kill()
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self.valkey.start)

    async def _freeze_store(self, seconds: float) -> None:
        if self.valkey is not None:
            self.valkey.freeze()
            try:
                await asyncio.sleep(seconds)
            finally:
                self.valkey.thaw()
            return
        with self._locked():
            await asyncio.sleep(seconds)

    async def _slow_store(self, seconds: float) -> None:
        if self.links.store is not None:
            return await _within(lambda: self.links.store.slow(SLOW["store"]), seconds)  # type: ignore[union-attr]
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            with self._locked():
                await asyncio.sleep(0.1)
            await asyncio.sleep(0.02)

    async def _cut_store(self, seconds: float) -> None:
        assert self.links.store is not None
        await _until_cut(self.links.store, seconds)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Within, nobody else reads or writes the file. Where the file cannot be locked it is as good as locked."""
        assert self.file is not None
        with closing(sqlite3.connect(self.file, timeout=5, isolation_level=None)) as holder:
            with suppress(sqlite3.OperationalError):
                holder.execute("BEGIN EXCLUSIVE")
            yield

    async def _fill_disk(self, seconds: float) -> None:
        assert self.disk is not None
        others = await asyncio.to_thread(fill, self.disk)
        try:
            await asyncio.sleep(seconds)
        finally:
            others.unlink()

    async def _empty_store(self, seconds: float) -> None:
        """As where somebody deletes the file, or empties the server, by mistake."""
        if self.valkey is not None:
            await asyncio.to_thread(self.valkey.command, "FLUSHALL")
        else:
            assert self.file is not None
            for suffix in ("", "-wal", "-shm"):
                self.file.with_name(f"{self.file.name}{suffix}").unlink(missing_ok=True)
        await asyncio.sleep(seconds)

    # -- the clock ----------------------------------------------------------------

    async def _clock_forward(self, seconds: float) -> None:
        await self._jump(JUMP, seconds)

    async def _clock_back(self, seconds: float) -> None:
        await self._jump(-JUMP, seconds)

    async def _jump(self, shift: float, seconds: float) -> None:
        self.clock.jump(shift)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.clock.jump(0.0)


async def _within(state: Callable[[], AbstractContextManager[None]], seconds: float) -> None:
    with state():
        await asyncio.sleep(seconds)


async def _until_cut(link: FailingConnection, seconds: float) -> None:
    """For so long, and until anything was cut."""
    before = link.cuts
    with link.cutting():
        await asyncio.sleep(seconds)
        while link.cuts == before:
            await asyncio.sleep(0.05)
