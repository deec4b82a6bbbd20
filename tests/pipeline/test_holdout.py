"""Sessions in the hold-out: what is sent for them, what is reported, and what counts in the comparison."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accordion.accounting.holdout import Holdout
from accordion.model.budget import HoldoutGroup
from accordion.model.records import HoldoutEntry, Session
from tests.pipeline.test_compact import refused, sent
from tests.pipeline.test_costs import PRICES, TENANT
from tests.pipeline.test_history_reconstruction import Chain
from tests.pipeline_setup import CHAT, RESPONSES, PipelineSetup, header
from tests.reply_parts import ReplyCall, fake_reply
from tests.writers import reading_request, words

Json = dict[str, Any]
HALF = "compaction: {holdout: 50%}\n"
CONTROL = "x-accordion-compact"


def world_of(share: str = "50%", window: int = 4_000, more: str = "") -> PipelineSetup:
    setup = PipelineSetup(config=f"compaction: {{holdout: {share}}}\n{PRICES}{more}")
    setup.windows.size = window
    return setup


def label_in(setup: PipelineSetup, group: HoldoutGroup, share: float = 0.5) -> str:
    """Returns a client's name for a session of a group."""
    tenant = setup.forward.tenants.scope("default")
    names = (f"session-{number}" for number in range(1_000))
    return next(name for name in names if group_of(share, tenant, f"m:{name}") == group)


def group_of(share: float, tenant: Any, tree: str) -> HoldoutGroup:
    assignment = Holdout(share).assign(tenant, tree)
    assert assignment is not None
    return assignment.group


def outcome(out: Any) -> Json | None:
    value = header(out, "x-accordion-compaction")
    return json.loads(value) if value is not None else None


async def ask(setup: PipelineSetup, label: str, rounds: int, **headers: str) -> Json | None:
    """Sends a conversation of so many rounds, of 200 tokens each; returns the record of its compaction."""
    out, _ = await setup.ask(CHAT, reading_request("chat", rounds), {"x-accordion-session": label, **headers})
    return outcome(out)


async def entries(setup: PipelineSetup) -> list[HoldoutEntry | None]:
    return [session.holdout for session in await list_sessions(setup)]


async def list_sessions(setup: PipelineSetup) -> list[Session]:
    return await setup.observe.list_sessions(TENANT)


@pytest.mark.parametrize("group", ["compaction", "holdout"])
async def test_a_session_over_its_trigger_is_compacted_or_held_out(group: HoldoutGroup) -> None:
    setup = world_of()
    label = label_in(setup, group)
    assert await ask(setup, label, 3) is None
    assert await entries(setup) == [HoldoutEntry(await unit(setup, label))]
    made = await ask(setup, label, 15)
    assert made is not None
    assert await entries(setup) == [HoldoutEntry(await unit(setup, label), group, 0, "gpt-5")]
    if group == "compaction":
        assert made["state"] == "compacted"
        return
    assert (made["state"], made["triggered"], made["saved"]) == ("holdout", True, 0)
    assert made["before"] == made["after"] > made["trigger"] > 0
    assert "the session is in the hold-out, so it is not compacted" in made["reason"]
    assert setup.recorder.exchanges[-1].decision == made["reason"]
    assert setup.recorder.exchanges[-1].compaction_seconds == 0.0
    assert sent(setup) == reading_request("chat", 15)


async def unit(setup: PipelineSetup, label: str) -> str:
    assignment = Holdout(0.5).assign(setup.forward.tenants.scope("default"), f"m:{label}")
    assert assignment is not None
    return assignment.unit


async def test_without_a_hold_out_nothing_is_recorded() -> None:
    setup = world_of("0%")
    made = await ask(setup, "session-1", 15)
    assert made is not None
    assert made["state"] == "compacted"
    assert await entries(setup) == [None]
    assert await setup.observe.read_holdout([TENANT], setup.clock.now()) is None


async def test_a_session_of_the_hold_out_is_compacted_at_the_hard_limit_and_from_then_on() -> None:
    setup = world_of()
    label = label_in(setup, "holdout")
    await ask(setup, label, 15)
    made = await ask(setup, label, 19)
    assert made is not None
    assert made["state"] == "compacted"
    for rounds in range(20, 60):
        later = await ask(setup, label, rounds)
        assert later is not None
        assert later["state"] != "holdout"
    (session,) = await list_sessions(setup)
    assert session.totals.compactions > 1
    assert session.holdout == HoldoutEntry(await unit(setup, label), "holdout", 0, "gpt-5")
    comparison = await setup.observe.read_holdout([TENANT], setup.clock.now())
    assert comparison is not None
    assert (comparison.compaction, comparison.holdout, comparison.compacted_holdout) == (0, 1, 1)


@pytest.mark.parametrize("rounds", [3, 15])
async def test_an_overflow_compacts_a_session_of_the_hold_out(rounds: int) -> None:
    setup = world_of(window=100_000 if rounds == 3 else 4_000)
    label = label_in(setup, "holdout")
    setup.upstream.answers = [refused(500, 900)]
    made = await ask(setup, label, rounds)
    assert made is not None
    assert (made["state"], made["cause"]) == ("compacted", "overflow")
    # Below its trigger the session would have been treated alike in the other group.
    compared = ("holdout", 0, "gpt-5") if rounds == 15 else ()
    assert await entries(setup) == [HoldoutEntry(await unit(setup, label), *compared)]


@pytest.mark.parametrize("mode", ["off", "observe"])
async def test_sessions_that_are_not_compacted_anyway_are_not_compared(mode: str) -> None:
    setup = world_of()
    for group in ("compaction", "holdout"):
        made = await ask(setup, label_in(setup, group), 15, **{CONTROL: mode})
        assert (made or {}).get("state") == ("observed" if (mode, group) == ("observe", "compaction") else None)
    assert [entry.group for entry in await entries(setup) if entry is not None] == ["", ""]


async def test_a_restart_and_another_worker_decide_alike() -> None:
    setup = world_of()
    label = label_in(setup, "holdout")
    await ask(setup, label, 15)
    other = PipelineSetup(store=setup.store, config=f"{HALF}{PRICES}")
    other.windows.size = 4_000
    made = await ask(other, label, 15)
    assert made is not None
    assert made["state"] == "holdout"


async def test_sessions_without_a_client_s_name_are_assigned_by_their_content() -> None:
    setup = world_of()
    states = []
    for number in range(24):
        body = reading_request("chat", 15)
        body["messages"][0]["content"] = f"task {number}"
        # One key of the prompt cache for all conversations of an application does not put them in one group.
        out, _ = await setup.ask(CHAT, {**body, "prompt_cache_key": "the-application"})
        made = outcome(out)
        assert made is not None
        states.append(made["state"])
    assert {"compacted", "holdout"} == set(states)
    comparison = await setup.observe.read_holdout([TENANT], setup.clock.now())
    assert comparison is not None
    assert (comparison.compaction, comparison.holdout) == (states.count("compacted"), states.count("holdout"))


async def test_a_conversation_that_the_client_compacted_by_itself_stays_in_the_hold_out() -> None:
    setup = world_of()
    label = label_in(setup, "holdout")
    await ask(setup, label, 15)
    after = reading_request("chat", 15)
    after["messages"][0]["content"] = "This session is continued. A summary of it: " + words(50, "s")
    out, _ = await setup.ask(CHAT, after, {"x-accordion-session": label})
    made = outcome(out)
    assert made is not None
    assert made["state"] == "holdout"
    assert len(await list_sessions(setup)) == 2
    comparison = await setup.observe.read_holdout([TENANT], setup.clock.now())
    assert comparison is not None
    assert comparison.holdout == 1


@pytest.mark.parametrize("group", ["compaction", "holdout"])
async def test_declared_sub_agents_follow_their_main_agent(group: HoldoutGroup) -> None:
    setup = world_of()
    label = label_in(setup, group)
    for number in range(8):
        body = reading_request("chat", 15)
        body["messages"][0]["content"] = f"sub-task {number}"
        names = {"x-accordion-session": label, "x-accordion-delegation": f"d-{number}"}
        out, _ = await setup.ask(CHAT, body, names)
        made = outcome(out)
        assert made is not None
        assert (made["state"] == "holdout") == (group == "holdout")
    comparison = await setup.observe.read_holdout([TENANT], setup.clock.now())
    assert comparison is not None
    assert comparison.compaction + comparison.holdout == 1


async def test_a_sub_agent_that_was_found_by_its_task_follows_its_main_agent() -> None:
    setup = world_of()
    tenant = setup.forward.tenants.scope("default")
    groups = set()
    for number in range(12):
        prompt = f"Read the ledger {number} of the harbour from its first page on and name all ships that owe a fee."
        call = ReplyCall(f"t{number}", "Task", json.dumps({"prompt": prompt}))
        setup.upstream.answers = [fake_reply("chat", call)]
        out, _ = await setup.ask(CHAT, {"model": "gpt-5", "messages": [{"role": "user", "content": f"Work {number}."}]})
        main = header(out, "x-accordion-session")
        body = reading_request("chat", 15)
        body["messages"][0]["content"] = prompt
        await setup.ask(CHAT, {**body, "messages": body["messages"][:1]})
        out, _ = await setup.ask(CHAT, body)
        made = outcome(out)
        assert made is not None
        assert header(out, "x-accordion-delegation")
        group = group_of(0.5, tenant, f"s:{main}")
        assert (made["state"] == "holdout") == (group == "holdout")
        groups.add(group)
    assert groups == {"compaction", "holdout"}


async def test_counting_tokens_counts_what_would_be_sent() -> None:
    setup = world_of()
    label = label_in(setup, "holdout")
    counted = {"model": "gpt-5", "input": [{"role": "user", "content": words(2_500, "w")}]}
    out, _ = await setup.ask(RESPONSES + "/input_tokens", counted, {"x-accordion-session": label})
    made = outcome(out)
    assert made is not None
    assert made["state"] == "holdout"
    assert sent(setup) == counted
    assert await list_sessions(setup) == []


async def test_calls_that_repeat_an_earlier_one_are_counted() -> None:
    setup = world_of()
    label = label_in(setup, "compaction")
    spaced = json.dumps({"path": "1.py"}, indent=1)
    calls = [("read", spaced), ("read", '{"path": "new.py"}'), ("write", spaced)]
    pieces = [ReplyCall(f"n{at}", *call) for at, call in enumerate(calls)]
    setup.upstream.answers = [fake_reply("chat", *pieces)]
    await ask(setup, label, 15)
    assert await entries(setup) == [HoldoutEntry(await unit(setup, label), "compaction", 1, "gpt-5")]


@pytest.mark.parametrize("is_recorded", [True, False])
async def test_a_history_that_the_provider_keeps_enters_both_groups_alike(is_recorded: bool) -> None:
    counts = {}
    for group, share in (("compaction", "0.000001%"), ("holdout", "100%")):
        chain = Chain(config=f"compaction: {{holdout: {share}}}")
        if not is_recorded:
            # A part that is not on record: the history cannot be put in place of the id.
            chain.replies = {1: {"store": False}}
        for _ in range(9):
            await chain.turn()
            if chain.setup.recorder.exchanges[-1].utilization.ratio > 0.75:
                break
        await chain.setup.outbox.flush()
        entries = [session.holdout for session in await chain.setup.observe.list_sessions(TENANT)]
        counts[group] = (chain.number, [entry.group for entry in entries if entry is not None and entry.group])
        assert (chain.state == "compacted") == (is_recorded and group == "compaction")
    assert counts == {
        "compaction": (counts["holdout"][0], ["compaction"]),
        "holdout": (counts["holdout"][0], ["holdout"]),
    }


@pytest.mark.parametrize(("group", "share"), [("compaction", "0.000001%"), ("holdout", "100%")])
async def test_repeated_calls_are_counted_alike_if_the_provider_keeps_the_history(
    group: HoldoutGroup, share: str
) -> None:
    # Every response has the same call, and only a compaction puts the earlier ones into a request.
    chain = Chain(config=f"compaction: {{holdout: {share}}}")
    await chain.turns(10)
    assert any(each.compaction is not None for each in chain.setup.recorder.exchanges)
    await chain.setup.outbox.flush()
    (session,) = await chain.setup.observe.list_sessions(TENANT)
    assert session.holdout is not None
    assert (session.holdout.group, session.holdout.repeated_calls) == (group, 0)
