from __future__ import annotations

import sys
import threading

from hypothesis import given
from hypothesis import strategies as st

from accordion.model.cache import BoundedCache, count_entry


def test_the_least_recently_used_entries_are_evicted():
    cache = BoundedCache[str, int](100)
    for number, name in enumerate("abc"):
        cache.put(name, number, 40)
        assert cache.get("a") == 0
    assert "b" not in cache
    assert cache.get("b") is None
    assert (cache.get("c"), len(cache), cache.size) == (2, 2, 80)


def test_the_newest_stays_however_large_it_is():
    cache = BoundedCache[str, int](10)
    cache.put("a", 1, 5)
    cache.put("b", 2, 50)
    assert (cache.get("a"), cache.get("b")) == (None, 2)


def test_nothing_is_left_of_what_was_let_go_of():
    cache = BoundedCache[str, int](10)
    cache.put("a", 1, 5)
    cache.clear()
    assert (cache.get("a"), len(cache), cache.size) == (None, 0, 0)


@given(puts=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 60))))
def test_cached_bytes_are_counted_and_bounded(puts: list[tuple[int, int]]):
    cache, sizes = BoundedCache[int, int](100), dict[int, int]()
    for key, size in puts:
        cache.put(key, size, size)
        sizes[key] = size
        held = {key: size for key, size in sizes.items() if key in cache}
        assert cache.size == sum(held.values())
        assert cache.size <= 100 or len(cache) == 1
        assert cache.get(key) == size


def test_a_cache_bounded_by_its_number_of_entries_reports_evictions():
    evicted: list[tuple[str, int]] = []
    cache = BoundedCache[str, int](2, count_entry, lambda key, value: evicted.append((key, value)))
    for number, name in enumerate("abab"):
        cache[name] = number
    assert evicted == []
    cache["c"] = 4
    assert (cache.items(), evicted) == ([("b", 3), ("c", 4)], [("a", 2)])


def test_an_entry_that_is_taken_out_is_not_reported_as_evicted():
    evicted: list[str] = []
    cache = BoundedCache[str, int](10, count_entry, lambda key, _: evicted.append(key))
    cache["a"] = 1
    assert (cache.pop("a"), cache.pop("a"), len(cache), cache.size, evicted) == (1, None, 0, 0, [])


def test_the_entries_are_listed_while_other_threads_look_them_up():
    cache = BoundedCache[int, int](1_000, count_entry)
    for number in range(1_000):
        cache[number] = number
    is_over, interval = threading.Event(), sys.getswitchinterval()

    def look_up() -> None:
        while not is_over.is_set():
            for number in range(0, 1_000, 7):
                cache.get(number)

    thread = threading.Thread(target=look_up)
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        assert {len(cache.items()) for _ in range(200)} == {1_000}
    finally:
        is_over.set()
        thread.join()
        sys.setswitchinterval(interval)


def test_the_newest_entry_stays_where_another_thread_looks_up_all_others_meanwhile():
    evicted: list[str] = []

    def look_up_others(key: str, value: int) -> None:
        evicted.append(key)
        thread = threading.Thread(target=lambda: [cache.get(name) for name in "abc"])
        thread.start()
        thread.join()

    cache = BoundedCache[str, int](3, lambda key, value: value, look_up_others)
    for name in "abc":
        cache[name] = 1
    cache["d"] = 2
    assert (cache.get("d"), cache.size, evicted) == (2, 3, ["a", "b"])
