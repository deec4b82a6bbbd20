"""Caches of the inner packages stay within their bytes, whatever is put into them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from accordion.archive.writing import Archive
from accordion.core.cache import Cache
from accordion.core.ports import Key, Put
from accordion.core.records import CallSeen
from accordion.identity.nodes import Nodes
from accordion.identity.passing import Passing, Patterns
from accordion.identity.scopes import Namespaces, Scopes
from accordion.importing import Mentions
from accordion.storage.ephemeral import EphemeralStore
from accordion.storage.outbox import GatheringOutbox
from accordion.summaries.facts_words import Judge
from tests.fakes import FakeClock

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


@pytest.mark.parametrize("fill", [calls, places, seats, rows, lists])
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

    threads = [Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.size == 100 * len(cache) <= 10_000
