"""Decides whether an agent may read content that was removed from another session or from an ancestor's history.

A viewer's branch consists of its own delegation, the ancestors and the descendants.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from accordion.delegation.call_owners import CallOwners, call_namespaces
from accordion.delegation.tree import DelegationTree
from accordion.model.boundaries import CallInHistory
from accordion.model.conversation import Conversation
from accordion.model.delegation import TOP, AgentPosition, Path, is_visible
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import KeyValueStore
from accordion.sessions.tenants import Caller


class BranchViewer(msgspec.Struct, frozen=True):
    """The agent that wants access; `client_conversation` is the list as its client sent it."""

    caller: Caller
    position: AgentPosition
    session: str
    client_conversation: Conversation


class BranchAccess(msgspec.Struct, frozen=True):
    """Checks access by branch, with the delegation tree and the owners of calls."""

    store: KeyValueStore
    delegation_tree: DelegationTree
    call_owners: CallOwners

    async def is_same_branch(self, viewer: BranchViewer, session: str) -> bool:
        """Whether another session belongs to the viewer's branch. Reads the store; False while it is unavailable.

        Only a known edge connects two conversations. A delegation without a known parent or call is the top of a branch
        of its own.
        """
        if session == viewer.session:
            return True
        tenant, position = viewer.caller.tenant, viewer.position
        try:
            node = await self.delegation_tree.find_session_node(tenant, session)
        except StoreUnavailable:
            return False
        names = [f"s:{session}"] if node is None else [node, f"s:{session}"]
        await self.delegation_tree.load(tenant, names)
        session_paths = [self.delegation_tree.path(tenant, name) for name in names]
        viewer_paths: list[Path] = [position.path] if position.path else [(f"s:{viewer.session}",)]
        if not position.path and position.node_named_by_others:
            viewer_paths.append((position.node_named_by_others,))
        return any(is_visible(owner, viewer_path) for owner in session_paths for viewer_path in viewer_paths)

    async def can_see_results(self, viewer: BranchViewer, calls: Sequence[CallInHistory]) -> bool:
        """Whether the viewer may see the results of all these calls. Reads the store; False while it is unavailable.

        An ancestor's history may contain results of another one of its delegations.
        """
        position, tenant = viewer.position, viewer.caller.tenant
        if not position.path or not calls:
            return True
        namespaces = call_namespaces(tenant, position, viewer.client_conversation)
        owners = await self.call_owners.find(tenant, namespaces, calls)
        foreign = set(owners) - {TOP, *position.path}
        await self.delegation_tree.load(tenant, foreign)
        # While the store is unavailable, an owner may be unknown.
        return self.store.is_available and all(
            is_visible(self.delegation_tree.path(tenant, node), position.path) for node in foreign
        )
