"""`accordion demo`: run as a newcomer does, in a home of its own."""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

SITE_CUSTOMIZE = """
import os, signal, sys, time

pause = time.sleep
time.sleep = lambda seconds: pause(seconds / 20)

if "spawn_main" in " ".join(sys.orig_argv):
    os.kill(os.getpid(), signal.SIGINT)

def note(event, values):
    if event == "socket.connect":
        address = values[1][0] if isinstance(values[1], tuple) else values[1]
    elif event == "socket.getaddrinfo":
        address = values[0]
    elif event == "socket.gethostbyaddr":
        # A name server may be asked for it.
        address = f"the name of {values[0]}"
    else:
        return
    with open(os.environ["CONNECTIONS"], "a") as file:
        print(os.getpid(), address, file=file)

sys.addaudithook(note)
"""
"""A sitecustomize.py that notes the process and the host of each connection and of each look-up of an address.

The proxy's process gets a SIGINT at its start, as from a key that the user presses meanwhile: it is not for it. Nobody
reads what the demo prints, so its pauses are short.
"""
SECONDS = 240.0


@dataclass
class Newcomer:
    """A user with an empty home, an empty folder for temporary files, and settings that the demo must not use."""

    folder: Path

    def __post_init__(self) -> None:
        for name in ("home", "temporary", "python"):
            (self.folder / name).mkdir()
        (self.folder / "python/sitecustomize.py").write_text(SITE_CUSTOMIZE)
        (self.folder / "browser").write_text('#!/bin/sh\necho "$HOME $1" > "$OPENED"\n')
        (self.folder / "browser").chmod(0o755)

    @property
    def environ(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder / "home"),
            "TMPDIR": str(self.folder / "temporary"),
            "PYTHONPATH": os.pathsep.join([str(self.folder / "python"), *sys.path]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "CONNECTIONS": str(self.folder / "connections"),
            "BROWSER": f"{self.folder}/browser %s",
            "OPENED": str(self.folder / "opened"),
            "ACCORDION_STORE": f"sqlite:///{self.folder}/home/store.db",
            "ACCORDION_CONFIG": str(self.folder / "no-such-file.yaml"),
            "ACCORDION_OPENAI_BASE_URL": "http://192.0.2.1/v1",
            "HTTP_PROXY": "http://192.0.2.1:3128",
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://192.0.2.1:4318",
        }

    def start(self, *options: str, tty: int | None = None) -> subprocess.Popen[str]:
        """Starts `accordion demo`. `tty`: its terminal."""
        command = [sys.executable, "-m", "accordion", "demo", *options]
        output = subprocess.PIPE if tty is None else tty
        return subprocess.Popen(
            command, cwd=self.folder / "home", env=self.environ, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def assert_nothing_is_left(self, output: str) -> None:
        """Fails if a file of the demo, or its proxy, is still there."""
        assert [*(self.folder / "home").iterdir(), *(self.folder / "temporary").iterdir()] == []
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(page_of(output).port or 0)))

    def connections(self) -> dict[str, set[str]]:
        """The hosts that each process connected to."""
        hosts: dict[str, set[str]] = {}
        for line in (self.folder / "connections").read_text().splitlines():
            process, _, host = line.partition(" ")
            hosts.setdefault(process, set()).add(host)
        return hosts


@pytest.fixture
def newcomer(tmp_path: Path) -> Newcomer:
    return Newcomer(tmp_path)


def page_of(output: str) -> httpx.URL:
    return httpx.URL(re.search(r"http://127\.0\.0\.1:\d+/accordion/", output)[0])  # type: ignore[index]


def number_of(pattern: str, output: str) -> float:
    return float(re.search(pattern, output)[1].replace(",", ""))  # type: ignore[index]


def test_it_shows_compactions_a_read_back_and_the_savings(newcomer: Newcomer) -> None:
    process = newcomer.start("--open")
    output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, output
    requests = re.findall(r"^request +(\d+): +([\d,]+) tokens came, +([\d,]+) were sent; the model ", output, re.M)
    assert [int(number) for number, _, _ in requests] == [*range(1, len(requests) + 1)]
    assert 30 <= len(requests) <= 50
    compactions = re.findall(
        r"^    compacted: ([\d,]+) tokens to ([\d,]+); .*\n    moved to the archive: \d", output, re.M
    )
    assert len(compactions) >= 2
    assert output.count("still in the prompt: the user's rule, 'Never change a file below migrations/.'") == len(
        compactions
    )
    assert re.search(r"answers: 37 seconds: .*\n    read back: the model called read_artifact for art_\w{12};", output)
    assert f"\n{len(requests)} requests, {len(compactions)} compactions.\n" in output
    for unit in (r"([\d,]+) tokens of input", r"[\d,]+ tokens of input, \$([\d.]+)\."):
        without, sent = (number_of(rf"\n{name} Accordion: +{unit}", output) for name in ("Without", "With"))
        assert without > sent > 0
    assert number_of(r"Without Accordion, (\d+) of", output) > 0
    assert (newcomer.folder / "opened").read_text() == f"{newcomer.folder}/home {page_of(output)}\n"
    newcomer.assert_nothing_is_left(output)
    # The command and its proxy.
    connections = newcomer.connections()
    assert str(process.pid) in connections
    assert len(connections) == 2
    assert set.union(*connections.values()) == {"127.0.0.1"}


@pytest.mark.rest
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_in_order(newcomer: Newcomer, number: signal.Signals) -> None:
    process = newcomer.start()
    assert process.stdout is not None
    output = ""
    while "request  2" not in output:
        line = process.stdout.readline()
        assert line, output
        output += line
    process.send_signal(number)
    rest, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert rest.endswith("\nThe demo has ended, and its store is gone.\n")
    assert "Traceback" not in rest
    newcomer.assert_nothing_is_left(output)


@pytest.mark.rest
def test_on_a_terminal_its_page_stays_until_ctrl_c(newcomer: Newcomer) -> None:
    terminal, other_end = pty.openpty()
    process = newcomer.start(tty=other_end)
    os.close(other_end)
    output = read_until(terminal, "goes on until Ctrl-C, so that you can look at http")
    page = page_of(output)
    with httpx.stream("GET", page.join("pages/events"), trust_env=False) as events:
        assert events.status_code == 200
        assert "scripted-model" in httpx.get(page, trust_env=False).text
        process.send_signal(signal.SIGINT)
        read_until(terminal, "The demo has ended")
        assert process.wait(SECONDS) == 0
    os.close(terminal)
    newcomer.assert_nothing_is_left(output)


@pytest.mark.rest
def test_with_exit_it_ends_on_a_terminal_too(newcomer: Newcomer) -> None:
    terminal, other_end = pty.openpty()
    process = newcomer.start("--exit", tty=other_end)
    os.close(other_end)
    output = read_until(terminal, "Next: ")
    assert process.wait(SECONDS) == 0
    os.close(terminal)
    assert "Ctrl-C" not in output
    newcomer.assert_nothing_is_left(output)


def read_until(terminal: int, words: str) -> str:
    """Reads a terminal until these words come."""
    output, deadline = "", time.monotonic() + SECONDS
    while words not in output:
        assert time.monotonic() < deadline, output
        output += os.read(terminal, 4_096).decode()
    return output


@pytest.mark.rest
def test_a_port_that_is_in_use_is_named(newcomer: Newcomer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        process = newcomer.start("--port", str(port))
        output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in output
    assert [*(newcomer.folder / "temporary").iterdir()] == []
