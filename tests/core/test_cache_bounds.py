"""Caches of the inner packages stay within their bytes, whatever is put into them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from accordion.accounting.calibration import UNKNOWN, Calibrations
from accordion.accounting.meter import Meter
from accordion.archive.writing import Archive
from accordion.clockwork import LoopTasks
from accordion.compaction.background import Prepared, Thread, ready_summaries
from accordion.compaction.futility import Futile
from accordion.compaction.replay import Folds
from accordion.compaction.wishes import Wishes
from accordion.compaction.writers import Failure, Writer, Writers
from accordion.core.cache import Cache
from accordion.core.ports import Key, Put
from accordion.core.records import CallSeen
from accordion.dialects.chat import ChatCompletions
from accordion.identity.nodes import Nodes
from accordion.identity.openings import Openings
from accordion.identity.origins import Origins
from accordion.identity.passing import Passing, Patterns
from accordion.identity.scopes import Namespaces, Scopes
from accordion.identity.shown import Shown, Viewer, _Kept
from accordion.importing import Mentions
from accordion.memory import recollection
from accordion.models.tokens import TiktokenCounter
from accordion.settings import Settings
from accordion.storage import memories_chunks
from accordion.storage.ephemeral import EphemeralStore
from accordion.storage.outbox import GatheringOutbox
from accordion.summaries.extractive import Extractor
from accordion.summaries.facts_words import Judge
from accordion.wiring.shares import shares
from tests.fakes import FakeClock, FickleStore
from tests.identity.lineages import talk, user

CAPACITY = 100_000
MANY = 10 * CAPACITY // 250


def _caches(owner: Any) -> Iterator[Cache[Any, Any]]:
    for kind in type(owner).__mro__:
        for name in getattr(kind, "__slots__", ()):
            if isinstance(found := getattr(owner, name, None), Cache):
                yield found
    yield from (each for each in getattr(owner, "__dict__", {}).values() if isinstance(each, Cache))


async def calls(store: EphemeralStore, outbox: GatheringOutbox) -> Any:
    scopes = Scopes(store, outbox, capacity=CAPACITY)
    for number in range(MANY):
        made = [CallSeen(f"call_{number}", "read_file", f'{{"path": "{number}"}}')]
        scopes.note(b"space", Namespaces((b"near" * 4,)), made, "x:agent")
        scopes.top(b"space", made)
    return scopes


async def places(store: EphemeralStore, outbox: GatheringOutbox) -> Any:
    passing = Passing(store, outbox, Patterns(("transfer_to_*",)), capacity=CAPACITY)
    for number in range(MANY):
        passing.seen(b"", [b"%032d" % number])
    return passing


async def seats(store: EphemeralStore, outbox: GatheringOutbox) -> Any:
    nodes = Nodes(store, outbox, FakeClock(), capacity=CAPACITY)
    for number in range(MANY):
        nodes.sit("tenant", f"s-{number}", f"s:s-{number}")
    return nodes


async def rows(store: EphemeralStore, outbox: GatheringOutbox) -> Any:
    archive = Archive(store, clock=FakeClock(), capacity=CAPACITY)
    await archive.keep([Put(Key("", f"row/{number:064}"), b"x") for number in range(MANY)])
    return archive


async def lists(store: EphemeralStore, outbox: GatheringOutbox) -> Any:
    mentions = Mentions(CAPACITY)
    for number in range(MANY):
        conversation = SimpleNamespace(chain=[b"%032d" % number], messages=[])
        mentions.named(SimpleNamespace(conversation=conversation, base_index=-1, label=b""), b"words")  # type: ignore[arg-type]
    return mentions


async def decisions(store: EphemeralStore, outbox: GatheringOutbox) -> Any:
    nodes = Nodes(store, outbox, FakeClock())
    shown = Shown(store, outbox, nodes, Scopes(store, outbox), CAPACITY)
    viewer = Viewer(b"space", "tenant", "s:viewer", ("s:viewer",), Namespaces(()))
    for number in range(MANY // 10):
        shown._keep(viewer, b"%032d" % number, _Kept(tuple((at, 0, "x:agent") for at in range(10))))
    return shown


async def beginnings(store: EphemeralStore, outbox: GatheringOutbox) -> Any:
    nodes = Nodes(store, outbox, FakeClock())
    openings = Openings(store, outbox)
    origins = Origins(FakeClock(), LoopTasks(), nodes, openings, capacity=CAPACITY // 2, waiting=CAPACITY // 2)
    for number in range(50):
        asked = talk([user(f"{number} " + 10_000 * "word ")])
        await origins.of(b"space", "tenant", f"s-{number}", "", asked, new=True)
    return origins


async def attempts(store: EphemeralStore, outbox: GatheringOutbox) -> Any:
    futile, asked = Futile(CAPACITY), talk([user("a task")])
    for number in range(MANY):
        futile.note(Thread("tenant", b"space", b"scope", f"s-{number}"), asked, "fold", 1_000, "too little to gain")
    return futile


async def models(store: EphemeralStore, outbox: GatheringOutbox) -> Any:
    writers = Writers(FakeClock(), CAPACITY)
    for number in range(50):
        writers.failed(Writer("tenant", "", f"{number}" + 10_000 * "m"), number, "label", Failure("no use", 1))
    return writers


async def facts(store: EphemeralStore, outbox: GatheringOutbox) -> Any:
    extractor = Extractor(CAPACITY, words=CAPACITY)
    for number in range(200):
        extractor.prepare(talk([user(f"see src/part_{number}.py and its CamelCase{number}")]).messages)
    return extractor


async def summaries(store: EphemeralStore, outbox: GatheringOutbox) -> Any:
    ready = ready_summaries(CAPACITY)
    for number in range(50):
        prepared = Prepared(10_000 * "told ", 3, b"anchor", "writer", 1, 1, ((1, 1_000 * "found "),))
        ready[Thread("tenant", b"space", b"scope", f"s-{number}")] = prepared, 0.0
    return SimpleNamespace(ready=ready)


async def pins(store: EphemeralStore, outbox: GatheringOutbox) -> Any:
    wishes = Wishes(store, capacity=CAPACITY)
    for number in range(50):
        await wishes.pin("tenant", f"s-{number}", frozenset(f"{at}{250 * 'c'}" for at in range(256)))
    return wishes


FILLS = [calls, places, seats, rows, lists, decisions, beginnings, attempts, models, facts, summaries, pins]


@pytest.mark.parametrize("fill", FILLS)
async def test_ten_times_what_fits_leaves_no_more_than_the_bound(fill: Callable[..., Any]) -> None:
    store = EphemeralStore()
    caches = list(_caches(await fill(store, GatheringOutbox(store))))
    assert 0 < sum(cache.size for cache in caches) <= CAPACITY


def test_remembered_words_stay_within_their_bytes() -> None:
    judge = Judge(CAPACITY)
    for number in range(MANY):
        judge.words(f"some_name_{number}")
    assert 0 < sum(300 + 2 * len(word) for word in judge) <= CAPACITY


def test_threads_that_share_a_cache_leave_its_size_right() -> None:
    cache = Cache[int, int](10_000, lambda key, value: 100)

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
    each = shares(whole)
    assert sum(each) + 2 * each.words == whole


async def test_pins_that_wait_for_the_store_are_bounded_by_bytes() -> None:
    store = FickleStore()
    store.away = True
    wishes = Wishes(store, capacity=CAPACITY)
    for number in range(50):
        await wishes.add("tenant", f"s-{number}", frozenset(f"{at}{250 * 'c'}" for at in range(64)))
    assert 1 <= len(wishes._late) <= 3
    assert len(await wishes.pinned("tenant", "s-49")) == 64


async def test_places_of_compactions_are_bounded_by_bytes() -> None:
    folds = Folds(EphemeralStore(), places=30_000)
    for number in range(200):
        await folds.find(ChatCompletions(), b"space", b"", talk([user(f"task {number}")]), fresh=False)
    assert 350 * len(folds._answers) <= 10_000


def test_edges_found_late_are_counted_for_a_bounded_number_of_tenants() -> None:
    store = EphemeralStore()
    nodes = Nodes(store, GatheringOutbox(store), FakeClock())
    nodes._found_late("first")
    before = nodes.version("first"), nodes.version("other")
    for number in range(10_000):
        nodes._found_late(f"tenant {number}")
    assert len(nodes._versions) < 5_000
    # Who was forgotten looks again: never is what changed taken for what it was.
    assert nodes.version("first") > before[0]
    assert nodes.version("other") > before[1]


def test_models_with_names_too_long_are_not_remembered() -> None:
    counter, known = TiktokenCounter(), Calibrations()
    meter, name = Meter(counter), 100_000 * "m"
    for number in range(20):
        model = f"{number}{name}"
        known.learn("upstream", model, UNKNOWN, 1_000, 1_500)
        meter.message(talk([user("words")]).messages[0], talk([user("words")]), model)
    assert [*known._models, *meter._schemes, *counter._names] == []


def test_long_words_and_labels_are_not_remembered() -> None:
    recollection._tells.cache_clear()
    memories_chunks._remembered.cache_clear()
    long = 100_000 * "word"
    recollection._says_enough(long)
    assert memories_chunks.digest(long) == memories_chunks.digest(str(long))
    assert memories_chunks._remembered.cache_info().currsize == 0
    assert recollection._tells(long[:200])
    assert recollection._tells.cache_info().hits == 1
