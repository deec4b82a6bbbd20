"""`accordion savings` and `accordion replay` over the session files of a coding agent."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from accordion.cli.main import app
from tests.features.offline.session_samples import ClaudeSession, long_session, report, result, text, words_of_file
from tests.features.offline.session_samples import call as tool_call

PRICES = """
prices:
  models:
    claude-sonnet-4-5: {input: 3, cached_input: 0.3, cache_write: 3.75, output: 15}
"""
MILLION = 1_000_000


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder with the sessions of Claude Code, and a config with a small window and known prices."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    write_config(tmp_path)
    return tmp_path


def write_config(home: Path, window: int = 100_000, writer: str = "extractive") -> None:
    model = {"model_name": "claude-sonnet-4-5", "litellm_params": {"model": "anthropic/claude-sonnet-4-5"}}
    model["model_info"] = {"max_input_tokens": window}  # type: ignore[assignment]
    (home / "config.yaml").write_text(f"model_list: [{json.dumps(model)}]\nsummaries: {{writer: {writer}}}\n{PRICES}")


def projects(home: Path) -> Path:
    return home / ".claude/projects/-work"


def run(home: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--config", str(home / "config.yaml")])


def savings(home: Path, *arguments: str) -> dict[str, Any]:
    outcome = run(home, "savings", *(arguments or ("--claude",)), "--json")
    assert outcome.exit_code == 0, outcome.output
    return json.loads(outcome.stdout)  # type: ignore[no-any-return]


def short_session() -> ClaudeSession:
    """A session that is compacted after a few requests."""
    return long_session(requests=12, preamble=32_000)


def test_a_config_of_the_current_folder_is_not_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "work").mkdir()
    (home / "work" / "config.yaml").write_text("compaction: {no_such_key: 1}")
    monkeypatch.chdir(home / "work")
    session = ClaudeSession()
    session.say("hello")
    session.answer("m1", text("hi"), usage=report(10_000, cached=4_000, written=5_000))
    session.write(projects(home))
    outcome = CliRunner().invoke(app, ["savings", "--claude"])
    assert outcome.exit_code == 0, outcome.output


def test_the_cost_of_sent_requests_is_that_of_the_reported_usage(home: Path) -> None:
    session = ClaudeSession()
    session.say("hello")
    session.answer("m1", text("hi"), usage=report(10_000, cached=4_000, written=5_000))
    session.write(projects(home))
    total = savings(home)["total"]
    assert total["dollars"]["without_accordion"] == pytest.approx(
        (1_000 * 3 + 4_000 * 0.3 + 5_000 * 3.75 + 7 * 15) / MILLION
    )
    assert total["dollars"]["net"] == 0.0
    assert total["basis"] == {"sent": "reported", "without_accordion": "reported"}
    assert total["tokens"]["sent"] == total["tokens"]["without_accordion"] | {"cache_write": 5_000}


def test_a_session_that_outgrows_its_window_would_have_been_compacted(home: Path) -> None:
    session = long_session()
    session.write(projects(home))
    found = savings(home)
    (entry,) = found["sessions"]
    prompts = [15_000 + 1_100 * number for number in range(1, 41)]
    assert entry["tokens"]["without_accordion"]["input"] == sum(prompts)
    assert entry["compactions"] > 0
    assert entry["tokens"]["sent"]["input"] < sum(prompts) * 0.9
    dollars = entry["dollars"]
    assert dollars["net"] == pytest.approx(dollars["without_accordion"] - dollars["spent"])
    assert dollars["saved"] - dollars["own_cost"] == pytest.approx(dollars["net"])
    # All but the new part of each prompt was a cache read, so the prefix that a compaction breaks costs something.
    assert dollars["own_costs"]["prefix"] > 0
    assert entry["basis"] == {"sent": "both", "without_accordion": "reported"}
    assert (entry["session"], entry["models"], entry["requests"]) == ("s-long", ["claude-sonnet-4-5"], 40)
    assert found["total"]["dollars"] == dollars


@pytest.mark.parametrize(
    ("written", "pause", "is_cheaper"),
    [({}, 290, False), ({}, 310, True), ({"ephemeral_1h_input_tokens": 1}, 310, False)],
)
def test_a_compaction_after_a_pause_costs_less(home: Path, written: Any, pause: int, is_cheaper: bool) -> None:
    session, at = ClaudeSession(), 15_000
    for number in range(22):
        session.second += pause if number == 21 else 0
        cached = at - 1_100 if number != 21 or pause < 300 or written else 0
        at += 1_100
        usage = report(at, cached, at - cached) | {"cache_creation": written}
        session.say(f"Read file {number}, please. {words_of_file(number)}")
        session.answer(f"m{number}", text("I read it."), usage=usage)
    session.write(projects(home))
    with_pauses = savings(home)["total"]
    config = (home / "config.yaml").read_text()
    (home / "config.yaml").write_text(f"{config}thresholds: {{cold_cache: 0}}\n")
    without = savings(home)["total"]
    assert (with_pauses["compactions"], without["compactions"]) == (int(is_cheaper), 0)
    assert (with_pauses["dollars"]["spent"] < without["dollars"]["spent"]) == is_cheaper


def test_the_size_of_the_system_prompt_decides_when_it_is_compacted(home: Path) -> None:
    long_session("s-small", requests=12, preamble=0).write(projects(home))
    long_session("s-large", requests=12, preamble=32_000).write(projects(home))
    small, large = sorted(savings(home)["sessions"], key=lambda entry: entry["compactions"])
    assert (small["session"], small["compactions"]) == ("s-small", 0)
    assert (large["session"], large["compactions"] > 0) == ("s-large", True)


def test_a_summary_that_a_model_would_write_has_its_price(home: Path) -> None:
    short_session().write(projects(home))
    extractive = savings(home)["total"]
    write_config(home, writer="request")
    by_model = savings(home)["total"]
    assert extractive["dollars"]["own_costs"]["summaries"] == 0
    summaries = by_model["tokens"]["summaries"]
    assert by_model["dollars"]["own_costs"]["summaries"] == pytest.approx(
        (summaries["input"] * 3 + summaries["output"] * 15) / MILLION
    )
    assert summaries["output"] > 0
    assert by_model["dollars"]["net"] == pytest.approx(
        extractive["dollars"]["net"] - by_model["dollars"]["own_costs"]["summaries"]
    )


def test_a_clients_own_compaction_counts_as_no_saving(home: Path) -> None:
    session = ClaudeSession()
    session.say("work " * 3_000)
    session.answer("m1", text("done"), usage=report(18_000))
    session.compact("a summary")
    session.answer("m2", text("yes"), usage=report(12_000))
    session.write(projects(home))
    (entry,) = savings(home)["sessions"]
    assert (entry["conversations"], entry["compactions"], entry["dollars"]["net"]) == (2, 0, 0.0)


def test_a_model_of_unknown_price_has_tokens_only(home: Path) -> None:
    session = short_session()
    for line in session.lines:
        if line["type"] == "assistant":
            line["message"]["model"] = "claude-of-tomorrow"
    session.write(projects(home))
    total = savings(home)["total"]
    assert (total["dollars"], total["requests_unpriced"]) == (None, 12)
    assert "unknown" in run(home, "savings", "--claude").stdout


def test_the_table_has_a_line_for_each_session_and_says_what_is_an_estimate(home: Path) -> None:
    short_session().write(projects(home))
    other = ClaudeSession("s-short")
    other.say("hello")
    other.answer("m9", text("hi"), usage=report(1_000))
    other.write(projects(home))
    printed = run(home, "savings", "--claude").stdout
    total = savings(home)["total"]
    assert re.search(r"^s-long +2026-11-26 00:00 +claude-sonnet-4-5 +12 ", printed, re.MULTILINE)
    assert re.search(r"^s-short .* 1,000 +1,000 +\$0\.0031 +\$0\.0031 +\$0\.00$", printed, re.MULTILINE)
    assert "2 sessions, 13 requests" in printed
    assert f"with Accordion     ~{total['tokens']['sent']['input']:,} tokens" in printed
    assert f"cost               ${total['dollars']['without_accordion']:,.2f}\n" in printed
    assert "System prompt and tools are not in session files" in printed


def test_a_broken_line_is_named_and_the_other_sessions_count(home: Path) -> None:
    long_session(requests=3).write(projects(home))
    broken = projects(home) / "broken.jsonl"
    broken.write_text('{"type": "user", "sessionId": "s", "version": "9.0"}\n')
    outcome = run(home, "savings", "--claude", "--json")
    assert outcome.exit_code == 1
    assert f"{broken}:1: no line of Claude Code that is known here" in outcome.stderr.replace("\n", "")
    assert json.loads(outcome.stdout)["total"]["requests"] == 3


def test_an_agent_without_sessions_is_named(home: Path) -> None:
    for command in ("savings", "replay"):
        outcome = run(home, command, "--claude")
        assert outcome.exit_code == 1
        assert outcome.stderr == f"there is no session file of Claude Code in {home}/.claude/projects\n"


def test_a_file_alone_is_read_by_its_content(home: Path) -> None:
    file = long_session(requests=3).write(home)
    assert savings(home, str(file))["total"]["requests"] == 3
    transcript = home / "chat.jsonl"
    transcript.write_text('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}')
    total = savings(home, str(transcript))["total"]
    assert (total["requests"], total["basis"]["without_accordion"]) == (1, "estimate")


def test_files_without_a_request_say_so(home: Path) -> None:
    ClaudeSession().write(projects(home))
    assert run(home, "savings", "--claude").stdout == "there is no request in these files\n"


def test_replay_shows_the_requests_of_a_session(home: Path) -> None:
    long_session().write(projects(home))
    *rows, last = map(json.loads, run(home, "replay", "--claude", "--compact", "--json").stdout.splitlines())
    assert len(rows) == 40
    assert {row["model"] for row in rows} == {"claude-sonnet-4-5"}
    assert rows[0]["before"]["tokens"] == pytest.approx(16_100, abs=400)
    assert rows[-1]["before"]["tokens"] == pytest.approx(15_000 + 1_100 * 40, rel=0.1)
    assert last["totals"]["broken"] == []
    assert max(row["after"]["tokens"] for row in rows) < 100_000


def test_a_user_who_goes_back_breaks_no_prefix(home: Path) -> None:
    session = ClaudeSession()
    session.say("one")
    fork = session.answer("m1", tool_call("c1"))
    session.say([result("c1", "first")])
    session.answer("m2", text("2"))
    session.say([result("c1", "again")], parent=fork)
    session.answer("m3", text("3"))
    session.write(projects(home))
    *_, last = map(json.loads, run(home, "replay", "--claude", "--compact", "--json").stdout.splitlines())
    assert last["totals"]["broken"] == []


def test_replay_without_a_file_and_without_an_agent_says_what_is_missing(home: Path) -> None:
    outcome = run(home, "replay")
    assert outcome.exit_code == 2
    assert "name a FILE" in outcome.stderr


def test_old_codex_sessions_and_transcripts_of_each_protocol_are_counted(home: Path) -> None:
    words = [{"type": "input_text", "text": "work " * 50}]
    item = {"type": "message", "role": "user", "content": words}
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]}
    meta = {"id": "t-0", "timestamp": "2025-08-18T01:16:13.522Z", "instructions": None}
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    lines = {
        "rollout-old.jsonl": [meta, item, answer],
        "responses.jsonl": [{"input": [item, answer], "model": "gpt-5"}],
        "messages.jsonl": [{"system": "s", "messages": messages}],
    }
    for name, values in lines.items():
        (home / name).write_text("".join(json.dumps(value) + "\n" for value in values))
        total = savings(home, str(home / name))["total"]
        assert (total["requests"], total["basis"]["without_accordion"]) == (1, "estimate"), name
        assert total["tokens"]["without_accordion"]["input"] > 0, name
        assert run(home, "replay", str(home / name), "--compact").exit_code == 0
