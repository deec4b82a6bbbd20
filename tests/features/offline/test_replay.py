import asyncio
import json
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from accordion.config import Settings
from accordion.config.yaml_text import convert
from accordion.features.offline.offline_pipeline import OfflinePipeline, OneWindow
from accordion.features.offline.replay import (
    CompactedRequest,
    MeasuredRequest,
    RequestSize,
    add_up,
    cacheable_share,
    error_spread,
    measure_accuracy,
    replay,
    replay_with_compaction,
)
from accordion.features.offline.transcripts import RecordedTranscript, TranscriptFile
from accordion.model.budget import Decision, TokenLimits, Utilization, Window
from accordion.model.records import CompactionOutcome

OWN = Path(__file__).parents[3] / "examples" / "transcript.jsonl"
WORDS = "the quick brown fox jumps over the lazy dog "
WINDOW, TURNS = 1_500, 12
LIMITS = TokenLimits(window=1_000, conversation=500, generation=750, hard=850)


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
    transcript: TranscriptFile,
    *,
    window: int | None = None,
    learn: bool = False,
    configured: Settings | None = None,
    **given: Any,
) -> list[MeasuredRequest]:
    pipeline = OfflinePipeline(configured or Settings(), window)
    try:
        return [row async for row in replay(RecordedTranscript("f", 1, transcript), pipeline, learn=learn, **given)]
    finally:
        await pipeline.close()


@cache
def measured(turns: int = 3, window: int | None = None) -> list[MeasuredRequest]:
    """The requests of a growing transcript."""
    return asyncio.run(measure(growing_transcript(turns), window=window))


def test_turns_kinds_and_counts_follow_the_conversation() -> None:
    rows = measured()
    assert [row.number for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row.turn for row in rows] == [1, 1, 2, 2, 3, 3]
    assert [row.starts_turn for row in rows] == [True, False] * 3
    assert [row.messages for row in rows] == [2, 4, 6, 8, 10, 12]
    assert sum(row.new for row in rows) == rows[-1].tokens
    assert all(row.new > 0 for row in rows)
    assert len({row.session for row in rows}) == 1


def test_new_messages_are_separated_from_those_of_the_request_before() -> None:
    rows = measured()
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
    messages = [*[{"role": "user", "content": "a"}] * 2, {"role": "assistant", "content": "c"}]
    transcript, one_message = TranscriptFile(messages=messages), settings({"limits": {"messages_per_request": 1}})
    (row,) = await measure(transcript, configured=one_message)
    assert (row.limits, row.window, row.tokens, row.decision.reason) == (None, None, 0, "not read")
    (compacted,) = await replay_one(transcript, settings=one_message)
    assert (compacted.state, compacted.forwarded.tokens, compacted.limits) == ("unread", 0, None)


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


async def replay_all(
    *transcripts: TranscriptFile, window: int = WINDOW, settings: Settings | None = None
) -> list[list[CompactedRequest]]:
    """Runs every request of every transcript through the same pipeline."""
    pipeline = OfflinePipeline(settings or Settings(), window)
    try:
        return [
            [row async for row in replay_with_compaction(RecordedTranscript("f", line, transcript), pipeline)]
            for line, transcript in enumerate(transcripts, 1)
        ]
    finally:
        await pipeline.close()


async def replay_one(transcript: TranscriptFile, **given: Any) -> list[CompactedRequest]:
    (rows,) = await replay_all(transcript, **given)
    return rows


@cache
def compacted() -> list[CompactedRequest]:
    """The requests of a transcript that outgrows its window."""
    return asyncio.run(replay_one(growing_transcript(TURNS)))


def build_request(**given: Any) -> CompactedRequest:
    """A request whose outcome is stated."""
    fields: dict[str, Any] = {
        "number": 1,
        "turn": 1,
        "starts_turn": True,
        "model": "m",
        "session": "s",
        "original": RequestSize(),
        "forwarded": RequestSize(),
        "decision": Decision("pass", "why"),
        "limits": LIMITS,
        "window": Window(1_000, 1_000, "config"),
    }
    return CompactedRequest(**(fields | given))


def build_size(tokens: int, cached: int = 0) -> RequestSize:
    return RequestSize(Utilization(1_000, messages=tokens), 1, cached)


def test_a_conversation_that_outgrows_its_window_is_compacted_and_always_fits() -> None:
    rows = compacted()
    assert sum(row.state == "compacted" for row in rows) >= 2
    assert any(row.original.tokens > WINDOW for row in rows)
    assert all(row.forwarded.tokens < WINDOW for row in rows)
    generations = [row.outcome.generation for row in rows if row.outcome is not None]
    assert generations[0] == 1
    assert all(now - before in (0, 1) for before, now in pairwise(generations))


def test_received_tokens_equal_those_of_a_replay_without_compaction() -> None:
    rows, plain = compacted(), measured(TURNS, WINDOW)
    assert [row.original.tokens for row in rows] == [row.tokens for row in plain]
    for row, before in zip(rows, plain, strict=True):
        assert row.original.cached == pytest.approx(before.unchanged * before.tokens, abs=1)


def test_before_the_first_compaction_what_came_is_sent_and_then_less_with_our_tool() -> None:
    rows = compacted()
    first = next(index for index, row in enumerate(rows) if row.state == "compacted")
    assert all(row.forwarded == row.original for row in rows[:first])
    assert all(row.forwarded.tokens < row.original.tokens for row in rows[first:])
    assert {row.state for row in rows[first:]} == {"compacted", "replayed"}
    assert [{row.tool_name for row in part} for part in (rows[:first], rows[first:])] == [{""}, {"read_artifact"}]
    found, tokens = add_up(rows), rows[first].tool_tokens
    assert (found.offered, found.tool) == (len(rows) - first, tokens * (len(rows) - first))


def test_between_compactions_each_request_begins_with_the_whole_of_the_one_before() -> None:
    rows = compacted()
    assert rows[0].extends_previous is None
    for before, row in pairwise(rows):
        assert row.extends_previous is (row.state != "compacted")
        if row.extends_previous:
            # All of it, but for what the count adds once for the answer.
            assert row.forwarded.cached == pytest.approx(before.forwarded.tokens, abs=3)
        else:
            assert row.forwarded.cached < before.forwarded.tokens
    assert not any(row.is_prefix_broken for row in rows)


async def test_conversations_with_the_same_opening_are_compacted_apart() -> None:
    first, second = await replay_all(growing_transcript(TURNS), growing_transcript(TURNS))
    assert [row.state for row in first] == [row.state for row in second]
    assert first[-1].session != second[-1].session


@pytest.mark.parametrize(("mode", "states"), [("off", {"as it came"}), ("observe", {"as it came", "observed"})])
async def test_with_compaction_off_or_observed_every_request_is_sent_unchanged(mode: str, states: set[str]) -> None:
    configured = settings({"compaction": {"mode": mode}})
    rows = await replay_one(growing_transcript(TURNS), settings=configured, window=4_000)
    assert {row.state for row in rows} == states
    assert all(row.forwarded == row.original for row in rows)


async def test_a_request_that_fits_in_no_form_is_refused_and_not_sent() -> None:
    rows = await replay_one(growing_transcript(2), window=100)
    assert all(row.state == "refused" and "the 100 of the window" in row.refused for row in rows)
    assert all(row.forwarded.tokens == 0 for row in rows)
    assert add_up(rows).came == 0


@pytest.mark.parametrize("is_offered", [True, False])
async def test_a_long_system_prompt_stays_in_the_cache_when_a_compaction_breaks_the_rest(is_offered: bool) -> None:
    transcript = growing_transcript(24)
    transcript.messages[0]["content"] = WORDS * 40
    rows = await replay_one(transcript, window=4_000, settings=settings({"read_back": {"tool": is_offered}}))
    first, *later = [row for row in rows if row.state == "compacted"]
    assert later
    assert first.added_tool_tokens == first.tool_tokens == first.forwarded.utilization.tools
    assert (first.tool_tokens > 0, first.tool_name != "") == (is_offered, is_offered)
    # Tools stand before the system prompt, and the first compaction brings one along.
    assert (first.forwarded.cached == 0) is is_offered
    for row in later if is_offered else (first, *later):
        assert row.forwarded.cached >= row.forwarded.utilization.tools + row.forwarded.utilization.preamble
        assert (row.added_tool_tokens, row.tool_tokens) == (0, first.tool_tokens)


def test_the_offered_tool_does_not_reduce_what_a_strategy_removed() -> None:
    rows = compacted()
    for row in rows:
        if row.state == "compacted" and row.outcome is not None:
            assert row.outcome.before - sum(took for _, took in row.steps) + row.added_tool_tokens == row.outcome.after
            assert row.outcome.after == pytest.approx(row.forwarded.tokens, abs=2)
        else:
            assert row.steps == ()
    assert sum(add_up(rows).took.values()) == sum(took for row in rows for _, took in row.steps)


async def test_the_shipped_transcript_is_compacted_as_the_tour_says() -> None:
    transcript = msgspec.json.decode(OWN.read_bytes(), type=TranscriptFile)
    found = add_up(await replay_one(transcript, window=24_000))
    assert found.states["compacted"] >= 1
    assert found.over > 0
    assert (found.still_over, found.broken) == (0, ())
    assert found.cost < 1.0


def test_costs_are_what_is_not_cached_and_a_tenth_of_what_is() -> None:
    assert build_size(1_000, 800).cost == pytest.approx(280)
    rows = [
        build_request(original=build_size(1_000, 800), forwarded=build_size(500, 0)),
        build_request(number=2, original=build_size(1_000, 0), forwarded=build_size(100, 100)),
    ]
    found = add_up(rows)
    assert (found.came, found.sent, found.came_cached, found.sent_cached) == (2_000, 600, 800, 100)
    assert found.cost == pytest.approx((500 + 10) / (280 + 1_000))


def test_only_compactions_that_were_made_count_as_taking_something_out() -> None:
    steps = (("stale_reasoning", 900, 800), ("summarize", 800, 300))
    seen = [CompactionOutcome(state, steps=steps) for state in ("compacted", "replayed", "observed", "compacted")]
    found = add_up(
        build_request(number=index, original=build_size(900), forwarded=build_size(300), outcome=each)
        for index, each in enumerate(seen)
    )
    assert found.took == {"stale_reasoning": 200, "summarize": 1_000}
    assert found.states == {"compacted": 2, "replayed": 1, "observed": 1}


def test_a_beginning_that_changed_without_a_new_compaction_is_named() -> None:
    rows = [
        build_request(number=1),
        build_request(number=2, extends_previous=False, outcome=CompactionOutcome("compacted")),
        build_request(number=3, extends_previous=False, outcome=CompactionOutcome("replayed")),
        build_request(number=4, extends_previous=False, outcome=CompactionOutcome("failed")),
        build_request(number=5, extends_previous=True),
    ]
    assert [row.number for row in rows if row.is_prefix_broken] == [3, 4]
    assert add_up(rows).broken == (3, 4)


def test_an_overflow_is_counted_before_and_after_compaction() -> None:
    rows = [
        build_request(original=build_size(1_200), forwarded=build_size(400)),
        build_request(original=build_size(1_300), forwarded=build_size(1_100)),
        build_request(original=build_size(1_400), refused="it does not fit"),
    ]
    found = add_up(rows)
    assert (found.over, found.still_over, found.states["refused"], found.came) == (3, 1, 1, 2_500)


def settings(tree: dict[str, Any]) -> Settings:
    return convert(tree, Settings, "$")
