"""Memories as agents have them: the official MCP client, over HTTP to a running proxy and over standard input."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from tests.conftest import Start
from tests.e2e.memory_samples import (
    KEYS,
    ONE,
    RECORDED,
    TWO,
    record_conversation,
)
from tests.proxy_process import Proxy
from tests.valkey import Valkey, valkey_server  # noqa: F401

TOOLS = {
    "memory_add", "memory_search", "memory_deep_search", "memory_read", "memory_set_status",
    "memory_compact_conversation", "memory_consolidate", "core_memory", "read_artifact",
}  # fmt: skip
HTTP = ("auto", "legacy")
EACH = pytest.mark.parametrize("way", [*HTTP, "stdio"])


@pytest.fixture(scope="module")
def proxy(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Proxy:
    store = f"sqlite:///{tmp_path_factory.mktemp('store')}/kept.db"
    return start(RECORDED, ACCORDION_STORE=store)


@pytest.fixture(scope="module")
def keyed(start: Start) -> Proxy:
    return start(RECORDED + KEYS, KEY_ONE=ONE, KEY_TWO=TWO)


@asynccontextmanager
async def connected(proxy: Proxy, way: str = "auto", **headers: str) -> AsyncIterator[Client]:
    async with AsyncExitStack() as stack:
        if way == "stdio":
            environ = {"HOME": str(proxy.folder), "ACCORDION_CONFIG": str(proxy.config), **proxy.environ}
            server: Any = StdioServerParameters(command=sys.executable, args=["-m", "accordion", "mcp"], env=environ)
            mode = "auto"
        else:
            http = await stack.enter_async_context(httpx2.AsyncClient(trust_env=False, timeout=60, headers=headers))
            server, mode = streamable_http_client(f"{proxy.url}/mcp", http_client=http), way
        yield await stack.enter_async_context(Client(server, mode=mode))


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    found: dict[str, Any] = result.structured_content or {}
    return found


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return str(result.content[0].text)  # type: ignore[union-attr]


@EACH
async def test_the_tools_are_offered_with_schemas_that_name_every_argument(proxy: Proxy, way: str):
    async with connected(proxy, way) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(tools) == TOOLS
    for tool in tools.values():
        assert tool.input_schema["type"] == "object"
        assert tool.input_schema["additionalProperties"] is False
        assert tool.description is not None
    assert "memory_deep_search" in (tools["memory_consolidate"].description or "")
    assert set(tools["memory_compact_conversation"].input_schema["required"]) == {
        "conversation_id", "start_index", "end_index",
    }  # fmt: skip


@EACH
async def test_what_is_added_is_found_and_read_in_full(proxy: Proxy, way: str):
    content = f"The {way} gateway validates tokens with the RS256 key pair under /etc/gateway-{way}/keys, since May."
    async with connected(proxy, way) as client:
        added = await call(client, "memory_add", content=content, topics=["Gateway"], type="decision")
        assert added["is_new"]
        assert not (await call(client, "memory_add", content=content, topics=["Gateway"], type="decision"))["is_new"]
        found = await call(client, "memory_search", query=f"{way} gateway token validation", topics=["gateway"])
        assert found["results"][0]["id"] == added["id"]
        assert len(found["results"][0]["preview"]) <= 50
        assert set(found["results"][0]) == {"id", "type", "preview", "topics", "source_type", "created_at", "score"}
        read = await call(client, "memory_read", ids=[added["id"], "mem-none"])
    assert [memory["content"] for memory in read["memories"]] == [content]
    assert read["missing"] == ["mem-none"]


@pytest.mark.parametrize("way", HTTP)
async def test_a_tenant_has_nothing_of_another_by_mcp(keyed: Proxy, way: str):
    session = await record_conversation(keyed, key=ONE)
    async with (
        connected(keyed, way, **{"x-accordion-key": ONE}) as one,
        connected(keyed, way, authorization=f"Bearer {TWO}") as two,
    ):
        added = await call(one, "memory_add", content=f"Tenant one keeps {way} canaries in room 12.")
        saved = await call(one, "core_memory", operation="import", conversation_id=session)
        assert (await call(two, "memory_search", query="canaries room"))["results"] == []
        assert (await call(two, "memory_read", ids=[added["id"]]))["missing"] == [added["id"]]
        assert await refused(two, "core_memory", operation="export", id=saved["id"]) == (
            await refused(two, "core_memory", operation="export", id="CMEM-20200101-000000")
        ).replace("CMEM-20200101-000000", saved["id"])
        assert await refused(two, "memory_search", conversation_id=session) == (
            await refused(two, "memory_search", conversation_id="s-none")
        ).replace("s-none", session)
        assert "There is no memory" in await refused(two, "memory_add", content="Mine.", replace_id=added["id"])
        assert (await call(one, "memory_read", ids=[added["id"]]))["missing"] == []


async def test_proxies_on_one_server_share_memories(start: Start, valkey_server: Valkey):  # noqa: F811
    one, two = (start(RECORDED, ACCORDION_STORE=valkey_server.url) for _ in range(2))
    session = await record_conversation(one)
    async with connected(one) as here, connected(two) as there, connected(two, "stdio") as beside:
        added = await call(here, "memory_add", content="The canary of gate B7 sings at noon.", topics=["gate"])
        for client in (there, beside):
            found = await call(client, "memory_search", query="canary gate")
            assert [each["id"] for each in found["results"]] == [added["id"]]
        saved = await call(there, "core_memory", operation="import", conversation_id=session)
        assert "PostgreSQL 16" in (await call(here, "core_memory", operation="export", id=saved["id"]))["text"]


async def test_nobody_without_a_key_and_no_page_of_another_site_is_let_in(keyed: Proxy, proxy: Proxy):
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    accepts = {"accept": "application/json, text/event-stream"}
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:

        async def asked(to: Proxy, **headers: str) -> tuple[int, str]:
            reply = await client.post(f"{to.url}/mcp", json=body, headers=accepts | headers)
            return reply.status_code, (json.loads(reply.text).get("error") or {}).get("code", "")

        assert await asked(keyed) == (401, "invalid_api_key")
        assert await asked(keyed, **{"x-accordion-key": ONE}, origin="https://evil.example") == (403, "foreign_origin")
        assert await asked(proxy, origin="https://evil.example") == (403, "foreign_origin")
        assert await asked(proxy, host="evil.example") == (403, "foreign_origin")
        assert (await asked(proxy, origin=proxy.url))[0] == 200
        assert (await client.get(f"{proxy.url}/mcp")).status_code == 405
