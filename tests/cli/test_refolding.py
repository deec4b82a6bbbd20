from itertools import pairwise
from typing import Any

import msgspec
import pytest

from accordion.cli.offline_pipeline import OfflinePipeline
from accordion.cli.replay import replay
from accordion.cli.replay_compaction import CompactedRequest, RequestSize, add_up, replay_with_compaction
from accordion.cli.transcripts import RecordedTranscript, TranscriptFile
from accordion.config import Settings
from accordion.config.convert import convert
from accordion.model.budget import Decision, TokenLimits, Utilization, Window
from accordion.model.records import CompactionOutcome
from tests.cli.test_replay import OWN, WORDS, grown

WINDOW = 1_500
LIMITS = TokenLimits(window=1_000, conversation=500, generation=750, hard=850)


async def carried(
    *transcripts: TranscriptFile, window: int = WINDOW, settings: Settings | None = None
) -> list[list[CompactedRequest]]:
    """Every request of every transcript, through the same rooms."""
    rooms = OfflinePipeline(settings or Settings(), window)
    try:
        return [
            [row async for row in replay_with_compaction(RecordedTranscript("f", line, transcript), rooms)]
            for line, transcript in enumerate(transcripts, 1)
        ]
    finally:
        await rooms.close()


async def one(transcript: TranscriptFile, **given: Any) -> list[CompactedRequest]:
    (rows,) = await carried(transcript, **given)
    return rows


def made(**given: Any) -> CompactedRequest:
    """A request whose outcome is stated."""
    fields: dict[str, Any] = {
        "number": 1,
        "turn": 1,
        "starts_turn": True,
        "model": "m",
        "session": "s",
        "came": RequestSize(),
        "sent": RequestSize(),
        "decision": Decision("pass", "why"),
        "limits": LIMITS,
        "window": Window(1_000, 1_000, "config"),
    }
    return CompactedRequest(**(fields | given))


def load(tokens: int, cached: int = 0) -> RequestSize:
    return RequestSize(Utilization(1_000, messages=tokens), 1, cached)


async def test_a_conversation_that_outgrows_its_window_is_folded_and_always_fits() -> None:
    rows = await one(grown(12))
    assert sum(row.state == "folded" for row in rows) >= 2
    assert any(row.came.tokens > WINDOW for row in rows)
    assert all(row.sent.tokens < WINDOW for row in rows)


async def test_what_came_is_what_a_replay_without_folding_counts() -> None:
    rooms = OfflinePipeline(Settings(), WINDOW)
    plain = [row async for row in replay(grown(12), rooms)]
    await rooms.close()
    rows = await one(grown(12))
    assert [row.came.tokens for row in rows] == [row.tokens for row in plain]
    for row, before in zip(rows, plain, strict=True):
        assert row.came.cached == pytest.approx(before.unchanged * before.tokens, abs=1)


async def test_before_the_first_fold_what_came_is_sent_and_afterwards_less() -> None:
    rows = await one(grown(12))
    first = next(index for index, row in enumerate(rows) if row.state == "folded")
    assert all(row.sent == row.came for row in rows[:first])
    assert all(row.sent.tokens < row.came.tokens for row in rows[first:])
    assert {row.state for row in rows[first:]} == {"folded", "replayed"}


async def test_between_folds_each_request_begins_with_the_whole_of_the_one_before() -> None:
    rows = await one(grown(12))
    assert rows[0].grown is None
    for before, row in pairwise(rows):
        assert row.grown is (row.state != "folded")
        if row.grown:
            # All of it, but for what the count adds once for the answer.
            assert row.sent.cached == pytest.approx(before.sent.tokens, abs=3)
        else:
            assert row.sent.cached < before.sent.tokens
    assert not any(row.is_prefix_broken for row in rows)


async def test_a_fold_keeps_the_generation_until_the_next_one() -> None:
    generations = [row.seen.generation for row in await one(grown(12)) if row.seen is not None]
    assert generations[0] == 1
    assert all(now - before in (0, 1) for before, now in pairwise(generations))
    assert generations[-1] >= 2


async def test_conversations_with_the_same_opening_are_folded_apart() -> None:
    alone, (first, second) = await one(grown(12)), await carried(grown(12), grown(12))
    assert [row.state for row in first] == [row.state for row in second] == [row.state for row in alone]
    assert first[-1].session != second[-1].session


async def test_where_folding_is_off_all_goes_on_as_it_came() -> None:
    rows = await one(grown(12), settings=settings({"compaction": {"mode": "off"}}), window=100_000)
    assert {row.state for row in rows} == {"as it came"}


async def test_where_it_is_only_observed_all_goes_on_as_it_came_and_says_what_would_be() -> None:
    rows = await one(grown(12), settings=settings({"compaction": {"mode": "observe"}}), window=4_000)
    assert "observed" in {row.state for row in rows}
    assert all(row.sent == row.came for row in rows)


async def test_what_fits_in_no_form_is_refused_and_nothing_is_sent() -> None:
    rows = await one(grown(2), window=100)
    assert all(row.state == "refused" and "the 100 of the window" in row.refused for row in rows)
    assert all(row.sent.tokens == 0 for row in rows)
    assert add_up(rows).came == 0


async def test_a_body_that_cannot_be_read_is_told_as_such() -> None:
    messages = [{"role": "user", "content": "a\ud800b"}, {"role": "assistant", "content": "c"}]
    (row,) = await one(TranscriptFile(messages=messages))
    assert (row.state, row.sent.tokens, row.limits) == ("unread", 0, None)


async def test_a_long_system_prompt_stays_in_the_cache_when_a_fold_breaks_the_rest() -> None:
    transcript = grown(24)
    transcript.messages[0]["content"] = WORDS * 40
    first, *later = [row for row in await one(transcript, window=4_000) if row.state == "folded"]
    # Tools stand before the system prompt, and the first fold brings one along.
    assert (first.brought, first.sent.cached) == (first.tool, 0)
    assert first.tool == first.sent.used.tools > 0
    assert later
    for row in later:
        assert row.sent.cached >= row.sent.used.tools + row.sent.used.preamble
        assert (row.brought, row.tool) == (0, first.tool)


async def test_where_no_tool_is_offered_the_first_fold_keeps_the_system_prompt_too() -> None:
    transcript = grown(12)
    transcript.messages[0]["content"] = WORDS * 40
    rows = await one(transcript, window=4_000, settings=settings({"unfold": {"tool": False}}))
    folds = [row for row in rows if row.state == "folded"]
    assert folds
    assert all(row.sent.cached >= row.sent.used.preamble for row in folds)
    assert not any(row.offered or row.tool or row.brought for row in rows)


async def test_the_tool_goes_along_with_every_request_from_the_first_fold_on() -> None:
    rows = await one(grown(12))
    first = next(index for index, row in enumerate(rows) if row.state == "folded")
    assert {row.offered for row in rows[first:]} == {"read_artifact"}
    assert {row.offered for row in rows[:first]} == {""}
    found, tokens = add_up(rows), rows[first].tool
    assert (found.offered, found.tool) == (len(rows) - first, tokens * (len(rows) - first))


async def test_what_a_strategy_took_out_is_not_less_for_the_tool_that_its_fold_brought_along() -> None:
    rows = await one(grown(12))
    for row in rows:
        if row.state == "folded" and row.seen is not None:
            assert row.seen.before - sum(took for _, took in row.steps) + row.brought == row.seen.after
            assert row.seen.after == pytest.approx(row.sent.tokens, abs=2)
        else:
            assert row.steps == ()
    assert sum(add_up(rows).took.values()) == sum(took for row in rows for _, took in row.steps)


async def test_the_shipped_transcript_is_folded_as_the_tour_says() -> None:
    transcript = msgspec.json.decode(OWN.read_bytes(), type=TranscriptFile)
    found = add_up(await one(transcript, window=24_000))
    assert found.states["folded"] >= 1
    assert found.over > 0
    assert (found.still_over, found.broken) == (0, ())
    assert found.cost < 1.0


def test_costs_are_what_is_not_cached_and_a_tenth_of_what_is() -> None:
    assert load(1_000, 800).cost == pytest.approx(280)
    rows = [made(came=load(1_000, 800), sent=load(500, 0)), made(number=2, came=load(1_000, 0), sent=load(100, 100))]
    found = add_up(rows)
    assert (found.came, found.sent, found.came_cached, found.sent_cached) == (2_000, 600, 800, 100)
    assert found.cost == pytest.approx((500 + 10) / (280 + 1_000))


def test_only_folds_that_were_made_count_as_taking_something_out() -> None:
    steps = (("stale_reasoning", 900, 800), ("summarize", 800, 300))
    seen = [CompactionOutcome(state, steps=steps) for state in ("folded", "replayed", "observed", "folded")]
    found = add_up(made(number=index, came=load(900), sent=load(300), seen=each) for index, each in enumerate(seen))
    assert found.took == {"stale_reasoning": 200, "summarize": 1_000}
    assert found.states == {"folded": 2, "replayed": 1, "observed": 1}


def test_a_beginning_that_changed_without_a_new_fold_is_named() -> None:
    rows = [
        made(number=1),
        made(number=2, grown=False, seen=CompactionOutcome("folded")),
        made(number=3, grown=False, seen=CompactionOutcome("replayed")),
        made(number=4, grown=False, seen=CompactionOutcome("failed")),
        made(number=5, grown=True),
    ]
    assert [row.number for row in rows if row.is_prefix_broken] == [3, 4]
    assert add_up(rows).broken == (3, 4)


def test_what_does_not_fit_is_counted_as_it_came_and_as_it_was_sent() -> None:
    rows = [
        made(came=load(1_200), sent=load(400)),
        made(came=load(1_300), sent=load(1_100)),
        made(came=load(1_400), refused="it does not fit"),
    ]
    found = add_up(rows)
    assert (found.over, found.still_over, found.states["refused"], found.came) == (3, 1, 1, 2_500)


def settings(tree: dict[str, Any]) -> Settings:
    return convert(tree, Settings, "$")
