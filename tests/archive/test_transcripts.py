from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from itertools import count, islice
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.archive.archive import Archive, ArchivedMessage, CompactionWrite
from accordion.archive.archive_entries import TranscriptEntry, transcript_key
from accordion.archive.artifacts import make_packer, row_key
from accordion.archive.transcripts import TranscriptStore
from accordion.model.conversation import Conversation
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Append, Key, Put
from accordion.protocols.body_reader import BodyReader
from accordion.protocols.openai_responses.protocol import OpenAIResponses
from accordion.stores.encryption import AesSealer
from accordion.stores.memory_store import InMemoryStore
from tests.archive.archive_setup import DAY, KEY, OTHER, TENANT, ArchiveSetup, chat
from tests.compaction.compactor_setup import LoopTasks, read
from tests.fakes import FakeClock, FakeTasks


def message_texts(wires: list[bytes | None]) -> list[str | None]:
    return [json.loads(wire)["content"] if wire is not None else None for wire in wires]


async def all_of(setup: ArchiveSetup, session: str = "s-1") -> list[str | None]:
    return message_texts(await setup.transcripts.read(TENANT, session, 0, 10**6))


class Counting(InMemoryStore):
    """Notes the keys of what is written; may be away."""

    def __init__(self) -> None:
        super().__init__(max_bytes=2**30)
        self.written: list[str] = []
        self.away = False

    async def write(self, batch):
        if self.away:
            raise StoreUnavailable("away")
        self.written += [write.key.name for write in batch if isinstance(write, Put | Append)]
        await super().write(batch)

    def rows(self) -> int:
        count = sum(name.startswith("row/") for name in self.written)
        self.written.clear()
        return count


class Halting(InMemoryStore):
    """Takes `left` more batches, and then none; below 0: all."""

    left = -1

    async def write(self, batch):
        if self.left == 0:
            raise StoreUnavailable("away")
        self.left -= 1
        await super().write(batch)


class Slow(InMemoryStore):
    """Takes what is written, and answers when it is let."""

    def __init__(self) -> None:
        super().__init__(max_bytes=2**30)
        self.let = asyncio.Event()
        self.let.set()
        self.asked = asyncio.Event()

    async def write(self, batch):
        await super().write(batch)
        self.asked.set()
        await self.let.wait()

    @asynccontextmanager
    async def writing(self, work: Coroutine[None, None, None]) -> AsyncIterator[None]:
        """While what this work writes is not answered."""
        self.let.clear()
        self.asked.clear()
        task = asyncio.create_task(work)
        await self.asked.wait()
        yield
        self.let.set()
        await task


class DelayedTasks(LoopTasks):
    """Begins what is offloaded when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.let, self.held = asyncio.Event(), asyncio.Event()

    async def offload(self, call, *args):
        self.held.set()
        await self.let.wait()
        return await super().offload(call, *args)


async def test_messages_are_read_by_index_with_the_system_prompt_at_0():
    setup = ArchiveSetup()
    await setup.say("s-1", chat("Hello.", "Hi.", "And now?"))
    assert await all_of(setup) == ["You are an agent.", "Hello.", "Hi.", "And now?"]
    assert message_texts(await setup.transcripts.read(TENANT, "s-1", 1, 2)) == ["Hello.", "Hi."]
    assert message_texts(await setup.transcripts.read(TENANT, "s-1", 3, 9)) == ["And now?"]
    assert await setup.transcripts.read(TENANT, "s-1", 4, 9) == []
    assert await setup.transcripts.read(OTHER, "s-1", 0, 9) == []


async def test_only_what_is_new_is_written():
    store = Counting()
    setup = ArchiveSetup(store)
    texts = [f"{at}" for at in range(20)]
    await setup.say("s-1", chat(*texts))
    assert store.rows() == 21
    await setup.say("s-1", chat(*texts))
    assert store.written == []
    await setup.say("s-1", chat(*texts, "new", "newer"))
    assert store.rows() == 2
    assert await all_of(setup) == ["You are an agent.", *texts, "new", "newer"]


async def test_requests_that_come_at_once_are_written_together_and_in_order():
    store = Counting()
    setup = ArchiveSetup(store)
    for at in range(1, 12):
        setup.transcripts.record(TENANT, "s-1", chat(*map(str, range(at))), compacted=True)
    await setup.tasks.done()
    assert await all_of(setup) == ["You are an agent.", *map(str, range(11))]
    assert store.rows() == 12


async def test_of_concurrent_requests_only_those_are_logged_that_no_later_one_extends():
    store = InMemoryStore(max_bytes=2**30)
    setup = ArchiveSetup(store)
    other = chat("0", "else", system="You are another agent.")
    for request in (chat("0"), chat("0", "1"), chat("0", "1", "2"), other, chat("0", "1", "2", "3")):
        setup.transcripts.record(TENANT, "s-1", request, compacted=True)
    await setup.tasks.done()
    assert len(await store.read(transcript_key(TENANT.archive_namespace, "s-1"))) == 3
    assert await all_of(setup) == ["You are an agent.", "0", "1", "2", "3"]


async def test_records_within_a_moment_are_written_together():
    setup, gate = ArchiveSetup(), asyncio.Event()
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)
        await gate.wait()

    transcripts = TranscriptStore(setup.archive, setup.tasks, setup.clock, "all", wait)
    for number in range(3):
        transcripts.record(TENANT, f"s-{number}", chat("Hello."), compacted=False)
        await asyncio.sleep(0)
    assert await setup.store.read(transcript_key(TENANT.archive_namespace, "s-0")) == []
    gate.set()
    await setup.tasks.done()
    read = [message_texts(await transcripts.read(TENANT, f"s-{number}", 1, 1)) for number in range(3)]
    assert read == [["Hello."]] * 3
    assert 0 < sum(waits) < 1


async def test_the_store_is_asked_for_sessions_that_were_recorded_long_ago():
    setup = ArchiveSetup()
    setup.transcripts = TranscriptStore(setup.archive, setup.tasks, setup.clock, "all", sessions=2)
    for texts in ("a", "abc", "abcde"):
        for number in range(5):
            await setup.say(f"s-{number}", chat(*texts))
            assert len(setup.transcripts._progress._progress) <= 2
    assert [await all_of(setup, f"s-{number}") for number in range(5)] == [["You are an agent.", *"abcde"]] * 5


async def test_no_session_is_lost_when_very_many_begin_at_once():
    setup, begun, a_second = ArchiveSetup(), count(), 4_000

    async def wait(seconds: float) -> None:
        for number in islice(begun, round(a_second * seconds)):
            transcripts.record(TENANT, f"s-{number}", chat("Hello."), compacted=False)
            await asyncio.sleep(0)

    transcripts = TranscriptStore(setup.archive, setup.tasks, setup.clock, "all", wait)
    await wait(1 / a_second)
    await setup.tasks.done()
    sessions = next(begun)
    read = [message_texts(await transcripts.read(TENANT, f"s-{number}", 1, 1)) for number in range(sessions)]
    assert sessions > 1
    assert read == [["Hello."]] * sessions


async def test_only_what_takes_long_to_compress_is_left_to_a_thread():
    setup, offloaded = ArchiveSetup(mode="all"), list[str]()
    offload = setup.tasks.offload
    setup.tasks.offload = lambda call, *args: (offloaded.append(call.__name__), offload(call, *args))[1]
    await setup.say("s-1", chat("Hello."))
    assert offloaded == []
    await setup.say("s-1", chat("Hello.", "x" * 40_000))
    assert offloaded == ["_pack_plans"]


async def test_another_worker_finds_out_how_far_a_session_is_recorded():
    store = Counting()
    one, other = ArchiveSetup(store), ArchiveSetup(store)
    await one.say("s-1", chat("a", "b", "c"))
    store.rows()
    await other.say("s-1", chat("a", "b", "c", "d", "e"))
    assert store.rows() == 2
    await one.say("s-1", chat("a", "b", "c", "d", "e", "f", "g"))
    assert await all_of(one) == ["You are an agent.", *"abcdefg"]


async def test_a_history_that_was_rewound_goes_on_from_where_it_parted():
    setup = ArchiveSetup()
    await setup.say("s-1", chat("a", "b", "c", "d", "e"))
    await setup.say("s-1", chat("a", "b", "other"))
    assert await all_of(setup) == ["You are an agent.", "a", "b", "other"]
    await setup.say("s-1", chat("a", "b", "other", "x", "y"))
    assert await all_of(setup) == ["You are an agent.", "a", "b", "other", "x", "y"]


@pytest.mark.parametrize("restarts", [False, True])
async def test_the_original_keeps_what_the_clients_own_compaction_replaced(restarts: bool):
    setup = ArchiveSetup()
    for texts, is_new_list in ((("a", "b", "c"), False), (("a", "summary"), True), (("a", "summary", "x", "y"), False)):
        setup.transcripts.record(TENANT, "s-1", chat(*texts), compacted=True, is_new_list=is_new_list)
        await setup.transcripts.flush()
        if restarts:
            setup = ArchiveSetup(setup.store)
    assert await all_of(setup) == ["You are an agent.", "a", "summary", "x", "y"]
    original = await setup.transcripts.original(TENANT, "s-1")
    assert original is not None
    contents = [message["content"] for message in json.loads(original.body)["messages"]]
    assert contents == ["You are an agent.", "a", "b", "c", "a", "summary", "x", "y"]
    assert contents[original.first :] == ["a", "summary", "x", "y"]
    newest = await setup.transcripts.original(TENANT, "s-1", is_newest_list=True)
    assert newest is not None
    assert len(json.loads(newest.body)["messages"]) == 5


async def test_a_request_behind_the_clients_own_compaction_replaces_no_earlier_message():
    setup = ArchiveSetup()
    await setup.say("s-1", chat("a", "b", "c"))
    setup.transcripts.record(TENANT, "s-1", chat("a", "summary"), compacted=True, is_new_list=True)
    setup.transcripts.record(TENANT, "s-1", chat("a", "summary", "x", "y"), compacted=True)
    await setup.transcripts.flush()
    original = await setup.transcripts.original(TENANT, "s-1")
    assert original is not None
    contents = [message["content"] for message in json.loads(original.body)["messages"]]
    assert contents == ["You are an agent.", "a", "b", "c", "a", "summary", "x", "y"]


async def test_a_fork_shares_the_messages_of_its_prefix():
    store = Counting()
    setup = ArchiveSetup(store)
    await setup.say("s-1", chat("a", "b", "c"))
    store.rows()
    await setup.say("s-2", chat("a", "b", "fork"))
    assert store.rows() == 1
    assert await all_of(setup, "s-2") == ["You are an agent.", "a", "b", "fork"]


@pytest.mark.parametrize(("mode", "expected"), [("off", [0, 0, 0]), ("compacted", [0, 4, 6]), ("all", [2, 4, 6])])
async def test_the_settings_decide_which_sessions_are_recorded(mode, expected):
    setup = ArchiveSetup(mode=mode)
    lengths = []
    for texts, compacted in (("a", False), ("abc", True), ("abcde", False)):
        await setup.say("s-1", chat(*texts), compacted=compacted)
        lengths.append(len(await all_of(setup)))
    assert lengths == expected


async def test_a_separate_system_prompt_is_message_0_and_part_of_the_original():
    body = {
        "model": "claude", "max_tokens": 9, "system": [{"type": "text", "text": "You are kind."}],
        "tools": [{"name": "read", "input_schema": {"type": "object"}}],
        "messages": [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hi."}],
    }  # fmt: skip
    setup = ArchiveSetup()
    await setup.say("s-1", read(body, "messages"))
    first, second, third = (json.loads(wire or b"") for wire in await setup.transcripts.read(TENANT, "s-1", 0, 2))
    assert (first["role"], first["content"]) == ("system", body["system"])
    assert [second, third] == body["messages"]
    original = await setup.transcripts.original(TENANT, "s-1")
    assert json.loads(original.body) == body
    assert (original.protocol_name, original.missing) == ("messages", 0)
    found = await setup.transcripts.find(TENANT, "s-1")
    assert (len(found), found.before) == (3, 1)


async def test_the_original_has_the_last_options_and_no_user_or_credential():
    body = {
        "model": "claude", "max_tokens": 9, "metadata": {"user_id": "u-1"},
        "mcp_servers": [{"type": "url", "url": "https://mcp.test", "authorization_token": "secret"}],
        "messages": [{"role": "user", "content": "Hello."}],
    }  # fmt: skip
    setup = ArchiveSetup()
    for options in ({"temperature": 0.5}, {"temperature": 0.7, "stop_sequences": ["\n"]}, {}):
        await setup.say("s-1", read({**body, **options}, "messages"))
        stored = json.loads((await setup.transcripts.original(TENANT, "s-1")).body)
        assert stored == {name: body[name] for name in ("model", "max_tokens", "messages")} | options


async def test_what_a_hosted_tool_gets_as_a_credential_is_not_recorded():
    tool = {"type": "mcp", "server_label": "wiki", "server_url": "https://mcp.test"}
    secret = tool | {"authorization": "secret", "headers": {"x-key": "secret"}}
    function = {"type": "function", "name": "read", "parameters": {"type": "object", "properties": {}}}
    body = {"model": "m", "tools": [secret, function], "input": [{"role": "user", "content": "Hi."}]}
    setup = ArchiveSetup(sealer=None)
    await setup.say("s-1", read(body, "responses"))
    stored = json.loads((await setup.transcripts.original(TENANT, "s-1")).body)
    assert stored["tools"] == [tool, function]


async def test_a_list_that_resembles_the_provider_history_is_recorded_whole():
    setup, first = ArchiveSetup(), {"role": "user", "content": "one"}
    await setup.say("s-1", read({"model": "m", "input": [first], "conversation": "conv_1"}, "responses"))
    setup.transcripts.begin_anew()
    setup.clock.advance(1.0)
    others = [{"role": "assistant", "content": "two"}, {"role": "user", "content": "three"}]
    await setup.say("s-1", read({"model": "m", "input": [first, *others]}, "responses"))
    assert await all_of(setup) == ["one", "two", "three"]


async def test_options_that_change_do_not_store_the_system_prompt_again():
    store = Counting()
    setup, body = (
        ArchiveSetup(store),
        {"model": "claude", "system": "Be brief.", "messages": [{"role": "user", "content": "Hi."}]},
    )
    counts = []
    for options in ({"max_tokens": 1}, {"max_tokens": 2}, {"max_tokens": 2}, {"max_tokens": 2, "system": "Be long."}):
        await setup.say("s-1", read({**body, **options}, "messages"))
        counts.append(sum(name.startswith("head/") for name in store.written))
    assert counts == [2, 3, 3, 4]


async def test_the_original_of_a_responses_request_is_one_of_responses():
    body = {
        "model": "gpt-5", "instructions": "Be brief.",
        "input": [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "Hello."}],
    }  # fmt: skip
    setup = ArchiveSetup()
    await setup.say("s-1", read(body, "responses"))
    assert json.loads((await setup.transcripts.original(TENANT, "s-1")).body) == body
    assert await all_of(setup) == ["Be brief.", "Be kind.", "Hello."]


SAME = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "OK."}]}
ASKED = {"role": "user", "content": "And?"}


async def test_messages_that_say_the_same_come_back_each_with_its_own_id():
    listed = [ASKED, {**SAME, "id": "msg_1"}, ASKED, {**SAME, "id": "msg_2"}, ASKED]
    setup = ArchiveSetup(Counting())
    await setup.say("s-1", read({"model": "gpt-5", "input": listed}, "responses"))
    assert setup.store.rows() == 3
    assert json.loads((await setup.transcripts.original(TENANT, "s-1")).body)["input"] == listed


async def test_of_an_earlier_transcript_with_one_row_for_both_an_id_comes_back_once():
    """The provider refuses a request in which an id stands twice."""
    conversation = read({"model": "gpt-5", "input": [{**SAME, "id": "msg_1"}, {**SAME, "id": "msg_2"}]}, "responses")
    setup, (one, _) = ArchiveSetup(sealer=None), conversation.messages
    entry = TranscriptEntry(0, [one.key, one.key], [9, 0], 1.0, "responses", "gpt-5", end=conversation.chain[-1])
    earlier = msgspec.msgpack.encode(msgspec.structs.astuple(entry)[:-2])
    row = Put(row_key(one.key), make_packer()(one.wire), 60)
    await setup.store.write([row, Append(transcript_key(TENANT.archive_namespace, "s-1"), earlier, 9, 60)])
    listed = json.loads((await setup.transcripts.original(TENANT, "s-1")).body)["input"]
    assert listed == [{**SAME, "id": "msg_1"}, SAME]


TEXTS = st.sampled_from(["OK.", "And?"])
SPACES = st.sampled_from(["", " ", "\n\t"])


@st.composite
def wires(draw: Any) -> str:
    """A message in one of the spellings that say the same."""
    text, space = json.dumps(draw(TEXTS)), draw(SPACES)
    role = draw(st.sampled_from(["user", "assistant"]))
    kind = "input_text" if role == "user" else "output_text"
    part = f'{{"type":"{kind}",{space}"text":{text}}}'
    mark = f'{{"type":"{kind}","text":{text},"cache_control":{{"type":"ephemeral"}}}}'
    content = draw(st.sampled_from([text, f"[{part}]", f"[{mark}]"]))
    fields = [f'"role":{space}"{role}"', f'"content":{space}{content}']
    fields += draw(st.sampled_from([[], ['"type":"message"'], ['"id":"msg_1"'], ['"id":"msg_2","status":"completed"']]))
    fields += draw(st.sampled_from([[], [f'"role":"{role}"'], ['"phase":null']]))
    return "{" + f",{space}".join(draw(st.permutations(fields))) + "}"


@given(st.lists(st.lists(wires(), max_size=4), min_size=1, max_size=5), st.booleans())
def test_the_original_is_byte_for_byte_what_was_sent(turns: list[list[str]], restarts: bool):
    async def run() -> None:
        setup, sent = ArchiveSetup(), list[str]()
        for turn in turns:
            sent += turn
            raw = b'{"model":"gpt-5","input":[%s]}' % ",".join(sent).encode()
            await setup.say("s-1", BodyReader(0).read(OpenAIResponses(), raw, TENANT))
            # Another session says the same words in another spelling.
            others = [{"role": role, "content": text} for role in ("user", "assistant") for text in ("OK.", "And?")]
            await setup.say("s-2", read({"model": "gpt-5", "input": others}, "responses"))
            if restarts:
                setup.transcripts = TranscriptStore(setup.archive, setup.tasks, setup.clock, "all")
        if sent:
            assert (await setup.transcripts.original(TENANT, "s-1")).body == raw

    asyncio.run(run())


async def keep_as_a_compaction_does(setup: ArchiveSetup, client: Conversation) -> None:
    rows = [ArchivedMessage(message.key, message.wire) for message in client.messages]
    await setup.archive.write(
        setup.archive.build_puts(TENANT, rows, (), CompactionWrite("c-1", "s-1", setup.clock.now()))
    )


async def test_a_transcript_shares_the_rows_of_a_compaction():
    store = Counting()
    setup = ArchiveSetup(store=store)
    client = chat("a", "b", "c")
    await keep_as_a_compaction_does(setup, client)
    assert store.rows() == 3
    await setup.say("s-1", client)
    assert store.rows() == 1, "only the record of what stands beside the list"
    assert (await all_of(setup))[-3:] == ["a", "b", "c"]


async def test_a_transcript_has_a_row_of_its_own_for_other_bytes():
    store = Counting()
    setup = ArchiveSetup(store=store)
    await keep_as_a_compaction_does(setup, BodyReader(0).read(OpenAIResponses(), one_item(b'"msg_1"'), TENANT))
    store.rows()
    sent = one_item(b'"msg_2"')
    await setup.say("s-1", BodyReader(0).read(OpenAIResponses(), sent, TENANT))
    assert store.rows() == 1
    assert (await setup.transcripts.original(TENANT, "s-1")).body == sent


def one_item(name: bytes) -> bytes:
    return b'{"model":"gpt-5","input":[{"id":%s,"role":"user","content":"OK."}]}' % name


async def test_the_newest_system_prompt_and_tools_count():
    setup = ArchiveSetup()
    await setup.say("s-1", chat("a", system="First."))
    await setup.say("s-1", chat("a", "b", "c", system="Second.", tools=[]))
    assert await all_of(setup) == ["Second.", "a", "b", "c"]
    assert json.loads((await setup.transcripts.original(TENANT, "s-1")).body)["tools"] == []


async def test_provider_history_is_recorded_request_by_request():
    setup = ArchiveSetup(mode="all")
    for at, text in enumerate("abc"):
        client = read({"model": "m", "input": text, "previous_response_id": f"r-{at}"}, "responses")
        await setup.say("s-1", client, compacted=False)
        await setup.say("s-1", client, compacted=False)
    transcript = await setup.transcripts.find(TENANT, "s-1")
    assert len(transcript.messages) == 3


async def test_a_failed_write_is_repeated_with_a_later_request():
    store = Counting()
    setup = ArchiveSetup(store)
    await setup.say("s-1", chat("a", "b", "c"))
    store.away = True
    await setup.say("s-1", chat("a", "b", "c", "d", "e"))
    store.away = False
    await setup.say("s-1", chat("a", "b", "c", "d", "e", "f", "g"))
    assert await all_of(setup) == ["You are an agent.", *"abcdefg"]


async def test_a_session_that_ended_waits_for_the_store_however_many_requests_others_send():
    store, tasks = Counting(), FakeTasks()
    transcripts = TranscriptStore(Archive(store, DAY), tasks, FakeClock(), "all")
    store.away = True
    transcripts.record(TENANT, "ended", chat("a", "b"), compacted=False)
    texts: list[str] = []
    for at in range(2_000):
        texts = [*texts[-40:], f"{at}"] if at % 50 else [f"{at}"]
        transcripts.record(TENANT, f"s-{at // 50}", chat(*texts), compacted=False)
    store.away = False
    await transcripts.flush()
    assert message_texts(await transcripts.read(TENANT, "ended", 1, 9)) == ["a", "b"]


@pytest.mark.parametrize("known", [0, 3])
async def test_what_a_store_that_went_away_in_the_middle_did_not_take_is_written_again(known):
    store = Halting()
    setup = ArchiveSetup(store)
    texts = [f"{at}" for at in range(300)]
    if known:
        await setup.say("s-1", chat(*texts[:known]))
        setup = ArchiveSetup(store)  # another worker, which has to look how far it is recorded
    store.left = 1
    await setup.say("s-1", chat(*texts))
    store.left = -1
    assert None in await all_of(setup), "half of it was not taken"
    await setup.say("s-1", chat(*texts, "and on"))
    assert await all_of(setup) == ["You are an agent.", *texts, "and on"]


async def test_another_worker_completes_the_write_of_a_killed_one():
    store = Halting()
    killed, other = ArchiveSetup(store), ArchiveSetup(store)
    texts = [f"{at}" for at in range(300)]
    store.left = 1
    await killed.say("s-1", chat(*texts))
    store.left = -1
    assert None in await all_of(other), "its log names rows that are not there"
    await other.say("s-1", chat(*texts, "and on"))
    assert await all_of(other) == ["You are an agent.", *texts, "and on"]


async def test_a_transcript_is_stored_anew_in_a_replaced_store():
    """The worker wrote some rows for another session, and notices only later that another store is in place."""
    setup = ArchiveSetup()
    await setup.say("s-0", chat(*"abc", system="Stay."))
    setup.archive.store = InMemoryStore()
    await setup.say("s-1", chat(*"abcde", system="Stay."))
    setup.archive.forget()
    setup.transcripts.begin_anew()
    await setup.say("s-1", chat(*"abcdefg", system="Stay."))
    assert await all_of(setup) == ["Stay.", *"abcdefg"]


async def test_rows_that_are_being_written_when_all_is_forgotten_are_not_known():
    setup = ArchiveSetup(store := Slow())
    async with store.writing(setup.say("s-1", chat(*"abc"))):
        setup.archive.forget()
    transcript = await setup.transcripts.find(TENANT, "s-1")
    assert transcript is not None
    assert len(transcript.rows) == 4
    assert not any(setup.archive.has_row(row_key(key)) for key in transcript.rows)


async def test_a_session_that_goes_on_is_kept_for_as_long_as_it_does():
    store = Counting()
    setup = ArchiveSetup(store, retention=30 * DAY)
    texts = ["a"]
    for day in range(40):
        texts += [f"b{day}", f"c{day}"]
        await setup.say("s-1", chat(*texts))
        setup.clock.advance(DAY / 2)
        rows = store.rows()
        assert rows == (len(texts) + 1 if day % 2 == 0 else 2), day


async def test_a_long_log_is_written_anew_as_one_entry():
    setup = ArchiveSetup(Counting())
    texts = ["a"]
    for at in range(300):
        texts.append(f"{at}")
        await setup.say("s-1", chat(*texts))
    log = await setup.store.read(transcript_key(TENANT.archive_namespace, "s-1"))
    assert 300 <= len(log) <= 303
    assert await all_of(setup) == ["You are an agent.", *texts]


async def test_a_message_that_is_not_kept_any_more_is_none_and_missing():
    setup = ArchiveSetup()
    await setup.say("s-1", chat("a", "b", "c"))
    found = await setup.transcripts.find(TENANT, "s-1")
    await setup.store.delete([row_key(found.rows[2])])
    assert await all_of(setup) == ["You are an agent.", "a", None, "c"]
    assert (await setup.transcripts.original(TENANT, "s-1")).missing == 1


async def test_with_another_key_nothing_can_be_read():
    setup = ArchiveSetup()
    await setup.say("s-1", chat("a"))
    assert await all_of(ArchiveSetup(setup.store, sealer=AesSealer([b"z" * 32]))) == [None, None]


@pytest.mark.parametrize("emptied", [True, False], ids=["emptied", "erased"])
async def test_what_is_gone_while_it_is_written_is_recorded_from_its_beginning_again(emptied):
    setup = ArchiveSetup(store := Slow())
    await setup.say("s-1", chat(*"abc"))
    async with store.writing(setup.say("s-1", chat(*"abcde"))):
        await store.delete([transcript_key(TENANT.archive_namespace, "s-1")])
        if emptied:
            setup.transcripts.begin_anew()
        else:
            setup.transcripts.forget(TENANT.archive_namespace, "s-1")
    await setup.say("s-1", chat(*"abcdefg"))
    assert await all_of(setup) == ["You are an agent.", *"abcdefg"]


@pytest.mark.parametrize("emptied", [True, False], ids=["emptied", "another erased"])
async def test_provider_history_is_recorded_whole_while_another_session_is_erased(emptied):
    def turn(at: int) -> Conversation:
        body = {"model": "m", "input": [{"role": "user", "content": f"said {at}"}], "previous_response_id": f"r-{at}"}
        return read(body, "responses")

    setup = ArchiveSetup(store := Slow())
    for at in (1, 2):
        await setup.say("s-2", turn(at))
    async with store.writing(setup.say("s-2", turn(3))):
        if emptied:
            setup.transcripts.begin_anew()
        else:
            setup.transcripts.forget(TENANT.archive_namespace, "s-1")
    await setup.say("s-2", turn(4))
    assert await all_of(setup, "s-2") == [f"said {at}" for at in (1, 2, 3, 4)]


async def test_a_batch_in_compression_is_dropped_if_its_session_is_erased():
    tasks = DelayedTasks()
    transcripts = TranscriptStore(Archive(InMemoryStore(), DAY), tasks, FakeClock(), "all")
    large = "a text of some length " * 4_000
    for session in ("s-1", "s-2"):
        transcripts.record(TENANT, session, chat(large, session), compacted=False)
    await tasks.held.wait()
    transcripts.forget(TENANT.archive_namespace, "s-1")
    tasks.let.set()
    await tasks.done()
    assert await transcripts.find(TENANT, "s-1") is None
    found = await transcripts.find(TENANT, "s-2")
    assert found is not None
    assert len(found.messages) == 2


@pytest.mark.parametrize("erased", ["s-1", "s-2"])
async def test_an_immediate_record_is_not_written_if_its_session_is_erased_meanwhile(erased: str):
    tasks, store = DelayedTasks(), Counting()
    transcripts = TranscriptStore(Archive(store, DAY), tasks, FakeClock(), "all")
    large = chat("a text of some length " * 4_000)
    beside = [Put(Key("", "link"), b"", DAY)]
    work = asyncio.create_task(transcripts.record_at_once(TENANT, "s-1", large, beside, compacted=False))
    await tasks.held.wait()
    transcripts.forget(TENANT.archive_namespace, erased)
    tasks.let.set()
    await work
    assert ("link" in store.written) == (await transcripts.find(TENANT, "s-1") is not None) == (erased == "s-2")


async def test_a_failed_write_of_an_erased_session_is_not_retried():
    setup = ArchiveSetup(store := Slow())
    store.let.clear()
    setup.transcripts.record(TENANT, "s-1", chat("a"), compacted=True)
    await store.asked.wait()
    await store.delete([transcript_key(TENANT.archive_namespace, "s-1")])
    setup.transcripts.forget(TENANT.archive_namespace, "s-1")
    for task in setup.tasks.running:
        task.cancel()
    await setup.tasks.done()
    store.let.set()
    await setup.transcripts.flush()
    assert await setup.transcripts.find(TENANT, "s-1") is None


REQUESTS = st.lists(
    st.tuples(st.integers(0, 6), st.lists(st.sampled_from("abcd"), min_size=1, max_size=4), st.integers(0, 1)),
    min_size=1, max_size=8,
)  # fmt: skip


@given(REQUESTS)
def test_however_a_history_is_rewound_the_transcript_is_that_of_its_last_request(requests):
    async def run() -> None:
        store = InMemoryStore()
        workers = [ArchiveSetup(store), ArchiveSetup(store)]
        texts: list[str] = []
        client: Conversation | None = None
        for kept, new, worker in requests:
            # What is new never stood there before, so that no request is a mere beginning of another.
            texts = [*texts[:kept], *(f"{text}{len(texts)}{id(new)}" for text in new)]
            client = chat(*texts)
            await workers[worker].say("s-1", client)
            assert await all_of(workers[1 - worker]) == ["You are an agent.", *texts]

    asyncio.run(run())


def transcripts_of_other_worker(store: InMemoryStore, clock: FakeClock) -> TranscriptStore:
    """A worker's transcripts, which write when they are told to."""
    archive = Archive(store, 30 * DAY, sealer=AesSealer([KEY]), clock=clock)
    return TranscriptStore(archive, FakeTasks(), clock, "all")


STEPS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 2), min_size=1, max_size=3),
        st.lists(st.integers(0, 2)),
        st.sampled_from([0.01, 0.01, 0.01, -60.0]),
    ),
    min_size=1,
    max_size=20,
)


@given(STEPS, st.permutations(range(3)), st.sampled_from(["nothing", "all", "all but the first"]))
def test_a_transcript_is_whole_in_any_order_of_workers_and_clocks(steps, last, kept):
    """`kept` is what the provider keeps of it."""

    async def run() -> None:
        store, clock = InMemoryStore(), FakeClock()
        workers = [transcripts_of_other_worker(store, clock) for _ in range(3)]
        texts: list[str] = []
        after = b""
        for number, (asked, writing, passes) in enumerate(steps):
            if kept == "nothing":
                texts += [f"{number} said", f"{number} done"]
                client = chat(*texts)
            else:
                texts.append(f"{number} said")
                body = {"model": "m", "input": [{"role": "user", "content": texts[-1]}]}
                if number or kept == "all":
                    body["previous_response_id"] = f"r-{number}"
                client = read(body, "responses")
            for each in asked:  # again where the first did not answer
                workers[each].record(TENANT, "s-1", client, compacted=True, after=after)
                clock.advance(passes)
            after = client.chain[-1]
            for each in writing:
                await workers[each].flush()
        for each in last:
            await workers[each].flush()
        found = message_texts(await workers[0].read(TENANT, "s-1", 0, 10**6))
        assert found == (texts if kept != "nothing" else ["You are an agent.", *texts])

    asyncio.run(run())


@given(STEPS, st.randoms(use_true_random=False), st.booleans())
def test_a_transcript_is_whole_in_whichever_order_its_entries_reach_the_log(steps, chance, repeated):
    """Entries that waited on a machine for the store come after what was written when it was back, or twice."""

    async def run() -> None:
        store, clock = InMemoryStore(), FakeClock()
        workers = [transcripts_of_other_worker(store, clock) for _ in range(3)]
        texts: list[str] = []
        for number, (asked, _, passes) in enumerate(steps):
            texts += [f"{number} said", f"{number} done"]
            for each in asked:
                workers[each].record(TENANT, "s-1", chat(*texts), compacted=True)
                await workers[each].flush()
            clock.advance(max(passes, 0.0))
        key = transcript_key(TENANT.archive_namespace, "s-1")
        log = [value for _, value in await store.read(key)]
        await store.delete([key])
        chance.shuffle(log)
        await store.append(key, log * (1 + repeated))
        assert message_texts(await workers[0].read(TENANT, "s-1", 0, 10**6)) == ["You are an agent.", *texts]

    asyncio.run(run())


async def test_what_follows_a_lost_entry_takes_nothing_from_a_newer_list():
    store, clock = InMemoryStore(), FakeClock()
    one, other = transcripts_of_other_worker(store, clock), transcripts_of_other_worker(store, clock)
    key = transcript_key(TENANT.archive_namespace, "s-1")
    for texts in ("abc", "abcde", "abcdefx"):
        one.record(TENANT, "s-1", chat(*texts), compacted=True)
        await one.flush()
        clock.advance(1)
    first, _, last = [value for _, value in await store.read(key)]
    await store.delete([key])
    await store.append(key, [first, last])
    assert message_texts(await one.read(TENANT, "s-1", 1, 99)) == [*"abcfx"]
    other.record(TENANT, "s-1", chat(*"abcdefghi"), compacted=True)
    await other.flush()
    assert message_texts(await one.read(TENANT, "s-1", 1, 99)) == [*"abcdefghi"]


async def test_a_late_write_does_not_duplicate_messages_of_a_newer_list():
    store, clock = InMemoryStore(), FakeClock()
    one, other = transcripts_of_other_worker(store, clock), transcripts_of_other_worker(store, clock)
    entry = {"role": "user", "content": "first"}
    one.record(TENANT, "s-1", first := read({"model": "m", "input": [entry]}, "responses"), compacted=True)
    await one.flush()
    clock.advance(1)
    second = read({"model": "m", "input": [{**entry, "content": "second"}], "previous_response_id": "r"}, "responses")
    other.record(TENANT, "s-1", second, compacted=True, after=first.chain[-1])
    clock.advance(1)
    whole = [{**entry, "content": text} for text in ("first", "second", "third")]
    one.record(TENANT, "s-1", read({"model": "m", "input": whole}, "responses"), compacted=True)
    await one.flush()
    await other.flush()
    assert message_texts(await one.read(TENANT, "s-1", 0, 9)) == ["first", "second", "third"]


async def test_a_side_request_at_another_worker_loses_nothing():
    store, clock = InMemoryStore(), FakeClock()
    one, other = transcripts_of_other_worker(store, clock), transcripts_of_other_worker(store, clock)
    for worker, texts in ((one, "abcde"), (other, "abcdx"), (one, "abcdefg")):
        worker.record(TENANT, "s-1", chat(*texts), compacted=True)
        await worker.flush()
        clock.advance(5)
    assert message_texts(await other.read(TENANT, "s-1", 1, 99)) == [*"abcdefg"]
