"""After a fold, what left the window is compacted into memories, where the settings say so: behind the request, by
whoever `memory.writer` names, each range once."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from proxy.core.errors import AccordionError, StoreUnavailable
from proxy.core.ports import Tasks
from proxy.core.values import dataclass
from proxy.memory.answers import Done
from proxy.memory.compact import Caller, Compactions
from proxy.memory.stretches import Recordings

_log = logging.getLogger("accordion")

_PAUSE = 1.0
"""Seconds between two looks whether what was folded is recorded, which is done behind the request as well."""
_LOOKS = 10


@dataclass(frozen=True, slots=True)
class Remembering:
    """Remembers. `compactions` are opened when they are first wanted, which may raise AccordionError; `project` is the
    one that the memories belong to where a request names none. `wait` waits for so many seconds."""

    compactions: Callable[[], Compactions]
    recordings: Recordings
    tasks: Tasks
    wait: Callable[[float], Awaitable[object]]
    project: str = ""

    def folded(self, space: bytes, session: str, covered: int, project: str | None = None) -> None:
        """A fold was made that covers the first `covered` messages of a session's list, for a request that names this
        project (None: none). Nobody waits for it."""
        if session and covered > 0:
            self.tasks.spawn(self.remember(space, session, covered, project), "remember what was folded")

    async def remember(self, space: bytes, session: str, covered: int, project: str | None = None) -> None:
        """Compacts what of these messages is not compacted yet. Never fails: what could not be remembered now is a part
        of what the next fold covers."""
        try:
            end = await self._recorded(space, session, covered)
            if end == 0:
                _log.info("what was folded is not remembered: it is not recorded")
                return
            compactions = self.compactions()
            first = _beginning(await compactions.search(space, session))
            if first < end:
                caller = Caller(project=self.project if project is None else project)
                await compactions.compact(space, session, first, end - 1, caller=caller)
        except AccordionError as error:
            _log.warning("what was folded could not be remembered: %s", error.message)

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
