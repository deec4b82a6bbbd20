"""`GET /accordion/savings`, and the costs of sessions and exchanges."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from accordion.http.json_views import costs_json
from accordion.http.metrics import Metrics
from accordion.model.costs import Costs
from accordion.sessions.proxy_keys import ProxyKey
from tests.fakes import FakeReply
from tests.http.api_client import client
from tests.http.exchanges import exchange
from tests.http.test_metrics import samples
from tests.pipeline_setup import CHAT, PipelineSetup, header

HELLO: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "one two three"}]}
PRICES = "prices: {models: {m: {input: 3, cached_input: 0.3, cache_write: 3.75, output: 15}}}\n"
CHANGED = Costs(
    requests=2,
    input=3_000,
    original_input=5_000,
    summary_input=1_000,
    sent_cost=9_000_000,
    original_cost=15_000_000,
    prefix_cost=500_000,
    insertion_cost=250_000,
    read_cost=125_000,
    summary_cost=8_000_000,
)


def reported() -> FakeReply:
    usage = {"prompt_tokens": 1_000_000, "completion_tokens": 100_000, "total_tokens": 1_100_000}
    return FakeReply(pieces=(json.dumps({"choices": [], "usage": usage}).encode(),))


async def test_savings_are_listed_in_all_and_by_day_model_and_agent() -> None:
    setup = PipelineSetup(config=PRICES)
    setup.upstream.answers = [reported()]
    await setup.ask(CHAT, HELLO)
    found = client(setup).get("/accordion/savings").json()
    assert (found["first"], found["last"]) == ("1969-12-14", "1970-01-12")
    assert found["total"]["dollars"]["spent"] == 4.5
    assert found["total"]["dollars"]["net"] == 0
    assert found["total"]["basis"] == {"sent": "reported", "without_accordion": "reported"}
    assert [day["day"] for day in found["days"]] == ["1970-01-12"]
    (model,) = found["models"]
    assert model["price"] == {
        "source": "config", "input": 3.0, "cached_input": 0.3, "cache_write": 3.75, "output": 15.0,
    }  # fmt: skip
    assert model["dollars"] == found["agents"][0]["dollars"] == found["total"]["dollars"]


async def test_a_session_and_its_exchanges_have_their_costs() -> None:
    setup = PipelineSetup(config=PRICES)
    setup.upstream.answers = [reported()]
    await setup.ask(CHAT, HELLO)
    http = client(setup)
    (session,) = http.get("/accordion/sessions").json()["sessions"]
    assert session["costs"]["dollars"]["spent"] == 4.5
    shown = http.get(f"/accordion/sessions/{session['id']}").json()
    assert shown["costs"] == session["costs"] == shown["exchanges"][0]["costs"]


@pytest.mark.parametrize("path", ["/accordion/sessions/SESSION", "/accordion/archive"])
async def test_an_erasure_removes_the_names_of_agents_and_keeps_the_sums(path: str) -> None:
    setup = PipelineSetup(config=PRICES)
    named = {"x-accordion-delegation": "d-1", "x-accordion-agent": "the canary"}
    setup.upstream.answers = [reported() for _ in range(3)]
    out, _ = await setup.ask(CHAT, HELLO, headers=named)
    http = client(setup)
    before = http.get("/accordion/savings").json()
    assert [agent["agent"] for agent in before["agents"]] == ["the canary"]
    assert http.delete(path.replace("SESSION", header(out, "x-accordion-session") or "")).status_code == 200
    after = http.get("/accordion/savings").json()
    assert [agent["agent"] for agent in after["agents"]] == [""]
    assert after["total"] == before["total"]
    # The worker's own row of that name is not written again: later requests have one of their own.
    await setup.ask(CHAT, HELLO, headers=named)
    latest = {agent["agent"]: agent["dollars"]["spent"] for agent in http.get("/accordion/savings").json()["agents"]}
    assert latest == {"": 4.5, "the canary": 4.5}


async def test_an_unknown_price_is_null_and_never_zero_dollars() -> None:
    setup = PipelineSetup()
    setup.upstream.answers = [reported()]
    await setup.ask(CHAT, {**HELLO, "model": "nobody-knows-it"})
    found = client(setup).get("/accordion/savings").json()
    assert found["total"]["dollars"] is None
    assert found["total"]["requests_unpriced"] == 1
    assert found["total"]["tokens"]["sent"]["input"] == 1_000_000
    assert found["models"][0]["price"] is None


@pytest.mark.parametrize("days", ["0", "401", "-1", "x", "1.5"])
async def test_a_wrong_number_of_days_is_refused_by_name(days: str) -> None:
    answer = client(PipelineSetup()).get(f"/accordion/savings?days={days}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "days"


async def test_each_tenant_sees_only_its_own_costs_and_a_key_is_needed() -> None:
    setup = PipelineSetup(keys=(ProxyKey("a", "key-a"), ProxyKey("b", "key-b")), config=PRICES)
    setup.upstream.answers = [reported()]
    await setup.ask(CHAT, HELLO, {"x-accordion-key": "key-a", "authorization": "Bearer sk-of-the-provider"})
    http = client(setup)
    requests = [
        http.get("/accordion/savings", headers={"x-accordion-key": f"key-{name}"}).json()["total"]["requests"]
        for name in "ab"
    ]
    assert requests == [1, 0]
    assert http.get("/accordion/savings").status_code == 401


def test_the_documents_figures_are_those_of_the_costs() -> None:
    found = costs_json(CHANGED)
    assert found["dollars"] == {
        "spent": 0.017,
        "without_accordion": 0.015,
        "saved": 0.006875,
        "own_cost": 0.008875,
        "own_costs": {"prefix": 0.0005, "summaries": 0.008, "insertions": 0.00025, "reads": 0.000125},
        "net": -0.002,
    }
    assert found["tokens"]["net_input"] == 1_000
    assert found["basis"] == {"sent": "reported", "without_accordion": "estimate"}


@pytest.mark.parametrize(("estimated", "basis"), [(0, "reported"), (1, "both"), (2, "estimate")])
def test_the_basis_says_whether_usage_was_reported(estimated: int, basis: str) -> None:
    assert costs_json(replace(CHANGED, estimated=estimated))["basis"]["sent"] == basis


def test_metrics_count_dollars_by_model_and_kind() -> None:
    metrics = Metrics()
    metrics.exchange("t", exchange(costs=CHANGED), "")
    metrics.exchange("t", exchange(costs=Costs(requests=1, unpriced=1, estimated=1)), "")
    metrics.exchange("t", exchange(), "")
    found = samples(metrics)
    kinds = {"spent": 0.017, "without_accordion": 0.015, "summaries": 0.008, "prefix": 0.0005}
    kinds |= {"insertions": 0.00025, "reads": 0.000125}
    for kind, dollars in kinds.items():
        labels = tuple(sorted((kind, "m", "main", "openai")))
        assert found["accordion_dollars_total", labels] == pytest.approx(dollars)
    assert found["accordion_unpriced_requests_total", ("m", "main", "openai")] == 1
    assert found["accordion_estimated_requests_total", ("m", "main", "openai")] == 1
