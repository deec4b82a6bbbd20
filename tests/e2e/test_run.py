"""`accordion run`: a command in the foreground of a proxy of its own, or of one that runs already."""

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.loopback import Loopback, replies_json
from tests.proxy_process import PATIENT, start_proxy

pytestmark = pytest.mark.rest  # each test starts processes, or waits for real time


AGENT = """
import json, os, signal, sys, urllib.request

def ask(messages):
    body = {"model": "small", "max_tokens": 50, "messages": messages}
    headers = {"content-type": "application/json", "x-api-key": "sk-test", "user-agent": "claude-cli/2"}
    url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
    urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)).read()
"""
REPLY = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "small",
    "content": [{"type": "text", "text": "Hello."}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 9, "output_tokens": 2},
}
CONFIG = f"""
{PATIENT}
summaries: {{writer: extractive}}
model_list:
  - model_name: small
    litellm_params: {{model: anthropic/claude-test, api_base: "http://127.0.0.1:PORT"}}
    model_info: {{max_input_tokens: 4000, max_output_tokens: 1000}}
"""
LONG = """
text = "The ledger {} of contoso has many entries, and each of them has a number. " * 8
messages = [{"role": ("user", "assistant")[i % 2], "content": text.replace("{}", str(i))} for i in range(21)]
ask(messages)
"""


@dataclass
class Place:
    """A home with a config, the command `claude`, and a provider."""

    home: Path
    provider: Loopback

    def write(self, script: str, name: str = "claude") -> None:
        """Makes the command `claude`, or another one."""
        program = self.home / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!{sys.executable}\n{AGENT}\n{script}\n")
        program.chmod(0o755)

    def start(self, *words: str, tty: int | None = None, **environ: str) -> subprocess.Popen[str]:
        """Starts `accordion run`. `tty`: its terminal."""
        environ = {
            "PATH": f"{self.home}/bin:{os.environ['PATH']}",
            "HOME": str(self.home),
            "ACCORDION_STORE": f"sqlite:///{self.home}/kept.db",
            "ACCORDION_ANTHROPIC_BASE_URL": self.provider.url,
            # Nothing listens there: a proxy that somebody runs on this machine is not joined.
            "ACCORDION_PORT": "1",
            **environ,
        }
        command = [sys.executable, "-m", "accordion", "run", *words]
        pipe = subprocess.PIPE
        streams = (
            {"stdin": pipe, "stdout": pipe, "stderr": pipe}
            if tty is None
            else dict.fromkeys(("stdin", "stdout", "stderr"), tty)
        )
        project = self.home / "project"
        project.mkdir(exist_ok=True)
        return subprocess.Popen(command, cwd=project, env=environ, text=True, start_new_session=tty is None, **streams)  # type: ignore[call-overload]

    async def run(self, *words: str, stdin: str = "", **environ: str) -> tuple[int, str, str]:
        """Runs `accordion run` to its end: the exit code, what the command printed, and what Accordion did."""
        process = self.start(*words, **environ)
        out, err = await asyncio.to_thread(process.communicate, stdin, 280)
        return process.returncode, out, err


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with Loopback(replies_json(REPLY)) as provider:
        config = tmp_path / ".config/accordion/config.yaml"
        config.parent.mkdir(parents=True)
        config.write_text(CONFIG.replace("PORT", provider.url.rpartition(":")[2]))
        yield Place(tmp_path, provider)


async def test_arguments_input_and_exit_code_are_passed_on(place: Place) -> None:
    place.write("print(sys.argv[1:], sys.stdin.read(), os.getcwd()); sys.exit(7)")
    code, out, err = await place.run("claude", "-p", "--config", "x y", "--", "z", stdin="typed")
    assert (code, out) == (7, f"['-p', '--config', 'x y', '--', 'z'] typed {place.home}/project\n")
    assert err.splitlines()[-1].startswith("Accordion: no request came from this command")


async def test_three_lines_at_the_end_say_what_happened(place: Place) -> None:
    place.write(LONG)
    before = {file for file in place.home.rglob("*") if ".local" not in file.parts}
    code, out, err = await place.run("claude")
    first, lost, happened, saved, look = err.splitlines()
    assert "Remote Control" in lost
    assert (code, out) == (0, "")
    assert re.fullmatch(
        r"Accordion listens on http://127\.0\.0\.1:\d+ for Claude Code, and ends with it; log: .*", first
    )
    assert happened == "Accordion: 1 request in 1 session; 1 new compaction."
    assert re.fullmatch(r"[\d,]+ tokens saved net: [\d,]+ removed by compaction, 0 used for summaries .*", saved)
    session, log = re.fullmatch(r"Look: .*accordion artifacts --session (s-\w+); log (.*)", look).groups()  # type: ignore[union-attr]
    assert f"compacted session {session}" in read(log)
    assert len(place.provider.requests[0].body) < 8_000
    after = {file for file in place.home.rglob("*") if ".local" not in file.parts and "kept.db" not in file.name}
    assert after == before | {place.home / "project"}
    assert await is_closed(first)


def read(file: str) -> str:
    return Path(file).read_text()


async def is_closed(line: str) -> bool:
    """Whether nothing listens any more at the address of the first line."""
    port = int(re.search(r":(\d+) for", line)[1])  # type: ignore[index]
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return True
    writer.close()
    return False


async def test_observe_changes_nothing_and_reports(place: Place) -> None:
    place.write(LONG + "ask(messages[:1])")
    code, _, err = await place.run("--observe", "claude")
    _, _, happened, due, look = err.splitlines()
    assert code == 0
    assert happened == "Accordion observed 2 requests in 2 sessions, and changed nothing."
    assert re.fullmatch(
        r"1 request would have been compacted, the largest from [\d,]+ to [\d,]+ tokens \(small\)\.", due
    )
    assert look.startswith("Look: log ")
    sent = json.loads(place.provider.requests[0].body)
    assert len(sent["messages"]) == 21


async def test_a_proxy_that_runs_is_joined_and_lives_on(place: Place) -> None:
    place.write("ask([{'role': 'user', 'content': 'Hello.'}])")
    folder, provider_port = place.home / "running", int(place.provider.url.rpartition(":")[2])
    folder.mkdir()
    config = CONFIG.replace("PORT", str(provider_port))
    with start_proxy(folder, config, upstream_port=provider_port) as proxy:
        port = proxy.port
        code, _, err = await place.run("claude", ACCORDION_PORT=str(port))
        first, _, happened, full, look = err.splitlines()
        assert (code, first) == (0, f"Accordion: Claude Code uses the proxy that runs at http://127.0.0.1:{port}")
        assert happened == "Accordion: 1 request in 1 session; 0 new compactions."
        assert re.fullmatch(r"Nothing to save yet: small's window of 4,000 tokens is \d+% full\.", full)
        assert look.startswith(f"Look: http://127.0.0.1:{port}/accordion/sessions/s-")
        # The agent may name it by itself, too; and it may be on a port that the user names.
        _, _, err = await place.run("claude", ANTHROPIC_BASE_URL=f"http://127.0.0.1:{port}")
        assert "uses the proxy that runs" in err
        _, _, err = await place.run("--port", str(port), "claude")
        assert "uses the proxy that runs" in err
        for options, reason in ((["--observe"], "it compacts, and --observe must not"), ([], "requests belong to")):
            _, _, err = await place.run(
                *options, "claude", ACCORDION_PORT=str(port), ANTHROPIC_BASE_URL="" if options else place.provider.url
            )
            assert reason in err
            assert "Accordion listens on" in err


async def test_a_port_of_another_program_is_named(place: Place) -> None:
    place.write("")
    port = place.provider.url.rpartition(":")[2]
    code, _, err = await place.run("--port", port, "claude")
    assert (code, err) == (
        2,
        f"accordion run: port {port} belongs to another program. Choose another --port, or leave it "
        "out for a free one.\n",
    )
    code, _, err = await place.run("claude", ACCORDION_PORT=port)
    assert code == 0
    assert "Accordion listens on" in err


async def test_an_agent_that_is_not_installed_is_named(place: Place) -> None:
    code, _, err = await place.run("codex", PATH=str(place.home))
    assert (code, err.count("\n")) == (127, 1)
    assert "codex is not installed, or its folder is not in PATH; install it: npm install -g @openai/codex" in err
    code, _, err = await place.run("cladue")
    assert (code, "known agents: claude, codex, opencode" in err) == (127, True)
    (place.home / "text").write_text("")
    code, _, err = await place.run(str(place.home / "text"))
    assert (code, "is no program that can be run" in err) == (126, True)


async def test_a_config_of_the_project_is_not_read(place: Place) -> None:
    place.write("ask([{'role': 'user', 'content': 'Hello.'}])")
    (place.home / "project").mkdir()
    (place.home / "project/config.yaml").write_text(
        "upstreams: {anthropic: {base_url: 'http://127.0.0.1:9'}}\nmine: 1\n"
    )
    code, _, err = await place.run("claude")
    assert (code, "1 request in 1 session" in err) == (0, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
async def test_signals_reach_the_command_and_its_end_is_reported(place: Place, number: signal.Signals) -> None:
    place.write(f"signal.signal({int(number)}, signal.SIG_DFL); print('ready', flush=True); signal.pause()")
    process = place.start("claude")
    assert process.stdout is not None
    assert await asyncio.to_thread(process.stdout.readline) == "ready\n"
    process.send_signal(number)
    _, err = await asyncio.to_thread(process.communicate, timeout=200)
    assert process.returncode == 128 + number
    assert await is_closed(err.splitlines()[0])


async def test_a_key_of_the_terminal_reaches_the_command_once(place: Place) -> None:
    script = """
    count = [0]
    def note(*_): count[0] += 1
    signal.signal(signal.SIGINT, note)
    print("ready", os.isatty(0), os.isatty(1), flush=True)
    import time
    # No `signal.pause`: the signal may come before it.
    while not count[0]: time.sleep(0.05)
    time.sleep(1)
    print("signals", count[0], flush=True)
    """
    place.write("\n".join(line.strip() for line in script.splitlines()).replace("count[0] += 1", "count[0] += 1"))
    master, slave = pty.openpty()
    environ = {
        "PATH": f"{place.home}/bin:{os.environ['PATH']}", "HOME": str(place.home),
        "ACCORDION_STORE": f"sqlite:///{place.home}/kept.db",
    }  # fmt: skip
    pid = os.fork()
    if pid == 0:
        os.login_tty(slave)
        os.execve(sys.executable, [sys.executable, "-m", "accordion", "run", "claude"], environ)
    os.close(slave)
    shown = await asyncio.to_thread(read_until, master, "ready True True")
    os.write(master, b"\x03")
    shown += await asyncio.to_thread(read_until, master, "no request came")
    assert "signals 1" in shown
    assert os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, pid, 0))[1]) == 0
    os.close(master)


def read_until(terminal: int, words: str) -> str:
    """Reads a terminal until these words come."""
    shown, deadline = "", time.monotonic() + 200
    while words not in shown:
        assert time.monotonic() < deadline, shown
        shown += os.read(terminal, 4_096).decode(errors="replace")
    return shown


async def test_the_proxy_ends_with_a_run_that_is_killed(place: Place) -> None:
    place.write("print('ready', flush=True); import time; time.sleep(20)")
    process = place.start("claude")
    assert process.stdout is not None
    assert process.stderr is not None
    first = await asyncio.to_thread(process.stderr.readline)
    assert await asyncio.to_thread(process.stdout.readline) == "ready\n"
    process.kill()
    for _ in range(1_000):
        if await is_closed(first):
            break
        await asyncio.sleep(0.1)
    assert await is_closed(first)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
