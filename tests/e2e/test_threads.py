"""Threads that Anthropic keeps: the SDK's own loops go on from them, are gauged in whole, and are compacted in time."""

import json
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import beta_async_tool

from tests.agent_replies import TOOL
from tests.agents import MODEL, connected
from tests.conftest import Start
from tests.e2e.proxy_api import get_page, wait_until
from tests.e2e.small_window import WINDOW, Proxies, config, fetch_session
from tests.proxy_process import Proxy
from tests.strict_provider import SYSTEM, result_of, turn_text
from tests.thread_provider import ThreadProvider

BETA = {"anthropic-version": "2023-06-01", "anthropic-beta": "message-threads-2026-08-12"}


@beta_async_tool(name=TOOL)
async def read_file(path: str) -> str:
    """Reads a file of the repository.

    Args:
        path: Where it is.
    """
    return result_of(path.split("/")[1])


def provider(name: str, rounds: int, **more: Any) -> ThreadProvider:
    more = {"thinks": True, "tools": [read_file.to_dict()]} | more
    return ThreadProvider("messages", WINDOW, rounds=rounds, run=name, **more)


def asked(name: str) -> dict[str, Any]:
    return {
        "model": MODEL, "max_tokens": 500, "system": SYSTEM, "tools": [read_file],
        "messages": [{"role": "user", "content": turn_text(0, name)}],
    }  # fmt: skip


@asynccontextmanager
async def client(proxy: Proxy) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with connected(proxy.url, "messages") as made:
        assert isinstance(made, anthropic.AsyncAnthropic)
        yield made


async def sessions(proxy: Proxy) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await get_page(proxy, "/accordion/sessions")).json()["sessions"]
    return found


def answered(reply: Any) -> Any:
    """The user's message with what the tools return for a reply's calls."""
    calls = [block.id for block in reply.content if block.type == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": call, "content": result_of(call)} for call in calls]
    return {"role": "user", "content": results}


async def rounds(agent: anthropic.AsyncAnthropic, name: str, count: int, **more: Any) -> Any:
    """A thread of the SDK's helper behind its first turn, and so many rounds of tools."""
    thread = agent.beta.messages.thread(**asked(name) | more)
    reply = await thread.send()
    for _ in range(count):
        reply = await thread.send(answered(reply))
    return thread


async def original_with(proxy: Proxy, session_id: str, numbers: Iterable[int]) -> Any:
    """What the client said in a session, once the results of these calls are in it."""
    text = (await get_page(proxy, f"/accordion/sessions/{session_id}/original")).text
    return json.loads(text) if all(result_of(f"call_{number}_0") in text for number in numbers) else None


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_tool_runner_of_a_hundred_rounds_never_sees_an_overflow(start: Start, stream: bool):
    proxy, name = start(config("messages")), f"runner {stream}"
    upstream = provider(name, 100)
    async with proxy.provider(upstream), client(proxy) as agent:
        runner = agent.beta.messages.tool_runner(**asked(name), stream=stream)  # type: ignore[call-overload]
        final = await runner.until_done()
        (session,) = await sessions(proxy)
        known = await fetch_session(proxy, session["id"], 101)
    assert final.content[-1].text == "Step 101 is done."
    assert upstream.problems == []
    assert upstream.refusals == []
    assert upstream.gone == [], "what cannot be gone on from was never asked for"
    assert upstream.begun == 2, "the thread was let go of, and compacted when it was begun again"
    assert upstream.continued > 5
    assert upstream.whole_lists > 50, "the runner says all of it from then on"
    assert max(one.tokens for one in upstream.taken) <= WINDOW
    assert all(each["compaction"] is not None for each in known["exchanges"])
    # Nothing of what left the window is lost.
    original = await wait_until(partial(original_with, proxy, session["id"], range(1, 101)))
    assert original["system"] == SYSTEM
    found = re.findall(r"src/call_(\d+)_0/main_", json.dumps(original))
    assert list(map(int, found)) == list(range(1, 101))


async def test_a_thread_that_its_provider_lost_is_begun_again_in_the_same_session(start: Start):
    proxy, name = start(config("messages", window=400_000)), "lost"
    upstream = provider(name, 1_000, loses=4)
    upstream.window = 400_000
    async with proxy.provider(upstream), client(proxy) as agent:
        await rounds(agent, name, 20)
        (session,) = await sessions(proxy)
        known = await fetch_session(proxy, session["id"], 21 + len(upstream.gone))
    assert len(upstream.gone) == 5
    assert upstream.problems == []
    errors = [each["error"] for each in known["exchanges"] if each["error"]]
    assert errors == ["provider_error"] * 5, "each was its provider's"


async def test_what_the_provider_keeps_in_a_thread_counts(proxies: Proxies):
    proxy, name = proxies["messages"], "counted"
    upstream = provider(name, 1_000)
    counted = []
    async with proxy.provider(upstream), httpx.AsyncClient(trust_env=False, headers=BETA) as http:
        body = asked(name) | {"tools": [read_file.to_dict()], "thread": {"type": "create"}}
        for _ in range(4):
            reply = await http.post(f"{proxy.url}/v1/messages", json=body)
            assert reply.status_code == 200, reply.text
            counted.append((int(reply.headers["x-accordion-tokens"]), reply.headers["x-accordion-session"]))
            calls = [block["id"] for block in reply.json()["content"] if block["type"] == "tool_use"]
            results = [{"type": "tool_result", "tool_use_id": call, "content": result_of(call)} for call in calls]
            thread = {"type": "continue", "previous_message_id": reply.json()["id"]}
            messages = [{"role": "user", "content": results}]
            body = {"model": MODEL, "max_tokens": 500, "messages": messages, "thread": thread}
    assert len({session for _, session in counted}) == 1
    # What was reported for all that the provider keeps is in it.
    reported = [each.tokens for each in upstream.taken]
    measured = [tokens for tokens, _ in counted]
    # This provider counts no tools, so that its first report is too low to be believed.
    assert all(reported[at - 1] < measured[at] < 1.2 * reported[at] for at in range(2, 4))


async def test_a_thread_that_was_changed_on_its_way_is_not_gone_on_from(proxies: Proxies):
    proxy, name = proxies["messages"], "changed"
    upstream = provider(name, 1_000, thinks=False)
    listed = [{"role": "user", "content": turn_text(0, name)}]
    for number in range(40):
        call = f"call_{number}_0"
        use = {"type": "tool_use", "id": call, "name": TOOL, "input": {"path": f"src/{call}/main.py"}}
        listed.append({"role": "assistant", "content": [use]})  # type: ignore[dict-item]
        result = {"type": "tool_result", "tool_use_id": call, "content": result_of(call)}
        listed.append({"role": "user", "content": [result]})  # type: ignore[dict-item]
    async with proxy.provider(upstream), httpx.AsyncClient(trust_env=False, headers=BETA) as http:
        body = asked(name) | {"tools": [read_file.to_dict()], "messages": listed, "thread": {"type": "create"}}
        reply = await http.post(f"{proxy.url}/v1/messages", json=body)
        assert reply.status_code == 200, reply.text
        assert json.loads(reply.headers["x-accordion-compaction"])["state"] == "compacted"
        thread = {"type": "continue", "previous_message_id": reply.json()["id"]}
        said = [{"role": "user", "content": "Go on."}]
        more = {"model": MODEL, "max_tokens": 500, "messages": said, "thread": thread}
        again = await http.post(f"{proxy.url}/v1/messages", json=more)
    assert again.status_code == 404
    error = again.json()["error"]
    assert error["type"] == "not_found_error"
    assert error["details"] == {"error_code": "thread_not_found"}
    assert '"create"' in error["message"]
    assert again.json()["request_id"]
    assert again.headers["x-accordion-session"] == reply.headers["x-accordion-session"]
    assert upstream.continued == 0


@pytest.mark.parametrize("mode", ["auto", "off"])
async def test_a_thread_of_which_only_the_proxys_own_metadata_stayed_here_is_gone_on_from(start: Start, mode: str):
    proxy, name = start(config("messages") + f"compaction: {{mode: {mode}}}\n"), mode
    upstream = provider(name, 1_000)
    metadata = {"x-accordion-delegation": "d1", "x-accordion-agent": "a"}
    async with proxy.provider(upstream), client(proxy) as agent:
        await rounds(agent, name, 3, extra_body={"metadata": metadata})
    assert (upstream.begun, upstream.continued) == (1, 3)


async def test_a_thread_that_is_not_on_record_any_more_is_begun_again(start: Start):
    proxy, name = start(config("messages")), "erased"
    upstream = provider(name, 1_000)
    async with proxy.provider(upstream), client(proxy) as agent:
        thread = agent.beta.messages.thread(**asked(name))
        reply = await thread.send()
        (session,) = await sessions(proxy)
        headers = {"x-api-key": "sk-test-agents", "x-accordion-token": proxy.token}
        async with httpx.AsyncClient(trust_env=False, headers=headers) as http:
            erased = await http.delete(f"{proxy.url}/accordion/sessions/{session['id']}")
        assert erased.status_code == 200, erased.text
        for _ in range(2):
            reply = await thread.send(answered(reply))
    assert (upstream.begun, upstream.continued) == (2, 1)


async def test_a_thread_that_the_provider_finds_too_long_is_let_go_of_and_compacted(start: Start):
    # The window is larger here than there.
    text = config("messages").replace(f"max_input_tokens: {WINDOW}", "max_input_tokens: 200000")
    proxy, name = start(text), "overflow"
    upstream = provider(name, 40)
    async with proxy.provider(upstream), client(proxy) as agent:
        final = await agent.beta.messages.tool_runner(**asked(name)).until_done()
    assert final.content[-1].text == "Step 41 is done."
    assert upstream.problems == []
    assert 1 <= len(upstream.refusals) <= 2
    assert upstream.begun >= 2
