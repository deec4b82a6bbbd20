import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from accordion.compaction.reporting import describe_outcome
from accordion.model.records import CompactionOutcome
from accordion.pipeline.respond import add_proxy_headers, encode_compaction_header
from tests.growing_conversation import COMPACTED_AT, GrowingConversation, call_id, compaction_record, small_window_setup
from tests.histories import PROTOCOL_NAMES, ProtocolName
from tests.pipeline_setup import CHAT, header

SEEN = CompactionOutcome(
    "compacted",
    id="f-1",
    is_triggered=True,
    kind="conversation",
    trigger=2_000,
    utilization=0.5612,
    steps=(("superseded", 2_200, 2_100), ("summarize", 2_100, 600)),
    strategy_runs=1,
    before=2_200,
    after=600,
    generation=1,
    writer="extractive",
    saved=1_600,
    reason="over the trigger",
)
FIGURES = ("kind", "cause", "before", "after", "saved", "generation", "id", "writer", "utilization", "steps")


def test_the_record_has_the_true_name_of_each_strategy_and_all_figures() -> None:
    assert json.loads(encode_compaction_header(SEEN)) == {
        "state": "compacted",
        "triggered": True,
        "utilization": 0.5612,
        "steps": [
            {"compactor": "superseded", "before": 2_200, "after": 2_100},
            {"compactor": "summarize", "before": 2_100, "after": 600},
        ],
        "passes": 1,
        "kind": "conversation",
        "trigger": 2_000,
        "cause": "automatic",
        "before": 2_200,
        "after": 600,
        "saved": 1_600,
        "generation": 1,
        "id": "f-1",
        "writer": "extractive",
        "summary_input": 0,
        "summary_output": 0,
        "summary_failed_answers": 0,
        "summary_failed_input": 0,
        "summary_failed_output": 0,
        "artifacts": 0,
        "reason": "over the trigger",
    }


def test_utilization_is_null_where_the_trigger_is_zero() -> None:
    assert json.loads(encode_compaction_header(replace(SEEN, utilization=None)))["utilization"] is None


def test_words_that_are_empty_are_left_out_but_never_the_steps() -> None:
    said = json.loads(encode_compaction_header(CompactionOutcome("failed")))
    assert said["steps"] == []
    assert not {"id", "kind", "writer", "reason"} & set(said)


texts = st.text(max_size=3_000)


@example("\x7f", "\x7f", [("\x7f", 1, 2)])
@given(texts, texts, st.lists(st.tuples(st.text(max_size=200), st.integers(0, 10**9), st.integers(0, 10**9))))
def test_the_record_is_one_short_line_of_ascii_whatever_it_tells(reason: str, writer: str, steps: Any) -> None:
    line = encode_compaction_header(replace(SEEN, reason=reason, writer=writer, steps=tuple(steps)))
    assert len(line) <= 2_048
    assert all(0x20 <= byte < 0x7F for byte in line)
    assert json.loads(line)["saved"] == 1_600


def test_of_very_many_steps_the_first_and_the_last_stay() -> None:
    steps = tuple((f"strategy_{number}", 10_000 - number, 9_999 - number) for number in range(200))
    said = json.loads(encode_compaction_header(replace(SEEN, steps=steps)))
    names = [step["compactor"] for step in said["steps"]]
    assert (names[0], names[-1]) == ("strategy_0", "strategy_199")
    assert len(names) + said["steps_left_out"] == 200
    assert len(names) > 10


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
async def test_a_conversation_that_grows_over_the_trigger_compacts_once_and_is_replayed(
    protocol_name: ProtocolName,
) -> None:
    talk = GrowingConversation(small_window_setup(), protocol_name)
    made, number = {}, 0
    while not made:
        number += 1
        made = compaction_record(await talk.turn(number))
    assert number in (COMPACTED_AT - 1, COMPACTED_AT)
    later = compaction_record(await talk.turn(number + 1))
    assert (made["state"], later["state"]) == ("compacted", "replayed")
    assert compaction_record(await talk.turn(number + 2))["state"] == "replayed"
    assert (made["triggered"], made["passes"], made["trigger"]) == (True, 1, 2_000)
    assert made["utilization"] >= 0.5
    assert made["saved"] == made["before"] - made["after"] > 1_000
    assert (later["triggered"], later["passes"]) == (False, 0)
    assert {name: later[name] for name in FIGURES} == {name: made[name] for name in FIGURES}


async def test_the_tokens_and_the_utilization_are_those_of_what_was_forwarded() -> None:
    talk = GrowingConversation(small_window_setup())
    out = await talk.until(COMPACTED_AT)
    assert int(header(out, "x-accordion-tokens") or 0) == compaction_record(out)["after"]
    assert float(header(out, "x-accordion-utilization") or 1) == round(compaction_record(out)["after"] / 4_000, 4)


async def test_what_a_second_compaction_saves_is_counted_against_the_clients_own_list() -> None:
    talk = GrowingConversation(small_window_setup())
    said = [compaction_record(await talk.turn(number)) for number in range(1, 15)]
    first, second = [each for each in said if each.get("state") == "compacted"][:2]
    assert (first["generation"], second["generation"]) == (1, 2)
    assert second["saved"] == first["saved"] + second["before"] - second["after"]


async def test_a_response_warns_before_a_compaction() -> None:
    talk = GrowingConversation(small_window_setup(config="thresholds: {warning: 20%}"))
    warnings = list[str | None]()
    while not compaction_record(out := await talk.turn(len(warnings) + 1)):
        warnings.append(header(out, "x-accordion-tokens-left"))
    assert warnings[0] is None
    assert 0 < int(warnings[-1] or 0) <= 800
    assert header(out, "x-accordion-tokens-left") is None


async def test_a_response_warns_of_no_compaction_that_is_off() -> None:
    talk = GrowingConversation(small_window_setup(config="compaction: {mode: observe}"))
    assert header(await talk.until(COMPACTED_AT), "x-accordion-tokens-left") is None


async def test_observe_tells_what_would_be_done_and_changes_nothing() -> None:
    talk = GrowingConversation(small_window_setup(config="compaction: {mode: observe}"))
    said = compaction_record(await talk.until(COMPACTED_AT))
    assert (said["state"], said["triggered"], said["saved"]) == ("observed", True, 0)
    assert said["after"] < said["before"]
    assert [request.body for request in talk.setup.upstream.requests] == talk.bodies


async def test_now_compacts_whatever_the_size_and_is_manual() -> None:
    talk = GrowingConversation(small_window_setup())
    said = compaction_record(await talk.turn(4, x_accordion_compact="now"))
    assert (said["state"], said["cause"]) == ("compacted", "manual")
    assert said["utilization"] < 0.5
    assert len(talk.forwarded) < len(talk.bodies[-1])


async def test_off_neither_compacts_nor_replays() -> None:
    talk = GrowingConversation(small_window_setup())
    assert compaction_record(await talk.until(COMPACTED_AT))["state"] == "compacted"
    assert compaction_record(await talk.turn(COMPACTED_AT + 1, x_accordion_compact="off")) == {}
    assert talk.forwarded == talk.bodies[-1]
    assert compaction_record(await talk.turn(COMPACTED_AT + 2))["state"] == "replayed"


async def test_observe_by_header_is_for_its_request_alone() -> None:
    talk = GrowingConversation(small_window_setup())
    assert compaction_record(await talk.until(COMPACTED_AT, x_accordion_compact="observe"))["state"] == "observed"
    assert talk.forwarded == talk.bodies[-1]
    assert compaction_record(await talk.turn(COMPACTED_AT + 1))["state"] == "compacted"


@pytest.mark.parametrize("header_name", ["x_accordion_compact", "x_accordion_pin"])
async def test_nonsense_in_a_header_of_ours_is_refused_by_name(header_name: str) -> None:
    talk = GrowingConversation(small_window_setup())
    await talk.turn(1)
    out = await talk.turn(2, **{header_name: "\xe4\xf6"})
    assert out.status == 400
    assert isinstance(out.body, bytes)
    assert json.loads(out.body)["error"]["param"] == header_name.replace("_", "-")
    assert len(talk.setup.upstream.requests) == 1


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
async def test_a_pin_by_header_survives_a_compaction_verbatim_with_its_call(protocol_name: ProtocolName) -> None:
    plain, pinned = (
        GrowingConversation(small_window_setup(), protocol_name),
        GrowingConversation(small_window_setup(), protocol_name),
    )
    assert compaction_record(await plain.until(COMPACTED_AT + 1))["state"]
    assert compaction_record(await pinned.until(COMPACTED_AT + 1, x_accordion_pin=call_id(1)))["state"]
    assert results(pinned.forwarded, call_id(1)) == results(pinned.bodies[-1], call_id(1)) != []
    assert results(plain.forwarded, call_id(1)) != results(plain.bodies[-1], call_id(1))


def results(body: bytes, call: str) -> list[Any]:
    """Everything in a request that belongs to a call: the calls and results that name it, as they stand."""
    found: list[Any] = []

    def look(value: Any) -> None:
        if isinstance(value, dict):
            if call in [value.get(name) for name in ("id", "call_id", "tool_call_id", "tool_use_id", "toolUseId")]:
                found.append(value)
            for inner in value.values():
                look(inner)
        elif isinstance(value, list):
            for inner in value:
                look(inner)

    look(json.loads(body))
    return found


async def test_the_ledger_has_the_record_of_the_header() -> None:
    talk = GrowingConversation(small_window_setup())
    said = compaction_record(await talk.until(COMPACTED_AT))
    seen = talk.setup.recorder.exchanges[-1].compaction
    assert seen is not None
    assert describe_outcome(seen) == {"summary_input": 0, "summary_output": 0, "failure": "", **said}


async def test_a_compaction_that_fails_is_told_and_the_request_goes_on() -> None:
    talk = GrowingConversation(small_window_setup())
    said = compaction_record(await talk.turn(0, x_accordion_compact="now"))
    assert said["state"] == "failed"
    assert said["reason"]
    assert talk.forwarded == talk.bodies[-1]
    assert talk.setup.upstream.requests[-1].url.endswith(CHAT.removeprefix("/v1"))


def test_of_two_proxies_behind_each_other_the_client_hears_the_one_it_asked() -> None:
    theirs = ((b"X-Accordion-Window", b"1"), (b"x-request-id", b"up"), (b"x-accordion-compaction", b"{}"))
    ours = ((b"x-accordion-window", b"2"),)
    assert add_proxy_headers(theirs, ours) == ((b"x-request-id", b"up"), (b"x-accordion-window", b"2"))
    assert add_proxy_headers(theirs, ()) == ((b"x-request-id", b"up"),)
