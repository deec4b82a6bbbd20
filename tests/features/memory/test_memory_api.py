"""Memories by REST: each call as the OpenAPI document has it, each tenant its own, errors as everywhere."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import jsonschema
import pytest

from accordion.composition.application import Application
from accordion.features.memory.memory_operations import CALLS
from accordion.features.memory.memory_transfer import import_memories
from accordion.model.errors import BadRequest, StoreUnavailable
from accordion.model.tenant import TenantScope
from accordion.sessions.tenants import Caller
from tests.e2e.memory_samples import SUMMARY, memory_arguments
from tests.e2e.store_workers import ask, request_with_name, workers
from tests.fakes import FakeClock
from tests.pipeline_setup import OWNER

KEYS = 'proxy_keys: [{id: one, key: "${NO:-key-one}"}, {id: two, key: "${NO:-key-two}"}]\n'
LINES = {"content-type": "application/x-ndjson"}


class Api:
    """A client of an application's API, of one tenant."""

    def __init__(self, application: Application, key: str = "") -> None:
        headers = OWNER | ({"x-accordion-key": key} if key else {})
        self.application = application
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=application.app()), base_url="http://127.0.0.1:8787", headers=headers
        )

    async def post(self, name: str, **arguments: Any) -> httpx.Response:
        return await self.http.post(f"/accordion/memory/{name}", json=arguments)

    async def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        reply = await self.post(name, **arguments)
        assert reply.status_code == 200, reply.text
        found: dict[str, Any] = reply.json()
        return found

    async def refused(self, name: str, **arguments: Any) -> tuple[int, str, str | None]:
        """Status, code and the argument that is meant."""
        return problem(await self.post(name, **arguments))

    async def total(self) -> int:
        every = [*("fact", "decision", "preference", "solution", "question", "summary", "summary_archived", "session")]
        return int((await self.call("list", type_filter=every))["total"])


def problem(reply: httpx.Response) -> tuple[int, str, str | None]:
    told = reply.json()["error"]
    assert set(told) == {"message", "type", "param", "code"}
    return reply.status_code, told["code"], told["param"]


@asynccontextmanager
async def start_application(folder: Path, config: str = "archive: {record: all}\n") -> AsyncIterator[Application]:
    async with workers(folder, config) as (made,):
        yield made


@asynccontextmanager
async def api(folder: Path, config: str = "archive: {record: all}\n") -> AsyncIterator[Api]:
    async with start_application(folder, config) as made:
        yield Api(made)


async def session(application: Application, key: str = "", body: bytes = request_with_name(3)) -> str:
    """A recorded conversation, by default of 7 messages."""
    http = Api(application, key)
    while True:
        # What a slow store did not take is recorded with the next request.
        name = (await ask(application, body, key))["x-accordion-session"]
        await asyncio.sleep(0.3)
        if (await http.post("search", conversation_id=name)).status_code == 200:
            return name


async def test_every_answer_is_as_the_document_says(tmp_path: Path):
    async with api(tmp_path) as http:
        document = (await http.http.get("/accordion/memory/openapi.json")).json()
        talk = await session(http.application)

        async def checked(name: str, **arguments: Any) -> dict[str, Any]:
            operation = document["paths"][f"/accordion/memory/{name}"]["post"]
            both = {"components": document["components"]}
            jsonschema.validate(arguments, both | operation["requestBody"]["content"]["application/json"]["schema"])
            answer = await http.call(name, **arguments)
            told = operation["responses"]["200"]["content"]["application/json"]["schema"]
            jsonschema.validate(answer, both | told)
            return answer

        for note in memory_arguments(12):
            added = await checked("add", **note)
        await checked("search", query="audits", explain=True)
        found = await checked("deep_search", query="ledger", topics=["ledger"], since="2020-01-01", until="2200-01-01")
        await checked("read", ids=[each["id"] for each in found["results"]])
        await checked("consolidate", topic="ledger", content=f"{SUMMARY} [{added['id']}]")
        await checked("search", conversation_id=talk)
        await checked("compact_conversation", conversation_id=talk, start_index=0, end_index=3)
        saved = await checked("core_memory", operation="import", conversation_id=talk)
        await checked("core_memory", operation="export", id=saved["id"])
        await checked("core_memory", operation="list")
        await checked("core_memory", operation="search", query="look")
        await checked("set_status", ids=[added["id"], "mem-none"], status="resolved")
        await checked("list", limit=3)
        await checked("delete", ids=[added["id"], "mem-none"])
    assert {f"/accordion/memory/{call.path}" for call in CALLS if call.path} < set(document["paths"])


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("add", {}, (400, "invalid_arguments", "content")),
        ("add", {"content": "x", "kind": "fact"}, (400, "invalid_arguments", "kind")),
        ("add", {"content": "x" * 20_001}, (400, "invalid_arguments", "content")),
        ("add", {"content": " "}, (400, "memory_empty", None)),
        ("add", {"content": "x", "type": "summary"}, (400, "invalid_arguments", "type")),
        ("add", {"content": "x", "replace_id": "mem-none"}, (404, "memory_not_found", "replace_id")),
        ("add", {"content": "x", "project": "*"}, (400, "invalid_project", "project")),
        ("search", {"query": "?"}, (400, "search_without_words", "query")),
        ("search", {"query": "x", "since": "soon"}, (400, "invalid_time", "since")),
        ("search", {"query": "x", "since": "2026-02-01", "until": "2026-01-01"}, (400, "invalid_time", "since")),
        ("search", {"query": "x", "limit": 33}, (400, "invalid_arguments", "limit")),
        ("search", {"conversation_id": "s-none"}, (404, "conversation_not_recorded", "conversation_id")),
        ("read", {"ids": []}, (400, "invalid_arguments", "ids")),
        ("set_status", {"ids": ["mem-1"], "status": "gone"}, (400, "invalid_arguments", "status")),
        ("list", {"after": "mem-none"}, (400, "invalid_page", "after")),
        (
            "compact_conversation",
            {"conversation_id": "s-none", "start_index": 0, "end_index": 1},
            (404, "conversation_not_recorded", "conversation_id"),
        ),
        ("consolidate", {"topic": "ledger", "content": "x " * 9_900}, (400, "content_too_long", "content")),
        ("consolidate", {"topic": "ledger", "content": SUMMARY}, (400, "too_few_memories", "topic")),
        ("core_memory", {"operation": "erase"}, (400, "invalid_arguments", "operation")),
        ("core_memory", {"operation": "export"}, (400, "missing_argument", "id")),
        ("core_memory", {"operation": "export", "id": "CMEM-20200101-000000"}, (404, "memory_not_found", None)),
        ("core_memory", {"operation": "import"}, (400, "nothing_to_save", "text")),
    ],
)
async def test_bad_input_is_answered_with_what_is_wrong_and_nothing_is_written(
    tmp_path: Path, name: str, arguments: dict[str, Any], expected: tuple[int, str, str | None]
):
    async with api(tmp_path) as http:
        assert await http.refused(name, **arguments) == expected
        assert await http.total() == 0


@pytest.mark.parametrize(("first", "last"), [(5, 2), (0, 7), (-1, 3)])
async def test_a_range_that_is_none_is_refused(tmp_path: Path, first: int, last: int):
    async with api(tmp_path) as http:
        talk = await session(http.application)
        given = {"conversation_id": talk, "start_index": first, "end_index": last}
        status, code, _ = await http.refused("compact_conversation", **given)
        assert (status, code) in {(400, "invalid_range"), (400, "invalid_arguments")}
        assert await http.total() == 0


async def test_a_body_that_is_no_json_object_or_of_another_kind_is_refused(tmp_path: Path):
    async with api(tmp_path) as http:
        path = "/accordion/memory/add"
        typed = {"content-type": "application/json"}
        assert problem(await http.http.post(path, content=b"{", headers=typed)) == (400, "invalid_json", "body")
        deep = b'{"content":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        assert problem(await http.http.post(path, content=deep, headers=typed)) == (400, "invalid_json", "body")
        taken = await http.http.post("/accordion/memory/import", content=b"\n" + deep, headers=LINES)
        assert problem(taken) == (400, "bad_line", "line 2")
        assert problem(await http.http.post(path, content=b"[]", headers=typed))[:2] == (400, "invalid_arguments")
        assert problem(await http.http.post(path, content=b'{"content":"\xff"}', headers=typed))[0] == 400
        assert problem(await http.http.post(path, content=b'{"content":"x"}')) == (
            400, "invalid_content_type", "content-type",
        )  # fmt: skip
        large = b'{"content":"' + b"x" * 5 * 2**20 + b'"}'
        assert problem(await http.http.post(path, content=large, headers=typed))[0] == 413
        assert (await http.http.get(path)).status_code == 405
        assert await http.total() == 0


BODIES = {
    "/accordion/memory/add": "application/json",
    "/accordion/memory/import": "application/x-ndjson",
    "/accordion/sessions/any/pins": "application/json",
    "/mcp": "application/json",
}


@pytest.mark.parametrize("path", BODIES)
async def test_a_client_that_leaves_in_the_middle_of_a_body_is_no_error(
    tmp_path: Path, path: str, caplog: pytest.LogCaptureFixture
):
    """Neither is logged, nor raised to the server, which would log it."""
    pieces = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]

    async def receive() -> dict[str, Any]:
        return pieces.pop(0)

    async def send(message: Any) -> None:
        pass

    headers = [(b"host", b"127.0.0.1:8787"), (b"content-type", BODIES[path].encode())]
    scope = {
        "type": "http", "method": "PUT" if path.endswith("pins") else "POST", "path": path, "raw_path": path.encode(),
        "query_string": b"", "headers": [*headers, (b"accept", b"application/json, text/event-stream")],
    }  # fmt: skip
    async with api(tmp_path) as http:
        if path.endswith("pins"):
            scope["path"] = f"/accordion/sessions/{await session(http.application)}/pins"
        await http.application.app()(scope, receive, send)
    assert pieces == []
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_page_of_another_site_is_not_answered(tmp_path: Path):
    async with api(tmp_path) as http:
        origins = (
            "https://evil.example",
            "null",
            "http://[",
            "http://127.0.0.1:8787]",
            "http://localhost:3000",
            "http://localhost",
            "http://[::1].evil.example:8787",
        )
        for headers in ({"host": "evil.example"}, *({"origin": origin} for origin in origins)):
            reply = await http.http.get("/accordion/memory/export", headers=headers)
            assert problem(reply)[:2] == (403, "foreign_origin"), headers
        for origin in ("http://localhost:8787", "http://127.0.0.1:8787", "http://[::1]:8787"):
            assert (await http.http.get("/accordion/memory/export", headers={"origin": origin})).is_success


async def test_to_erase_and_to_export_memories_a_local_caller_needs_the_owners_token(tmp_path: Path):
    async with api(tmp_path) as http:
        added = await http.call("add", content="The crane is yellow.")
        none = {"x-accordion-token": ""}
        for reply in (
            await http.http.get("/accordion/memory/export", headers=none),
            await http.http.request("DELETE", "/accordion/memory", headers=none),
            await http.http.post("/accordion/memory/delete", json={"ids": [added["id"]]}, headers=none),
        ):
            assert problem(reply)[:2] == (401, "token_required")
        assert await http.total() == 1
        assert (await http.call("delete", ids=[added["id"]]))["deleted"] == [added["id"]]


async def test_what_another_tenant_has_is_answered_as_what_is_not_there(tmp_path: Path):
    async with start_application(tmp_path, "archive: {record: all}\n" + KEYS) as made:
        one, two = Api(made, "key-one"), Api(made, "key-two")
        assert problem(await Api(made).post("list"))[0] == 401
        talk = await session(made, "key-one")
        mine = (await one.call("add", content="Tenant one keeps canaries in room 12."))["id"]
        saved = (await one.call("core_memory", operation="import", conversation_id=talk))["id"]
        for name, arguments in (
            ("search", {"conversation_id": talk}),
            ("compact_conversation", {"conversation_id": talk, "start_index": 0, "end_index": 1}),
            ("core_memory", {"operation": "import", "conversation_id": talk}),
        ):
            assert await two.refused(name, **arguments) == (404, "conversation_not_recorded", "conversation_id")
        assert (await two.call("read", ids=[mine, saved]))["missing"] == [mine, saved]
        assert (await two.call("delete", ids=[mine]))["deleted"] == []
        assert (await two.refused("add", content="Mine.", replace_id=mine))[0] == 404
        assert (await two.refused("core_memory", operation="export", id=saved))[0] == 404
        assert (await two.call("search", query="canaries room"))["results"] == []
        assert (await two.http.get("/accordion/memory/export")).text == ""
        erased = (await two.http.request("DELETE", "/accordion/memory")).json()
        assert erased["before"] == erased["after"] == {"memories": 0}
        assert await one.total() == 2


async def test_a_tenants_memories_are_given_out_erased_with_proof_and_taken_in_by_another(tmp_path: Path):
    async with start_application(tmp_path, "archive: {record: all}\n" + KEYS) as made:
        one, two = Api(made, "key-one"), Api(made, "key-two")
        talk = await session(made, "key-one")
        for note in memory_arguments(3):
            await one.call("add", **note)
        await one.call("compact_conversation", conversation_id=talk, start_index=0, end_index=6)
        await one.call("core_memory", operation="import", conversation_id=talk)
        total, exported = await one.total(), await one.http.get("/accordion/memory/export")
        assert exported.headers["content-type"] == "application/x-ndjson"
        path = "/accordion/memory/import"
        assert problem(await two.http.post(path, content=exported.content + b'{"memory":{}}\n', headers=LINES))[:2] == (
            400, "bad_line",
        )  # fmt: skip
        assert await two.total() == 0
        taken = (await two.http.post(path, content=exported.content, headers=LINES)).json()
        assert (taken["memories"], taken["kept"]) == (total, 0)
        assert (await two.http.post(path, content=exported.content, headers=LINES)).json()["kept"] == total
        erased = (await one.http.request("DELETE", "/accordion/memory")).json()
        assert erased["before"]["memories"] == total
        assert erased["after"] == {"memories": 0}
        assert erased["verified"] is True
        assert (await one.http.get("/accordion/memory/export")).text == ""
        again = (await two.http.get("/accordion/memory/export")).text
        assert sorted(again.splitlines()) == sorted(exported.text.splitlines())


@pytest.mark.parametrize(
    "odd", [{"created": 1e20}, {"created": -1e15}, {"updated": 1e13}, {"counted": 2**70}, {"first": 0, "last": 2**70}]
)
async def test_a_line_whose_numbers_could_not_be_told_again_is_not_taken_in(tmp_path: Path, odd: dict[str, float]):
    async with api(tmp_path) as http:
        line = json.dumps({"memory": {"id": "mem_1", "type": "fact", "content": "The gate is green.", **odd}})
        reply = await http.http.post("/accordion/memory/import", content=line, headers=LINES)
        assert problem(reply) == (400, "bad_line", "line 1")
        assert await http.total() == 0


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"memory": {"id": "m", "type": "fact", "content": "x"}, "marker": {}}, "one key, of memory, marker"),
        ({"memories": []}, "one key, of memory, marker"),
        ({}, "one key"),
        ({"marker": {"name": "a"}}, "missing required field `value`"),
        ({"marker": {"name": "a", "value": "a!"}}, "Invalid base64"),
        ({"marker": 5}, "Expected `object`, got `int`"),
        ({"memory": {"id": "m", "type": "fact", "content": "x", "project": " * "}}, "one project, or none"),
        (b'{"memory":{"id":"m","type":"fact","content":"\xff"}}', "It is not UTF-8"),
    ],
)
async def test_an_import_says_in_plain_words_what_is_wrong_with_a_line(tmp_path: Path, line: Any, why: str):
    async with api(tmp_path) as http:
        content = line if isinstance(line, bytes) else json.dumps(line).encode()
        reply = await http.http.post("/accordion/memory/import", content=content, headers=LINES)
        assert problem(reply) == (400, "bad_line", "line 1")
        assert why in reply.json()["error"]["message"]
        assert await http.total() == 0


async def test_an_import_may_begin_with_a_byte_order_mark(tmp_path: Path):
    async with api(tmp_path) as http:
        line = b'\xef\xbb\xbf{"memory":{"id":"m","type":"fact","content":"The gate is green."}}\r\n'
        reply = await http.http.post("/accordion/memory/import", content=line, headers=LINES)
        assert reply.json()["memories"] == 1
        assert (await http.http.post("/accordion/memory/import", content=line[:3], headers=LINES)).is_success


async def test_others_go_on_while_a_long_import_is_read():
    passed, seen = 0, set[int]()

    async def count_turns() -> None:
        nonlocal passed
        while True:
            passed += 1
            await asyncio.sleep(0)

    def lines() -> Iterator[bytes]:
        for _ in range(1_000):
            seen.add(passed)
            yield b'{"memory":{"id":"mem_1","type":"fact","content":"The gate is green."}}'
        yield b"{"

    rooms: Any = SimpleNamespace(clock=FakeClock())
    caller = Caller(TenantScope("one", b"one"), has_proxy_key=True, credential="")
    other = asyncio.create_task(count_turns())
    with pytest.raises(BadRequest, match="Line 1,001"):
        await import_memories(rooms, caller, lines())
    other.cancel()
    assert len(seen) > 5


async def test_a_superseded_memory_is_kept_and_found_only_on_request(tmp_path: Path):
    async with api(tmp_path) as http:
        added = await http.call("add", content="The gate is green.")
        answer = await http.call("set_status", ids=[added["id"], "mem-none"], status="superseded")
        assert answer == {"ids": [added["id"]], "missing": ["mem-none"]}
        assert (await http.call("search", query="which gate is green"))["results"] == []
        (found,) = (await http.call("search", query="which gate is green", inactive=True))["results"]
        assert (found["id"], found["status"]) == (added["id"], "superseded")
        (read,) = (await http.call("read", ids=[added["id"]]))["memories"]
        assert (read["content"], read["status"]) == ("The gate is green.", "superseded")
        await http.call("set_status", ids=[added["id"]], status="active")
        (found,) = (await http.call("search", query="which gate is green"))["results"]
        assert "status" not in found


@pytest.mark.parametrize(
    ("caller", "asks"),
    [
        (Caller(TenantScope("one", b"one"), has_proxy_key=True, credential=""), True),
        (Caller(TenantScope("one", b"one"), has_proxy_key=False, credential="", is_local=True), True),
        (Caller(TenantScope("one", b"one"), has_proxy_key=False, credential="sk-own"), False),
    ],
)
async def test_a_models_own_key_is_only_used_for_whom_the_proxy_knows(caller: Caller, asks: bool):
    seen = []

    class Compactions:
        async def compact(self, *given: Any) -> None:
            seen.append(given[-1].may_ask_model)

    rooms: Any = SimpleNamespace(compactions=Compactions(), target_project=lambda project: "")
    call = next(call for call in CALLS if call.name == "memory_compact_conversation")
    await call(rooms, caller, {"conversation_id": "s-1", "start_index": 0, "end_index": 1})
    assert seen == [asks]


async def test_the_document_is_made_once_and_not_before_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from accordion.features.memory import memory_api

    made, document = [], memory_api.openapi_document
    monkeypatch.setattr(memory_api, "openapi_document", lambda version: made.append(version) or document(version))
    async with api(tmp_path) as http:
        assert made == []
        first, second = [(await http.http.get("/accordion/memory/openapi.json")).json() for _ in range(2)]
        assert first == second
        assert len(made) == 1


async def test_with_memories_disabled_nothing_answers(tmp_path: Path):
    async with api(tmp_path, "memory: {enabled: false}\n") as http:
        assert (await http.post("add", content="x")).status_code == 404
        assert (await http.http.post("/mcp", json={})).status_code == 404


async def test_a_store_that_is_away_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from accordion.features.memory.store.stored_memories import StoredMemories

    async def away(*args: Any, **more: Any) -> None:
        raise StoreUnavailable("the file is locked")

    async with api(tmp_path) as http:
        await http.call("add", content="Something.")
        for name in ("write", "_load_index"):
            monkeypatch.setattr(StoredMemories, name, away)
        assert (await http.refused("add", content="Other."))[:2] == (503, "store_unavailable")
        assert problem(await http.http.get("/accordion/memory/export"))[:2] == (503, "store_unavailable")


def test_nothing_is_loaded_for_memories_until_they_are_used(tmp_path: Path):
    code = (
        "import sys; from accordion.config.load import build\n"
        "from accordion.composition.application import Application\n"
        "application = Application(build(b'store: {url: \"memory://\"}', {}, {}), {}); application.app()\n"
        "print([name for name in ('mcp', 'numpy', 'tokenizers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "[]"


async def test_without_the_sdk_mcp_says_what_to_install_and_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "mcp.server.streamable_http_manager", None)
    async with api(tmp_path) as http:
        for _ in range(2):
            reply = await http.http.post("/mcp", json={})
            assert problem(reply)[:2] == (501, "extra_not_installed")
        assert "the extra `mcp`, which is not installed" in reply.text
        assert (await http.call("add", content="Something."))["is_new"]


async def test_an_unusable_sdk_is_an_error_of_each_request_and_does_not_block_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    threads = []

    class Broken(ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name == "create_server":
                threads.append(threading.current_thread())
                raise TypeError("another version")
            raise AttributeError(name)

    monkeypatch.setitem(
        sys.modules, "accordion.features.memory.mcp_server", Broken("accordion.features.memory.mcp_server")
    )
    async with api(tmp_path) as http, asyncio.timeout(20):
        for _ in range(2):
            with pytest.raises(TypeError, match="another version"):
                await http.http.post("/mcp", json={})
    assert len(threads) == 2
    assert threading.main_thread() not in threads
