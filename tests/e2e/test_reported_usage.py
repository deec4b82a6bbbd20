"""What a provider's count is of: another model's counts, and those that add up rounds of its own tools, say nothing of
what a conversation holds; a reply without any still has a session."""

import json
from typing import Any

import pytest

from tests.e2e.protocol_samples import MESSAGES, RESPONSES, ProtocolSamples
from tests.e2e.proxy_api import get_session
from tests.e2e.raw_client import post
from tests.e2e.test_utilization import tokens, turn
from tests.loopback import replies_events, replies_json
from tests.proxy_process import Proxy

TEXT = "Some words to be counted. " * 400
SEARCH = {
    "responses": {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}},
    "messages": {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "words"}},
}


def sent(name: str, data: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), json.dumps(data).encode())


def searched(protocol: ProtocolSamples, given: int) -> dict[str, Any]:
    """A reply in which the provider's own search ran; its usage adds up all rounds."""
    reply = protocol.json(given=given)
    place = "output" if protocol is RESPONSES else "content"
    return reply | {place: [SEARCH[protocol.name], *reply[place]]}


def streamed(protocol: ProtocolSamples, first: int, given: int) -> bytes:
    """The same as events; Messages says at the beginning what the first round read."""
    if protocol is RESPONSES:
        item = {"type": "response.output_item.done", "output_index": 0, "item": SEARCH["responses"]}
        done = {"type": "response.completed", "response": searched(protocol, given)}
        return sent("response.output_item.done", item) + sent("response.completed", done)
    message = {**MESSAGES.json(), "content": [], "usage": {"input_tokens": first, "output_tokens": 1}}
    delta = {"delta": {"stop_reason": "end_turn"}, "usage": {"input_tokens": given, "output_tokens": 9}}
    return b"".join(
        (
            sent("message_start", {"type": "message_start", "message": message}),
            sent(
                "content_block_start",
                {"type": "content_block_start", "index": 0, "content_block": SEARCH["messages"]},
            ),
            sent("content_block_stop", {"type": "content_block_stop", "index": 0}),
            sent("message_delta", {"type": "message_delta", **delta}),
            sent("message_stop", {"type": "message_stop"}),
        )
    )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("protocol", [RESPONSES, MESSAGES], ids=lambda each: each.name)
async def test_usage_summed_over_hosted_tool_rounds_is_not_taken_for_the_context(
    proxy: Proxy, protocol: ProtocolSamples, stream: bool
):
    model = {"model": f"searcher-{protocol.name}-{stream}"}
    label = f"searched-{protocol.name}-{stream}"
    plain = tokens(await turn(proxy, protocol, TEXT, label=f"{label}-plain", **model))
    after = tokens(await turn(proxy, protocol, TEXT, "Found.", "More?", label=f"{label}-plain", **model))
    summed = 12 * plain
    script = replies_events(streamed(protocol, plain, summed)) if stream else replies_json(searched(protocol, summed))
    async with proxy.provider(script):
        body = protocol.body(TEXT, stream=stream, **model)
        first = await post(proxy, protocol.path, body, ("x-accordion-session", label))
    second = await turn(proxy, protocol, TEXT, "Found.", "More?", label=label, **model)
    other = await turn(proxy, protocol, TEXT, label=f"{label}-other", **model)
    assert (tokens(first), tokens(second), tokens(other)) == (plain, after, plain)
    kept = await get_session(proxy, first.header("x-accordion-session"))
    assert kept["totals"]["input"] == summed
    assert kept["exchanges"][-1]["utilization"]["carried"] == (stream and protocol is MESSAGES)
