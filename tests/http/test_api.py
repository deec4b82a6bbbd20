import asyncio
import json
from typing import Any

import msgspec
import pytest
from msgspec.structs import asdict, replace

from accordion.accounting.ledger import sessions_collection
from accordion.http.json_views import exchange_json, utilization_json
from accordion.http.metrics import Metrics
from accordion.model.budget import Utilization
from accordion.model.ports import Key
from accordion.model.records import ToolLoopUsage, Usage
from accordion.model.tenant import TenantScope
from tests.fakes import FakeReply, FickleStore
from tests.growing_conversation import COMPACTED_AT, GrowingConversation, small_window_setup
from tests.http.api_client import client
from tests.http.exchanges import exchange
from tests.pipeline_setup import CHAT, PipelineSetup, header

TENANT = TenantScope("default", b"key of default")

HELLO: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "one two three"}]}


async def test_models_are_shown_with_their_limits_as_separate_figures() -> None:
    setup = PipelineSetup()
    await setup.ask(CHAT, HELLO)
    (model,) = client(setup).get("/accordion/models").json()["models"]
    assert model["model"] == "m"
    assert model["limits"] == {
        "window": 100_000,
        "conversation_trigger": 50_000,
        "conversation_target": 25_000,
        "generation_trigger": 83_000,
        "generation_target": 25_000,
        "hard_limit": 90_000,
    }
    assert model["last"]["tokens"] == 10
    assert model["totals"]["requests"] == 1


async def test_sessions_are_listed_and_each_has_its_last_exchanges() -> None:
    setup = PipelineSetup()
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
    setup.upstream.answers = [FakeReply(pieces=(json.dumps({"choices": [], "usage": usage}).encode(),))]
    await setup.ask(CHAT, HELLO, {"x-accordion-session": "label-12345"})
    await setup.ask(CHAT, HELLO, {"x-accordion-session": "label-67890"})
    http = client(setup)
    listed = http.get("/accordion/sessions").json()["sessions"]
    assert {session["label"] for session in listed} == {"label-12345", "label-67890"}
    assert len(http.get("/accordion/sessions?limit=1").json()["sessions"]) == 1
    (one,) = http.get("/accordion/sessions?label=label-12345").json()["sessions"]
    shown = http.get(f"/accordion/sessions/{one['id']}").json()
    assert shown["exchanges"][0]["usage"]["input"] == 9
    assert shown["limits"]["window"] == 100_000


async def test_all_exchanges_of_a_session_are_given_page_by_page() -> None:
    setup = PipelineSetup()
    for number in range(7):
        await setup.ask(CHAT, {**HELLO, "model": f"m-{number}"})
        setup.clock.advance(1)
    http = client(setup)
    (session,) = http.get("/accordion/sessions").json()["sessions"]
    path, models, cursor = f"/accordion/sessions/{session['id']}/exchanges", list[str](), ""
    while cursor is not None:
        page = http.get(path, params={"limit": 3} | ({"cursor": cursor} if cursor else {})).json()
        models += [each["model"] for each in page["exchanges"]]
        cursor = page["next"]
    assert models == [f"m-{number}" for number in reversed(range(7))]
    assert http.get(path, params={"cursor": "x"}).status_code == 400
    assert http.get("/accordion/sessions/s-none/exchanges").status_code == 404


async def test_sessions_are_given_page_by_page_the_latest_first() -> None:
    setup = PipelineSetup()
    for number in range(7):
        # Some are of the same time; then the id decides.
        setup.clock.advance(number % 3)
        await setup.ask(CHAT, HELLO, {"x-accordion-session": f"label-{number:05}"})
    http = client(setup)
    whole = http.get("/accordion/sessions").json()
    assert (len(whole["sessions"]), whole["next"]) == (7, None)
    times = [session["updated"] for session in whole["sessions"]]
    assert times == sorted(times, reverse=True)
    found, asked, pages = [], "", 0
    while asked is not None:
        page = http.get("/accordion/sessions", params={"limit": 3} | ({"cursor": asked} if asked else {})).json()
        found += page["sessions"]
        asked, pages = page["next"], pages + 1
    assert (found, pages) == (whole["sessions"], 3)


async def test_a_session_that_several_workers_served_is_listed_once_with_their_sum() -> None:
    setup = PipelineSetup()
    await setup.ask(CHAT, HELLO)
    (one,) = client(setup).get("/accordion/sessions").json()["sessions"]
    mine, other = (Key(sessions_collection(TENANT), f"{one['id']}.{worker}.1") for worker in ("worker", "w2"))
    theirs = await setup.store.get(mine)
    assert theirs is not None
    await setup.store.put(other, theirs)
    (both,) = client(setup).get("/accordion/sessions?limit=1").json()["sessions"]
    assert both["totals"]["requests"] == 2 * one["totals"]["requests"]


async def test_only_the_sessions_that_are_shown_are_read_whole() -> None:
    """There may be many thousands; what is of no page only tells when it was."""
    setup = PipelineSetup()
    for number in range(5):
        setup.clock.advance(1)
        await setup.ask(CHAT, HELLO, {"x-accordion-session": f"label-{number:05}"})
    old = client(setup).get("/accordion/sessions").json()["sessions"][-1]
    key = Key(sessions_collection(TENANT), f"{old['id']}.worker.1")
    # A newer version may keep more of a session than this one can read.
    row = msgspec.msgpack.decode(await setup.store.get(key) or b"")
    await setup.store.put(key, msgspec.msgpack.encode({**row, "utilization": "elsewhere"}))
    assert len(client(setup).get("/accordion/sessions?limit=3").json()["sessions"]) == 3


async def test_errors_say_what_to_do_in_openais_shape() -> None:
    http = client(PipelineSetup())
    for path, status, words in (
        ("/accordion/sessions/s-unknown", 404, "no such session"),
        ("/accordion/sessions?limit=0", 400, "limit must be"),
        ("/accordion/sessions?limit=x", 400, "limit must be"),
        ("/accordion/sessions?limit=" + "9" * 5_000, 400, "limit must be"),
        ("/accordion/sessions?cursor=x", 400, "cursor must be"),
        ("/accordion/sessions?cursor=nan:s-1", 400, "cursor must be"),
        ("/chat/completions", 404, "with /v1 for OpenAI clients"),
    ):
        answer = http.get(path)
        assert answer.status_code == status
        assert words in answer.json()["error"]["message"]
    answer = http.post("/accordion/models")
    assert answer.status_code == 405
    assert answer.json()["error"]["code"] == "method_not_allowed"
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD"}


async def test_configured_models_are_listed_before_any_traffic() -> None:
    setup = PipelineSetup()
    setup.observe = replace(setup.observe, configured_models=("smart", "local"))
    found = client(setup).get("/accordion/models").json()["models"]
    assert [each["model"] for each in found] == ["smart", "local"]
    assert {(each["last"], each["updated"], each["totals"]["requests"]) for each in found} == {(None, None, 0)}
    assert found[0]["limits"]["window"] == setup.windows.window("smart").size


async def test_a_proxy_whose_store_never_answered_is_not_ready() -> None:
    store = FickleStore()
    store.away = True
    setup = PipelineSetup(store=store)
    setup.observe = replace(setup.observe, store_has_answered=lambda: False)
    answer = client(setup).get("/readyz")
    assert (answer.status_code, answer.json()) == (503, {"status": "unavailable", "store": "unavailable"})
    assert client(setup).get("/healthz").status_code == 200


async def test_a_store_that_is_away_is_said_and_health_stays_good() -> None:
    store = FickleStore()
    store.away = True
    http = client(PipelineSetup(store=store))
    assert http.get("/healthz").json()["status"] == "ok"
    assert http.get("/readyz").json() == {"status": "ok", "store": "unavailable"}
    for path in ("/accordion/sessions", "/accordion/sessions/s-1/tree"):
        answer = http.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")


async def test_the_root_says_where_clients_point() -> None:
    shown = client(PipelineSetup()).get("/").json()
    assert shown["openai_base_url"] == "http://127.0.0.1:8787/v1"
    assert shown["version"] == "1.2.3"


@pytest.mark.parametrize(
    ("headers", "origin"),
    [
        ({"host": "ai.example:8443"}, "http://ai.example:8443"),
        ({"x-forwarded-proto": "https", "x-forwarded-host": "ai.example"}, "https://ai.example"),
        ({"x-forwarded-host": "ai.example:8443, inner.example"}, "http://ai.example:8443"),
        ({"host": "ai.example", "x-forwarded-port": "8443"}, "http://ai.example:8443"),
        ({"host": "[::1]", "x-forwarded-port": "8443"}, "http://[::1]:8443"),
        ({"host": "ai.example", "x-forwarded-port": "443", "x-forwarded-proto": "https"}, "https://ai.example"),
        ({"host": "ai.example:1", "x-forwarded-port": "8443"}, "http://ai.example:1"),
        ({"host": "ai.example", "x-forwarded-prefix": "/tools/ai/"}, "http://ai.example/tools/ai"),
        (
            {"host": "ai.example", "x-forwarded-host": "a/<b>", "x-forwarded-port": "x", "x-forwarded-prefix": "//b"},
            "http://ai.example",
        ),
    ],
)
async def test_base_urls_are_those_of_the_outermost_proxy(headers: dict[str, str], origin: str) -> None:
    shown = client(PipelineSetup()).get("/", headers=headers).json()
    assert (shown["openai_base_url"], shown["anthropic_base_url"]) == (f"{origin}/v1", origin)


async def test_a_browser_goes_from_the_root_to_the_page() -> None:
    answer = client(PipelineSetup()).get("/", headers={"accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert (answer.status_code, answer.headers["location"]) == (303, "accordion/")


async def test_metrics_are_a_page_for_prometheus() -> None:
    answer = client(PipelineSetup()).get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert "accordion_requests_total" in answer.text


async def test_metrics_are_gathered_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """With many models and workers that takes tenths of a second."""

    def page(self: Metrics) -> tuple[bytes, str]:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        return b"gathered", "text/plain"

    monkeypatch.setattr(Metrics, "render", page)
    assert client(PipelineSetup()).get("/metrics").text == "gathered"


def test_the_parts_of_a_window_are_shown_so_that_they_add_up() -> None:
    used = Utilization(1_000, preamble=1, tools=2, messages=3, media=4, reserved_output=5, insertions=6)
    shown = utilization_json(used)
    assert sum(shown["parts"].values()) == used.occupied_tokens == 21
    assert shown["tokens"] == 16


def test_what_was_read_back_within_a_reply_is_shown_with_its_exchange() -> None:
    back = ToolLoopUsage(rounds=1, calls=2, input=700, first=Usage(input=650))
    shown = exchange_json(exchange(utilization=Utilization(1_000, insertions=40), tool_loop=back))
    assert shown["read_back"] == {
        "rounds": 1,
        "calls": 2,
        "input": 700,
        "first": asdict(Usage(input=650)),
        "earlier": None,
    }
    assert shown["utilization"]["parts"]["insertions"] == 40
    assert exchange_json(exchange())["read_back"] is None


def chat_reply(message: dict[str, Any], finish: str, prompt: int) -> FakeReply:
    usage = {"prompt_tokens": prompt, "completion_tokens": 5, "total_tokens": prompt + 5}
    choice = {"index": 0, "message": {"role": "assistant", "content": None, **message}, "finish_reason": finish}
    body = {"id": "c-1", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}
    return FakeReply(pieces=(json.dumps(body).encode(),))


async def test_a_session_and_its_models_sums_tell_what_the_model_read_back() -> None:
    setup = small_window_setup()
    talk = GrowingConversation(setup)
    session = header(await talk.until(COMPACTED_AT), "x-accordion-session")
    http = client(setup)
    artifact = http.get(f"/accordion/artifacts?session={session}").json()["artifacts"][0]["id"]
    function = {"name": "read_artifact", "arguments": json.dumps({"id": artifact})}
    call = {"tool_calls": [{"id": "call_own", "type": "function", "function": function}]}
    setup.upstream.answers = [chat_reply(call, "tool_calls", 1_000), chat_reply({"content": "Done."}, "stop", 1_300)]
    asked = len(setup.upstream.requests)
    await talk.turn(COMPACTED_AT + 1)
    assert len(setup.upstream.requests) == asked + 2
    shown = http.get(f"/accordion/sessions/{session}").json()
    last = shown["exchanges"][-1]
    assert last["usage"]["input"] == 1_300
    assert {name: last["read_back"][name] for name in ("calls", "rounds", "input")} == {
        "calls": 1,
        "rounds": 1,
        "input": 1_000,
    }
    (model,) = http.get("/accordion/models").json()["models"]
    for totals in (shown["totals"], model["totals"]):
        assert [totals[f"read_back_{name}"] for name in ("calls", "rounds", "input")] == [1, 1, 1_000]
