"""A model is asked for summaries: a good one is used and its tokens accounted apart; without one the agent works on."""

import asyncio
import json
import re
from typing import Any

import pytest

from tests.agent_replies import converse_response
from tests.conftest import Start
from tests.e2e.protocol_samples import PROTOCOL_BY_NAME
from tests.e2e.small_window import EACH, agent, broken_prefixes, compacted_requests, config, fetch_session, rounds
from tests.loopback import Answer, Recorded, Script, replies_bytes, replies_json
from tests.proxy_process import Proxy
from tests.strict_provider import PATHS, StrictProvider
from tests.writers import LISTS

WINDOW = 16_000
WRITES = "summaries: {writer: request, wait_seconds: 0.4}\n"
_RESULT = re.compile(r"message (\d+), tool[^>]*>\n(?:.*\n)*?.*?(src/call_\d+_\d+/main_\d+\.py:\d+)")


def written(protocol_name: str, text: str) -> Any:
    """A model's whole answer to a request for a summary."""
    if protocol_name == "converse":
        return converse_response([{"text": text}], "end_turn", (700, 0, 70))
    return PROTOCOL_BY_NAME[protocol_name].json(text, 700, 70) | {"model": "scribe", "modelVersion": "scribe"}


def asked_text(request: Recorded) -> str:
    """What a summarizer is given to read."""
    body = request.json()
    entry = next(body[listing][-1] for listing in LISTS.values() if listing in body)
    content = entry.get("content") or entry["parts"]
    return content if isinstance(content, str) else str(content[0]["text"])


def good(protocol_name: str) -> Script:
    """A summarizer that keeps to its orders: a line of what each result says, with its message."""

    async def script(request: Recorded, answer: Answer) -> None:
        found = [(int(number), place) for number, place in _RESULT.findall(asked_text(request))]
        lines = [{"text": f"Nothing was found in {place}", "sources": [number]} for number, place in found]
        lines += [{"text": f"The tool printed {place.split(':')[0]}", "sources": [number]} for number, place in found]
        document = {"gist": lines[:2] + lines[-2:] or [{"text": "The build is looked into", "sources": [0]}]}
        await replies_json(written(protocol_name, json.dumps(document)))(request, answer)

    return script


async def hangs(request: Recorded, answer: Answer) -> None:
    await answer.until_gone()


async def crashes(request: Recorded, answer: Answer) -> None:
    await answer.cut()


def failing(how: str, protocol_name: str) -> Script:
    if how == "500":
        return replies_json({"error": {"message": "The engine broke.", "type": "server_error"}}, 500)
    if how == "429":
        return replies_json({"error": {"message": "Slow down.", "type": "rate_limit_error"}}, 429)
    if how == "no JSON":
        return replies_bytes(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 9\r\n\r\n<h1>?</h1>")
    if how == "invented":
        made_up = {"text": "The user asked to delete /etc/passwd with token 81723", "sources": [1]}
        return replies_json(written(protocol_name, json.dumps({"gist": [made_up]})))
    if how == "cut short":
        document = written(protocol_name, '{"lines": [{"section": "Gist", "text": "The bui')
        document["choices"][0]["finish_reason"] = "length"
        return replies_json(document)
    if how == "empty":
        return replies_json(written(protocol_name, ""))
    if how == "prose":
        return replies_json(written(protocol_name, "I'm sorry, but I can't help with that. DO-NOT-KEEP"))
    return {"hangs": hangs, "cut": crashes}[how]


def started(start: Start, protocol_name: str) -> Proxy:
    text = config(protocol_name, window=WINDOW)
    return start(re.sub(r"summaries: .*\n", WRITES, text))


@EACH
async def test_a_models_summary_stands_in_the_block_and_its_tokens_are_accounted_apart(
    start: Start, protocol_name: str
):
    proxy = started(start, protocol_name)
    provider = StrictProvider(
        protocol_name, WINDOW, rounds=1_000, thinks=protocol_name != "chat", summary=good(protocol_name), words=220
    )
    async with proxy.provider(provider), agent(proxy, protocol_name, words=220) as run:
        while not compacted_requests(run):
            await rounds(run, 1)
        await rounds(run, 4)
        known = await fetch_session(proxy, run.answers[-1]["x-accordion-session"], len(run.answers))
    assert provider.problems == []
    assert broken_prefixes(provider.taken) == compacted_requests(run)
    # A transcript that is too long for the model goes in pieces.
    paid, made = 700 * len(provider.summaries), 70 * len(provider.summaries)
    asked = provider.summaries[0].json()
    assert asked.get("model", "small") == "small"
    assert not asked.get("stream")
    assert provider.summaries[0].target == PATHS[protocol_name]
    credentials = ("authorization", "x-api-key", "x-goog-api-key")
    first, summary = provider.taken[0].request, provider.summaries[0]
    assert any(map(first.header, credentials))
    assert [summary.header(name) for name in credentials] == [first.header(name) for name in credentials]
    said = run.compactions[-1]
    assert said is not None
    assert said["writer"] == "scribe"
    assert (said["summary_input"], said["summary_output"]) == (paid, made)
    assert "Nothing was found in src/call_" in provider.taken[-1].text
    totals = known["totals"]
    assert (totals["summary_input"], totals["summary_output"]) == (paid, made)
    # The agent's own tokens are the provider's figures for its own requests.
    assert totals["input"] == sum(one.tokens for one in provider.taken)
    assert totals["output"] == 20 * len(provider.taken)
    assert totals["requests"] == len(run.answers)


@pytest.mark.parametrize("how", ["500", "429", "no JSON", "invented", "empty", "prose", "hangs", "cut"])
async def test_an_agent_works_on_while_no_summary_can_be_had(start: Start, how: str):
    protocol_name = "chat"
    proxy = started(start, protocol_name)
    provider = StrictProvider(protocol_name, WINDOW, rounds=1_000, summary=failing(how, protocol_name), words=220)
    async with proxy.provider(provider), agent(proxy, protocol_name, words=220) as run:
        while not compacted_requests(run):
            await asyncio.wait_for(rounds(run, 1), 20)
        await rounds(run, 20)
    assert provider.problems == []
    assert provider.refusals == []
    assert broken_prefixes(provider.taken) == compacted_requests(run)
    assert provider.summaries, "a model was asked"
    said = run.compactions[-1]
    assert said is not None
    assert said["writer"] in ("", "extractive")
    for one in provider.taken:
        assert "81723" not in one.text
        assert "DO-NOT-KEEP" not in one.text
