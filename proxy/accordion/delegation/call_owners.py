"""Records the delegation that made each tool call, and finds it when the call is in a history.

A call is recognized by a hash of its id, name and arguments within a *namespace*: its list (by the first chain key),
the client's own session, or everything that a tenant's clients declare. Ids often count up from one; so if
two delegations have recorded the same call, the owner is ambiguous and the call belongs to its reader. Only hashes are
stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from accordion.model.boundaries import CallInHistory
from accordion.model.cache import BoundedCache, string_size
from accordion.model.conversation import Conversation, ToolCall
from accordion.model.delegation import TOP, AgentPosition, node_kind
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Key, KeyValueStore, Outbox
from accordion.model.records import ARGUMENTS, ObservedCall
from accordion.model.tenant import TenantScope

_AMBIGUOUS = "?"


_decode = msgspec.json.Decoder(float_hook=lambda text: _normalize_number(float(text))).decode
_encode = msgspec.json.Encoder(order="deterministic").encode


class CallNamespaces(msgspec.Struct, frozen=True):
    """The namespaces in which a request's calls are recorded and looked up.

    `specific` are the request's list and its client's session. `tenant_wide` has all calls of declared delegations; it
    is used if the specific ones have no owner, and is empty if the request declares nothing.
    """

    specific: tuple[bytes, ...]
    tenant_wide: bytes = b""


def call_namespaces(tenant: TenantScope, position: AgentPosition, conversation: Conversation) -> CallNamespaces:
    """Returns the namespaces of a request."""
    specific = [conversation.chain[0][:16]] if conversation.chain else []
    if position.client_session:
        specific.append(_hash(tenant, b"mark", position.client_session.encode()))
    return CallNamespaces(
        tuple(specific), _hash(tenant, b"wide", b"") if node_kind(position.node) == "declared" else b""
    )


def hash_call(tenant: TenantScope, call: ToolCall | ObservedCall) -> bytes:
    """Hashes a call; the layout of its arguments' JSON makes no difference."""
    id_and_name = f"{call.call_id}\n{call.name}\n".encode("utf-8", "surrogatepass")
    return _hash(tenant, b"call", id_and_name + _canonical_arguments(call.arguments))


@dataclass(slots=True)
class CallOwners:
    """The owners of calls: a cache of `capacity` bytes over the store, which keeps them for `retention` seconds."""

    store: KeyValueStore
    outbox: Outbox
    retention: float = 30 * 86_400.0
    capacity: int = 16 * 2**20
    _owners: BoundedCache[bytes, str] = field(init=False)
    """The owner's node, or `_AMBIGUOUS`, by namespace and call hash."""
    _hashes: BoundedCache[tuple[bytes, int], bytes] = field(init=False)
    """Hashes of calls in histories, by the message's key (which is the tenant's own) and the index in the message."""
    _main_agent_calls: BoundedCache[tuple[TenantScope, str, str, str], bool] = field(init=False)

    def __post_init__(self) -> None:
        self._owners = BoundedCache(self.capacity * 3 // 8, string_size)
        self._hashes = BoundedCache(self.capacity * 3 // 8, lambda key, value: string_size(key[0], value))
        self._main_agent_calls = BoundedCache(self.capacity // 4, lambda key, _: string_size(*key[1:]))

    def record_main_agent(self, tenant: TenantScope, calls: Iterable[ObservedCall]) -> None:
        """Records that the main agent made these calls, so that none of them is taken for an equal declared call."""
        for call in calls:
            self._main_agent_calls[tenant, call.call_id, call.name, call.arguments[:1024]] = True

    def record_calls(
        self, tenant: TenantScope, namespaces: CallNamespaces, calls: Iterable[ObservedCall], node: str
    ) -> None:
        """Records the calls of a response with the delegation of its request."""
        for call in calls:
            if not call.call_id:
                continue
            call_hash = hash_call(tenant, call)
            for name in (*namespaces.specific, namespaces.tenant_wide):
                if name:
                    self._record(tenant, name + call_hash, node)

    async def find(self, tenant: TenantScope, namespaces: CallNamespaces, calls: Sequence[CallInHistory]) -> list[str]:
        """Returns the delegation of each call; TOP if none is known. Reads the store once for all unknown calls."""
        hashes = [self._hash_of(tenant, call) for call in calls]
        prefixes = (*namespaces.specific, namespaces.tenant_wide) if namespaces.tenant_wide else namespaces.specific
        owners = self._owners
        unknown = [name for prefix in prefixes for call_hash in hashes if (name := prefix + call_hash) not in owners]
        if unknown and self.store.is_available:
            with suppress(StoreUnavailable):
                values = await self.store.get_many([_owner_key(tenant, name) for name in unknown])
                for name, value in zip(unknown, values, strict=True):
                    # An owner recorded meanwhile is newer. Another worker may still record a missing one.
                    if value and name not in owners:
                        owners[name] = value.decode()
        return [
            self._owner_of(tenant, namespaces, each.call, call_hash)
            for each, call_hash in zip(calls, hashes, strict=True)
        ]

    def forget(self) -> None:
        """Clears the caches after an erasure, so that everything is read from the store again."""
        self._owners.clear()
        self._hashes.clear()
        self._main_agent_calls.clear()

    def _hash_of(self, tenant: TenantScope, call: CallInHistory) -> bytes:
        position = call.message_key, call.part
        call_hash = self._hashes.get(position)
        if call_hash is None:
            call_hash = self._hashes[position] = hash_call(tenant, call.call)
        return call_hash

    def _owner_of(self, tenant: TenantScope, namespaces: CallNamespaces, call: ToolCall, call_hash: bytes) -> str:
        owner = ""
        for name in namespaces.specific:
            candidate = self._owners.get(name + call_hash)
            if candidate and candidate != owner:
                if owner not in ("", _AMBIGUOUS) and candidate != _AMBIGUOUS:
                    return TOP
                # A call that is ambiguous in one namespace may have one owner in another.
                owner = candidate if owner in ("", _AMBIGUOUS) else owner
        if (
            not owner
            and namespaces.tenant_wide
            and (tenant, call.call_id, call.name, call.arguments[:1024]) not in self._main_agent_calls
        ):
            owner = self._owners.get(namespaces.tenant_wide + call_hash) or TOP
        return TOP if owner == _AMBIGUOUS else owner

    def _record(self, tenant: TenantScope, name: bytes, node: str) -> None:
        previous = self._owners.get(name)
        if previous == node:
            return
        owner = _AMBIGUOUS if previous else node
        self._owners[name] = owner
        self.outbox.put(_owner_key(tenant, name), owner.encode, self.retention)


def _owner_key(tenant: TenantScope, name: bytes) -> Key:
    return Key(tenant.delegation_collection("scope"), name.hex())


def _hash(tenant: TenantScope, kind: bytes, value: bytes) -> bytes:
    return hashlib.sha256(tenant.key + kind + value).digest()[:16]


def _canonical_arguments(arguments: str) -> bytes:
    if len(arguments) > ARGUMENTS:
        return b"{}"
    if not arguments or arguments == "{}":
        return b"{}"
    try:
        return _encode(_decode(arguments))
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError):
        return arguments.encode("utf-8", "surrogatepass")


def _normalize_number(value: float) -> float | int:
    """Turns 1.0 into 1, as some clients do."""
    return int(value) if value.is_integer() and abs(value) < 1e22 else value
