"""The costs that exchanges are recorded with: sessions, days, models and agents add up to the same total."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from accordion.accounting.ledger import DAY, SavingsReport, day_name
from accordion.model.costs import Costs
from accordion.model.records import Session
from accordion.model.tenant import TenantScope
from tests.fakes import FakeReply
from tests.pipeline_setup import CHAT, PipelineSetup
from tests.tiers import examples
from tests.writers import words

Json = dict[str, Any]
PRICES = """
prices:
  models:
    m: {input: 3, cached_input: 0.3, cache_write: 3.75, output: 15}
    n: {input: 1, output: 2}
"""
TENANT = TenantScope("default", b"key of default")


def answered(reported: int, cached: int = 0, output: int = 5) -> FakeReply:
    details = {"cached_tokens": cached}
    usage = {"prompt_tokens": reported, "completion_tokens": output, "prompt_tokens_details": details}
    choice = {"index": 0, "message": {"role": "assistant", "content": "Done."}, "finish_reason": "stop"}
    reply = {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}
    return FakeReply(pieces=(json.dumps(reply).encode(),))


def unreported() -> FakeReply:
    choice = {"index": 0, "message": {"role": "assistant", "content": "Done."}, "finish_reason": "stop"}
    reply = {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice]}
    return FakeReply(pieces=(json.dumps(reply).encode(),))


class Talk:
    """A conversation with one model, of one agent."""

    def __init__(self, setup: PipelineSetup, name: str, model: str = "m", agent: str = "") -> None:
        self.setup, self.name, self.model = setup, name, model
        self.headers = {"x-accordion-session": f"session-{name}"} | ({"x-accordion-agent": agent} if agent else {})
        self.messages: list[Json] = []

    async def say(self, length: int, answer: FakeReply | None = None) -> Costs | None:
        self.messages.append({"role": "user", "content": words(length, f"{self.name}-{len(self.messages)}-")})
        self.setup.upstream.answers = [answer or answered(1_000)]
        await self.setup.ask(CHAT, {"model": self.model, "messages": self.messages}, self.headers)
        self.messages.append({"role": "assistant", "content": "Done."})
        return self.setup.recorder.exchanges[-1].costs


async def compacted(setup: PipelineSetup) -> Talk:
    """A conversation whose last request was compacted."""
    setup.windows.size = 4_000
    talk = Talk(setup, "a")
    for length, reported in ((5, 5), (900, 906), (900, 1_807), (400, 1_600)):
        await talk.say(length, answered(reported))
    made = setup.recorder.exchanges[-1]
    assert made.compaction is not None
    assert made.compaction.state == "compacted"
    return talk


async def report(setup: PipelineSetup, days: int = 30) -> SavingsReport:
    return await setup.observe.read_savings(TENANT, setup.clock.now(), days)


async def sessions(setup: PipelineSetup) -> list[Session]:
    return await setup.observe.list_sessions(TENANT)


def total(parts: Any) -> Costs:
    return sum((part.costs for part in parts), Costs())


async def test_an_unchanged_request_is_recorded_with_what_it_cost() -> None:
    setup = PipelineSetup(config=PRICES)
    costs = await Talk(setup, "a").say(20, answered(2_000, cached=1_500, output=10))
    assert costs == Costs(
        requests=1, input=2_000, cached=1_500, output=10, original_input=2_000, original_cached=1_500,
        original_output=10, sent_cost=500 * 3_000 + 1_500 * 300 + 150_000,
        original_cost=500 * 3_000 + 1_500 * 300 + 150_000,
    )  # fmt: skip
    (session,) = await sessions(setup)
    assert session.costs == costs
    savings = await report(setup)
    assert savings.total == costs
    assert [(each.model, each.upstream) for each in savings.models] == [("m", "openai")]


async def test_a_compaction_saves_the_removed_tokens_at_every_later_request() -> None:
    setup = PipelineSetup(config=PRICES)
    talk = await compacted(setup)
    made = setup.recorder.exchanges[-1].costs
    assert made is not None
    assert made.original_input > made.input
    await talk.say(5, answered(1_606))
    repeated = setup.recorder.exchanges[-1]
    assert repeated.compaction is not None
    assert repeated.compaction.state == "replayed"
    assert repeated.costs is not None
    removed = repeated.costs.original_input - repeated.costs.input
    assert removed > 0
    assert repeated.costs.net == removed * 3_000


async def test_a_client_that_compacts_by_itself_saves_nothing_here() -> None:
    setup = PipelineSetup(config=PRICES)
    talk = await compacted(setup)
    # The client replaces its history by a summary of its own.
    talk.messages = [{"role": "user", "content": "Summary of all so far."}, {"role": "assistant", "content": "Yes."}]
    costs = await talk.say(10, answered(50))
    assert costs is not None
    assert costs.original_input == costs.input == 50
    assert costs.net == 0


async def test_an_observed_compaction_saves_nothing() -> None:
    setup = PipelineSetup(config=PRICES + "compaction: {mode: observe}\n")
    setup.windows.size = 4_000
    talk = Talk(setup, "a")
    await talk.say(1_600, answered(1_600))
    await talk.say(1_600, answered(3_200))
    exchange = setup.recorder.exchanges[-1]
    assert exchange.compaction is not None
    assert exchange.compaction.state == "observed"
    assert exchange.costs is not None
    assert exchange.costs.net == 0


async def test_a_model_of_unknown_price_counts_tokens_and_no_dollars() -> None:
    setup = PipelineSetup(config=PRICES)
    costs = await Talk(setup, "a", model="nobody-knows-it").say(20, answered(2_000))
    assert costs is not None
    assert (costs.input, costs.unpriced, costs.sent_cost) == (2_000, 1, 0)


async def test_without_reported_usage_our_own_count_is_taken_and_marked() -> None:
    setup = PipelineSetup(config=PRICES)
    costs = await Talk(setup, "a").say(20, unreported())
    assert costs is not None
    assert costs.estimated == 1
    assert 20 <= costs.input <= 40


async def test_a_request_that_the_provider_refused_costs_nothing() -> None:
    setup = PipelineSetup(config=PRICES)
    assert await Talk(setup, "a").say(20, FakeReply(500, pieces=(b'{"error": {"message": "no"}}',))) is None
    assert (await report(setup)).total == Costs()


async def test_a_report_that_no_model_can_have_made_is_none() -> None:
    setup = PipelineSetup(config=PRICES)
    costs = await Talk(setup, "a").say(20, answered(10**12))
    assert costs is not None
    assert costs.estimated == 1


async def test_days_are_those_of_utc_and_older_ones_are_left_out() -> None:
    setup = PipelineSetup(config=PRICES)
    setup.clock.time = 10 * DAY + DAY - 1.0
    talk = Talk(setup, "a")
    await talk.say(20)
    setup.clock.advance(2.0)
    await talk.say(20)
    assert [day.day for day in (await report(setup)).days] == ["1970-01-12", "1970-01-11"]
    today = await report(setup, days=1)
    assert [day.day for day in today.days] == ["1970-01-12"]
    assert (today.first, today.last) == ("1970-01-12", "1970-01-12")


async def test_an_erased_session_leaves_the_listing_and_stays_in_the_sums() -> None:
    setup = PipelineSetup(config=PRICES)
    await Talk(setup, "a").say(20)
    await Talk(setup, "b").say(30)
    before = await report(setup)
    (gone, *_) = await sessions(setup)
    assert await setup.observe.forget_sessions(TENANT, gone.id) == [gone.id]
    assert gone.id not in [session.id for session in await sessions(setup)]
    assert await report(setup) == before


async def test_more_names_than_a_tenant_may_have_are_counted_together() -> None:
    setup = PipelineSetup(config=PRICES)
    for number in range(210):
        await Talk(setup, f"s{number}", model=f"m-{number}").say(3)
    savings = await report(setup)
    assert savings.total.requests == 210
    assert len(savings.models) <= 201
    assert next(each.costs.requests for each in savings.models if each.model == "other") >= 10


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["m", "n", "unknown"]),
        st.sampled_from(["", "planner"]),
        st.integers(1, 1_500),
        st.integers(0, 3_000) | st.none(),
        st.sampled_from([0.0, 60.0, 4_000.0, DAY]),
    ),
    max_size=10,
)


@settings(max_examples=examples(25), deadline=None)
@given(_STEPS)
async def test_days_models_agents_and_sessions_add_up_to_the_same_total(steps: list[Any]) -> None:
    setup = PipelineSetup(config=PRICES)
    setup.windows.size = 4_000
    start, talks = setup.clock.now(), dict[tuple[str, ...], Talk]()
    for name, model, agent, length, reported, pause in steps:
        talk = talks.setdefault((name, model, agent), Talk(setup, f"{name}-{model}-{agent}", model, agent))
        await talk.say(length, unreported() if reported is None else answered(reported, reported // 2))
        setup.clock.advance(pause)
    savings = await report(setup, days=15)
    assert savings.total == total(savings.days) == total(savings.models) == total(savings.agents)
    assert savings.total == total(await sessions(setup))
    exchanges = [exchange.costs for exchange in setup.recorder.exchanges if exchange.costs is not None]
    assert savings.total == sum(exchanges, Costs())
    assert savings.total.saved - savings.total.own_cost == savings.total.net
    assert {day.day for day in savings.days} <= {day_name(start + DAY * each) for each in range(11)}
    assert all(value >= 0 for value in structs.astuple(savings.total))


async def test_the_cache_of_one_model_has_nothing_of_another() -> None:
    setup = PipelineSetup(config=PRICES)
    talk = Talk(setup, "a")
    await talk.say(20, answered(2_000))
    talk.model = "n"
    costs = await talk.say(20, unreported())
    assert costs is not None
    assert costs.cached == 0
    again = await talk.say(2_000, unreported())
    assert again is not None
    assert again.cached == 0


async def test_the_cache_of_a_request_without_a_report_is_estimated_for_its_own_model() -> None:
    setup = PipelineSetup(config=PRICES)
    talk = Talk(setup, "a")
    await talk.say(1_500, unreported())
    costs = await talk.say(20, unreported())
    assert costs is not None
    assert costs.cached >= 1_408
