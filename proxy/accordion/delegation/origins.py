"""Finds the origin of conversations without delegation metadata: the open call, if any, that began them.

`OpenCalls` records the string arguments of each call until the call is answered, or for an hour. A conversation belongs
to a call if at least 80 % of its opening task is one of the call's arguments, verbatim. Time and similarity never
count, and of two such calls neither is taken. The memory has the texts themselves; the store, for other workers, only
hashes. `OriginFinder` caches the node of each session, and looks for the calls of other workers in the background.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from accordion.delegation.tree import DelegationTree, EdgeRefused
from accordion.model.cache import BoundedCache, string_size
from accordion.model.conversation import Conversation, Text
from accordion.model.delegation import TOP, DelegationNode, Evidence
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Clock, Key, KeyValueStore, Outbox, Tasks
from accordion.model.records import ObservedCall
from accordion.model.tenant import TenantScope

# Seconds between a conversation's beginning and the search among the open calls of other workers. Within this time the
# workers write their newest calls, and more conversations begin that are searched together. A search for each takes
# as long as the rest of a small request, and most conversations have no origin.
_GATHER_SECONDS = 0.15
# Seconds after which a conversation's origin is final: other workers have searched too, and nodes that were missing in
# the store have been read again (tree.py).
_FINAL_SECONDS = 1.5
_ENTRY_SIZE = 400
"""Bytes of memory that a conversation takes besides its session and texts."""
MIN_ARGUMENT, MIN_DELEGATING_ARGUMENT = 40, 8
"""Minimum length of a recorded argument in characters: of any tool, and of a delegating tool."""
OPEN_SECONDS = 3_600.0
"""Seconds for which a call without an answer stays open."""
# The time to live, in seconds, of the empty value that replaces a closed call whose write may still be pending.
_TOMBSTONE_SECONDS = 1.0
_HEAD_LENGTH = 32
"""Characters of an argument's beginning that is hashed by itself."""
_MAX_STRINGS, _MAX_TEXTS = 32, 16
"""Maximum number of string arguments of a call, and of opening texts of a conversation."""
_ROWS, _MAX_PAGES = 2_000, 10
"""Rows of open calls that are read from the store at a time, and how often."""
# The longest opening text, in characters. No model writes so much in one call, and copying and hashing more would delay
# other requests.
_LONGEST_TEXT = 1 << 20
_TEXT_SIZE = 400
"""Bytes of memory that an argument takes besides its characters."""
# Tools by which an agent passes its plan to itself: some clients continue it in a new conversation, which is no
# delegation.
_PLAN_TOOLS = frozenset({"ExitPlanMode", "exit_plan_mode"})


class _WaitingConversation(msgspec.Struct, frozen=True):
    """A conversation whose origin another worker may still record.

    `texts` are its opening texts; they are empty if it did not begin here, and then only its node may appear.
    `added_at` and `looked_up_at` (the last read of the store) are in seconds of the monotonic clock.
    """

    agent: str
    texts: list[str]
    added_at: float
    looked_up_at: float


@dataclass(slots=True)
class OriginFinder:
    """Finds and caches the nodes of this worker's sessions. Without `sleep` each conversation is searched at once."""

    clock: Clock
    tasks: Tasks
    delegation_tree: DelegationTree
    open_calls: OpenCalls
    sleep: Callable[[float], Awaitable[object]] | None = None
    capacity: int = 4 * 2**20
    waiting_capacity: int = 3 * 2**20
    _sessions: BoundedCache[str, str] = field(init=False)
    """The node of each session, within `capacity` bytes; empty for a session without a node."""
    _waiting: BoundedCache[str, _WaitingConversation] = field(init=False)
    """By session, conversations without a known call, which another worker may not have written yet. They are bounded
    by `waiting_capacity` in bytes, because they have their opening texts."""
    _pending_lookups: dict[TenantScope, list[str]] = field(default_factory=dict)
    """By tenant, the sessions whose first search is scheduled."""

    def __post_init__(self) -> None:
        self._sessions = BoundedCache(self.capacity, string_size)
        self._waiting = BoundedCache(
            self.waiting_capacity, lambda session, waiting: _ENTRY_SIZE + string_size(session, *waiting.texts)
        )

    async def find(
        self, tenant: TenantScope, session_id: str, agent: str, conversation: Conversation, *, is_new: bool
    ) -> DelegationNode | None:
        """Returns the node of a session, or None.

        The store is searched for the origin in the background, so the result is available to the next request.
        """
        node = self._sessions.get(session_id)
        if node is None:
            if calls := self._add_session(tenant, session_id, agent, conversation, is_new=is_new):
                await self._infer_parent(tenant, session_id, agent, calls)
            elif not is_new:
                await self._load_known_node(tenant, session_id)
            # The session may have been erased meanwhile.
            node = self._sessions.get(session_id) or TOP
        elif len(self._waiting) and (waiting := self._waiting.get(session_id)) is not None:
            self._retry_lookup(tenant, session_id, waiting)
        if not node:
            return None
        await self.delegation_tree.load(tenant, (node,))
        return self.delegation_tree.get(tenant, node)

    def with_opening_call(
        self, tenant: TenantScope, node: DelegationNode, conversation: Conversation
    ) -> DelegationNode:
        """Returns a node with the call that began it, if there is exactly one and it agrees with the node's parent."""
        calls = self.open_calls.find_candidates(tenant, opening_texts(conversation), node.session, self.clock.now())
        agrees = len(calls) == 1 and node.parent in (TOP, calls[0].node, calls[0].home, f"s:{calls[0].session}")
        return _with_call(node, calls[0]) if agrees else node

    def forget(self) -> None:
        """Clears the caches after an erasure, so that everything is read from the store again."""
        self._sessions.clear()
        self._waiting.clear()
        self._pending_lookups.clear()

    def _add_session(
        self, tenant: TenantScope, session_id: str, agent: str, conversation: Conversation, *, is_new: bool
    ) -> Sequence[OpenCall]:
        """Adds a session that is new to this worker; returns the calls that may have begun it."""
        self._remember_node(session_id, TOP)
        if not is_new:
            self._add_waiting(session_id, agent, [])
            return ()
        texts = opening_texts(conversation)
        if calls := self.open_calls.find_candidates(tenant, texts, session_id, self.clock.now()):
            return calls
        if max(map(len, texts), default=0) >= MIN_ARGUMENT:
            self._add_waiting(session_id, agent, texts)
            if tenant not in self._pending_lookups:
                self._pending_lookups[tenant] = []
                self.tasks.spawn(self._look_up_together(tenant), "delegation")
            self._pending_lookups[tenant].append(session_id)
        return ()

    def _retry_lookup(self, tenant: TenantScope, session_id: str, waiting: _WaitingConversation) -> None:
        now = self.clock.monotonic()
        if now - waiting.added_at >= _FINAL_SECONDS:
            self._waiting.pop(session_id)
        elif now - waiting.looked_up_at >= _GATHER_SECONDS:
            self._waiting[session_id] = replace(waiting, looked_up_at=now)
        else:
            return
        lookup = (
            self._look_up_in_store(tenant, {session_id: waiting})
            if waiting.texts
            else self._load_known_node(tenant, session_id)
        )
        self.tasks.spawn(lookup, "delegation")

    async def _look_up_together(self, tenant: TenantScope) -> None:
        """Searches the open calls of other workers for all conversations that began within the last moment."""
        if self.sleep is not None:
            await self.sleep(_GATHER_SECONDS)
        sessions = self._pending_lookups.pop(tenant, ())
        # For some of them a second request has found the origin already.
        still_waiting = {
            session: waiting for session in sessions if (waiting := self._waiting.get(session)) is not None
        }
        if still_waiting:
            await self._look_up_in_store(tenant, still_waiting)

    async def _load_known_node(self, tenant: TenantScope, session_id: str) -> None:
        """Loads a session's node from the store, if another worker or an earlier run has recorded it."""
        node = f"s:{session_id}"
        await self.delegation_tree.load(tenant, (node,))
        if self.delegation_tree.get(tenant, node) is not None:
            self._waiting.pop(session_id)
            self._remember_node(session_id, node)

    async def _look_up_in_store(self, tenant: TenantScope, waiting: Mapping[str, _WaitingConversation]) -> None:
        """Searches the open calls of other workers for the calls that began conversations."""
        texts_by_session = {session: conversation.texts for session, conversation in waiting.items()}
        candidates = await self.open_calls.find_in_store(tenant, texts_by_session, self.clock.now())
        for session, calls in candidates.items():
            self._waiting.pop(session)
            await self._infer_parent(tenant, session, waiting[session].agent, calls)

    async def _infer_parent(
        self, tenant: TenantScope, session_id: str, agent: str, candidates: Sequence[OpenCall]
    ) -> None:
        """Adds a session's node below the caller of its only candidate; of several candidates records the number."""
        node = DelegationNode(f"s:{session_id}", agent=agent, session=session_id, candidates=len(candidates))
        if len(candidates) == 1:
            node = _with_call(replace(node, candidates=0), candidates[0])
        with suppress(EdgeRefused):
            await self.delegation_tree.join(tenant, node)
            self._remember_node(session_id, node.id)
            if node.parent == f"s:{candidates[0].session}" and self.delegation_tree.get(tenant, node.parent) is None:
                parent = DelegationNode(node.parent, session=candidates[0].session, at=self.clock.now())
                self.delegation_tree.save(tenant, parent)

    def _add_waiting(self, session_id: str, agent: str, texts: list[str]) -> None:
        now = self.clock.monotonic()
        self._waiting[session_id] = _WaitingConversation(agent, texts, now, now)

    def _remember_node(self, session_id: str, node: str) -> None:
        self._sessions[session_id] = node


def _with_call(node: DelegationNode, call: OpenCall) -> DelegationNode:
    """Returns the node with this call as its origin."""
    parent = node.parent or call.node or f"s:{call.session}"
    evidence: Evidence = node.evidence if node.parent else "tool" if call.is_delegating else "argument"
    return replace(node, parent=parent, evidence=evidence, call_id=call.call_id)


class OpenCall(msgspec.Struct, frozen=True):
    """An open call.

    `node` is the caller's node; it is empty for the main agent, which is then identified by its session. `home` is the
    caller's name in the metadata of others. `chain_key` belongs to the last message of the call's request, at `index`.
    """

    call_id: str
    node: str
    session: str
    is_delegating: bool
    at: float
    home: str = ""
    chain_key: bytes = b""
    index: int = -1


class _ArgumentHashes(NamedTuple):
    """An argument as stored: its length in characters, a hash of its beginning, and a hash of the whole."""

    length: int
    head: bytes
    whole: bytes


class _OpenCallRow(msgspec.Struct, array_like=True, frozen=True):
    """An open call in the store."""

    call_id: str
    node: str
    session: str
    delegating: bool
    at: float
    home: str
    texts: tuple[_ArgumentHashes, ...]


class _TenantCalls:
    """The open calls of one tenant.

    `calls` has them by call id, each with its arguments; `texts` has the arguments by length, each with its call;
    `lengths` are these lengths in ascending order.
    """

    __slots__ = ("calls", "lengths", "texts")

    def __init__(self) -> None:
        self.calls: OrderedDict[str, list[tuple[OpenCall, tuple[str, ...]]]] = OrderedDict()
        self.lengths: list[int] = []
        self.texts: dict[int, list[tuple[str, OpenCall]]] = {}


@dataclass(slots=True)
class OpenCalls:
    """The open calls of one worker: at most `capacity` of each tenant, and `size` bytes of arguments in all.

    The store has the open calls of all workers.
    """

    store: KeyValueStore
    outbox: Outbox
    capacity: int = 1_000
    size: int = 4 * 2**20
    _tenants: OrderedDict[TenantScope, _TenantCalls] = field(default_factory=OrderedDict)
    _size_in_memory: int = 0

    def add(self, tenant: TenantScope, call: ObservedCall, open_call: OpenCall) -> None:
        """Records a call of a response if it has an argument that may begin a conversation."""
        min_length = MIN_DELEGATING_ARGUMENT if open_call.is_delegating else MIN_ARGUMENT
        if len(call.arguments) < min_length or not call.call_id or call.name in _PLAN_TOOLS:
            return
        texts = tuple(read_string_arguments(call.arguments, min_length))
        if not texts:
            return
        tenant_calls = self._tenants.get(tenant)
        if tenant_calls is None:
            tenant_calls = self._tenants[tenant] = _TenantCalls()
        tenant_calls.calls.setdefault(call.call_id, []).append((open_call, texts))
        for text in texts:
            if (length := len(text)) not in tenant_calls.texts:
                insort(tenant_calls.lengths, length)
            tenant_calls.texts.setdefault(length, []).append((text, open_call))
            self._size_in_memory += _TEXT_SIZE + length
        self.outbox.put(_call_key(tenant, open_call), lambda: _encode_row(tenant, open_call, texts), OPEN_SECONDS)
        while len(tenant_calls.calls) > self.capacity:
            self._drop(tenant, next(iter(tenant_calls.calls)))
        while self._size_in_memory > self.size:
            # The tenant that exceeds the size loses a call, unless it has only this one.
            owner = tenant if len(tenant_calls.calls) > 1 else next(iter(self._tenants))
            self._drop(owner, next(iter(self._tenants[owner].calls)))

    def has_calls(self, tenant: TenantScope) -> bool:
        """Whether a call of a tenant is open at this worker."""
        return tenant in self._tenants

    def close(self, tenant: TenantScope, call_id: str, session: str, chain: Sequence[bytes]) -> None:
        """Closes a call that was answered in this session, or in a list with these chain keys."""
        tenant_calls = self._tenants.get(tenant)
        for call, _ in tenant_calls.calls.get(call_id, ()) if tenant_calls is not None else ():
            if call.session == session or (0 <= call.index < len(chain) and chain[call.index] == call.chain_key):
                self._drop(tenant, call_id, call)
                self.outbox.put(_call_key(tenant, call), bytes, _TOMBSTONE_SECONDS)
                return

    def find_candidates(self, tenant: TenantScope, texts: Sequence[str], session: str, now: float) -> list[OpenCall]:
        """Returns this worker's open calls that may have begun a conversation with these opening texts, each once."""
        tenant_calls = self._tenants.get(tenant)
        candidates: dict[tuple[str, str], OpenCall] = {}
        if tenant_calls is None:
            return []
        for text in texts:
            for argument, call in self._arguments_of_similar_length(tenant_calls, text):
                if (
                    call.session != session
                    and now - call.at < OPEN_SECONDS
                    and _is_match(argument, text, call.is_delegating)
                ):
                    candidates[call.session, call.call_id] = call
        return list(candidates.values())

    async def find_in_store(
        self, tenant: TenantScope, texts_by_session: Mapping[str, Sequence[str]], now: float
    ) -> dict[str, list[OpenCall]]:
        """Returns the candidates among the open calls of all workers, for several conversations by session.

        Sessions without a candidate are left out.
        """
        candidates: dict[str, dict[tuple[str, str], OpenCall]] = {}
        heads: dict[tuple[str, int], list[bytes]] = {}
        after = ""
        for _ in range(_MAX_PAGES):
            try:
                rows = await self.store.scan(tenant.delegation_collection("open"), after=after, limit=_ROWS)
            except StoreUnavailable:
                return {}
            for _, value in rows:
                row = _decode_row(value)
                if row is None or now - row.at >= OPEN_SECONDS:
                    continue
                call = OpenCall(row.call_id, row.node, row.session, row.delegating, row.at, row.home)
                for session, texts in texts_by_session.items():
                    matches = (
                        _is_hash_match(tenant, hashes, text, row.delegating, heads)
                        for hashes in row.texts
                        for text in texts
                    )
                    if session != row.session and any(matches):
                        candidates.setdefault(session, {})[call.session, call.call_id] = call
            if len(rows) < _ROWS:
                break
            after = rows[-1][0]
        return {session: list(calls.values()) for session, calls in candidates.items()}

    def forget(self) -> None:
        """Removes all open calls from memory."""
        self._tenants.clear()
        self._size_in_memory = 0

    @staticmethod
    def _arguments_of_similar_length(tenant_calls: _TenantCalls, text: str) -> Iterator[tuple[str, OpenCall]]:
        longest = len(text)
        for index in range(bisect_left(tenant_calls.lengths, _min_argument_length(longest)), len(tenant_calls.lengths)):
            if tenant_calls.lengths[index] > longest:
                return
            yield from tenant_calls.texts[tenant_calls.lengths[index]]

    def _drop(self, tenant: TenantScope, call_id: str, only: OpenCall | None = None) -> None:
        tenant_calls = self._tenants[tenant]
        entries = tenant_calls.calls.pop(call_id)
        removed = [entry for entry in entries if only is None or entry[0] is only]
        if len(removed) < len(entries):
            tenant_calls.calls[call_id] = [entry for entry in entries if entry[0] is not only]
        arguments = tenant_calls.texts
        for call, texts in removed:
            for text in texts:
                length = len(text)
                self._size_in_memory -= _TEXT_SIZE + length
                arguments[length] = [pair for pair in arguments[length] if pair[1] is not call or pair[0] != text]
                if not arguments[length]:
                    del arguments[length]
                    del tenant_calls.lengths[bisect_left(tenant_calls.lengths, length)]
        if not tenant_calls.calls:
            del self._tenants[tenant]


def opening_texts(conversation: Conversation) -> list[str]:
    """Returns the opening texts of a new conversation: each text part of the user's messages, and each whole message.

    Very long texts are left out. Empty if the conversation is not new.
    """
    texts: list[str] = []
    for message in conversation.messages:
        if message.role == "assistant":
            return []
        if message.role == "user":
            parts = [part.text for part in message.parts if isinstance(part, Text)]
            texts += [*parts, "\n".join(parts)] if len(parts) > 1 else parts
    unique: dict[str, None] = {}
    for text in texts[:_MAX_TEXTS]:
        if len(text) <= _LONGEST_TEXT and len(stripped := text.strip()) >= MIN_DELEGATING_ARGUMENT:
            unique[stripped] = None
    return list(unique)


def read_string_arguments(raw: str, min_length: int) -> Iterable[str]:
    """Returns the distinct string arguments of a call, nested ones too, with at least `min_length` characters."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        value = raw
    strings: dict[str, None] = {}
    stack: list[Any] = [value]
    while stack and len(strings) < _MAX_STRINGS:
        value = stack.pop()
        if type(value) is str:
            if len(stripped := value.strip()) >= min_length:
                strings[stripped] = None
        elif type(value) is dict:
            stack += value.values()
        elif type(value) is list:
            stack += value
    return strings


def _min_argument_length(length: int) -> int:
    """Returns the length of the shortest argument that makes up 80 % of a text of this length."""
    return -(-length * 4 // 5)


def _is_match(argument: str, text: str, is_delegating: bool) -> bool:
    if len(argument) < MIN_ARGUMENT:
        return is_delegating and argument == text
    return argument in text


def _is_hash_match(
    tenant: TenantScope,
    hashes: _ArgumentHashes,
    text: str,
    is_delegating: bool,
    heads: dict[tuple[str, int], list[bytes]],
) -> bool:
    """Whether a text contains an argument, by hashes: searches for the argument's beginning, then compares the whole.

    `heads` caches the hashes of the possible beginnings.
    """
    length, head, whole = hashes
    if not _min_argument_length(len(text)) <= length <= len(text) or (
        length < MIN_ARGUMENT and not (is_delegating and length == len(text))
    ):
        return False
    start_count = len(text) - _min_argument_length(len(text)) + 1
    size = min(length, _HEAD_LENGTH)
    beginnings = heads.get((text, size))
    if beginnings is None:
        beginnings = [_hash_text(tenant, text[start : start + size]) for start in range(start_count)]
        heads[text, size] = beginnings
    return any(
        beginning == head and _hash_text(tenant, text[start : start + length]) == whole
        for start, beginning in enumerate(beginnings[: len(text) - length + 1])
    )


def _encode_row(tenant: TenantScope, open_call: OpenCall, texts: Sequence[str]) -> bytes:
    hashes = tuple(
        _ArgumentHashes(len(text), _hash_text(tenant, text[:_HEAD_LENGTH]), _hash_text(tenant, text)) for text in texts
    )
    return msgspec.msgpack.encode(
        _OpenCallRow(
            open_call.call_id,
            open_call.node,
            open_call.session,
            open_call.is_delegating,
            open_call.at,
            open_call.home,
            hashes,
        )
    )


def caller_session(value: bytes) -> str:
    """Returns the caller's session from a stored open call; empty if it cannot be decoded."""
    row = _decode_row(value)
    return row.session if row is not None else ""


def _decode_row(value: bytes) -> _OpenCallRow | None:
    try:
        return msgspec.msgpack.decode(value, type=_OpenCallRow) if value else None
    except msgspec.MsgspecError:
        return None


def _hash_text(tenant: TenantScope, text: str) -> bytes:
    return hashlib.sha256(tenant.key + b"open" + text.encode("utf-8", "surrogatepass")).digest()[:16]


def _call_key(tenant: TenantScope, open_call: OpenCall) -> Key:
    name = hashlib.sha256(f"{open_call.session}\n{open_call.call_id}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return Key(tenant.delegation_collection("open"), name)
