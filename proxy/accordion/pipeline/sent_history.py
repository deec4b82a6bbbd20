"""Reconstructs the last forwarded request of a session, and compares it with the client's list.

A forwarded request is not stored itself. It is rebuilt from the client's list in the transcript, by applying the stored
compactions and insertions again. This gives the same bytes as when the request was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from accordion.archive import archive_entries
from accordion.archive.archive import Archive
from accordion.archive.artifacts import Artifact
from accordion.archive.transcripts import TranscriptStore
from accordion.compaction.rendering import RequestRenderer
from accordion.compaction.reporting import is_in_force
from accordion.compaction.repository import CompactionRepository, decode, is_compaction_key, parse_key
from accordion.insertions.composer import InsertionComposer
from accordion.model.compaction import CompactedConversation, Compaction, apply_compaction, without_compaction
from accordion.model.conversation import Conversation, Message
from accordion.model.errors import NotFound, TooManyMessages, Unreadable
from accordion.model.plan import WRITTEN_BY_COMPACTION
from accordion.model.ports import Key, Tasks
from accordion.model.records import Exchange, Session
from accordion.model.tenant import ConversationRef
from accordion.protocols.base import WireProtocol
from accordion.protocols.body_reader import BodyReader
from accordion.protocols.written_messages import WrittenMessageReader
from accordion.sessions.tenants import Caller

BlockKind = Literal["unchanged", "edited", "summary", "removed", "inserted"]
"""The relation of messages to the client's.

`unchanged`: messages that are forwarded as they came. `edited`: a message that is forwarded with other content.
`summary`: a message that a compaction wrote in place of the client's. `removed`: messages that are not forwarded.
`inserted`: a message that the client does not know of.
"""


class StoredCompaction(msgspec.Struct, frozen=True):
    """A compaction in the store, with the session that it is listed under.

    `base` is the id of the compaction that it was made from; empty if there was none.
    """

    compaction: Compaction
    session: str
    base: str = ""


class RecordedConversation(msgspec.Struct, frozen=True):
    """A session's conversation as the client sent it last. `missing` is the number of messages no longer stored."""

    protocol: WireProtocol
    body: bytes
    conversation: Conversation
    missing: int = 0


class ComparedBlock(msgspec.Struct, frozen=True):
    """A range of a conversation: the client's messages, and the forwarded ones in their place.

    `first` and `last` (inclusive) are the client's indexes, -1 for an inserted message. A summary's `client` leaves out
    the messages within its range that are forwarded by themselves.
    """

    kind: BlockKind
    first: int
    last: int
    client: tuple[tuple[int, Message], ...] = ()
    forwarded: tuple[Message, ...] = ()


class SentRequest(msgspec.Struct, frozen=True):
    """The last forwarded request of a session. `body` is in the client's protocol."""

    original: RecordedConversation
    history: CompactedConversation
    body: bytes
    exchange: Exchange

    @property
    def compaction(self) -> Compaction | None:
        """The compaction in force."""
        return self.history.compaction


class SentHistory:
    """Reads compactions by their id, and rebuilds forwarded requests.

    `composer` returns the composer of insertions for the current settings. Every method may raise StoreUnavailable.
    """

    def __init__(
        self,
        archive: Archive,
        transcripts: TranscriptStore,
        protocols: Mapping[str, WireProtocol],
        message_reader: WrittenMessageReader,
        compactions: CompactionRepository,
        composer: Callable[[], InsertionComposer],
        renderer: RequestRenderer,
        tasks: Tasks,
    ) -> None:
        self._archive = archive
        self._transcripts = transcripts
        self._protocols = protocols
        self._message_reader = message_reader
        self._compactions = compactions
        self._composer = composer
        self._renderer = renderer
        self._tasks = tasks
        # People look at few conversations, so none is cached.
        self._body_reader = BodyReader(budget=0)

    async def find_compaction(self, caller: Caller, compaction_id: str) -> StoredCompaction | None:
        """Returns a compaction of the tenant by its id; None if there is none."""
        found = await archive_entries.find_compaction_entry(
            self._archive.store, caller.tenant.archive_namespace, compaction_id
        )
        if found is None:
            return None
        entry, contents = found
        keys = [key for collection, name, _ in contents.keys if is_compaction_key(key := Key(collection, name))]
        for key, value in zip(keys, await self._archive.store.get_many(keys) if keys else [], strict=True):
            compaction = decode(self._archive.open_value(caller.tenant, key, value))
            if compaction is not None and compaction.id == compaction_id and parse_key(key)[1] == compaction.anchor:
                return StoredCompaction(compaction, entry.session, entry.base)
        return None

    async def list_continued(self, caller: Caller, stored: StoredCompaction) -> frozenset[str]:
        """Returns the ids of a compaction, and of those in its session that were made from its result."""
        ids, bases = {stored.compaction.id}, dict[str, list[str]]()
        for name, base in (await self.list_compactions(caller, stored.session)).items():
            bases.setdefault(base, []).append(name)
        newest = [stored.compaction.id]
        while newest:
            newest = [each for base in newest for each in bases.get(base, []) if each not in ids]
            ids.update(newest)
        return frozenset(ids)

    async def list_compactions(self, caller: Caller, session: str) -> dict[str, str]:
        """Returns the ids of a session's compactions, each with that from whose result it was made, or an empty one.

        Raises StoreUnavailable.
        """
        bases = dict[str, str]()
        async for page in archive_entries.scan_entries(self._archive.store, caller.tenant.archive_namespace, session):
            bases |= {entry.id: entry.base for entry in page if entry.kind == "compaction"}
        return bases

    async def load_conversation(self, caller: Caller, session: str) -> RecordedConversation | None:
        """Returns a session's conversation; None if it is not recorded or cannot be read."""
        original = await self._transcripts.original(caller.tenant, session, is_newest_list=True)
        if original is None:
            return None
        protocol = self._protocols[original.protocol_name]
        try:
            conversation = await self._tasks.offload(self._body_reader.read, protocol, original.body, caller.tenant)
        except (Unreadable, TooManyMessages):
            return None
        return RecordedConversation(protocol, original.body, conversation, original.missing)

    def apply(
        self, caller: Caller, original: RecordedConversation, compaction: Compaction
    ) -> CompactedConversation | None:
        """Returns the covered part of a conversation with a compaction applied.

        Returns None if the compaction is of another history.
        """
        conversation = original.conversation
        covered = replace(
            conversation,
            messages=conversation.messages[: compaction.covered_count],
            chain=conversation.chain[: compaction.covered_count],
            identity=conversation.identity[: compaction.covered_count],
        )
        read_message = self._message_reader.reader_for(original.protocol, caller.tenant)
        try:
            return apply_compaction(covered, compaction, read_message)
        except ValueError:
            return None

    async def rebuild(self, caller: Caller, session: Session, exchanges: Sequence[Exchange]) -> SentRequest:
        """Returns the last forwarded request of a session.

        Raises NotFound if it cannot be reconstructed; the message says why.
        """
        original, exchange = await self.load_conversation(caller, session.id), exchanges[-1] if exchanges else None
        if original is None or exchange is None:
            raise NotFound(
                "This session has no transcript: the setting `archive.record` chooses the sessions that are recorded.",
                code="original_not_found",
            )
        conversation, protocol = original.conversation, original.protocol
        if original.missing or len(conversation.messages) != exchange.messages:
            raise NotFound(
                "The last request cannot be reconstructed, since its messages are not those of the transcript: some "
                "are no longer stored, the provider keeps them, or the client went back to an earlier message.",
                code="sent_not_found",
            )
        history, body = without_compaction(conversation), original.body
        ref = ConversationRef(caller.tenant, session.scope, session.id)
        if is_in_force(exchange.compaction):
            history = await self._compactions.find(protocol, ref, conversation, check_store=True, has_same_form=False)
            history = await self._choose(caller, exchange, conversation, protocol, history)
        # Only the first request with an insertion has it in its record; all have its tokens.
        has_insertions = exchange.utilization.insertions > 0
        if history.compaction is not None or has_insertions:
            history, _ = await self._composer().compose(
                protocol, ref, conversation, history, check_store=True, with_insertions=has_insertions
            )
            body = self._renderer.render_body(protocol, history)
        return SentRequest(original, history, body, exchange)

    async def _choose(
        self,
        caller: Caller,
        exchange: Exchange,
        conversation: Conversation,
        protocol: WireProtocol,
        deepest: CompactedConversation,
    ) -> CompactedConversation:
        """Returns the history with the compaction that the exchange names, which need not be the deepest one."""
        named = exchange.compaction.id if exchange.compaction is not None else ""
        if not named or (deepest.compaction is not None and deepest.compaction.id == named):
            return deepest
        stored = await self.find_compaction(caller, named)
        if stored is None:
            return deepest
        try:
            return self._compactions.apply(protocol, caller.tenant, conversation, stored.compaction)
        except ValueError:
            return deepest


# -- comparison --------------------------------------------------------------------------------------------------------


def compare_histories(original: Conversation, history: CompactedConversation) -> list[ComparedBlock]:
    """Compares a conversation with its forwarded form, in the order of the forwarded messages."""
    blocks = list(_list_forwarded(original, history))
    covered = {index for block in blocks for index, _ in block.client}
    missing = [index for index in range(len(original.messages)) if index not in covered]
    for first, last in _find_runs(missing):
        block = ComparedBlock("removed", first, last, _client_messages(original, range(first, last + 1)))
        position = next((at for at, each in enumerate(blocks) if each.first > last), len(blocks))
        blocks.insert(position, block)
    return blocks


def _list_forwarded(original: Conversation, history: CompactedConversation) -> Iterator[ComparedBlock]:
    messages = history.conversation.messages
    by_themselves = {origin for origin in history.origins if origin >= 0}
    run: list[int] = []
    for message, origin, (first, last, is_edited) in zip(messages, history.origins, history.all_spans, strict=True):
        if origin >= 0 and not is_edited:
            if run and origin != run[-1] + 1:
                yield _unchanged(original, run)
                run = []
            run.append(origin)
            continue
        if run:
            yield _unchanged(original, run)
            run = []
        if is_edited:
            yield ComparedBlock("edited", first, last, _client_messages(original, [first]), (message,))
        elif origin == WRITTEN_BY_COMPACTION:
            replaced = [index for index in range(first, last + 1) if index not in by_themselves]
            yield ComparedBlock("summary", first, last, _client_messages(original, replaced), (message,))
        else:
            yield ComparedBlock("inserted", -1, -1, (), (message,))
    if run:
        yield _unchanged(original, run)


def _unchanged(original: Conversation, indexes: Sequence[int]) -> ComparedBlock:
    client = _client_messages(original, indexes)
    return ComparedBlock("unchanged", indexes[0], indexes[-1], client, tuple(message for _, message in client))


def _client_messages(original: Conversation, indexes: Sequence[int]) -> tuple[tuple[int, Message], ...]:
    return tuple((index, original.messages[index]) for index in indexes if index < len(original.messages))


def _find_runs(indexes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields the first and the last index of each run of consecutive indexes."""
    start = 0
    for at in range(1, len(indexes) + 1):
        if at == len(indexes) or indexes[at] != indexes[at - 1] + 1:
            yield indexes[start], indexes[at - 1]
            start = at


def find_artifacts(block: ComparedBlock, artifacts: Sequence[Artifact]) -> list[Artifact]:
    """Returns the artifacts that have content of a block's messages."""
    if block.kind in ("unchanged", "inserted"):
        return []
    indexes = {index for index, _ in block.client}
    return [each for each in artifacts if not indexes.isdisjoint(range(each.first, each.last + 1))]
