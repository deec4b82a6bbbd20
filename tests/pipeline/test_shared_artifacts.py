"""What agents of one branch read of each other, and how what one does not see is kept. In one process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accordion.archive.references import artifact_id
from accordion.model.tenant import TenantScope
from accordion.protocols.registry import PROTOCOLS, protocol_for
from tests.agent_replies import TOOLS
from tests.fakes import FakeReply, FakeWindows, FickleStore, WaitingTasks
from tests.pipeline_setup import PATHS, PipelineSetup, header
from tests.reply_parts import Piece, ReplyCall, ReplyText, ScriptedReply, reply_document
from tests.writers import WRITERS, MadeCall

Json = dict[str, Any]
SECRET = "the flag of b stands at 41,207 in the ledger"
OF_A = {"x-accordion-delegation": "a", "x-accordion-parent": "main"}
EACH = pytest.mark.parametrize("protocol_name", WRITERS)


def call(call_id: str, tool: str = "search", **arguments: Any) -> ReplyCall:
    """A call that the model makes."""
    return ReplyCall(call_id, tool, json.dumps(arguments))


class Team(PipelineSetup):
    """Agents that declare their delegations: `a` and `b` work for `main`, `c` works for `a`, `d` for `b`."""

    parents = {"main": "", "a": "main", "b": "main", "c": "a", "d": "b"}  # noqa: RUF012  # never changed

    def __init__(self, protocol_name: str = "chat", window: int = 100_000, **given: Any) -> None:
        super().__init__(windows=FakeWindows(window), tasks=WaitingTasks(), **given)
        self.protocol_name, self.path, self.writer = protocol_name, PATHS[protocol_name], WRITERS[protocol_name]
        self.user, self.model = self.writer.user, self.writer.model

    def request(self, listed: list[Json], tools: list[Json] | None = None) -> Json:
        return self.writer.with_tools(self.writer.request("m", listed), tools or TOOLS[self.protocol_name])

    def answered(self, made: ReplyCall, result: str) -> list[Json]:
        """The entries of a call and its result."""
        answered = MadeCall(made.id, made.name, made.parsed_arguments, result)
        return [*self.writer.calls(answered), *self.writer.results(answered)]

    async def turn(self, who: str, listed: list[Json], *replies: Piece, tools: list[Json] | None = None) -> None:
        """A request of an agent's."""
        for piece in replies or (ReplyText("Well."),):
            document = reply_document(self.protocol_name, ScriptedReply(1, (piece,), 50, 5), {})
            self.upstream.answers.append(FakeReply(pieces=(json.dumps(document).encode(),)))
        headers = {"authorization": "Bearer of-the-team"}
        if who:
            headers["x-accordion-delegation"] = who
            if parent := self.parents.get(who):
                headers["x-accordion-parent"] = parent
        out, body = await self.ask(self.path, self.request(listed, tools), headers)
        assert out.status == 200, body
        self.session = header(out, "x-accordion-session") or ""
        await self.settle()

    async def settle(self) -> None:
        await self.outbox.flush()
        assert isinstance(self.tasks, WaitingTasks)
        await self.tasks.run()
        await self.outbox.flush()

    @property
    def sent(self) -> Json:
        """The body that the provider was sent last."""
        body = self.upstream.requests[-1].body
        assert isinstance(body, bytes)
        return dict(json.loads(body))

    @property
    def listed(self) -> list[Json]:
        """The list that the provider was sent last."""
        return list(self.sent[self.writer.listing])

    @property
    def is_offered(self) -> bool:
        """Whether our tool stood in the last request."""
        return "read_artifact" in json.dumps([self.sent.get("tools"), self.sent.get("toolConfig")])

    async def read(self, who: str, listed: list[Json], name: str) -> str:
        """What an agent is answered that calls our tool for this id."""
        await self.turn(who, listed, call("ours", "read_artifact", id=name), ReplyText("Read."))
        return json.dumps(self.listed[-1])

    async def shared(self, text: str = SECRET) -> tuple[list[Json], str]:
        """A list into which `b` wrote what it found, and the id of that."""
        task = self.user("find the flags")
        await self.turn("main", [task])
        await self.turn("a", [task])
        await self.turn("b", [task], call("cb", q="flag"))
        self.of_b = self.session
        listed = [task, *self.answered(call("cb", q="flag"), text)]
        return listed, self.id_of(listed)

    async def hidden(self, text: str = SECRET) -> tuple[list[Json], str]:
        """The list that `a` sent with what `b` found, which is hidden from it, and the id of that."""
        listed, name = await self.shared(text)
        listed += [self.model("So."), self.user("and now a")]
        await self.turn("a", listed)
        return listed, name

    def id_of(self, listed: list[Json]) -> str:
        """The id of the result that stands last in a list."""
        receiver, body = self.forward.reader.receiver, json.dumps(self.request(listed))
        read = receiver.body_reader.read(protocol_for(self.path, {}), body.encode(), self.tenant)
        return artifact_id(self.tenant, read.messages[-1].key, 0)

    @property
    def tenant(self) -> TenantScope:
        return self.forward.tenants.identify({b"authorization": b"Bearer of-the-team"}).tenant

    async def sessions_of(self, name: str) -> list[str]:
        """The sessions under which an artifact is kept."""
        records = await self.builder.archive.load_records(self.tenant, name)
        return [record.session for record in records]


# -- what is hidden is kept -----------------------------------------------------


@EACH
async def test_a_result_that_is_hidden_is_kept_for_the_delegation_that_made_it(protocol_name: str):
    team = Team(protocol_name)
    _, name = await team.hidden()
    assert SECRET not in json.dumps(team.sent)
    assert await team.sessions_of(name) == [team.of_b]
    text = await team.builder.artifact_text(name, team.tenant, PROTOCOLS)
    assert text is not None
    assert text.endswith(SECRET)


async def test_it_is_kept_once_and_off_the_request_path():
    team = Team()
    listed, name = await team.shared()
    asked = [*listed, team.model("So."), team.user("and now a")]
    writes: list[int] = []
    write = team.builder.archive.write

    async def counted(puts: Any, *, minor: bool = False) -> None:
        if not minor:
            writes.append(len(puts))
        await write(puts, minor=minor)

    team.builder.archive.write = counted  # type: ignore[method-assign]
    await team.forward(team.inbound(team.path, team.request(asked), OF_A))
    assert writes == []
    await team.turn("a", asked)
    await team.turn("a", [*asked, team.model("Well."), team.user("go on")])
    assert len(writes) == 1
    assert await team.sessions_of(name) == [team.of_b]


async def test_what_could_not_be_kept_is_kept_with_a_later_request():
    store = FickleStore()
    team = Team(store=store)
    listed, name = await team.shared()
    asked = [*listed, team.model("So."), team.user("and now a")]
    inbound = team.inbound(team.path, team.request(asked), OF_A)
    out = await team.forward(inbound)
    assert not isinstance(out.body, bytes)
    assert [piece async for piece in out.body]
    store.away = True
    await team.tasks.run()  # type: ignore[attr-defined]
    store.away = False
    assert await team.sessions_of(name) == []
    await team.turn("a", [*asked, team.model("Well."), team.user("go on")])
    assert await team.sessions_of(name) == [team.of_b]


async def test_an_empty_result_and_that_of_a_hand_off_make_no_artifact():
    team = Team()
    _, name = await team.hidden("")
    assert await team.sessions_of(name) == []


async def test_erasing_a_session_erases_what_was_hidden_of_it():
    team = Team()
    _, name = await team.hidden()
    caller = team.forward.tenants.identify({})
    await team.builder.export_and_erasure.erase(caller.tenant, team.of_b)
    assert await team.sessions_of(name) == []


# -- who may read ----------------------------------------------------------------


@pytest.mark.parametrize("who", ["b", "main", "d"])
async def test_its_own_delegation_and_those_above_and_below_it_read_it_by_its_id(who: str):
    team = Team()
    _, name = await team.hidden()
    assert SECRET in await team.read(who, [team.user(f"what says {name}?")], name)


@pytest.mark.parametrize("who", ["a", "c"])
async def test_a_siblings_id_is_answered_like_an_unknown_one(who: str):
    team = Team()
    listed, name = await team.shared()
    asked = [*listed, team.model("So."), team.user(f"b says {name}")]
    await team.turn(who, asked)
    assert not team.is_offered
    # Something else that it may read stands there too.
    begun = [team.user("own work"), *team.answered(call("own", q="x"), "what a found itself")]
    await team.turn("a", begun[:1], call("own", q="x"))
    await team.turn("b", [*begun, team.model("So."), team.user("b here")])
    told = [team.user(f"b says {name}; a says {team.id_of(begun)}; nobody says art_0123456789ab")]
    refused = await team.read(who, told, name)
    assert team.is_offered
    assert SECRET not in refused
    unknown = await team.read(who, told, "art_0123456789ab")
    assert refused == unknown.replace("art_0123456789ab", name)
    assert "what a found itself" in await team.read(who, told, team.id_of(begun))


async def test_an_id_that_does_not_stand_in_its_list_is_unknown_to_its_own_delegation():
    team = Team()
    listed, name = await team.hidden()
    own = [*listed, team.model("So."), team.user("b again")]
    await team.turn("c", [*own, team.user("c")])
    begun = [team.user("own work"), *team.answered(call("own", q="x"), "what b found later")]
    await team.turn("b", begun[:1], call("own", q="x"))
    await team.turn("a", [*begun, team.model("So."), team.user("a here")])
    shown = [team.user(f"what says {team.id_of(begun)}?")]
    assert "what b found later" in await team.read("b", shown, team.id_of(begun))
    assert "There is no artifact" in await team.read("b", shown, name)


async def test_another_tenant_reads_nothing_by_an_id_that_it_is_shown():
    team = Team(loopback=False)
    name = await compacted(team)
    await team.turn("b", [team.user(f"what says {name}?")])
    assert team.is_offered
    headers = {"authorization": "Bearer of-another", "x-accordion-delegation": "b", "x-accordion-parent": "main"}
    await team.ask(team.path, team.request([team.user(f"what says {name}?")]), headers)
    assert not team.is_offered


# -- what a compaction of the parent's took out -------------------------------------------


def long(team: Team, mine: str, task: str = "the task of main") -> list[Json]:
    """A conversation that is compacted in a window of 3,000 words."""
    listed = [team.user(task)]
    for at in range(20):
        text = f"{mine}{at} " + " ".join(f"r{at}_{word}" for word in range(200))
        listed += team.answered(call(f"m{at}", q=str(at)), text)
    return [*listed, team.model("Done."), team.user("What is next?")]


async def compacted(team: Team, who: str = "main", task: str = "the task of main") -> str:
    """The id of a result that left the window of an agent."""
    team.windows.size = 3_000
    await team.turn(who, long(team, f"{task}, finding-", task))
    team.windows.size = 100_000
    for record in await team.builder.archive.list_artifacts(team.tenant, team.session):
        if record.kind == "result" and '"3"' in record.arguments:
            return record.id
    raise AssertionError("nothing was compacted")


@EACH
async def test_a_sub_agent_that_is_given_a_reference_gets_the_tool_to_read_it(protocol_name: str):
    team = Team(protocol_name)
    name = await compacted(team)
    task = [team.user(f"Look into {name} and say what it holds.")]
    assert "finding-3" in await team.read("a", task, name)
    assert team.is_offered
    # What was read stays where it was read, as behind a compaction.
    before = team.listed
    await team.turn("a", [*task, team.model("Read."), team.user("and now?")])
    assert team.is_offered
    assert team.listed[: len(before)] == before
    assert "finding-3" in json.dumps(before)


async def test_what_a_sub_agent_read_goes_with_its_first_compaction_and_the_tool_stays():
    team = Team()
    name = await compacted(team)
    task = [team.user(f"Look into {name} and say what it holds.")]
    assert "finding-3 r3_0 r3_1" in await team.read("a", task, name)
    grown = [*task, team.model("Read."), *long(team, "mine-", "go on")]
    team.windows.size = 3_000
    await team.turn("a", grown)
    seen = team.recorder.exchanges[-1].compaction
    assert seen is not None
    assert (seen.state, team.is_offered) == ("compacted", True)
    assert "finding-3 r3_0 r3_1" not in json.dumps(team.listed)
    assert name in json.dumps(team.listed[0])
    own = [
        each.id
        for each in await team.builder.archive.list_artifacts(team.tenant, team.session)
        if each.kind == "result"
    ]
    assert "mine-" in await team.read("a", [*grown, team.model("Well."), team.user("again")], own[0])


async def test_the_top_level_of_the_clients_own_session_is_read_too():
    team = Team()
    name = await compacted(team, "")
    team.parents = {**team.parents, "e": team.session}
    assert "finding-3" in await team.read("e", [team.user(f"see {name}")], name)


async def test_an_unrelated_conversation_is_not_read_by_an_id_that_is_quoted():
    team = Team()
    name = await compacted(team, "")
    await team.turn("", [team.user("another conversation")])
    team.parents = {**team.parents, "e": team.session}
    await team.turn("e", [team.user(f"see {name}")])
    assert not team.is_offered


async def test_an_unrelated_conversation_is_not_read_beside_one_that_may_be():
    team = Team()
    theirs = await compacted(team, "", "another task")
    name = await compacted(team, "")
    assert theirs != name
    team.parents = {**team.parents, "e": team.session}
    shown = [team.user(f"see {name} and {theirs}")]
    assert "There is no artifact" in await team.read("e", shown, theirs)
    assert "finding-3" in await team.read("e", shown, name)


async def test_findings_of_a_sibling_that_the_parent_compacted_are_not_read():
    """The parent saw them, so its compaction keeps them: under an id that the sibling is shown they stay hidden."""
    team = Team()
    await team.turn("b", [team.user("the task of main")], call("m3", q="3"))
    name = await compacted(team)
    assert await team.sessions_of(name) == [team.session]
    shown = [team.user("the task of main"), team.model("Hm."), team.user(f"see {name}")]
    assert "finding-3" not in await team.read("a", shown, name)
    assert "finding-3" in await team.read("b", shown, name)


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({}, ""),
        (OF_A, "art_0123456789ab"),
        (OF_A | {"x-accordion-compact": "off"}, ""),
        (OF_A | {"x-accordion-compact": "observe"}, ""),
    ],
    ids=["at the top", "an unknown id", "off", "observe"],
)
async def test_a_request_to_which_nothing_is_offered_is_sent_as_it_came(headers: dict[str, str], name: str):
    team = Team()
    name = name or await compacted(team, "main" if headers else "")
    inbound = team.inbound(team.path, team.request([team.user(f"see {name}")]), headers)
    await team.forward(inbound)
    assert team.upstream.requests[-1].body == inbound.body


# -- what is only observed -------------------------------------------------------------------------------------------


async def test_a_session_switched_to_observe_hides_nothing_until_reset():
    team = Team()
    messages, _ = await team.hidden()
    assert SECRET not in json.dumps(team.sent)
    session, overrides = team.session, team.builder.session_overrides
    await overrides.set_mode(team.tenant, session, "observe")
    for text in ("go on", "and on"):
        messages = [*messages, team.model("Well."), team.user(text)]
        await team.turn("a", messages)
        assert team.listed == messages
        assert team.session == session
    await overrides.set_mode(team.tenant, session, "auto")
    # The provider has the result in its prompt cache now, so it stays; the next one is hidden.
    await team.turn("b", messages, call("cb2", q="more"))
    messages = [*messages, *team.answered(call("cb2", q="more"), "another find"), team.user("now a again")]
    await team.turn("a", messages)
    sent = json.dumps(team.sent)
    assert SECRET in sent
    assert "another find" not in sent
    assert team.session == session


async def test_counting_an_observed_session_counts_all_and_records_nothing():
    team = Team("messages")
    messages, _ = await team.hidden()
    await team.builder.session_overrides.set_mode(team.tenant, team.session, "observe")
    nodes = dict(team.sessions.prefix_index.nodes)
    body = team.request([*messages, team.model("Well."), team.user("go on")])
    inbound = team.inbound(f"{team.path}/count_tokens", body, {"x-accordion-delegation": "a"})
    await team.forward(inbound)
    assert team.listed == body["messages"]
    assert dict(team.sessions.prefix_index.nodes) == nodes


@pytest.mark.parametrize(
    ("settings", "is_hidden"),
    [
        ("mode: observe", False),
        ("delegated: {mode: observe}", False),
        ("models: {m: {mode: observe}}", False),
        ("mode: observe, delegated: {mode: auto}", True),
        ("mode: 'off'", True),
    ],
)
async def test_where_compaction_is_configured_as_observed_nothing_is_hidden(settings: str, is_hidden: bool):
    team = Team(config=f"compaction: {{{settings}}}")
    messages, _ = await team.hidden()
    assert (SECRET not in json.dumps(team.sent)) is is_hidden
    assert (team.listed == messages) is not is_hidden
