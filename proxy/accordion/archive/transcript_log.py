"""Reconstructs a session's transcript from its log.

Theory of operation: each entry of the log gives the position of its messages in the client's list, by index and chain
key. `replay_log` applies the entries in any order of arrival. `load_transcript` reads the log and the request's other
fields, and `build_body` makes a request's body from the transcript and its stored messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from accordion.archive import archive_entries
from accordion.archive.archive import Archive
from accordion.archive.archive_entries import AFTER_PROVIDER_HISTORY, TranscriptEntry
from accordion.archive.artifacts import unpack
from accordion.model.conversation import Conversation
from accordion.model.tenant import TenantScope
from accordion.protocols.json_spans import is_list, is_object, items_of, list_of, with_fields
from accordion.protocols.registry import PROTOCOLS

_TOOL_CREDENTIALS = {"authorization": None, "headers": None}
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Transcript(msgspec.Struct, frozen=True):
    """The recorded transcript of a session.

    `messages` are message keys in the order of the client's list; `lead` are those of its entries that belong to the
    system prompt. `rows` are the keys of the rows of all entries, `lead` first. `fields` are the request's other
    fields, as JSON.
    """

    protocol_name: str
    model: str
    lead: tuple[bytes, ...]
    messages: tuple[bytes, ...]
    fields: Mapping[str, bytes] = msgspec.field(default_factory=dict)
    rows: tuple[bytes, ...] = ()
    earlier_rows: tuple[bytes, ...] = ()
    """The keys of the rows of the lists that the client's own compactions replaced."""

    @property
    def system(self) -> bytes | None:
        """The system prompt outside the list, as JSON."""
        names = PROTOCOLS[self.protocol_name].system_fields if self.protocol_name in PROTOCOLS else ()
        return next((self.fields[name] for name in names if self.fields.get(name, b"null") != b"null"), None)

    @property
    def before(self) -> int:
        """The number of entries before the first message of the conversation.

        An index in this transcript is larger by this than an artifact's index of the same message.
        """
        return len(self.lead) + (self.system is not None)

    def __len__(self) -> int:
        return self.before + len(self.messages)


class OriginalHistory(msgspec.Struct, frozen=True):
    """The whole history as a request's body.

    `missing` messages are no longer stored and are left out. `first` is the index in its list of the message that
    artifacts and summaries count as 0: the first after the system prompt.
    """

    protocol_name: str
    body: bytes
    missing: int = 0
    first: int = 0


class LogState(msgspec.Struct, frozen=True):
    """The state after all entries of a log.

    `since` is when its list was last written from the beginning, `entries` the number of entries since then, `size` the
    bytes that they count. `rows` and `lead_rows` are the row keys of `keys` and `lead`, `options` is the digest of the
    options. The first `listed` keys were in a client's list; the others follow responses that the provider keeps.
    """

    protocol_name: str = ""
    model: str = ""
    keys: tuple[bytes, ...] = ()
    lead: tuple[bytes, ...] = ()
    head: bytes = b""
    since: float = 0.0
    entries: int = 0
    size: int = 0
    rows: tuple[bytes, ...] = ()
    lead_rows: tuple[bytes, ...] = ()
    options: bytes = b""
    listed: int = 0
    earlier_rows: tuple[bytes, ...] = ()
    """See Transcript."""


class _PendingList:
    """Messages of requests that have the whole list, with their rows; `end` is the chain key of the last."""

    __slots__ = ("end", "keys", "rows")

    def __init__(self, keys: list[bytes], rows: list[bytes]) -> None:
        self.keys = keys
        self.rows = rows
        self.end = b""


class _LogReplay:
    """Applies the entries of a log, in whichever order they arrived.

    The order may differ from the requests' because workers gather writes, may not know each other's entries, and write
    later what waited while the store was unavailable.
    """

    def __init__(self) -> None:
        self._last = _PendingList([], [])
        self._at = 0.0
        self.earlier_rows = list[bytes]()
        """The rows of the lists that the client's own compactions replaced."""
        self._lists: dict[bytes, _PendingList] = {}
        """Lists by the chain key of a request's end. Earlier lists stay, as a client may continue from them."""
        self._early_entries: dict[bytes, list[TranscriptEntry]] = {}
        """Entries that arrived before their predecessor, by the predecessor's chain key."""
        self._provider_entries: dict[bytes, TranscriptEntry] = {}
        """Entries after responses that the provider stores, by chain key: a repeated one counts once."""

    def add(self, entry: TranscriptEntry) -> None:
        """Adds the next entry."""
        if entry.start == AFTER_PROVIDER_HISTORY:
            self._provider_entries.setdefault(entry.end, entry)
        elif entry.after and entry.after not in self._lists and entry.start > len(self._last.keys):
            self._early_entries.setdefault(entry.after, []).append(entry)
        else:
            self._apply(entry)
            for early in self._early_entries.pop(entry.end, ()):
                self.add(early)

    def _apply(self, entry: TranscriptEntry) -> None:
        if entry.is_new_list and self._last.keys[: len(entry.keys)] != entry.keys:
            self.earlier_rows += self._last.rows
            self._last = _PendingList([], [])
        target, start = self._lists.get(entry.after, self._last) if entry.after else self._last, entry.start
        present = target.keys[start:]
        # An entry that repeats the beginning of the present messages removes nothing.
        if present[: len(entry.keys)] != entry.keys:
            if entry.keys[: len(present)] != present:
                target = _PendingList(target.keys[:start], target.rows[:start])
            target.keys[start:] = entry.keys
            del target.rows[start + len(entry.keys) :]
            target.end, self._at = entry.end, entry.at
        # The entry's rows are newer, so they expire later.
        target.rows[start : start + len(entry.keys)] = entry.rows
        self._last = self._lists[entry.end] = target

    def messages(self) -> tuple[list[bytes], list[bytes], int]:
        """Returns the keys of all messages in order, those of their rows, and how many were in a client's list; to be
        called last."""
        # The predecessors of these entries are lost. They must not replace messages of a newer list.
        for entry in [entry for entries in self._early_entries.values() for entry in entries]:
            if entry.start >= len(self._last.keys) or entry.at >= self._at:
                self._apply(entry)
        keys, rows, unplaced = list(self._last.keys), list(self._last.rows), dict(self._provider_entries)
        listed = len(keys)
        followers: dict[bytes, list[TranscriptEntry]] = {}
        for entry in unplaced.values():
            followers.setdefault(entry.after, []).append(entry)
        direct = followers.pop(self._last.end, []) if self._last.end else []
        # Entries without a known predecessor belong at the end, unless a newer list has their messages.
        first = [entry for after, entries in followers.items() if after not in unplaced for entry in entries]
        first = [entry for entry in first if entry.at >= self._at]
        first.sort(key=lambda entry: entry.at)
        stack = [*reversed(first), *reversed(direct)]
        while stack:
            entry = stack.pop()
            if unplaced.pop(entry.end, None) is not None:
                keys += entry.keys
                rows += entry.rows
                stack += reversed(followers.get(entry.end, ()))
        return keys, rows, listed


def replay_log(log: Iterable[TranscriptEntry]) -> LogState:
    """Returns the state after all entries of a log."""
    state, replay = LogState(), _LogReplay()
    for entry in log:
        replay.add(entry)
        is_whole_list = entry.start == 0
        state = LogState(
            entry.protocol_name,
            entry.model,
            (),
            tuple(entry.lead) if entry.head else state.lead,
            entry.head or state.head,
            entry.at if is_whole_list else state.since or entry.at,
            0 if is_whole_list else state.entries + 1,
            entry.size if is_whole_list else state.size + entry.size,
            (),
            tuple(entry.lead_rows) if entry.head else state.lead_rows,
            entry.options or state.options,
        )
    keys, rows, listed = replay.messages()
    return replace(state, keys=tuple(keys), rows=tuple(rows), listed=listed, earlier_rows=tuple(replay.earlier_rows))


async def load_transcript(archive: Archive, tenant: TenantScope, session: str) -> Transcript | None:
    """Loads the transcript of a session; None if there is none. Raises StoreUnavailable."""
    log = archive_entries.decode_transcript(
        await archive.store.read(archive_entries.transcript_key(tenant.archive_namespace, session))
    )
    if not log:
        return None
    state = replay_log(log)
    fields: dict[str, bytes] = {}
    for digest in filter(None, (state.head, state.options)):
        key = archive_entries.fields_key(digest)
        fields |= decode_fields(unpack(archive.open_value(tenant, key, await archive.store.get(key))))
    rows = (*state.lead_rows, *state.rows)
    return Transcript(state.protocol_name, state.model, state.lead, state.keys, fields, rows, state.earlier_rows)


def options_digest(tenant: TenantScope, conversation: Conversation) -> bytes:
    """Returns the digest of a request's options, which is specific to the tenant."""
    names = PROTOCOLS[conversation.protocol_name].option_fields
    return hashlib.sha256(tenant.archive_namespace.encode() + fields_json(conversation.envelope, names)).digest()


def fields_json(envelope: Mapping[str, bytes], names: Sequence[str]) -> bytes:
    """Returns those fields of a request that have one of these names, as one JSON object. The credentials that hosted
    tools get (`mcp` in Responses) are left out."""
    fields = {name: envelope[name] for name in names if name in envelope}
    if "tools" in fields:
        fields["tools"] = _remove_credentials(fields["tools"])
    return b"{%s}" % b",".join([b'"%s":%s' % (name.encode(), value) for name, value in fields.items()])


def _remove_credentials(tools: bytes) -> bytes:
    if not is_list(tools):
        return tools
    entries = items_of(tools)
    safe_entries = [with_fields(each, _TOOL_CREDENTIALS) if is_object(each) else each for each in entries]
    return tools if safe_entries == entries else list_of(safe_entries)


def decode_fields(text: bytes | None) -> dict[str, bytes]:
    """Decodes the fields of `fields_json`; empty if they cannot be read."""
    try:
        return {name: bytes(value) for name, value in _FIELDS.decode(text).items()} if text else {}
    except (msgspec.MsgspecError, ValueError):
        return {}


def system_json(transcript: Transcript) -> bytes:
    """Returns the system prompt outside the list as an entry of the list."""
    return PROTOCOLS[transcript.protocol_name].system_message(transcript.system or b'""')


def build_body(transcript: Transcript, wires: Sequence[bytes | None], before: int) -> OriginalHistory:
    """Builds a request's body from the stored entries; `before` of them precede the messages of the newest list."""
    listing = PROTOCOLS[transcript.protocol_name].messages_field.encode()
    present = [wire for wire in wires if wire is not None]
    if not all(map(archive_entries.is_exact, transcript.rows)):
        present = _with_unique_ids(present)
    fields = [b'"model":%s' % msgspec.json.encode(transcript.model)]
    fields += [b'"%s":%s' % (name.encode(), value) for name, value in transcript.fields.items()]
    fields.append(b'"%s":[%s]' % (listing, b",".join(present)))
    first = sum(wire is not None for wire in wires[:before])
    return OriginalHistory(transcript.protocol_name, b"{%s}" % b",".join(fields), len(wires) - len(present), first)


def _with_unique_ids(wires: Sequence[bytes]) -> list[bytes]:
    """Returns the entries with each `id` once.

    Earlier transcripts have one row for messages with the same content, with the id of one of them. A provider refuses
    a request with a repeated id, and accepts one without ids (Responses).
    """
    ids, unique = set[bytes](), list[bytes]()
    for wire in wires:
        fields = decode_fields(wire) if b'"id"' in wire and wire.startswith(b"{") else {}
        item_id = fields.get("id", b"")
        if item_id and item_id in ids and "role" in fields:
            del fields["id"]
            unique.append(msgspec.json.encode({key: msgspec.Raw(value) for key, value in fields.items()}))
        else:
            unique.append(wire)
        ids.add(item_id)
    return unique
