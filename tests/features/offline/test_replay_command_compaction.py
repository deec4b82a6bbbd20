import json
import os
import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import Result

from accordion.features.offline.replay import add_up
from accordion.features.offline.replay_tables import CompactedReplay, render_compacted_conversation, render_totals
from examples.tour import DOCUMENT, OUTPUT, print_example
from tests.features.offline.test_replay import CompactionOutcome, build_request, build_size
from tests.features.offline.test_replay_command import OWN, SMALL, _at_the_root, replay, requests_of, run
from tests.recordings import RECORDINGS

__all__ = ["_at_the_root"]

COMPACTED = (OWN, "--compact", "--window", "24000")


def replay_json(*arguments: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Returns the requests and the totals of the JSON output."""
    result = replay(*arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    *rows, last = [json.loads(line) for line in result.stdout.splitlines()]
    return rows, last["totals"]


@cache
def compacted(*arguments: str) -> Result:
    """The replay with compaction of the shipped conversation."""
    return replay(*COMPACTED, *arguments)


@cache
def compacted_json() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    return replay_json(*COMPACTED)


def plain_text(result: Result) -> str:
    return " ".join(result.stdout.split())


def test_json_has_the_received_and_sent_tokens_of_every_request_and_matching_totals() -> None:
    rows, totals = compacted_json()
    assert [row["request"] for row in rows] == list(range(1, requests_of(OWN) + 1))
    for row in rows:
        assert row["saved_tokens"] == row["before"]["tokens"] - row["after"]["tokens"]
        for side in (row["before"], row["after"]):
            cached = side["unchanged_prefix"] * side["tokens"]
            assert side["cost"] == pytest.approx(side["tokens"] - 0.9 * cached, abs=0.2)
            assert sum(side["parts"].values()) == side["tokens"]
        assert (row["compaction"] is None) == (row["state"] == "as it came")
        tool = row["tool"]
        assert (tool is None) == (row["state"] == "as it came")
        if tool is not None:
            assert tool["name"] == "read_artifact"
            assert tool["tokens"] == row["after"]["parts"]["tools"] - row["before"]["parts"]["tools"] > 0
            assert tool["new"] == (row["compaction"]["generation"] == 1 and row["state"] == "compacted")
    assert sum(row["tool"]["new"] for row in rows if row["tool"]) == 1
    assert totals["tool"] == sum(row["tool"]["tokens"] for row in rows if row["tool"])
    assert totals["offered"] == sum(row["tool"] is not None for row in rows)
    assert totals["sent"] == sum(row["after"]["tokens"] for row in rows)
    assert totals["came"] == sum(row["before"]["tokens"] for row in rows)
    assert totals["saved"] == totals["came"] - totals["sent"]
    share = sum(row["after"]["cost"] for row in rows) / sum(row["before"]["cost"] for row in rows)
    assert totals["cost"] == pytest.approx(share, abs=1e-3)
    assert totals["broken"] == []


def test_a_record_names_its_strategies_and_a_later_request_replays_it() -> None:
    rows, totals = compacted_json()
    for before, row in pairwise(rows):
        if row["state"] == "compacted":
            steps = row["compaction"]["steps"]
            assert steps[0]["before"] == row["compaction"]["before"]
            recalled = row["after"]["parts"]["insertions"]
            assert steps[-1]["after"] == pytest.approx(row["after"]["tokens"] - recalled, rel=0.02)
        if row["state"] == "replayed":
            assert row["compaction"]["id"] == before["compaction"]["id"]
            assert row["begins_with_the_one_before"] is True
    compactions = [row for row in rows if row["state"] == "compacted"]
    less = sum(step["before"] - step["after"] for row in compactions for step in row["compaction"]["steps"])
    brought = sum(row["tool"]["tokens"] for row in compactions if row["tool"]["new"])
    assert sum(totals["took"].values()) == less + brought > less


def test_the_text_says_what_the_json_says() -> None:
    rows, totals = compacted_json()
    result = compacted()
    out = plain_text(result)
    assert f"Sent {totals['sent']:,} tokens instead of {totals['came']:,}" in out
    assert f"The input costs {totals['cost']:.2f} times that of sending everything" in out
    assert f"takes {totals['tool']:,} of the sent tokens, in {totals['offered']:,} requests" in out
    assert f"Without compaction, {totals['over']:,} requests would not have fitted the window; with it, all did" in out
    assert "Between compactions, each request began with the whole previous request" in out
    for row in rows:
        if row["state"] == "compacted":
            made = row["compaction"]
            assert f"#{row['request']} compaction {made['generation']}, {made['kind']}: {made['before']:,} to" in out
            brought = row["tool"]["tokens"] if row["tool"]["new"] else 0
            for step, more in zip(made["steps"], (brought, *[0] * len(made["steps"])), strict=False):
                assert f"{step['compactor']} -{step['before'] - step['after'] + more:,}" in out
            assert not brought or f", the tool read_artifact +{brought:,})" in out
            assert re.search(rf"^ *{row['request']} .* compacted, {made['kind']}", result.stdout, re.MULTILINE)
    assert all(len(line) <= 100 for line in result.stdout.splitlines())


def test_the_plot_shows_what_came_behind_what_was_sent() -> None:
    lines = compacted().stdout.splitlines()
    both = [line for line in lines if "░" in line and "█" in line]
    assert both
    # Where the last compaction stands, what came is above what was sent.
    assert any(re.search("█░+[▁-█]", line) for line in both)
    assert any("░ received" in line for line in lines)
    assert "░" not in replay(OWN, "--window", "24000").stdout


def test_a_condensed_table_shows_every_compaction_with_its_neighbours() -> None:
    rows, _ = compacted_json()
    out, whole = compacted().stdout, compacted("--all").stdout
    numbers = [int(found) for found in re.findall(r"^ +(\d+) +\d+ +[\d,]+ +[\d,]+ +[\d,]+ ", out, re.MULTILINE)]
    compactions = [row["request"] for row in rows if row["state"] == "compacted"]
    assert {number + beside for number in compactions for beside in (-1, 0, 1)} <= set(numbers)
    assert len(numbers) < len(rows)
    assert len(re.findall(r"^ +\d+ +\d+ +[\d,]+ +[\d,]+ +[\d,]+ ", whole, re.MULTILINE)) == len(rows)


def test_without_the_option_nothing_is_compacted() -> None:
    result = replay(OWN, "--window", "24000", "--json")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert max(row["tokens"] for row in rows) > 24_000
    assert all("before" not in row for row in rows)
    assert "compact" in {row["decision"]["action"] for row in rows}


def test_several_conversations_have_a_line_each_and_sums() -> None:
    out = replay("-", "--compact", "--window", "24000", stdin=Path(OWN).read_text() * 2).stdout
    count = requests_of(OWN)
    assert re.search(rf"2 in total +{2 * count} ", out)
    assert f"{2 * count} requests: " in out


def test_recorded_usage_is_of_what_was_sent_then_so_both_together_are_refused() -> None:
    result = replay(*COMPACTED, "--against-usage")
    assert result.exit_code == 2
    assert "--against-usage cannot be combined with --compact" in " ".join(
        re.sub("[│╭╮╰╯─]", " ", result.stderr).split()
    )


def test_mode_and_pipeline_are_those_of_the_config(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("compaction: {pipeline: [{keep_last_n_turns: {n: 1}}]}\n")
    _, totals = replay_json(*COMPACTED, "--config", str(config))
    assert set(totals["took"]) <= {"keep_last_n_turns", "fixed_limits"}
    assert "keep_last_n_turns" in totals["took"]
    config.write_text("compaction: {mode: observe}\n")
    _, totals = replay_json(*COMPACTED, "--limit", "1", "--config", str(config))
    assert "observed" in totals["states"]
    assert "compacted" not in totals["states"]


def test_a_broken_beginning_is_said_in_the_table_and_in_the_sums() -> None:
    rows = (
        build_request(original=build_size(400), forwarded=build_size(400)),
        build_request(
            number=2,
            original=build_size(600),
            forwarded=build_size(300),
            extends_previous=False,
            outcome=CompactionOutcome("replayed", generation=1),
        ),
    )
    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115  # closed with the process
    console.print(render_compacted_conversation(CompactedReplay("f", 1, "c", rows), console, every=True))
    out = console.export_text()
    assert "beginning changed" in out
    assert "request 2." in render_totals(add_up(rows)).plain
    assert "Between compactions, each" not in out


def test_a_refused_and_a_failed_request_are_said_with_their_reasons() -> None:
    rows = (
        build_request(
            original=build_size(900),
            forwarded=build_size(900),
            outcome=CompactionOutcome("failed", reason="the store is away"),
        ),
        build_request(number=2, original=build_size(1_200), refused="it is too long"),
        build_request(number=3, limits=None, window=None),
    )
    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(render_compacted_conversation(CompactedReplay("f", 1, "c", rows), console, every=True))
    out = console.export_text()
    assert "#1 not compacted: the store is away" in out
    assert "#2 refused: it is too long" in out
    assert "unchanged, not parsed" in out
    assert "with it, 1 did not fit" in out


def test_a_terminal_without_unicode_gets_the_plot_all_the_same() -> None:
    done = run(*COMPACTED, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert re.search("#'+", done.stdout.decode("ascii"))


def test_the_example_in_the_documents_shows_what_its_command_prints() -> None:
    text = DOCUMENT.read_text("utf-8")
    (output,) = OUTPUT.findall(text)
    assert output == print_example(text), "run `python -m examples.tour`"


@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="the recorded trajectories are not here")
@pytest.mark.parametrize("name", SMALL)
def test_transcripts_of_other_agents_compaction_without_ever_breaking_the_beginning(name: str) -> None:
    rows, totals = replay_json(str(RECORDINGS / name), "--compact", "--window", "8000")
    assert totals["states"].get("compacted", 0) > 0
    assert totals["broken"] == []
    assert all(row["after"]["tokens"] <= 8_000 for row in rows)
