"""A cache bounded by bytes or by its number of entries. docs/adr/0020 lists the caches that need another kind."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from sys import getsizeof
from threading import Lock
from typing import Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

ENTRY: Final = 270
"""Bytes that an entry takes with a short key: its slot, its link, its size, the key and a tuple around them."""

LONGEST_NAME: Final = 512
"""Model names with more characters are not cached, so that a limit of entries is a limit of bytes too."""


def string_size(*parts: str | bytes) -> int:
    """Returns the bytes that an entry of these strings takes, roughly."""
    return ENTRY + sum(map(getsizeof, parts))


def entry_size(key: bytes | str, value: object) -> int:
    """Returns the bytes of an entry whose value is small or shared: those of its key."""
    return ENTRY + getsizeof(key)


def count_entry(key: object, value: object) -> int:
    """Returns 1: with it as its `size`, a cache is bounded by its number of entries."""
    return 1


class BoundedCache(Generic[K, V]):
    """Keeps values within `capacity` bytes. It removes the least recently used first, and never the newest.

    `size` computes the bytes of an entry that is set with `cache[key] = value`. `on_evict` is called with each entry
    that is removed because the cache is full; it must not use the cache. Safe to use from several threads. A look-up
    takes no lock, because most requests make several.
    """

    __slots__ = ("_capacity", "_entries", "_lock", "_on_evict", "_size", "_size_of")

    def __init__(
        self,
        capacity: int,
        size: Callable[[K, V], int] = lambda key, value: ENTRY,
        on_evict: Callable[[K, V], object] | None = None,
    ) -> None:
        self._capacity = capacity
        self._size_of = size
        self._on_evict = on_evict
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    @property
    def size(self) -> int:
        """The sum of the entries' sizes, in bytes."""
        return self._size

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def get(self, key: K) -> V | None:
        """Returns the value of a key and marks it as the most recently used; None if there is none."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        try:  # noqa: SIM105, `suppress` takes longer than all the rest
            self._entries.move_to_end(key)
        except KeyError:  # Another thread has just removed it.
            pass
        return entry[0]

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value, self._size_of(key, value))

    def put(self, key: K, value: V, size: int) -> None:
        """Sets the value of a key, which takes `size` bytes."""
        entries = self._entries
        with self._lock:
            total = self._size + size
            if (old := entries.get(key)) is not None:
                total -= old[1]
                entries.move_to_end(key)
            entries[key] = value, size
            while total > self._capacity and len(entries) > 1:
                old_key, (old_value, old_size) = entries.popitem(last=False)
                if old_key == key:  # Other threads have just looked up all others.
                    entries[key] = value, size
                    continue
                total -= old_size
                if self._on_evict is not None:
                    self._on_evict(old_key, old_value)
            self._size = total

    def pop(self, key: K) -> V | None:
        """Removes a key and returns its value; None if it is not present."""
        with self._lock:
            entry = self._entries.pop(key, None)
            if entry is None:
                return None
            self._size -= entry[1]
        return entry[0]

    def items(self) -> list[tuple[K, V]]:
        """Returns all entries, the least recently used first."""
        with self._lock:
            # A look-up in another thread changes the order at any time, which an iteration in Python does not survive.
            entries = self._entries.copy()
        return [(key, value) for key, (value, _) in entries.items()]

    def clear(self) -> None:
        """Removes all entries."""
        with self._lock:
            self._entries.clear()
            self._size = 0
