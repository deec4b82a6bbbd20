"""A cache that is bounded by bytes, for all whose entries differ in size. Which caches are others: docs/adr/0020."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from sys import getsizeof
from threading import Lock
from typing import Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

ENTRY: Final = 350
"""Bytes that an entry takes with a short key: its slot, its link, its size, the key and a tuple around them."""


LONGEST_NAME: Final = 512
"""Names of models with more characters are not remembered, so that a number of entries is a bound in bytes too."""


def weigh(*parts: str | bytes) -> int:
    """The bytes that an entry of these strings takes, roughly."""
    return ENTRY + sum(map(getsizeof, parts))


def weigh_entry(key: bytes | str, value: object) -> int:
    """The bytes that a string takes as a key, with a value that is small or shared."""
    return ENTRY + getsizeof(key)


class Cache(Generic[K, V]):
    """Holds values within `capacity` bytes; the least recently used go first, the newest never does.

    `size` tells how many bytes an entry takes, for values that are set without saying so. Safe to use from several
    threads. A look-up takes no lock, since most requests make some.
    """

    __slots__ = ("_capacity", "_held", "_lock", "_size", "_size_of")

    def __init__(self, capacity: int, size: Callable[[K, V], int] = lambda key, value: ENTRY) -> None:
        self._capacity = capacity
        self._size_of = size
        self._held: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    @property
    def size(self) -> int:
        """The bytes that all entries take, as their sizes were told."""
        return self._size

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: object) -> bool:
        return key in self._held

    def get(self, key: K) -> V | None:
        """The value of a key, which is the most recently used now; None where there is none."""
        held = self._held.get(key)
        if held is None:
            return None
        try:  # noqa: SIM105, `suppress` takes longer than all the rest
            self._held.move_to_end(key)
        except KeyError:  # Another thread has just removed it.
            pass
        return held[0]

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value, self._size_of(key, value))

    def put(self, key: K, value: V, size: int) -> None:
        """Keeps a value that takes `size` bytes, in place of the key's old value."""
        held = self._held
        with self._lock:
            total = self._size + size
            if (old := held.get(key)) is not None:
                total -= old[1]
                held.move_to_end(key)
            held[key] = value, size
            while total > self._capacity and len(held) > 1:
                total -= held.popitem(last=False)[1][1]
            self._size = total

    def discard(self, key: K) -> None:
        """Removes a key, where it is there."""
        with self._lock:
            if (old := self._held.pop(key, None)) is not None:
                self._size -= old[1]

    def items(self) -> list[tuple[K, V]]:
        """All entries, the least recently used first."""
        with self._lock:
            return [(key, value) for key, (value, _) in self._held.items()]

    def clear(self) -> None:
        """Removes all entries."""
        with self._lock:
            self._held.clear()
            self._size = 0
