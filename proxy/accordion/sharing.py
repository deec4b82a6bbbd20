"""What agents of one branch may read of each other, and how what one of them does not see is kept for those who may.

An id is no key: it leads somewhere only where it really stands in what an agent is shown, and where what it names left
the window of its own delegation, of one that it works for or of one that works for it. To all others it is unknown.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from fnmatch import fnmatchcase
from functools import partial

from accordion.archive.artifacts import Artifact, Row, result_text
from accordion.archive.references import artifact_id, describe, shortened, size_of
from accordion.archive.writing import Archive, Leaving
from accordion.compaction.crafting import HANDOFFS
from accordion.compaction.filtering import Taken
from accordion.core.boundaries import Place
from accordion.core.cache import ENTRY, Cache, weigh
from accordion.core.conversation import Conversation, Message, ToolCall, ToolResult
from accordion.core.delegation import Delegation, Seat
from accordion.core.errors import StoreUnavailable
from accordion.core.ports import Clock, Tasks
from accordion.core.values import dataclass, replace
from accordion.identity.kinship import Kinship, Viewer
from accordion.identity.marks import Marks
from accordion.identity.nodes import tenant_of
from accordion.identity.points import label_of
from accordion.identity.scopes import Standing
from accordion.identity.tenants import Caller

_log = logging.getLogger("accordion")

_ID = re.compile(rb"art_[0-9a-f]{12}(?![0-9a-f])")
_LOOKED = 16
"""Ids of a list that are looked up, the first ones: what was offered for one of them stays offered."""
_RECORDS = 32
"""Records of an artifact that are looked at."""
_AGAIN = 2.0
"""Seconds until an id that led nowhere is looked up again."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What one request is shown: `texts` are the bytes of its list, and of what a fold put in its place."""

    sharing: Sharing
    viewer: Viewer
    texts: Sequence[bytes] = field(repr=False)

    def shows(self, name: str) -> bool:
        """Whether an id stands there."""
        wanted = name.encode()
        return any(wanted in text for text in self.texts)

    async def sees(self, artifact: Artifact, calls: Sequence[Standing]) -> bool:
        """Whether a record is of the viewer's branch, and nothing in it, by its calls, is of another."""
        kinship = self.sharing.kinship
        if artifact.kind == "result" and not calls:
            # Nobody can tell any more whose it is.
            return artifact.session == self.viewer.session
        related = await kinship.related(self.viewer, artifact.session)
        return related and await kinship.unhidden(self.viewer, calls)


@dataclass(frozen=False, slots=True)
class Sharing:
    """Tells what may be read, and keeps what is hidden. What it knows takes `capacity` bytes at most; `skipped`
    are patterns of names of tools whose results make no artifacts."""

    archive: Archive
    kinship: Kinship
    tasks: Tasks
    clock: Clock
    skipped: Sequence[str] = HANDOFFS
    capacity: int = 8 * 2**20
    _kept: Cache[tuple[bytes, int, str], bool] = field(init=False)
    _led: Cache[tuple[str, str, bytes], tuple[bool, float]] = field(init=False)

    def __post_init__(self) -> None:
        self._kept = Cache(self.capacity // 2, lambda key, _: weigh(key[0], key[2]))
        self._led = Cache(self.capacity // 2, lambda key, _: ENTRY + weigh(*key))

    async def readable(self, viewer: Viewer, plain: bytes) -> bool:
        """Whether a list shows an id of something that may be read there. Asks the store for what it does not know;
        False while that is away."""
        now, place = self.clock.monotonic(), (tenant_of(viewer.caller.space), viewer.seat.node or viewer.session)
        for name in list(dict.fromkeys(_ID.findall(plain)))[:_LOOKED]:
            known = self._led.get((*place, name))
            if known is None or not (known[0] or now - known[1] < _AGAIN):
                known = await self._leads(viewer, name.decode()), now
                self._led[(*place, name)] = known
            if known[0]:
                return True
        return False

    def keep(
        self, dialect: str, caller: Caller, seat: Seat, client: Conversation, taken: Sequence[Taken],
        owners: Mapping[Place, str],
    ) -> None:  # fmt: skip
        """Keeps results that a viewer of the list `client` does not see, each once, for those who may read them.
        Nobody waits for it. `owners` says whose each is."""
        messages, kept = client.messages, self._kept
        mine: dict[str, dict[tuple[bytes, int, str], Taken]] = {}
        for each in taken:
            index, part = each.result
            name = messages[index].key, part, owners.get(each.result, "")
            if name not in kept:
                kept[name] = True
                mine.setdefault(name[2], {})[name] = each
        if mine:
            work = self._keep(dialect, caller, seat, messages, mine)
            self.tasks.spawn(work, "archive hidden results")

    def forget(self) -> None:
        """Something was erased: what is in the store is not known any more."""
        self._kept.clear()
        self._led.clear()

    # -- the steps ----------------------------------------------------------------

    async def _leads(self, viewer: Viewer, name: str) -> bool:
        with suppress(StoreUnavailable):
            for session in await self._kept_by(viewer.caller.space, name):
                if await self.kinship.related(viewer, session):
                    return True
        return False

    async def _keep(
        self, dialect: str, caller: Caller, seat: Seat, messages: Sequence[Message],
        mine: Mapping[str, Mapping[tuple[bytes, int, str], Taken]],
    ) -> None:  # fmt: skip
        tenant, nodes = tenant_of(caller.space), self.kinship.nodes
        for owner, taken in mine.items():
            try:
                await nodes.load(tenant, (owner,))
                if (node := nodes.get(tenant, owner)) is not None and node.session:
                    await self._kept_for(node, dialect, caller, seat, messages, tuple(taken.values()))
                    continue
            except StoreUnavailable:
                pass
            except Exception:
                _log.exception("a result that is hidden from an agent could not be archived")
                continue
            # The client still has it, and sends it again with the next request.
            for name in taken:
                self._kept.discard(name)

    async def _kept_for(
        self, owner: Delegation, dialect: str, caller: Caller, seat: Seat, messages: Sequence[Message],
        taken: Sequence[Taken],
    ) -> None:  # fmt: skip
        """Keeps results for the delegation that made them, unless a fold of its own did."""
        own = Marks(owner.id[2:]) if owner.id[:2] == "m:" else Marks(seat.mark, scope=owner.id)
        scope, at, space = label_of(caller, own), self.clock.now(), caller.space
        artifacts = []
        for each in taken:
            made = self._artifact(space, dialect, messages, each)
            if made is not None and owner.session not in await self._kept_by(space, made.id):
                artifacts.append(replace(made, scope=scope, session=owner.session, at=at))
        if artifacts:
            keys = {key for each in artifacts for key in each.keys}
            places = sorted({place[0] for each in taken for place in (each.result, each.call or each.result)})
            rows = [Row(messages[index].key, messages[index].wire) for index in places if messages[index].key in keys]
            digest = hashlib.sha256("".join([owner.session, *(each.id for each in artifacts)]).encode())
            leaving = Leaving(f"hidden-{digest.hexdigest()[:16]}", owner.session, at)
            puts = partial(self.archive.puts, space, rows, artifacts, leaving)
            await self.archive.keep(await self.tasks.offload(puts))

    async def _kept_by(self, space: bytes, name: str) -> set[str]:
        """The sessions that an artifact is kept for."""
        return {each.session for each in await self.archive.records(space, name, limit=_RECORDS)}

    def _artifact(self, space: bytes, dialect: str, messages: Sequence[Message], taken: Taken) -> Artifact | None:
        """A hidden result under the id that any fold would give it; None where there is nothing to be read in it."""
        index, part = taken.result
        message = messages[index]
        result, first = message.parts[part], index if taken.call is None else taken.call[0]
        call = messages[first].parts[taken.call[1]] if taken.call is not None else None
        text = result_text(result) if isinstance(result, ToolResult) else ""
        if not text.strip() or any(fnmatchcase(taken.name, pattern) for pattern in self.skipped):
            return None
        return Artifact(
            artifact_id(space, message.key, part), "result", dialect,
            (message.key,) if first == index else (messages[first].key, message.key), first, index, part, taken.name,
            shortened(call.arguments) if isinstance(call, ToolCall) else "", taken.call_id, len(text),
            len(text.encode()) // 4, describe(text) or size_of(text),
        )  # fmt: skip
