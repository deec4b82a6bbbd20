"""Responses over a WebSocket: measured, compacted and recorded as over HTTP, unchanged where nothing is to be done."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.conftest import Start
from tests.e2e.proxy_api import get_page, sum_metric, wait_until
from tests.e2e.small_window import WINDOW
from tests.loopback import Answer, Recorded, Script, replies_json
from tests.proxy_process import Proxy
from tests.reading_provider import ReadingProvider
from tests.sockets import SocketProvider, SocketRun, connected_socket, socket_provider
from tests.strict_provider import StrictProvider

SOON = 30.0
"""Seconds within which the other side must notice; it takes a hundredth of that."""
SMALL = f"""
server: {{shutdown_seconds: 10}}
summaries: {{writer: extractive}}
windows: {{default: {WINDOW}}}
"""


@pytest.fixture(scope="module")
def small(start: Start) -> Proxy:
    """A proxy that assumes a small window. The tests' sessions have different tasks."""
    return start(SMALL)


def model(name: str, **more: Any) -> StrictProvider:
    return StrictProvider("responses", WINDOW, rounds=1_000, thinks=True, run=name, **more)


@asynccontextmanager
async def conversation(
    proxy: Proxy, strict: StrictProvider, **more: Any
) -> AsyncIterator[tuple[SocketProvider, SocketRun]]:
    """A provider, and an agent on a socket to the proxy."""
    async with socket_provider(proxy, SocketProvider(strict)) as provider, connected_socket(proxy) as client:
        yield provider, SocketRun(client, strict.run, more=more)


async def recorded(proxy: Proxy, label: str, count: int) -> list[dict[str, Any]]:
    """The exchanges of the one session that a client labelled so, once there are so many."""

    async def known() -> Any:
        sessions = (await get_page(proxy, f"/accordion/sessions?label={label}")).json()["sessions"]
        if not sessions or sessions[0]["totals"]["requests"] < count:
            return None
        (session,) = sessions
        found = (await get_page(proxy, f"/accordion/sessions/{session['id']}")).json()["exchanges"]
        return found if len(found) >= count else None

    found: list[dict[str, Any]] = await wait_until(known)
    return found


async def test_messages_below_the_trigger_arrive_unchanged_and_are_measured(small: Proxy):
    async with conversation(small, model("few"), prompt_cache_key="session-few") as (provider, run):
        await run.rounds(4)
        exchanges = await recorded(small, "session-few", 4)
    assert provider.model.problems == []
    assert provider.received == [run.sent]
    assert provider.sent[0] == [event for events in run.events for event in events]
    assert [json.loads(sent).get("previous_response_id") for sent in run.sent] == [None, "resp_1", "resp_2", "resp_3"]
    assert sorted(each["messages"] for each in exchanges) == [1, 4, 7, 11]
    assert all(each["status"] == 200 and each["usage"]["input"] for each in exchanges)


async def test_a_run_past_the_window_is_compacted_and_never_sees_an_error(small: Proxy):
    async with conversation(small, model("long"), prompt_cache_key="session-long") as (provider, run):
        await run.rounds(60)
        exchanges = await recorded(small, "session-long", 50)
    strict, received = provider.model, provider.received[0]
    assert (run.errors, strict.problems, strict.refusals) == ([], [], [])
    assert max(each.tokens for each in strict.taken) <= WINDOW
    first = next(at for at, message in enumerate(received) if message != run.sent[at])
    assert first > 3
    assert received[:first] == run.sent[:first]
    assert all("previous_response_id" not in json.loads(message) for message in received[first:])
    assert sum(each["compaction"] is not None for each in exchanges) > 5


async def test_a_compacted_conversation_goes_on_over_a_new_socket(small: Proxy):
    async with conversation(small, model("again"), prompt_cache_key="session-again") as (provider, run):
        await run.rounds(25)
        await run.socket.close()
        async with connected_socket(small) as client:
            run.reconnect(client)
            await run.rounds(15)
            await recorded(small, "session-again", 40)
    strict, received = provider.model, provider.received[1]
    assert (run.errors, strict.problems, strict.refusals) == ([], [], [])
    assert len(received[0]) < len(run.sent[25]), "the compaction was not applied to the whole list"
    assert json.loads(received[0])["input"][:3] == json.loads(provider.received[0][-1])["input"][:3]


async def test_a_model_reads_back_over_a_socket(small: Proxy):
    reader = ReadingProvider(
        "responses", WINDOW, rounds=1_000, thinks=True, run="reads", ways=("o", "w", "wo", "oo"), every=2
    )
    async with conversation(small, reader, prompt_cache_key="session-reads") as (_, run):
        await run.rounds(50)
        await recorded(small, "session-reads", 50)
    assert (run.errors, reader.problems, reader.refusals) == ([], [], [])
    assert reader.done
    assert "read_artifact" not in json.dumps(run.history)


async def test_an_overflow_is_compacted_and_sent_once_more(start: Start):
    proxy = start(SMALL.replace(str(WINDOW), "1000000"))
    async with conversation(proxy, model("overflow")) as (provider, run):
        await run.rounds(40)
    strict = provider.model
    assert (run.errors, strict.problems) == ([], [])
    assert len(strict.refusals) > 0
    assert len(strict.refusals) < 4, "the limit was not learned"


async def test_streams_of_one_socket_run_at_the_same_time_and_their_events_are_told_apart(small: Proxy):
    go_on = asyncio.Event()

    async def handle(connection: ServerConnection) -> None:
        async def answer(stream: str) -> None:
            created = {"type": "response.created", "stream_id": stream, "response": {"id": f"resp_{stream}"}}
            await connection.send(json.dumps(created))
            if stream == "slow":
                await go_on.wait()
            done = {"id": f"resp_{stream}", "status": "completed", "output": []}
            await connection.send(json.dumps({"type": "response.completed", "stream_id": stream, "response": done}))

        tasks = [asyncio.create_task(answer(json.loads(text)["stream_id"])) async for text in connection]
        await asyncio.gather(*tasks)

    async with serve(handle, "127.0.0.1", small.upstream_port, open_timeout=60), connected_socket(small) as client:
        for stream in ("slow", "quick"):
            await client.send(json.dumps({"type": "response.create", "stream_id": stream, "model": "m", "input": "hi"}))
        ended = []
        while len(ended) < 2:
            event = json.loads(await client.recv())
            if event["type"] == "response.completed":
                ended.append(event["stream_id"])
                go_on.set()
    assert ended == ["quick", "slow"]


@asynccontextmanager
async def waiting(
    proxy: Proxy, *messages: str, then: Any = None
) -> AsyncIterator[tuple[ClientConnection, asyncio.Event]]:
    """A response that has begun, and an event that is set once the provider's socket is closed."""
    closed = asyncio.Event()

    async def handle(connection: ServerConnection) -> None:
        await connection.recv()
        for message in messages:
            await connection.send(message)
        if then is not None:
            await then(connection)
        await connection.wait_closed()
        closed.set()

    async with serve(handle, "127.0.0.1", proxy.upstream_port, open_timeout=60), connected_socket(proxy) as client:
        await client.send(json.dumps({"type": "response.create", "model": "m", "input": "hi"}))
        yield client, closed


CREATED = json.dumps({"type": "response.created", "sequence_number": 0, "response": {"id": "resp_1"}})
DELTA = json.dumps({"type": "response.output_text.delta", "sequence_number": 1, "delta": "Hello"})
"""With it the response has begun for certain: the opening events are held while it may still be an overflow."""
COMPLETED = json.dumps(
    {"type": "response.completed", "response": {"id": "resp_1", "status": "completed", "output": [], "usage": None}}
)


async def test_a_client_that_leaves_ends_the_providers_response(start: Start):
    proxy = start(SMALL)
    async with waiting(proxy, CREATED, DELTA) as (client, closed):
        assert [await client.recv(), await client.recv()] == [CREATED, DELTA]
        client.transport.abort()
        await asyncio.wait_for(closed.wait(), SOON)

        async def is_recorded() -> float:
            page = (await get_page(proxy, "/metrics")).text
            return sum_metric(page, "accordion_errors_total", upstream="openai", error="client_disconnected")

        await asyncio.wait_for(wait_until(is_recorded), SOON)


async def test_a_provider_that_breaks_off_is_an_error_and_the_end_of_the_socket(small: Proxy):
    async def abort(connection: ServerConnection) -> None:
        await connection.close(1013, "later")

    async with waiting(small, CREATED, then=abort) as (client, _):
        messages = []
        with pytest.raises(ConnectionClosed):
            while True:
                messages.append(json.loads(await client.recv()))
    assert [message["type"] for message in messages] == ["response.created", "error"]
    assert "Connection lost" in messages[1]["message"]
    assert (client.close_code, client.close_reason) == (1013, "later")


async def test_after_input_beside_the_list_requests_pass_as_they_came(small: Proxy):
    async with conversation(small, model("steered")) as (provider, run):
        await run.rounds(2)
        steer = json.dumps({"type": "response.steer", "input": "Stop."})
        await run.socket.send(steer)
        await run.rounds(30)
    assert provider.received[0] == [*run.sent[:2], steer, *run.sent[2:]]
    assert run.errors, "the provider's own limit is reached"


async def test_an_error_of_the_proxy_is_a_message_with_its_status_and_stream(small: Proxy):
    async with (
        socket_provider(small, SocketProvider(model("malformed"))) as provider,
        connected_socket(small, headers={"x-accordion-compact": "perhaps"}) as client,
    ):
        run = SocketRun(client)
        assert not await run.request([{"role": "user", "content": "hi"}], "", stream_id="main")
    assert provider.received == [[]]
    (error,) = run.errors
    assert (error["status"], error["error"]["type"], error["stream_id"]) == (400, "invalid_request_error", "main")
    assert error["error"]["param"] == "x-accordion-compact"


async def test_a_socket_needs_a_proxy_key_and_keeps_tenants_apart(start: Start):
    proxy = start(
        f"{SMALL}\nproxy_keys: [{{id: one, key: '${{ONE}}'}}, {{id: two, key: '${{TWO}}'}}]\n",
        ONE="accordion-key-of-one",
        TWO="accordion-key-of-two",
    )
    async with socket_provider(proxy, SocketProvider(model("keys"))) as provider:
        with pytest.raises(InvalidStatus) as refused:
            async with connected_socket(proxy):
                pass
        own = {"Authorization": "Bearer provider-key", "x-accordion-key": "accordion-key-of-one"}
        async with connected_socket(proxy, headers=own) as client:
            await SocketRun(client, "keys").rounds(2)

            async def list_of(key: str) -> Any:
                return (await get_page(proxy, "/accordion/sessions", **{"x-accordion-key": key})).json()["sessions"]

            await wait_until(lambda: list_of("accordion-key-of-one"))
        assert await list_of("accordion-key-of-two") == []
    assert refused.value.response.status_code == 401
    assert len(provider.connections) == 1
    sent = provider.connections[0].request
    assert sent is not None
    assert sent.headers["authorization"] == "Bearer provider-key"
    assert "x-accordion-key" not in sent.headers


async def test_a_running_response_ends_before_a_server_that_stops_closes_its_socket(start: Start):
    proxy, go_on = start(SMALL), asyncio.Event()

    async def finish(connection: ServerConnection) -> None:
        await go_on.wait()
        await connection.send(COMPLETED)

    async with waiting(proxy, CREATED, DELTA, then=finish) as (client, _):
        assert [await client.recv(), await client.recv()] == [CREATED, DELTA]
        stopping = asyncio.create_task(asyncio.to_thread(proxy.stop))
        await proxy.says("Shutting down")
        await asyncio.sleep(0.5)
        go_on.set()
        assert await client.recv() == COMPLETED
        await client.wait_closed()
        await stopping
    assert client.close_code == 1012


def without_sockets(script: Script) -> Script:
    """A provider that refuses upgrades."""

    async def answer(request: Recorded, answer: Answer) -> None:
        await (replies_json({"detail": "Not Found"}, 404) if request.method == "GET" else script)(request, answer)

    return answer


async def test_a_provider_without_a_websocket_is_asked_over_http(start: Start):
    proxy, strict = start(SMALL), model("http")
    async with proxy.provider(without_sockets(strict)) as server, connected_socket(proxy) as client:
        run = SocketRun(client, "http", more={"prompt_cache_key": "session-http"})
        run.begin()
        assert await run.request(run.history, "", generate=False)
        await run.rounds(50)
        await recorded(proxy, "session-http", 50)
    assert (run.errors, strict.problems, strict.refusals) == ([], [], [])
    assert max(each.tokens for each in strict.taken) <= WINDOW
    posts = [request for request in server.requests if request.method == "POST"]
    assert len(posts) == 50
    assert not posts[0].json().keys() & {"type", "generate", "previous_response_id"}
    assert posts[0].json()["stream"] is True
    assert not {"upgrade", "sec-websocket-key", "sec-websocket-version"} & {name.lower() for name in posts[0].names}
    assert posts[0].header("content-type") == "application/json"


async def test_an_error_over_http_is_a_message_with_its_status_and_headers(start: Start):
    proxy = start("server: {shutdown_seconds: 1}\nmodel_list: [{model_name: m, litellm_params: {model: openai/m}}]\n")
    body = {"error": {"message": "Slow down.", "code": "rate_limit_exceeded"}}
    async with proxy.provider(replies_json(body, 429)), connected_socket(proxy) as client:
        await client.send(json.dumps({"type": "response.create", "model": "n", "input": "hi", "stream_id": "s"}))
        message = json.loads(await client.recv())
        await client.send('{"type":"response.processed","response_id":"resp_1"}')
        await client.send('{"type":"response.steer"}')
        refused = json.loads(await client.recv())
    assert (message["type"], message["status"], message["stream_id"]) == ("error", 429, "s")
    assert message["error"] == body["error"]
    assert (refused["status"], refused["error"]["code"]) == (400, "websocket_message_refused")
