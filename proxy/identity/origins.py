"""Where conversations come from that say nothing of it: which open call began them, if one did."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import field, replace

from proxy.core.conversation import Conversation
from proxy.core.delegation import TOP, Delegation, Evidence
from proxy.core.ports import Clock, Tasks
from proxy.core.values import dataclass
from proxy.identity.nodes import Nodes, Refused
from proxy.identity.openings import LEAST, Call, Openings, opening

# How many sessions' nodes are held in memory, and how many may still wait for another worker's word.
_SESSIONS, _WAITING = 50_000, 1_000


@dataclass(frozen=False, slots=True)
class Origins:
    """The conversations that this worker met, each with its node where it is one."""

    clock: Clock
    tasks: Tasks
    nodes: Nodes
    openings: Openings
    _sessions: OrderedDict[str, str] = field(default_factory=OrderedDict)
    """The node of each session; empty where it is none."""
    _waiting: OrderedDict[str, list[str]] = field(default_factory=OrderedDict)
    """How conversations opened whose call was not found: another worker may not have written it yet. Of those that did
    not begin here nothing is held: then it is the edge that may come."""

    async def of(
        self, space: bytes, tenant: str, session_id: str, agent: str, conversation: Conversation, *, new: bool
    ) -> Delegation | None:
        """The node of a session, where it is one. The store is asked behind the request's back: what it knows, the
        next request will."""
        known = self._sessions.get(session_id)
        if known is None:
            known = await self._met(space, tenant, session_id, agent, conversation, new=new)
        elif self._waiting and (texts := self._waiting.pop(session_id, None)) is not None:
            # What another worker wrote just before is there by now.
            late = self._late(space, tenant, session_id, agent, texts) if texts else self._recalled(tenant, session_id)
            self.tasks.spawn(late, "delegation")
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

    async def _met(
        self, space: bytes, tenant: str, session_id: str, agent: str, conversation: Conversation, *, new: bool
    ) -> str:
        """The node of a session that this worker has not seen before."""
        self._know(session_id, TOP)
        if not new:
            self._wait(session_id, [])
            self.tasks.spawn(self._recalled(tenant, session_id), "delegation")
            return TOP
        texts = opening(conversation)
        found = self.openings.candidates(tenant, texts, session_id, self.clock.now())
        if found:
            await self._infer(tenant, session_id, agent, found)
        elif any(len(text) >= LEAST for text in texts):
            self._wait(session_id, texts)
            self.tasks.spawn(self._late(space, tenant, session_id, agent, texts), "delegation")
        return self._sessions[session_id]

    async def _recalled(self, tenant: str, session_id: str) -> None:
        """Asks the store which node a session is, where it was found to be one elsewhere or earlier."""
        node = f"s:{session_id}"
        await self.nodes.load(tenant, (node,))
        if self.nodes.get(tenant, node) is not None:
            self._waiting.pop(session_id, None)
            self._know(session_id, node)

    async def _late(self, space: bytes, tenant: str, session_id: str, agent: str, texts: list[str]) -> None:
        """Looks for the call that began a conversation among those of other workers."""
        if found := await self.openings.elsewhere(space, tenant, texts, session_id, self.clock.now()):
            self._waiting.pop(session_id, None)
            await self._infer(tenant, session_id, agent, found)

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

    def _wait(self, session_id: str, texts: list[str]) -> None:
        self._waiting[session_id] = texts
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
