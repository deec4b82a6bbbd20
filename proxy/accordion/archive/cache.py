"""What was used last, within so many bytes."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Cache(Generic[K, V]):
    """Holds values within `capacity` bytes, the newest always; the least recently used go first. Safe to use from
    several threads."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._held: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    @property
    def size(self) -> int:
        """Bytes that all of it is reckoned to take."""
        return self._size

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: K) -> bool:
        return key in self._held

    def get(self, key: K) -> V | None:
        """The value of a key; None where there is none."""
        with self._lock:
            held = self._held.get(key)
            if held is None:
                return None
            self._held.move_to_end(key)
            return held[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Takes a value that is reckoned to take `size` bytes, in place of what was there."""
        with self._lock:
            if (old := self._held.pop(key, None)) is not None:
                self._size -= old[1]
            self._held[key] = value, size
            self._size += size
            while self._size > self._capacity and len(self._held) > 1:
                self._size -= self._held.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Lets go of all."""
        with self._lock:
            self._held.clear()
            self._size = 0
