"""The walk over a body: bytes in, Conversation out, at a cost that grows with what is new.

A client sends its whole history with every request. The beginning of a body that was read before is recognised by
comparing it with what was read then (block by block: less than 0.1 ms for 800 KB); only what comes behind it is
parsed, keyed and remembered. Nothing here changes a byte.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from threading import Lock

import msgspec

from accordion.core.conversation import Conversation, Message
from accordion.core.errors import TooLong, Unreadable
from accordion.dialects.base import Dialect
from accordion.dialects.keys import TooMany, breakpoints, chain_key, chain_start, message_key
from accordion.dialects.spans import FIELDS, SPACE, holds_more, items_of, laid, place
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

# Keys and values that a message has on average at most: one with a call of a tool has about twenty.
_VALUES = 25

# A step over so many bytes takes so long that whoever waits for the interpreter is let in behind it.
_LARGE = 1 << 20

_UNDECODABLE = (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError)


class Reader:
    """Reads bodies of every dialect; remembers beginnings within `budget` bytes, the least recently used go first.
    Bodies of more than `most` messages, or of more than 25 times as many keys and values, are not read.

    Safe to use from several threads: only what is remembered is locked, reading is not. `pause` is called between the
    steps over large bodies: no other thread runs during a step, and one that wants to needs more than a moment then.
    """

    def __init__(
        self, budget: int = 16 * 2**20, most: int = 20_000, pause: Callable[[], object] = lambda: None
    ) -> None:
        self._pause = pause
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
        except TooMany as error:
            raise TooLong(str(error)) from error
        except _UNDECODABLE as error:
            raise Unreadable(f"the body could not be read: {error}") from error

    def unknown(self, dialect: Dialect, body: bytes, space: bytes) -> int:
        """How many bytes of a body come behind the beginning that is remembered."""
        with self._lock:
            return len(body) - self._trails.recall(dialect, body, space)[2]

    def _check(self, body: bytes, at: int) -> None:
        most = _VALUES * self._most
        if len(body) - at > most and holds_more(body, at, most):
            raise TooLong(
                f"more than {most:,} keys and values, {_VALUES} for each of the {self._most:,} messages of "
                "limits.messages_per_request"
            )

    def _rest(self, behind: bytes) -> None:
        if len(behind) > _LARGE:
            self._pause()

    # -- the two ways to read ------------------------------------------------

    def _afresh(self, dialect: Dialect, body: bytes, space: bytes) -> Conversation:
        raw = FIELDS.decode(body)
        self._rest(body)
        placed = place(body, dialect.listing, raw) if len(body) >= SHORTEST else None
        listed = raw.pop(dialect.listing, None)
        fields = {name: bytes(value) for name, value in raw.items()}
        wires = _entries(listed)
        self._rest(body)
        trail = self._trail(dialect, space, _blank(space, dialect.name), wires, fields)
        if placed is not None:
            trail.head, trail.before, closes = placed
            trail.pieces, trail.end = laid(body, len(trail.head), wires)
            if wires and _is_all(trail.pieces, wires, body, trail.end, closes):
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
        if (placed := place(rest, dialect.listing, raw)) is None:
            return None
        wires = _entries(raw.pop(dialect.listing))
        if comma and not wires:
            return None
        new, end = laid(body, at, wires)
        if not _is_all(new, wires, body, end, len(body) - len(rest) + placed[2]):
            return None
        fields = dict(old.before)
        for name, value in raw.items():
            was, now = old.fields.get(name), bytes(value)
            fields[name] = was if was == now else now
        kept = max(0, count - old.lead)
        base = Trail(
            head=old.head,
            before=old.before,
            pieces=old.pieces[: 2 * count] + new,
            end=end,
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
            raise TooLong(f"more than the {self._most:,} messages of limits.messages_per_request")
        entries, chain, lead = list(base.entries), list(base.chain), base.lead
        name = dialect.name
        for wire in wires:
            message = dialect.message(wire)
            self._rest(wire)
            key = message_key(message.canonical, space, name)
            self._rest(wire)
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


def _is_all(pieces: tuple[bytes, ...], wires: list[bytes], body: bytes, end: int, closes: int) -> bool:
    """Whether `wires` are all that the list of a body holds whose bracket closes at `closes`."""
    # The pattern always matches.
    return len(pieces) == 2 * len(wires) and SPACE.match(body, end).end() == closes  # type: ignore[union-attr]


def _entries(listed: msgspec.Raw | None) -> list[bytes]:
    """The list's entries as they came; a lone value (a string as `input`) is one entry."""
    if listed is None:
        return []
    if bytes(memoryview(listed)[:1]) == b"[":
        return items_of(listed)
    raw = bytes(listed)
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
