"""A really started proxy: `python -m accordion serve` in a process of its own, on a port of its own.

Imports take most of the time of a start. So a proxy is forked from a process that has the program's modules, which is
started once for all tests of a run. With another interpreter, or a variable that is read before the program's first
statement, the command itself is started.

    with held_port() as port, start_proxy(folder, upstream_port=port) as proxy:
        async with proxy.provider(script) as provider:
            ...  # proxy.url, proxy.log, provider.requests

All default upstreams are `proxy.provider`'s address; while none runs there, connections are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.loopback import Loopback, Script

PATIENT = "store: {timeout_seconds: 60, write_timeout_seconds: 60}\n"
"""For a config: a store that is there is waited for. By itself a proxy soon goes on without one that is slow, which on
a busy machine is any."""
_PATIENCE = 60.0
_READ_AT_IMPORT = ("PYTHON", "SSL_")
"""How variables begin that the interpreter reads, or a library when it is imported."""
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.preloaded"])
_GREETING = re.compile(r"listens on http://[^ ]*?:(\d+),")


@dataclass
class Proxy:
    """A proxy process. `folder` is its working directory, home, and the place of its config and log."""

    folder: Path
    upstream_port: int
    options: tuple[str, ...] = ()
    environ: dict[str, str] = field(default_factory=dict)
    port: int = 0
    python: str = sys.executable
    _process: subprocess.Popen[bytes] | _Fork | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def workers(self) -> list[int]:
        """The processes that were started to serve, so far; with two workers the last two do."""
        return [int(pid) for pid in re.findall(r"Started server process \[(\d+)\]", self.log)]

    @property
    def token(self) -> str:
        """The token of the proxy's owner; empty on an address that others reach with proxy keys."""
        file = Path(self.environ.get("HOME", self.folder)) / ".local" / "state" / "accordion" / "token"
        return file.read_text().strip() if file.exists() else ""

    @property
    def running(self) -> bool:
        """Whether there is a process of it."""
        return self._process is not None

    @property
    def config(self) -> Path:
        return self.folder / "accordion.yaml"

    @property
    def log(self) -> str:
        """All that it wrote so far, to standard output and error."""
        # It may be read while a line is being written; that may end within a character.
        return (self.folder / "log").read_text("utf-8", errors="replace")

    def provider(self, script: Script, *, eager: bool = False) -> Loopback:
        """The provider behind all default upstreams."""
        return Loopback(script, eager, port=self.upstream_port)

    def start(self) -> None:
        """Start, on a port that is free now, and wait until it answers.

        Raises RuntimeError with its output where it does not come up.
        """
        upstream = f"http://127.0.0.1:{self.upstream_port}"
        environ = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(self.folder),
            "ACCORDION_CONFIG": str(self.config),
            "ACCORDION_STORE": "memory://",
            "ACCORDION_LOG": "debug",
            "ACCORDION_OPENAI_BASE_URL": f"{upstream}/v1",
            "ACCORDION_ANTHROPIC_BASE_URL": upstream,
            "ACCORDION_GEMINI_BASE_URL": upstream,
            "PYTHONUNBUFFERED": "1",
            # A checkout whose code is not the installed one is tested with its own.
            **{name: value for name, value in os.environ.items() if name == "PYTHONPATH"},
            **self.environ,
        }
        arguments = ["-m", "accordion", "serve", "--port", "0", *self.options]
        if self.python == sys.executable and not any(name.startswith(_READ_AT_IMPORT) for name in self.environ):
            self._process = _Fork(arguments[1:], self.folder, environ)
        else:
            with (self.folder / "log").open("wb") as log:
                command = [self.python, *arguments]
                self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, env=environ)
        self._wait(lambda: _GREETING.search(self.log))
        found = _GREETING.search(self.log)
        assert found is not None
        self.port = int(found[1])
        self._wait(self._healthy)

    def stop(self) -> int:
        """Stop in order; returns the exit code."""
        if self._process is None:
            return 0
        self._process.terminate()
        return self.ended()

    def ended(self) -> int:
        """Wait for its end; returns the exit code."""
        assert self._process is not None
        try:
            return self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        finally:
            self._process = None

    def kill(self) -> None:
        """End it without warning."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(_PATIENCE)
        self._process = None

    async def says(self, text: str, times: int = 1) -> None:
        """Wait until its log holds this text so often."""
        async with asyncio.timeout(_PATIENCE):
            while self.log.count(text) < times:
                await asyncio.sleep(0.05)

    def hup(self) -> None:
        """Ask it to read its config again."""
        os.kill(self.pid, signal.SIGHUP)

    @property
    def resident(self) -> int:
        """Memory that it holds, in bytes; the process itself without workers."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024

    def _healthy(self) -> bool:
        with contextlib.suppress(OSError):
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(f"{self.url}/healthz", timeout=5) as reply:
                return bool(reply.status == 200)
        return False

    def _wait(self, true: object) -> None:
        end = time.monotonic() + _PATIENCE
        while not true():  # type: ignore[operator]
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the proxy did not start:\n{self.log}")
            time.sleep(0.02)


class _Fork:
    """A process that runs a module of Python's, forked from one that has the program's modules. As a Popen."""

    def __init__(self, command: list[str], folder: Path, environ: dict[str, str]) -> None:
        (folder / "log").write_bytes(b"")
        self._process = _FORKS.Process(target=_run, args=(command, folder, environ))
        self._process.start()
        assert self._process.pid is not None
        self.pid, self.terminate, self.kill = self._process.pid, self._process.terminate, self._process.kill

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("accordion", timeout)
        return self._process.exitcode


def _run(command: list[str], folder: Path, environ: dict[str, str]) -> None:
    """Runs in a fork: becomes what `python -m` with this command is."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    log = os.open("log", os.O_WRONLY | os.O_APPEND)
    for number in (1, 2):
        os.dup2(log, number)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # The program would take itself for a worker.
    multiprocessing.process._parent_process = None  # type: ignore[attr-defined]
    sys.argv = command
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)


@contextlib.contextmanager
def start_proxy(folder: Path, config: str = "", *options: str, upstream_port: int, **environ: str) -> Iterator[Proxy]:
    """A proxy with this config file, these options of `serve` and these variables; `{upstream}` in the config stands
    for its provider's URL."""
    running = Proxy(folder, upstream_port, options, environ)
    upstream = f"http://127.0.0.1:{upstream_port}"
    running.config.write_text(config.replace("{upstream}", upstream) or "server: {shutdown_seconds: 1}\n", "utf-8")
    try:
        running.start()
        yield running
    finally:
        running.stop()


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """A free port of 127.0.0.1 that nobody else is given while it is held; a server may still listen on it."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])
