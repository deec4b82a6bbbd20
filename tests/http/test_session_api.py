"""What the API shows of compactions, and what may be asked of a session by it."""

import json
from typing import Any

import pytest
from msgspec.structs import replace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.testclient import TestClient

from accordion.compaction.session_overrides import MOST_PINS
from accordion.features.telemetry.spans import SpanExporter
from accordion.http.metrics import Metrics
from accordion.model.ports import Key
from accordion.sessions.proxy_keys import ProxyKey
from tests.fakes import FickleStore
from tests.growing_conversation import (
    COMPACTED_AT,
    GrowingConversation,
    call_id,
    compaction_record,
    reply_with_usage,
    small_window_setup,
)
from tests.http.api_client import client
from tests.http.test_metrics import samples
from tests.pipeline.test_respond import results
from tests.pipeline_setup import PipelineSetup, header


async def start_talk(setup: PipelineSetup, turns: int = 1) -> tuple[GrowingConversation, str]:
    """A conversation of so many turns, and where the API has its session."""
    talk = GrowingConversation(setup)
    out = await talk.until(turns)
    return talk, f"/accordion/sessions/{header(out, 'x-accordion-session')}"


# -- what is shown -----------------------------------------------------------------------------------------------------


async def test_header_session_metrics_and_span_tell_the_same_figures() -> None:
    setup, exporter = small_window_setup(), InMemorySpanExporter()
    setup.upstream.answers = [reply_with_usage(0) for _ in range(COMPACTED_AT + 2)]
    talk = GrowingConversation(setup)
    said = [compaction_record(await talk.turn(number)) for number in range(1, COMPACTED_AT + 3)]
    made = said[COMPACTED_AT - 1]
    assert [each.get("state") for each in said[COMPACTED_AT - 2 :]] == [None, "compacted", "replayed", "replayed"]

    http = client(setup)
    (listed,) = http.get("/accordion/sessions").json()["sessions"]
    shown = http.get(f"/accordion/sessions/{listed['id']}").json()
    records = [each["compaction"] for each in shown["exchanges"]]
    assert records == [{"reason": "", "failure": "", **each} if each else None for each in said]
    totals = shown["totals"]
    assert totals == listed["totals"]
    assert (totals["compactions"], totals["saved"]) == (1, 3 * made["saved"])
    assert (totals["summary_input"], totals["summary_output"]) == (made["summary_input"], made["summary_output"])
    (model,) = http.get("/accordion/models").json()["models"]
    assert model["totals"] == totals

    metrics, provider = Metrics(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans = SpanExporter(provider)
    for exchange in setup.recorder.exchanges:
        metrics.exchange("t", exchange, "")
        spans.exchange("t", exchange, "")
    found = samples(metrics)
    assert found["accordion_tokens_saved_total", ("gpt-5", "main", "openai")] == totals["saved"]
    name = "accordion_compactions_total"
    assert found[name, ("automatic", "compacted", "conversation", "gpt-5", "main", "openai")] == 1
    assert found[name, ("automatic", "conversation", "gpt-5", "main", "openai", "replayed")] == 2
    span = dict(exporter.get_finished_spans()[COMPACTED_AT - 1].attributes or {})
    assert span["gen_ai.conversation.compacted"] is True
    for figure in ("before", "after", "saved", "id", "utilization", "trigger"):
        assert span[f"accordion.compaction.{figure}"] == made[figure]


async def test_a_session_shows_its_limits_with_their_targets() -> None:
    setup = small_window_setup()
    _, path = await start_talk(setup)
    assert client(setup).get(path).json()["limits"] == {
        "window": 4_000,
        "conversation_trigger": 2_000,
        "conversation_target": 1_000,
        "generation_trigger": 3_000,
        "generation_target": 1_000,
        "hard_limit": 3_400,
    }


# -- a compaction that is asked for ------------------------------------------------------------------------------------


async def test_a_compaction_that_is_asked_for_is_made_at_the_next_request_once() -> None:
    setup = small_window_setup()
    talk, path = await start_talk(setup, 4)
    http = client(setup)
    answer = http.post(f"{path}/compact")
    assert answer.status_code == 202
    said = answer.json()
    assert (said["compaction_wanted"], said["mode"], said["model"]) == (True, "auto", "gpt-5")
    assert path.endswith(said["session"])
    assert "next request" in said["message"]
    assert http.get(path).json()["compaction_wanted"] is True
    made = compaction_record(await talk.turn(5))
    assert (made["state"], made["cause"]) == ("compacted", "manual")
    assert http.get(path).json()["compaction_wanted"] is False
    assert compaction_record(await talk.turn(6))["state"] == "replayed"


async def test_a_compaction_that_is_asked_for_does_not_touch_other_sessions() -> None:
    setup = small_window_setup()
    _, path = await start_talk(setup, 3)
    client(setup).post(f"{path}/compact")
    other = GrowingConversation(setup)
    assert compaction_record(await other.turn(3, x_accordion_session="another-label")) == {}


@pytest.mark.parametrize(("mode", "words"), [("off", "Nothing is compacted"), ("observe", "nothing is changed")])
async def test_without_a_compaction_the_answer_says_so(mode: str, words: str) -> None:
    setup = small_window_setup(config=f"compaction: {{mode: {mode}}}")
    setup.observe = replace(setup.observe, mode=lambda model: mode)
    talk, path = await start_talk(setup, 2)
    answer = client(setup).post(f"{path}/compact")
    assert (answer.status_code, answer.json()["mode"]) == (202, mode)
    assert words in answer.json()["message"]
    await talk.turn(3)
    assert talk.forwarded == talk.bodies[-1]


# -- modes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["off", "observe"])
async def test_a_session_switched_off_or_to_observe_is_forwarded_unchanged_until_reset(
    mode: str,
) -> None:
    setup = small_window_setup()
    talk, path = await start_talk(setup, COMPACTED_AT)
    assert talk.forwarded != talk.bodies[-1]
    http = client(setup)
    assert http.get(f"{path}/mode").json()["mode"] == "auto"
    assert http.put(f"{path}/mode", json={"mode": mode}).json() == {"session": path.rpartition("/")[2], "mode": mode}
    assert http.get(path).json()["mode"] == mode
    said = compaction_record(await talk.turn(COMPACTED_AT + 1))
    assert talk.forwarded == talk.bodies[-1]
    assert said.get("state") == ("observed" if mode == "observe" else None)
    other = GrowingConversation(setup)
    assert (
        compaction_record(await other.until(COMPACTED_AT, x_accordion_session="another-label"))["state"] == "compacted"
    )
    assert http.put(f"{path}/mode", json={"mode": "auto"}).json()["mode"] == "auto"
    assert compaction_record(await talk.turn(COMPACTED_AT + 2))["state"] == "replayed"


async def test_a_request_that_asks_for_less_than_its_sessions_mode_gets_less() -> None:
    setup = small_window_setup()
    talk, path = await start_talk(setup, COMPACTED_AT - 1)
    client(setup).put(f"{path}/mode", json={"mode": "observe"})
    assert compaction_record(await talk.turn(COMPACTED_AT, x_accordion_compact="off")) == {}


@pytest.mark.parametrize("body", [b"", b"{", b"{}", b'{"mode": "now"}', b'{"mode": "off", "more": 1}', b"\xff"])
async def test_a_mode_that_is_none_changes_nothing(body: bytes) -> None:
    setup = small_window_setup()
    _, path = await start_talk(setup)
    http = client(setup)
    answer = http.put(f"{path}/mode", content=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "mode")
    assert http.get(f"{path}/mode").json()["mode"] == "auto"
    assert http.put("/accordion/sessions/s-unknown/mode", json={"mode": "off"}).status_code == 404


# -- pins --------------------------------------------------------------------------------------------------------------


async def test_pins_are_set_shown_and_taken_back() -> None:
    setup = small_window_setup()
    _, path = await start_talk(setup)
    http = client(setup)
    assert http.get(f"{path}/pins").json()["call_ids"] == []
    answer = http.put(f"{path}/pins", json={"call_ids": ["call_2", "call_1", "call_2"]})
    assert answer.status_code == 200
    assert answer.json() == {"session": path.rpartition("/")[2], "call_ids": ["call_1", "call_2"]}
    assert http.get(path).json()["pins"] == ["call_1", "call_2"]
    assert http.get("/accordion/sessions").json()["sessions"][0]["pins"] == ["call_1", "call_2"]
    assert http.put(f"{path}/pins", json={"call_ids": ["call_3"]}).json()["call_ids"] == ["call_3"]
    assert http.delete(f"{path}/pins").json()["call_ids"] == []
    assert http.get(f"{path}/pins").json()["call_ids"] == []


async def test_a_pin_by_the_api_survives_every_compaction_verbatim_with_its_call() -> None:
    setup = small_window_setup()
    talk, path = await start_talk(setup, 3)
    client(setup).put(f"{path}/pins", json={"call_ids": [call_id(1)]})
    made = []
    for number in range(4, 15):
        said = compaction_record(await talk.turn(number))
        made.append(said.get("state"))
        assert results(talk.forwarded, call_id(1)) == results(talk.bodies[-1], call_id(1)) != []
    assert made.count("compacted") > 1
    assert results(talk.forwarded, call_id(2)) != results(talk.bodies[-1], call_id(2))


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (b"", "body", "must be JSON"),
        (b"{", "body", "must be JSON"),
        (b"\xff", "body", "must be JSON"),
        (b"[]", "call_ids", "Expected `object`"),
        (b"{}", "call_ids", "missing required field `call_ids`"),
        (b'{"call_ids": "call_1"}', "call_ids", "Expected `array`"),
        (b'{"call_ids": ["a", 1]}', "call_ids", "$.call_ids[1]"),
        (b'{"call_ids": [], "more": 1}', "call_ids", "unknown field `more`"),
        (b'{"call_ids": ["a", ""]}', "call_ids[1]", "1 to 256"),
        (json.dumps({"call_ids": ["a" * 257]}).encode(), "call_ids[0]", "1 to 256"),
        (json.dumps({"call_ids": [f"c{n}" for n in range(MOST_PINS + 1)]}).encode(), "call_ids", "256 pins at most"),
    ],
)
async def test_bad_pins_are_refused_with_what_is_wrong_and_change_nothing(body: bytes, param: str, words: str) -> None:
    setup = small_window_setup()
    _, path = await start_talk(setup)
    http = client(setup)
    http.put(f"{path}/pins", json={"call_ids": ["call_1"]})
    answer = http.put(f"{path}/pins", content=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert words in error["message"]
    assert http.get(f"{path}/pins").json()["call_ids"] == ["call_1"]


async def test_a_body_that_is_far_too_large_is_not_taken_in() -> None:
    setup = small_window_setup()
    _, path = await start_talk(setup)
    answer = client(setup).put(f"{path}/pins", content=b" " * 300_000)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")


# -- whose session it is -----------------------------------------------------------------------------------------------

WAYS = [("POST", "/compact"), ("GET", "/pins"), ("PUT", "/pins"), ("DELETE", "/pins")]


@pytest.mark.parametrize(("method", "end"), WAYS)
async def test_a_session_that_is_not_known_is_not_found(method: str, end: str) -> None:
    setup = small_window_setup()
    answer = client(setup).request(method, f"/accordion/sessions/s-unknown{end}", json={"call_ids": []})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "session_not_found")
    assert await setup.store.scan("overrides") == []


@pytest.mark.parametrize(("method", "end"), WAYS)
async def test_another_tenants_session_is_not_found(method: str, end: str) -> None:
    setup = small_window_setup(keys=(ProxyKey("red", "key-of-red"), ProxyKey("blue", "key-of-blue")))
    talk = GrowingConversation(setup)
    out = await talk.turn(2, authorization="Bearer key-of-red", x_accordion_key="key-of-red")
    path = f"/accordion/sessions/{header(out, 'x-accordion-session')}{end}"
    http = client(setup)
    body: Any = {"call_ids": ["call_1"]}
    own = http.request(method, path, json=body, headers={"authorization": "Bearer key-of-red"})
    assert own.status_code in (200, 202)
    others = http.request(method, path, json=body, headers={"authorization": "Bearer key-of-blue"})
    assert (others.status_code, others.json()["error"]["code"]) == (404, "session_not_found")
    assert http.request(method, path, json=body).status_code == 401
    assert [name for name, _ in await setup.store.scan("pins/blue")] == []


async def test_an_id_that_only_begins_a_row_of_a_session_is_not_found() -> None:
    setup = small_window_setup()
    await start_talk(setup)
    await setup.outbox.flush()
    (row,) = [name for name, _ in await setup.store.scan("sessions/default")]
    kept = await setup.store.get(Key("sessions/default", row)) or b""
    await setup.store.put(Key("sessions/default", f"{row}.more"), kept)
    assert client(setup).get(f"/accordion/sessions/{row}").status_code == 404


@pytest.mark.parametrize(("method", "end"), WAYS)
async def test_a_store_that_is_away_is_said_in_our_error_shape(method: str, end: str) -> None:
    store = FickleStore()
    setup = small_window_setup(store=store)
    _, path = await start_talk(setup)
    await setup.outbox.flush()
    store.away = True
    answer: Any = client(setup).request(method, path + end, json={"call_ids": ["call_1"]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
    store.away = False
    assert client(setup).get(f"{path}/pins").json()["call_ids"] == []


async def test_only_the_right_methods_are_answered() -> None:
    setup = small_window_setup()
    _, path = await start_talk(setup)
    http: TestClient = client(setup)
    for method, end, allowed in (("GET", "/compact", {"POST"}), ("POST", "/pins", {"GET", "HEAD", "PUT", "DELETE"})):
        answer = http.request(method, path + end)
        assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")
        assert set(answer.headers["allow"].split(", ")) == allowed
