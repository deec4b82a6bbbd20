"""`accordion run` with the real agents: their requests are compacted, their files stay."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import replies
from client_link import PROXY_PYTHON, ROOT
from node_clients import program
from replies import Call, tool_names
from test_agent_clis import QUESTION, node
from test_compaction_agent_clis import FILES, ReadingModel, notes, settings
from upstream import Upstream

__all__ = ["node"]

OFF = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    **{f"OPENCODE_DISABLE_{name}": "1" for name in ("AUTOUPDATE", "LSP_DOWNLOAD", "MODELS_FETCH", "DEFAULT_PLUGINS")},
}
PROGRAMS = {
    "claude": "@anthropic-ai/claude-code-*/claude",
    "codex": "@openai/codex/bin/codex.js",
    "opencode": "opencode-linux-*/bin/opencode",
    "gemini": "@google/gemini-cli/bundle/gemini.js",
    "pi": "@mariozechner/pi-coding-agent/dist/cli.js",
    "qwen": "@qwen-code/qwen-code/cli-entry.js",
}
CONFIGS = {
    "claude": (".claude/settings.json", '{"env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1:PORT"}}\n'),
    "codex": (
        ".codex/config.toml",
        'approval_policy = "never"\nsandbox_mode = "danger-full-access"\n[analytics]\nenabled = false\n',
    ),
    # OpenCode adds the schema by itself where it is missing.
    "opencode": (
        "opencode.json",
        '{"$schema": "https://opencode.ai/config.json", "autoupdate": false, "share": "disabled"}\n',
    ),
    "gemini": (
        ".gemini/settings.json",
        '{"security": {"auth": {"selectedType": "gemini-api-key"}}, "general": {"enableAutoUpdate": false}, '
        '"privacy": {"usageStatisticsEnabled": false}}\n',
    ),
}
WORDS = {
    "claude": ["-p", QUESTION, "--model", "claude-sonnet-4-5", "--allowedTools", "Read"],
    "codex": ["exec", "--skip-git-repo-check", "--json", "--model", "gpt-test", QUESTION],
    "opencode": ["run", "--model", "anthropic/claude-sonnet-4-5", QUESTION],
    "gemini": ["-p", QUESTION, "--model", "gemini-2.5-pro", "--approval-mode", "yolo"],
}
WINDOWS = {"claude": 38_000, "codex": 20_000, "opencode": 15_000, "gemini": 30_000}


def call(agent: str, home: Path) -> Call:
    """The tool by which the agent reads notes.txt."""
    file = str(home / "notes.txt")
    return {
        "claude": Call("Read", {"file_path": file}),
        "codex": Call("exec_command", {"cmd": "cat notes.txt"}),
        "opencode": Call("read", {"filePath": file}),
        "gemini": Call("read_file", {"file_path": "notes.txt"}),
    }[agent]


def run(agent: str, home: Path, port: int, *options: str) -> tuple[str, list[str]]:
    """Runs the agent through `accordion run`: what it printed, and what Accordion said."""
    folder = home / "bin"
    folder.mkdir(exist_ok=True)
    (folder / agent).write_text(f'#!/bin/sh\nexec {shlex.join(program(PROGRAMS[agent]))} "$@"\n')
    (folder / agent).chmod(0o755)
    environ = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        # Nothing listens there: a proxy that somebody runs on this machine is not joined.
        "ACCORDION_PORT": "1",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "NO_COLOR": "1",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "NO_PROXY": "127.0.0.1",
        "ANTHROPIC_API_KEY": "sk-test-not-a-key",
        "CODEX_API_KEY": "sk-test-not-a-key",
        "GEMINI_API_KEY": "sk-test-not-a-key",
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
        "PYTHONPATH": str(ROOT / "proxy"),
        "ACCORDION_STORE": f"sqlite:///{home}/kept.db",
        "ACCORDION_OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1",
        "ACCORDION_ANTHROPIC_BASE_URL": f"http://127.0.0.1:{port}",
        "ACCORDION_GEMINI_BASE_URL": f"http://127.0.0.1:{port}",
        **OFF,
    }
    command = [str(PROXY_PYTHON), "-m", "accordion", "run", *options, agent, *WORDS[agent]]
    done = subprocess.run(
        command,
        cwd=home,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout, [line for line in done.stderr.splitlines() if "ccordion" in line or "tokens" in line]


def prepare(agent: str, upstream: Upstream, home: Path) -> tuple[ReadingModel, str]:
    """Writes the files that the agent reads, its own settings and Accordion's; returns the rule and its settings."""
    upstream.reset()
    for number in range(FILES):
        (home / f"notes{number}.txt").write_text(notes(number))
    config = home / ".config/accordion/config.yaml"
    config.parent.mkdir(parents=True)
    config.write_text(settings(WINDOWS[agent], upstream.port))
    file, text = CONFIGS[agent]
    text = text.replace("PORT", str(upstream.port))
    (home / file).parent.mkdir(exist_ok=True)
    (home / file).write_text(text)
    upstream.rule = reading = ReadingModel(call(agent, home), [])
    return reading, text


@pytest.mark.parametrize("agent", list(WORDS))
def test_an_agent_works_on_over_compactions_and_is_told_of_them(agent: str, upstream: Upstream, tmp_path: Path) -> None:
    reading, text = prepare(agent, upstream, tmp_path)
    printed, said = run(agent, tmp_path, upstream.port)
    assert "swordfish" in printed
    assert len(reading.asked) == FILES + 1
    assert said[0].startswith("Accordion listens on http://127.0.0.1:")
    happened, saved, look = said[-3:]
    assert int(re.search(r"; (\d+) new compactions?\.$", happened)[1]) > 0  # type: ignore[index]
    assert re.match(r"[\d,]+ tokens saved net", saved)
    assert "accordion artifacts --session s-" in look
    # The agent's own settings are as they were. Its models are configured, so that no socket to a provider is opened.
    assert (tmp_path / CONFIGS[agent][0]).read_text() == text
    assert not any(seen.request.is_upgrade for seen in upstream.received)


@pytest.mark.parametrize("agent", list(WORDS))
def test_observing_an_agent_changes_no_byte(agent: str, upstream: Upstream, tmp_path: Path) -> None:
    reading, _ = prepare(agent, upstream, tmp_path)
    printed, said = run(agent, tmp_path, upstream.port, "--observe")
    assert "swordfish" in printed
    assert re.match(r"Accordion observed \d+ requests in \d+ sessions?, and changed nothing\.", said[-3])
    assert "would have been compacted, the largest from" in said[-2]
    bodies = [replies.body_of(seen.request) for seen in upstream.received if seen.request.method == "POST"]
    assert sum(reading.call.name in tool_names(body) for body in bodies) == FILES + 1
    assert b"read_artifact" not in b"".join(seen.request.body for seen in upstream.received)
