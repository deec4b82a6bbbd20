"""What a client may say about compacting, what it may ask about it, and its own compaction beside ours."""

import json
from typing import Any

import anthropic
import openai
import pytest

from tests.agent_replies import TOOLS
from tests.agents import MODEL, Run
from tests.conftest import Start
from tests.e2e.protocol_samples import RESPONSES
from tests.e2e.raw_client import post
from tests.e2e.small_window import (
    EACH,
    WINDOW,
    Proxies,
    agent,
    broken_prefixes,
    compacted_requests,
    config,
    fetch_session,
    rounds,
    strict_provider,
)
from tests.strict_provider import PATHS, SYSTEM, StrictProvider, turn_text
from tests.writers import LISTS

TRIGGER = 0.75


async def until_compacted(run: Run) -> None:
    while not compacted_requests(run):
        await rounds(run, 1)


# -- the header --------------------------------------------------------------------------------------------------------


@EACH
async def test_now_compacts_a_request_that_is_far_from_full(proxies: Proxies, protocol_name: str):
    proxy, provider = proxies[protocol_name], strict_provider(protocol_name, "now")
    async with proxy.provider(provider), agent(proxy, protocol_name, name="now") as run:
        await rounds(run, 10)
        assert float(run.answers[-1]["x-accordion-utilization"]) < 0.5
        run.headers["x-accordion-compact"] = "now"
        await rounds(run, 1)
        del run.headers["x-accordion-compact"]
        await rounds(run, 2)
    assert provider.problems == []
    assert broken_prefixes(provider.taken) == compacted_requests(run) == [10]
    said = run.compactions[10]
    assert said is not None
    assert said["cause"] == "manual"
    assert provider.taken[10].tokens < provider.taken[9].tokens
    assert all(one.request.header("x-accordion-compact") is None for one in provider.taken)


@EACH
async def test_off_leaves_a_request_as_it_came_and_the_next_one_has_its_compaction_again(
    proxies: Proxies, protocol_name: str
):
    proxy, provider = proxies[protocol_name], strict_provider(protocol_name, "off")
    async with proxy.provider(provider) as upstream, agent(proxy, protocol_name, name="off") as run:
        await until_compacted(run)
        await rounds(run, 1)
        kept, provider.window = provider.taken[-1], 10**6
        run.headers["x-accordion-compact"] = "off"
        await rounds(run, 1)
        assert len(provider.taken[-1].entries) >= len(run.history) - 4, "nothing is left out"
        run.headers["x-accordion-compact"] = "auto"
        await rounds(run, 1)
        assert len(upstream.requests) == len(run.answers)
    assert provider.problems == []
    assert run.compactions[-2] is None
    assert run.compactions[-1] is not None
    assert run.compactions[-1]["id"] == run.compactions[-3]["id"]
    assert provider.taken[-1].entries[: len(kept.entries)] == kept.entries


@EACH
async def test_observe_reports_a_compaction_and_makes_none(proxies: Proxies, protocol_name: str):
    proxy, provider = proxies[protocol_name], strict_provider(protocol_name, "observe")
    async with proxy.provider(provider), agent(proxy, protocol_name, name="observe") as run:
        run.headers["x-accordion-compact"] = "observe"
        while run.compactions[-1:] in ([], [None]):
            await rounds(run, 1)
        said = run.compactions[-1]
        assert broken_prefixes(provider.taken) == []
        assert said is not None
        assert said["state"] == "observed"
        assert said["after"] < said["before"]
        assert said["steps"]
        known = await fetch_session(proxy, run.answers[-1]["x-accordion-session"], len(run.answers))
        assert known["exchanges"][-1]["compaction"]["state"] == "observed"


@EACH
@pytest.mark.parametrize("word", ["off", "observe"])
async def test_what_is_not_to_be_touched_is_not_refused_either(proxies: Proxies, protocol_name: str, word: str):
    """However long it is: whether it is too long is for the provider to say."""
    proxy, provider = (
        proxies[protocol_name],
        StrictProvider(protocol_name, 10**6, rounds=1_000, thinks=protocol_name != "chat", run=word + "!"),
    )
    async with proxy.provider(provider), agent(proxy, protocol_name, name=word + "!") as run:
        run.headers["x-accordion-compact"] = word
        while not run.answers or float(run.answers[-1]["x-accordion-utilization"]) < 1.1:
            await rounds(run, 1)
    assert provider.problems == []
    assert broken_prefixes(provider.taken) == []


async def test_nonsense_is_refused_in_the_shape_of_each_protocol(proxies: Proxies):
    headers, ask = {"x-accordion-compact": "please"}, [{"role": "user", "content": "Hello."}]
    words = "x-accordion-compact must be one of auto, now, off, observe."
    async with agent(proxies["chat"], "chat") as run:
        with pytest.raises(openai.BadRequestError, match=words) as one:
            await run.client.chat.completions.create(model=MODEL, messages=ask, extra_headers=headers)
        assert one.value.param == "x-accordion-compact"
        with pytest.raises(openai.BadRequestError, match=words) as two:
            await run.client.responses.create(model=MODEL, input="Hello.", extra_headers=headers)
        assert two.value.type == "invalid_request_error"
    async with agent(proxies["messages"], "messages") as run:
        with pytest.raises(anthropic.BadRequestError, match=words) as three:
            await run.client.messages.create(model=MODEL, messages=ask, max_tokens=9, extra_headers=headers)
    body: Any = three.value.body
    assert body["error"]["type"] == "invalid_request_error"


# -- counting ----------------------------------------------------------------------------------------------------------


async def counted(run: Run) -> int:
    """What the provider says that the history would be."""
    if run.protocol_name == "messages":
        asked = await run.client.messages.count_tokens(
            model=MODEL, system=SYSTEM, messages=run.history, tools=TOOLS["messages"]
        )
    else:
        asked = await run.client.responses.input_tokens.count(
            model=MODEL, instructions=SYSTEM, tools=TOOLS["responses"], extra_body={"input": run.history}
        )
    return int(asked.input_tokens)


@pytest.mark.parametrize("protocol_name", ["messages", "responses"])
async def test_tokens_are_counted_of_what_would_be_forwarded(proxies: Proxies, protocol_name: str):
    proxy, provider = proxies[protocol_name], strict_provider(protocol_name, "count")
    async with proxy.provider(provider), agent(proxy, protocol_name, name="count") as run:
        await rounds(run, 3)
        apart = []
        for at in range(3, 40):
            said = await counted(run)
            await rounds(run, 1)
            assert said == provider.counted[-1].tokens
            if provider.counted[-1].entries != provider.taken[-1].entries:
                apart.append(at)
    assert provider.problems == []
    assert max(one.tokens for one in provider.counted) < WINDOW < run.sent[-1] // 4
    # Who counts does not say how long the answer may be, so that a compaction may come one request later.
    assert apart == (compacted_requests(run) if protocol_name == "messages" else [])
    assert len(apart) <= 3


# -- the client's own compaction ---------------------------------------------------------------------------------------


async def test_compaction_items_of_a_provider_survive_our_compactions(proxies: Proxies):
    proxy, provider = proxies["responses"], strict_provider("responses", "items")
    item = {"id": "cmp_1", "type": "compaction", "encrypted_content": "b3BhcXVl" * 40}
    async with proxy.provider(provider), agent(proxy, "responses", name="items") as run:
        run.history.append(item)
        run.begin()
        await until_compacted(run)
        await rounds(run, 3)
    assert provider.problems == []
    written = json.dumps(item, separators=(",", ":")).encode()
    assert all(written in one.entries for one in provider.taken)


async def test_context_management_passes_with_and_without_a_compact(proxies: Proxies):
    proxy, provider = proxies["messages"], strict_provider("messages", "managed")
    edits = {"edits": [{"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": 100000}}]}
    async with proxy.provider(provider), agent(proxy, "messages", name="managed") as run:
        run.headers["anthropic-beta"] = "context-management-2025-06-27"
        run.more["extra_body"] = {"context_management": edits}
        await until_compacted(run)
    assert provider.problems == []
    assert all(one.request.json()["context_management"] == edits for one in provider.taken)
    assert {one.request.header("anthropic-beta") for one in provider.taken} == {"context-management-2025-06-27"}


async def test_a_clients_own_compaction_is_left_alone_and_starts_a_new_history(proxies: Proxies):
    """As Claude Code does it: the whole history and a question for a summary, then a history that begins with that."""
    proxy, provider = proxies["messages"], strict_provider("messages", "own")
    async with proxy.provider(provider), agent(proxy, "messages", name="own") as run:
        await until_compacted(run)
        while float(run.answers[-1]["x-accordion-utilization"]) < TRIGGER - 0.03:
            await rounds(run, 1)
        compaction = run.compactions[-1]
        compactions, size = len(compacted_requests(run)), len(provider.taken[-1].entries)
        run.say("Q: summarize the conversation so far.")
        run.headers["x-claude-code-request-class"] = "compaction"
        before = provider.taken[-1]
        await run.step()
        said = run.compactions[-1]
        assert compaction is not None
        assert said is not None
        assert (said["state"], said["id"]) == ("replayed", compaction["id"])
        assert len(compacted_requests(run)) == compactions, "it is not compacted further"
        assert provider.taken[-1].entries[:size] == before.entries
        # The client goes on from its own summary.
        run.headers.clear()
        provider.run = run.name = "own, begun anew"
        run.history = [{"role": "user", "content": turn_text(0, run.name)}]
        await rounds(run, 4)
    assert provider.problems == []
    assert run.compactions[-4:] == [None] * 4
    assert len(provider.taken[-1].entries) == 7
    assert compaction["id"] not in provider.taken[-1].text


async def test_a_compaction_request_over_the_trigger_passes_insertions(proxies: Proxies):
    proxy, provider = proxies["chat"], strict_provider("chat", "trigger")
    async with proxy.provider(provider), agent(proxy, "chat", name="trigger") as run:
        run.headers["x-accordion-compact"] = "off"
        await rounds(run, 25)
        run.ask("Q: summarize the conversation so far.")
        body = {
            "model": MODEL,
            "tools": TOOLS["chat"],
            "messages": [{"role": "system", "content": SYSTEM}, *run.history],
        }
        raw = json.dumps(body).encode()
        one = await post(proxy, PATHS["chat"], raw, ("x-claude-code-request-class", "compaction"))
        assert float(one.header("x-accordion-utilization") or 0) > TRIGGER
        assert (one.header("x-accordion-compaction"), provider.taken[-1].request.body) == (None, raw)
        # The very same without the mark is compacted.
        two = await post(proxy, PATHS["chat"], raw)
        assert '"compacted"' in (two.header("x-accordion-compaction") or "")
        assert provider.taken[-1].request.body != raw
    assert provider.problems == []


@pytest.mark.parametrize(
    ("kept", "known"),
    [
        pytest.param({"previous_response_id": "resp_kept"}, False, id="reply"),
        pytest.param({"conversation": "conv_kept"}, False, id="conversation"),
        pytest.param({"conversation": "conv_kept"}, True, id="conversation on record"),
    ],
)
async def test_what_the_provider_keeps_passes_unchanged_and_says_so(start: Start, kept: dict[str, str], known: bool):
    proxy = start(config("responses"))
    text = "a word and another " * 3_000
    body = json.dumps({"model": MODEL, LISTS["responses"]: [{"role": "user", "content": text}], **kept}).encode()
    async with proxy.provider(RESPONSES.answers(response_id="resp_kept")) as upstream:
        if known:
            first = {"model": MODEL, "input": "Hello.", **{name: kept[name] for name in kept if name == "conversation"}}
            assert (await post(proxy, PATHS["responses"], json.dumps(first).encode())).status == 200
            upstream.requests.clear()
        reply = await post(proxy, PATHS["responses"], body)
        told_of = (await fetch_session(proxy, reply.header("x-accordion-session"), 1 + known))["exchanges"][-1]
    # This provider does not list the items of a conversation object.
    sent = [each.body for each in upstream.requests if each.method == "POST"]
    assert (reply.status, sent) == (200, [body])
    assert float(reply.header("x-accordion-utilization") or 0) > 1
    assert reply.header("x-accordion-compaction") is None
    assert told_of["decision"].partition(";")[2].count("passes unchanged") == 1
    assert ("not on record" in told_of["decision"]) is not known
