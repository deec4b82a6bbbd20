"""After a fold, what left the window is compacted into memories, where the settings say so: behind the request, by
whoever `memory.writer` names, each range once."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field

from accordion.memory.compact import SEARCH_REQUIRED, CompactionCaller, ConversationCompactor
from accordion.memory.compaction_response import CompletedRange
from accordion.memory.entries import ConcurrentWrite
from accordion.memory.message_ranges import RecordedTranscripts
from accordion.model.errors import AccordionError, BadRequest, StoreUnavailable
from accordion.model.ports import Tasks
from accordion.model.values import dataclass

_log = logging.getLogger("accordion")

_POLL_SECONDS = 1.0
"""Seconds between two looks whether what was folded is recorded, which is done behind the request as well."""
_MAX_POLLS = 10
_MAX_ATTEMPTS = 4
"""Searches, each of which somebody else may come in behind."""
_MAX_WAITING = 8
"""Folds of a session that wait, at most; neighbours of one project count as one."""


@dataclass(frozen=True, slots=True)
class MemoryCapture:
    """Remembers. `compactions` are opened when they are first wanted, which may raise AccordionError; `project` is the
    one that the memories belong to where a request names none. `wait` waits for so many seconds."""

    open_memory_compactions: Callable[[], ConversationCompactor]
    recordings: RecordedTranscripts
    tasks: Tasks
    sleep: Callable[[float], Awaitable[object]]
    project: str = ""
    _pending_ranges: dict[tuple[bytes, str], deque[tuple[int, str | None]]] = field(default_factory=dict)
    """Of sessions that are being remembered, by tenant's key: what is not remembered yet, in order, by project."""

    def enqueue(self, tenant_key: bytes, session: str, covered_count: int, project: str | None = None) -> None:
        """A fold was made that covers the first `covered` messages of a session's list, for a request that names this
        project (None: none). Nobody waits for it; where too many wait, it is left to the next one."""
        if not session or covered_count <= 0:
            return
        # One at a time: two would both find that nothing is compacted yet.
        under_way = (tenant_key, session) in self._pending_ranges
        folds = self._pending_ranges.setdefault((tenant_key, session), deque())
        if folds and folds[-1][1] == project:
            folds[-1] = max(folds[-1][0], covered_count), project
        elif len(folds) < _MAX_WAITING:
            folds.append((covered_count, project))
        if not under_way:
            self.tasks.spawn(self._run_in_order(tenant_key, session), "make memories of a compaction")

    async def _run_in_order(self, tenant_key: bytes, session: str) -> None:
        folds = self._pending_ranges[tenant_key, session]
        try:
            while folds:
                await self.capture(tenant_key, session, *folds.popleft())
        finally:
            del self._pending_ranges[tenant_key, session]

    async def capture(self, tenant_key: bytes, session: str, covered_count: int, project: str | None = None) -> None:
        """Compacts what of these messages is not compacted yet. Never fails: what could not be remembered now is a part
        of what the next fold covers."""
        try:
            end = await self._wait_for_transcript(tenant_key, session, covered_count)
            if end == 0:
                _log.info("no memories were made of a compaction: its messages are not in the transcript")
                return
            await self._compact_memories(tenant_key, session, end, self.project if project is None else project)
        except AccordionError as error:
            _log.warning("no memories could be made of a compaction: %s", error.message)
        except Exception:
            _log.exception("no memories could be made of a compaction")

    async def _compact_memories(self, tenant_key: bytes, session: str, end: int, project: str) -> None:
        """Compacts what lies before message `end`. Raises what is wrong with it."""
        compactions = self.open_memory_compactions()
        for _ in range(_MAX_ATTEMPTS):
            first = _find_start(await compactions.find_completed(tenant_key, session))
            if first >= end:
                return
            try:
                await compactions.compact(tenant_key, session, first, end - 1, caller=CompactionCaller(project=project))
                return
            except BadRequest as error:
                # Somebody else compacted a range since the search.
                if error.code != SEARCH_REQUIRED:
                    raise
        raise ConcurrentWrite("others compact the same conversation again and again.")

    async def _wait_for_transcript(self, tenant_key: bytes, session: str, covered_count: int) -> int:
        """Behind which message of the transcript the fold ends; 0 where it is not recorded so far."""
        for _ in range(_MAX_POLLS):
            await self.sleep(_POLL_SECONDS)
            try:
                found = await self.recordings.find(tenant_key, session)
            except StoreUnavailable:
                continue
            if found is not None and len(found) >= found.before + covered_count:
                return found.before + covered_count
        return 0


def _find_start(finished: Sequence[CompletedRange]) -> int:
    """The first message that no compaction of all topics covers."""
    first = 0
    for each in sorted(finished, key=lambda each: each.start_index):
        if not each.focus_topics and each.start_index <= first:
            first = max(first, each.end_index + 1)
    return first
