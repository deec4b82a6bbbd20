"""How far the transcripts of sessions are recorded, and what of that is gone while more is being written."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from accordion.archive.transcript_rows import Name
from accordion.core.values import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """How far a session is recorded: `count` messages, the last of which has the chain key `last`. `since` is when its
    rows were all written, `entries` how many its log has had since, `size` what it counts in bytes."""

    count: int
    last: bytes
    head: bytes
    since: float
    entries: int
    size: int


class Write:
    """A write under way."""

    def __init__(self) -> None:
        self.gone: list[tuple[Callable[[Name], bool], bool]] = []

    def lost(self, name: Name) -> bool:
        """Whether what was known of a session when this began holds no more."""
        return any(of(name) for of, _ in self.gone)

    def erased(self, name: Name) -> bool:
        """Whether nothing of a session that was known when this began may be written any more."""
        return any(erased and of(name) for of, erased in self.gone)


class Places:
    """How far sessions are recorded, those `sessions` that this worker recorded last."""

    def __init__(self, sessions: int) -> None:
        self._sessions = sessions
        self._places: OrderedDict[Name, Place] = OrderedDict()
        self._writes: set[Write] = set()

    def get(self, name: Name) -> Place | None:
        """Where a session is, as far as it is known."""
        return self._places.get(name)

    @contextmanager
    def writing(self) -> Iterator[Write]:
        """While something is written."""
        write = Write()
        self._writes.add(write)
        try:
            yield write
        finally:
            self._writes.discard(write)

    def note(self, name: Name, place: Place, write: Write) -> None:
        """A session is recorded so far, unless that was lost since the write began."""
        if write.lost(name):
            return
        self._places[name] = place
        self._places.move_to_end(name)
        while len(self._places) > self._sessions:
            self._places.popitem(last=False)

    def lose(self, of: Callable[[Name], bool], *, erased: bool) -> None:
        """What is known of these sessions holds no more; `erased`: nor may what is being written of them be."""
        for name in [name for name in self._places if of(name)]:
            del self._places[name]
        for write in self._writes:
            write.gone.append((of, erased))
