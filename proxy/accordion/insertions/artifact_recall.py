"""Recalls archived excerpts that the newest turn names, and chooses their position.

An excerpt stands before the newest turn, so that the model still reads the turn last, and after all messages of the
request before, so that their prefix stays the same. It is recorded as an insertion (store.py), so that every later
request contains the same bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from accordion.archive.recall import ArtifactSearch, Excerpt
from accordion.insertions.composer import InsertionCache
from accordion.insertions.recall_source import RecallRequest
from accordion.insertions.store import InsertionStore
from accordion.model.insertions import RecallInsertion
from accordion.model.ports import Clock, Tasks
from accordion.model.records import RecallUsage
from accordion.protocols.tool_loop import ArtifactToolProtocol
from accordion.protocols.written_messages import WrittenMessageReader

_log = logging.getLogger("accordion")

_MAX_INLINE_BYTES = 32_768
"""Bytes that are searched without a thread; more are searched in one, so that other requests need not wait."""
_ROOM_DIVISOR = 8
"""An excerpt takes at most the available tokens divided by this."""
_MAX_SOURCES = 3
"""Sources of one excerpt: each then has 500 of the 1,500 tokens, which is enough to answer a question."""


class ArtifactRecall(msgspec.Struct, frozen=True):
    """Searches the archive for content that a turn names, and records the excerpt as an insertion.

    `count_tokens` counts a text for a model. An excerpt has at most `max_tokens`.
    """

    artifact_search: ArtifactSearch
    insertion_store: InsertionStore
    tool_protocols: Mapping[str, ArtifactToolProtocol]
    message_reader: WrittenMessageReader
    insertion_cache: InsertionCache
    tasks: Tasks
    clock: Clock
    count_tokens: Callable[[str, str], int]
    max_tokens: int

    async def recall(self, request: RecallRequest) -> RecallUsage | None:
        """Recalls an excerpt for this turn and all later requests. Returns None if there is none, or if an insertion
        already stands there (a repeated request gets the same one). Never raises."""
        try:
            return await self._recall(request)
        except Exception:
            _log.exception("the archive could not be searched for this turn")
            return None

    async def _recall(self, request: RecallRequest) -> RecallUsage | None:
        if request.history.compaction is None:
            return None
        anchor = insertion_index(request)
        max_tokens = min(self.max_tokens, request.available_tokens // _ROOM_DIVISOR)
        if anchor < 0 or max_tokens <= 0:
            return None
        key = request.uncompacted.chain[anchor]
        # The search comes before the look-up of insertions, since most turns name nothing archived.
        excerpt = await self._find_excerpt(request, max_tokens)
        if excerpt is None:
            return None
        # Tool rounds directly follow the request that they answer: nothing may be inserted between.
        if await self.insertion_store.find_at(request.ref, key, check_store=False):
            return None
        recall = RecallInsertion(key, request.protocol.text_message(excerpt.text), self.clock.now(), excerpt.artifacts)
        if not await self._can_insert(request, recall):
            return None
        if not await self.insertion_store.add(request.ref, recall, request.started_at):
            return None
        return RecallUsage(excerpt.tokens, len(excerpt.quotes))

    async def _find_excerpt(self, request: RecallRequest, max_tokens: int) -> Excerpt | None:
        newest = range(request.last_sent_index + 1, len(request.uncompacted.messages))
        search = partial(
            self.artifact_search.find_excerpt, request.ref.tenant, request.history_with_insertions, request.uncompacted,
            newest, lambda text: self.count_tokens(text, request.model), tokens=max_tokens, sources=_MAX_SOURCES,
        )  # fmt: skip
        if self.artifact_search.pending_bytes(request.history_with_insertions, request.uncompacted) > _MAX_INLINE_BYTES:
            return await self.tasks.offload(search)
        return search()

    async def _can_insert(self, request: RecallRequest, insertion: RecallInsertion) -> bool:
        """Whether the recall can be inserted without changing any message of the request before."""
        protocol, history = request.protocol, request.history
        covered_count = history.covered_count
        insertions = await self.insertion_store.find(
            request.ref, request.uncompacted.chain, covered_count, check_store=False
        )
        tool_protocol = self.tool_protocols[protocol.name]
        read_message = self.message_reader.reader_for(protocol, request.ref.tenant)
        # The second composition stays in the cache for the request itself.
        before, after = (
            self.insertion_cache.compose(protocol, tool_protocol, history, each, None, read_message)
            for each in (insertions, (*insertions, insertion))
        )
        pairs = zip(before.conversation.messages, after.conversation.messages, strict=False)
        changed = next((at for at, (one, two) in enumerate(pairs) if one.wire != two.wire), -1)
        return changed >= 0 and before.spans[changed][0] > request.last_sent_index


def insertion_index(request: RecallRequest) -> int:
    """Returns the index of the client's message after which a recall stands; -1 if there is no such place.

    That is the last message before the user's text, or before the calls whose results are the newest. In Chat
    Completions and Messages the recall stands before the newest results, merged into the first of them: many servers
    refuse a user message after results, and in Messages only results may follow a call.
    """
    messages, start = request.uncompacted.messages, len(request.uncompacted.messages) - 1
    if request.uncompacted.starts_turn:
        while (
            start - 1 > request.last_sent_index
            and messages[start - 1].has_user_text
            and not messages[start - 1].has_tool_result
        ):
            start -= 1
    elif start > 0 and messages[start].has_tool_result:
        while start > 0 and messages[start - 1].role != "assistant":
            start -= 1
        merges = request.protocol.takes_texts_with_results
        if not merges and not request.allows_user_after_results:
            return -1
        while not merges and start > 0 and messages[start - 1].role == "assistant":
            start -= 1
    else:
        return -1
    covered = request.history.covered_count
    return start - 1 if start - 1 >= max(request.last_sent_index, covered - 1) else -1
