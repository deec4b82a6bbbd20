"""The tenant of stored data. No key of the store and no hash of content is made without one."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Final, NewType

from accordion.model.hidden_fields import StructWithHiddenFields

ArchiveNamespace = NewType("ArchiveNamespace", str)
"""The name of a tenant in the keys of the archive and of features: a hash that does not reveal the tenant's key.

Retention knows tenants only by these names, which it reads from the store.
"""

ScopePrefix = NewType("ScopePrefix", bytes)
"""The start of all keys of one scope of one tenant (`scope_prefix` makes it): of compactions and insertions."""


class TenantScope(StructWithHiddenFields, frozen=True, dict=True):
    """One tenant: its name, and the key that begins every hash of its content, so that no hash is another tenant's."""

    hidden_fields = frozenset({"key"})

    name: str
    key: bytes

    @cached_property
    def archive_namespace(self) -> ArchiveNamespace:
        """Its name in the keys of the archive and of features."""
        return ArchiveNamespace(hashlib.sha256(b"archive" + self.key).hexdigest()[:24])

    @property
    def feature_collection(self) -> str:
        """The collection of all that features keep for it (archive/feature_records.py)."""
        return f"memories/{self.archive_namespace}"

    @cached_property
    def delegation_namespace(self) -> str:
        """Its name in the keys of delegations."""
        return hashlib.sha256(b"lineage" + self.key).hexdigest()[:24]

    def delegation_collection(self, kind: str) -> str:
        """Returns the collection of its records of one kind about delegations."""
        return f"{kind}/{self.delegation_namespace}"

    def __format__(self, spec: str) -> str:
        # A tenant has several names; a key of the store with the wrong one, or with a repr, would be another's.
        raise TypeError("name the tenant explicitly: `name`, `archive_namespace` or `delegation_namespace`")


NO_TENANT: Final = TenantScope("", b"")
"""For conversations of nobody: searches that only load a model, and views outside the proxy."""


class ConversationRef(StructWithHiddenFields, frozen=True):
    """One agent's conversation. Data of one `scope` of a tenant never applies to another."""

    hidden_fields = frozenset({"scope"})

    tenant: TenantScope
    scope: bytes
    session: str
