from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from accordion.compaction.policy import (
    PolicyOptions,
    PreviousCompaction,
    PromptCache,
    certainly_overflows,
    decide,
    max_sendable_tokens,
)
from accordion.model.budget import Decision, HoldoutGroup, Thresholds, Utilization, Window
from accordion.model.compaction import CompactedConversation, Compaction
from accordion.model.conversation import Message, Text
from accordion.model.plan import WRITTEN_BY_COMPACTION
from tests.compaction.view_samples import assistant_message, call_and_result, uncompacted, user_message
from tests.model.test_budget import WORKED

STANDARD, PLAIN = Thresholds(), PolicyOptions()
TURN_START = uncompacted(user_message("first"), assistant_message("well"), user_message("second"))
MID_TURN = uncompacted(user_message("first"), *call_and_result("a", "text"))


def decided(
    tokens: int,
    compacted: CompactedConversation = TURN_START,
    size: int = 200_000,
    *,
    thresholds: Thresholds = STANDARD,
    options: PolicyOptions = PLAIN,
    window: Window | None = None,
    **used: Any,
) -> Decision:
    """A decision about so many tokens of messages."""
    beside = {name: used.pop(name) for name in ("exceeds_bytes", "exceeds_images") if name in used}
    utilization = Utilization(size, messages=tokens, **used)
    window = window or Window(size, size, "config")
    return decide(compacted, utilization, thresholds.limits(size), window, options=options, **beside)


@pytest.mark.parametrize(("size", "hard", "trigger"), WORKED)
def test_mid_generation_is_compacted_from_the_trigger_of_its_window_on(size: int, hard: int, trigger: int) -> None:
    below, at = decided(trigger - 1, MID_TURN, size), decided(trigger, MID_TURN, size)
    assert below.action != "compact"
    assert (at.action, at.kind, at.trigger, at.must_succeed) == ("compact", "generation", trigger, False)


@pytest.mark.parametrize(("size", "hard", "trigger"), WORKED)
def test_a_compaction_must_succeed_from_the_hard_limit_on(size: int, hard: int, trigger: int) -> None:
    assert not decided(hard - 1, MID_TURN, size).must_succeed
    over = decided(hard, MID_TURN, size)
    assert over.must_succeed
    assert f"over the hard limit of {hard:,} tokens" in over.reason


@pytest.mark.parametrize(("size", "trigger"), [(200_000, 100_000), (400_000, 200_000), (1_048_576, 524_288)])
def test_a_turn_start_is_compacted_from_half_of_the_window_on(size: int, trigger: int) -> None:
    below, at = decided(trigger - 1, size=size), decided(trigger, size=size)
    assert below.action == "prepare"
    assert (at.action, at.kind, at.trigger, at.target) == ("compact", "conversation", trigger, size // 4)


def test_reasons_are_sentences_with_figures() -> None:
    assert (
        decided(20_000, size=120_000).reason == "16.7% of the window, under the conversation trigger of 60,000 tokens"
    )
    assert decided(62_520, size=120_000).reason == "52.1% of the window, over the conversation trigger of 60,000 tokens"


def test_system_prompt_tools_media_and_the_room_for_the_answer_count() -> None:
    used = {"preamble": 20_000, "tools": 20_000, "media": 20_000, "reserved_output": 20_000}
    assert decided(20_000, **used).action == "compact"
    assert decided(19_999, **used).action == "prepare"


def test_a_summary_is_prepared_within_the_soft_threshold() -> None:
    assert decided(79_999).action == "pass"
    assert decided(80_000).action == "prepare"
    assert decided(80_000, thresholds=Thresholds(soft=0.0)).action == "pass"


COLD, WARM = (
    PolicyOptions(prompt_cache=PromptCache("the model changed")),
    PolicyOptions(prompt_cache=PromptCache("", True)),
)


@pytest.mark.parametrize(
    ("history", "trigger", "kind"), [(TURN_START, 100_000, "conversation"), (MID_TURN, 166_000, "generation")]
)
def test_a_cold_prompt_cache_has_a_compaction_made_early(
    history: CompactedConversation, trigger: int, kind: str
) -> None:
    assert decided(trigger - 20_001, history, options=COLD).action == "pass"
    early = decided(trigger - 20_000, history, options=COLD)
    assert (early.action, early.kind, early.trigger, early.target, early.is_early) == (
        "compact",
        kind,
        trigger,
        50_000,
        True,
    )
    assert early.reason.endswith(
        f"near the {kind} trigger of {trigger:,} tokens, and the prompt cache is cold: the model changed"
    )
    assert not decided(trigger, history, options=COLD).is_early
    assert decided(trigger - 20_000, history, options=WARM).action == "prepare"


def test_a_cold_prompt_cache_compacts_nothing_that_would_remain_nearly_as_long() -> None:
    near = Thresholds(conversation=0.5, conversation_target=0.4)
    assert decided(88_888, thresholds=near, options=COLD).action == "prepare"
    assert decided(88_889, thresholds=near, options=COLD).is_early
    useless = replace(COLD, last_compaction=PreviousCompaction(85_000, 84_000))
    assert decided(90_000, options=useless).action == "pass"


def test_a_compaction_waits_for_a_cold_prompt_cache_far_from_the_hard_limit() -> None:
    waiting = Thresholds(warm_cache=0.1)
    passed = decided(119_999, thresholds=waiting, options=WARM)
    assert passed.action == "prepare"
    assert passed.reason.endswith("the compaction waits for a cold prompt cache up to 120,000 tokens")
    assert decided(120_000, thresholds=waiting, options=WARM).action == "compact"
    assert decided(100_000, thresholds=waiting).action == "compact"
    assert decided(100_000, options=WARM).action == "compact"
    assert decided(160_000, thresholds=Thresholds(warm_cache=0.5), options=WARM).action == "compact"
    assert decided(166_000, MID_TURN, thresholds=waiting, options=WARM).action == "compact"
    unknown = Window(200_000, 200_000, "default")
    assert decided(100_000, thresholds=waiting, options=WARM, window=unknown).action == "compact"


def test_a_trigger_of_zero_compacts_every_request_and_sets_the_tenth_aside() -> None:
    always = Thresholds(conversation=0.0)
    decision = decided(1_000, thresholds=always, options=PolicyOptions(last_compaction=PreviousCompaction(1_000, 999)))
    assert (decision.action, decision.trigger) == ("compact", 0)
    assert decision.target <= 500


def test_a_trigger_of_one_never_compacts_but_what_is_known_not_to_fit() -> None:
    never = Thresholds(conversation=1.0, hard=1.0)
    assert decided(199_000, thresholds=never).action == "pass"
    assert decided(200_001, thresholds=never).must_succeed
    unknown = Window(200_000, 200_000, "default")
    assert decided(200_001, thresholds=never, window=unknown).action == "pass"


def test_one_kind_that_is_switched_off_leaves_the_other() -> None:
    never = Thresholds(conversation=1.0)
    assert decided(150_000, thresholds=never).action == "pass"
    assert decided(170_000, MID_TURN, thresholds=never).action == "compact"


def test_compactions_on_request_in_a_row_do_not_halve_what_is_left() -> None:
    before = Compaction("c", b"", 0, (), "conversation", "manual", None, (), 40_000, 20_000, 1, 0.0)
    again = decided(21_000, replace(TURN_START, compaction=before), options=PolicyOptions(request_mode="now"))
    assert again.action == "pass"
    assert "at most the target of 50,000 tokens is left" in again.reason
    grown = decided(60_000, replace(TURN_START, compaction=before), options=PolicyOptions(request_mode="now"))
    assert (grown.action, grown.target, grown.is_requested) == ("compact", 50_000, True)


def test_a_compaction_that_is_asked_for_happens_whatever_the_size() -> None:
    decision = decided(1_000, options=PolicyOptions(request_mode="now"))
    assert decision.action == "compact"
    assert decision.is_requested
    assert decision.target <= 500


@pytest.mark.parametrize(
    "options",
    [PolicyOptions(mode="off"), PolicyOptions(request_mode="off"), PolicyOptions(mode="off", request_mode="now")],
)
def test_a_switched_off_kind_is_never_compacted(options: PolicyOptions) -> None:
    decision = decided(190_000, options=options)
    assert (decision.action, decision.reason) == ("pass", "95.0% of the window; compaction is off")


@pytest.mark.parametrize("options", [PolicyOptions(mode="observe"), PolicyOptions(request_mode="observe")])
def test_a_request_whose_compaction_is_only_reported_passes(options: PolicyOptions) -> None:
    decision = decided(190_000, options=options)
    assert (decision.action, decision.reason) == ("pass", "95.0% of the window; compaction is only reported")


def test_the_share_of_an_unknown_window_is_called_one_of_an_assumed_window() -> None:
    reason = decided(20_000, window=Window(200_000, 200_000, "default")).reason
    assert reason.startswith("10.0% of the assumed window, under the conversation trigger")


def test_a_clients_own_compaction_request_is_only_compacted_where_it_would_not_fit() -> None:
    asking = PolicyOptions(is_client_compaction=True)
    assert decided(195_000, options=asking).action == "pass"
    assert decided(200_001, options=asking).must_succeed


def test_provider_history_passes_unchanged_and_says_so() -> None:
    decision = decided(190_000, options=PolicyOptions(is_kept_by_provider=True, is_history_known=False))
    assert decision.action == "pass"
    assert "the history that the provider keeps is not on record and not counted" in decision.reason


THREAD = PolicyOptions(is_kept_by_provider=True, is_thread=True)


def test_a_thread_is_gone_on_from_until_a_compaction_is_due_and_let_go_of_then() -> None:
    assert decided(85_000, options=THREAD).action == "pass"
    assert decided(99_999, options=THREAD).action == "pass", "no summary is prepared of what is not here"
    due = decided(100_000, options=THREAD)
    assert due.action == "resend"
    assert "over the conversation trigger of 100,000 tokens" in due.reason
    assert decided(199_000, MID_TURN, options=THREAD).action == "resend"
    assert decided(10, options=replace(THREAD, request_mode="now")).action == "resend"


def test_a_thread_without_a_new_message_is_let_go_of_as_well() -> None:
    assert decided(100_000, uncompacted(), options=THREAD).action == "resend"


def test_a_thread_whose_compaction_came_to_nothing_is_let_go_of_once_it_has_grown() -> None:
    tried = replace(THREAD, last_compaction=PreviousCompaction(150_000, 150_000))
    assert decided(164_999, options=tried).action == "pass"
    assert "the next is tried at 165,000 tokens" in decided(164_999, options=tried).reason
    assert decided(165_000, options=tried).action == "resend"
    assert decided(10, options=replace(tried, request_mode="now")).action == "resend"


@pytest.mark.parametrize("word", ["off", "observe"])
@pytest.mark.parametrize("where", ["mode", "request_mode"])
def test_a_thread_is_not_let_go_of_for_a_compaction_that_is_not_wanted(where: str, word: Any) -> None:
    assert decided(199_000, options=replace(THREAD, **{where: word})).action == "pass"
    assert decided(199_000, options=replace(THREAD, is_client_compaction=True)).action == "pass"


@pytest.mark.parametrize("word", ["auto", "off", "observe"])
def test_nothing_goes_on_from_a_thread_that_holds_another_list_than_the_clients(word: str) -> None:
    assert decided(10, options=replace(THREAD, provider_list_differs=True, request_mode=word)).action == "resend"


def test_fixed_overhead_above_the_trigger_is_said_and_compacts_nothing() -> None:
    decision = decided(10_000, preamble=60_000, tools=50_000)
    assert decision.action == "pass"
    assert (
        "system prompt and tools alone take 110,000 tokens, over the conversation trigger of 100,000" in decision.reason
    )
    assert decided(70_000, preamble=60_000, tools=50_000).must_succeed


def test_overhead_that_alone_does_not_fit_is_not_compacted_for() -> None:
    assert decided(10_000, preamble=200_000).action == "pass"


def test_a_reserve_as_large_as_the_trigger_compacts_only_at_the_hard_limit() -> None:
    assert decided(10_000, reserved_output=110_000).action == "pass"
    over = decided(75_000, reserved_output=110_000)
    assert over.must_succeed
    assert over.target < 70_000


def test_nothing_to_compact_passes() -> None:
    assert decided(0, preamble=199_000).action == "pass"
    assert decided(150_000, uncompacted()).action == "pass"


def test_after_a_useless_compaction_the_history_must_grow_by_a_tenth() -> None:
    options = PolicyOptions(last_compaction=PreviousCompaction(before=110_000, after=105_000))
    waits = decided(120_999, options=options)
    assert waits.action == "pass"
    assert "gained only 4.5%; the next is tried at 121,000 tokens" in waits.reason
    assert decided(121_000, options=options).action == "compact"
    assert (
        decided(110_001, options=PolicyOptions(last_compaction=PreviousCompaction(110_000, 99_000))).action == "compact"
    )


def test_a_compaction_that_must_succeed_or_is_asked_for_does_not_wait() -> None:
    futile = PreviousCompaction(before=185_000, after=184_000)
    assert decided(185_001, options=PolicyOptions(last_compaction=futile)).must_succeed
    assert decided(185_001, options=PolicyOptions(last_compaction=futile, request_mode="now")).action == "compact"


def test_bytes_and_images_are_compacted_for_without_touching_the_tokens() -> None:
    decision = decided(5_000, MID_TURN, exceeds_images=True, exceeds_bytes=True)
    assert (decision.action, decision.kind, decision.must_succeed) == ("compact", "conversation", True)
    assert decision.target == 5_000
    assert "more bytes and images than the provider takes" in decision.reason


@pytest.mark.parametrize("beside", [{}, {"exceeds_bytes": True}, {"exceeds_images": True}])
@pytest.mark.parametrize("request_mode", ["auto", "now"])
def test_nothing_that_fits_is_compacted_if_every_form_is_refused(request_mode: str, beside: dict[str, Any]) -> None:
    options = PolicyOptions(request_mode=request_mode, is_compaction_refused=True)
    assert decided(190_000, options=options, **beside).action == "pass"
    assert decided(200_001, options=options, **beside).action == "compact"


def test_a_block_of_ours_at_the_end_does_not_start_a_turn() -> None:
    conversation = TURN_START.conversation
    block = Message(b"ours", "user", (Text("summary"),), b"{}")
    compacted = CompactedConversation(
        replace(conversation, messages=(*conversation.messages, block)), (0, 1, 2, WRITTEN_BY_COMPACTION)
    )
    assert decided(120_000, compacted).action == "pass"


# Every list has the three tokens that open the answer.
@given(
    st.integers(3, 250_000), st.integers(0, 120_000), st.integers(0, 120_000), st.sampled_from([TURN_START, MID_TURN])
)
@example(150_000, 500, 99_499, TURN_START)
@example(3, 500, 99_497, TURN_START)
def test_a_target_is_less_than_what_is_compacted_and_leaves_room_over_the_overhead(
    tokens: int, preamble: int, reserved: int, compacted: CompactedConversation
) -> None:
    decision = decided(tokens, compacted, preamble=preamble, reserved_output=reserved)
    assert decision.action in ("pass", "prepare", "compact")
    if decision.action == "compact":
        assert preamble < decision.target < tokens + preamble


@pytest.mark.parametrize(
    ("source", "tokens", "refused"),
    [
        ("config", 100_000, False),
        ("config", 100_001, True),
        ("learnt", 100_001, True),
        ("table", 110_000, False),
        ("table", 110_001, True),
        ("default", 10_000_000, False),
    ],
)
def test_only_what_is_known_not_to_fit_is_refused(source: Any, tokens: int, refused: bool) -> None:
    window = Window(128_000, 100_000, source)
    assert certainly_overflows(Utilization(128_000, messages=tokens), window) is refused
    assert certainly_overflows(Utilization(128_000, messages=tokens, media=500_000), window) is refused
    assert not certainly_overflows(Utilization(128_000, messages=90_000, media=tokens), window)


def test_a_large_output_reserve_raises_the_limit_to_nearly_the_whole_window() -> None:
    """Else every request would be compacted, and results sliced that the provider takes."""
    limits, window = Thresholds().limits(60_000), Window(60_000, 60_000, "config")
    # Of 51,000 below the hard limit 1,000 are left for messages, of the window 10,000.
    tight = Utilization(60_000, preamble=18_000, messages=1, reserved_output=32_000)
    assert max_sendable_tokens(tight, limits, window) == 60_000 - 32_000 - 1_200
    wide = Utilization(60_000, preamble=2_000, messages=1, reserved_output=32_000)
    assert max_sendable_tokens(wide, limits, window) == 18_999


def test_a_compaction_that_waits_for_its_summary_is_due_within_the_turn_too() -> None:
    assert decided(120_000, MID_TURN).action == "pass"
    due = decided(120_000, MID_TURN, options=PolicyOptions(is_waiting_for_summary=True))
    assert (due.action, due.kind, due.must_succeed) == ("compact", "conversation", False)


def test_what_may_be_sent_is_below_the_hard_limit_with_the_answers_room_taken_off() -> None:
    limits, window = Thresholds().limits(200_000), Window(200_000, 200_000, "config")
    assert max_sendable_tokens(Utilization(200_000, messages=1, reserved_output=30_000), limits, window) == 149_999
    assert max_sendable_tokens(Utilization(200_000, preamble=10, reserved_output=180_000), limits, window) == 200_000


# -- the hold-out ------------------------------------------------------------------------------------------------------


HELD_OUT, COMPARED = PolicyOptions(group="holdout"), PolicyOptions(group="compaction")


def test_a_session_in_the_hold_out_is_not_compacted_at_its_trigger() -> None:
    held, made = decided(100_000, options=HELD_OUT), decided(100_000, options=COMPARED)
    assert (held.action, held.group, held.is_skipped, held.trigger) == ("pass", "holdout", True, 100_000)
    assert held.reason == f"{made.reason}; the session is in the hold-out, so it is not compacted"
    assert (made.action, made.group, made.is_skipped) == ("compact", "compaction", False)
    assert replace(made, group="") == decided(100_000)


def test_no_summary_is_prepared_in_the_hold_out_and_no_session_is_compared_yet() -> None:
    held = decided(80_000, options=HELD_OUT)
    assert (held.action, held.group) == ("pass", "")
    assert "a summary is prepared" not in held.reason
    assert held.reason.endswith("; the session is in the hold-out, so no summary is prepared")
    assert (decided(80_000, options=COMPARED).action, decided(80_000, options=COMPARED).group) == ("prepare", "")


@pytest.mark.parametrize("group", ["", "compaction", "holdout"])
def test_no_session_is_compacted_or_compared_while_compaction_is_stopped(group: HoldoutGroup) -> None:
    stopped = PolicyOptions(group=group, is_stopped=True)
    due, ahead, over = (decided(tokens, options=stopped) for tokens in (100_000, 80_000, 190_000))
    assert (due.action, due.group, due.is_skipped) == ("pass", "", True)
    assert due.reason == f"{decided(100_000).reason}; compaction does not pay for this model, so it is not compacted"
    assert (ahead.action, ahead.is_skipped) == ("pass", False)
    assert ahead.reason.endswith("; compaction does not pay for this model, so no summary is prepared")
    assert over == decided(190_000)
    assert (over.action, over.must_succeed) == ("compact", True)


@pytest.mark.parametrize("kept", [{"is_thread": True}, {"is_kept_by_provider": True, "is_reconstructable": True}])
def test_a_history_that_the_provider_keeps_stays_while_compaction_is_stopped(kept: dict[str, bool]) -> None:
    assert decided(100_000, options=PolicyOptions(**kept)).action in ("resend", "reconstruct")
    due = decided(100_000, options=PolicyOptions(**kept, is_stopped=True))
    assert (due.action, due.group, due.is_skipped) == ("pass", "", True)


@given(st.integers(0, 400_000), st.sampled_from([TURN_START, MID_TURN]), st.integers(0, 40_000))
def test_both_groups_enter_the_comparison_at_the_same_request(
    tokens: int, history: CompactedConversation, reserved: int
) -> None:
    plain, held, made = (
        decided(tokens, history, reserved_output=reserved, options=options) for options in (PLAIN, HELD_OUT, COMPARED)
    )
    assert bool(held.group) == bool(made.group) == (plain.action == "compact" and not plain.must_succeed)
    if plain.action in ("pass", "compact") and not held.group:
        assert held == made == plain


def test_a_request_that_does_not_fit_is_compacted_in_the_hold_out_too() -> None:
    for beside in ({}, {"exceeds_bytes": True}, {"exceeds_images": True}):
        tokens = 1_000 if beside else 190_000
        over = decided(tokens, options=HELD_OUT, **beside)
        assert (over.action, over.must_succeed, over.group) == ("compact", True, "")


def test_a_session_that_was_compacted_is_no_longer_held_out() -> None:
    made = Compaction("c", b"", 0, (), "conversation", "automatic", None, (), 190_000, 50_000, 1, 0.0)
    compacted = replace(TURN_START, compaction=made)
    assert decided(100_000, compacted, options=HELD_OUT) == decided(100_000, compacted)


def test_a_compaction_on_request_is_made_in_the_hold_out() -> None:
    options = replace(HELD_OUT, request_mode="now")
    assert decided(1_000, options=options) == decided(1_000, options=PolicyOptions(request_mode="now"))


@pytest.mark.parametrize("kind", ["is_thread", "is_reconstructable"])
def test_a_history_that_the_provider_keeps_stays_there_in_the_hold_out(kind: str) -> None:
    kept: dict[str, Any] = {"is_kept_by_provider": True, kind: True}
    held, made = (decided(100_000, options=replace(options, **kept)) for options in (HELD_OUT, COMPARED))
    assert (held.action, held.group) == ("pass", "holdout")
    assert (made.action, made.group) == ("resend" if kind == "is_thread" else "reconstruct", "compaction")


def test_a_history_that_nobody_can_compact_is_not_compared() -> None:
    for options in (HELD_OUT, COMPARED):
        decision = decided(100_000, options=replace(options, is_kept_by_provider=True))
        assert (decision.action, decision.group) == ("pass", "")
