"""What is known of delegations, erased: of one session, or of all of a tenant's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Set

from accordion.core.ports import Key, Store
from accordion.identity.nodes import decoded, tenant_of
from accordion.identity.openings import maker_of
from accordion.identity.passing import nodes_of
from accordion.identity.points import decode, first_of, listing, place_key
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
    await forget_delegations_of(store, space, {session})


async def forget_delegations_of(store: Store, space: bytes, sessions: Set[str]) -> None:
    """The same of several sessions, in one go. Raises StoreUnavailable."""
    tenant = tenant_of(space)
    names = await _names(store, tenant, sessions)
    gone = [Key(f"{_SEATED}/{tenant}", session) for session in sessions]
    gone += [Key(f"{_NODES}/{tenant}", name) for name in names]
    for collection, of in _OF.items():
        rows = _rows(store, f"{collection}/{tenant}")
        gone += [Key(f"{collection}/{tenant}", name) async for name, value in rows if names & {*of(name, value)}]
    for at in range(0, len(gone), _PAGE):
        await store.delete(gone[at : at + _PAGE])


async def forget_places(store: Store, session: str, *, lists: bool = True) -> None:
    """Removes the places by which requests of a session are found, and where it `lists` their list; those that another
    session took over stay. Raises StoreUnavailable."""
    listed, places, after = listing(session), [first_of(session)], ""
    while places:
        keys = [place_key(place) for place in places]
        points = [decode(value) for value in await store.get_many(keys)]
        own = [key for key, point in zip(keys, points, strict=True) if point and point.session == session]
        await store.delete([*own, *(Key(listed, place) for place in places if lists)])
        places = [place for place, _ in await store.scan(listed, after=after, limit=200)]
        after = places[-1] if places else ""


async def _names(store: Store, tenant: str, sessions: Set[str]) -> set[str]:
    """The delegations that sessions are and no other session was since."""
    names = {f"s:{session}" for session in sessions}
    async for name, value in _rows(store, f"{_NODES}/{tenant}"):
        if (node := decoded(value)) is not None and node.session in sessions:
            names.add(name)
    seats = await store.get_many([Key(f"{_SEATED}/{tenant}", session) for session in sessions])
    seated = [seat.decode() for seat in seats if seat is not None]
    nodes = await store.get_many([Key(f"{_NODES}/{tenant}", name) for name in seated]) if seated else []
    names.update(name for name, node in zip(seated, nodes, strict=True) if node is None)
    return names


async def _rows(store: Store, collection: str) -> AsyncIterator[tuple[str, bytes]]:
    after = ""
    while page := await store.scan(collection, after=after, limit=_PAGE):
        for row in page:
            yield row
        after = page[-1][0]
