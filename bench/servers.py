"""Starts and stops the upstream and every contender; all on loopback, each in a process group of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench import processes

HERE = Path(__file__).resolve().parent
LITELLM = HERE / ".cache" / "litellm-venv" / "bin" / "litellm"
LONGEST_START = 90.0
DIRECT = "direct"
ACCORDION = "accordion"
UNREAD = "uvloop, passing bytes on unread"
ECHO = "uvicorn, answering by itself"
UVICORN = "uvicorn + aiohttp's client"
GRANIAN = "granian + aiohttp's client"
PYREQWEST = "uvicorn + pyreqwest's client"
BARE = "Starlette alone"


class Unavailable(Exception):
    """This contender cannot run here; the message says why."""


@dataclass(frozen=True)
class Pins:
    """The cores of the server under test and of everything around it; empty: any."""

    server: frozenset[int] = frozenset()
    rest: frozenset[int] = frozenset()

    def prefix(self) -> list[str]:
        """What to put before the command of a generator or upstream."""
        return on_cores(self.rest)


def on_cores(cores: frozenset[int]) -> list[str]:
    """What to put before a command to keep it on these cores; nothing where any will do."""
    return ["taskset", "-c", ",".join(map(str, sorted(cores)))] if cores else []


@dataclass
class Server:
    """A running contender."""

    name: str
    port: int
    process: subprocess.Popen[bytes] | None
    log: Path | None = None
    folder: Path | None = None
    """Where it keeps what it writes."""
    started_cpu: float = 0.0
    started_wall: float = 0.0
    pids: list[int] = field(default_factory=list)

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(timeout=8)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def error(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log else []
        return lines[-1][:200] if lines else "no output"


@dataclass(frozen=True)
class Start:
    """The values for a contender's command."""

    port: int
    upstream: int
    workers: int
    folder: Path
    store: str
    config: str = "accordion.yaml"
    without: str = ""
    """The measure of `bench.serve_without` that Accordion starts without; `program` starts it."""
    program: str = "bench.serve_without"


Command = tuple[list[str], dict[str, str], str]


def _accordion(start: Start) -> Command:
    store = "memory://" if start.store == "memory" else f"sqlite:///{start.folder / 'accordion.db'}"
    base = f"http://127.0.0.1:{start.upstream}"
    variables = {
        "ACCORDION_OPENAI_BASE_URL": f"{base}/v1",
        "ACCORDION_ANTHROPIC_BASE_URL": base,
        "ACCORDION_STORE": store,
    }
    config = ["--config", str(HERE / start.config)]
    listen = ["--host", "127.0.0.1", "--port", str(start.port), "--workers", str(start.workers)]
    program = [start.program, start.without] if start.without else ["accordion"]
    return [sys.executable, "-m", *program, "serve", *config, *listen], variables, "/healthz"


def _passthrough(module: str) -> Callable[[Start], Command]:
    def command(start: Start) -> Command:
        listen = ["--port", str(start.port), "--workers", str(start.workers)]
        variables = {"UPSTREAM": f"http://127.0.0.1:{start.upstream}"}
        return [sys.executable, "-m", f"bench.{module}", *listen], variables, "/healthz"

    return command


def _litellm(start: Start) -> Command:
    if not LITELLM.exists():
        raise Unavailable("not installed in bench/.cache/litellm-venv (see bench/README.md)")
    base = f"http://127.0.0.1:{start.upstream}"
    models = [
        {
            "model_name": "gpt-4.1",
            "litellm_params": {"model": "openai/gpt-4.1", "api_base": f"{base}/v1", "api_key": "sk-bench"},
        },
        {
            "model_name": "claude-sonnet-4-6",
            "litellm_params": {"model": "anthropic/claude-sonnet-4-6", "api_base": base, "api_key": "sk-bench"},
        },
    ]
    config = start.folder / "litellm.json"  # YAML is a superset of JSON
    general = {"dangerously_permit_weak_or_unset_master_key": True}  # loopback only: no key check to pay for
    settings = {"model_list": models, "litellm_settings": {"telemetry": False}, "general_settings": general}
    config.write_text(json.dumps(settings))
    listen = ["--host", "127.0.0.1", "--port", str(start.port), "--num_workers", str(start.workers)]
    variables = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    return [str(LITELLM), "--config", str(config), *listen, "--telemetry", "False"], variables, "/health/liveliness"


CONTENDERS: Mapping[str, Callable[[Start], Command]] = {
    ACCORDION: _accordion,
    "aiohttp passthrough": _passthrough("passthrough_aiohttp"),
    "Starlette + httpx passthrough": _passthrough("passthrough_httpx"),
    "LiteLLM proxy": _litellm,
}


def _floor(*more: str, needs: str = "uvicorn") -> Callable[[Start], Command]:
    def command(start: Start) -> Command:
        if find_spec(needs) is None:
            raise Unavailable("not installed")
        line, variables, health = _passthrough("minimal_servers")(start)
        return [*line, *more], variables, health

    return command


FLOORS: Mapping[str, Callable[[Start], Command]] = {
    UNREAD: _floor("--unread"),
    ECHO: _floor("--echo"),
    UVICORN: _floor(),
    GRANIAN: _floor("--granian", needs="granian"),
    PYREQWEST: _floor("--pyreqwest", needs="pyreqwest"),
    BARE: _passthrough("bare_starlette"),
}
"""Contenders of the scenarios `floor` and `startup` only."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def get(port: int, path: str, body: Any = None, timeout: float = 5.0) -> bytes:
    """A GET, or with a body a JSON POST, to a server on this machine."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json", "authorization": "Bearer sk-bench"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=data, headers=headers)
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        content: bytes = answer.read()
        return content


def _launch(command: list[str], variables: Mapping[str, str], log: Path, cores: frozenset[int]) -> Any:
    clean = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    with log.open("wb") as output:
        return subprocess.Popen(
            [*on_cores(cores), *command],
            env={**clean, **variables},
            cwd=HERE.parent,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


@contextmanager
def upstream(pins: Pins) -> Iterator[int]:
    """The loopback provider; gives its port."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        log = Path(folder) / "upstream.log"
        server = Server("upstream", 0, _launch([sys.executable, "-m", "bench.upstream"], {}, log, pins.rest), log)
        try:
            for _ in range(200):
                time.sleep(0.02)
                if text := log.read_text().strip():
                    break
            yield int(text)
        finally:
            server.stop()


@contextmanager
def serving(
    name: str,
    to: int,
    *,
    pins: Pins = Pins(),
    workers: int = 1,
    store: str = "sqlite",
    variables: Mapping[str, str] | None = None,
    config: str = "accordion.yaml",
    without: str = "",
    program: str = "bench.serve_without",
) -> Iterator[Server]:
    """Run a contender in front of the upstream at port `to` until the block ends.

    `config`, `without` and `program` are Accordion's.
    """
    if name == DIRECT:
        yield Server(DIRECT, to, None)
        return
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        start = Start(free_port(), to, workers, Path(folder), store, config, without, program)
        command, own, health = (CONTENDERS.get(name) or FLOORS[name])(start)
        log = Path(folder) / "server.log"
        began = time.monotonic()
        process = _launch(command, {**own, **(variables or {})}, log, pins.server)
        server = Server(name, start.port, process, log, Path(folder))
        try:
            _await_health(server, health, workers)
            server.started_wall = time.monotonic() - began
            server.pids = processes.tree(process.pid)
            server.started_cpu = processes.cpu_seconds(server.pids)
            yield server
        finally:
            server.stop()


def _await_health(server: Server, path: str, workers: int) -> None:
    assert server.process is not None
    until = time.monotonic() + LONGEST_START
    while time.monotonic() < until:
        if server.process.poll() is not None:
            raise Unavailable(f"stopped while starting: {server.error()}")
        try:
            get(server.port, path)
        except (urllib.error.URLError, OSError):
            time.sleep(0.01)
            continue
        if workers > 1:
            time.sleep(3.0)  # the first worker answers; give the others time to come up
        return
    raise Unavailable(f"no answer on {path} within {LONGEST_START:.0f} s: {server.error()}")
