"""What a sub-agent returns to the one that it works for, and how its own conversation is compacted. In one
process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accordion.model.records import Totals
from accordion.protocols.registry import PROTOCOLS
from tests.pipeline.test_shared_artifacts import Json, Team, call
from tests.pipeline_setup import header
from tests.reply_parts import ReplyText

EACH = pytest.mark.parametrize("protocol_name", ["chat", "messages"])
PROMPT = "Read the ledger of the harbour from its first page on and tell me which ships owe a fee."
TASK = call("t1", "Task", prompt=PROMPT, subagent_type="Reader")


def lines(number: int, tag: str) -> list[str]:
    return [f"On page {at} {tag}{at} nothing was found that would matter for the question." for at in range(number)]


REPORT = "\n".join(
    [
        "I read all pages.",
        *lines(120, "p"),
        "- the Anna owes 312 since May",
        *lines(120, "q"),
        "In short: one ship owes.",
    ]
)

TARGET = "thresholds: {conversation_target: 0.35}"


class Ship(Team):
    """A main agent that hands a task to a sub-agent with a conversation of its own."""

    async def delegated(self) -> list[Json]:
        """The main agent's list once the sub-agent has returned."""
        listed = [self.user("Who owes the harbour a fee?")]
        await self.turn("", listed, TASK)
        self.main = self.session
        await self.turn("", [self.user(PROMPT)], ReplyText(REPORT))
        self.child = self.session
        assert self.child != self.main
        return [*listed, *self.answered(TASK, REPORT)]

    def working(self, listed: list[Json], pages: int = 9) -> list[Json]:
        """The list after ten calls of tools, each with so many lines."""
        for at in range(10):
            listed = [*listed, *self.answered(call(f"c{at}", q=str(at)), " ".join(lines(pages, f"r{at}")))]
        return [*listed, self.model("Well."), self.user("And now?")]

    async def artifact(self, call_id: str) -> Any:
        """The only artifact that holds the result of a call of the main agent's."""
        listed = await self.builder.archive.list_artifacts(self.tenant, self.main)
        [found] = [each for each in listed if each.kind == "result" and each.call_id == call_id]
        return found


@EACH
async def test_under_pressure_a_result_becomes_a_digest_with_agent_and_session(protocol_name: str):
    team = Ship(protocol_name, window=9_000, config=TARGET)
    listed = await team.delegated()
    await team.turn("", team.working(listed))
    assert team.session == team.main
    [compaction] = [each.compaction for each in team.recorder.exchanges if each.compaction is not None]
    assert [name for name, _, _ in compaction.steps] == ["compact_tool_results", "delegated_digests"]
    sent = json.dumps(team.sent)
    assert f"(session {team.child}) to Task(" in sent
    assert "- the Anna owes 312 since May" in sent
    assert "In short: one ship owes." in sent
    assert "p30" not in sent
    # The whole of it is one artifact of the main agent, linked to the conversation that it came from.
    kept = await team.artifact("t1")
    assert (kept.session, kept.child, kept.tool) == (team.main, team.child, "Task")
    assert kept.id in sent
    assert team.child in kept.description
    text = await team.builder.artifact_text(kept.id, team.tenant, PROTOCOLS)
    assert text is not None
    assert text.endswith(REPORT)


async def test_it_stays_whole_while_the_results_of_tools_are_enough():
    team = Ship(window=19_000, config="thresholds: {conversation_target: 0.45}")
    listed = await team.delegated()
    await team.turn("", team.working(listed, pages=60))
    [compaction] = [each.compaction for each in team.recorder.exchanges if each.compaction is not None]
    assert [name for name, _, _ in compaction.steps] == ["compact_tool_results"]
    assert "p30" in json.dumps(team.sent)


async def test_what_a_summary_takes_in_is_still_linked_to_the_childs_session():
    team = Ship(window=9_000, config="compaction: {pipeline: [summarize]}")
    listed = await team.delegated()
    await team.turn("", team.working(listed))
    kept = await team.artifact("t1")
    assert (kept.child, team.child in kept.description) == (team.child, True)
    assert (await team.artifact("c0")).child == ""


async def test_a_return_of_an_agent_that_nobody_knows_is_a_result_like_any_other():
    team = Ship(window=9_000, config=TARGET)
    listed = [team.user("Who owes the harbour a fee?"), *team.answered(TASK, REPORT)]
    await team.turn("", team.working(listed))
    assert "Result of Task(" in json.dumps(team.sent)


async def test_an_id_that_is_used_for_another_call_too_links_neither():
    team = Ship(window=9_000, config=TARGET)
    listed = await team.delegated()
    again = [*listed, *team.answered(call("t1", q="0"), "Nothing here.")]
    await team.turn("", team.working(again))
    assert "(session " not in json.dumps(team.sent)
    assert {each.child for each in await team.builder.archive.list_artifacts(team.tenant, team.main)} == {""}


@EACH
async def test_the_main_agents_tokens_are_its_own(protocol_name: str):
    team = Ship(protocol_name)
    listed = await team.delegated()
    await team.turn("", [*listed, team.model("One."), team.user("And now?")])
    used = {each.session: Totals() for each in team.recorder.exchanges}
    for each in team.recorder.exchanges:
        assert each.usage is not None
        used[each.session] += Totals(requests=1, input=each.usage.input, output=each.usage.output)
    assert used == {
        team.main: Totals(requests=2, input=100, output=10),
        team.child: Totals(requests=1, input=50, output=5),
    }
    for session, totals in used.items():
        known = team.forward.reader.identifier.sessions.find_in_memory(session)
        assert known is not None
        assert (known.totals.requests, known.totals.input, known.totals.output) == (
            totals.requests,
            totals.input,
            totals.output,
        )


async def test_the_tokens_of_agents_that_write_into_one_list_are_their_own():
    team = Team()
    task = team.user("find the flags")
    for who in ("main", "a", "b", "a"):
        await team.turn(who, [task])
    counts: dict[str, int] = {}
    for each in team.recorder.exchanges:
        counts[each.session] = counts.get(each.session, 0) + 1
    assert sorted(counts.values()) == [1, 1, 2]
    assert sorted(
        known.totals.requests
        for one in counts
        if (known := team.forward.reader.identifier.sessions.find_in_memory(one)) is not None
    ) == [1, 1, 2]


# -- compaction of a sub-agent's own -----------------------------------------------------


def working(team: Team, rounds: int = 12) -> list[Json]:
    """The list of a sub-agent after so many calls of tools."""
    listed = [team.user("Context: the harbour has nine berths.")] if team.protocol_name == "chat" else []
    listed.append(team.user(PROMPT))
    for at in range(rounds):
        listed += team.answered(call(f"c{at}", q=str(at)), " ".join(lines(9, f"r{at}")))
    return [*listed, team.model("Well."), team.user("And now?")]


async def compactors(team: Team, who: str) -> list[str]:
    """Which strategies compacted an agent's request."""
    headers = {"x-accordion-delegation": who} if who else {}
    await team.ask(team.path, team.request(working(team)), headers)
    seen = team.recorder.exchanges[-1].compaction
    return [name for name, _, _ in seen.steps] if seen is not None else []


@EACH
async def test_sub_agents_have_thresholds_and_a_pipeline_of_their_own(protocol_name: str):
    config = "thresholds: {delegated: {conversation: 0.8}}\n"
    config += "compaction: {delegated: {pipeline: [keep_last_n_messages: {n: 6}]}}"
    # The request has about 1,700 words.
    # The request has about 1,700 words, and its tools some more.
    for window, theirs in ((2_900, []), (1_900, ["keep_last_n_messages"])):
        assert await compactors(Team(protocol_name, window=window, config=config), "a") == theirs
        assert await compactors(Team(protocol_name, window=window, config=config), "") == ["summarize"]


async def test_compaction_may_be_switched_off_for_sub_agents_alone():
    config = "compaction: {delegated: {mode: 'off'}}"
    assert await compactors(Team(window=1_900, config=config), "a") == []
    assert await compactors(Team(window=1_900, config=config), "") != []


@EACH
async def test_what_a_sub_agent_was_given_stays_in_what_is_sent(protocol_name: str):
    team = Team(protocol_name, window=1_700)
    assert await compactors(team, "a") != []
    sent = json.dumps(team.listed)
    # What stands for the rest becomes a part of it where speakers must alternate.
    assert sent.index(PROMPT) < sent.index("[Record of messages")
    assert protocol_name == "messages" or team.listed[0] == working(team)[0]


async def test_what_handed_a_conversation_over_stays_with_whom_it_was_handed_to():
    team = Team(window=1_700)
    team.parents = {}
    names = ["transfer_to_reader", "search"]
    tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in names]
    handed = call("h1", "transfer_to_reader", task="read the ledger, pages 7 to 19 only")
    begun = [team.user("Who owes?"), *team.answered(handed, "The reader goes on.")]
    await team.turn("", begun[:1], handed, tools=tools)
    told = [*begun, *working(team)[2:]]
    out, _ = await team.ask(team.path, team.request(told, tools[1:]))
    assert header(out, "x-accordion-session") != team.session
    seen = team.recorder.exchanges[-1].compaction
    assert seen is not None
    assert seen.state == "compacted"
    assert team.listed[:3] == told[:3]
