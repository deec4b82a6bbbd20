"""A conversation object, whose items the provider keeps, is compacted with its items in its place. In one process."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import parse_qs

import pytest

from accordion.model.errors import AccordionError, StoreUnavailable, Unreachable, UpstreamDisconnected
from accordion.model.ports import UpstreamRequest
from tests.compaction.compactor_setup import LoopTasks
from tests.fakes import FakeReply, FakeUpstream, FakeWindows
from tests.pipeline_setup import RESPONSES, PipelineSetup, header
from tests.sample_responses import sse

Json = dict[str, Any]
WINDOW = 4_000
FIXED: Json = {"model": "gpt-5", "instructions": "You mend builds."}
FIRST: Json = {"role": "user", "content": "Find out why the nightly build fails."}
ITEMS = "/v1/conversations/conv_1/items"


class Provider(FakeUpstream):
    """Keeps one conversation object. Each of its responses is a call."""

    def __init__(self) -> None:
        super().__init__()
        self.items: list[Json] = []
        self.models: list[Json] = []
        """The lists that the model read."""
        self.page = 100
        self.list_status = self.add_status = 200
        self.list_body: bytes | None = None
        """What is listed in place of the items."""
        self.is_away = False
        self.add_error: AccordionError | None = None
        """The error by which the answer to added items breaks off."""
        self.adding: asyncio.Event | None = None
        """Set when items were added; the answer then waits until `may_answer` is set."""
        self.may_answer = asyncio.Event()
        self.output: list[Json] | None = None
        """The output of the next responses, in place of a call."""

    async def send(self, request: UpstreamRequest) -> FakeReply:
        self.requests.append(request)
        path, _, query = request.url.partition("?")
        if path.endswith(ITEMS):
            if self.is_away:
                raise Unreachable("no connection")
            if request.method == "POST":
                reply = self._add(json.loads(request.body))
                if self.adding is not None:
                    self.adding.set()
                    await self.may_answer.wait()
                return reply
            return self._list(parse_qs(query))
        body = json.loads(request.body)
        return self._respond(body)

    def _add(self, body: Json) -> FakeReply:
        assert 0 < len(body["items"]) <= 20
        if self.add_status == 200:
            self._keep(body["items"])
        return FakeReply(self.add_status, pieces=(b'{"object":"list","data":[]}',), error=self.add_error)

    def _list(self, query: dict[str, list[str]]) -> FakeReply:
        assert query["order"] == ["asc"]
        after = query.get("after", [""])[0]
        start = next((at for at, item in enumerate(self.items, 1) if item["id"] == after), 0)
        page = self.items[start : start + self.page]
        ends = {"last_id": page[-1]["id"] if page else None, "has_more": start + len(page) < len(self.items)}
        body = json.dumps({"object": "list", "data": page, **ends}).encode()
        return FakeReply(self.list_status, pieces=(body if self.list_body is None else self.list_body,))

    def _respond(self, body: Json) -> FakeReply:
        given = body["input"]
        given = [{"type": "message", "role": "user", "content": given}] if isinstance(given, str) else given
        number = len(self.models)
        self.models.append([*(self.items if "conversation" in body else ()), *given])
        call = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "name": "read"}
        output = [{**call, "arguments": "{}", "status": "completed"}] if self.output is None else self.output
        if "conversation" in body:
            self._keep([*given, *output])
        response = {"id": f"resp_{number}", "model": "gpt-5", "status": "completed", "output": output}
        if not body.get("stream"):
            return FakeReply(pieces=(json.dumps(response).encode(),))
        done = [{"type": "response.output_item.done", "item": item} for item in output]
        events = [*done, {"type": "response.completed", "response": response}]
        return FakeReply(headers=((b"content-type", b"text/event-stream"),), pieces=(sse(*events, named=True),))

    def _keep(self, items: list[Json]) -> None:
        self.items += [{"id": f"item_{len(self.items) + at}", **item} for at, item in enumerate(items)]


class Client:
    """A client that sends only what is new, and the object's id."""

    def __init__(self, config: str = "") -> None:
        self.tasks, self.provider = LoopTasks(), Provider()
        parts: Any = {"tasks": self.tasks, "windows": FakeWindows(WINDOW), "upstream": self.provider}
        self.setup = PipelineSetup(config=config, **parts)
        self.items: list[Json] = []
        """All that the client sent and received."""
        self.state = ""
        self.sessions: list[str | None] = []

    async def turn(self, **fields: Any) -> Json:
        """One request and its response; returns the body that was forwarded."""
        number = len(self.provider.models)
        words = " ".join(f"word{number}_{at}" for at in range(400))
        new = {"type": "function_call_output", "call_id": f"call_{number - 1}", "output": words} if number else FIRST
        body = {**FIXED, "input": [new], "conversation": "conv_1", **fields}
        out, answer = await self.setup.ask(RESPONSES, body, {"authorization": "Bearer sk-client"})
        assert out.status == 200
        self.state = json.loads(header(out, "x-accordion-compaction") or '{"state": "none"}')["state"]
        self.sessions.append(header(out, "x-accordion-session"))
        await self.tasks.done()
        self.setup.clock.advance(1.0)
        given = body["input"]
        self.items += [{"role": "user", "content": given}] if isinstance(given, str) else given
        if not fields.get("stream"):
            self.items += json.loads(answer)["output"]
        forwarded: Json = json.loads([each.body for each in self.provider.requests if ITEMS not in each.url][-1])
        return forwarded

    async def turn_until_compacted(self, **fields: Any) -> Json:
        for _ in range(12):
            forwarded = await self.turn(**fields)
            if self.state == "compacted":
                return forwarded
        raise AssertionError("it was never compacted")

    @property
    def decision(self) -> str:
        return self.setup.recorder.exchanges[-1].decision


def without_ids(items: list[Json]) -> list[Json]:
    return [{name: value for name, value in item.items() if name != "id"} for item in items]


async def test_the_items_of_the_object_take_its_place_when_a_compaction_is_due() -> None:
    client = Client()
    forwarded = await client.turn()
    assert forwarded["conversation"] == "conv_1"
    assert not [each for each in client.provider.requests if ITEMS in each.url]
    forwarded = await client.turn_until_compacted()
    assert "conversation" not in forwarded
    assert {name: forwarded[name] for name in FIXED} == FIXED
    assert without_ids(forwarded["input"][:1]) == [FIRST]
    calls = [each["call_id"] for each in forwarded["input"] if each.get("type") == "function_call"]
    assert calls == [each["call_id"] for each in forwarded["input"] if each.get("type") == "function_call_output"]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_object_holds_all_that_was_sent_and_answered(stream: bool) -> None:
    client = Client()
    await client.turn_until_compacted(stream=stream)
    for _ in range(4):
        forwarded = await client.turn(stream=stream)
        assert client.state in ("compacted", "replayed")
        assert "conversation" not in forwarded
    if not stream:
        assert without_ids(client.provider.items) == without_ids(client.items)
    outputs = [each["call_id"] for each in client.provider.items if each.get("type") == "function_call_output"]
    assert outputs == [f"call_{number}" for number in range(len(outputs))]
    assert len(outputs) == len(client.provider.models) - 1


async def test_the_client_keeps_one_session_and_its_whole_original() -> None:
    client = Client("archive: {record: all}")
    await client.turn_until_compacted()
    await client.turn()
    assert len(set(client.sessions)) == 1
    caller = client.setup.forward.tenants.identify({b"authorization": b"Bearer sk-client"})
    await client.setup.archive.transcripts.flush()
    original = await client.setup.archive.transcripts.original(caller.tenant, client.sessions[0])
    # The output of the last response is not in any request yet.
    assert without_ids(json.loads(original.body)["input"]) == without_ids(client.items[:-1])


async def test_its_items_are_read_and_added_with_the_credential_of_the_request() -> None:
    client = Client()
    await client.turn_until_compacted()
    client.provider.output = [{"type": "message", "role": "assistant", "content": "I look."}]
    await client.turn()
    client.provider.requests.clear()
    await client.turn(input="What now?")
    own = [each for each in client.provider.requests if ITEMS in each.url]
    assert [each.method for each in own] == ["GET", "POST"]
    for each in own:
        headers = dict(each.headers)
        assert headers[b"authorization"] == b"Bearer sk-client"
        assert not [name for name in headers if name.startswith(b"x-accordion")]
    assert b"content-type" not in dict(own[0].headers)
    assert json.loads(own[1].body)["items"][0] == {"type": "message", "role": "user", "content": "What now?"}


async def test_an_object_is_read_page_by_page() -> None:
    client = Client()
    client.provider.page = 3
    await client.turn_until_compacted()
    pages = [each for each in client.provider.requests if ITEMS in each.url and each.method == "GET"]
    assert len(pages) > 2
    await client.turn()
    assert without_ids(client.provider.items) == without_ids(client.items)


async def test_items_that_the_client_adds_and_deletes_itself_count() -> None:
    client = Client()
    await client.turn_until_compacted()
    client.provider.items[0] = {"id": "own", "role": "user", "content": "Look at the linker."}
    forwarded = await client.turn_until_compacted()
    assert forwarded["input"][0] == {"id": "own", "role": "user", "content": "Look at the linker."}
    assert FIRST["content"] not in json.dumps(forwarded)


@pytest.mark.parametrize(("status", "page"), [(404, ""), (500, ""), (200, ""), (200, "{}"), (200, "<html>")])
async def test_an_object_that_the_provider_does_not_list_passes_unchanged(status: int, page: str) -> None:
    client = Client()
    client.provider.list_status, client.provider.list_body = status, page.encode()
    for _ in range(12):
        assert (await client.turn())["conversation"] == "conv_1"
    assert f"the provider does not list the items that it keeps (status {status})" in client.decision
    assert client.decision.count("passes unchanged") == 1
    assert without_ids(client.provider.items) == without_ids(client.items)


async def test_an_object_that_cannot_be_reached_passes_unchanged() -> None:
    client = Client()
    client.provider.is_away = True
    for _ in range(12):
        assert (await client.turn())["conversation"] == "conv_1"
    assert "could not be read (no connection), so it passes unchanged" in client.decision


@pytest.mark.parametrize("fault", ["status", "away"])
async def test_items_that_the_provider_does_not_take_are_not_lost(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    client = Client()
    await client.turn_until_compacted()
    client.provider.add_status = 500
    before = len(client.provider.items)
    for _ in range(2):
        forwarded = await client.turn()
    assert len(client.provider.items) == before
    # The call and the result that the provider did not take are there.
    assert [each.get("call_id") for each in forwarded["input"][-3:]] == [
        f"call_{len(client.provider.models) - number}" for number in (3, 2, 2)
    ]
    assert caplog.text.count("items were not added to the conversation object conv_1 of session") == 1
    client.provider.add_status = 200
    await client.turn()
    assert without_ids(client.provider.items) == without_ids(client.items)
    await client.turn()
    assert without_ids(client.provider.items) == without_ids(client.items)


async def test_items_are_added_once_if_the_client_leaves_meanwhile() -> None:
    client = Client()
    await client.turn_until_compacted()
    provider, before = client.provider, len(client.provider.items)
    provider.adding = asyncio.Event()
    turn = asyncio.create_task(client.turn())
    await provider.adding.wait()
    turn.cancel()
    await asyncio.gather(turn, return_exceptions=True)
    provider.may_answer.set()
    await client.tasks.done()
    # The result that the client sent, and the call of the response.
    assert [each["type"] for each in provider.items[before:]] == ["function_call_output", "function_call"]


async def test_items_are_added_once_if_the_answer_breaks_off_behind_its_status() -> None:
    client = Client()
    await client.turn_until_compacted()
    client.provider.add_error = UpstreamDisconnected("lost")
    await client.turn()
    await client.turn()
    assert without_ids(client.provider.items) == without_ids(client.items)


async def test_items_are_added_if_the_store_is_away_by_then(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    await client.turn_until_compacted()
    links = client.setup.builder.stored_responses
    find, calls = type(links).missing_items, 0

    async def lose_the_store(*args: Any) -> tuple[bytes, ...]:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise StoreUnavailable("away")
        return await find(*args)

    monkeypatch.setattr(type(links), "missing_items", lose_the_store)
    await client.turn()
    assert calls == 2
    assert without_ids(client.provider.items) == without_ids(client.items)


async def test_items_that_were_not_added_are_not_stored_once_the_session_is_erased() -> None:
    client = Client()
    await client.turn_until_compacted()
    provider = client.provider
    provider.add_status, provider.adding = 500, asyncio.Event()
    turn = asyncio.create_task(client.turn())
    await provider.adding.wait()
    caller = client.setup.forward.tenants.identify({b"authorization": b"Bearer sk-client"})
    client.setup.clock.advance(1.0)
    erased = await client.setup.builder.export_and_erasure.erase(caller.tenant, client.sessions[0])
    assert erased.verified
    provider.may_answer.set()
    await turn
    links = client.setup.builder.stored_responses
    assert await links.missing_items(caller.tenant, "conv_1") == ()


async def test_erasing_a_session_erases_the_items_that_were_not_added() -> None:
    client = Client()
    await client.turn_until_compacted()
    client.provider.add_status = 500
    await client.turn()
    caller = client.setup.forward.tenants.identify({b"authorization": b"Bearer sk-client"})
    links = client.setup.builder.stored_responses
    assert await links.missing_items(caller.tenant, "conv_1")
    await client.setup.builder.export_and_erasure.erase(caller.tenant, client.sessions[0])
    assert await links.missing_items(caller.tenant, "conv_1") == ()


@pytest.mark.parametrize("fields", [{"background": True}, {"store": False}])
async def test_a_request_whose_response_cannot_be_added_passes_unchanged(fields: Json) -> None:
    client = Client()
    await client.turn_until_compacted()
    for _ in range(2):
        assert (await client.turn(**fields))["conversation"] == "conv_1"
        assert "could not be added to the conversation, so it passes unchanged" in client.decision
    assert "conversation" not in await client.turn()
    assert without_ids(client.provider.items) == without_ids(client.items)


async def test_more_items_than_the_api_takes_at_once_are_added_in_parts() -> None:
    client = Client()
    await client.turn_until_compacted()
    client.provider.output = [
        {"type": "function_call", "id": f"fc_x{number}", "call_id": f"x{number}", "name": "read", "arguments": "{}"}
        for number in range(45)
    ]
    await client.turn()
    assert without_ids(client.provider.items) == without_ids(client.items)


async def test_a_failed_response_adds_nothing() -> None:
    client = Client()
    await client.turn_until_compacted()
    before = list(client.provider.items)
    client.provider.output = []

    async def fail(request: UpstreamRequest) -> FakeReply:
        if ITEMS in request.url:
            return await Provider.send(client.provider, request)
        error = {"error": {"message": "No.", "type": "server_error"}}
        return FakeReply(500, pieces=(json.dumps(error).encode(),))

    client.provider.send = fail  # type: ignore[method-assign]
    body = {**FIXED, "input": "Again.", "conversation": {"id": "conv_1"}}
    out, _ = await client.setup.ask(RESPONSES, body, {"authorization": "Bearer sk-client"})
    assert out.status == 500
    assert client.provider.items == before


@pytest.mark.parametrize("config", ["compaction: {mode: off}", "compaction: {mode: observe}"])
async def test_without_a_compaction_the_conversation_object_is_not_read(config: str) -> None:
    client = Client(config)
    for _ in range(12):
        assert (await client.turn())["conversation"] == "conv_1"
    assert not [each for each in client.provider.requests if ITEMS in each.url]
