"""A client whose last message, or last text, is not in its next request stays in its session."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accordion.accounting.holdout import Holdout
from accordion.sessions.prefix_nodes import decode
from accordion.stores.memory_store import InMemoryStore
from tests.fakes import FakeReply, FakeWindows, WaitingTasks
from tests.histories import PROTOCOL_NAMES, ProtocolName
from tests.http.api_client import client as api_client
from tests.pipeline_setup import CHAT, OWNER, PipelineSetup, header
from tests.reply_parts import ReplyCall, ReplyText
from tests.transient_client import EndKind, TransientClient
from tests.writers import WRITERS

KINDS: list[tuple[ProtocolName, EndKind]] = [
    *((name, "message") for name in PROTOCOL_NAMES),
    *((name, "system message") for name in ("chat", "responses")),
    *((name, "text") for name in ("messages", "gemini", "converse")),
]
ANSWER = "An answer with so many words that it recognizes a response."


def start_workers(count: int, window: int = 100_000, **fields: Any) -> list[PipelineSetup]:
    """Workers on one store that do not know of each other's requests."""
    store = InMemoryStore()
    started = [PipelineSetup(store=store, windows=FakeWindows(window), **fields) for _ in range(count)]
    for number, setup in enumerate(started):
        setup.forward.reader.identifier.sessions.worker = str(number)
    return started


@pytest.mark.parametrize("calls", [0, 2])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("protocol_name", "end"), KINDS)
async def test_a_client_that_drops_the_end_of_its_list_stays_in_its_session(
    protocol_name: ProtocolName, end: EndKind, stream: bool, count: int, calls: int
) -> None:
    client = TransientClient(start_workers(count), protocol_name, end, stream)
    assert len(await client.run(4, calls)) == 1


@pytest.mark.parametrize("protocol_name", ["chat", "responses"])
async def test_a_client_that_drops_the_last_text_of_each_question_stays_in_its_session(
    protocol_name: ProtocolName,
) -> None:
    assert len(await TransientClient(start_workers(1), protocol_name, "text").run(4, calls=0)) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
async def test_it_stays_in_its_session_after_compactions(protocol_name: ProtocolName, stream: bool) -> None:
    workers = start_workers(2, window=2_000)
    client = TransientClient(workers, protocol_name, stream=stream, words=60)
    assert len(await client.run(14)) == 1
    outcomes = [each.compaction for setup in workers for each in setup.recorder.exchanges if each.compaction]
    assert {"compacted", "replayed"} <= {outcome.state for outcome in outcomes}


async def test_a_long_answer_is_read_in_a_thread_and_a_longer_one_is_not_read() -> None:
    tasks = WaitingTasks()
    [setup] = start_workers(1, tasks=tasks)
    client = TransientClient([setup])
    for answer in ("word " * 20_000, "words " * 200_000, ANSWER):
        client.history.append(WRITERS["chat"].user("a question"))
        await client.request(ReplyText(answer))
        await tasks.run()
    assert tasks.offloaded.count("_read_text") == 1
    # After the second answer, the session is found by the first one.
    assert len(set(client.sessions)) == 1


async def test_two_such_clients_with_one_question_have_a_session_each() -> None:
    [setup] = start_workers(1)
    clients = TransientClient([setup]), TransientClient([setup], name="other")
    for client in clients:
        client.history.append(WRITERS["chat"].user("the same question"))
    for number in range(4):
        for client in clients:
            call = f"call_{client.name}_{number}"
            await client.request(ReplyCall(call, "read", "{}"))
            client.history.append({"role": "tool", "tool_call_id": call, "content": "result"})
    assert [len(set(client.sessions)) for client in clients] == [1, 1]
    assert clients[0].sessions[0] != clients[1].sessions[0]


@pytest.mark.parametrize("answer", [ANSWER, "Done."])
async def test_clients_with_the_same_question_and_answer_share_no_session(
    answer: str,
) -> None:
    [setup] = start_workers(1)
    clients = TransientClient([setup]), TransientClient([setup], name="other")
    for client in clients:
        client.history.append(WRITERS["chat"].user("the same question"))
        await client.request(ReplyText(answer))
    for client in (*clients, *clients):
        client.history.append(WRITERS["chat"].user(f"another question of {client.name}"))
        await client.request(ReplyText(f"{answer} It is that of {client.name}."))
    assert not set(clients[0].sessions) & set(clients[1].sessions)


async def test_an_interrupted_response_does_not_end_the_session() -> None:
    client = TransientClient(start_workers(1))
    await client.run(2)
    await client.turn(calls=0)
    # The client has only the beginning of the last response.
    client.history[-1]["content"] = client.history[-1]["content"][:10]
    assert len(await client.run(2)) == 1


async def test_a_list_that_keeps_an_end_is_a_fork_of_one_without_it() -> None:
    [setup] = start_workers(1)
    dropping = TransientClient([setup])
    await dropping.run(2)
    keeping = TransientClient([setup], history=dropping.history[:1])
    keeping.history = keeping.with_end("It is 1 o'clock at one.")
    call = dropping.history[1]
    keeping.history += [call, {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "other"}]
    assert await keeping.request(ReplyText(ANSWER)) != dropping.sessions[0]
    assert len(await dropping.run(1)) == 1


# -- what goes by session ----------------------------------------------------------------------------------------------


async def test_the_session_is_shown_drawn_counted_and_erased_as_one() -> None:
    [setup] = start_workers(1, window=2_000, config="compaction: {holdout: 50%}\n")
    client = TransientClient([setup], words=60)
    await client.run(14)
    http = api_client(setup)
    (listed,) = http.get("/accordion/sessions").json()["sessions"]
    assert listed["id"] == client.sessions[0]
    assert listed["totals"]["requests"] == client.requests == 42
    tenant = setup.forward.tenants.scope("default")
    (session,) = await setup.observe.list_sessions(tenant)
    drawn = Holdout(0.5).assign(tenant, f"s:{listed['id']}")
    assert drawn is not None
    assert session.holdout is not None
    assert session.holdout.unit == drawn.unit
    assert session.holdout.group == drawn.group

    assert len(await node_names(setup, listed["id"])) > client.requests
    erased = http.delete(f"/accordion/sessions/{listed['id']}", headers=OWNER)
    assert (erased.status_code, erased.json()["verified"]) == (200, True)
    assert await node_names(setup, listed["id"]) == []
    assert http.get("/accordion/sessions").json()["sessions"] == []


async def node_names(setup: PipelineSetup, session: str) -> list[str]:
    """The keys of the prefix nodes of a session in the store."""
    await setup.outbox.flush()
    return [
        key.name
        for key, entry in setup.store._values.items()
        if key.name.startswith("point/") and (node := decode(entry.value)) is not None and node.session == session
    ]


# -- other clients -----------------------------------------------------------------------------------------------------


def reply(text: str, *calls: Any) -> FakeReply:
    message = {"role": "assistant", "content": text, "tool_calls": list(calls)}
    document = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    return FakeReply(pieces=(json.dumps(document).encode(),))


async def count_writes(messages: list[Any], turns: int = 1) -> list[int]:
    """The writes behind each turn of a client that keeps what it sends. Its first list is `messages`."""
    [setup] = start_workers(1)
    counts = []
    for number in range(turns):
        setup.upstream.answers = [reply(f"{ANSWER} {number}")]
        out, _ = await setup.ask(CHAT, {"model": "gpt-5", "messages": messages})
        assert header(out, "x-accordion-session")
        counts.append(len(setup.outbox.taken))
        await setup.outbox.flush()
        messages = [
            *messages,
            {"role": "assistant", "content": f"{ANSWER} {number}"},
            {"role": "user", "content": f"question {number}"},
            {"role": "user", "content": f"more of question {number}"},
        ]
    return counts


async def test_a_client_that_keeps_what_it_sends_has_a_second_name_for_its_first_list() -> None:
    question = {"role": "user", "content": "the question"}
    one, two = await count_writes([question], 3), await count_writes([question, question], 3)
    assert [second - first for first, second in zip(one, two, strict=True)] == [2, 0, 0]


async def test_tool_results_alone_get_no_second_name() -> None:
    question = {"role": "user", "content": "the question"}
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    results = [
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": "two"},
    ]
    calls = {"role": "assistant", "tool_calls": [call, {**call, "id": "c2"}]}
    assert await count_writes([question]) == await count_writes([question, calls, *results])
