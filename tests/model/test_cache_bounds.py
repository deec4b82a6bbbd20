"""Caches of the inner packages stay within their bytes, whatever is put into them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from accordion.accounting.calibration import UNKNOWN, Calibrations
from accordion.accounting.token_meter import TokenMeter
from accordion.archive.archive import Archive
from accordion.compaction.background import (
    PreparedSummary,
    SummaryFailure,
    SummaryWriter,
    WriterHistory,
    create_summary_cache,
)
from accordion.compaction.compactor import RetryLimit
from accordion.compaction.repository import CompactionRepository
from accordion.compaction.session_overrides import SessionOverrideStore
from accordion.composition.cache_shares import divide_cache
from accordion.config import Settings
from accordion.delegation.call_owners import CallNamespaces, CallOwners
from accordion.delegation.handoffs import HandoffIndex, ToolPatterns
from accordion.delegation.origins import OpenCalls, OriginFinder
from accordion.delegation.tree import DelegationTree
from accordion.delegation.visibility_decisions import ResultViewer, VisibilityDecisions, _Decision
from accordion.features.memory.memory_mentions import MemoryMentions
from accordion.model.cache import BoundedCache
from accordion.model.ports import Key, Put
from accordion.model.records import ObservedCall
from accordion.model.tenant import ConversationRef, TenantScope
from accordion.protocols.openai_chat.protocol import OpenAIChat
from accordion.providers.models.tokenizer import TiktokenCounter
from accordion.server.event_loop import LoopTasks
from accordion.stores.memory_store import InMemoryStore
from accordion.stores.write_queue import WriteQueue
from accordion.summaries.extractive import ExtractiveWriter
from accordion.summaries.facts import WordClassifier
from tests.compaction.compactor_setup import CompactorSetup
from tests.delegation.delegation_worker import talk, user
from tests.fakes import FakeClock, FickleStore

OTHER = TenantScope("other", b"key of other")
FIRST = TenantScope("first", b"key of first")
TENANT = TenantScope("tenant", b"key")

CAPACITY = 100_000
MANY = 10 * CAPACITY // 250


def _caches(owner: Any) -> Iterator[BoundedCache[Any, Any]]:
    for kind in type(owner).__mro__:
        for name in getattr(kind, "__slots__", ()):
            if isinstance(found := getattr(owner, name, None), BoundedCache):
                yield found
    yield from (each for each in getattr(owner, "__dict__", {}).values() if isinstance(each, BoundedCache))


async def calls(store: InMemoryStore, outbox: WriteQueue) -> Any:
    scopes = CallOwners(store, outbox, capacity=CAPACITY)
    for number in range(MANY):
        made = [ObservedCall(f"call_{number}", "read_file", f'{{"path": "{number}"}}')]
        scopes.record_calls(TENANT, CallNamespaces((b"near" * 4,)), made, "x:agent")
        scopes.record_main_agent(TENANT, made)
    return scopes


async def handoff_index(store: InMemoryStore, outbox: WriteQueue) -> Any:
    passing = HandoffIndex(store, outbox, ToolPatterns(("transfer_to_*",)), capacity=CAPACITY)
    for number in range(MANY):
        passing.mark_read(b"", [b"%032d" % number])
    return passing


async def delegation_tree(store: InMemoryStore, outbox: WriteQueue) -> Any:
    nodes = DelegationTree(store, outbox, FakeClock(), capacity=CAPACITY)
    for number in range(MANY):
        nodes.record_session(OTHER, f"s-{number}", f"s:s-{number}")
    return nodes


async def rows(store: InMemoryStore, outbox: WriteQueue) -> Any:
    archive = Archive(store, clock=FakeClock(), capacity=CAPACITY)
    await archive.write([Put(Key("", f"row/{number:064}"), b"x") for number in range(MANY)])
    return archive


async def lists(store: InMemoryStore, outbox: WriteQueue) -> Any:
    mentions = MemoryMentions(CAPACITY)
    for number in range(MANY):
        conversation = SimpleNamespace(chain=[b"%032d" % number], messages=[])
        mentions.may_mention(SimpleNamespace(conversation=conversation, base_index=-1, scope=b""))  # type: ignore[arg-type]
    return mentions


async def decisions(store: InMemoryStore, outbox: WriteQueue) -> Any:
    nodes = DelegationTree(store, outbox, FakeClock())
    shown = VisibilityDecisions(store, outbox, nodes, CallOwners(store, outbox), CAPACITY)
    viewer = ResultViewer(TENANT, "s:viewer", ("s:viewer",), CallNamespaces(()))
    for number in range(MANY // 10):
        shown._save(viewer, b"%032d" % number, _Decision(tuple((at, 0, "x:agent") for at in range(10))))
    return shown


async def beginnings(store: InMemoryStore, outbox: WriteQueue) -> Any:
    nodes = DelegationTree(store, outbox, FakeClock())
    openings = OpenCalls(store, outbox)
    origins = OriginFinder(
        FakeClock(), LoopTasks(), nodes, openings, capacity=CAPACITY // 2, waiting_capacity=CAPACITY // 2
    )
    for number in range(50):
        asked = talk([user(f"{number} " + 10_000 * "word ")])
        await origins.find(TENANT, f"s-{number}", "", asked, is_new=True)
    return origins


async def attempts(store: InMemoryStore, outbox: WriteQueue) -> Any:
    futile, request = RetryLimit(CAPACITY), CompactorSetup().case(talk([user("a task")]))
    for number in range(MANY):
        futile.record_failure(
            replace(request, ref=ConversationRef(TENANT, b"scope", f"s-{number}")), "too little to gain"
        )
    return futile


async def models(store: InMemoryStore, outbox: WriteQueue) -> Any:
    writers = WriterHistory(FakeClock(), CAPACITY)
    for number in range(50):
        writers.record_failure(
            SummaryWriter("tenant", "", f"{number}" + 10_000 * "m"), number, "label", SummaryFailure("no use", 1)
        )
    return writers


async def facts(store: InMemoryStore, outbox: WriteQueue) -> Any:
    extractor = ExtractiveWriter(CAPACITY, words=CAPACITY)
    for number in range(200):
        extractor.prepare_facts(talk([user(f"see src/part_{number}.py and its CamelCase{number}")]).messages)
    return extractor


async def summaries(store: InMemoryStore, outbox: WriteQueue) -> Any:
    ready = create_summary_cache(CAPACITY)
    for number in range(50):
        prepared = PreparedSummary(10_000 * "told ", 3, b"anchor", "writer", 1, 1, ((1, 1_000 * "found "),))
        ready[ConversationRef(TENANT, b"scope", f"s-{number}")] = prepared, 0.0
    return SimpleNamespace(ready=ready)


async def pins(store: InMemoryStore, outbox: WriteQueue) -> Any:
    overrides = SessionOverrideStore(store, capacity=CAPACITY)
    for number in range(50):
        await overrides.set_pins(OTHER, f"s-{number}", frozenset(f"{at}{250 * 'c'}" for at in range(256)))
    return overrides


FILLS = [
    calls,
    handoff_index,
    delegation_tree,
    rows,
    lists,
    decisions,
    beginnings,
    attempts,
    models,
    facts,
    summaries,
    pins,
]


@pytest.mark.parametrize("fill", FILLS)
async def test_ten_times_what_fits_leaves_no_more_than_the_bound(fill: Callable[..., Any]) -> None:
    store = InMemoryStore()
    caches = list(_caches(await fill(store, WriteQueue(store.write))))
    assert 0 < sum(cache.size for cache in caches) <= CAPACITY


def test_remembered_words_stay_within_their_bytes() -> None:
    judge = WordClassifier(CAPACITY)
    for number in range(MANY):
        judge.find_words(f"some_name_{number}")
    assert 0 < sum(200 + 2 * len(word) for word in judge) <= CAPACITY


def test_threads_that_share_a_cache_leave_its_size_right() -> None:
    cache = BoundedCache[int, int](10_000, lambda key, value: 100)

    def work(first: int) -> None:
        for number in range(3_000):
            cache[(first * 7 + number) % 333] = number
            cache.get(number % 333)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.size == 100 * len(cache) <= 10_000


def test_the_shares_of_all_small_caches_add_up_to_the_whole() -> None:
    whole = Settings().limits.cache_bytes
    each = divide_cache(whole)
    assert sum(each) + 2 * each.words == whole


async def test_pins_that_wait_for_the_store_are_bounded_by_bytes() -> None:
    store = FickleStore()
    store.away = True
    overrides = SessionOverrideStore(store, capacity=CAPACITY)
    for number in range(50):
        await overrides.add_pins(OTHER, f"s-{number}", frozenset(f"{at}{250 * 'c'}" for at in range(64)))
    assert 1 <= len(overrides._unwritten_pins) <= 3
    assert len(await overrides.find_pins(OTHER, "s-49")) == 64


async def test_places_of_compactions_are_bounded_by_bytes() -> None:
    compactions = CompactionRepository(InMemoryStore(), lookups_capacity=30_000)
    for number in range(200):
        await compactions.find(
            OpenAIChat(), ConversationRef(TENANT, b"", ""), talk([user(f"task {number}")]), check_store=False
        )
    assert 350 * len(compactions._known_lookups) <= 10_000


def test_edges_found_late_are_counted_for_a_bounded_number_of_tenants() -> None:
    store = InMemoryStore()
    nodes = DelegationTree(store, WriteQueue(store.write), FakeClock())
    nodes._increase_version(FIRST)
    before = nodes.version(FIRST), nodes.version(OTHER)
    for number in range(10_000):
        nodes._increase_version(TenantScope(f"tenant {number}", b"key"))
    assert len(nodes._versions) < 5_000
    # Who was forgotten looks again: never is what changed taken for what it was.
    assert nodes.version(FIRST) > before[0]
    assert nodes.version(OTHER) > before[1]


def test_models_with_names_too_long_are_not_remembered() -> None:
    counter, known = TiktokenCounter(), Calibrations()
    meter, name = TokenMeter(counter), 100_000 * "m"
    for number in range(20):
        model = f"{number}{name}"
        known.learn("upstream", model, UNKNOWN, 1_000, 1_500)
        meter.count_message(talk([user("words")]).messages[0], talk([user("words")]), model)
    assert [*known._models.items(), *meter._schemes, *counter._names] == []
