"""The Node SDKs behave through the proxy as they do without it; each script is one process."""

import json
from typing import Any

import pytest
import replies
from client_link import CI, ClientLink, run
from node_clients import NODE, node_missing
from replies import Call, failure, say, steps
from wire import Request

LOOP = steps([Call("get_weather", {"city": "Ōsaka"})], "It says: {result}")
SAID = "It says: 22 °C in Ōsaka"


@pytest.fixture(scope="session", autouse=True)
def node() -> None:
    """The packages, fetched once; without Node a skip, in CI a failure."""
    missing = node_missing()
    if missing:
        (pytest.fail if CI else pytest.skip)(missing)


def rule(link: ClientLink) -> Any:
    """What the scripts ask for by a word in their question."""
    refused = set()

    def answer(request: Request) -> replies.Reply | None:
        body = request.body
        if b"FAIL " in body:
            return failure(int(body[body.index(b"FAIL ") + 5 :][:3]), "some_error", "No: ü.")
        if b"ONCE MORE" in body and request.path not in refused:
            refused.add(request.path)
            return failure(503, "overloaded", "Not now.", (("Retry-After-Ms", "5"),))
        if b"OVERLOADED" in body:
            event = (
                b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n'
            )
            return replies.events([*say(request, "a b").pieces[:4], event])
        if b"CUT" in body:
            return replies.cut_after(say(request, "one two three four"), 4)
        if b"HOLD" in body:
            return replies.held_after(say(request, "one two three four"), 5)
        if b"NEVER" in body:
            return replies.never()
        offered = replies.tool_names(replies.body_of(request))
        return LOOP(request) if "get_weather" in offered else None

    return answer


def outcome(link: ClientLink, script: str) -> dict[str, Any]:
    """Run a script and return what it saw, after the provider has noticed who left."""
    link.upstream.rule = rule(link)
    seen: dict[str, Any] = json.loads(run(["node", str(NODE / script)], link).strip().splitlines()[-1])
    held = [one for one in link.upstream.received if b"HOLD" in one.request.body or b"NEVER" in one.request.body]
    assert held
    assert link.upstream.wait_for(lambda: all(one.left for one in held))
    link.note(**seen)
    return seen


def test_the_openai_sdk_for_node_sees_the_provider(link: ClientLink) -> None:
    """Chats, tools, responses, files, errors, retries, a cut, an abort and a time-out."""
    seen = outcome(link, "openai.mjs")
    assert seen["whole"]["choices"][0]["message"]["content"] == seen["response"] == replies.GREETING
    assert seen["tools"] == seen["streamed_tools"] == SAID
    assert seen["lone_surrogate"] == seen["retried"] == replies.GREETING
    assert seen["download"] == len(replies.BINARY)
    assert [seen[f"failed_{status}"]["status"] for status in (400, 401, 429, 500, 529)] == [400, 401, 429, 500, 529]
    assert seen["cut"] == [["", "one ", "two ", "three "], "failed"]
    assert seen["aborted"] == "left"
    assert seen["timed_out"]["type"] == "APIConnectionTimeoutError"


def test_the_anthropic_sdk_for_node_sees_the_provider(link: ClientLink) -> None:
    """Messages, tools, counting, batches, errors, retries, a cut, an abort and a time-out."""
    seen = outcome(link, "anthropic.mjs")
    assert seen["whole"]["content"][0]["text"] == seen["helper"][0] == replies.GREETING
    assert seen["tools"][0]["text"] == SAID
    assert seen["counted"] == {"input_tokens": 19}
    assert [seen[f"failed_{status}"]["status"] for status in (400, 401, 429, 500, 529)] == [400, 401, 429, 500, 529]
    assert "error" in seen["overloaded"]
    assert seen["cut"] == "failed"
    assert seen["aborted"] == "left"


def test_googles_sdk_for_javascript_sees_the_provider(link: ClientLink) -> None:
    """Contents, tools, counting, errors, a cut and an abort."""
    seen = outcome(link, "google.mjs")
    parts = seen["whole"]["candidates"][0]["content"]["parts"]
    assert "".join(part["text"] for part in parts) == "".join(seen["streamed"]) == replies.GREETING
    assert seen["tools"] == seen["streamed_tools"] == SAID
    assert seen["counted"] == 19
    assert [seen[f"failed_{status}"]["status"] for status in (400, 401, 429, 500)] == [400, 401, 429, 500]
    assert seen["cut"] == "failed"
    assert seen["aborted"] == "left"


def test_the_vercel_ai_sdk_sees_the_provider(link: ClientLink) -> None:
    """Four providers of it: text, streams, tool loops, objects, errors, retries and aborts."""
    seen = outcome(link, "vercel.mjs")
    for kind in ("chat", "responses", "messages", "compatible"):
        assert seen[f"{kind}_text"] == "".join(seen[f"{kind}_stream"]) == replies.GREETING
        assert seen[f"{kind}_tools"][0] == seen[f"{kind}_streamed_tools"][0] == SAID
        assert "error" in seen[f"{kind}_failed"]
        assert seen[f"{kind}_aborted"] == "left"
    assert seen["chat_object"] == seen["responses_object"] == {"city": "Paris", "days": 3}
