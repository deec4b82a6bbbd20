"""The walk over a body: bytes in, Conversation out, at a cost that grows with what is new.

A client sends its whole history with every request. The beginning of a body that was read before is recognised by
comparing it with what was read then (block by block: less than 0.1 ms for 800 KB); only what comes behind it is
parsed, keyed and remembered. Nothing here changes a byte.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from threading import Lock

import msgspec

from accordion.core.conversation import Conversation, Message
from accordion.core.errors import TooLong, Unreadable
from accordion.dialects.base import Dialect
from accordion.dialects.keys import breakpoints, chain_key, chain_start, message_key
from accordion.dialects.spans import FIELDS, SPACE, holds_more, is_list, items_of, laid, place
from accordion.dialects.trails import SHORTEST, Trail, Trails

_MODEL = msgspec.json.Decoder(str)

# Fields whose content is overhead: sent with every request beside the messages.
_OVERHEAD = (
    "system",
    "instructions",
    "tools",
    "functions",
    "response_format",
    "text",
    "output_config",
    "output_format",
)
_UNSAID: list[bytes | None] = [None] * len(_OVERHEAD)
# So many entries may differ at the end of a list that is still taken for the same conversation a turn later:
# clients move cache breakpoints and environment blocks about there.
_RESTLESS = 4

# A message has seldom more than a dozen strings in it.
_STRINGS = 25
# Shorter bodies have no room for what could take long.
_COUNTED_FROM = 1 << 20

_UNDECODABLE = (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError)


class Reader:
    """Reads bodies of every dialect; remembers beginnings within `budget` bytes, the least recently used go first.
    Bodies of more than `most` messages, or of more than 25 times as many strings, are not read.

    Safe to use from several threads: only what is remembered is locked, reading is not.
    """

    def __init__(self, budget: int = 16 * 2**20, most: int = 20_000) -> None:
        self._trails = Trails(budget)
        self._most = most
        self._lock = Lock()

    @property
    def remembered(self) -> int:
        """Bytes that the remembered beginnings are reckoned to take."""
        return self._trails.spent

    def read(self, dialect: Dialect, body: bytes, space: bytes) -> Conversation:
        """Reads a request body for the tenant whose key is `space`. Raises Unreadable where it is no JSON object that
        can be walked, and TooLong where it holds too much; such a body is forwarded as it came."""
        try:
            if len(body) >= SHORTEST:
                with self._lock:
                    old, count, at = self._trails.recall(dialect, body, space)
                if old is not None and count:
                    self._check(body, at)
                    resumed = self._resume(dialect, body, space, old, count, at)
                    if resumed is not None:
                        return resumed
            self._check(body, 0)
            return self._afresh(dialect, body, space)
        except _UNDECODABLE as error:
            raise Unreadable(f"the body could not be read: {error}") from error

    def _check(self, body: bytes, at: int) -> None:
        if len(body) - at > _COUNTED_FROM and holds_more(body, at, _STRINGS * self._most):
            raise TooLong(f"it holds more than {_STRINGS * self._most:,} strings (25 for each message)", self._most)

    # -- the two ways to read ------------------------------------------------

    def _afresh(self, dialect: Dialect, body: bytes, space: bytes) -> Conversation:
        raw = FIELDS.decode(body)
        placed = place(body, dialect.listing, raw) if len(body) >= SHORTEST else None
        listed = raw.pop(dialect.listing, None)
        fields = {name: bytes(value) for name, value in raw.items()}
        wires = _entries(listed)
        trail = self._trail(dialect, space, _blank(space, dialect.name), wires, fields)
        if placed is not None:
            trail.head, trail.before = placed
            trail.pieces, trail.end = laid(body, len(trail.head), wires)
            if len(trail.pieces) == 2 * len(wires) and wires:
                with self._lock:
                    self._trails.remember(dialect, body, space, trail)
        return _conversation(dialect, trail)

    def _resume(
        self, dialect: Dialect, body: bytes, space: bytes, old: Trail, count: int, at: int
    ) -> Conversation | None:
        """Reads on behind the first `count` entries of `old`; None where what follows is not what it seems."""
        follows = SPACE.match(body, at).end()  # type: ignore[union-attr]  # it always matches
        comma = body[follows : follows + 1] == b","
        opening = b'{"' + dialect.listing.encode() + b'":['
        rest = opening + body[follows + comma :]
        raw = FIELDS.decode(rest)
        if place(rest, dialect.listing, raw) is None:
            return None
        wires = _entries(raw.pop(dialect.listing))
        if comma and not wires:
            return None
        fields = dict(old.before)
        for name, value in raw.items():
            was, now = old.fields.get(name), bytes(value)
            fields[name] = was if was == now else now
        kept = max(0, count - old.lead)
        base = Trail(
            head=old.head,
            before=old.before,
            pieces=old.pieces[: 2 * count],
            end=at,
            entries=old.entries[:count],
            lead=min(old.lead, count),
            chain=old.chain[: kept + 1],
            fields=old.fields,
            preamble=old.preamble,
            tools=old.tools,
            # Without all of the old preamble its key stands for nothing.
            overhead_key=old.overhead_key if count >= old.lead else b"",
        )
        trail = self._trail(dialect, space, base, wires, fields)
        new, trail.end = laid(body, at, wires)
        if len(new) == 2 * len(wires):
            trail.pieces = base.pieces + new
            with self._lock:
                if len(old.entries) - count <= _RESTLESS:
                    self._trails.forget(old)
                self._trails.remember(dialect, body, space, trail)
        return _conversation(dialect, trail)

    def _trail(
        self,
        dialect: Dialect,
        space: bytes,
        base: Trail,
        wires: list[bytes],
        fields: dict[str, bytes],
    ) -> Trail:
        """`base` with entries added behind it, and its overhead read anew where it changed."""
        if len(base.entries) + len(wires) > self._most:
            raise TooLong(f"it has more than {self._most:,} messages", self._most)
        entries, chain, lead = list(base.entries), list(base.chain), base.lead
        name = dialect.name
        for wire in wires:
            message = dialect.message(wire)
            key = message_key(message.canonical, space, name)
            if lead == len(entries) and dialect.is_preamble(message):
                lead += 1
            else:
                chain.append(chain_key(chain[-1], key))
            entries.append(Message(key, message.role, message.parts, wire, breakpoints(wire)))
        overhead = list(map(fields.get, _OVERHEAD))
        before = list(map(base.fields.get, _OVERHEAD)) if base.fields else _UNSAID
        if lead == base.lead and base.overhead_key and overhead == before:
            preamble, tools, overhead_key = base.preamble, base.tools, base.overhead_key
        else:
            preamble = (*dialect.preamble(fields), *(part for entry in entries[:lead] for part in entry.parts))
            tools = dialect.tools(fields)
            overhead_key = _overhead_key(space, overhead, entries[:lead])
        return Trail(
            base.head, base.before, base.pieces, base.end, tuple(entries), lead, tuple(chain),
            fields, preamble, tools, overhead_key,
        )  # fmt: skip

    # -- what is remembered ---------------------------------------------------


def _conversation(dialect: Dialect, trail: Trail) -> Conversation:
    fields = trail.fields
    model = fields.get("model")
    return Conversation(
        dialect=dialect.name,
        model=_MODEL.decode(model) if model and model[:1] == b'"' else "",
        messages=trail.entries[trail.lead :],
        lead=trail.entries[: trail.lead],
        chain=trail.chain[1:],
        preamble=trail.preamble,
        tools=trail.tools,
        stream=fields.get("stream") == b"true",
        max_output=dialect.max_output(fields),
        previous=dialect.previous(fields),
        kept=dialect.kept(fields),
        envelope=fields,
        overhead_key=trail.overhead_key,
    )


def _entries(listed: msgspec.Raw | None) -> list[bytes]:
    """The list's entries as they came; a lone value (a string as `input`) is one entry."""
    if listed is None:
        return []
    raw = bytes(listed)
    if is_list(raw):
        return items_of(raw)
    return [raw] if raw[:1] in b'"{' else []


@lru_cache(1_024)
def _blank(space: bytes, dialect: str) -> Trail:
    """What a body is read on from that begins like no other: nothing, with the keys of nothing. It is never changed."""
    nothing = _overhead_key(space, _UNSAID, [])
    return Trail(b"", {}, (), 0, (), 0, (chain_start(space, dialect),), {}, (), (), nothing)


def _overhead_key(space: bytes, fields: list[bytes | None], lead: list[Message]) -> bytes:
    said = [b"\0" * len(fields)]
    if any(fields):
        said = [b"\0" if value is None else len(value).to_bytes(8, "big") + value for value in fields]
    return hashlib.sha256(b"".join([space, *said, *[message.key for message in lead]])).digest()
