"""What the log of a transcript says, and a transcript as it is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

import msgspec

from accordion.archive import archive_entries
from accordion.archive.archive import Archive
from accordion.archive.archive_entries import BEHIND, TranscriptEntry
from accordion.archive.artifacts import tenant_name, unpack
from accordion.model.values import dataclass, replace

HEAD = ("system", "instructions", "tools", "functions", "response_format", "text", "output_config", "output_format")
"""Fields of a request that are kept beside its list: the system prompt, and what is offered to the model."""

_SYSTEM = ("system", "instructions")
_LISTING = {"responses": "input"}
_MESSAGES = "messages"
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Transcript:
    """What is recorded of a session: message keys in the order of the client's list (`lead` are those of its entries
    that belong to the system prompt). `rows` are the keys of the rows of all of them, `lead` first; `fields` are the
    other fields of a request, as JSON."""

    dialect: str
    model: str
    lead: tuple[bytes, ...]
    messages: tuple[bytes, ...]
    fields: Mapping[str, bytes] = field(default_factory=dict)
    rows: tuple[bytes, ...] = ()

    @property
    def system(self) -> bytes | None:
        """The system prompt that stands beside the list, as JSON."""
        return next((self.fields[name] for name in _SYSTEM if self.fields.get(name, b"null") != b"null"), None)

    @property
    def before(self) -> int:
        """How many entries stand before the first message of the conversation: by so much is an index of this
        transcript more than one of an artifact."""
        return len(self.lead) + (self.system is not None)

    def __len__(self) -> int:
        return self.before + len(self.messages)


@dataclass(frozen=True, slots=True)
class OriginalHistory:
    """The whole history as a request's body; `missing` messages are not kept any more and are left out of it. `first`
    is where in its list the message stands that artifacts and summaries count as 0: behind the system prompt."""

    dialect: str
    body: bytes
    missing: int = 0
    first: int = 0


@dataclass(frozen=True, slots=True)
class LogState:
    """What a log comes to. `since` is when its list was last written from the beginning, `entries` how many followed;
    `size` is what it counts, in bytes; `rows` and `lead_rows` are the keys of the rows of `keys` and `lead`."""

    dialect: str = ""
    model: str = ""
    keys: tuple[bytes, ...] = ()
    lead: tuple[bytes, ...] = ()
    head: bytes = b""
    since: float = 0.0
    entries: int = 0
    size: int = 0
    rows: tuple[bytes, ...] = ()
    lead_rows: tuple[bytes, ...] = ()


class _PendingList:
    """Messages as requests held them that bring the whole list, with their rows; `end` is the chain key of the last."""

    __slots__ = ("end", "keys", "rows")

    def __init__(self, keys: list[bytes], rows: list[bytes]) -> None:
        self.keys = keys
        self.rows = rows
        self.end = b""


class _LogReplay:
    """What a log comes to, in whichever order its entries came: workers gather what they write, may not have heard of
    each other's entries, and what waited for the store may come after what was written when that was back."""

    def __init__(self) -> None:
        self._last = _PendingList([], [])
        self._at = 0.0
        self._lists: dict[bytes, _PendingList] = {}
        """By the places where requests ended. A list that was left for another stays, should somebody go on with it."""
        self._early: dict[bytes, list[TranscriptEntry]] = {}
        """Entries that came before the one that they follow, by the place where that one ends."""
        self._behind: dict[bytes, TranscriptEntry] = {}
        """What stands behind replies that the provider keeps, by place: what was sent again counts once."""

    def take(self, each: TranscriptEntry) -> None:
        """Takes the next entry."""
        if each.start == BEHIND:
            self._behind.setdefault(each.place, each)
        elif each.after and each.after not in self._lists and each.start > len(self._last.keys):
            self._early.setdefault(each.after, []).append(each)
        else:
            self._apply(each)
            for early in self._early.pop(each.place, ()):
                self.take(early)

    def _apply(self, each: TranscriptEntry) -> None:
        held, start = self._lists.get(each.after, self._last) if each.after else self._last, each.start
        there = held.keys[start:]
        # What is a beginning of what is there takes nothing away.
        if there[: len(each.keys)] != each.keys:
            if each.keys[: len(there)] != there:
                held = _PendingList(held.keys[:start], held.rows[:start])
            held.keys[start:] = each.keys
            del held.rows[start + len(each.keys) :]
            held.end, self._at = each.place, each.at
        # Its rows are the newer ones: they are kept for longer.
        held.rows[start : start + len(each.keys)] = each.rows
        self._last = self._lists[each.place] = held

    def messages(self) -> tuple[list[bytes], list[bytes]]:
        """The keys of all messages in order, and those of their rows; to be called last."""
        # What such an entry follows is lost. It must not take the place of what a newer list holds.
        for each in [each for those in self._early.values() for each in those]:
            if each.start >= len(self._last.keys) or each.at >= self._at:
                self._apply(each)
        found, rows, waiting = list(self._last.keys), list(self._last.rows), dict(self._behind)
        following: dict[bytes, list[TranscriptEntry]] = {}
        for each in waiting.values():
            following.setdefault(each.after, []).append(each)
        direct = following.pop(self._last.end, []) if self._last.end else []
        # What is not known to follow anything was said behind the rest, unless a newer list holds it.
        first = [each for after, those in following.items() if after not in waiting for each in those]
        first = [each for each in first if each.at >= self._at]
        first.sort(key=lambda each: each.at)
        stack = [*reversed(first), *reversed(direct)]
        while stack:
            each = stack.pop()
            if waiting.pop(each.place, None) is not None:
                found += each.keys
                rows += each.rows
                stack += reversed(following.get(each.place, ()))
        return found, rows


def replay_log(log: Iterable[TranscriptEntry]) -> LogState:
    """What the entries of a log come to."""
    state, laid = LogState(), _LogReplay()
    for each in log:
        laid.take(each)
        whole = each.start == 0
        state = LogState(
            each.dialect,
            each.model,
            (),
            tuple(each.lead) if each.head else state.lead,
            each.head or state.head,
            each.at if whole else state.since or each.at,
            0 if whole else state.entries + 1,
            each.size if whole else state.size + each.size,
            (),
            tuple(each.lead_rows) if each.head else state.lead_rows,
        )
    keys, rows = laid.messages()
    return replace(state, keys=tuple(keys), rows=tuple(rows))


async def load_transcript(archive: Archive, tenant_key: bytes, session: str) -> Transcript | None:
    """The transcript of a session; None where there is none. Raises StoreUnavailable."""
    log = archive_entries.decode_transcript(
        await archive.store.read(archive_entries.transcript_key(tenant_name(tenant_key), session))
    )
    if not log:
        return None
    state = replay_log(log)
    place = archive_entries.head_key(state.head)
    head = unpack(archive.open_value(tenant_key, place, await archive.store.get(place))) if state.head else None
    rows = (*state.lead_rows, *state.rows)
    return Transcript(state.dialect, state.model, state.lead, state.keys, decode_head(head), rows)


def head_json(envelope: Mapping[str, bytes]) -> bytes:
    """The fields that are kept beside the list, as one JSON object."""
    return b"{%s}" % b",".join(b'"%s":%s' % (name.encode(), envelope[name]) for name in HEAD if name in envelope)


def decode_head(head: bytes | None) -> dict[str, bytes]:
    """The same as fields; none where it cannot be read."""
    try:
        return {name: bytes(value) for name, value in _FIELDS.decode(head).items()} if head else {}
    except (msgspec.MsgspecError, ValueError):
        return {}


def system_json(transcript: Transcript) -> bytes:
    """The system prompt that stands beside the list as an entry of the list."""
    return b'{"role":"system","content":%s}' % (transcript.system or b'""')


def build_body(transcript: Transcript, wires: Sequence[bytes | None]) -> OriginalHistory:
    """A request's body with the list's entries that are there."""
    listing = _LISTING.get(transcript.dialect, _MESSAGES).encode()
    there = [wire for wire in wires if wire is not None]
    if not all(map(archive_entries.is_exact, transcript.rows)):
        there = _with_unique_ids(there)
    fields = [b'"model":%s' % msgspec.json.encode(transcript.model)]
    fields += [b'"%s":%s' % (name.encode(), value) for name, value in transcript.fields.items()]
    fields.append(b'"%s":[%s]' % (listing, b",".join(there)))
    first = sum(wire is not None for wire in wires[: len(transcript.lead)])
    return OriginalHistory(transcript.dialect, b"{%s}" % b",".join(fields), len(wires) - len(there), first)


def _with_unique_ids(wires: Sequence[bytes]) -> list[bytes]:
    """The entries with each `id` once. Earlier transcripts have one row for messages that say the same, with the id of
    one of them; a request in which an id stands twice is refused, and one without ids is not (Responses)."""
    seen, out = set[bytes](), list[bytes]()
    for wire in wires:
        fields = decode_head(wire) if b'"id"' in wire and wire.startswith(b"{") else {}
        name = fields.get("id", b"")
        if name and name in seen and "role" in fields:
            del fields["id"]
            out.append(msgspec.json.encode({key: msgspec.Raw(value) for key, value in fields.items()}))
        else:
            out.append(wire)
        seen.add(name)
    return out
