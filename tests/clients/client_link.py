"""A link: a client's connection to the loopback provider, direct or through the proxy, recorded at the client's end."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from upstream import Upstream
from wire import ConnectionRecorder, Exchange, alike, comparable, differences, in_order

ROOT = Path(__file__).resolve().parents[2]
PROXY_PYTHON = Path(os.environ.get("ACCORDION_PYTHON") or ROOT / ".venv" / "bin" / "python")
KEY = "sk-test-not-a-key"
NOWHERE = "http://127.0.0.1:9"  # where a client's calls home end
GREETING = re.compile(r"listens on http://127\.0\.0\.1:(\d+),")
CI = os.environ.get("CI", "").lower() == "true"


@dataclass
class ClientLink:
    """What a test gets: addresses for its client, the provider to script, and a place to note what the client saw.

    After the test the recorder's record is compared with the provider's: every request and response must be the same at
    both ends. Then the run through the proxy is compared with the direct one: `notes` always, the exchanges too unless
    the test says that its client is not the same twice (`repeatable = False`).
    """

    mode: str
    upstream: Upstream
    recorder: ConnectionRecorder
    notes: dict[str, Any] = field(default_factory=dict)
    repeatable: bool = True
    paths: bool = True

    @property
    def origin(self) -> str:
        """The base URL for a client of Anthropic or Google."""
        return f"http://127.0.0.1:{self.recorder.port}"

    @property
    def v1(self) -> str:
        """The base URL for an OpenAI client."""
        return f"{self.origin}/v1"

    def note(self, **seen: Any) -> None:
        """Keep what the client saw, to be compared with the other run."""
        for name, value in seen.items():
            text = json.dumps(value, default=str, ensure_ascii=False, sort_keys=True)
            self.notes[name] = re.sub(r"127\.0\.0\.1:\d+", "PROVIDER", text)

    def exchanges(self) -> list[Exchange]:
        """What the client sent and got, as it stood on its own wire, by time."""
        return [one for one in in_order(list(self.recorder.recordings)) if compared(one)]

    def requests(self, ending: str = "") -> list[Exchange]:
        """The exchanges whose path ends so."""
        return [exchange for exchange in self.exchanges() if exchange.request.path.endswith(ending)]

    def wire_differences(self) -> list[str]:
        """How the client's end of the wire differs from the provider's."""
        return differences(self.exchanges(), [one for one in self.upstream.exchanges() if compared(one)])

    def settled(self) -> None:
        """Wait until both ends agree, or patience ends: a response may still be on its way."""
        self.upstream.wait_for(lambda: not self.wire_differences())

    def result(self) -> dict[str, Any]:
        """The result that the other run must repeat."""
        exchanges = [comparable(exchange) for exchange in self.exchanges()]
        shown: dict[str, Any] = {"notes": self.notes}
        if self.paths:
            shown["paths"] = [(one.request.method, one.request.target) for one in exchanges]
        if self.repeatable:
            shown["exchanges"] = exchanges
        return shown


def compared(exchange: Exchange) -> bool:
    """Not WebSockets, whose handshakes are each connection's own, and not `/`, which is the proxy's own page.

    Claude Code asks for the latter to warm up its connection, at times.
    """
    return not exchange.request.is_upgrade and exchange.request.path != "/"


def compare_runs(direct: dict[str, Any], through: dict[str, Any]) -> list[str]:
    """How a run through the proxy differs from the direct one."""
    found = []
    for name in sorted({*direct["notes"], *through["notes"]}):
        one, two = direct["notes"].get(name, ""), through["notes"].get(name, "")
        if one != two:
            found.append(f"the client saw another {name}: {where(one, two)}")
    if direct.get("paths") != through.get("paths"):
        found.append(f"other requests: {where(str(direct.get('paths')), str(through.get('paths')))}")
    elif "exchanges" in direct:
        pairs = zip(direct["exchanges"], through["exchanges"], strict=True)
        found += [f"another exchange: {where(str(a), str(b))}" for a, b in pairs if not alike(a, b)]
    return found


def where(one: str, two: str) -> str:
    """The first place at which two texts differ, with what stands around it."""
    at = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    start = max(0, at - 200)
    return f"from {at}:\n  direct:  {one[start : at + 200]}\n  through: {two[start : at + 200]}"


class Proxy:
    """The proxy as a process of its own; its configuration is empty, where none is given."""

    def __init__(self, upstream_port: int, folder: Path, settings: str = "{}\n") -> None:
        self.port = 0
        self.log = folder / "proxy.log"
        config = folder / "config.yaml"
        config.write_text(settings)
        home = folder / "home"
        home.mkdir(exist_ok=True)
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(home),
            "ACCORDION_OPENAI_BASE_URL": f"http://127.0.0.1:{upstream_port}/v1",
            "ACCORDION_ANTHROPIC_BASE_URL": f"http://127.0.0.1:{upstream_port}",
            "ACCORDION_GEMINI_BASE_URL": f"http://127.0.0.1:{upstream_port}",
            "ACCORDION_BEDROCK_BASE_URL": f"http://127.0.0.1:{upstream_port}",
            "ACCORDION_STORE": "memory://",
            "PYTHONUNBUFFERED": "1",
            # A checkout whose code is not the installed one is tested with its own.
            **{name: value for name, value in os.environ.items() if name == "PYTHONPATH"},
        }
        command = [str(PROXY_PYTHON), "-m", "accordion", "serve", "--config", str(config)]
        command += ["--host", "127.0.0.1", "--port", "0"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
        self._wait_until_it_listens()

    def _wait_until_it_listens(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            found = GREETING.search(self.log.read_text(errors="replace"))
            with socket.socket() as probe:
                probe.settimeout(1)
                if found is not None and probe.connect_ex(("127.0.0.1", int(found[1]))) == 0:
                    self.port = int(found[1])
                    return
            time.sleep(0.05)
        self.stop()
        raise RuntimeError(f"the proxy did not start:\n{self.tail()}")

    def tail(self) -> str:
        """The end of what the proxy logged."""
        return self.log.read_text(errors="replace")[-4000:]

    def stop(self) -> None:
        """End the process."""
        self.process.terminate()
        try:
            self.process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout=15)


def proxy_missing() -> str | None:
    """Why the proxy cannot be started, or None."""
    if not PROXY_PYTHON.exists():
        return f"no interpreter for the proxy at {PROXY_PYTHON.relative_to(ROOT)}"
    tried = subprocess.run(
        [str(PROXY_PYTHON), "-m", "accordion", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return None if tried.returncode == 0 else f"`python -m accordion --help` fails: {tried.stderr.strip()[-300:]}"


def run(
    command: list[str],
    link: ClientLink,
    extra: dict[str, str] | None = None,
    home: Path | None = None,
    leave: Any = None,
) -> str:
    """Run a client as a process, in a clean environment with a home of its own; return what it printed.

    With `leave` the process is ended as soon as that returns true, as if its user had gone.
    """
    with tempfile.TemporaryDirectory(prefix="client-", ignore_cleanup_errors=True) as made:
        folder = home or Path(made)
        environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(folder), "LANG": "C.UTF-8", "NO_COLOR": "1"}
        environment |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), NOWHERE) | {"NO_PROXY": "127.0.0.1"}
        environment |= {"BASE_V1": link.v1, "BASE_ORIGIN": link.origin, "TEST_KEY": KEY} | (extra or {})
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            if leave is not None:
                assert link.upstream.wait_for(leave, seconds=60), "the client never asked"
                os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate(timeout=120)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode != 0 and leave is None:
        raise AssertionError(f"{command[0]} ended: {process.returncode}\n{out[-3000:]}\n{err[-3000:]}")
    return out


def in_clients_environment() -> bool:
    """Whether this interpreter is the clients' one."""
    return all(find_spec(name) is not None for name in ("openai", "agents", "smolagents", "pydantic_ai", "langgraph"))
