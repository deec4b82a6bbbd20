"""A session memory that the user asks for stands in the conversation from then on. In one process."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from accordion.features.memory.memories import Memory
from accordion.features.memory.memory_mentions import MemoryMentions
from accordion.features.memory.session.import_requests import unknown_notice, unreachable_notice
from accordion.features.memory.session_import import SessionImport
from accordion.model.conversation import Message, Text, ToolResult
from accordion.model.errors import StoreUnavailable
from accordion.model.tenant import TenantScope
from accordion.sessions.proxy_keys import ProxyKey
from tests.fakes import FakeReply, FakeWindows
from tests.features.memory.fake_memories import FakeMemories
from tests.features.memory.memory_turns import is_forwarded_unchanged, store_memories
from tests.http.api_client import client
from tests.insertions.test_artifact_recall import (
    LISTING,
    PATHS,
    assistant_entry,
    build_request,
    call_entry,
    sent,
    user_entry,
)
from tests.pipeline.test_compact import refused
from tests.pipeline.test_estimates import LONG, SOURCE
from tests.pipeline_setup import CHAT, MESSAGES, RESPONSES, PipelineSetup, header

Json = dict[str, Any]
ID, NONE = "CMEM-20260101-100510", "CMEM-20260101-100511"
ASK = f"Please import memory {ID}"
TOLD = "The ledger moves to region eu-west-7 on Thursday."


class Counted(FakeMemories):
    """Notes what is looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, ...]] = []

    async def get(self, tenant: TenantScope, ids: Any) -> list[Memory | None]:
        self.asked.append(tuple(ids))
        if self.away:
            raise StoreUnavailable("away")
        return await super().get(tenant, ids)


def proxy_setup(memories: FakeMemories, **given: Any) -> PipelineSetup:
    made = PipelineSetup(mentions=MemoryMentions(), windows=FakeWindows(given.pop("window", 4_000)), **given)
    importing = SessionImport(
        lambda: memories, made.builder.insertion_store, made.clock, lambda text, _model: len(text.split())
    )
    made.replace_in("compaction_step", recall_sources=[importing, *made.forward.prepare.compaction_step.recall_sources])
    return made


def saved(of: PipelineSetup, memories: FakeMemories, key: str = "", text: str = TOLD) -> None:
    store_memories(of, memories, Memory(ID, "session", text), key=key)


def ready(text: str = TOLD, **given: Any) -> tuple[PipelineSetup, Counted]:
    """A setup with the memory stored."""
    memories = Counted()
    made = proxy_setup(memories, **given)
    saved(made, memories, text=text)
    return made, memories


def imported_positions(listed: list[Json]) -> list[int]:
    """In which entries something of a session memory stands."""
    return [at for at, entry in enumerate(listed) if "[Session memory" in json.dumps(entry)]


@pytest.mark.parametrize("path", PATHS)
async def test_it_stands_behind_the_very_first_message_and_stays_byte_for_byte(path: str):
    made, memories = ready()
    history = [user_entry(path, ASK)]
    out, _ = await made.ask(path, build_request(path, *history))
    before = sent(made, path)
    assert TOLD in json.dumps(before)
    assert imported_positions(before) == [1 if path == RESPONSES else 0]
    assert json.dumps(before).index(ASK) < json.dumps(before).index(TOLD)
    assert header(out, "x-accordion-memory") == f"{ID} imported"
    for number in range(3):
        history += [assistant_entry(path, f"Done {number}."), user_entry(path, f"Go on {number}.")]
        out, _ = await made.ask(path, build_request(path, *history))
        now = sent(made, path)
        assert now[: len(before)] == before
        assert json.dumps(now).count(TOLD) == 1
        assert header(out, "x-accordion-memory") is None
        before = now
    assert memories.asked == [(ID,)]


@pytest.mark.parametrize("path", PATHS)
async def test_the_reconstructed_request_has_it_too_long_after_it_was_asked_for(path: str):
    made, _ = ready(config="archive: {record: all}")
    history = [user_entry(path, ASK)]
    await made.ask(path, build_request(path, *history))
    history += [assistant_entry(path, "Done."), user_entry(path, "Go on.")]
    out, _ = await made.ask(path, build_request(path, *history))
    await made.archive.transcripts.flush()
    sent_body = client(made).get(f"/accordion/sessions/{header(out, 'x-accordion-session')}/sent").json()
    assert sent_body[LISTING[path]] == sent(made, path)
    assert TOLD in json.dumps(sent_body)


@pytest.mark.parametrize("name", [ID.lower(), ID.capitalize()])
async def test_the_case_of_an_id_does_not_matter(name: str):
    made, _ = ready()
    out, _ = await made.ask(CHAT, build_request(CHAT, user_entry(CHAT, f"Please import memory {name}")))
    assert header(out, "x-accordion-memory") == f"{ID} imported"
    assert TOLD in json.dumps(sent(made, CHAT))


async def test_the_one_text_that_responses_takes_as_its_list_is_written_as_an_item():
    made, _ = ready()
    await made.ask(RESPONSES, {"model": "gpt-5", "input": ASK})
    one, two = sent(made, RESPONSES)
    assert (one["role"], two["role"]) == ("user", "user")
    assert ASK in json.dumps(one)
    assert TOLD in json.dumps(two)
    await made.ask(
        RESPONSES,
        build_request(
            RESPONSES, user_entry(RESPONSES, ASK), assistant_entry(RESPONSES, "Done."), user_entry(RESPONSES, "Go on.")
        ),
    )
    assert sent(made, RESPONSES)[1] == two


@pytest.mark.parametrize("path", PATHS)
async def test_an_id_of_which_there_is_nothing_is_said_plainly_and_stays(path: str):
    memories = Counted()
    made = proxy_setup(memories)
    out, _ = await made.ask(path, build_request(path, user_entry(path, ASK)))
    before = sent(made, path)
    assert unknown_notice(ID) in json.dumps(before)
    assert header(out, "x-accordion-memory") == f"{ID} unknown"
    await made.ask(
        path,
        build_request(path, user_entry(path, ASK), assistant_entry(path, "There is none."), user_entry(path, "Go on.")),
    )
    assert sent(made, path)[: len(before)] == before


@pytest.mark.parametrize("path", PATHS)
async def test_another_tenants_memory_is_unknown(path: str):
    memories = Counted()
    made = proxy_setup(memories, keys=(ProxyKey("one", "key-1"), ProxyKey("two", "key-2")))
    saved(made, memories, "key-1")
    for key, there in (("key-2", False), ("key-1", True), ("key-2", False)):
        await made.ask(
            path, build_request(path, user_entry(path, ASK)), {"x-accordion-key": key, "authorization": "Bearer sk-own"}
        )
        listed = json.dumps(sent(made, path))
        assert (TOLD in listed) is there
        assert (unknown_notice(ID) in listed) is not there


async def test_a_session_memory_erased_meanwhile_is_neither_inserted_nor_kept():
    class Erasing(Counted):
        async def get(self, tenant: TenantScope, ids: Any) -> list[Memory | None]:
            made.clock.advance(1)
            await made.archive.erasures.publish(tenant, made.recorder.exchanges[0].session)
            return await super().get(tenant, ids)

    memories = Erasing()
    made = proxy_setup(memories)
    saved(made, memories)
    first = build_request(CHAT, user_entry(CHAT, "Hello."))
    await made.ask(CHAT, first)
    body = build_request(CHAT, user_entry(CHAT, "Hello."), assistant_entry(CHAT, "Hi."), user_entry(CHAT, ASK))
    out, _ = await made.ask(CHAT, body)
    assert is_forwarded_unchanged(made, body)
    assert header(out, "x-accordion-memory") is None
    assert (made.builder.insertion_store.size, await stored_insertion_names(made)) == (0, [])


async def stored_insertion_names(made: PipelineSetup) -> list[str]:
    return [name for name, _ in await made.store.scan("") if name.startswith("insertion/")]


async def test_asked_for_again_in_the_same_words_it_is_looked_up_again():
    """What was not there a moment ago may be now; and what was deleted does not come back."""
    memories = Counted()
    made = proxy_setup(memories)
    await made.ask(CHAT, build_request(CHAT, user_entry(CHAT, ASK)))
    assert TOLD not in json.dumps(sent(made, CHAT))
    saved(made, memories)
    made.clock.advance(5)
    await made.ask(CHAT, build_request(CHAT, user_entry(CHAT, ASK)))
    assert TOLD in json.dumps(sent(made, CHAT))
    assert unknown_notice(ID) not in json.dumps(sent(made, CHAT))
    memories.tenants.clear()
    made.clock.advance(5)
    await made.ask(CHAT, build_request(CHAT, user_entry(CHAT, ASK)))
    assert TOLD not in json.dumps(sent(made, CHAT))


async def test_memories_that_are_away_are_told_of_in_one_line():
    made, memories = ready()
    memories.away = True
    out, _ = await made.ask(CHAT, build_request(CHAT, user_entry(CHAT, ASK)))
    assert out.status == 200
    assert unreachable_notice(ID) in json.dumps(sent(made, CHAT))
    assert header(out, "x-accordion-memory") == f"{ID} unavailable"
    memories.away = False
    made.clock.advance(5)
    await made.ask(CHAT, build_request(CHAT, user_entry(CHAT, ASK)))
    assert TOLD in json.dumps(sent(made, CHAT))


async def test_an_imported_memory_stays_while_the_memories_are_unavailable():
    made, memories = ready()
    await made.ask(CHAT, build_request(CHAT, user_entry(CHAT, ASK)))
    memories.away = True
    await made.ask(CHAT, build_request(CHAT, user_entry(CHAT, ASK)))
    one, two = made.upstream.requests
    assert one.body == two.body


@pytest.mark.parametrize("path", PATHS)
async def test_one_that_there_is_no_room_for_is_told_of(path: str):
    memories = Counted()
    made = proxy_setup(memories, window=1_000)
    saved(made, memories, text="word " * 2_000)
    out, _ = await made.ask(path, build_request(path, user_entry(path, ASK)))
    assert header(out, "x-accordion-memory") == f"{ID} too long"
    assert "do not fit into" in json.dumps(sent(made, path))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "text", ["What is next?", f"What is {ID}?", f"Do not import {ID}.", f"> {ASK}", "Please import memory CMEM-1"]
)
async def test_a_request_without_an_import_is_sent_unchanged(path: str, text: str):
    memories = Counted()
    made = proxy_setup(memories)
    body = build_request(path, user_entry(path, "Hello."), assistant_entry(path, "Hi."), user_entry(path, text))
    await made.ask(path, body)
    assert is_forwarded_unchanged(made, body)
    assert memories.asked == []


@pytest.mark.parametrize("path", PATHS)
async def test_a_tool_result_starts_no_import(path: str):
    made, memories = ready()
    body = build_request(path, user_entry(path, "Look."), *call_entry(path, "c1", ASK, path="a.txt"))
    await made.ask(path, body)
    assert is_forwarded_unchanged(made, body)
    assert memories.asked == []


@pytest.mark.parametrize("path", PATHS)
async def test_words_that_went_unanswered_are_not_heard_twice(path: str):
    made, _ = ready()
    await made.ask(path, build_request(path, user_entry(path, ASK)))
    await made.ask(path, build_request(path, user_entry(path, ASK), user_entry(path, "And go on.")))
    assert json.dumps(sent(made, path)).count(TOLD) == 1


async def test_only_what_is_new_of_a_list_is_looked_through_for_a_session_memory():
    made = PipelineSetup(mentions=MemoryMentions(), windows=FakeWindows(4_000))
    mentions = made.mentions
    assert isinstance(mentions, MemoryMentions)
    await made.ask(CHAT, build_request(CHAT, user_entry(CHAT, "hello")))
    await made.ask(
        CHAT, build_request(CHAT, user_entry(CHAT, "hello"), assistant_entry(CHAT, "hi"), user_entry(CHAT, "go on"))
    )
    assert [found for found, _ in mentions._mentions._entries.values()] == [False, False]
    longer = [
        user_entry(CHAT, "hello"),
        assistant_entry(CHAT, "hi"),
        user_entry(CHAT, "go on"),
        assistant_entry(CHAT, "so I do"),
        user_entry(CHAT, ASK),
    ]
    await made.ask(CHAT, build_request(CHAT, *longer))
    await made.ask(CHAT, build_request(CHAT, *longer, assistant_entry(CHAT, "here it is"), user_entry(CHAT, "thanks")))
    assert [found for found, _ in mentions._mentions._entries.values()] == [False, False, True, True]


@pytest.mark.parametrize(("model", "left"), [("claude-opus-5-5", 0), ("claude-sonnet-4-5", 1)])
async def test_an_import_that_no_longer_fits_leaves_with_its_bound_thinking(model: str, left: int) -> None:
    memories = FakeMemories()
    made = proxy_setup(memories)
    saved(made, memories, text="ledger " * 1_200)
    history = [user_entry(MESSAGES, ASK)]
    await made.ask(MESSAGES, build_request(MESSAGES, *history, model=model))
    assert imported_positions(sent(made, MESSAGES)) == [0]
    thought = {"type": "thinking", "thinking": "hm", "signature": "c2lnbmVk" * 9}
    history += [
        {"role": "assistant", "content": [thought, {"type": "text", "text": "Done."}]},
        user_entry(MESSAGES, "Go on."),
    ]
    made.upstream.answers = [refused(1_000, 1_300), FakeReply()]
    out, _ = await made.ask(MESSAGES, build_request(MESSAGES, *history, model=model))
    now = sent(made, MESSAGES)
    assert (out.status, imported_positions(now)) == (200, [])
    assert json.dumps(now).count("signature") == left


def match_of(*messages: Message) -> Any:
    return SimpleNamespace(conversation=SimpleNamespace(chain=(), messages=messages), base_index=-1, scope=b"")


@pytest.mark.parametrize("shift", range(6))
@pytest.mark.parametrize("name", ["CMEM-", "cmem-", "Cmem-", "other"])
def test_an_id_is_found_wherever_it_stands_in_a_large_text(name: str, shift: int):
    text = "x" * ((1 << 20) - shift) + name + "x" * (1 << 20)
    match = match_of(Message(b"", "user", (Text("Hello."), Text(text)), b""))
    assert MemoryMentions().may_mention(match) == (name != "other")


def test_only_texts_of_the_user_are_searched_for_ids():
    result = Message(b"", "user", (ToolResult("c", (Text("CMEM-1"),)),), b"")
    response = Message(b"", "assistant", (Text("CMEM-1"),), b"")
    assert not MemoryMentions().may_mention(match_of(result, response))


async def test_a_very_large_body_is_searched_for_memories_in_a_thread() -> None:
    made = PipelineSetup(mentions=MemoryMentions())
    await made.ask(CHAT, build_request(CHAT, user_entry(CHAT, "word " * 1_000_000)))
    assert "may_mention" in made.tasks.offloaded


async def test_a_request_that_may_hold_a_memory_is_counted_before_it_is_sent() -> None:
    made = PipelineSetup(mentions=MemoryMentions(), windows=FakeWindows())
    made.replace_in("measurer", can_estimate=True)
    long = [{"role": "user", "content": "word " * LONG}]
    sources = []
    for text in ("Go on.", "Go on from CMEM-ABCDEFGH."):
        out, _ = await made.ask(CHAT, {"model": "m", "messages": [*long, {"role": "user", "content": text}]})
        sources.append(header(out, SOURCE))
    assert sources == ["estimate", None]
