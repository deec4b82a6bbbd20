"""Session files that the real clients write are read as the requests that they sent, and replayed."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import replies
from client_link import PROXY_PYTHON, ROOT, ClientLink, run
from test_agent_clis import Start, claude_code, codex, node, opencode_openai
from test_compaction_agent_clis import FILES, ReadingModel, notes, settings
from upstream import Upstream

__all__ = ["node"]

AGENTS: list[tuple[str, Start, int]] = [
    ("claude", claude_code, 60_000),
    ("codex", codex, 20_000),
    ("opencode", opencode_openai, 20_000),
]
"""The option that finds the sessions, the client, and a window that its session outgrows."""


def accordion(home: Path, *words: str) -> list[dict[str, Any]]:
    """Runs a command of ours in a home folder: the JSON that it printed."""
    done = subprocess.run(
        [str(PROXY_PYTHON), "-m", "accordion", *words, "--json", "--config", "settings.json"],
        cwd=home,
        env={"HOME": str(home), "PYTHONPATH": str(ROOT / "proxy"), "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def results_of_the_last(home: Path, option: str) -> list[str]:
    """The results of tools in the last request that the session file stands for."""
    code = (
        "import os, sys; from accordion.features.offline.transcripts import find_sources; "
        f"items = [item for source in find_sources([], [{option!r}], os.environ) for item in source]; "
        "sys.stdout.buffer.write(list(items[-1].requests())[-1].body)"
    )
    environ = {"HOME": str(home), "PYTHONPATH": str(ROOT / "proxy")}
    done = subprocess.run([str(PROXY_PYTHON), "-c", code], env=environ, capture_output=True, timeout=60, check=True)
    return replies.results_in(json.loads(done.stdout))


NAMES = {"claude": "Claude Code", "codex": "Codex", "opencode": "OpenCode"}


@pytest.mark.parametrize(("option", "start", "window"), AGENTS, ids=[option for option, *_ in AGENTS])
def test_what_a_client_wrote_is_replayed(
    option: str, start: Start, window: int, upstream: Upstream, tmp_path: Path
) -> None:
    for number in range(FILES):
        (tmp_path / f"notes{number}.txt").write_text(notes(number))
    upstream.reset()
    recorder = upstream.record_connections(upstream.port)
    link = ClientLink("direct", upstream, recorder)
    command, environment, call = start(link, tmp_path)
    upstream.rule = reading = ReadingModel(call, [])
    printed = run(command, link, environment, tmp_path)
    upstream.call(recorder.stop())
    assert "swordfish" in printed
    (tmp_path / "settings.json").write_text(settings(window, upstream.port))

    # The file has what was sent, but for system prompt, tools, and reminders such as those behind a result.
    sent = replies.results_in(replies.body_of(reading.asked[-1]))
    recorded = results_of_the_last(tmp_path, NAMES[option])
    assert len(recorded) == len(sent) == FILES
    assert all(whole.startswith(result.rstrip()) for whole, result in zip(sent, recorded, strict=True))
    (found,) = accordion(tmp_path, "savings", f"--{option}")
    (session,) = found["sessions"]
    reported = sum(len(request.body) // 4 for request in reading.asked)
    assert session["requests"] == FILES + 1
    assert session["tokens"]["without_accordion"]["input"] == reported
    assert session["basis"]["without_accordion"] == "reported"
    assert session["compactions"] > 0
    assert session["tokens"]["sent"]["input"] < reported

    *rows, last = accordion(tmp_path, "replay", f"--{option}", "--compact")
    assert last["totals"]["broken"] == []
    for row, request in zip(rows, reading.asked, strict=True):
        assert row["before"]["tokens"] == pytest.approx(len(request.body) // 4, rel=0.1)
