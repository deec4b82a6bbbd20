"""Creates memories from the messages that a compaction removed, if the settings ask for it.

This runs after the request, with the writer that `memory.writer` names, and covers each range of messages once.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from accordion.features.memory.conversation.message_ranges import RecordedTranscripts
from accordion.features.memory.entries import ConcurrentWrite
from accordion.features.memory.extraction.memory_extractor import (
    SEARCH_REQUIRED,
    CompactionCaller,
    CompletedRange,
    MemoryExtractor,
)
from accordion.model.errors import AccordionError, BadRequest, StoreUnavailable
from accordion.model.ports import Tasks
from accordion.model.records import ObservedResponse
from accordion.model.tenant import TenantScope
from accordion.pipeline.request import PreparedRequest

_log = logging.getLogger("accordion")

_POLL_SECONDS = 1.0
"""Seconds between checks whether the compacted messages are recorded, which also happens after the request."""
_MAX_POLLS = 10
_MAX_ATTEMPTS = 4
"""Maximum number of searches for the next range; another worker may compact a range after each."""
_MAX_WAITING = 8
"""Maximum number of waiting compactions of a session. Neighbours of one project count as one."""


class MemoryCapture(msgspec.Struct, frozen=True):
    """Creates memories from compacted messages.

    `open_memory_compactions` runs at the first use and may raise AccordionError. `project` is the project of memories
    if a request names none. `sleep` waits for a number of seconds.
    """

    open_memory_compactions: Callable[[], MemoryExtractor]
    recordings: RecordedTranscripts
    tasks: Tasks
    sleep: Callable[[float], Awaitable[object]]
    project: str = ""
    _pending_ranges: dict[tuple[TenantScope, str], deque[tuple[int, str | None]]] = msgspec.field(default_factory=dict)
    """Ranges that wait, in order and with their project, by tenant's key and session."""

    def enqueue(self, tenant: TenantScope, session: str, covered_count: int, project: str | None = None) -> None:
        """Queues the first `covered_count` messages of a session's list, which a compaction covers.

        `project` is the one that the request names (None: none). Returns at once. If too many wait, the next compaction
        covers these messages as well.
        """
        if not session or covered_count <= 0:
            return
        # One at a time: two at once would both find that nothing is compacted yet.
        is_running = (tenant, session) in self._pending_ranges
        ranges = self._pending_ranges.setdefault((tenant, session), deque())
        if ranges and ranges[-1][1] == project:
            ranges[-1] = max(ranges[-1][0], covered_count), project
        elif len(ranges) < _MAX_WAITING:
            ranges.append((covered_count, project))
        if not is_running:
            self.tasks.spawn(self._run_in_order(tenant, session), "make memories of a compaction")

    async def _run_in_order(self, tenant: TenantScope, session: str) -> None:
        ranges = self._pending_ranges[tenant, session]
        try:
            while ranges:
                await self.capture(tenant, session, *ranges.popleft())
        finally:
            del self._pending_ranges[tenant, session]

    async def capture(self, tenant: TenantScope, session: str, covered_count: int, project: str | None = None) -> None:
        """Creates memories from those of the messages that have none yet.

        Never fails: the next compaction covers what could not be done now.
        """
        try:
            end = await self._wait_for_transcript(tenant, session, covered_count)
            if end == 0:
                _log.info("no memories were made of a compaction: its messages are not in the transcript")
                return
            await self._extract_memories(tenant, session, end, self.project if project is None else project)
        except AccordionError as error:
            _log.warning("no memories could be made of a compaction: %s", error.message)
        except Exception:
            _log.exception("no memories could be made of a compaction")

    async def _extract_memories(self, tenant: TenantScope, session: str, end: int, project: str) -> None:
        """Creates memories of the messages before `end`. Raises AccordionError if that fails."""
        compactions = self.open_memory_compactions()
        for _ in range(_MAX_ATTEMPTS):
            first = _find_start(await compactions.find_completed(tenant, session))
            if first >= end:
                return
            try:
                await compactions.compact(tenant, session, first, end - 1, caller=CompactionCaller(project=project))
                return
            except BadRequest as error:
                # Another worker compacted a range since the search.
                if error.code != SEARCH_REQUIRED:
                    raise
        raise ConcurrentWrite("others compact the same conversation again and again.")

    async def _wait_for_transcript(self, tenant: TenantScope, session: str, covered_count: int) -> int:
        """Returns the index in the transcript at which the compaction ends; 0 if it is not recorded in time."""
        for _ in range(_MAX_POLLS):
            await self.sleep(_POLL_SECONDS)
            try:
                transcript = await self.recordings.find(tenant, session)
            except StoreUnavailable:
                continue
            if transcript is not None and len(transcript) >= transcript.before + covered_count:
                return transcript.before + covered_count
        return 0


def _find_start(finished: Sequence[CompletedRange]) -> int:
    """Returns the index of the first message that no memory compaction of all topics covers."""
    first = 0
    for each in sorted(finished, key=lambda each: each.start_index):
        if not each.focus_topics and each.start_index <= first:
            first = max(first, each.end_index + 1)
    return first


class MemoryCaptureHook(msgspec.Struct, frozen=True):
    """Creates memories from the messages that a compaction removed."""

    memory_capture: MemoryCapture

    def record(self, request: PreparedRequest, observed_response: ObservedResponse) -> None:
        """Queues the messages of a compaction that was made for this request."""
        compaction, outcome = request.history.compaction, request.compaction_outcome
        if compaction is not None and outcome is not None and outcome.state == "compacted":
            self.memory_capture.enqueue(
                request.caller.tenant,
                request.session_match.session.id,
                compaction.covered_count,
                request.controls.project,
            )
