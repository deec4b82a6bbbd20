"""When something is recalled, and where it stands: in front of the newest turn, so that the turn is still what is read
last, and behind all that the request before held, so that its prefix stays.

What is recalled is recorded as an overlay (overlays.py), which puts the same bytes in at every later request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

from accordion.archive.recall import Excerpt, Recaller
from accordion.compaction.dressing import Wardrobe
from accordion.compaction.overlays import Overlays
from accordion.compaction.reading import WrittenReader
from accordion.core.conversation import Conversation
from accordion.core.edits import Folded
from accordion.core.ports import Clock, Tasks
from accordion.core.records import Recalled
from accordion.core.values import dataclass
from accordion.core.weaves import Recall
from accordion.dialects.base import Dialect
from accordion.dialects.splice import Weaver

_log = logging.getLogger("accordion")

_AT_ONCE = 32_768
"""Bytes that are looked through at once; more of them in a thread, so that other requests need not wait."""
_SHARE = 8
"""An excerpt takes this part of the room that is left, at most."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A request that something may be recalled for.

    `folded` is the list as the fold left it, `shown` the same as it would be forwarded. `base` is the index of the last
    message that the request before held (-1: none). `room` is how many tokens are left below the hard limit. `amid`
    tells whether the provider takes a user's entry between results and the calls that follow. `began` is when the
    request came, in seconds by the monotonic clock.
    """

    dialect: Dialect
    space: bytes
    scope: bytes
    session: str
    model: str
    client: Conversation
    folded: Folded
    shown: Folded
    base: int
    room: int
    amid: bool
    began: float


@dataclass(frozen=True, slots=True)
class Recalling:
    """Looks for what a turn names, and records it. `count` counts a text for a model; an excerpt has at most `tokens`,
    of at most `sources` sources."""

    recaller: Recaller
    overlays: Overlays
    weavers: Mapping[str, Weaver]
    reader: WrittenReader
    wardrobe: Wardrobe
    tasks: Tasks
    clock: Clock
    count: Callable[[str, str], int]
    tokens: int
    sources: int

    async def recalled(self, turn: Turn) -> Recalled | None:
        """What was recalled for this turn and is in force from now on; None where that is nothing, or where something
        stands at its place already (a request that is made again gets what it got). Never fails."""
        try:
            return await self._recalled(turn)
        except Exception:
            _log.exception("the archive could not be searched for this turn")
            return None

    async def _recalled(self, turn: Turn) -> Recalled | None:
        anchor = place_of(turn)
        most = min(self.tokens, turn.room // _SHARE)
        if anchor < 0 or most <= 0:
            return None
        client = turn.client
        key = client.chain[anchor]
        # Most turns ask for nothing, so this is looked for first.
        excerpt = await self._excerpt(turn, most)
        if excerpt is None:
            return None
        # Of a reply that read back, its rounds were sent behind the request that it answered: nothing goes between.
        if await self.overlays.find(turn.space, turn.scope, (key,), 1, fresh=False):
            return None
        recall = Recall(key, turn.dialect.text(excerpt.text), self.clock.now(), excerpt.artifacts)
        if not await self._fits(turn, recall):
            return None
        if not await self.overlays.add(turn.space, turn.scope, recall, turn.session, turn.began):
            return None
        return Recalled(excerpt.tokens, len(excerpt.quotes))

    async def _excerpt(self, turn: Turn, most: int) -> Excerpt | None:
        newest = range(turn.base + 1, len(turn.client.messages))
        look = partial(
            self.recaller.excerpt, turn.space, turn.shown, turn.client, newest,
            lambda text: self.count(text, turn.model), tokens=most, sources=self.sources,
        )  # fmt: skip
        if self.recaller.pending(turn.shown, turn.client) > _AT_ONCE:
            return await self.tasks.offload(look)
        return look()

    async def _fits(self, turn: Turn, recall: Recall) -> bool:
        """Whether it can be put in at all, and nothing changes that the request before held."""
        dialect, folded = turn.dialect, turn.folded
        since = folded.compaction.covered if folded.compaction is not None else 0
        found = await self.overlays.find(turn.space, turn.scope, turn.client.chain, since, fresh=False)
        weaver, read = self.weavers[dialect.name], self.reader.of(dialect, turn.space)
        # The second stays as it is laid out, for the request itself.
        before, after = (
            self.wardrobe.dressed(dialect, weaver, folded, put, None, read) for put in (found, (*found, recall))
        )
        pairs = zip(before.conversation.messages, after.conversation.messages, strict=False)
        changed = next((at for at, (one, two) in enumerate(pairs) if one.wire != two.wire), -1)
        return changed >= 0 and before.spans[changed][0] > turn.base


def place_of(turn: Turn) -> int:
    """The index of the client's message behind which a recall stands: the last one before what the user says, or
    before the calls whose results are the newest; -1 where there is no such place.

    In Chat Completions it stands before the newest results themselves, as a part of the first of them: many servers
    refuse what a user says behind results. In Messages a text must stand behind the results of its message, which were
    sent without it: there it stands only in front of what a user says.
    """
    messages, start = turn.client.messages, len(turn.client.messages) - 1
    if turn.client.starts_turn:
        while start - 1 > turn.base and messages[start - 1].has_user_text and not messages[start - 1].has_tool_result:
            start -= 1
    elif start > 0 and messages[start].has_tool_result and turn.dialect.name != "messages":
        while start > 0 and messages[start - 1].role != "assistant":
            start -= 1
        if turn.dialect.name != "chat" and not turn.amid:
            return -1
        while turn.dialect.name != "chat" and start > 0 and messages[start - 1].role == "assistant":
            start -= 1
    else:
        return -1
    covered = turn.folded.compaction.covered if turn.folded.compaction is not None else 0
    return start - 1 if start - 1 >= max(turn.base, covered - 1) else -1
