"""Whose each tool call is: noted when a reply goes by, looked up when the call stands in somebody's history.

A call is known again by its id, name and arguments within a *namespace*: the list that it stood in (its first chain
key), the client's own session, or all that a tenant's clients declare. Ids are often counted up from one in every run;
two notes of different delegations under one name say nothing, and the call is its reader's own. Hashes alone are kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import field

import msgspec

from accordion.core.cache import Cache, weigh
from accordion.core.conversation import Conversation, ToolCall
from accordion.core.delegation import TOP, Seat
from accordion.core.errors import StoreUnavailable
from accordion.core.ports import Key, Outbox, Store
from accordion.core.records import ARGUMENTS, CallSeen
from accordion.core.values import dataclass
from accordion.identity.nodes import tenant_of

_AMBIGUOUS = "?"

Standing = tuple[bytes, int, ToolCall]
"""A call in a history: the key of its message, its index there, the call."""

_decode = msgspec.json.Decoder(float_hook=lambda text: _number(float(text))).decode
_encode = msgspec.json.Encoder(order="deterministic").encode


@dataclass(frozen=True, slots=True)
class Namespaces:
    """Where calls of one request are noted and looked for. `near` are its list and its client's session; `wide`, all
    that is declared, counts where these know nothing; empty where nothing was declared."""

    near: tuple[bytes, ...]
    wide: bytes = b""


def namespaces(space: bytes, seat: Seat, conversation: Conversation) -> Namespaces:
    """The namespaces of a request."""
    near = [conversation.chain[0][:16]] if conversation.chain else []
    if seat.mark:
        near.append(_hashed(space, b"mark", seat.mark.encode()))
    return Namespaces(tuple(near), _hashed(space, b"wide", b"") if seat.node[:2] == "x:" else b"")


def call_hash(space: bytes, call: ToolCall | CallSeen) -> bytes:
    """What a call is known again by; the same however its arguments are laid out."""
    said = f"{call.call_id}\n{call.name}\n".encode("utf-8", "surrogatepass")
    return _hashed(space, b"call", said + _canonical(call.arguments))


@dataclass(frozen=False, slots=True)
class Scopes:
    """The notes of one worker, within `capacity` bytes; behind them the store, kept for `retention` seconds."""

    store: Store
    outbox: Outbox
    retention: float = 30 * 86_400.0
    capacity: int = 16 * 2**20
    _notes: Cache[bytes, str] = field(init=False)
    """By namespace and call."""
    _hashes: Cache[tuple[bytes, int], bytes] = field(init=False)
    """Of calls in histories, by their message's key (which is the tenant's own) and their place in it."""
    _tops: Cache[tuple[bytes, str, str, str], bool] = field(init=False)

    def __post_init__(self) -> None:
        self._notes = Cache(self.capacity * 3 // 8, weigh)
        self._hashes = Cache(self.capacity * 3 // 8, lambda key, value: weigh(key[0], value))
        self._tops = Cache(self.capacity // 4, lambda key, _: weigh(*key))

    def top(self, space: bytes, calls: Iterable[CallSeen]) -> None:
        """Notes that the top made these calls: so that a call declared elsewhere under the same name is not taken for
        one of them."""
        for call in calls:
            self._tops[space, call.call_id, call.name, call.arguments[:1024]] = True

    def note(self, space: bytes, names: Namespaces, calls: Iterable[CallSeen], node: str) -> None:
        """Notes calls of a reply with the delegation whose request made them."""
        tenant = tenant_of(space)
        for call in calls:
            if not call.call_id:
                continue
            hashed = call_hash(space, call)
            for name in (*names.near, names.wide):
                if name:
                    self._keep(tenant, name + hashed, node)

    async def find(self, space: bytes, names: Namespaces, calls: Sequence[Standing]) -> list[str]:
        """The delegation of each call; TOP where none is known. The store is asked once, for all that is unknown."""
        hashes = [self._hash(space, call) for call in calls]
        notes, every = self._notes, (*names.near, names.wide) if names.wide else names.near
        unknown = [wanted for name in every for one in hashes if (wanted := name + one) not in notes]
        if unknown and self.store.available:
            with suppress(StoreUnavailable):
                tenant = tenant_of(space)
                values = await self.store.get_many([_key(tenant, one) for one in unknown])
                for one, value in zip(unknown, values, strict=True):
                    # What was noted meanwhile is newer; what nobody noted yet another worker may.
                    if value and one not in notes:
                        self._remember(one, value.decode())
        return [self._of(space, names, call[2], one) for call, one in zip(calls, hashes, strict=True)]

    def forget(self) -> None:
        """Asks the store anew for everything: something was erased there."""
        self._notes.clear()
        self._hashes.clear()
        self._tops.clear()

    def _hash(self, space: bytes, call: Standing) -> bytes:
        key, number, part = call
        known = self._hashes.get((key, number))
        if known is None:
            known = self._hashes[key, number] = call_hash(space, part)
        return known

    def _of(self, space: bytes, names: Namespaces, call: ToolCall, hashed: bytes) -> str:
        found = ""
        for name in names.near:
            note = self._notes.get(name + hashed)
            if note and note != found:
                if found not in ("", _AMBIGUOUS) and note != _AMBIGUOUS:
                    return TOP
                # What one namespace cannot tell apart another may.
                found = note if found in ("", _AMBIGUOUS) else found
        if not found and names.wide and (space, call.call_id, call.name, call.arguments[:1024]) not in self._tops:
            found = self._notes.get(names.wide + hashed) or TOP
        return TOP if found == _AMBIGUOUS else found

    def _keep(self, tenant: str, name: bytes, node: str) -> None:
        known = self._notes.get(name)
        if known == node:
            return
        note = _AMBIGUOUS if known else node
        self._remember(name, note)
        self.outbox.put(_key(tenant, name), note.encode, self.retention)

    def _remember(self, name: bytes, note: str) -> None:
        self._notes[name] = note


def _key(tenant: str, name: bytes) -> Key:
    return Key(f"scope/{tenant}", name.hex())


def _hashed(space: bytes, kind: bytes, value: bytes) -> bytes:
    return hashlib.sha256(space + kind + value).digest()[:16]


def _canonical(arguments: str) -> bytes:
    if len(arguments) > ARGUMENTS:
        return b"{}"
    if not arguments or arguments == "{}":
        return b"{}"
    try:
        return _encode(_decode(arguments))
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError):
        return arguments.encode("utf-8", "surrogatepass")


def _number(value: float) -> float | int:
    """Clients write 1.0 as 1."""
    return int(value) if value.is_integer() and abs(value) < 1e22 else value
