import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from accordion.cli.main import app
from tests.recordings import RECORDINGS

ROOT = Path(__file__).parents[3]
OWN = "examples/transcript.jsonl"
SMALL = ("service_tau.jsonl.gz", "research_deerflow.jsonl.gz")
ROW = re.compile(r"^ +(\d+) +\d+ +[\d,]+ +[\d,]+ +[+-][\d,]+ +[\d.]+% (turn start|generation) ", re.MULTILINE)


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for name in [name for name in os.environ if name.startswith(("ACCORDION_", "OTEL_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "100")


def replay(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, ["replay", *arguments], input=stdin)


@cache
def small_window(*arguments: str) -> Result:
    """The replay of the shipped conversation in a window that is too small for it."""
    return replay(OWN, "--window", "32000", *arguments)


def objects(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def requests_of(file: Path | str) -> int:
    messages = json.loads(Path(file).read_text())["messages"]
    return sum(message["role"] == "assistant" for message in messages)


def test_a_long_conversation_is_condensed_and_all_shows_every_request() -> None:
    condensed, whole = small_window(), small_window("--all")
    assert condensed.exit_code == whole.exit_code == 0
    count = requests_of(OWN)
    assert [int(number) for number, _ in ROW.findall(whole.stdout)] == list(range(1, count + 1))
    numbers = [int(number) for number, _ in ROW.findall(condensed.stdout)]
    assert len(numbers) == 20
    assert (numbers[0], numbers[-1]) == (1, count)
    assert f"20 of {count} requests" in condensed.stdout


def test_a_plot_has_a_line_at_each_limit_and_bars_up_to_the_peak() -> None:
    out = small_window().stdout
    for label, name in (("50%", "conversation trigger"), ("75%", "generation trigger"), ("85%", "hard limit")):
        (line,) = [line for line in out.splitlines() if "┄" in line and line.rstrip().endswith(name)]
        assert line.strip().startswith(label)
        assert re.search("[▁▂▃▄▅▆▇█]", line)
    assert all(len(line) <= 100 for line in out.splitlines())


def test_the_summary_agrees_with_the_requests() -> None:
    rows = objects(small_window("--json"))
    said = " ".join(small_window().stdout.split())
    peak = max(rows, key=lambda row: row["utilization"])
    total = sum(row["tokens"] for row in rows)
    assert f"Peak {peak['utilization']:.1%} at request {peak['request']} ({peak['tokens']:,} tokens)" in said
    for name, key in (
        ("conversation trigger", "conversation"),
        ("generation trigger", "generation"),
        ("hard limit", "hard"),
    ):
        over = sum(row["tokens"] >= row["limits"][key] for row in rows)
        assert re.search(rf"{name} \(\d+%\): {over}\b", said)
    share = sum(row["tokens"] * row["unchanged_prefix"] for row in rows) / total
    assert f"Total input: {total:,} tokens; {share:.1%} of them repeat the beginning" in said


def test_json_is_one_object_a_request_and_nothing_else() -> None:
    result = small_window("--json")
    rows = objects(result)
    assert len(rows) == requests_of(OWN)
    for number, row in enumerate(rows, 1):
        assert (row["file"], row["line"], row["request"]) == (OWN, 1, number)
        assert row["window"] == {"size": 32_000, "usable_input": 32_000, "source": "config"}
        assert row["limits"] == {"conversation": 16_000, "generation": 24_000, "hard": 27_200}
        assert sum(row["parts"].values()) == row["tokens"]
        assert row["utilization"] == pytest.approx(row["tokens"] / 32_000, abs=1e-6)
        assert row["kind"] in ("turn_start", "mid_generation")
        # What would be done; nothing is.
        near = row["decision"]["reason"].partition(" trigger")[0]
        assert row["decision"]["action"] == {"under": "pass", "near": "prepare", "over": "compact"}[_side(near)]
        assert "reported" not in row
    assert {row["session"] for row in rows} == {rows[0]["session"]}


def _side(reason: str) -> str:
    """On which side of its limit a request is, in the reason's own word."""
    (found,) = set(re.findall(r"\b(under|near|over)\b", reason))
    return str(found)


def test_usage_is_compared_only_where_asked_and_correction_helps() -> None:
    rows = objects(replay(OWN, "--json", "--against-usage"))
    reported = [usage["prompt_tokens"] for usage in json.loads(Path(OWN).read_text())["usage"]]
    assert [row["reported"] for row in rows] == reported
    table = replay(OWN, "--against-usage").stdout
    medians = [float(found) for found in re.findall(r"(?:plain count|corrected) +\d+ +([\d.]+)%", table)]
    assert len(medians) == 2
    assert medians[1] < medians[0] / 5
    assert "Error of the estimate" not in replay(OWN).stdout


def test_a_transcript_without_usage_says_that_there_is_nothing_to_compare(tmp_path: Path) -> None:
    file = tmp_path / "plain.jsonl"
    file.write_text('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}')
    assert "No usage is recorded" in replay(str(file), "--against-usage").stdout


@pytest.mark.parametrize("options", [(), ("--compact",), ("--against-usage",)])
def test_a_transcript_without_a_reply_has_no_requests_and_stops_nothing(tmp_path: Path, options: tuple[str]) -> None:
    file = tmp_path / "asked.jsonl"
    file.write_text('{"messages": [{"role": "user", "content": "a"}]}\n{"messages": []}\n')
    result = replay(str(file), OWN, *options)
    assert result.exit_code == 0
    assert "3 in total" in result.stdout


def test_model_and_limit_and_the_standard_input() -> None:
    twice = Path(OWN).read_text() * 2
    rows = objects(replay("-", "--json", "--model", "gpt-4o", "--limit", "1", stdin=twice))
    assert len(rows) == requests_of(OWN)
    assert {(row["model"], row["window"]["size"], row["file"]) for row in rows} == {("gpt-4o", 128_000, "-")}


def test_several_conversations_are_summed_up_at_the_end() -> None:
    result = replay("-", stdin=Path(OWN).read_text() * 2)
    count = requests_of(OWN)
    assert re.search(rf"2 in total +{2 * count} ", result.stdout)


def test_unreadable_lines_are_named_the_others_shown_and_the_exit_code_is_1(tmp_path: Path) -> None:
    file = tmp_path / "mixed.jsonl"
    good = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}'
    file.write_text(f"{good}\nnonsense\n{good}\n")
    result = replay(str(file), str(tmp_path / "none.jsonl"), "--json")
    assert result.exit_code == 1
    assert [row["line"] for row in objects(result)] == [1, 3]
    assert f"{file}:2: " in result.stderr
    assert "none.jsonl: No such file" in result.stderr


@pytest.mark.parametrize("more", [(), ("--json",), ("--compact",)])
def test_where_there_is_no_conversation_that_is_said(tmp_path: Path, more: tuple[str, ...]) -> None:
    file = tmp_path / "empty.jsonl"
    file.write_text("\n")
    result = replay(str(file), *more)
    assert result.exit_code == 0
    assert "No conversation" in result.stderr


@pytest.mark.parametrize("more", [(), ("--compact",)])
def test_a_conversation_without_a_request_is_not_said_to_be_unreadable(tmp_path: Path, more: tuple[str, ...]) -> None:
    file = tmp_path / "begun.jsonl"
    file.write_text('{"messages": [{"role": "user", "content": "Nobody answered."}]}\n')
    result = replay(str(file), *more)
    assert result.exit_code == 0
    assert "holds no request" in result.stdout
    assert "could" not in result.stdout


def test_thresholds_and_windows_are_those_of_the_config(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("thresholds: {conversation: 0.25}\nwindows: {default: 10000}\n")
    (row, *_) = objects(replay(OWN, "--json", "--config", str(config)))
    assert (row["window"]["size"], row["limits"]["conversation"]) == (10_000, 2_500)
    config.write_text("thresholds: {conversations: 0.25}\n")
    assert replay(OWN, "--config", str(config)).exit_code == 2


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[bytes]:
    given = {"PATH": os.environ.get("PATH", ""), "HOME": os.devnull, **environ}
    command = [sys.executable, "-m", "accordion", "replay", *arguments]
    return subprocess.run(command, cwd=ROOT, env=given, capture_output=True, check=False)


def test_as_a_process_it_writes_plain_text_into_a_pipe_and_no_progress() -> None:
    done = run(OWN, "--window", "32000")
    assert (done.returncode, done.stderr) == (0, b"")
    out = done.stdout.decode()
    assert "\x1b" not in out
    assert "█" in out
    assert all(len(line) <= 80 for line in out.splitlines())


@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="the recorded trajectories are not here")
@pytest.mark.parametrize("name", SMALL)
def test_transcripts_of_other_agents_are_read_from_beginning_to_end(name: str) -> None:
    result = replay(str(RECORDINGS / name), "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    rows = objects(result)
    assert all(row["read"] for row in rows)
    conversations: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        conversations.setdefault(row["line"], []).append(row)
    assert len(conversations) > 1
    for one in conversations.values():
        assert [row["request"] for row in one] == list(range(1, len(one) + 1))
        assert all(row["new_tokens"] > 0 and row["tokens"] > 0 for row in one)
        assert all(row["unchanged_prefix"] > 0 for row in one[1:])
