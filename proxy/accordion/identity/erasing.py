"""What is known of delegations, erased: of one session, or of all of a tenant's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping

from accordion.core.ports import Key, Store
from accordion.identity.nodes import decoded, tenant_of
from accordion.identity.openings import maker_of
from accordion.identity.passing import nodes_of
from accordion.identity.shown import viewer_of

_NODES, _SEATED = "node", "seated"
_OF: Mapping[str, Callable[[str, bytes], Collection[str]]] = {
    "tree": lambda name, _: (name.rpartition(" ")[2],),
    "scope": lambda _, value: (value.decode(),),
    "shown": lambda _, value: (viewer_of(value),),
    "handed": lambda _, value: nodes_of(value),
    "open": lambda _, value: (f"s:{maker_of(value)}",),
}
"""The other collections of a tenant, and which delegations a row of each is of, by its name and value."""
_PAGE = 500


async def forget_delegations(store: Store, space: bytes, session: str | None = None) -> None:
    """Removes what is known of the delegation that a session is: its place in the tree, which calls are its own, what
    it was not shown, what it may have begun. Without a session all that is known of the tenant whose key is `space`.

    What the records of others say stays: whom they work for, and whose results they are not shown. Raises
    StoreUnavailable; then some is removed, and it can be asked for again.
    """
    tenant = tenant_of(space)
    if session is None:
        for collection in (_NODES, _SEATED, *_OF):
            while page := await store.scan(f"{collection}/{tenant}", limit=_PAGE):
                await store.delete([Key(f"{collection}/{tenant}", name) for name, _ in page])
        return
    names = await _names(store, tenant, session)
    gone = [Key(f"{_SEATED}/{tenant}", session), *(Key(f"{_NODES}/{tenant}", name) for name in names)]
    for collection, of in _OF.items():
        rows = _rows(store, f"{collection}/{tenant}")
        gone += [Key(f"{collection}/{tenant}", name) async for name, value in rows if names & {*of(name, value)}]
    for at in range(0, len(gone), _PAGE):
        await store.delete(gone[at : at + _PAGE])


async def _names(store: Store, tenant: str, session: str) -> set[str]:
    """The delegations that a session is and no other session was since."""
    names = {f"s:{session}"}
    async for name, value in _rows(store, f"{_NODES}/{tenant}"):
        if (node := decoded(value)) is not None and node.session == session:
            names.add(name)
    seated = await store.get(Key(f"{_SEATED}/{tenant}", session))
    if seated is not None and await store.get(Key(f"{_NODES}/{tenant}", seated.decode())) is None:
        names.add(seated.decode())
    return names


async def _rows(store: Store, collection: str) -> AsyncIterator[tuple[str, bytes]]:
    after = ""
    while page := await store.scan(collection, after=after, limit=_PAGE):
        for row in page:
            yield row
        after = page[-1][0]
