"""Where nothing is to be compacted: what of a list led to a reading back alone, which a provider refuses; workers on
one store, all in one process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from accordion.model.errors import StoreUnavailable
from accordion.model.insertions import ToolRound, ToolRoundInsertion
from accordion.model.ports import Key
from accordion.stores.memory_store import InMemoryStore
from tests.fakes import FakeReply, FakeWindows
from tests.pipeline_setup import CHAT, MESSAGES, RESPONSES, PipelineSetup
from tests.protocols.responses_streams import OURS, THEIR_TOOL, function, message, reasoning, search

Json = dict[str, Any]
OFF, OBSERVE, AUTO = ({"x-accordion-compact": word} for word in ("off", "observe", "auto"))
ANSWER = b'{"id": "resp_1", "object": "response", "status": "completed", "model": "m", "output": []}'
TOOLS: Json = {"tools": [THEIR_TOOL]}


class Counting(InMemoryStore):
    """Notes of each look at what was read back how many places it asked for; away when told so."""

    def __init__(self) -> None:
        super().__init__()
        self.looks: list[int] = []
        self.away = False

    async def get_many(self, keys: Sequence[Key]) -> list[bytes | None]:
        if self.away:
            raise StoreUnavailable("away")
        if keys and keys[0].name.startswith("insertion/"):
            self.looks.append(len(keys))
        return await super().get_many(keys)


def worker(store: InMemoryStore | None = None) -> PipelineSetup:
    return PipelineSetup(store=store or InMemoryStore(), windows=FakeWindows(100_000))


def body(items: list[Json], fields: Json) -> bytes:
    return json.dumps({"model": "gpt-5", "store": False, "input": items, **fields}).encode()


async def sent(setup: PipelineSetup, items: list[Json], headers: dict[str, str], **fields: Any) -> list[Json]:
    """What a worker forwards of a list, and then has written."""
    await setup.ask(RESPONSES, body(items, fields), headers)
    await setup.outbox.flush()
    found: list[Json] = json.loads(setup.upstream.requests[-1].body)["input"]
    return found


async def reads_back(setup: PipelineSetup, items: list[Json], rounds: list[list[Json]], **fields: Any) -> None:
    """Notes that the reply to this list had these rounds."""
    measured = await setup.measure(RESPONSES, body(items, fields))
    told = [[each for each in said if each.get("name") == OURS] for said in rounds]
    answered = [
        [{"type": "function_call_output", "call_id": one["call_id"], "output": "x"} for one in of] for of in told
    ]
    made = tuple(
        ToolRound(tuple(json.dumps(each).encode() for each in said), tuple(json.dumps(each).encode() for each in out))
        for said, out in zip(rounds, answered, strict=True)
    )
    weave = ToolRoundInsertion(measured.session_match.conversation.chain[-1], made, (), "Well.", 1.0)
    await setup.builder.insertion_store.add(measured.ref, weave, 0.0)
    await setup.outbox.flush()


def user(text: str) -> Json:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


R1, R2, SAID = reasoning("one", sealed="s1"), reasoning("two", sealed="s2"), message("m", "Well.")
ASKED = function("ours", '{"id": "art_1"}', OURS)


@pytest.mark.parametrize("named", [False, True], ids=["told", "named by id"])
@pytest.mark.parametrize("fields", [TOOLS, {}], ids=["tools", "no tools"])
@pytest.mark.parametrize("last", [[R2, SAID], [SAID]], ids=["reasoned", "unreasoned"])
@pytest.mark.parametrize("headers", [OFF, OBSERVE], ids=["off", "observe"])
async def test_the_same_leaves_whichever_worker_answers(
    headers: dict[str, str], last: list[Json], fields: Json, named: bool
):
    """One that read back, one that did not, and one that was started since; turn after turn."""
    one = worker()
    workers = [one, worker(one.store)]
    items = [user("Look.")]
    await sent(one, items, AUTO, **fields)
    await reads_back(one, items, [[R1, ASKED], last], **fields)

    def as_sent_back(item: Json) -> Json:
        return {"type": "item_reference", "id": item["id"]} if named else item

    items += [*map(as_sent_back, [R1, *last]), user("And now?")]
    before: list[Json] = []
    for turn in range(4):
        workers.append(worker(one.store))
        lists = [await sent(each, items, headers, **fields) for each in workers[turn % 2 :]]
        assert lists[0] == [each for each in items if each != as_sent_back(R1)]
        assert all(each == lists[0] for each in lists)
        assert lists[0][: len(before)] == before
        before = lists[0]
        items += [reasoning(f"t{turn}", sealed=f"t{turn}"), message(f"t{turn}", f"Said {turn}."), user(f"More {turn}.")]


async def test_a_list_with_nothing_to_leave_out_leaves_in_its_own_bytes():
    setup = worker()
    raw = json.dumps({"model": "gpt-5", "input": [user("Look."), R1, R2, SAID, user("?")]}, indent=1).encode()
    await setup.ask(RESPONSES, raw, OBSERVE)
    assert setup.upstream.requests[-1].body == raw


# -- what it costs -----------------------------------------------------------------------------------------------------


def turns(path: str, count: int, thoughts: int) -> list[Json]:
    """An agent's list after so many turns, each with so many thoughts."""
    items: list[Json] = [user("Look.") if path == RESPONSES else {"role": "user", "content": "Look."}]
    for at in range(count):
        if path == CHAT:
            calls = [{"id": f"c{at}", "type": "function", "function": {"name": "run", "arguments": "{}"}}]
            thought: Json = {"reasoning": "Hm.", "reasoning_content": "Hm."} if thoughts else {}
            items += [{"role": "assistant", "content": None, "tool_calls": calls, **thought}]
            items += [{"role": "tool", "tool_call_id": f"c{at}", "content": f"{at}"}]
        elif path == MESSAGES:
            blocks: list[Json] = [{"type": "thinking", "thinking": "reasoning", "signature": "x"}] * thoughts
            items += [{"role": "assistant", "content": [*blocks, {"type": "text", "text": '"reasoning"'}]}]
            items += [{"role": "user", "content": f"{at}"}]
        else:
            items += [reasoning(f"{at}_{each}", sealed="x") for each in range(thoughts)]
            items += [function(f"c{at}"), {"type": "function_call_output", "call_id": f"c{at}", "output": f"{at}"}]
    return items


async def looks(path: str, headers: dict[str, str], thoughts: int, *counts: int) -> list[list[int]]:
    """How many places are asked for in each turn of an agent, in each of its looks at the store."""
    store, found = Counting(), list[list[int]]()
    setup = worker(store)
    for count in counts:
        store.looks.clear()
        listing = "input" if path == RESPONSES else "messages"
        asked = {
            "model": "gpt-5",
            "max_tokens": 9,
            "reasoning": {"effort": "low"},
            listing: turns(path, count, thoughts),
        }
        await setup.ask(path, asked, headers)
        found.append(list(store.looks))
    return found


@pytest.mark.parametrize("thoughts", [1, 2])
@pytest.mark.parametrize("headers", [OFF, OBSERVE], ids=["off", "observe"])
async def test_the_store_is_asked_for_a_list_once_and_then_for_what_is_new_of_it(
    headers: dict[str, str], thoughts: int
):
    turn = thoughts + 2
    assert await looks(RESPONSES, headers, thoughts, 50, 51, 52, 52, 55) == [
        [1 + 50 * turn], [1 + turn], [1 + turn], [1], [1 + 3 * turn]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "headers", "thoughts"),
    [(RESPONSES, OFF, 0), (RESPONSES, AUTO, 2), (CHAT, OBSERVE, 1), (MESSAGES, OBSERVE, 1), (CHAT, OFF, 0)],
)
async def test_the_store_is_not_asked_where_nothing_can_have_been_left(
    path: str, headers: dict[str, str], thoughts: int
):
    assert await looks(path, headers, thoughts, 50, 51, 52) == [[], [], []]


async def test_a_store_that_was_away_is_asked_when_it_is_back():
    store = Counting()
    one, other = worker(store), worker(store)
    items = [user("Look.")]
    await sent(one, items, AUTO)
    await reads_back(one, items, [[R1, ASKED], [SAID]])
    items += [R1, SAID, user("And now?")]
    store.away = True
    await other.ask(RESPONSES, body(items, {}), OFF)
    assert json.loads(other.upstream.requests[-1].body)["input"] == items
    store.away = False
    assert await sent(other, items, OFF) == [items[0], SAID, items[-1]]


def refusal(text: str) -> FakeReply:
    """In the words of OpenAI (continuedev/continue#8933 and #11466)."""
    error = {"message": text, "type": "invalid_request_error", "param": "input", "code": None}
    return FakeReply(400, pieces=(json.dumps({"error": error}).encode(),))


ALONE = "Item 'rs_one' of type 'reasoning' was provided without its required following item."
LED = "Item 'msg_m' of type 'message' was provided without its required 'reasoning' item: 'rs_one'."


@pytest.mark.parametrize("named", [False, True], ids=["told", "named by id"])
@pytest.mark.parametrize("headers", [AUTO, OFF], ids=["auto", "off"])
async def test_lone_reasoning_is_left_out_if_read_backs_cannot_be_looked_up(headers: dict[str, str], named: bool):
    store = Counting()
    setup = worker(store)
    store.away = True
    setup.upstream.answers = [refusal(ALONE), refusal(LED), FakeReply(pieces=(ANSWER,))]
    given = {"type": "item_reference", "id": R1["id"]} if named else R1
    out, reply = await setup.ask(RESPONSES, body([user("Look."), given, SAID, user("And?")], {}), headers)
    assert (out.status, reply) == (200, ANSWER)
    lists = [json.loads(each.body)["input"] for each in setup.upstream.requests]
    bare = {name: value for name, value in SAID.items() if name != "id"}
    assert lists[1:] == [[user("Look."), SAID, user("And?")], [user("Look."), bare, user("And?")]]


async def test_a_search_without_its_reasoning_is_left_out_since_it_has_to_have_its_id() -> None:
    setup = worker(store := Counting())
    store.away = True
    led = "Item 'ws_w' of type 'web_search_call' was provided without its required 'reasoning' item: 'rs_one'."
    setup.upstream.answers = [refusal(ALONE), refusal(led), FakeReply(pieces=(ANSWER,))]
    out, _ = await setup.ask(RESPONSES, body([user("Look."), R1, search("w"), SAID, user("And?")], {}), AUTO)
    assert out.status == 200
    assert json.loads(setup.upstream.requests[-1].body)["input"] == [user("Look."), SAID, user("And?")]


async def compacted_with_lone_reasoning() -> tuple[PipelineSetup, list[Any]]:
    """A compacted conversation, and its list with reasoning whose read-backs are not known."""
    setup, items = PipelineSetup(store=Counting(), windows=FakeWindows(2_000)), [user("Look.")]
    for at in range(12):
        items += [function(f"c{at}"), {"type": "function_call_output", "call_id": f"c{at}", "output": "word " * 200}]
        await sent(setup, items, AUTO)
    return setup, [*items, R1, function("c12"), {"type": "function_call_output", "call_id": "c12", "output": "word"}]


async def test_lone_reasoning_is_left_out_of_a_compacted_list():
    """Its read-backs could not be looked up, and the store is there again when the provider refuses the list."""
    setup, items = await compacted_with_lone_reasoning()
    setup.upstream.answers = [refusal(ALONE), FakeReply(pieces=(ANSWER,))]
    out, _ = await setup.ask(RESPONSES, body(items, {}), AUTO)
    first, second = (json.loads(each.body)["input"] for each in setup.upstream.requests[-2:])
    assert out.status == 200
    assert len(first) < len(items)
    assert second == [each for each in first if each != R1] != first


async def test_lone_reasoning_that_was_refused_stays_out_of_the_rounds_that_follow():
    """The model reads back in its answer to the list without it."""
    setup, items = await compacted_with_lone_reasoning()
    replies = [
        {"id": "r1", "status": "completed", "output": [ASKED]},
        {"id": "r2", "status": "completed", "output": [SAID]},
    ]
    kind = ((b"content-type", b"application/json"),)
    told = [FakeReply(headers=kind, pieces=(json.dumps(each).encode(),)) for each in replies]
    setup.upstream.answers = [refusal(ALONE), *told]
    out, _ = await setup.ask(RESPONSES, body(items, {}), AUTO)
    first, second, third = (json.loads(each.body)["input"] for each in setup.upstream.requests[-3:])
    assert out.status == 200
    assert R1 in first
    assert third[:-2] == second == [each for each in first if each != R1]
    assert [each["type"] for each in third[-2:]] == ["function_call", "function_call_output"]


@pytest.mark.parametrize(
    "text", [ALONE, LED, "Item 'rs_other' of type 'reasoning' was provided without its required following item."]
)
async def test_a_list_that_the_client_made_wrong_is_refused(text: str):
    """Our tool was never offered to its model, or what is refused is not in it."""
    setup = worker()
    items = [user("Look.")]
    await sent(setup, items, AUTO)
    items += [R2, SAID, user("And now?")]
    await sent(setup, items, AUTO)
    items = [*items[:1], R1, *items[1:]] if "rs_one" in text else items
    setup.upstream.answers = [refusal(text)]
    count = len(setup.upstream.requests)
    out, _ = await setup.ask(RESPONSES, body([*items, message("n", "So."), user("And then?")], {}), AUTO)
    assert out.status == 400
    assert len(setup.upstream.requests) == count + 1


async def test_what_was_read_back_since_by_another_worker_is_known():
    """It answered the very list that this one was asked with before."""
    one = worker()
    other = worker(one.store)
    items = [user("Look."), R2, message("n", "Hm."), user("Go on.")]
    await sent(other, items, OFF)
    await reads_back(one, items, [[R1, ASKED], [SAID]])
    items += [R1, SAID, user("And now?")]
    assert await sent(other, items, OFF) == [each for each in items if each != R1]
