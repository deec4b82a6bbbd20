"""Who answers calls of our tool: what may be read is read in parts, and all else has a clear answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from threading import get_ident
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from accordion.archive.archive import Archive
from accordion.archive.artifacts import ArchivedMessage, Artifact, row_key
from accordion.archive.history_search import RemovedHistory
from accordion.archive.passage_index import PassageIndexes
from accordion.archive.references import artifact_id
from accordion.archive.tool_calls import ArtifactTool, ReadContext
from accordion.model.boundaries import CallInHistory
from accordion.model.errors import StoreUnavailable
from accordion.model.tenant import TenantScope
from accordion.protocols.body_reader import BodyReader
from accordion.protocols.openai_chat.protocol import OpenAIChat
from accordion.protocols.tool_loop import ArtifactToolCall, ArtifactToolResult
from accordion.server.event_loop import LoopTasks
from accordion.stores.memory_store import InMemoryStore
from tests.fakes import FakeTasks, FickleStore
from tests.spools import with_spool

TENANT = TenantScope("tenant", b"one tenant")
OTHER = TenantScope("other", b"another tenant")
RESULT, DATA, LATER, RANGE, IMAGE, GONE, FOREIGN = (f"art_{n:012x}" for n in range(7))
LOG = "\n".join(f"line {n} fine" for n in range(1, 301))
ALL = frozenset((RESULT, DATA, LATER, RANGE, IMAGE, GONE))


def words(text: str) -> int:
    return len(text) // 4


def build_context(**changes: Any) -> ReadContext:
    return ReadContext(
        **{
            "tenant": TENANT,
            "allowed": ALL,
            "available_tokens": 50_000,
            "count": words,
            "window": 100_000,
            **changes,
        }
    )


def rows() -> dict[bytes, dict[str, Any]]:
    def call(name: str, arguments: str) -> dict[str, Any]:
        function = {"name": name, "arguments": arguments}
        return {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}

    def answer(text: str) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": "c1", "content": text}

    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    return {
        b"call": call("read", '{"path": "a.log"}'),
        b"long": call("write", json.dumps({"path": "b.py", "content": "x = 1\n" * 80})),
        b"log": answer(LOG),
        b"later": answer(LOG.replace("line 7 ", "line seven ")),
        b"data": answer(json.dumps({"items": [{"id": n, "name": f"n{n}"} for n in range(50)]})),
        b"said": {"role": "user", "content": "Please read it."},
        b"image": {"role": "user", "content": [image]},
    }


def artifacts() -> list[Artifact]:
    def made(name: str, *keys: bytes, size: int = 4_000, tokens: int = 1_200, **rest: Any) -> Artifact:
        told = {"kind": "result", "protocol_name": "chat", "first": 3, "last": 4, "part": 0, "tool": "read", **rest}
        return Artifact(id=name, keys=keys, characters=size, tokens=tokens, **told)

    return [
        made(RESULT, b"call", b"log"),
        made(DATA, b"long", b"data"),
        made(LATER, b"call", b"later"),
        made(RANGE, b"said", b"call", b"log", kind="range", part=-1, first=2),
        made(IMAGE, b"image", kind="part"),
        made(GONE, b"call", b"erased"),
        made(FOREIGN, b"call", b"log"),
    ]


async def build_tool(store: InMemoryStore | None = None) -> ArtifactTool:
    archive = Archive(store or InMemoryStore())
    kept = [ArchivedMessage(key, json.dumps(wire).encode()) for key, wire in rows().items()]
    await archive.write(archive.build_puts(TENANT, kept, artifacts()))
    return ArtifactTool(archive, {"chat": OpenAIChat()}, FakeTasks(), PassageIndexes())


async def ask(who: ReadContext | None = None, **arguments: Any) -> ArtifactToolResult:
    (answer,) = await (await build_tool()).answer_calls(
        who or build_context(), [ArtifactToolCall("c9", "read_artifact", json.dumps(arguments))]
    )
    assert answer.call_id == "c9"
    return answer


def removed(*messages: dict[str, Any]) -> RemovedHistory:
    """Messages of which all but the last were removed."""
    body = json.dumps({"model": "m", "messages": messages}).encode()
    conversation = BodyReader(0).read(OpenAIChat(), body, TENANT)
    return RemovedHistory(conversation.messages, conversation.chain, len(conversation.messages) - 1)


REMOVED = removed(
    {"role": "user", "content": "The staging database is called heron-7."},
    rows()[b"call"],
    {"role": "tool", "tool_call_id": "c1", "content": "connected to heron-7\nthe migration of invoices failed"},
    {"role": "assistant", "content": "The migration failed."},
    {"role": "user", "content": "Which migration of invoices?"},
)
FAILED = artifact_id(TENANT, REMOVED.messages[2].key, 0)


async def test_words_are_searched_in_all_that_was_removed():
    answer = await ask(build_context(removed=REMOVED, allowed=frozenset({FAILED})), search="migration of the invoices")
    head, *found = answer.text.splitlines()
    assert head.startswith('[Found 2 passages with words of "migration of the invoices" in the 4 messages that were')
    assert found == [
        f'[2] Result of read({{"path": "a.log"}}), in {FAILED}: connected to heron-7 the migration of invoices failed',
        "[3] assistant: The migration failed.",
    ]


async def test_a_passage_that_is_found_names_the_smallest_range_with_it():
    answer = await ask(build_context(removed=REMOVED, allowed=frozenset({RANGE})), query="connected heron")
    assert f'[2] Result of read({{"path": "a.log"}}), in {RANGE}: connected to heron-7' in answer.text
    assert "[0] user: The staging database is called heron-7." in answer.text


async def test_a_search_without_a_store_names_no_range():
    store = FickleStore()
    tool = await build_tool(store)
    store.away = True
    call = ArtifactToolCall("c9", "read_artifact", '{"search": "staging"}')
    (answer,) = await tool.answer_calls(build_context(removed=REMOVED), [call])
    assert answer.text.endswith("\n[0] user: The staging database is called heron-7.")


@pytest.mark.parametrize(
    ("history", "expected"), [(REMOVED, 'No word of "pelican" is in the 4 messages'), (None, "nothing to search")]
)
async def test_a_search_that_finds_nothing_says_so(history: RemovedHistory | None, expected: str):
    assert expected in (await ask(build_context(removed=history), search="pelican")).text


async def test_the_answer_of_a_search_fits_the_available_tokens():
    many = removed(*({"role": "user", "content": f"word number {n} " + "filler " * 50} for n in range(60)))
    answer = await ask(build_context(removed=many, available_tokens=2_000, count=len), search="word number")
    head, _, passages = answer.text.partition("\n")
    assert "Found 59 passages" in head
    assert 0 < len(passages) <= 1_000


async def test_a_result_is_read_with_one_line_that_says_what_it_is():
    answer = await ask(id=RESULT)
    head, _, text = answer.text.partition("\n")
    assert head == f'[{RESULT}: archived result of read({{"path": "a.log"}}); complete, 300 lines.]'
    assert text == LOG
    assert not answer.error


async def test_a_part_says_how_to_get_the_next():
    answer = await ask(id=RESULT, offset=10, limit=2)
    assert answer.text.endswith(
        "lines 10-11 of 300. For the next part, repeat this call with offset=12.]\nline 10 fine\nline 11 fine"
    )


async def test_a_result_is_read_by_pattern_by_path_and_as_a_difference():
    assert (await ask(id=RESULT, pattern="line 123 ")).text.split("\n")[3] == "123:line 123 fine"
    assert (await ask(id=DATA, path="$.items[7].name")).text.endswith("\nn7")
    assert "-line 7 fine\n+line seven fine" in (await ask(id=LATER, diff_with=RESULT)).text


async def test_the_arguments_of_a_call_can_be_read_in_full():
    head = (await ask(id=DATA)).text.partition("\n")[0]
    assert '(its full arguments: path "$input")' in head
    assert json.loads((await ask(id=DATA, path="$input")).text.partition("\n")[2]) == {
        "path": "b.py",
        "content": "x = 1\n" * 80,
    }
    assert (await ask(id=DATA, path="$input.path")).text.endswith("\nb.py")


async def test_a_stretch_of_messages_is_read_with_their_numbers():
    text = (await ask(id=RANGE, limit=8)).text
    assert text.startswith(f"[{RANGE}: archived range of 3 earlier messages; lines 1-8 of ")
    assert '[2] user\nPlease read it.\n\n[3] assistant\n## Tool: read\n**Input:** {"path": "a.log"}' in text


async def test_an_image_is_named_since_it_cannot_be_shown_as_text():
    answer = await ask(id=IMAGE)
    assert answer.error
    assert "one image (image/png" in answer.text


async def test_an_id_out_of_scope_is_answered_like_one_that_nobody_knows():
    foreign, unknown = await ask(id=FOREIGN), await ask(id="art_ffffffffffff")
    assert foreign.error
    assert foreign.text.replace(FOREIGN, "…") == unknown.text.replace("art_ffffffffffff", "…")
    assert (await ask(id=RESULT, diff_with=FOREIGN)).text == foreign.text
    # The same for what is another tenant's.
    other = await ask(build_context(tenant=OTHER), id=FOREIGN)
    assert other.text == foreign.text


async def test_a_missing_artifact_is_reported_as_missing():
    assert (await ask(id=GONE)).text.startswith(f"{GONE} is no longer in the archive")
    assert (await ask(build_context(tenant=OTHER), id=RESULT)).text.startswith(f"{RESULT} is no longer")


async def test_a_result_whose_call_alone_is_gone_can_be_read():
    store = InMemoryStore()
    made = await build_tool(store)
    await store.delete([row_key(b"call")])
    (answer,) = await made.answer_calls(
        build_context(), [ArtifactToolCall("c", "read_artifact", json.dumps({"id": RESULT, "limit": 1}))]
    )
    assert answer.text.endswith("\nline 1 fine")


class Away(InMemoryStore):
    """A store that does not answer."""

    async def scan(self, *_: Any, **__: Any) -> list[tuple[str, bytes]]:
        raise StoreUnavailable("away")


async def test_a_store_that_is_away_is_told_and_nothing_is_said_to_be_lost():
    archive = ArtifactTool(Archive(Away()), {"chat": OpenAIChat()}, FakeTasks(), PassageIndexes())
    (answer,) = await archive.answer_calls(
        build_context(), [ArtifactToolCall("c", "read_artifact", json.dumps({"id": RESULT}))]
    )
    assert answer.error
    assert "unavailable at the moment" in answer.text


async def test_of_an_artifact_of_which_only_a_part_waits_here_nothing_is_said_to_be_lost():
    """The record waits in the spool; its rows are in the store, which is away."""
    store = FickleStore()
    archive = Archive(with_spool(store))
    store.away = True
    await archive.write(archive.build_puts(TENANT, [], artifacts()))
    answer, other = await ArtifactTool(archive, {"chat": OpenAIChat()}, FakeTasks(), PassageIndexes()).answer_calls(
        build_context(), [ArtifactToolCall("c", "read_artifact", json.dumps({"id": name})) for name in (RESULT, GONE)]
    )
    assert "unavailable at the moment" in answer.text
    assert "unavailable at the moment" in other.text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "No artifact id was given"),
        ({"id": RESULT, "pattern": "nowhere("}, "The pattern cannot be used"),
        ({"id": DATA, "path": "$.items[?("}, ""),
        ({"id": DATA, "path": "$.nothing"}, "There is nothing at $.nothing. It is a JSON object of 1 keys: items."),
        ({"id": RESULT, "path": "$.a"}, "The text is not JSON"),
        ({"id": RESULT, "offset": 999}, "The text has 300 lines, so there is nothing at offset 999."),
    ],
)
async def test_an_unavailable_artifact_is_answered_with_the_reason(arguments, said):
    answer = await ask(**arguments)
    assert answer.error
    assert said in answer.text
    assert answer.text


async def test_a_text_over_30_percent_of_the_window_is_outlined_and_read_in_parts():
    small = build_context(window=3_000, available_tokens=3_000)
    text = (await ask(small, id=DATA)).text
    assert "about 1,200 tokens, too long to return at once" in text
    assert "It is a JSON object of 1 keys: items. It has items (array of 50)." in text
    assert (await ask(small, id=DATA, path="$.items[7].name")).text.endswith("\nn7")
    assert "line 300 fine" not in (await ask(small, id=RESULT)).text
    assert (await ask(small, id=RESULT, offset=299)).text.endswith("\nline 299 fine\nline 300 fine")


@pytest.mark.parametrize("room", [500, 900, 2_000, 20_000])
async def test_an_answer_leaves_half_of_the_room_that_there_is(room):
    who = build_context(available_tokens=room)
    for arguments in ({"id": RESULT}, {"id": RESULT, "pattern": "fine"}, {"id": RANGE, "limit": 9_999}):
        assert words((await ask(who, **arguments)).text) <= room // 2


async def test_calls_of_one_round_share_the_room():
    calls = [ArtifactToolCall(f"c{n}", "read_artifact", json.dumps({"id": RESULT})) for n in range(4)]
    answers = await (await build_tool()).answer_calls(build_context(available_tokens=2_400), calls)
    assert [answer.call_id for answer in answers] == ["c0", "c1", "c2", "c3"]
    assert sum(words(answer.text) for answer in answers) <= 1_200


async def test_without_room_nothing_is_handed_over():
    answer = await ask(build_context(available_tokens=100), id=RESULT)
    assert answer.error
    assert "not enough free space" in answer.text


async def test_where_a_text_is_denser_than_its_record_says_it_is_counted_and_made_to_fit():
    dense = build_context(available_tokens=2_000, count=lambda text: 2 * len(text))
    assert 2 * len((await ask(dense, id=RESULT)).text) <= 2_000


async def test_the_record_of_the_asking_session_is_preferred():
    store = InMemoryStore()
    made = await build_tool(store)
    archive = Archive(store)
    there = [Artifact(id=RANGE, kind="range", protocol_name="chat", keys=(b"said",), first=40, last=40, session=name)
             for name in ("s-1", "s-2")]  # fmt: skip
    await archive.write(archive.build_puts(TENANT, [], [there[0]]))
    await archive.write(archive.build_puts(TENANT, [], [Artifact(**{**_fields(there[1]), "first": 77, "last": 77})]))
    call = ArtifactToolCall("c", "read_artifact", json.dumps({"id": RANGE}))
    (answer,) = await made.answer_calls(build_context(session="s-2"), [call])
    assert "[77] user" in answer.text
    (answer,) = await made.answer_calls(build_context(session="s-1"), [call])
    assert "[40] user" in answer.text


def _fields(artifact: Artifact) -> dict[str, Any]:
    return {name: getattr(artifact, name) for name in Artifact.__struct_fields__}


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.fixed_dictionaries(
        {"id": st.sampled_from(sorted(ALL)) | st.text(max_size=20)},
        optional={
            "offset": st.integers(-400, 400) | st.text(max_size=5),
            "limit": st.integers() | st.none(),
            "pattern": st.text(max_size=12) | st.sampled_from(["line 1", "(a+)+$", "[", "^$"]),
            "path": st.text(max_size=12) | st.sampled_from(["$..*", "$.items[*]", "$input", "$input[?@]"]),
            "diff_with": st.sampled_from(sorted(ALL)),
        },
    ),
    st.integers(0, 5_000),
)
async def test_any_call_is_answered_within_the_available_tokens(arguments, room):
    answer = await ask(build_context(available_tokens=room), **arguments)
    assert answer.text
    assert answer.error or words(answer.text) <= room
    answer.text.encode()


async def test_what_is_large_is_parsed_in_a_thread_also_for_who_may_see_it_by_its_calls():
    chat, parsed_in = OpenAIChat(), set[int]()

    class Reads:
        def read_message(self, raw: bytes) -> Any:
            parsed_in.add(get_ident())
            return chat.read_message(raw)

    class Related:
        def contains_id(self, name: str) -> bool:
            return name == FOREIGN

        async def can_read(self, artifact: Artifact, calls: Sequence[CallInHistory]) -> bool:
            return [call.name for _, _, call in calls] == ["read"]

    archive, tasks = Archive(InMemoryStore()), LoopTasks()
    wires = {**rows(), b"log": {"role": "tool", "tool_call_id": "c1", "content": LOG * 100}}
    kept = [ArchivedMessage(key, json.dumps(wires[key]).encode()) for key in (b"call", b"log")]
    await archive.write(archive.build_puts(TENANT, kept, [replace(artifacts()[-1], tokens=200_000)]))
    call = ArtifactToolCall("c9", "read_artifact", json.dumps({"id": FOREIGN}))
    (answer,) = await ArtifactTool(archive, {"chat": Reads()}, tasks, PassageIndexes()).answer_calls(
        build_context(shared_access=Related()), [call]
    )
    assert not answer.error
    assert "line 1 fine" in answer.text
    assert get_ident() not in parsed_in
    await tasks.close()
