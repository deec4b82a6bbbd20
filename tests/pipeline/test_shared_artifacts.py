"""What agents of one branch read of each other, and how what one does not see is kept. In one process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accordion.archive.references import artifact_id
from accordion.model.tenant import TenantScope
from accordion.protocols.registry import PROTOCOLS, protocol_for
from tests.fakes import FakeReply, FakeWindows, FickleStore, WaitingTasks
from tests.pipeline_setup import CHAT, MESSAGES, PipelineSetup, header

Json = dict[str, Any]
SECRET = "the flag of b stands at 41,207 in the ledger"
PATHS = [CHAT, MESSAGES]


def call(path: str, call_id: str, name: str = "search", **arguments: Any) -> Json:
    """What the model says when it makes a call."""
    if path == CHAT:
        made = {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        return {"role": "assistant", "content": None, "tool_calls": [made]}
    return {"role": "assistant", "content": [{"type": "tool_use", "id": call_id, "name": name, "input": arguments}]}


def gives(path: str, call_id: str, text: str) -> Json:
    if path == CHAT:
        return {"role": "tool", "tool_call_id": call_id, "content": text}
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id, "content": text}]}


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def answer(path: str, said: Json) -> FakeReply:
    if path == CHAT:
        finish = "tool_calls" if said.get("tool_calls") else "stop"
        choice = {"index": 0, "message": said, "finish_reason": finish}
        document: Json = {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice]}
        document["usage"] = {"prompt_tokens": 50, "completion_tokens": 5, "total_tokens": 55}
    else:
        content = said["content"] if isinstance(said["content"], list) else [{"type": "text", "text": said["content"]}]
        reason = "tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn"
        document = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": content}
        document |= {"stop_reason": reason, "stop_sequence": None, "usage": {"input_tokens": 50, "output_tokens": 5}}
    body = json.dumps(document).encode()
    return FakeReply(headers=((b"content-type", b"application/json"),), pieces=(body,))


class Team(PipelineSetup):
    """Agents that declare their delegations: `a` and `b` work for `main`, `c` works for `a`."""

    parents = {"main": "", "a": "main", "b": "main", "c": "a"}  # noqa: RUF012  # never changed

    def __init__(self, path: str = CHAT, window: int = 100_000, **given: Any) -> None:
        super().__init__(windows=FakeWindows(window), tasks=WaitingTasks(), **given)
        self.path = path

    async def turn(self, who: str, listed: list[Json], *replies: Json, **fields: Any) -> Json:
        """A request of an agent's; gives what the client is answered."""
        self.upstream.answers += [answer(self.path, each) for each in replies or (self.assistant_entry("Well."),)]
        more = {"max_tokens": 100} if self.path == MESSAGES else {}
        headers = {"authorization": "Bearer of-the-team"}
        if who:
            headers["x-accordion-delegation"] = who
            if parent := self.parents.get(who):
                headers["x-accordion-parent"] = parent
        out, body = await self.ask(self.path, {"model": "m", "messages": listed, **more, **fields}, headers)
        assert out.status == 200, body
        self.session = header(out, "x-accordion-session") or ""
        await self.settle()
        return dict(json.loads(body))

    async def settle(self) -> None:
        await self.outbox.flush()
        assert isinstance(self.tasks, WaitingTasks)
        await self.tasks.run()
        await self.outbox.flush()

    def assistant_entry(self, text: str) -> Json:
        return {"role": "assistant", "content": text}

    @property
    def sent(self) -> list[Json]:
        """The bodies that the provider was sent."""
        return [json.loads(request.body) for request in self.upstream.requests if isinstance(request.body, bytes)]

    @property
    def offered(self) -> bool:
        """Whether our tool stood in the last one."""
        return "read_artifact" in json.dumps(self.sent[-1].get("tools", []))

    async def read(self, who: str, listed: list[Json], name: str) -> str:
        """What an agent is answered that calls our tool for this id."""
        await self.turn(who, listed, call(self.path, "ours", "read_artifact", id=name), self.assistant_entry("Read."))
        return json.dumps(self.sent[-1]["messages"][-1])

    async def shared(self, text: str = SECRET) -> tuple[list[Json], str]:
        """A list into which `b` wrote what it found, and the id of that."""
        task = user("find the flags")
        await self.turn("main", [task])
        await self.turn("a", [task])
        await self.turn("b", [task], call(self.path, "cb", q="flag"))
        self.of_b = self.session
        listed = [task, call(self.path, "cb", q="flag"), gives(self.path, "cb", text)]
        return listed, self.id_of(listed)

    def id_of(self, listed: list[Json]) -> str:
        """The id of the result that stands last in a list."""
        receiver, body = self.forward.reader.receiver, json.dumps({"model": "m", "messages": listed})
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


@pytest.mark.parametrize("path", PATHS)
async def test_a_result_that_is_hidden_is_kept_for_the_delegation_that_made_it(path: str):
    team = Team(path)
    listed, name = await team.shared()
    await team.turn("a", [*listed, team.assistant_entry("So."), user("and now a")])
    assert SECRET not in json.dumps(team.sent[-1])
    assert await team.sessions_of(name) == [team.of_b]
    spoken = PROTOCOLS
    text = await team.builder.artifact_text(name, team.tenant, spoken)
    assert text is not None
    assert text.endswith(SECRET)


async def test_it_is_kept_once_and_off_the_request_path():
    team = Team()
    listed, name = await team.shared()
    asked = [*listed, team.assistant_entry("So."), user("and now a")]
    writes: list[int] = []
    write = team.builder.archive.write

    async def counted(puts: Any, *, minor: bool = False) -> None:
        if not minor:
            writes.append(len(puts))
        await write(puts, minor=minor)

    team.builder.archive.write = counted  # type: ignore[method-assign]
    await team.forward(team.inbound(CHAT, {"model": "m", "messages": asked}, {"x-accordion-delegation": "a"}))
    assert writes == []
    await team.turn("a", asked)
    await team.turn("a", [*asked, team.assistant_entry("Well."), user("go on")])
    assert len(writes) == 1
    assert await team.sessions_of(name) == [team.of_b]


async def test_what_could_not_be_kept_is_kept_with_a_later_request():
    store = FickleStore()
    team = Team(store=store)
    listed, name = await team.shared()
    asked = [*listed, team.assistant_entry("So."), user("and now a")]
    inbound = team.inbound(CHAT, {"model": "m", "messages": asked}, {"x-accordion-delegation": "a"})
    out = await team.forward(inbound)
    assert not isinstance(out.body, bytes)
    assert [piece async for piece in out.body]
    store.away = True
    await team.tasks.run()  # type: ignore[attr-defined]
    store.away = False
    assert await team.sessions_of(name) == []
    await team.turn("a", [*asked, team.assistant_entry("Well."), user("go on")])
    assert await team.sessions_of(name) == [team.of_b]


async def test_an_empty_result_and_that_of_a_hand_off_make_no_artifact():
    team = Team()
    listed, name = await team.shared("")
    await team.turn("a", [*listed, team.assistant_entry("So."), user("and now a")])
    assert await team.sessions_of(name) == []


async def test_erasing_a_session_erases_what_was_hidden_of_it():
    team = Team()
    listed, name = await team.shared()
    await team.turn("a", [*listed, team.assistant_entry("So."), user("and now a")])
    caller = team.forward.tenants.identify({})
    await team.builder.export_and_erasure.erase(caller.tenant, team.of_b)
    assert await team.sessions_of(name) == []


# -- who may read ----------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("who", ["b", "main"])
async def test_its_own_delegation_and_the_one_that_it_works_for_read_it_by_its_id(path: str, who: str):
    team = Team(path)
    listed, name = await team.shared()
    await team.turn("a", [*listed, team.assistant_entry("So."), user("and now a")])
    assert SECRET in await team.read(who, [user(f"what says {name}?")], name)


async def test_a_delegation_of_its_own_reads_it():
    team = Team()
    team.parents = {**team.parents, "d": "b"}
    listed, name = await team.shared()
    await team.turn("a", [*listed, team.assistant_entry("So."), user("and now a")])
    assert SECRET in await team.read("d", [user(f"what says {name}?")], name)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("who", ["a", "c"])
async def test_a_siblings_id_is_answered_like_an_unknown_one(path: str, who: str):
    team = Team(path)
    listed, name = await team.shared()
    asked = [*listed, team.assistant_entry("So."), user(f"b says {name}")]
    await team.turn(who, asked)
    assert not team.offered
    # Something else that it may read stands there too.
    begun = [user("own work"), call(path, "own", q="x"), gives(path, "own", "what a found itself")]
    await team.turn("a", begun[:1], begun[1])
    await team.turn("b", [*begun, team.assistant_entry("So."), user("b here")])
    told = [user(f"b says {name}; a says {team.id_of(begun)}; nobody says art_0123456789ab")]
    refused = await team.read(who, told, name)
    assert team.offered
    assert SECRET not in refused
    unknown = await team.read(who, told, "art_0123456789ab")
    assert refused == unknown.replace("art_0123456789ab", name)
    assert "what a found itself" in await team.read(who, told, team.id_of(begun))


async def test_an_id_that_does_not_stand_in_its_list_is_unknown_to_its_own_delegation():
    team = Team()
    listed, name = await team.shared()
    await team.turn("a", [*listed, team.assistant_entry("So."), user("and now a")])
    own = [*listed, team.assistant_entry("So."), user("b again")]
    await team.turn("c", [*own, user("c")])
    begun = [user("own work"), call(CHAT, "own", q="x"), gives(CHAT, "own", "what b found later")]
    await team.turn("b", begun[:1], begun[1])
    await team.turn("a", [*begun, team.assistant_entry("So."), user("a here")])
    shown = [user(f"what says {team.id_of(begun)}?")]
    assert "what b found later" in await team.read("b", shown, team.id_of(begun))
    assert "There is no artifact" in await team.read("b", shown, name)


async def test_another_tenant_reads_nothing_by_an_id_that_it_is_shown():
    team = Team(loopback=False)
    name = await compacted(team)
    await team.turn("b", [user(f"what says {name}?")])
    assert team.offered
    headers = {"authorization": "Bearer of-another", "x-accordion-delegation": "b", "x-accordion-parent": "main"}
    team.upstream.answers.append(answer(CHAT, team.assistant_entry("Well.")))
    await team.ask(CHAT, {"model": "m", "messages": [user(f"what says {name}?")]}, headers)
    assert not team.offered


# -- what a compaction of the parent's took out -------------------------------------------


def long(path: str, mine: str, task: str = "the task of main") -> list[Json]:
    """A conversation that is compacted in a window of 3,000 words."""
    listed = [user(task)]
    for at in range(20):
        text = f"{mine}{at} " + " ".join(f"r{at}_{word}" for word in range(200))
        listed += [call(path, f"m{at}", q=str(at)), gives(path, f"m{at}", text)]
    return [*listed, {"role": "assistant", "content": "Done."}, user("What is next?")]


async def compacted(team: Team, who: str = "main", task: str = "the task of main") -> str:
    """The id of a result that left the window of an agent."""
    team.windows.size = 3_000
    await team.turn(who, long(team.path, f"{task}, finding-", task))
    team.windows.size = 100_000
    for record in await team.builder.archive.list_artifacts(team.tenant, team.session):
        if record.kind == "result" and '"3"' in record.arguments:
            return record.id
    raise AssertionError("nothing was compacted")


@pytest.mark.parametrize("path", PATHS)
async def test_a_sub_agent_that_is_given_a_reference_gets_the_tool_to_read_it(path: str):
    team = Team(path)
    name = await compacted(team)
    task = [user(f"Look into {name} and say what it holds.")]
    assert "finding-3" in await team.read("a", task, name)
    assert team.offered
    # What was read stays where it was read, as behind a compaction.
    before = team.sent[-1]["messages"]
    await team.turn("a", [*task, team.assistant_entry("Read."), user("and now?")])
    assert team.offered
    assert team.sent[-1]["messages"][: len(before)] == before
    assert "finding-3" in json.dumps(before)


@pytest.mark.parametrize("path", PATHS)
async def test_what_a_sub_agent_read_goes_with_its_first_compaction_and_the_tool_stays(path: str):
    team = Team(path)
    name = await compacted(team)
    task = [user(f"Look into {name} and say what it holds.")]
    assert "finding-3 r3_0 r3_1" in await team.read("a", task, name)
    grown = [*task, team.assistant_entry("Read."), *long(path, "mine-", "go on")]
    team.windows.size = 3_000
    await team.turn("a", grown)
    seen = team.recorder.exchanges[-1].compaction
    assert seen is not None
    assert (seen.state, team.offered) == ("compacted", True)
    assert "finding-3 r3_0 r3_1" not in json.dumps(team.sent[-1]["messages"])
    assert name in json.dumps(team.sent[-1]["messages"][0])
    own = [
        each.id
        for each in await team.builder.archive.list_artifacts(team.tenant, team.session)
        if each.kind == "result"
    ]
    assert "mine-" in await team.read("a", [*grown, team.assistant_entry("Well."), user("again")], own[0])


async def test_the_top_level_of_the_clients_own_session_is_read_too():
    team = Team()
    name = await compacted(team, "")
    team.parents = {**team.parents, "e": team.session}
    assert "finding-3" in await team.read("e", [user(f"see {name}")], name)


async def test_an_unrelated_conversation_is_not_read_by_an_id_that_is_quoted():
    team = Team()
    name = await compacted(team, "")
    await team.turn("", [user("another conversation")])
    team.parents = {**team.parents, "e": team.session}
    await team.turn("e", [user(f"see {name}")])
    assert not team.offered


async def test_an_unrelated_conversation_is_not_read_beside_one_that_may_be():
    team = Team()
    theirs = await compacted(team, "", "another task")
    name = await compacted(team, "")
    assert theirs != name
    team.parents = {**team.parents, "e": team.session}
    shown = [user(f"see {name} and {theirs}")]
    assert "There is no artifact" in await team.read("e", shown, theirs)
    assert "finding-3" in await team.read("e", shown, name)


async def test_findings_of_a_sibling_that_the_parent_compacted_are_not_read():
    """The parent saw them, so its compaction keeps them: under an id that the sibling is shown they stay hidden."""
    team = Team()
    await team.turn("b", [user("the task of main")], call(CHAT, "m3", q="3"))
    name = await compacted(team)
    assert await team.sessions_of(name) == [team.session]
    shown = [user("the task of main"), team.assistant_entry("Hm."), user(f"see {name}")]
    assert "finding-3" not in await team.read("a", shown, name)
    assert "finding-3" in await team.read("b", shown, name)


async def test_a_request_at_the_top_is_sent_as_it_came_whatever_ids_stand_in_it():
    team = Team()
    name = await compacted(team, "")
    inbound = team.inbound(CHAT, {"model": "m", "messages": [user(f"see {name}")]})
    await team.forward(inbound)
    assert team.upstream.requests[-1].body == inbound.body


async def test_a_sub_agent_is_sent_as_it_came_where_nothing_can_be_read():
    team = Team()
    body = {"model": "m", "messages": [user("see art_0123456789ab")]}
    inbound = team.inbound(CHAT, body, {"x-accordion-delegation": "a"})
    await team.forward(inbound)
    assert team.upstream.requests[-1].body == inbound.body


@pytest.mark.parametrize("word", ["off", "observe"])
async def test_a_request_that_is_not_to_be_changed_is_offered_nothing(word: str):
    team = Team()
    name = await compacted(team)
    body = {"model": "m", "messages": [user(f"see {name}")]}
    headers = {"x-accordion-delegation": "a", "x-accordion-parent": "main", "x-accordion-compact": word}
    inbound = team.inbound(CHAT, body, headers)
    await team.forward(inbound)
    assert team.upstream.requests[-1].body == inbound.body


# -- what is only observed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
async def test_a_session_switched_to_observe_hides_nothing_until_reset(path: str):
    team = Team(path)
    listed, _ = await team.shared()
    messages = [*listed, team.assistant_entry("So."), user("and now a")]
    await team.turn("a", messages)
    assert SECRET not in json.dumps(team.sent[-1])
    session, overrides = team.session, team.builder.session_overrides
    await overrides.set_mode(team.tenant, session, "observe")
    for text in ("go on", "and on"):
        messages = [*messages, team.assistant_entry("Well."), user(text)]
        await team.turn("a", messages)
        assert team.sent[-1]["messages"] == messages
        assert team.session == session
    await overrides.set_mode(team.tenant, session, "auto")
    # The provider has the result in its prompt cache now, so it stays; the next one is hidden.
    await team.turn("b", messages, call(path, "cb2", q="more"))
    messages = [*messages, call(path, "cb2", q="more"), gives(path, "cb2", "another find"), user("now a again")]
    await team.turn("a", messages)
    sent = json.dumps(team.sent[-1])
    assert SECRET in sent
    assert "another find" not in sent
    assert team.session == session


async def test_counting_an_observed_session_counts_all_and_records_nothing():
    team = Team(MESSAGES)
    listed, _ = await team.shared()
    messages = [*listed, team.assistant_entry("So."), user("and now a")]
    await team.turn("a", messages)
    await team.builder.session_overrides.set_mode(team.tenant, team.session, "observe")
    nodes = dict(team.sessions.prefix_index.nodes)
    body = {"model": "m", "messages": [*messages, team.assistant_entry("Well."), user("go on")]}
    inbound = team.inbound(f"{MESSAGES}/count_tokens", body, {"x-accordion-delegation": "a"})
    await team.forward(inbound)
    assert team.sent[-1]["messages"] == body["messages"]
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
    listed, _ = await team.shared()
    messages = [*listed, team.assistant_entry("So."), user("and now a")]
    await team.turn("a", messages)
    assert (SECRET not in json.dumps(team.sent[-1])) is is_hidden
    assert (team.sent[-1]["messages"] == messages) is not is_hidden
