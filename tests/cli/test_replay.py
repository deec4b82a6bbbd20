import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from accordion.cli.offline_pipeline import OfflinePipeline, OneWindow
from accordion.cli.replay import MeasuredRequest, cacheable_share, error_spread, measure_accuracy, replay
from accordion.cli.transcripts import RecordedTranscript, TranscriptFile
from accordion.config import Settings
from accordion.model.budget import Window

OWN = Path(__file__).parents[2] / "examples" / "transcript.jsonl"
WORDS = "the quick brown fox jumps over the lazy dog "


def growing_transcript(turns: int, usage: list[dict[str, Any] | None] | None = None) -> TranscriptFile:
    """A conversation of so many turns, each with one tool call, so with two requests."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    for turn in range(turns):
        call = {"id": f"c{turn}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        messages += [
            {"role": "user", "content": f"question {turn} " + WORDS * 10},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{turn}", "content": f"result {turn} " + WORDS * 20},
            {"role": "assistant", "content": f"answer {turn}"},
        ]
    return TranscriptFile(messages=messages, model="some-model", usage=usage)


async def measure(
    transcript: TranscriptFile, *, window: int | None = None, learn: bool = False, **given: Any
) -> list[MeasuredRequest]:
    pipeline = OfflinePipeline(Settings(), window)
    try:
        return [row async for row in replay(RecordedTranscript("f", 1, transcript), pipeline, learn=learn, **given)]
    finally:
        await pipeline.close()


async def test_turns_kinds_and_counts_follow_the_conversation() -> None:
    rows = await measure(growing_transcript(3))
    assert [row.number for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row.turn for row in rows] == [1, 1, 2, 2, 3, 3]
    assert [row.starts_turn for row in rows] == [True, False] * 3
    assert [row.messages for row in rows] == [2, 4, 6, 8, 10, 12]
    assert sum(row.new for row in rows) == rows[-1].tokens
    assert all(row.new > 0 for row in rows)


async def test_all_requests_of_a_conversation_are_one_session() -> None:
    assert len({row.session for row in await measure(growing_transcript(3))}) == 1


async def test_new_messages_are_separated_from_those_of_the_request_before() -> None:
    rows = await measure(growing_transcript(3))
    assert rows[0].unchanged == 0.0
    for before, row in pairwise(rows):
        # All of the request before stands unchanged at the beginning of this one.
        assert row.unchanged == pytest.approx(before.counted / row.counted, abs=0.001)
    total = sum(row.tokens for row in rows)
    assert cacheable_share(rows) == pytest.approx(sum(row.tokens for row in rows[:-1]) / total, abs=0.001)


async def test_the_window_can_be_given_and_is_else_the_models() -> None:
    (known, *_) = await measure(growing_transcript(1), model="gpt-4o")
    (unknown, *_) = await measure(growing_transcript(1))
    (given, *_) = await measure(growing_transcript(1), window=500)
    assert (known.window, unknown.window, given.window) == (
        Window(128_000, 111_616, "table", 16_384),
        Window(120_000, 120_000, "default"),
        Window(500, 500, "config"),
    )
    assert given.utilization.ratio == pytest.approx(given.tokens / 500)
    assert given.limits is not None
    assert (given.limits.conversation, given.limits.generation, given.limits.hard) == (250, 375, 425)


def test_a_given_window_is_not_changed_by_what_is_learnt() -> None:
    windows = OneWindow(500)
    windows.learn("m", "u", "", "t", 100)
    assert windows.window("m", "u", "", "t").size == 500


async def test_the_decision_tells_on_which_side_of_its_trigger_a_request_is() -> None:
    rows = await measure(growing_transcript(3), window=800)
    assert "under the conversation trigger" in rows[0].decision.reason
    assert any("over the generation trigger" in row.decision.reason for row in rows)
    assert "over the hard limit" in rows[-1].decision.reason


async def test_a_body_that_cannot_be_read_is_forwarded_and_not_counted() -> None:
    messages = [{"role": "user", "content": "a\ud800b"}, {"role": "assistant", "content": "c"}]
    (row,) = await measure(TranscriptFile(messages=messages))
    assert (row.limits, row.window, row.tokens, row.decision.reason) == (None, None, 0, "not read")


async def test_reported_usage_is_learnt_only_where_asked_and_carried_forward() -> None:
    plain = await measure(growing_transcript(4))
    usage = [{"prompt_tokens": round(row.counted * 1.3), "completion_tokens": 5} for row in plain]
    apart = await measure(growing_transcript(4, usage))
    learnt = await measure(growing_transcript(4, usage), learn=True)
    assert [row.tokens for row in apart] == [row.tokens for row in plain]
    assert learnt[0].tokens == plain[0].tokens
    for row in learnt[1:]:
        assert row.tokens == pytest.approx(row.reported, rel=0.01)
    found = measure_accuracy("x", learnt)
    assert found.plain.median == pytest.approx(1 - 1 / 1.3, abs=0.01)
    assert found.later.largest < 0.01
    assert found.corrected.largest == pytest.approx(found.plain.largest, abs=0.01)
    assert (found.plain.requests, found.later.requests) == (8, 7)


async def test_requests_without_a_report_have_no_error() -> None:
    usage: list[dict[str, Any] | None] = [None, {"prompt_tokens": 500}, None, None]
    rows = await measure(growing_transcript(2, usage), learn=True)
    assert measure_accuracy("x", rows).plain.requests == 1


def test_quantiles_are_errors_that_occurred_without_their_sign() -> None:
    found = error_spread([-0.5, 0.1, 0.2, -0.3, 0.4, 0.0, 0.6, 0.7, 0.8, -0.9])
    assert (found.requests, found.median, found.p90, found.largest) == (10, 0.4, 0.8, 0.9)
    assert error_spread([]).requests == 0


async def test_the_shipped_transcript_fills_most_of_a_window_of_40000() -> None:
    transcript = msgspec.json.decode(OWN.read_bytes(), type=TranscriptFile)
    rows = await measure(transcript, window=40_000)
    assert 0.6 <= max(row.utilization.ratio for row in rows) < 1.0
    assert any(row.starts_turn and "over the conversation trigger" in row.decision.reason for row in rows)
    assert any("over the hard limit" in row.decision.reason for row in rows)
    assert rows[-1].turn == sum(message["role"] == "user" for message in transcript.messages)
    assert json.loads(OWN.read_text())["model"] == rows[0].model
