"""Where conversations come from that say nothing of it: which open call began them, if one did."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field

from accordion.core.cache import Cache, weigh
from accordion.core.conversation import Conversation
from accordion.core.delegation import TOP, Delegation, Evidence
from accordion.core.ports import Clock, Tasks
from accordion.core.values import dataclass, replace
from accordion.identity.nodes import Nodes, Refused
from accordion.identity.openings import LEAST, Call, Openings, opening

# How many conversations may still wait for another worker's word.
# Seconds that a conversation waits for its look at the open calls of other workers: by then they have written what they
# saw just before, and others have begun that are looked for together. A look for each would take as long as the rest of
# a small request, and most are nobody's.
_GATHER = 0.15
# Seconds after which what others knew is known here: another worker's look has come, and what was asked for in vain may
# be asked for again (nodes.py).
_FINAL = 1.5
_MET = 400
"""Bytes of memory that a conversation takes beside its session and texts."""


@dataclass(frozen=True, slots=True)
class _Met:
    """A conversation that another worker may have a word on. `texts` are how it opened; of one that did not begin here
    nothing is held: then it is the edge that may come. `at` is when it was met, `looked` when the store was last asked,
    in seconds by the monotonic clock."""

    agent: str
    texts: list[str]
    at: float
    looked: float


@dataclass(frozen=False, slots=True)
class Origins:
    """The conversations that this worker met, each with its node where it is one. `wait` waits for so many seconds;
    without it nothing is gathered."""

    clock: Clock
    tasks: Tasks
    nodes: Nodes
    openings: Openings
    wait: Callable[[float], Awaitable[object]] | None = None
    capacity: int = 4 * 2**20
    waiting: int = 3 * 2**20
    _sessions: Cache[str, str] = field(init=False)
    """The node of each session; empty where it is none. Within `capacity` bytes."""
    _waiting: Cache[str, _Met] = field(init=False)
    """By session, conversations whose call was not found: another worker may not have written it yet. Within `waiting`
    bytes, since how they opened is part of it."""
    _behind: dict[str, list[str]] = field(default_factory=dict)
    """By tenant, the sessions that wait for their first look, which is under way."""

    def __post_init__(self) -> None:
        self._sessions = Cache(self.capacity, weigh)
        self._waiting = Cache(self.waiting, lambda session, met: _MET + weigh(session, *met.texts))

    async def of(
        self, space: bytes, tenant: str, session_id: str, agent: str, conversation: Conversation, *, new: bool
    ) -> Delegation | None:
        """The node of a session, where it is one. For calls that may have begun it the store is asked behind the
        request's back: what it knows, the next request will."""
        known = self._sessions.get(session_id)
        if known is None:
            if found := self._met(space, tenant, session_id, agent, conversation, new=new):
                await self._infer(tenant, session_id, agent, found)
            elif not new:
                await self._recalled(tenant, session_id)
            # Something may have been erased meanwhile.
            known = self._sessions.get(session_id) or TOP
        elif len(self._waiting) and (met := self._waiting.get(session_id)) is not None:
            self._look_again(space, tenant, session_id, met)
        if not known:
            return None
        await self.nodes.load(tenant, (known,))
        return self.nodes.get(tenant, known)

    def traced(self, tenant: str, node: Delegation, conversation: Conversation) -> Delegation:
        """A node that is known otherwise, with the call that began it, if there is one and it fits the parent."""
        found = self.openings.candidates(tenant, opening(conversation), node.session, self.clock.now())
        fits = len(found) == 1 and node.parent in (TOP, found[0].node, found[0].home, f"s:{found[0].session}")
        return _child(node, found[0]) if fits else node

    def forget(self) -> None:
        """Asks the store anew for everything: something was erased there."""
        self._sessions.clear()
        self._waiting.clear()
        self._behind.clear()

    def _met(
        self, space: bytes, tenant: str, session_id: str, agent: str, conversation: Conversation, *, new: bool
    ) -> Sequence[Call]:
        """Takes a session in that this worker has not seen before; the calls that may have begun it."""
        self._know(session_id, TOP)
        if not new:
            self._wait(session_id, agent, [])
            return ()
        texts = opening(conversation)
        if found := self.openings.candidates(tenant, texts, session_id, self.clock.now()):
            return found
        if max(map(len, texts), default=0) >= LEAST:
            self._wait(session_id, agent, texts)
            if tenant not in self._behind:
                self._behind[tenant] = []
                self.tasks.spawn(self._looked(space, tenant), "delegation")
            self._behind[tenant].append(session_id)
        return ()

    def _look_again(self, space: bytes, tenant: str, session_id: str, met: _Met) -> None:
        now = self.clock.monotonic()
        if now - met.at >= _FINAL:
            self._waiting.discard(session_id)
        elif now - met.looked >= _GATHER:
            self._waiting[session_id] = replace(met, looked=now)
        else:
            return
        late = self._late(space, tenant, {session_id: met}) if met.texts else self._recalled(tenant, session_id)
        self.tasks.spawn(late, "delegation")

    async def _looked(self, space: bytes, tenant: str) -> None:
        """Looks at the open calls of other workers, for all conversations that began meanwhile."""
        if self.wait is not None:
            await self.wait(_GATHER)
        behind = self._behind.pop(tenant, ())
        # Some had it done by their own second requests.
        if new := {session: met for session in behind if (met := self._waiting.get(session)) is not None}:
            await self._late(space, tenant, new)

    async def _recalled(self, tenant: str, session_id: str) -> None:
        """Asks the store which node a session is, where it was found to be one elsewhere or earlier."""
        node = f"s:{session_id}"
        await self.nodes.load(tenant, (node,))
        if self.nodes.get(tenant, node) is not None:
            self._waiting.discard(session_id)
            self._know(session_id, node)

    async def _late(self, space: bytes, tenant: str, met: Mapping[str, _Met]) -> None:
        """Looks for the calls that began conversations among those of other workers."""
        opened = {session: each.texts for session, each in met.items()}
        found = await self.openings.elsewhere(space, tenant, opened, self.clock.now())
        for session, calls in found.items():
            self._waiting.discard(session)
            await self._infer(tenant, session, met[session].agent, calls)

    async def _infer(self, tenant: str, session_id: str, agent: str, found: Sequence[Call]) -> None:
        """Takes the one call that began a conversation for its parent; of several none, and says so."""
        wanted = Delegation(f"s:{session_id}", agent=agent, session=session_id, candidates=len(found))
        if len(found) == 1:
            wanted = _child(replace(wanted, candidates=0), found[0])
        with suppress(Refused):
            await self.nodes.join(tenant, wanted)
            self._know(session_id, wanted.id)
            if wanted.parent == f"s:{found[0].session}" and self.nodes.get(tenant, wanted.parent) is None:
                parent = Delegation(wanted.parent, session=found[0].session, at=self.clock.now())
                self.nodes.keep(tenant, parent)

    def _wait(self, session_id: str, agent: str, texts: list[str]) -> None:
        now = self.clock.monotonic()
        self._waiting[session_id] = _Met(agent, texts, now, now)

    def _know(self, session_id: str, node: str) -> None:
        self._sessions[session_id] = node


def _child(node: Delegation, call: Call) -> Delegation:
    """The node as what a call began."""
    parent = node.parent or call.node or f"s:{call.session}"
    evidence: Evidence = node.evidence if node.parent else "tool" if call.delegating else "argument"
    return replace(node, parent=parent, evidence=evidence, call_id=call.call_id)
