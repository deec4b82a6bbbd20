"""What a provider's count is of: another model's counts, and those that add up rounds of its own tools, say nothing of
what a conversation holds; a reply without any still has a session."""

import json
from typing import Any

import pytest

from tests.e2e.protocol_samples import CHAT, MESSAGES, RESPONSES, ProtocolSamples
from tests.e2e.proxy_api import get_session
from tests.e2e.raw_client import Reply, post
from tests.e2e.test_utilization import SILENT, tokens, turn
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


async def test_a_continuation_of_a_hosted_tool_response_is_measured_by_what_was_sent(proxy: Proxy):
    reply = searched(RESPONSES, 60_000) | {"id": "resp_searched"}
    async with proxy.provider(replies_json(reply)):
        first = await post(proxy, RESPONSES.path, RESPONSES.body(TEXT))
    async with proxy.provider(replies_json(SILENT)):
        second = await post(proxy, RESPONSES.path, RESPONSES.body("On.", previous_response_id="resp_searched"))
    assert tokens(first) < tokens(second) < tokens(first) + 30
    assert first.header("x-accordion-session") == second.header("x-accordion-session")


async def test_another_models_report_says_nothing_of_this_one(proxy: Proxy):
    label = "switching-models"
    talk = (TEXT, "Yes.", "More?")
    plain = tokens(await turn(proxy, CHAT, *talk, label="never-switched", model="switch-b"))

    async def asked(model: str, *texts: str, reported: int = 0) -> Reply:
        return await turn(proxy, CHAT, *texts, label=label, reported=reported, model=model)

    await asked("switch-a", TEXT, reported=round(1.6 * plain))
    assert tokens(await asked("switch-b", *talk)) == plain
    # By what was reported to the first model in general.
    assert 1.5 * plain < tokens(await asked("switch-a", *talk, "Yes.", "And?")) < 1.7 * plain
    await asked("switch-b", *talk, "Yes.", "So?", reported=plain + 50)
    last = await asked("switch-b", *talk, "Yes.", "So?", "Yes.", "Well?")
    assert plain + 50 < tokens(last) < plain + 90


async def test_a_response_without_usage_is_gone_on_from_in_its_session(proxy: Proxy):
    """Such as one that is made in the background: it is queued, and its usage is not known yet."""
    queued = {"id": "resp_queued", "object": "response", "status": "queued", "output": [], "usage": None}
    async with proxy.provider(replies_json(queued)):
        first = await post(proxy, RESPONSES.path, RESPONSES.body(TEXT, background=True))
    async with proxy.provider(replies_json(SILENT)):
        second = await post(proxy, RESPONSES.path, RESPONSES.body("On.", previous_response_id="resp_queued"))
    assert first.header("x-accordion-session") == second.header("x-accordion-session")
    assert tokens(first) < tokens(second) < tokens(first) + 30
