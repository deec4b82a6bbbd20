"""The values of entries that are removed, without those that other entries need."""

from __future__ import annotations

from collections.abc import Iterable

from accordion.archive.archive_entries import EntryContents
from accordion.archive.artifacts import artifact_keys, row_key
from accordion.model.ports import Key
from accordion.model.tenant import ArchiveNamespace


class SharedValues:
    """The values of some entries, each once, with its size. There may be very many: use it in a thread."""

    def __init__(self, contents: Iterable[EntryContents] = ()) -> None:
        self._rows: dict[bytes, int] = {}
        self._artifacts: dict[str, dict[bytes, set[str]]] = {}
        self._keys: dict[tuple[str, str], int] = {}
        for each in contents:
            self.add(each)

    def __len__(self) -> int:
        artifacts = sum(len(ids) for scopes in self._artifacts.values() for ids in scopes.values())
        return len(self._rows) + len(self._keys) + 2 * artifacts

    def add(self, contents: EntryContents) -> None:
        """Adds the values of an entry."""
        for row, size in contents.rows:
            self._rows[row] = max(size, self._rows.get(row, 0))
        for collection, name, size in contents.keys:
            self._keys[collection, name] = max(size, self._keys.get((collection, name), 0))
        for scope, ids in contents.artifacts:
            self._artifacts.setdefault(contents.session, {}).setdefault(scope, set()).update(ids)

    def exclude(self, contents: EntryContents) -> int:
        """Removes the values that another entry has too; returns the bytes that were counted for them."""
        rows, keys, size = self._rows, self._keys, 0
        for row, _ in contents.rows:
            if row in rows:
                size += rows.pop(row)
        for collection, name, _ in contents.keys:
            if (collection, name) in keys:
                size += keys.pop((collection, name))
        # Records of artifacts are never shared between sessions.
        session_artifacts = self._artifacts.get(contents.session, {})
        for scope, ids in contents.artifacts:
            if scope in session_artifacts:
                session_artifacts[scope].difference_update(ids)
        return size

    def exclude_all(self, contents: Iterable[EntryContents]) -> list[int]:
        """Removes the values of several entries; returns the bytes for each."""
        return [self.exclude(each) for each in contents]

    def keys(self, namespace: ArchiveNamespace) -> list[Key]:
        """Returns the keys of all values."""
        keys = [row_key(row) for row in self._rows]
        keys += [Key(*key) for key in self._keys]
        for session, scopes in self._artifacts.items():
            for scope, ids in scopes.items():
                for each in ids:
                    keys += artifact_keys(namespace, each, scope, session)
        return keys
