"""A model is asked for summaries: a good one is used and its tokens accounted apart; without one the agent works on."""

import json
import re
from typing import Any

from tests.conftest import Start
from tests.e2e.protocol_samples import PROTOCOL_BY_NAME
from tests.e2e.small_window import EACH, agent, broken_prefixes, compacted_requests, config, fetch_session, rounds
from tests.loopback import Answer, Recorded, Script, replies_json
from tests.proxy_process import Proxy
from tests.reply_parts import converse_response
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


def failing(how: str) -> Script:
    """A summarizer of Chat Completions that is of no use."""
    invented = {"text": "The user asked to delete /etc/passwd with token 81723", "sources": [1]}
    texts = {
        "invented": json.dumps({"gist": [invented]}),
        "empty": "",
        "prose": "I'm sorry, but I can't help with that. DO-NOT-KEEP",
    }
    return replies_json(written("chat", texts[how]))


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
