"""Where people read what is kept: what left a window, and histories as they were said.

The parts of a text are had by the same reader as the model's (reader.py), but for its room: a person has no window.
Whoever asks is a tenant, by its key; what another tenant has is looked for at no place, so it cannot be told from what
there never was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from accordion.archive import holdings
from accordion.archive.artifacts import Artifact
from accordion.archive.custody import Custody
from accordion.archive.held import Reads, aimed, loaded
from accordion.archive.reader import Part, Wish, read
from accordion.archive.transcripts import Transcripts
from accordion.archive.writing import Archive
from accordion.core.errors import StoreUnavailable
from accordion.core.ports import Clock, Tasks
from accordion.core.values import dataclass, replace

AT_ONCE: Final = 8_000_000
"""Characters of a text that are given at once; the rest is had by offset."""
_QUICK: Final = 200_000
"""Bytes that are read without a thread."""
_LOOKS: Final = 32
_SCANNED: Final = 1_000
"""Records that are read from the store at once."""


@dataclass(frozen=True, slots=True)
class Lent:
    """An artifact, and the part of it that was asked for. `what` says in a few words what it is, `input` holds the
    arguments of its call in full, `sessions` are those that it left. Where text cannot say all of it (an image, sealed
    thoughts), `wires` are its messages as the client sent them."""

    artifact: Artifact
    what: str
    part: Part
    input: str = ""
    sessions: tuple[str, ...] = ()
    wires: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """Artifacts of a session, each once; where the next page begins, empty where there is none."""

    artifacts: tuple[Artifact, ...]
    next: str = ""


class ReadingRoom:
    """Reads for people. `custody` gives out and erases, `transcripts` have what was said."""

    def __init__(
        self,
        archive: Archive,
        transcripts: Transcripts,
        custody: Custody,
        dialects: Mapping[str, Reads],
        tasks: Tasks,
        clock: Clock,
    ) -> None:
        self.transcripts = transcripts
        self.custody = custody
        self._archive = archive
        self._dialects = dialects
        self._tasks = tasks
        self._clock = clock

    async def read(self, space: bytes, wish: Wish) -> Lent | None:
        """The part of an artifact that is asked for; None where the tenant has none of that id, or not all of it any
        more. Raises BadRequest and BadPath (both ValueErrors) for what cannot be had of it, StoreUnavailable."""
        found = await self._archive.records(space, wish.id, limit=_LOOKS)
        for artifact in found:
            rows = await self._archive.rows(space, artifact.keys)
            lent = await self._part(artifact, rows, wish)
            if lent is None:
                continue
            if self._clock.now() - artifact.at > self._archive.every:
                with suppress(StoreUnavailable):
                    await self._archive.read_back(space, artifact)
            return replace(lent, sessions=tuple(sorted({each.session for each in found})))
        await self._archive.check()
        return None

    async def listed(self, space: bytes, session: str, after: str = "", limit: int = 100) -> Page:
        """The artifacts of a session in the order of its conversation, each once, from where another page ended. The
        cursor holds the place of the last one, so a page does not depend on what was added or erased meanwhile. Raises
        ValueError for an `after` that no page gave, and StoreUnavailable.

        The store lists by id, so every page reads the whole list; a session has some thousands of records at most.
        """
        found = await self._in_order(space, session)
        behind = _place_after(after, found) if after else None
        left = [each for each in found if behind is None or _place(each) > behind]
        more = _cursor(left[limit - 1]) if len(left) > limit else ""
        return Page(tuple(left[:limit]), more)

    async def holds(self, space: bytes, session: str) -> bool:
        """Whether anything is kept of a session. Raises StoreUnavailable."""
        async for page in holdings.entries(self._archive.store, holdings.tenant_of(space), session):
            if page:
                return True
        return bool(await self._archive.listed(space, session, limit=1))

    async def _in_order(self, space: bytes, session: str) -> list[Artifact]:
        """All artifacts of a session, in order. One that left several scopes has the first of its places."""
        found: dict[str, Artifact] = {}
        after: Artifact | None = None
        while page := await self._archive.listed(space, session, after=after, limit=_SCANNED):
            after = page[-1]
            for each in page:
                known = found.get(each.id)
                found[each.id] = each if known is None else min(known, each, key=_place)
        return sorted(found.values(), key=_place)

    async def _part(self, artifact: Artifact, rows: Mapping[bytes, bytes], wish: Wish) -> Lent | None:
        if sum(map(len, rows.values())) <= _QUICK and not (wish.pattern or wish.path):
            return self._lent(artifact, rows, wish)
        return await self._tasks.offload(self._lent, artifact, rows, wish)

    def _lent(self, artifact: Artifact, rows: Mapping[bytes, bytes], wish: Wish) -> Lent | None:
        """The part, of an artifact whose rows are there. Slow where it is large, or searched."""
        held = loaded(artifact, rows, self._dialects)
        if held is None:
            return None
        text, path = aimed(held, wish.path)
        part = read(text, replace(wish, path=path), AT_ONCE)
        wires = tuple(rows[key] for key in artifact.keys if key in rows) if held.more else ()
        return Lent(artifact, held.what, part, held.input, (), wires)


Place = tuple[int, int, int, int, str]


def _place(artifact: Artifact) -> Place:
    """Where an artifact stands in the order of its conversation."""
    return artifact.first, artifact.last, artifact.part, artifact.slice, artifact.id


def _cursor(artifact: Artifact) -> str:
    """What asks for the page behind this artifact. Releases before this one gave `id/scope`."""
    return ".".join(map(str, _place(artifact)))


def _place_after(cursor: str, found: Sequence[Artifact]) -> Place:
    """The place that a cursor names, of this form or the former. Raises ValueError."""
    if "/" in cursor:
        name, _, scope = cursor.partition("/")
        bytes.fromhex(scope)
        known = next((each for each in found if each.id == name), None)
        if known is None:
            raise ValueError("the artifact that this page ended with is no longer there")
        return _place(known)
    first, last, part, slice_, name = cursor.split(".")
    return int(first), int(last), int(part), int(slice_), name
