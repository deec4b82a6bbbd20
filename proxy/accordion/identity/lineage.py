"""Where a request sits in the tree of delegations, what it may not see, and what its reply teaches: the room's face.

The strongest evidence counts: what a client declares in our own words, a known client's marks, a hand-off in the list.
A conversation without any of these may still have been begun by a call that is open elsewhere. A request without any
evidence sits at the top: it sees all, and nearly all requests are such, so for these nothing is done that the last
request did not already pay for.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import field

from accordion.core.conversation import Conversation, ToolResult
from accordion.core.delegation import TOP, Delegation, Evidence, Seat
from accordion.core.errors import BadRequest
from accordion.core.ports import Clock, Outbox, Store, Tasks
from accordion.core.records import CallSeen
from accordion.core.values import dataclass, replace
from accordion.identity.declared import Declared
from accordion.identity.handoffs import NOBODY, Patterns
from accordion.identity.marks import Marks
from accordion.identity.nodes import Nodes, Refused, tenant_of
from accordion.identity.openings import LEAST, LEAST_DELEGATING, Call, Openings
from accordion.identity.origins import Origins
from accordion.identity.passing import Passing
from accordion.identity.scopes import Scopes, namespaces
from accordion.identity.shown import NOTHING, Hidden, Shown, Viewer
from accordion.identity.tenants import Caller

TOOLS = ("Task", "Agent", "task", "delegate_to_*")
"""The tools that delegate, unless others are configured."""
HANDOFF_TOOLS = ("transfer_to_*", "transfer_back_to_*", "handoff_to_*")
"""The tools that hand over, unless others are configured."""

_SESSION = re.compile(r"s-[0-9a-f]{24}")


@dataclass(frozen=True, slots=True)
class Sizes:
    """The bytes that may be held in memory of delegations, of calls, of places, of sessions, of decisions what is
    shown, of calls that are open, and of conversations that wait for their call."""

    nodes: int = 4 * 2**20
    scopes: int = 12 * 2**20
    places: int = 8 * 2**20
    origins: int = 4 * 2**20
    shown: int = 4 * 2**20
    openings: int = 4 * 2**20
    waiting: int = 3 * 2**20


@dataclass(frozen=False, slots=True)
class Lineage:
    """The delegations of one worker's requests. `delegating` are the tools whose arguments open conversations."""

    store: Store
    outbox: Outbox
    clock: Clock
    nodes: Nodes
    scopes: Scopes
    shown: Shown
    passing: Passing
    openings: Openings
    origins: Origins
    delegating: Patterns
    retention: float
    _tenants: dict[bytes, str] = field(default_factory=dict)

    @classmethod
    def build(
        cls, store: Store, outbox: Outbox, clock: Clock, tasks: Tasks, *,
        tools: Sequence[str] = TOOLS, handoff_tools: Sequence[str] = HANDOFF_TOOLS,
        max_depth: int = 8, max_agents: int = 256, retention: float = 30 * 86_400.0,
        told: Callable[[Evidence], None] | None = None,
        wait: Callable[[float], Awaitable[object]] | None = None,
        sizes: Sizes | None = None,
    ) -> Lineage:  # fmt: skip
        """The room, furnished. `tools` and `handoff_tools` are patterns in which `*` stands for any text; `max_depth`
        and `max_agents` bound a tree, `retention` (seconds) is how long the store keeps what is known; `told` hears of
        each new edge by what evidence it is known, `wait` waits for so many seconds, `sizes` bounds what is held
        in memory."""
        sizes = sizes or Sizes()
        nodes = Nodes(store, outbox, clock, max_depth, max_agents, retention, sizes.nodes, told)
        scopes = Scopes(store, outbox, retention, sizes.scopes)
        openings = Openings(store, outbox, size=sizes.openings)
        return cls(
            store, outbox, clock, nodes, scopes,
            Shown(store, outbox, nodes, scopes, sizes.shown, retention),
            Passing(store, outbox, Patterns(handoff_tools), max_agents, sizes.places, retention),
            openings, Origins(clock, tasks, nodes, openings, wait, sizes.origins, sizes.waiting), Patterns(tools),
            retention,
        )  # fmt: skip

    def top(self, marks: Marks, conversation: Conversation) -> Seat | None:
        """The seat of a request at the top, where nearly all are; None where `seat` is to look."""
        if marks.declared is not None or marks.parent:
            return None
        home, since = _home(marks), 0
        if conversation.previous is None:
            unread = self.passing.unpassed(_label(home), conversation)
            if unread is None:
                return None
            since = unread
        return Seat(agent=marks.name, delegated=marks.delegated, mark=marks.session, home=home, since=since)

    async def seat(self, caller: Caller, marks: Marks, conversation: Conversation) -> Seat:
        """Where a request sits, as far as its marks and its list say. Raises BadRequest where its client declares what
        cannot be; then nothing is kept."""
        if marks.declared is not None:
            return await self._declared(caller, marks, marks.declared, conversation)
        home, handed, since = _home(marks), NOBODY, 0
        if conversation.previous is None:
            handed, since = await self.passing.at(self._tenant(caller), _label(home), conversation)
        seat = Seat(agent=marks.name, delegated=marks.delegated, mark=marks.session, home=home, since=since)
        if marks.parent:
            seat = await self._joined(caller, seat, home, f"m:{marks.parent}", marks.name, "mark")
        for hop in handed.path:
            seat = await self._joined(
                caller, seat, hop.node, seat.node or handed.home, hop.name, "handoff", hop.call_id
            )
            if seat.node != hop.node:
                break
        return seat

    async def hidden(
        self, caller: Caller, seat: Seat, conversation: Conversation, shown: int, *, anew: bool = False
    ) -> Hidden:
        """What of the client's list the request does not see. `shown` is the index of the deepest place on record of
        its label (-1 where there is none); `anew` decides all of it by what is known today, as before a fold."""
        if not seat.path or conversation.previous is not None or not conversation.chain:
            return NOTHING
        return await self.shown.decide(self._viewer(caller, seat, conversation), conversation, shown, anew=anew)

    def showed(
        self, caller: Caller, seat: Seat, conversation: Conversation, places: Collection[tuple[int, int]]
    ) -> None:
        """Results that `hidden` named had to stay in the list, since it would not be legal without them."""
        self.shown.showed(self._viewer(caller, seat, conversation), conversation.chain[-1], places)

    async def placed(
        self, caller: Caller, seat: Seat, session_id: str, conversation: Conversation, *, new: bool
    ) -> Seat:
        """The seat, once the request's session is known. `conversation` is the client's own list, `new` says that the
        session has just begun: then the call that began it is looked for."""
        tenant = self._tenant(caller)
        if self.openings.any(tenant):
            for message in conversation.messages[seat.since :]:
                for part in message.parts:
                    if type(part) is ToolResult:
                        self.openings.close(tenant, part.call_id, session_id, conversation.chain)
        if seat.node:
            return await self._tied(caller, seat, session_id, conversation, new=new)
        held = await self.origins.of(caller.space, tenant, session_id, seat.agent, conversation, new=new)
        if held is None:
            return seat
        return self._at(tenant, seat, held, "") if held.parent else replace(seat, candidates=held.candidates)

    def answered(
        self, caller: Caller, seat: Seat, session_id: str, conversation: Conversation, calls: Sequence[CallSeen]
    ) -> None:
        """Notes the calls of a reply, once it has ended: whose they are, and what they may begin. `conversation` is the
        client's own list."""
        if not calls:
            return
        tenant, space = self._tenant(caller), caller.space
        if seat.node:
            self.scopes.note(space, namespaces(space, seat, conversation), calls, seat.node)
        else:
            self.scopes.top(space, calls)
            if seat.home or self.nodes.known:
                self._appeared(tenant, seat, session_id)
        if seat.node[:2] != "x:" and conversation.previous is None:
            home = seat.node or seat.home or f"s:{session_id}"
            self.passing.answered(tenant, _label(seat.home), conversation, calls, home)
        chain = conversation.chain
        for call in calls:
            delegating = self.delegating.target(call.name) is not None
            if len(call.arguments) >= (LEAST_DELEGATING if delegating else LEAST):
                made = Call(
                    call.call_id, seat.node, session_id, delegating, self.clock.now(), seat.home,
                    chain[-1] if chain else b"", len(chain) - 1,
                )  # fmt: skip
                self.openings.add(space, tenant, call, made)

    async def tree(self, tenant: str, node: str, *, anew: bool = False) -> tuple[Delegation, ...]:
        """The whole tree that a node stands in, parents first. `tenant` as `tenant_of` names it. A session is the node
        `s:` and its id, and is found under the name that its client gave too. `anew` asks the store for all of it:
        other workers may know more by now. Raises StoreUnavailable."""
        nodes = self.nodes.anew() if anew else self.nodes
        other = await self.nodes.seated(tenant, node[2:]) if node[:2] == "s:" else None
        names = [node] if other is None else [other, node]
        await nodes.load(tenant, names)
        trees = [await nodes.tree(tenant, nodes.path(tenant, name)[0]) for name in names]
        return tuple({one.id: one for tree in trees if tree is trees[0] or len(tree) > 1 for one in tree}.values())

    async def begun(self, caller: Caller, seat: Seat, session_id: str) -> dict[str, Delegation]:
        """The delegations that calls of a request's conversation began, by the call's id. Asks the store."""
        tenant = self._tenant(caller)
        names = {seat.node or f"s:{session_id}", seat.home} if not seat.scope else {seat.node}
        children = [child for name in sorted(names - {TOP}) for child in await self.nodes.children(tenant, name)]
        return {child.call_id: child for child in children if child.call_id}

    def forget(self) -> None:
        """Asks the store anew for everything: something was erased there."""
        for part in (self.nodes, self.scopes, self.shown, self.passing, self.openings, self.origins):
            part.forget()

    # -- the steps ----------------------------------------------------------------

    def _viewer(self, caller: Caller, seat: Seat, conversation: Conversation) -> Viewer:
        names = namespaces(caller.space, seat, conversation)
        return Viewer(caller.space, self._tenant(caller), seat.node, seat.path, names)

    async def _declared(self, caller: Caller, marks: Marks, said: Declared, conversation: Conversation) -> Seat:
        """The seat that a client declares."""
        tenant, node = self._tenant(caller), f"x:{said.delegation}"
        if said.parent:
            parent = f"s:{said.parent}" if _SESSION.fullmatch(said.parent) else f"x:{said.parent}"
        else:
            await self.nodes.load(tenant, (node,))
            held = self.nodes.get(tenant, node)
            parent = held.parent if held is not None and held.parent else f"m:{marks.session}" if marks.session else TOP
        try:
            held = await self.nodes.join(tenant, Delegation(node, parent, marks.name, "header"))
        except Refused as why:
            raise self._refused(str(why), said) from None
        # Who declares its delegations shares no states of hand-offs; what it sent before is known all the same.
        since = self.passing.seen(node.encode(), conversation.chain) if conversation.previous is None else 0
        return self._at(tenant, Seat(mark=marks.session, since=since), held, node)

    def _refused(self, why: str, said: Declared) -> BadRequest:
        if why == "circle":
            text = f"{said.parent_param}: {said.parent} already works for {said.delegation}, directly or not"
            return BadRequest(text, param=said.parent_param)
        if why == "depth":
            where = said.parent_param if said.parent else said.param
            return BadRequest(f"{where}: more than {self.nodes.max_depth} delegations below each other", param=where)
        return BadRequest(f"{said.param}: more than {self.nodes.max_agents} agents in one tree", param=said.param)

    async def _joined(
        self, caller: Caller, seat: Seat, node: str, parent: str, agent: str, evidence: Evidence, call_id: str = ""
    ) -> Seat:
        """The seat at a node below another one; the seat as it was where there cannot be such an edge."""
        tenant = self._tenant(caller)
        try:
            held = await self.nodes.join(tenant, Delegation(node, parent, agent, evidence, call_id=call_id))
        except Refused:
            return seat
        return self._at(tenant, seat, held, node if evidence == "handoff" else "")

    def _at(self, tenant: str, seat: Seat, held: Delegation, scope: str) -> Seat:
        return Seat(
            held.id, self.nodes.path(tenant, held.id), held.agent, held.evidence, scope, True, held.parent,
            held.call_id, held.candidates, seat.mark, seat.home, seat.since,
        )  # fmt: skip

    async def _tied(
        self, caller: Caller, seat: Seat, session_id: str, conversation: Conversation, *, new: bool
    ) -> Seat:
        """The seat with its session noted; and where that is new, with the call that began it, if that fits the parent
        that is known."""
        tenant = self._tenant(caller)
        held = self.nodes.get(tenant, seat.node)
        if held is None:
            return seat
        wanted = replace(held, session=session_id)
        if new and not held.call_id:
            wanted = self.origins.traced(tenant, wanted, conversation)
        if wanted != held:
            with suppress(Refused):
                held = await self.nodes.join(tenant, wanted)
            self.nodes.sit(tenant, session_id, held.id)
        return self._at(tenant, seat, held, seat.scope)

    def _appeared(self, tenant: str, seat: Seat, session_id: str) -> None:
        """Fills the place of a main agent in the tree, by the name that marks of others have for it."""
        plain = f"s:{session_id}"
        for node in (seat.home, plain if self.nodes.named(tenant, plain) else ""):
            if node and ((held := self.nodes.get(tenant, node)) is None or held.placeholder):
                self.nodes.keep(tenant, Delegation(node, session=session_id, agent=seat.agent, at=self.clock.now()))
                self.nodes.sit(tenant, session_id, node)

    def _tenant(self, caller: Caller) -> str:
        tenant = self._tenants.get(caller.space)
        if tenant is None:
            if len(self._tenants) >= 10_000:
                self._tenants.clear()
            tenant = self._tenants[caller.space] = tenant_of(caller.space)
        return tenant


def _home(marks: Marks) -> str:
    """By which name the marks of others speak of who sends this."""
    return f"m:{marks.label}" if marks.session else ""


def _label(home: str) -> bytes:
    """What divides lists that are equal, from the name of their own agent."""
    return home[2:].encode()
