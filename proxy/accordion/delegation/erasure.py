"""Erases the stored records of delegations and prefix nodes: of some sessions, or of a tenant."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence, Set

from accordion.delegation.handoffs import nodes_in_state
from accordion.delegation.origins import caller_session
from accordion.delegation.tree import decode_node
from accordion.delegation.visibility_decisions import read_viewer
from accordion.model.ports import Key, KeyValueStore
from accordion.model.tenant import TenantScope
from accordion.sessions.prefix_nodes import decode, first_node_id, node_key, session_nodes_collection

_NODES, _SESSION_NODES = "node", "seated"
_NODES_IN_ROW: Mapping[str, Callable[[str, bytes], Collection[str]]] = {
    "tree": lambda name, _: (name.rpartition(" ")[2],),
    "scope": lambda _, value: (value.decode(),),
    "shown": lambda _, value: (read_viewer(value),),
    "handed": lambda _, value: nodes_in_state(value),
    "open": lambda _, value: (f"s:{caller_session(value)}",),
}
"""A tenant's other collections, each with a function that returns the delegations of a row, by its name and value."""
_PAGE = 500


async def forget_delegations(store: KeyValueStore, tenant: TenantScope, session: str | None = None) -> None:
    """Removes the records of a session's delegation: node and edges, call owners, visibility decisions, open calls.

    Without a session, removes all delegation records of the tenant. Records of other delegations stay, even if they
    name this one as parent or owner. Raises StoreUnavailable; then a part is removed, and the call can be repeated.
    """
    if session is None:
        for collection in (_NODES, _SESSION_NODES, *_NODES_IN_ROW):
            while page := await store.scan(tenant.delegation_collection(collection), limit=_PAGE):
                await store.delete([Key(tenant.delegation_collection(collection), name) for name, _ in page])
        return
    await forget_delegations_of(store, tenant, {session})


async def forget_delegations_of(store: KeyValueStore, tenant: TenantScope, sessions: Set[str]) -> None:
    """Removes the records of several sessions' delegations at once. Raises StoreUnavailable."""
    nodes = await _find_node_ids(store, tenant, sessions)
    keys = [Key(tenant.delegation_collection(_SESSION_NODES), session) for session in sessions]
    keys += [Key(tenant.delegation_collection(_NODES), node) for node in nodes]
    for collection, nodes_in_row in _NODES_IN_ROW.items():
        rows = _scan_rows(store, tenant.delegation_collection(collection))
        keys += [
            Key(tenant.delegation_collection(collection), name)
            async for name, value in rows
            if nodes & {*nodes_in_row(name, value)}
        ]
    for start in range(0, len(keys), _PAGE):
        await store.delete(keys[start : start + _PAGE])


async def forget_nodes(store: KeyValueStore, sessions: Iterable[str], *, with_index: bool = True) -> None:
    """Removes the prefix nodes of sessions and, with `with_index`, the lists of them. Raises StoreUnavailable.

    Nodes that now belong to another session stay. Nodes of many sessions are removed in one write: each waits for the
    disk.
    """
    page = list[tuple[str, str]]()
    for session in sessions:
        page.append((session, first_node_id(session)))
        after = ""
        while rows := await store.scan(session_nodes_collection(session), after=after, limit=_PAGE):
            page += [(session, node_id) for node_id, _ in rows]
            after = rows[-1][0]
            page = await _forget_nodes(store, page, with_index=with_index) if len(page) >= _PAGE else page
        page = await _forget_nodes(store, page, with_index=with_index) if len(page) >= _PAGE else page
    await _forget_nodes(store, page, with_index=with_index)


async def _forget_nodes(
    store: KeyValueStore, page: Sequence[tuple[str, str]], *, with_index: bool
) -> list[tuple[str, str]]:
    """Removes nodes, given as sessions and ids; returns an empty page."""
    if not page:
        return []
    keys = [node_key(node_id) for _, node_id in page]
    nodes = [decode(value) for value in await store.get_many(keys)]
    own_keys = [
        key for key, node, (session, _) in zip(keys, nodes, page, strict=True) if node and node.session == session
    ]
    index_keys = [Key(session_nodes_collection(session), node_id) for session, node_id in page if with_index]
    if own_keys or index_keys:
        await store.delete([*own_keys, *index_keys])
    return []


async def _find_node_ids(store: KeyValueStore, tenant: TenantScope, sessions: Set[str]) -> set[str]:
    """Returns the nodes of sessions, without nodes that belong to another session by now."""
    names = {f"s:{session}" for session in sessions}
    async for name, value in _scan_rows(store, tenant.delegation_collection(_NODES)):
        if (node := decode_node(value)) is not None and node.session in sessions:
            names.add(name)
    values = await store.get_many([Key(tenant.delegation_collection(_SESSION_NODES), session) for session in sessions])
    linked = [value.decode() for value in values if value is not None]
    nodes = await store.get_many([Key(tenant.delegation_collection(_NODES), name) for name in linked]) if linked else []
    names.update(name for name, node in zip(linked, nodes, strict=True) if node is None)
    return names


async def _scan_rows(store: KeyValueStore, collection: str) -> AsyncIterator[tuple[str, bytes]]:
    after = ""
    while page := await store.scan(collection, after=after, limit=_PAGE):
        for row in page:
            yield row
        after = page[-1][0]
