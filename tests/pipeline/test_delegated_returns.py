"""What a sub-agent returns to the one that it works for, and how its own conversation is compacted. In one
process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accordion.model.records import Totals
from accordion.protocols.registry import PROTOCOLS
from tests.pipeline.test_shared_artifacts import Team, answer, call, gives, user
from tests.pipeline_setup import CHAT, MESSAGES, header

Json = dict[str, Any]
PATHS = [CHAT, MESSAGES]
PROMPT = "Read the ledger of the harbour from its first page on and tell me which ships owe a fee."


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

    async def delegated(self, path: str) -> list[Json]:
        """The main agent's list once the sub-agent has returned."""
        listed = [user("Who owes the harbour a fee?")]
        made = call(path, "t1", "Task", prompt=PROMPT, subagent_type="Reader")
        await self.turn("", listed, made)
        self.main = self.session
        await self.turn("", [user(PROMPT)], self.assistant_entry(REPORT))
        self.child = self.session
        assert self.child != self.main
        return [*listed, made, gives(path, "t1", REPORT)]

    def working(self, path: str, listed: list[Json], pages: int = 9) -> list[Json]:
        """The list after ten calls of tools, each with so many lines."""
        for at in range(10):
            listed = [*listed, call(path, f"c{at}", q=str(at)), gives(path, f"c{at}", " ".join(lines(pages, f"r{at}")))]
        return [*listed, self.assistant_entry("Well."), user("And now?")]

    async def artifact(self, call_id: str) -> Any:
        """The only artifact that holds the result of a call of the main agent's."""
        listed = await self.builder.archive.list_artifacts(self.tenant, self.main)
        [found] = [each for each in listed if each.kind == "result" and each.call_id == call_id]
        return found


@pytest.mark.parametrize("path", PATHS)
async def test_under_pressure_a_result_becomes_a_digest_with_agent_and_session(path: str):
    team = Ship(path, window=9_000, config=TARGET)
    listed = await team.delegated(path)
    await team.turn("", team.working(path, listed))
    assert team.session == team.main
    [compaction] = [each.compaction for each in team.recorder.exchanges if each.compaction is not None]
    assert [name for name, _, _ in compaction.steps] == ["compact_tool_results", "delegated_digests"]
    sent = json.dumps(team.sent[-1])
    assert f"(session {team.child}) to Task(" in sent
    assert "- the Anna owes 312 since May" in sent
    assert "In short: one ship owes." in sent
    assert "p30" not in sent
    # The whole of it is one artifact of the main agent, linked to the conversation that it came from.
    kept = await team.artifact("t1")
    assert (kept.session, kept.child, kept.tool) == (team.main, team.child, "Task")
    assert kept.id in sent
    assert team.child in kept.description
    spoken = PROTOCOLS
    text = await team.builder.artifact_text(kept.id, team.tenant, spoken)
    assert text is not None
    assert text.endswith(REPORT)


async def test_it_stays_whole_while_the_results_of_tools_are_enough():
    team = Ship(window=19_000, config="thresholds: {conversation_target: 0.45}")
    listed = await team.delegated(CHAT)
    await team.turn("", team.working(CHAT, listed, pages=60))
    [compaction] = [each.compaction for each in team.recorder.exchanges if each.compaction is not None]
    assert [name for name, _, _ in compaction.steps] == ["compact_tool_results"]
    assert "p30" in json.dumps(team.sent[-1])


async def test_what_a_summary_takes_in_is_still_linked_to_the_childs_session():
    team = Ship(window=9_000, config="compaction: {pipeline: [summarize]}")
    listed = await team.delegated(CHAT)
    await team.turn("", team.working(CHAT, listed))
    kept = await team.artifact("t1")
    assert (kept.child, team.child in kept.description) == (team.child, True)
    assert (await team.artifact("c0")).child == ""


async def test_a_return_of_an_agent_that_nobody_knows_is_a_result_like_any_other():
    team = Ship(window=9_000, config=TARGET)
    listed = [user("Who owes the harbour a fee?"), call(CHAT, "t1", "Task", prompt=PROMPT), gives(CHAT, "t1", REPORT)]
    await team.turn("", team.working(CHAT, listed))
    assert "Result of Task(" in json.dumps(team.sent[-1])


async def test_an_id_that_is_used_for_another_call_too_links_neither():
    team = Ship(window=9_000, config=TARGET)
    listed = await team.delegated(CHAT)
    again = [*listed, call(CHAT, "t1", q="0"), gives(CHAT, "t1", "Nothing here.")]
    await team.turn("", team.working(CHAT, again))
    assert "(session " not in json.dumps(team.sent[-1])
    assert {each.child for each in await team.builder.archive.list_artifacts(team.tenant, team.main)} == {""}


@pytest.mark.parametrize("path", PATHS)
async def test_the_main_agents_tokens_are_its_own(path: str):
    team = Ship(path)
    listed = await team.delegated(path)
    await team.turn("", [*listed, team.assistant_entry("One."), user("And now?")])
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
    task = user("find the flags")
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


def working(path: str, rounds: int = 12) -> list[Json]:
    listed = [user("Context: the harbour has nine berths."), user(PROMPT)] if path == CHAT else [user(PROMPT)]
    for at in range(rounds):
        listed += [call(path, f"c{at}", q=str(at)), gives(path, f"c{at}", " ".join(lines(9, f"r{at}")))]
    return [*listed, {"role": "assistant", "content": "Well."}, user("And now?")]


async def compactors(team: Team, path: str, who: str) -> list[str]:
    """Which strategies compacted an agent's request."""
    headers = {"x-accordion-delegation": who} if who else {}
    team.upstream.answers.append(answer(path, team.assistant_entry("Well.")))
    more = {"max_tokens": 10} if path == MESSAGES else {}
    await team.ask(path, {"model": "m", "messages": working(path), **more}, headers)
    seen = team.recorder.exchanges[-1].compaction
    return [name for name, _, _ in seen.steps] if seen is not None else []


@pytest.mark.parametrize("path", PATHS)
async def test_sub_agents_have_thresholds_and_a_pipeline_of_their_own(path: str):
    config = "thresholds: {delegated: {conversation: 0.8}}\n"
    config += "compaction: {delegated: {pipeline: [keep_last_n_messages: {n: 6}]}}"
    # The request has about 1,700 words.
    for window, theirs in ((2_600, []), (1_900, ["keep_last_n_messages"])):
        assert await compactors(Team(path, window=window, config=config), path, "a") == theirs
        assert await compactors(Team(path, window=window, config=config), path, "") == ["summarize"]


async def test_compaction_may_be_switched_off_for_sub_agents_alone():
    config = "compaction: {delegated: {mode: 'off'}}"
    assert await compactors(Team(window=1_900, config=config), CHAT, "a") == []
    assert await compactors(Team(window=1_900, config=config), CHAT, "") != []


@pytest.mark.parametrize("path", PATHS)
async def test_what_a_sub_agent_was_given_stays_in_what_is_sent(path: str):
    team = Team(path, window=1_700)
    assert await compactors(team, path, "a") != []
    sent = json.dumps(team.sent[-1]["messages"])
    # What stands for the rest becomes a part of it where speakers must alternate.
    assert sent.index(PROMPT) < sent.index("[Record of messages")
    assert path == MESSAGES or team.sent[-1]["messages"][0] == working(path)[0]


async def test_what_handed_a_conversation_over_stays_with_whom_it_was_handed_to():
    team = Team(window=1_700)
    team.parents = {}
    names = ["transfer_to_reader", "search"]
    tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in names]
    handed = call(CHAT, "h1", "transfer_to_reader", task="read the ledger, pages 7 to 19 only")
    begun = [user("Who owes?"), handed]
    await team.turn("", begun[:1], handed, tools=tools)
    told = [*begun, gives(CHAT, "h1", "The reader goes on."), *working(CHAT)[2:]]
    out, _ = await team.ask(CHAT, {"model": "m", "messages": told, "tools": tools[1:]})
    assert header(out, "x-accordion-session") != team.session
    seen = team.recorder.exchanges[-1].compaction
    assert seen is not None
    assert seen.state == "compacted"
    assert team.sent[-1]["messages"][:3] == told[:3]
