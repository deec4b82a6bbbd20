"""Recalls archived sentences that answer the newest turn, in front of that turn.

The model still reads the turn last, and the prefix of the request before stays the same. The excerpt is recorded as an
insertion of the turn itself (store.py): every later request has the same bytes, and a question that is asked again in
other words gets its own. Within a turn, what the newest calls name is recalled in front of their results.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import msgspec

from accordion.insertions.excerpts import ArchiveSearch, Excerpt
from accordion.insertions.recall_source import RecallRequest
from accordion.insertions.store import InsertionStore
from accordion.model.insertions import RecallInsertion
from accordion.model.ports import Clock, Tasks
from accordion.model.records import RecallUsage

_log = logging.getLogger("accordion")

_MAX_INLINE_BYTES = 32_768
"""Bytes that are indexed without a thread; more are indexed in one, so that other requests need not wait.

An embedding, which loads at its first use, always has a thread.
"""
_ROOM_DIVISOR = 8
"""An excerpt takes at most the available tokens divided by this."""


class ArtifactRecall(msgspec.Struct, frozen=True):
    """Searches the archive for what a turn asks, and records the excerpt as an insertion.

    `count_tokens` counts a text for a model. An excerpt has at most `max_tokens`, and `share` of the window.
    """

    archive_search: ArchiveSearch
    insertion_store: InsertionStore
    tasks: Tasks
    clock: Clock
    count_tokens: Callable[[str, str], int]
    max_tokens: int
    share: float

    @property
    def needs_proxy(self) -> bool:
        """Whether it asks for more than the conversation and its archive, which only a running proxy has."""
        return False

    async def recall(self, request: RecallRequest) -> RecallUsage | None:
        """Recalls an excerpt for this turn and all later requests. Returns None if there is none, or if the turn has
        one already (a repeated request gets the same one). Never raises."""
        try:
            return await self._recall(request)
        except Exception:
            _log.exception("the archive could not be searched for this turn")
            return None

    async def _recall(self, request: RecallRequest) -> RecallUsage | None:
        turn = find_turn(request)
        limits = self.max_tokens, int(self.share * request.window), request.available_tokens // _ROOM_DIVISOR
        if request.history.compaction is None or not turn or min(limits) <= 0:
            return None
        # The search comes before the look-up of insertions, since most turns ask for nothing archived.
        excerpt = await self._find_excerpt(request, turn, min(limits))
        if excerpt is None:
            return None
        key = request.uncompacted.chain[turn[-1]]
        stored = await self.insertion_store.find_at(request.ref, key, check_store=False)
        # Tool rounds directly follow the request that they answer: a turn with an answer was sent already.
        if any(not isinstance(each, RecallInsertion) or each.before for each in stored):
            return None
        wire = request.protocol.text_message(excerpt.text)
        recall = RecallInsertion(key, wire, self.clock.now(), excerpt.artifacts, before=len(turn))
        if not await self.insertion_store.add(request.ref, recall, request.started_at):
            return None
        return RecallUsage(excerpt.tokens, len({message for message, _ in excerpt.quotes}))

    async def _find_excerpt(self, request: RecallRequest, turn: range, max_tokens: int) -> Excerpt | None:
        history, client = request.history_with_insertions, request.uncompacted
        search = partial(
            self.archive_search.find_excerpt, request.ref.tenant, history, client, turn,
            lambda text: self.count_tokens(text, request.model), tokens=max_tokens,
        )  # fmt: skip
        if (self.archive_search.load_embedding is not None and client.starts_turn) or self.archive_search.pending_bytes(
            history, client
        ) > _MAX_INLINE_BYTES:
            return await self.tasks.offload(search)
        return search()


def find_turn(request: RecallRequest) -> range:
    """Returns the indexes of the messages that an excerpt stands in front of; empty if there is no such place.

    These are the user's newest messages, or the newest results, with their calls where an excerpt cannot become a part
    of the first result: many servers refuse a user message after results, and nothing may come between a call and its
    result.
    """
    messages, protocol = request.uncompacted.messages, request.protocol
    start = len(messages) - 1
    if request.uncompacted.starts_turn:
        while start > 0 and not messages[start].has_user_text:
            start -= 1
        end = start + 1
        while (
            start - 1 > request.last_sent_index
            and messages[start - 1].has_user_text
            and not messages[start - 1].has_tool_result
        ):
            start -= 1
    else:
        end = start + 1
        if not messages[start].has_tool_result or not (
            protocol.takes_texts_with_results or request.allows_user_after_results
        ):
            return range(0)
        while start > 0 and messages[start - 1].role != "assistant":
            start -= 1
        while not protocol.takes_texts_with_results and start > 0 and messages[start - 1].role == "assistant":
            start -= 1
    return range(start, end) if start > max(request.last_sent_index, request.history.covered_count - 1) else range(0)
