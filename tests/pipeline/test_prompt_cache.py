"""Compactions by the state of the provider's prompt cache, in each protocol."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accordion.model.records import CompactionOutcome, Exchange
from accordion.pipeline.prompt_cache import find_cache_rules
from tests.fakes import FakeReply, FakeWindows
from tests.pipeline_setup import CHAT, MESSAGES, PipelineSetup
from tests.reply_parts import ReplyText, ScriptedReply, reply_document
from tests.writers import WRITERS

Json = dict[str, Any]
WINDOW, MINUTE, HOUR = 20_000, 60, 3_600
OPENAI, CLAUDE, GEMINI, LOCAL = "gpt-5", "claude-sonnet-4-5", "gemini-2.5-pro", "qwen3-coder"
LIFETIMES = [
    ("chat", OPENAI, 30 * MINUTE),
    ("responses", OPENAI, 30 * MINUTE),
    ("messages", CLAUDE, 5 * MINUTE),
    ("converse", CLAUDE, 5 * MINUTE),
]
MODELS = [(protocol, model) for protocol, model, _ in LIFETIMES] + [("gemini", GEMINI), ("chat", LOCAL)]
SHELL = {"type": "function", "function": {"name": "shell", "parameters": {"type": "object", "properties": {}}}}


class Talk:
    """A conversation in one protocol, whose requests have a system prompt."""

    def __init__(self, protocol: str, model: str, config: str = "", setup: PipelineSetup | None = None) -> None:
        self.setup = setup or PipelineSetup(windows=FakeWindows(WINDOW), config=config)
        self.protocol, self.writer, self.model, self.system = protocol, WRITERS[protocol], model, "Be brief."
        self.tools: list[Json] = []
        self.entries: list[Json] = []
        self.words = 0

    async def say(self, length: int) -> Exchange:
        """Sends the next message of the user, with so many words, and takes the answer."""
        text = " ".join(f"{len(self.entries)}w{at}" for at in range(length))
        self.words += length
        self.entries.append(self.writer.user(text))
        body = self.writer.with_system(self.writer.request(self.model, self.entries), self.system)
        if self.tools:
            body = self.writer.with_tools(body, self.tools)
        answer = reply_document(self.protocol, ScriptedReply(1, (ReplyText("Done."),), self.words, 5), body)
        self.setup.upstream.answers = [FakeReply(pieces=(json.dumps(answer).encode(),))]
        await self.setup.ask(self.writer.path(self.model), body, {"x-accordion-session": "session-of-a-test"})
        self.entries += self.writer.replied(answer)
        return self.setup.recorder.exchanges[-1]

    async def fill(self) -> None:
        """Fills the window to 39 %, which is 11 points below the trigger."""
        for length in (5, 4_000, 3_700):
            exchange = await self.say(length)
            assert exchange.compaction is None


def made_early(exchange: Exchange) -> CompactionOutcome | None:
    """The compaction of a request if the cold cache is its cause."""
    outcome = exchange.compaction
    return outcome if outcome is not None and (outcome.state, outcome.cause) == ("compacted", "cold_cache") else None


@pytest.mark.parametrize(("protocol", "model", "lifetime"), LIFETIMES)
async def test_a_request_near_the_trigger_is_compacted_after_a_pause(protocol: str, model: str, lifetime: int) -> None:
    talk = Talk(protocol, model)
    await talk.fill()
    talk.setup.clock.advance(lifetime - 1)
    warm = await talk.say(600)
    assert (warm.compaction, "a summary is prepared" in warm.decision) == (None, True)
    talk.setup.clock.advance(lifetime + 1)
    outcome = made_early(await talk.say(100))
    assert outcome is not None
    pause = f"{lifetime // MINUTE} minutes"
    assert outcome.reason.endswith(f"and the prompt cache is cold: the last request was {pause} ago")
    replayed = (await talk.say(5)).compaction
    assert replayed is not None
    assert (replayed.state, replayed.id) == ("replayed", outcome.id)


@pytest.mark.parametrize(("protocol", "model"), MODELS)
@pytest.mark.parametrize("change", ["system", "model", "tools"])
async def test_a_request_near_the_trigger_is_compacted_after_a_change(protocol: str, model: str, change: str) -> None:
    talk = Talk(protocol, model)
    await talk.fill()
    if change == "tools":
        talk.tools = [SHELL]
    else:
        setattr(talk, change, f"{getattr(talk, change)}-2")
    outcome = made_early(await talk.say(1_000))
    assert outcome is not None
    reason = "the model changed" if change == "model" else "the system prompt or the tools changed"
    assert outcome.reason.endswith(reason)


@pytest.mark.parametrize(("protocol", "model"), [("gemini", GEMINI), ("chat", LOCAL), ("messages", LOCAL)])
async def test_no_pause_compacts_early_where_no_lifetime_is_documented(protocol: str, model: str) -> None:
    talk = Talk(protocol, model)
    await talk.fill()
    talk.setup.clock.advance(100 * HOUR)
    assert (await talk.say(1_000)).compaction is None


async def test_a_request_far_below_the_trigger_is_not_compacted_after_a_pause() -> None:
    talk = Talk("messages", CLAUDE)
    await talk.fill()
    talk.setup.clock.advance(HOUR)
    assert (await talk.say(5)).compaction is None


async def test_nothing_is_compacted_early_if_that_is_switched_off() -> None:
    talk = Talk("messages", CLAUDE, "thresholds: {cold_cache: 0}")
    await talk.fill()
    talk.setup.clock.advance(HOUR)
    assert (await talk.say(1_000)).compaction is None


async def test_another_worker_knows_of_the_pause_too() -> None:
    first = Talk("messages", CLAUDE)
    await first.fill()
    await first.setup.outbox.flush()
    second = Talk("messages", CLAUDE, setup=PipelineSetup(store=first.setup.store, windows=FakeWindows(WINDOW)))
    second.entries, second.words = first.entries, first.words
    second.setup.clock.advance(6 * MINUTE)
    assert made_early(await second.say(1_000)) is not None


async def test_a_conversation_that_was_continued_elsewhere_is_not_called_cold() -> None:
    talk = Talk("messages", CLAUDE)
    await talk.fill()
    before = talk.entries.copy()
    await talk.say(1)
    talk.setup.clock.advance(HOUR)
    talk.entries = before
    assert (await talk.say(1_000)).compaction is None


async def test_a_compaction_waits_for_a_cold_cache_if_it_may() -> None:
    talk = Talk("messages", CLAUDE, "thresholds: {warm_cache: 0.1}")
    await talk.fill()
    waiting = await talk.say(2_500)
    assert waiting.compaction is None
    assert waiting.decision.endswith("the compaction waits for a cold prompt cache up to 12,000 tokens")
    talk.setup.clock.advance(6 * MINUTE)
    outcome = (await talk.say(5)).compaction
    assert outcome is not None
    assert (outcome.state, outcome.cause) == ("compacted", "automatic")


@pytest.mark.parametrize(
    ("fields", "lifetime"),
    [
        ({}, 30 * MINUTE),
        ({"prompt_cache_retention": "in_memory"}, 10 * MINUTE),
        ({"prompt_cache_retention": "24h"}, 24 * HOUR),
        ({"prompt_cache_options": {"mode": "implicit"}}, 30 * MINUTE),
        ({"prompt_cache_options": {"ttl": "12h"}}, 12 * HOUR),
    ],
)
async def test_openais_lifetime_is_what_the_request_asks_for(fields: Json, lifetime: int) -> None:
    body = {"model": "openai/gpt-5", "messages": [{"role": "user", "content": "hello"}], **fields}
    rules = find_cache_rules(await PipelineSetup().measure(CHAT, body))
    assert (rules.is_lifetime_known, rules.lifetime) == (True, lifetime)


HOUR_MARK, MARK = {"type": "ephemeral", "ttl": "1h"}, {"type": "ephemeral"}


@pytest.mark.parametrize(
    ("marks", "top", "lifetime"),
    [
        ((None, None), None, 5 * MINUTE),
        ((None, None), HOUR_MARK, HOUR),
        ((None, HOUR_MARK), None, HOUR),
        ((HOUR_MARK, MARK), HOUR_MARK, 5 * MINUTE),
        ((HOUR_MARK, None), None, HOUR),
    ],
)
async def test_anthropics_lifetime_is_that_of_the_newest_breakpoint(marks: Any, top: Any, lifetime: int) -> None:
    content = [{"type": "text", "text": 'a "1h" pause', **({"cache_control": mark} if mark else {})} for mark in marks]
    messages = [
        {"role": "user", "content": content[:1]},
        {"role": "assistant", "content": "Well."},
        {"role": "user", "content": content[1:]},
    ]
    body = {"model": CLAUDE, "max_tokens": 9, "messages": messages} | ({"cache_control": top} if top else {})
    assert find_cache_rules(await PipelineSetup().measure(MESSAGES, body)).lifetime == lifetime
