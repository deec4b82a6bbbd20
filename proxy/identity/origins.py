"""Where conversations come from that say nothing of it: which open call began them, if one did."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field

from proxy.core.conversation import Conversation
from proxy.core.delegation import TOP, Delegation, Evidence
from proxy.core.ports import Clock, Tasks
from proxy.core.values import dataclass, replace
from proxy.identity.nodes import Nodes, Refused
from proxy.identity.openings import LEAST, Call, Openings, opening

# How many sessions' nodes are held in memory, and how many may still wait for another worker's word.
_SESSIONS, _WAITING = 50_000, 1_000
# Seconds between two looks at the open calls of other workers, each for all conversations that were begun since: most
# are nobody's, and a look for each of them would cost as much as all the rest of a small request.
_LOOK = 0.1


@dataclass(frozen=True, slots=True)
class _Met:
    """A conversation that another worker may have a word on. `texts` are how it opened; of one that did not begin here
    nothing is held: then it is the edge that may come."""

    agent: str
    texts: list[str]


@dataclass(frozen=False, slots=True)
class Origins:
    """The conversations that this worker met, each with its node where it is one."""

    clock: Clock
    tasks: Tasks
    nodes: Nodes
    openings: Openings
    _sessions: OrderedDict[str, str] = field(default_factory=OrderedDict)
    """The node of each session; empty where it is none."""
    _waiting: OrderedDict[str, _Met] = field(default_factory=OrderedDict)
    """By session, conversations whose call was not found: another worker may not have written it yet."""
    _looks: dict[str, float] = field(default_factory=dict)
    """When the store was last asked for the open calls of a tenant."""
    _behind: dict[str, list[str]] = field(default_factory=dict)
    """By tenant, the sessions that wait for their first look."""

    async def of(
        self, space: bytes, tenant: str, session_id: str, agent: str, conversation: Conversation, *, new: bool
    ) -> Delegation | None:
        """The node of a session, where it is one. The store is asked behind the request's back: what it knows, the
        next request will."""
        known = self._sessions.get(session_id)
        if known is None:
            if found := self._met(tenant, session_id, agent, conversation, new=new):
                await self._infer(tenant, session_id, agent, found)
            known = self._sessions[session_id]
        elif self._waiting and (met := self._waiting.pop(session_id, None)) is not None:
            # What another worker wrote just before is there by now.
            own = {session_id: met}
            late = self._late(space, tenant, own) if met.texts else self._recalled(tenant, session_id)
            self.tasks.spawn(late, "delegation")
        if tenant in self._behind:
            self._look(space, tenant)
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
        self._looks.clear()
        self._behind.clear()

    def _met(
        self, tenant: str, session_id: str, agent: str, conversation: Conversation, *, new: bool
    ) -> Sequence[Call]:
        """Takes a session in that this worker has not seen before; the calls that may have begun it."""
        self._know(session_id, TOP)
        if not new:
            self._wait(session_id, _Met(agent, []))
            self.tasks.spawn(self._recalled(tenant, session_id), "delegation")
            return ()
        texts = opening(conversation)
        if found := self.openings.candidates(tenant, texts, session_id, self.clock.now()):
            return found
        if max(map(len, texts), default=0) >= LEAST:
            self._wait(session_id, _Met(agent, texts))
            self._behind.setdefault(tenant, []).append(session_id)
        return ()

    def _look(self, space: bytes, tenant: str) -> None:
        """Has the open calls of other workers looked at, for all conversations that wait for their first look. Unless
        that was done just now: then a later request of the tenant has it done."""
        now = self.clock.monotonic()
        if 0.0 <= now - self._looks.get(tenant, -_LOOK) < _LOOK:
            return
        behind = self._behind.pop(tenant)
        new = {session: self._waiting[session] for session in behind if session in self._waiting}
        if not new:  # Their own second requests had it done.
            return
        if len(self._looks) >= _WAITING:
            self._looks.clear()
        self._looks[tenant] = now
        self.tasks.spawn(self._late(space, tenant, new), "delegation")

    async def _recalled(self, tenant: str, session_id: str) -> None:
        """Asks the store which node a session is, where it was found to be one elsewhere or earlier."""
        node = f"s:{session_id}"
        await self.nodes.load(tenant, (node,))
        if self.nodes.get(tenant, node) is not None:
            self._waiting.pop(session_id, None)
            self._know(session_id, node)

    async def _late(self, space: bytes, tenant: str, met: Mapping[str, _Met]) -> None:
        """Looks for the calls that began conversations among those of other workers."""
        opened = {session: each.texts for session, each in met.items()}
        found = await self.openings.elsewhere(space, tenant, opened, self.clock.now())
        for session, calls in found.items():
            self._waiting.pop(session, None)
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

    def _wait(self, session_id: str, met: _Met) -> None:
        self._waiting[session_id] = met
        if len(self._waiting) > _WAITING:
            self._waiting.popitem(last=False)

    def _know(self, session_id: str, node: str) -> None:
        self._sessions[session_id] = node
        if len(self._sessions) > _SESSIONS:
            self._sessions.popitem(last=False)


def _child(node: Delegation, call: Call) -> Delegation:
    """The node as what a call began."""
    parent = node.parent or call.node or f"s:{call.session}"
    evidence: Evidence = node.evidence if node.parent else "tool" if call.delegating else "argument"
    return replace(node, parent=parent, evidence=evidence, call_id=call.call_id)
