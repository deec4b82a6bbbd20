from __future__ import annotations

import zstandard
from hypothesis import given
from hypothesis import strategies as st

from accordion.archive.archive import Archive
from accordion.archive.artifacts import (
    ArchivedMessage,
    Artifact,
    artifact_text,
    decode,
    encode,
    make_packer,
    record_keys,
    result_text,
    row_key,
    session_collection,
    unpack,
)
from accordion.model.conversation import Media, Message, Opaque, Text, ToolCall, ToolResult
from accordion.model.ports import Put
from accordion.model.tenant import TenantScope
from accordion.stores.memory_store import InMemoryStore

TENANT, OTHER = TenantScope("tenant", b"one tenant"), TenantScope("other", b"another tenant")
CALL = Message(b"k1", "assistant", (ToolCall("c1", "read", '{"path": "a.py"}'),), b"{}")
ANSWER = Message(b"k2", "tool", (ToolResult("c1", (Text("line one\nline two"),)),), b"{}")


def artifact(**changes: object) -> Artifact:
    fields = {
        "id": "art_1", "kind": "result", "protocol_name": "chat", "keys": (b"k1", b"k2"), "first": 3, "last": 4,
        "part": 0, "tool": "read", "call_id": "c1", "session": "s-1", "scope": b"x",
    }  # fmt: skip
    return Artifact(**{**fields, **changes})  # type: ignore[arg-type]


@given(st.binary(max_size=5_000))
def test_a_row_comes_back_byte_for_byte(wire: bytes):
    assert unpack(make_packer()(wire)) == wire


def test_a_row_of_another_level_is_read_as_well():
    wire = b'{"role":"user","content":"hello"}' * 20
    assert unpack(b"\x01" + zstandard.ZstdCompressor(level=3).compress(wire)) == wire


def test_a_row_that_was_damaged_is_none():
    kept = make_packer()(b'{"role":"user","content":"hello"}' * 20)
    assert unpack(None) is None
    assert unpack(b"") is None
    assert unpack(b"\x02" + kept[1:]) is None
    assert unpack(kept[:-3]) is None


def test_a_record_comes_back_as_it_was_and_a_damaged_one_is_none():
    kept = artifact(findings=("it is short",), at=3.5)
    assert decode(encode(kept)) == kept
    assert decode(None) is None
    assert decode(encode(kept)[:-2]) is None
    assert decode(b"\x07" + encode(kept)[1:]) is None


def test_a_result_reads_as_its_call_and_its_whole_output():
    text = artifact_text(artifact(), [CALL, ANSWER])
    assert text == '## Tool: read\n**Input:** {"path": "a.py"}\n**Output:**\nline one\nline two'


def test_a_range_reads_as_its_messages_with_their_indexes():
    said = Message(b"k0", "user", (Text("Read it."),), b"{}")
    text = artifact_text(artifact(kind="range", part=-1, first=7), [said, CALL, ANSWER])
    assert text.split("\n\n") == [
        "[7] user\nRead it.",
        '[8] assistant\n## Tool: read\n**Input:** {"path": "a.py"}',
        "[9] tool\n**Output of read:**\nline one\nline two",
    ]


@given(st.text("ab\n", max_size=300), st.integers(2, 5))
def test_the_slices_of_a_range_put_together_are_the_whole_of_it(output: str, of: int):
    answer = Message(b"k2", "tool", (ToolResult("c1", (Text(output),)),), b"{}")
    whole = artifact_text(artifact(kind="range", part=-1), [CALL, answer])
    told = [
        artifact_text(artifact(kind="range", part=-1, slice=at, slices=of), [CALL, answer]) for at in range(1, of + 1)
    ]
    heads, texts = zip(*(each.split("\n", 1) for each in told), strict=True)
    assert heads == tuple(f"(slice {at} of {of} of messages 3 to 4)" for at in range(1, of + 1))
    assert "".join(texts) == whole
    assert all(len(text) <= 2 * (len(whole) // of + 1) for text in texts)


def test_slices_are_cut_at_line_ends_where_there_are_any():
    answer = Message(b"k2", "tool", (ToolResult("c1", (Text("\n".join(["a line of it"] * 40)),)),), b"{}")
    told = [artifact_text(artifact(kind="range", part=-1, slice=at, slices=3), [CALL, answer]) for at in (1, 2)]
    assert all(each.endswith("a line of it\n") for each in told)


def test_media_in_a_result_is_named_in_its_text():
    parts = (Text("before"), Media("image", "image/png", 120, 10, 20), Opaque("odd", 44))
    assert result_text(ToolResult("c", parts)) == "before\n(image/png 10x20)\n(odd, 44 bytes)"


async def test_artifacts_are_found_by_key_by_id_and_by_session():
    archive = Archive(InMemoryStore())
    rows = [ArchivedMessage(b"k1", b'{"a":1}'), ArchivedMessage(b"k2", b'{"b":2}')]
    await archive.write(archive.build_puts(TENANT, rows, [artifact(), artifact(id="art_2")]))
    assert await archive.load_rows(TENANT, [b"k1", b"k2", b"none"]) == {b"k1": b'{"a":1}', b"k2": b'{"b":2}'}
    assert await archive.load_artifacts(TENANT, ["art_2", "art_9"]) == [artifact(id="art_2"), None]
    assert [each.id for each in await archive.list_artifacts(TENANT, "s-1")] == ["art_1", "art_2"]
    assert [each.id for each in await archive.list_artifacts(TENANT, "s-1", after=artifact())] == ["art_2"]


async def test_an_id_of_another_tenant_leads_nowhere():
    archive = Archive(InMemoryStore())
    await archive.write(archive.build_puts(TENANT, [], [artifact()]))
    assert await archive.load_artifacts(OTHER, ["art_1"]) == [None]
    assert await archive.list_artifacts(OTHER, "s-1") == []
    assert await archive.load_records(OTHER, "art_1") == []
    assert not set(record_keys(TENANT, artifact())) & set(record_keys(OTHER, artifact()))
    assert session_collection(TENANT, "s-1") != session_collection(OTHER, "s-1")


async def test_an_artifact_of_several_sessions_and_scopes_is_recorded_for_each():
    archive = Archive(InMemoryStore())
    left = [
        artifact(first=first, session=session, scope=scope)
        for first, (session, scope) in enumerate([("s-1", b""), ("s-1", b"x"), ("s-2", b""), ("s-2/x", b"")])
    ]
    for each in left:
        await archive.write(archive.build_puts(TENANT, [], [each]))
    found = await archive.load_records(TENANT, "art_1")
    assert sorted(found, key=lambda each: each.first) == left
    assert await archive.list_artifacts(TENANT, "s-1") == left[:2]
    assert await archive.list_artifacts(TENANT, "s-1", after=left[0]) == left[1:2]
    assert await archive.list_artifacts(TENANT, "s-2") == [left[2]]
    assert await archive.load_artifacts(TENANT, ["art_1"]) == found[:1]


async def test_a_record_that_goes_leaves_those_of_others():
    store = InMemoryStore()
    archive = Archive(store)
    mine, theirs = artifact(), artifact(session="s-2")
    await archive.write(archive.build_puts(TENANT, [], [mine, theirs]))
    await store.delete(record_keys(TENANT, mine))
    assert await archive.load_artifacts(TENANT, ["art_1"]) == [theirs]
    assert await archive.list_artifacts(TENANT, "s-1") == []
    assert await archive.list_artifacts(TENANT, "s-2") == [theirs]


async def test_a_record_that_nobody_can_read_hides_no_other():
    store = InMemoryStore()
    archive = Archive(store)
    await archive.write(archive.build_puts(TENANT, [], [artifact(session="s-1"), artifact(session="s-2")]))
    await store.put(record_keys(TENANT, artifact(session="s-1"))[0], b"\x07")
    assert await archive.load_artifacts(TENANT, ["art_1"]) == [artifact(session="s-2")]


async def test_the_same_record_again_takes_no_more_room():
    store = InMemoryStore()
    archive = Archive(store)
    for at in (1.0, 2.0):
        await archive.write(archive.build_puts(TENANT, [], [artifact(at=at)]))
    assert (
        await archive.load_records(TENANT, "art_1") == await archive.list_artifacts(TENANT, "s-1") == [artifact(at=2.0)]
    )


def test_a_message_that_leaves_twice_is_written_once():
    puts = Archive(InMemoryStore()).build_puts(
        TENANT, [ArchivedMessage(b"k1", b"{}"), ArchivedMessage(b"k1", b"{}")], []
    )
    assert [put.key for put in puts] == [row_key(b"k1")]


class Batches(InMemoryStore):
    """Notes how large the batches are that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    async def write(self, batch):
        self.sizes.append(sum(len(put.value) for put in batch if isinstance(put, Put)))
        await super().write(batch)


async def test_much_is_written_in_several_batches():
    store = Batches()
    archive = Archive(store)
    puts = [Put(row_key(b"%d" % n), b"x" * 300_000) for n in range(20)]
    await archive.write(puts)
    assert len(store.sizes) > 2
    assert max(store.sizes) <= 2 * 2**20
    assert sum(store.sizes) == 20 * 300_000
