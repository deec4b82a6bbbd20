"""A turn is given memories that belong to it, unasked: of the same tenant and project, searched for with its newest
words. They stand behind the newest message from then on, recorded and replayed as session memories are
(proxy/accordion/importing.py).

Nothing waits long for it: a search that takes too long, or a store that is away, leaves the turn as it is, and is not
asked again for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import field

from accordion.compaction.overlays import Overlays
from accordion.compaction.waiting import Waiting
from accordion.core.edits import Folded
from accordion.core.errors import AccordionError
from accordion.core.memories import Filter, Memories, Memory
from accordion.core.ports import Clock, Tasks
from accordion.core.records import Recalled
from accordion.core.values import dataclass
from accordion.core.weaves import Recall
from accordion.dialects.base import Dialect
from accordion.identity.sessions import Place
from accordion.memory.recollected import note
from accordion.memory.recollection import Find, Standing, belonging, questions, quoted
from accordion.memory.search import Query, Result, Search

_log = logging.getLogger("accordion")

_SHARE = 8
"""Memories take this part of the room that is left, at most."""
_LOOKED_AT = 10
"""Finds that are held against the list, the best: it may be long."""
_PAUSE = 10.0
"""Seconds for which nothing is searched for after a search that came to nothing in time."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much is recalled at most: tokens and memories of one turn, how relevant a memory must be (0 to 1), and how
    many seconds a request waits. `project` is whose memories where a request names none; `everywhere`: of all."""

    tokens: int = 800
    memories: int = 3
    relevance: float = 0.8
    seconds: float = 0.5
    project: str = ""
    everywhere: bool = False


@dataclass(frozen=True, slots=True)
class Moment:
    """A request that may begin a turn. `space` is the tenant's key; `folded` is the list as a fold left it, `shown` as
    it would be forwarded; `room` is how many tokens are left below the hard limit; `began` is when the request came, in
    seconds by the monotonic clock; `project` is the one that it names (None: none)."""

    dialect: Dialect
    space: bytes
    place: Place
    model: str
    folded: Folded
    shown: Folded
    room: int
    began: float
    project: str | None = None


class Rest:
    """Until when nothing is searched for. Of one worker."""

    def __init__(self) -> None:
        self.until = 0.0


@dataclass(frozen=True, slots=True)
class Recollecting:
    """Looks for memories, and records what is put in. `search` and `memories` are opened when they are first wanted,
    which may raise AccordionError; `count` counts a text for a model."""

    search: Callable[[], Search]
    memories: Callable[[], Memories]
    overlays: Overlays
    tasks: Tasks
    waiting: Waiting
    clock: Clock
    count: Callable[[str, str], int]
    bounds: Bounds = Bounds()
    rest: Rest = field(default_factory=Rest)

    async def recollected(self, moment: Moment) -> Recalled | None:
        """What stands behind the newest message from now on; None where nothing belongs there, where something stands
        there already, or where the very same list was sent before without. Never fails."""
        try:
            return await self._recollected(moment)
        except Exception:
            _log.exception("no memory could be recalled into a conversation")
            return None

    async def _recollected(self, moment: Moment) -> Recalled | None:
        place, most = moment.place, min(self.bounds.tokens, moment.room // _SHARE)
        client = place.conversation
        # What was sent once goes on as it was: a branch may have gone on from there.
        if most <= 0 or not client.chain or place.base_index == len(client.chain) - 1:
            return None
        asked = questions(client)
        if not asked or self.clock.monotonic() < self.rest.until:
            return None
        anchor = client.chain[-1]
        if await self.overlays.find(moment.space, place.label, (anchor,), 1, fresh=False):
            return None
        finds = await self._in_time(moment, asked)
        if not finds:
            return None
        text, ids, tokens = quoted(finds, lambda each: self.count(each, moment.model), most)
        if not ids:
            return None
        recall = Recall(anchor, moment.dialect.text(text), self.clock.now())
        if not await self.overlays.add(moment.space, place.label, recall, place.session.id, moment.began):
            return None
        self.tasks.spawn(self._note(moment.space, place.session.id, ids), "record recalled memories")
        return Recalled(tokens, len(ids), tuple(f"{name} recalled" for name in ids))

    async def _in_time(self, moment: Moment, asked: Sequence[str]) -> list[Find]:
        """The memories that belong to the turn and do not stand in the list; none where that takes too long."""
        try:
            found = await self.waiting.within(self.bounds.seconds, self._found(moment, asked))
        except TimeoutError:
            _log.warning(
                "the search for memories took longer than %s s; this turn goes on without them", self.bounds.seconds
            )
        except AccordionError as error:
            _log.warning("memories could not be searched; this turn goes on without them: %s", error.message)
        else:
            return found
        self.rest.until = self.clock.monotonic() + _PAUSE
        return []

    async def _found(self, moment: Moment, asked: Sequence[str]) -> list[Find]:
        project = self.bounds.project if moment.project is None else moment.project
        wanted = Filter(project=None if self.bounds.everywhere else project)
        search, results = self.search(), list[Result]()
        for text in asked:
            results += (await search.search(moment.space, Query(text, wanted, explain=True))).results
        out, standing = list[Find](), Standing(moment.shown.conversation)
        for each in belonging(results, self.bounds.relevance)[: max(_LOOKED_AT, self.bounds.memories)]:
            if self._of_the_window(each.memory, moment) or standing.holds(each.memory):
                continue
            if wanted.project is None or await self._within(moment.space, each.memory):
                out.append(each)
            if len(out) == self.bounds.memories:
                break
        return out

    def _of_the_window(self, memory: Memory, moment: Moment) -> bool:
        """Whether a memory was made of messages that stand in the list."""
        made = moment.folded.compaction
        return memory.conversation == moment.place.session.id and memory.last >= (made.covered if made else 0)

    async def _within(self, space: bytes, memory: Memory) -> bool:
        """Whether a memory tells of its own project alone: a summary that belongs to none may be of all of them, and
        where a source of it is gone, nobody knows."""
        if memory.type != "summary" or memory.project:
            return True
        sources = await self.memories().get(space, [name for name, _ in memory.sources])
        return all(each is not None and not each.project for each in sources)

    async def _note(self, space: bytes, session: str, ids: Sequence[str]) -> None:
        try:
            await note(self.memories(), space, session, ids)
        except AccordionError as error:
            _log.warning("recalled memories could not be recorded: %s", error.message)
