"""Which call began a conversation: the one that holds its opening task, word for word, and is still open.

Of each call that goes by, the string arguments are remembered until it is answered, or for an hour. A new conversation
whose task consists of one of them, to at least 80 %, is that call's. Never by time, never by likeness; of two such
calls it is neither's. In memory the texts themselves are held; the store, for other workers, has hashes only.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import msgspec

from accordion.core.conversation import Conversation, Text
from accordion.core.errors import StoreUnavailable
from accordion.core.ports import Key, Outbox, Store
from accordion.core.records import CallSeen
from accordion.core.values import dataclass

LEAST, LEAST_DELEGATING = 40, 8
"""The shortest argument that says anything, in characters: of any tool, and of one that delegates."""
LIFE = 3_600.0
"""Seconds for which a call that nobody answers stays open."""
# Seconds after which the store may drop what was closed: a write that replaces one that waits to be written.
_GONE = 1.0
_HEAD = 32
_STRINGS, _TEXTS, _ROWS, _PAGES = 32, 16, 2_000, 10
# In characters. No model writes so much in one call; to copy and to hash more would delay other requests.
_MOST_DELEGATING = 1 << 20
# Tools by which an agent hands its plan to itself: some clients go on with it in a new conversation, which is no
# delegation.
_TEXT = 400
"""Bytes of memory that an argument takes beside its characters."""
_OWN_PLAN = frozenset({"ExitPlanMode", "exit_plan_mode"})


@dataclass(frozen=True, slots=True)
class Call:
    """An open call. `node` is who made it (empty for the top: then it is its session's), `home` the name by which marks
    speak of it, `place` the chain key where the request of the call ended, and `index` the index of that."""

    call_id: str
    node: str
    session: str
    delegating: bool
    at: float
    home: str = ""
    place: bytes = b""
    index: int = -1


class _Row(msgspec.Struct, array_like=True, frozen=True):
    call_id: str
    node: str
    session: str
    delegating: bool
    at: float
    home: str
    texts: tuple[tuple[int, bytes, bytes], ...]
    """Of each argument its length, a hash of its beginning and one of all of it."""


class _Open:
    """What is open of one tenant."""

    __slots__ = ("calls", "lengths", "texts")

    def __init__(self) -> None:
        self.calls: OrderedDict[str, list[tuple[Call, tuple[str, ...]]]] = OrderedDict()
        self.lengths: list[int] = []
        self.texts: dict[int, list[tuple[str, Call]]] = {}


@dataclass(frozen=False, slots=True)
class Openings:
    """The open calls of one worker: at most `capacity` of each tenant, and `size` bytes of arguments in all."""

    store: Store
    outbox: Outbox
    capacity: int = 1_000
    size: int = 4 * 2**20
    _tenants: OrderedDict[str, _Open] = field(default_factory=OrderedDict)
    _held: int = 0

    def add(self, space: bytes, tenant: str, call: CallSeen, made: Call) -> None:
        """Remembers a call of a reply, where it has an argument that might open a conversation."""
        least = LEAST_DELEGATING if made.delegating else LEAST
        if len(call.arguments) < least or not call.call_id or call.name in _OWN_PLAN:
            return
        texts = tuple(arguments(call.arguments, least))
        if not texts:
            return
        held = self._tenants.get(tenant)
        if held is None:
            held = self._tenants[tenant] = _Open()
        held.calls.setdefault(call.call_id, []).append((made, texts))
        for text in texts:
            if (length := len(text)) not in held.texts:
                insort(held.lengths, length)
            held.texts.setdefault(length, []).append((text, made))
            self._held += _TEXT + length
        self.outbox.put(_key(tenant, made), lambda: _row(space, made, texts), LIFE)
        while len(held.calls) > self.capacity:
            self._drop(tenant, next(iter(held.calls)))
        while self._held > self.size:
            # Whoever fills the room makes room, unless it has no more than this call.
            whose = tenant if len(held.calls) > 1 else next(iter(self._tenants))
            self._drop(whose, next(iter(self._tenants[whose].calls)))

    def any(self, tenant: str) -> bool:
        """Whether any call of a tenant is open here."""
        return tenant in self._tenants

    def close(self, tenant: str, call_id: str, session: str, chain: Sequence[bytes]) -> None:
        """A call was answered in a list with these chain keys, or in this session."""
        held = self._tenants.get(tenant)
        for made, _ in held.calls.get(call_id, ()) if held is not None else ():
            if made.session == session or (0 <= made.index < len(chain) and chain[made.index] == made.place):
                self._drop(tenant, call_id, made)
                self.outbox.put(_key(tenant, made), bytes, _GONE)
                return

    def candidates(self, tenant: str, texts: Sequence[str], session: str, now: float) -> list[Call]:
        """The open calls that a conversation which opens with `texts` may come from, each once."""
        held = self._tenants.get(tenant)
        found: dict[tuple[str, str], Call] = {}
        if held is None:
            return []
        for text in texts:
            for known, made in self._near(held, text):
                if made.session != session and now - made.at < LIFE and _fits(known, text, made.delegating):
                    found[made.session, made.call_id] = made
        return list(found.values())

    async def elsewhere(
        self, space: bytes, tenant: str, opened: Mapping[str, Sequence[str]], now: float
    ) -> dict[str, list[Call]]:
        """The same among the calls of all workers, for several conversations by their sessions; only those that some
        call fits are told of."""
        found: dict[str, dict[tuple[str, str], Call]] = {}
        heads: dict[tuple[str, int], list[bytes]] = {}
        after = ""
        for _ in range(_PAGES):
            try:
                rows = await self.store.scan(f"open/{tenant}", after=after, limit=_ROWS)
            except StoreUnavailable:
                return {}
            for _, value in rows:
                row = _read(value)
                if row is None or now - row.at >= LIFE:
                    continue
                made = Call(row.call_id, row.node, row.session, row.delegating, row.at, row.home)
                for session, texts in opened.items():
                    fits = (
                        _fits_hashed(space, known, text, row.delegating, heads) for known in row.texts for text in texts
                    )
                    if session != row.session and any(fits):
                        found.setdefault(session, {})[made.session, made.call_id] = made
            if len(rows) < _ROWS:
                break
            after = rows[-1][0]
        return {session: list(calls.values()) for session, calls in found.items()}

    def forget(self) -> None:
        """Knows of no open call any more."""
        self._tenants.clear()
        self._held = 0

    @staticmethod
    def _near(held: _Open, text: str) -> Iterator[tuple[str, Call]]:
        longest = len(text)
        for index in range(bisect_left(held.lengths, _shortest(longest)), len(held.lengths)):
            if held.lengths[index] > longest:
                return
            yield from held.texts[held.lengths[index]]

    def _drop(self, tenant: str, call_id: str, only: Call | None = None) -> None:
        held = self._tenants[tenant]
        entries = held.calls.pop(call_id)
        gone = [entry for entry in entries if only is None or entry[0] is only]
        if len(gone) < len(entries):
            held.calls[call_id] = [entry for entry in entries if entry[0] is not only]
        for made, texts in gone:
            for text in texts:
                length = len(text)
                self._held -= _TEXT + length
                left = held.texts[length] = [one for one in held.texts[length] if one[1] is not made or one[0] != text]
                if not left:
                    del held.texts[length]
                    del held.lengths[bisect_left(held.lengths, length)]
        if not held.calls:
            del self._tenants[tenant]


def opening(conversation: Conversation) -> list[str]:
    """The texts that a new conversation opens with: each part of what its user says, and all of a message, but
    for very long ones. Empty where the conversation is not new."""
    texts: list[str] = []
    for message in conversation.messages:
        if message.role == "assistant":
            return []
        if message.role == "user":
            said = [part.text for part in message.parts if isinstance(part, Text)]
            texts += [*said, "\n".join(said)] if len(said) > 1 else said
    found: dict[str, None] = {}
    for text in texts[:_TEXTS]:
        if len(text) <= _MOST_DELEGATING and len(stripped := text.strip()) >= LEAST_DELEGATING:
            found[stripped] = None
    return list(found)


def arguments(said: str, least: int) -> Iterable[str]:
    """The string arguments of a call, nested ones too, that have at least so many characters; each once."""
    try:
        value = msgspec.json.decode(said)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        value = said
    found: dict[str, None] = {}
    waiting: list[Any] = [value]
    while waiting and len(found) < _STRINGS:
        value = waiting.pop()
        if type(value) is str:
            if len(stripped := value.strip()) >= least:
                found[stripped] = None
        elif type(value) is dict:
            waiting += value.values()
        elif type(value) is list:
            waiting += value
    return found


def _shortest(length: int) -> int:
    """The shortest argument that makes up 80 % of a text of this length."""
    return -(-length * 4 // 5)


def _fits(argument: str, text: str, delegating: bool) -> bool:
    if len(argument) < LEAST:
        return delegating and argument == text
    return argument in text


def _fits_hashed(
    space: bytes,
    known: tuple[int, bytes, bytes],
    text: str,
    delegating: bool,
    heads: dict[tuple[str, int], list[bytes]],
) -> bool:
    """The same by hashes: the argument's beginning is looked for wherever it may stand, then all of it."""
    length, head, whole = known
    if not _shortest(len(text)) <= length <= len(text) or (length < LEAST and not (delegating and length == len(text))):
        return False
    most = len(text) - _shortest(len(text)) + 1
    size = min(length, _HEAD)
    starts = heads.get((text, size))
    if starts is None:
        starts = heads[text, size] = [_hashed(space, text[at : at + size]) for at in range(most)]
    return any(
        start == head and _hashed(space, text[at : at + length]) == whole
        for at, start in enumerate(starts[: len(text) - length + 1])
    )


def _row(space: bytes, made: Call, texts: Sequence[str]) -> bytes:
    hashed = tuple((len(text), _hashed(space, text[:_HEAD]), _hashed(space, text)) for text in texts)
    return msgspec.msgpack.encode(
        _Row(made.call_id, made.node, made.session, made.delegating, made.at, made.home, hashed)
    )


def maker_of(value: bytes) -> str:
    """The session that made an open call, as the store has it; empty where that cannot be read."""
    row = _read(value)
    return row.session if row is not None else ""


def _read(value: bytes) -> _Row | None:
    try:
        return msgspec.msgpack.decode(value, type=_Row) if value else None
    except msgspec.MsgspecError:
        return None


def _hashed(space: bytes, text: str) -> bytes:
    return hashlib.sha256(space + b"open" + text.encode("utf-8", "surrogatepass")).digest()[:16]


def _key(tenant: str, made: Call) -> Key:
    name = hashlib.sha256(f"{made.session}\n{made.call_id}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return Key(f"open/{tenant}", name)
