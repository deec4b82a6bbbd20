"""After a fold, what left the window is compacted into memories, where the settings say so: behind the request, by
whoever `memory.writer` names, each range once."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field

from accordion.core.errors import AccordionError, BadRequest, StoreUnavailable
from accordion.core.ports import Tasks
from accordion.core.values import dataclass
from accordion.memory.answers import Done
from accordion.memory.compact import SEARCH_REQUIRED, Caller, Compactions
from accordion.memory.entries import Overtaken
from accordion.memory.stretches import Recordings

_log = logging.getLogger("accordion")

_PAUSE = 1.0
"""Seconds between two looks whether what was folded is recorded, which is done behind the request as well."""
_LOOKS = 10
_TRIES = 4
"""Searches, each of which somebody else may come in behind."""
_WAITING = 8
"""Folds of a session that wait, at most; neighbours of one project count as one."""


@dataclass(frozen=True, slots=True)
class Remembering:
    """Remembers. `compactions` are opened when they are first wanted, which may raise AccordionError; `project` is the
    one that the memories belong to where a request names none. `wait` waits for so many seconds."""

    compactions: Callable[[], Compactions]
    recordings: Recordings
    tasks: Tasks
    wait: Callable[[float], Awaitable[object]]
    project: str = ""
    _folds: dict[tuple[bytes, str], deque[tuple[int, str | None]]] = field(default_factory=dict)
    """Of sessions that are being remembered, by tenant's key: what is not remembered yet, in order, by project."""

    def folded(self, space: bytes, session: str, covered: int, project: str | None = None) -> None:
        """A fold was made that covers the first `covered` messages of a session's list, for a request that names this
        project (None: none). Nobody waits for it; where too many wait, it is left to the next one."""
        if not session or covered <= 0:
            return
        # One at a time: two would both find that nothing is compacted yet.
        under_way = (space, session) in self._folds
        folds = self._folds.setdefault((space, session), deque())
        if folds and folds[-1][1] == project:
            folds[-1] = max(folds[-1][0], covered), project
        elif len(folds) < _WAITING:
            folds.append((covered, project))
        if not under_way:
            self.tasks.spawn(self._in_turn(space, session), "make memories of a compaction")

    async def _in_turn(self, space: bytes, session: str) -> None:
        folds = self._folds[space, session]
        try:
            while folds:
                await self.remember(space, session, *folds.popleft())
        finally:
            del self._folds[space, session]

    async def remember(self, space: bytes, session: str, covered: int, project: str | None = None) -> None:
        """Compacts what of these messages is not compacted yet. Never fails: what could not be remembered now is a part
        of what the next fold covers."""
        try:
            end = await self._recorded(space, session, covered)
            if end == 0:
                _log.info("no memories were made of a compaction: its messages are not in the transcript")
                return
            await self._compacted(space, session, end, self.project if project is None else project)
        except AccordionError as error:
            _log.warning("no memories could be made of a compaction: %s", error.message)
        except Exception:
            _log.exception("no memories could be made of a compaction")

    async def _compacted(self, space: bytes, session: str, end: int, project: str) -> None:
        """Compacts what lies before message `end`. Raises what is wrong with it."""
        compactions = self.compactions()
        for _ in range(_TRIES):
            first = _beginning(await compactions.search(space, session))
            if first >= end:
                return
            try:
                await compactions.compact(space, session, first, end - 1, caller=Caller(project=project))
                return
            except BadRequest as error:
                # Somebody else compacted a range since the search.
                if error.code != SEARCH_REQUIRED:
                    raise
        raise Overtaken("others compact the same conversation again and again.")

    async def _recorded(self, space: bytes, session: str, covered: int) -> int:
        """Behind which message of the transcript the fold ends; 0 where it is not recorded so far."""
        for _ in range(_LOOKS):
            await self.wait(_PAUSE)
            try:
                found = await self.recordings.find(space, session)
            except StoreUnavailable:
                continue
            if found is not None and len(found) >= found.before + covered:
                return found.before + covered
        return 0


def _beginning(done: Sequence[Done]) -> int:
    """The first message that no compaction of all topics covers."""
    first = 0
    for each in sorted(done, key=lambda each: each.start_index):
        if not each.focus_topics and each.start_index <= first:
            first = max(first, each.end_index + 1)
    return first
