"""A user asks for a session memory, in any client, and it stands in the conversation from then on: behind the message
that asks for it, recorded and replayed as what is recalled is.

What came of it is said there too, to the model and through it to the user: an id of which there is nothing, a memory
that there is no room for, memories that cannot be had just now.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from operator import attrgetter

from accordion.compaction.overlays import Overlays
from accordion.core.cache import ENTRY, Cache
from accordion.core.conversation import Conversation
from accordion.core.errors import AccordionError
from accordion.core.memories import Memories
from accordion.core.ports import Clock
from accordion.core.records import Recalled
from accordion.core.values import dataclass, replace
from accordion.core.weaves import Recall
from accordion.dialects.base import Dialect
from accordion.identity.marks import Marks
from accordion.identity.sessions import Place
from accordion.memory.restoring import LONGEST, Restored, restored, unreachable, wishes

_log = logging.getLogger("accordion")

EVERYWHERE = "*"
"""Stands for all projects."""
_MARKS = (b"CMEM-", b"cmem-", b"Cmem-")
"""How the id of a session memory begins, as it is shown and as people type it."""
_WIRE = attrgetter("wire")
_SHARE = 2
"""What is imported takes this part of the room that is left, at most: there is work to be done with it."""
_CHARACTERS = 3
"""Characters of a token, of dense text."""


class Mentions:
    """Tells of lists whether they name a session memory, so that one may stand in them or be asked for. Only what is
    new of a list is looked through; places are remembered within `capacity` bytes. `unasked`: memories are put into
    lists that name none as well, so that one may stand in any; those of `project` where a request names none."""

    def __init__(self, capacity: int = 6 * 2**20, *, unasked: bool = False, project: str = "") -> None:
        self._unasked, self._project = unasked, project
        self._known = Cache[bytes, bool](capacity)

    def divided(self, marks: Marks, project: str | None) -> Marks:
        """The marks by which a request is placed that names this project (None: none). What is put in unasked is found
        again by content: conversations of two projects that begin alike must not meet."""
        scope = self._project if project is None or self._project == EVERYWHERE else project
        return replace(marks, scope=scope) if self._unasked and scope else marks

    def named(self, place: Place, plain: bytes) -> bool:
        """Whether the request at a place, whose body is `plain`, names one, or one may stand in it anyhow."""
        if self._unasked:
            return True
        conversation, at = place.conversation, place.base_index
        before = self._known.get(place.label + conversation.chain[at]) if at >= 0 else None
        if before is None:
            found = _names_one(plain)
        else:
            found = before or _names_one(b"\n".join(map(_WIRE, conversation.messages[at + 1 :])))
        if conversation.chain:
            self._known.put(place.label + conversation.chain[-1], found, ENTRY)
        return found


def _names_one(text: bytes) -> bool:
    # Not by `in`, which first takes bytes for a number: that takes ten times as long.
    return any(text.find(mark) >= 0 for mark in _MARKS)


@dataclass(frozen=True, slots=True)
class Asking:
    """A request whose newest words may ask for memories. `space` is the tenant's key, `scope` what divides
    conversations within the tenant, `room` how many tokens are left below the hard limit; `began` is when the request
    came, in seconds by the monotonic clock."""

    dialect: Dialect
    space: bytes
    scope: bytes
    session: str
    model: str
    client: Conversation
    room: int
    began: float


@dataclass(frozen=True, slots=True)
class Importing:
    """Looks up what is asked for, and records what came of it. `memories` are opened when they are first wanted, which
    may raise AccordionError; `count` counts a text for a model."""

    memories: Callable[[], Memories]
    overlays: Overlays
    clock: Clock
    count: Callable[[str, str], int]

    async def imported(self, asking: Asking) -> Recalled | None:
        """What stands behind the newest message from now on; None where nothing is asked for, or nothing has changed
        since it was asked for in a request that is made again. Never fails."""
        try:
            return await self._imported(asking)
        except Exception:
            _log.exception("no session memory could be imported into a conversation")
            return None

    async def _imported(self, asking: Asking) -> Recalled | None:
        client = asking.client
        names = wishes(client) if client.starts_turn else ()
        if not names:
            return None
        anchor, turn = client.chain[-1], _turn(client)
        standing = await self.overlays.find(asking.space, asking.scope, client.chain, turn + 1, fresh=False)
        # What the user said before in the same turn, and was not answered, was asked for then.
        said = {name for each in standing if isinstance(each, Recall) and each.anchor != anchor for name in each.names}
        names = tuple(name for name in names if name not in said)
        here = [each for each in standing if isinstance(each, Recall) and each.anchor == anchor]
        if not names:
            return None
        came = await self._looked_up(asking, names)
        if came is None and here:
            return None
        text = came.text if came is not None else "\n\n".join(map(unreachable, names))
        recall = Recall(anchor, asking.dialect.text(text), self.clock.now(), names=names)
        if any(each.wire == recall.wire for each in here):
            return None
        if not await self.overlays.add(asking.space, asking.scope, recall, asking.session, asking.began):
            return None
        found = came.found if came is not None else ()
        return Recalled(self.count(text, asking.model), len(found), _told(names, came))

    async def _looked_up(self, asking: Asking, names: tuple[str, ...]) -> Restored | None:
        """What there is of these ids; None where the memories cannot be had."""
        room = min(LONGEST, max(0, asking.room) // _SHARE * _CHARACTERS)
        try:
            return await restored(self.memories(), asking.space, names, room)
        except AccordionError as error:
            _log.warning("a requested session memory could not be looked up: %s", error.message)
            return None


def _turn(client: Conversation) -> int:
    """Where what the user said last begins: behind the last message of the model's."""
    at = len(client.messages)
    while at > 0 and client.messages[at - 1].role != "assistant":
        at -= 1
    return at


def _told(names: tuple[str, ...], came: Restored | None) -> tuple[str, ...]:
    """What became of each, as ledger and header tell it."""
    if came is None:
        return tuple(f"{name} unavailable" for name in names)
    words = {**dict.fromkeys(came.found, "imported"), **dict.fromkeys(came.missing, "unknown")}
    return tuple(f"{name} {words.get(name, 'too long')}" for name in names)
