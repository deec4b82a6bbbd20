"""Which values several entries name: what of one that goes has to stay for the sake of others."""

from __future__ import annotations

from collections.abc import Iterable

from accordion.archive.artifacts import artifact_keys, row_key
from accordion.archive.holdings import Contents
from accordion.core.ports import Key


class Named:
    """The values that some entries name, each once, with the size that is counted for it. Made to be filled and looked
    through in a thread: there may be very many."""

    def __init__(self, contents: Iterable[Contents] = ()) -> None:
        self._rows: dict[bytes, int] = {}
        self._artifacts: dict[str, dict[bytes, set[str]]] = {}
        self._keys: dict[tuple[str, str], int] = {}
        for each in contents:
            self.add(each)

    def __len__(self) -> int:
        artifacts = sum(len(ids) for scopes in self._artifacts.values() for ids in scopes.values())
        return len(self._rows) + len(self._keys) + 2 * artifacts

    def add(self, contents: Contents) -> None:
        """Takes in what an entry names."""
        for row, size in contents.rows:
            self._rows[row] = max(size, self._rows.get(row, 0))
        for collection, name, size in contents.keys:
            self._keys[collection, name] = max(size, self._keys.get((collection, name), 0))
        for scope, ids in contents.artifacts:
            self._artifacts.setdefault(contents.session, {}).setdefault(scope, set()).update(ids)

    def spare(self, contents: Contents) -> int:
        """Leaves out what another entry names; gives the bytes that were counted for it."""
        rows, keys, size = self._rows, self._keys, 0
        for row, _ in contents.rows:
            if row in rows:
                size += rows.pop(row)
        for collection, name, _ in contents.keys:
            if (collection, name) in keys:
                size += keys.pop((collection, name))
        # A record of an artifact is its session's own.
        mine = self._artifacts.get(contents.session, {})
        for scope, ids in contents.artifacts:
            if scope in mine:
                mine[scope].difference_update(ids)
        return size

    def spare_all(self, contents: Iterable[Contents]) -> list[int]:
        """The same for several."""
        return [self.spare(each) for each in contents]

    def places(self, tenant: str) -> list[Key]:
        """Where they all are."""
        found = [row_key(row) for row in self._rows]
        found += [Key(*place) for place in self._keys]
        for session, scopes in self._artifacts.items():
            for scope, ids in scopes.items():
                for each in ids:
                    found += artifact_keys(tenant, each, scope, session)
        return found
