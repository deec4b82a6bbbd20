"""The package's interface: finds a request's position in the delegation tree, the results that are hidden from it, and
records the calls of its response.

The strongest evidence counts: a declaration with Accordion's headers, a known client's metadata, a hand-off in the
list. A conversation without these may have begun with a call that is open elsewhere (origins.py). A request without any
evidence is at the top and sees all results. Nearly all requests are at the top, so these cost no further look-up.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from accordion.delegation.call_owners import CallOwners, call_namespaces
from accordion.delegation.handoffs import NO_HANDOFF, HandoffIndex, ToolPatterns
from accordion.delegation.origins import MIN_ARGUMENT, MIN_DELEGATING_ARGUMENT, OpenCall, OpenCalls, OriginFinder
from accordion.delegation.tree import DelegationTree, EdgeRefused
from accordion.delegation.visibility_decisions import NOTHING_HIDDEN, HiddenResults, ResultViewer, VisibilityDecisions
from accordion.model.boundaries import PartPosition
from accordion.model.conversation import Conversation, ToolResult
from accordion.model.delegation import TOP, AgentPosition, DelegationNode, Evidence, node_kind
from accordion.model.errors import BadRequest
from accordion.model.ports import Clock, KeyValueStore, Outbox, Tasks
from accordion.model.records import ObservedCall
from accordion.model.tenant import TenantScope
from accordion.sessions.client_metadata import ClientMetadata, DeclaredDelegation
from accordion.sessions.tenants import Caller

DELEGATING_TOOLS = ("Task", "Agent", "task", "delegate_to_*")
"""The default patterns of tools that delegate."""
HANDOFF_TOOLS = ("transfer_to_*", "transfer_back_to_*", "handoff_to_*")
"""The default patterns of hand-off tools."""

_SESSION = re.compile(r"s-[0-9a-f]{24}")


class DelegationCacheSizes(msgspec.Struct, frozen=True):
    """The capacity of each cache in bytes.

    `origins` has the nodes of sessions, `waiting` the conversations that wait for their origin.
    """

    nodes: int = 4 * 2**20
    call_owners: int = 12 * 2**20
    handoff_states: int = 8 * 2**20
    origins: int = 4 * 2**20
    visibility_decisions: int = 4 * 2**20
    open_calls: int = 4 * 2**20
    waiting: int = 3 * 2**20


@dataclass(slots=True)
class DelegationTracker:
    """The delegations of one worker's requests. `delegating_tools` are tools whose arguments begin conversations."""

    store: KeyValueStore
    outbox: Outbox
    clock: Clock
    delegation_tree: DelegationTree
    call_owners: CallOwners
    visibility_decisions: VisibilityDecisions
    handoff_index: HandoffIndex
    open_calls: OpenCalls
    origin_finder: OriginFinder
    delegating_tools: ToolPatterns
    retention: float

    @classmethod
    def build(
        cls, store: KeyValueStore, outbox: Outbox, clock: Clock, tasks: Tasks, *,
        tools: Sequence[str] = DELEGATING_TOOLS, handoff_tools: Sequence[str] = HANDOFF_TOOLS,
        max_depth: int = 8, max_agents: int = 256, retention: float = 30 * 86_400.0,
        on_new_edge: Callable[[Evidence], None] | None = None,
        sleep: Callable[[float], Awaitable[object]] | None = None,
        sizes: DelegationCacheSizes | None = None,
    ) -> DelegationTracker:  # fmt: skip
        """Builds a tracker with all its parts.

        `tools` and `handoff_tools` are patterns in which `*` stands for any text. `max_depth` and `max_agents` limit a
        tree, `retention` (seconds) is the time to live in the store, `sizes` bounds the caches. `on_new_edge` is called
        with the evidence of each new edge; `sleep` waits for a number of seconds.
        """
        sizes = sizes or DelegationCacheSizes()
        delegation_tree = DelegationTree(
            store, outbox, clock, max_depth, max_agents, retention, sizes.nodes, on_new_edge
        )
        call_owners = CallOwners(store, outbox, retention, sizes.call_owners)
        open_calls = OpenCalls(store, outbox, size=sizes.open_calls)
        return cls(
            store,
            outbox,
            clock,
            delegation_tree,
            call_owners,
            VisibilityDecisions(store, outbox, delegation_tree, call_owners, sizes.visibility_decisions, retention),
            HandoffIndex(store, outbox, ToolPatterns(handoff_tools), max_agents, sizes.handoff_states, retention),
            open_calls,
            OriginFinder(clock, tasks, delegation_tree, open_calls, sleep, sizes.origins, sizes.waiting),
            ToolPatterns(tools),
            retention,
        )

    def find_top_position(self, client_metadata: ClientMetadata, conversation: Conversation) -> AgentPosition | None:
        """Returns the position of a request at the top of the tree; None if `find_position` must decide."""
        if client_metadata.declared_delegation is not None or client_metadata.parent:
            return None
        home, first_new_index = _own_node_id(client_metadata), 0
        if not conversation.is_kept_by_provider:
            unread = self.handoff_index.find_unread_index(_list_scope(home), conversation)
            if unread is None:
                return None
            first_new_index = unread
        return AgentPosition(
            agent=client_metadata.agent_name,
            is_subagent=client_metadata.is_subagent,
            client_session=client_metadata.session,
            node_named_by_others=home,
            first_new_index=first_new_index,
        )

    async def find_position(
        self, caller: Caller, client_metadata: ClientMetadata, conversation: Conversation
    ) -> AgentPosition:
        """Returns the position that follows from a request's metadata and list.

        Raises BadRequest if the client declares an impossible edge; then nothing is recorded.
        """
        if client_metadata.declared_delegation is not None:
            return await self._apply_declaration(
                caller, client_metadata, client_metadata.declared_delegation, conversation
            )
        home, handoff_state, first_new_index = _own_node_id(client_metadata), NO_HANDOFF, 0
        if not conversation.is_kept_by_provider:
            handoff_state, first_new_index = await self.handoff_index.load_state(
                caller.tenant, _list_scope(home), conversation
            )
        position = AgentPosition(
            agent=client_metadata.agent_name,
            is_subagent=client_metadata.is_subagent,
            client_session=client_metadata.session,
            node_named_by_others=home,
            first_new_index=first_new_index,
        )
        if client_metadata.parent:
            position = await self._join(
                caller, position, home, f"m:{client_metadata.parent}", client_metadata.agent_name, "mark"
            )
        for agent in handoff_state.path:
            parent = position.node or handoff_state.home
            position = await self._join(caller, position, agent.node, parent, agent.name, "handoff", agent.call_id)
            if position.node != agent.node:
                break
        return position

    async def find_hidden(
        self,
        caller: Caller,
        position: AgentPosition,
        conversation: Conversation,
        last_shown_index: int,
        *,
        recompute: bool = False,
    ) -> HiddenResults:
        """Returns the results in the client's list that are hidden from the request.

        `last_shown_index` is the index of the longest recorded prefix of its scope (-1: none). `recompute` ignores
        earlier decisions, as is done before a compaction.
        """
        if not position.path or conversation.is_kept_by_provider or not conversation.chain:
            return NOTHING_HIDDEN
        return await self.visibility_decisions.decide(
            self._build_viewer(caller, position, conversation), conversation, last_shown_index, recompute=recompute
        )

    def record_shown(
        self,
        caller: Caller,
        position: AgentPosition,
        conversation: Conversation,
        positions: Collection[PartPosition],
    ) -> None:
        """Records that hidden results were shown, because the list would not be legal without them."""
        self.visibility_decisions.record_shown(
            self._build_viewer(caller, position, conversation), conversation.chain[-1], positions
        )

    async def attach_session(
        self, caller: Caller, position: AgentPosition, session_id: str, conversation: Conversation, *, is_new: bool
    ) -> AgentPosition:
        """Returns the position with the session taken into account, once the session is known.

        `conversation` is the client's own list. For a new session (`is_new`) the call that began it is searched.
        """
        tenant = caller.tenant
        if self.open_calls.has_calls(tenant):
            for message in conversation.messages[position.first_new_index :]:
                for part in message.parts:
                    if type(part) is ToolResult:
                        self.open_calls.close(tenant, part.call_id, session_id, conversation.chain)
        if position.node:
            return await self._link_session(caller, position, session_id, conversation, is_new=is_new)
        node = await self.origin_finder.find(caller.tenant, session_id, position.agent, conversation, is_new=is_new)
        if node is None:
            return position
        if not node.parent:
            return replace(position, candidates=node.candidates)
        return self._build_position(tenant, position, node, "")

    def record_calls(
        self,
        caller: Caller,
        position: AgentPosition,
        session_id: str,
        conversation: Conversation,
        calls: Sequence[ObservedCall],
    ) -> None:
        """Records the calls of a response after its end: their owner, and the open calls that may begin conversations.

        `conversation` is the client's own list.
        """
        if not calls:
            return
        tenant = caller.tenant
        if position.node:
            self.call_owners.record_calls(tenant, call_namespaces(tenant, position, conversation), calls, position.node)
        else:
            self.call_owners.record_main_agent(tenant, calls)
            if position.node_named_by_others or self.delegation_tree.has_delegations:
                self._fill_placeholder(tenant, position, session_id)
        if node_kind(position.node) != "declared" and not conversation.is_kept_by_provider:
            home = position.node or position.node_named_by_others or f"s:{session_id}"
            self.handoff_index.record_handoffs(
                tenant, _list_scope(position.node_named_by_others), conversation, calls, home
            )
        chain = conversation.chain
        for call in calls:
            is_delegating = self.delegating_tools.find_target(call.name) is not None
            if len(call.arguments) >= (MIN_DELEGATING_ARGUMENT if is_delegating else MIN_ARGUMENT):
                open_call = OpenCall(
                    call.call_id, position.node, session_id, is_delegating, self.clock.now(),
                    position.node_named_by_others,
                    chain[-1] if chain else b"", len(chain) - 1,
                )  # fmt: skip
                self.open_calls.add(tenant, call, open_call)

    async def load_tree(self, tenant: TenantScope, node: str, *, recompute: bool = False) -> tuple[DelegationNode, ...]:
        """Returns the whole tree around a node, parents first.

        The node `s:` and a session's id is also found under the name that its client uses. `recompute` reads all of it
        from the store, since other workers may have written more. Raises StoreUnavailable.
        """
        nodes = self.delegation_tree.without_cache() if recompute else self.delegation_tree
        client_node = (
            await self.delegation_tree.find_session_node(tenant, node[2:]) if node_kind(node) == "session" else None
        )
        ids = [node] if client_node is None else [client_node, node]
        await nodes.load(tenant, ids)
        trees = [await nodes.load_tree(tenant, nodes.path(tenant, each)[0]) for each in ids]
        return tuple({each.id: each for tree in trees if tree is trees[0] or len(tree) > 1 for each in tree}.values())

    async def find_delegations_by_call(
        self, caller: Caller, position: AgentPosition, session_id: str
    ) -> dict[str, DelegationNode]:
        """Returns the delegations begun by calls of a request's conversation, by call id. Reads the store."""
        tenant = caller.tenant
        names = (
            {position.node or f"s:{session_id}", position.node_named_by_others}
            if not position.partition
            else {position.node}
        )
        children = [
            child for name in sorted(names - {TOP}) for child in await self.delegation_tree.load_children(tenant, name)
        ]
        return {child.call_id: child for child in children if child.call_id}

    def forget(self) -> None:
        """Clears all caches after an erasure, so that everything is read from the store again."""
        for part in (
            self.delegation_tree,
            self.call_owners,
            self.visibility_decisions,
            self.handoff_index,
            self.open_calls,
            self.origin_finder,
        ):
            part.forget()

    # -- the steps ----------------------------------------------------------------

    def _build_viewer(self, caller: Caller, position: AgentPosition, conversation: Conversation) -> ResultViewer:
        names = call_namespaces(caller.tenant, position, conversation)
        return ResultViewer(caller.tenant, position.node, position.path, names)

    async def _apply_declaration(
        self,
        caller: Caller,
        client_metadata: ClientMetadata,
        declaration: DeclaredDelegation,
        conversation: Conversation,
    ) -> AgentPosition:
        """Adds the declared delegation to the tree and returns the position."""
        tenant, node = caller.tenant, f"x:{declaration.delegation}"
        if declaration.parent:
            parent = f"s:{declaration.parent}" if _SESSION.fullmatch(declaration.parent) else f"x:{declaration.parent}"
        else:
            await self.delegation_tree.load(tenant, (node,))
            existing = self.delegation_tree.get(tenant, node)
            parent = (
                existing.parent
                if existing is not None and existing.parent
                else f"m:{client_metadata.session}"
                if client_metadata.session
                else TOP
            )
        try:
            joined = await self.delegation_tree.join(
                tenant, DelegationNode(node, parent, client_metadata.agent_name, "header")
            )
        except EdgeRefused as error:
            raise self._build_refusal(str(error), declaration) from None
        # A client that declares delegations has no hand-off states; only the messages that it sent before are marked.
        first_new_index = (
            self.handoff_index.mark_read(node.encode(), conversation.chain)
            if not conversation.is_kept_by_provider
            else 0
        )
        return self._build_position(
            tenant, AgentPosition(client_session=client_metadata.session, first_new_index=first_new_index), joined, node
        )

    def _build_refusal(self, reason: str, declaration: DeclaredDelegation) -> BadRequest:
        if reason == "circle":
            text = (
                f"{declaration.parent_param}: {declaration.parent} already works for {declaration.delegation}, "
                "directly or not"
            )
            return BadRequest(text, param=declaration.parent_param)
        if reason == "depth":
            param = declaration.parent_param if declaration.parent else declaration.param
            return BadRequest(
                f"{param}: more than {self.delegation_tree.max_depth} delegations below each other", param=param
            )
        return BadRequest(
            f"{declaration.param}: more than {self.delegation_tree.max_agents} agents in one tree",
            param=declaration.param,
        )

    async def _join(
        self,
        caller: Caller,
        position: AgentPosition,
        node: str,
        parent: str,
        agent: str,
        evidence: Evidence,
        call_id: str = "",
    ) -> AgentPosition:
        """Adds a node below its parent and returns its position; the old position if the edge is not allowed."""
        tenant = caller.tenant
        try:
            joined = await self.delegation_tree.join(
                tenant, DelegationNode(node, parent, agent, evidence, call_id=call_id)
            )
        except EdgeRefused:
            return position
        return self._build_position(tenant, position, joined, node if evidence == "handoff" else "")

    def _build_position(
        self, tenant: TenantScope, position: AgentPosition, node: DelegationNode, partition: str
    ) -> AgentPosition:
        return AgentPosition(
            node.id, self.delegation_tree.path(tenant, node.id), node.agent, node.evidence, partition, True,
            node.parent, node.call_id, node.candidates, position.client_session, position.node_named_by_others,
            position.first_new_index,
        )  # fmt: skip

    async def _link_session(
        self, caller: Caller, position: AgentPosition, session_id: str, conversation: Conversation, *, is_new: bool
    ) -> AgentPosition:
        """Records a position's session and, for a new one, the call that began it if that agrees with the parent."""
        tenant = caller.tenant
        node = self.delegation_tree.get(tenant, position.node)
        if node is None:
            return position
        linked = replace(node, session=session_id)
        if is_new and not node.call_id:
            linked = self.origin_finder.with_opening_call(tenant, linked, conversation)
        if linked != node:
            with suppress(EdgeRefused):
                node = await self.delegation_tree.join(tenant, linked)
            self.delegation_tree.record_session(tenant, session_id, node.id)
        return self._build_position(tenant, position, node, position.partition)

    def _fill_placeholder(self, tenant: TenantScope, position: AgentPosition, session_id: str) -> None:
        """Fills the main agent's placeholder nodes in the tree, under the names that other requests use for it."""
        session_node = f"s:{session_id}"
        for node in (
            position.node_named_by_others,
            session_node if self.delegation_tree.has_children(tenant, session_node) else "",
        ):
            if node and ((existing := self.delegation_tree.get(tenant, node)) is None or existing.is_placeholder):
                self.delegation_tree.save(
                    tenant, DelegationNode(node, session=session_id, agent=position.agent, at=self.clock.now())
                )
                self.delegation_tree.record_session(tenant, session_id, node)


def _own_node_id(client_metadata: ClientMetadata) -> str:
    """Returns the node that other requests' metadata use for this request's agent."""
    return f"m:{client_metadata.label}" if client_metadata.session else ""


def _list_scope(home: str) -> bytes:
    """Returns the bytes that separate equal lists, from the node id of their own agent."""
    return home[2:].encode()
