"""Everything around a compaction made to fail in turn, at every step of a replayed conversation: each request is
answered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import pytest

from accordion.compaction.request import CompactionResult
from accordion.compaction.strategies import DEFAULT_STRATEGIES, Strategy, build_strategy
from accordion.model.conversation import Conversation
from accordion.model.errors import StoreUnavailable, SummaryFailed
from accordion.model.ports import Key
from accordion.protocols.registry import PROTOCOLS
from accordion.stores.memory_store import InMemoryStore
from tests.compaction.compactor_setup import (
    CompactorSetup,
    ScriptedAuthor,
    conversation,
    long_history,
    summary_caller,
)
from tests.histories import PROTOCOL_NAMES, ProtocolName
from tests.tiers import first_quick

WINDOW = 2_400
"""Words; the conversation comes to some three of them."""


@cache
def requests(protocol_name: ProtocolName) -> list[Conversation]:
    """What a client sends, one request after the other: questions and rounds of work."""
    made = []
    for turns in range(1, 14):
        made += [
            conversation(long_history(turns, rounds=2, words=120, end=end), protocol_name) for end in ("work", "ask")
        ]
    return made


class FailingOnce(InMemoryStore):
    """Fails at one call, counted from 1; from there on at all of them, where `stays`."""

    def __init__(self, at: int = 0, stays: bool = False) -> None:
        super().__init__()
        self.at, self.stays, self.calls = at, stays, 0

    def _spend(self) -> None:
        self.calls += 1
        if self.calls == self.at or (self.stays and 0 < self.at <= self.calls):
            raise StoreUnavailable("away")

    async def put(self, key: Any, value: bytes, *, ttl: float | None = None) -> None:
        self._spend()
        await super().put(key, value, ttl=ttl)

    async def put_if_absent(self, key: Any, value: bytes, *, ttl: float | None = None) -> bytes:
        self._spend()
        return await super().put_if_absent(key, value, ttl=ttl)

    async def get_many(self, keys: Any) -> list[bytes | None]:
        self._spend()
        return [await super(FailingOnce, self).get(key) for key in keys]

    async def get(self, key: Any) -> bytes | None:
        self._spend()
        return await super().get(key)

    async def write(self, batch: Any) -> dict[Key, bytes]:
        self._spend()
        return await super().write(batch)

    @asynccontextmanager
    async def lock(self, key: Any, *, lease: float) -> AsyncIterator[bool]:
        self._spend()
        async with super().lock(key, lease=lease) as held:
            yield held


class Failing(Strategy):
    """A strategy that raises at one call, counted over the whole replay; else it does as another one does."""

    def __init__(self, inner: Strategy, at: int = 0) -> None:
        self.inner, self.at, self.calls = inner, at, [0]
        for trait in ("name", "handles_delegations", "is_restorable", "summary_model"):
            setattr(self, trait, getattr(inner, trait))

    def propose(self, view: Any) -> Sequence[Any]:
        self.calls[0] += 1
        if self.calls[0] == self.at or self.at < 0:
            raise RuntimeError("a strategy that fails")
        return self.inner.propose(view)


def pipeline() -> list[Any]:
    return [build_strategy(name) for name in DEFAULT_STRATEGIES]


async def replayed(
    setup: CompactorSetup, protocol_name: ProtocolName, *, model: bool = False
) -> list[CompactionResult]:
    """All requests in order, each checked: what would be forwarded is legal, and the newest message is in it."""
    outcomes = []
    for client in requests(protocol_name):
        outcome = await setup.step(client, summary_caller=summary_caller() if model else None)
        if model:
            await setup.tasks.done()
        messages = outcome.history.conversation.messages
        assert PROTOCOLS[protocol_name].find_problems(messages) == []
        assert messages[-1].wire == client.messages[-1].wire
        assert messages[0].wire == client.messages[0].wire
        outcomes.append(outcome)
    return outcomes


def compactions(outcomes: Sequence[CompactionResult]) -> list[str]:
    return [outcome.outcome.state for outcome in outcomes if outcome.outcome is not None]


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
async def test_a_conversation_three_windows_long_is_compacted_a_few_times_and_always_fits(protocol_name: ProtocolName):
    setup = CompactorSetup(store=FailingOnce(), pipeline=pipeline(), window=WINDOW)
    outcomes = await replayed(setup, protocol_name)
    states = compactions(outcomes)
    assert set(states) == {"compacted"}
    assert 2 <= len(states) <= 8
    for outcome in outcomes:
        weights = [
            setup.weights.count_message(m, outcome.history.conversation, "")
            for m in outcome.history.conversation.messages
        ]
        assert sum(weights) < 0.9 * WINDOW


@pytest.mark.parametrize(
    ("stays", "spooled"), first_quick([(False, True), (False, False), (True, False), (True, True)])
)
async def test_every_store_call_may_fail(stays: bool, spooled: bool):
    plain = FailingOnce()
    await replayed(CompactorSetup(store=plain, pipeline=pipeline(), window=WINDOW, teller=True), "chat", model=True)
    assert plain.calls > 10
    for at in range(1, plain.calls + 1):
        store = FailingOnce(at, stays)
        setup = CompactorSetup(store=store, pipeline=pipeline(), window=WINDOW, has_spool=spooled, teller=True)
        outcomes = await replayed(setup, "chat", model=True)
        assert len(outcomes) == len(requests("chat"))
        if spooled or not stays:
            assert "compacted" in compactions(outcomes)


@pytest.mark.parametrize("number", range(len(DEFAULT_STRATEGIES)))
@pytest.mark.parametrize("protocol_name", first_quick(PROTOCOL_NAMES))
async def test_every_strategy_may_fail(number: int, protocol_name: ProtocolName):
    def build_setup(at: int) -> tuple[CompactorSetup, Failing]:
        strategies = pipeline()
        broken = Failing(strategies[number], at)
        strategies[number] = broken
        return CompactorSetup(store=FailingOnce(), pipeline=strategies, window=WINDOW), broken

    setup, counted = build_setup(0)
    await replayed(setup, protocol_name)
    for at in (*range(1, counted.calls[0] + 1), -1):
        setup, _ = build_setup(at)
        outcomes = await replayed(setup, protocol_name)
        reasons = [
            outcome.outcome.reason for outcome in outcomes if outcome.outcome and outcome.outcome.state == "failed"
        ]
        assert not any("a strategy that fails" in reason for reason in reasons)
        # Over the hard limit the smaller form is made without it.
        assert "compacted" in compactions(outcomes)


async def raising(*args: Any, **options: Any) -> Any:
    raise RuntimeError("broken")


def raise_now(*args: Any, **options: Any) -> Any:
    raise RuntimeError("broken")


@pytest.mark.parametrize(
    "breaking",
    [
        lambda setup: setattr(setup.author, "error", SummaryFailed("no")),
        lambda setup: setattr(setup.author, "error", RuntimeError("broken")),
        lambda setup: setattr(setup.author, "write", raising),
        lambda setup: setattr(setup.author, "write_extractive", raise_now),
        lambda setup: setattr(setup.preparations, "begin", raise_now),
        lambda setup: setattr(setup.preparations, "ready", raising),
        lambda setup: setattr(setup.compactions, "publish", raising),
        lambda setup: setattr(setup.weights, "text", raise_now),
    ],
)
async def test_every_call_to_a_summarizer_or_a_room_may_fail(breaking: Callable[[CompactorSetup], None]):
    setup = CompactorSetup(store=FailingOnce(), pipeline=pipeline(), window=WINDOW, teller=True)
    assert isinstance(setup.author, ScriptedAuthor)
    breaking(setup)
    outcomes = await replayed(setup, "messages", model=True)
    assert len(outcomes) == len(requests("messages"))


async def test_a_task_that_is_never_run_holds_nobody_up_for_long():
    setup = CompactorSetup(store=FailingOnce(), pipeline=pipeline(), window=WINDOW, teller=True, wait_seconds=0.01)
    assert isinstance(setup.author, ScriptedAuthor)
    setup.author.may.clear()
    outcomes = []
    for client in requests("chat"):
        outcomes.append(await setup.step(client, summary_caller=summary_caller()))
    assert "compacted" in compactions(outcomes)
    assert {
        outcome.outcome.writer for outcome in outcomes if outcome.outcome and outcome.outcome.state == "compacted"
    } <= {
        "extractive",
        "",
    }
    setup.author.may.set()
    await setup.tasks.done()
