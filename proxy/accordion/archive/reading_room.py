"""Where people read what is kept: what left a window, and histories as they were said.

The parts of a text are had by the same reader as the model's (reader.py), but for its room: a person has no window.
Whoever asks is a tenant, by its key; what another tenant has is looked for at no place, so it cannot be told from what
there never was.
"""

from __future__ import annotations

from collections.abc import Mapping
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
        return None

    async def listed(self, space: bytes, session: str, after: str = "", limit: int = 100) -> Page:
        """The artifacts of a session, from where another page ended. Raises ValueError where none ended there, and
        StoreUnavailable."""
        found = await self._archive.listed(space, session, after=_place(session, after), limit=limit + 1)
        page = found[:limit]
        more = f"{page[-1].id}/{page[-1].scope.hex()}" if len(found) > limit else ""
        return Page(tuple({each.id: each for each in page}.values()), more)

    async def holds(self, space: bytes, session: str) -> bool:
        """Whether anything is kept of a session. Raises StoreUnavailable."""
        async for page in holdings.entries(self._archive.store, holdings.tenant_of(space), session):
            if page:
                return True
        return bool((await self.listed(space, session, limit=1)).artifacts)

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


def _place(session: str, after: str) -> Artifact | None:
    """What another page ended with, as far as it takes to go on behind it. Raises ValueError."""
    if not after:
        return None
    name, _, scope = after.partition("/")
    return Artifact(name, "part", "", (), 0, 0, scope=bytes.fromhex(scope), session=session)
