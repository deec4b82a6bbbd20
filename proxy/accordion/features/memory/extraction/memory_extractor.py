"""`compact_conversation`: turns a range of a recorded conversation into memories, entities and relations.

How a compaction runs: it loads the range, collects candidates (by rules, or by the configured model), drops those that
an earlier compaction covers or that are stored already, chooses the best, and writes them with their entities,
relations and log entry in one transaction. Repeating a compaction returns its first response. A range that overlaps
with another adds only what is new. Callers are the memory tools (features/memory/memory_operations.py) and
features/memory/memory_capture.py.

The log of a conversation's compactions is a numbered marker for each, which is written once, with its memories. Of two
callers that compact one conversation at the same time, one gets the next number and the other reads that entry. A
search writes a marker with the next number, which permits one compaction.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from accordion.archive.erasure_notices import ErasureNotices
from accordion.features.memory.conversation.message_ranges import MessageRange, RecordedConversations
from accordion.features.memory.conversation.self_contained import content_words, is_about
from accordion.features.memory.conversation.sentences import (
    KnownText,
    Sentence,
    build_background,
    normalize_words,
    split_conversation,
)
from accordion.features.memory.conversation.steps import build_record
from accordion.features.memory.entries import NAME_MOST, ConcurrentWrite, finish_memory, make_memory_id
from accordion.features.memory.extraction.candidates import MemoryCandidate, find_candidates, is_safe, remove_duplicates
from accordion.features.memory.extraction.narration import Narrator
from accordion.features.memory.extraction.relations import (
    EntitiesAndRelations,
    Entity,
    RelationTriple,
    find_relations,
    merge_relations,
)
from accordion.features.memory.memories import Conflict, Memory, MemoryChange, MemoryStore
from accordion.features.memory.search.relevant_memories import load_recalled_ids
from accordion.features.memory.session.import_requests import requested_ids
from accordion.model.conversation import Text
from accordion.model.errors import BadRequest, SummaryFailed
from accordion.model.ports import Clock, Tasks
from accordion.model.tenant import TenantScope
from accordion.summaries.author import SummaryRejected
from accordion.summaries.facts import WordClassifier

_MAX_ENTRIES: Final = 100_000


class WriterReport(msgspec.Struct, frozen=True):
    """Names the writer of the memories (`rules` or a model), its tokens, and a notice about it."""

    writer: str = "rules"
    input: int = 0
    output: int = 0
    notice: str = ""


class LogEntry(msgspec.Struct, frozen=True):
    """One compaction of a range of messages.

    `keys` are the short keys of the range's messages, `memories` the ids that it stored, `entities` are (name, type,
    whether it is new) and `relations` (from, to, type). The entry holds no text of a memory, so that a deleted memory
    leaves no copy.
    """

    first: int
    last: int
    keys: list[bytes]
    focus: list[str]
    memories: list[str]
    entities: list[tuple[str, str, bool]]
    relations: list[RelationTriple]
    by: WriterReport = WriterReport()


_DECODER: Final = msgspec.json.Decoder(LogEntry)


async def load_entries(memories: MemoryStore, tenant: TenantScope, conversation: str) -> list[LogEntry]:
    """Returns all compactions of a conversation, in order. Raises StoreUnavailable."""
    entries: list[LogEntry] = []
    while (
        len(entries) < _MAX_ENTRIES
        and (value := await memories.get_marker(tenant, _marker_name(conversation, len(entries)))) is not None
    ):
        entries.append(_DECODER.decode(value))
    return entries


async def record_search(memories: MemoryStore, tenant: TenantScope, conversation: str, number: int) -> None:
    """Records a search after `number` compactions of a conversation. Raises StoreUnavailable."""
    try:
        await memories.write(tenant, MemoryChange(markers=((_search_marker_name(conversation, number), b"1"),)))
    except Conflict:
        # An earlier search is recorded already.
        return


async def was_searched(memories: MemoryStore, tenant: TenantScope, conversation: str, number: int) -> bool:
    """Returns whether a search was recorded after `number` compactions."""
    return await memories.get_marker(tenant, _search_marker_name(conversation, number)) is not None


def _marker_name(conversation: str, number: int) -> str:
    return f"compacted/{number}/{conversation}"


def _search_marker_name(conversation: str, number: int) -> str:
    return f"searched/{number}/{conversation}"


MAX_TOPICS: Final = 6
"""Maximum number of topics of a memory."""
_MAX_COMMON_WORDS: Final = 14
"""Maximum number of words that are returned as common to several texts."""
_FOLDERS: Final = (
    "src lib libs test tests app apps cmd pkg internal packages package main index init docs doc home users usr var "
    "tmp opt etc bin mnt data workspace workspaces work dev code repo project projects dist build node_modules "
    "components utils common core site-packages python readme"
)
_GENERIC_FOLDERS: Final = frozenset(_FOLDERS.split())
_NAMED_TYPES: Final = frozenset({"package", "service", "tool", "project", "organisation"})


def common_words(texts: Iterable[str]) -> tuple[str, ...]:
    """Returns the subject words that several texts share, the most frequent first."""
    counts = Counter(
        word for text in texts for word in set(content_words(text)) if len(word) > 3 and word not in _GENERIC_FOLDERS
    )
    return tuple(word for word, times in counts.most_common(_MAX_COMMON_WORDS) if times > 1)


def find_topics(
    text: str, entities: Sequence[Entity], focus: Sequence[str], frequent_words: Sequence[str]
) -> tuple[str, ...]:
    """Returns at most six topics in lower case; at least one, if the text has a subject word."""
    topics = [topic for topic in focus if is_about(text, topic)]
    words = [word for word in content_words(text) if len(word) <= NAME_MOST]
    topics += [word for word in frequent_words if word in words][:3]
    for entity in entities:
        if entity.type == "file":
            topics += _path_topics(entity.name)
        elif entity.type in _NAMED_TYPES:
            topics.append(entity.name)
    if not topics:
        topics = sorted(words, key=len, reverse=True)[:1]
    return tuple(dict.fromkeys(topic.lower() for topic in topics))[:MAX_TOPICS]


def _path_topics(path: str) -> list[str]:
    """Returns the folder and the name of a file, without generic names."""
    names = [piece for piece in path.replace("\\", "/").split("/") if piece]
    name = names[-1].lstrip(".").split(".", 1)[0]
    folder = names[-2] if len(names) > 1 else ""
    return [part for part in (folder, name) if len(part) > 2 and part.lower() not in _GENERIC_FOLDERS]


_log = logging.getLogger("accordion")

SEARCH_REQUIRED: Final = "search_required"
"""The code of the error for a compaction without a search since the last one."""
_MAX_ATTEMPTS: Final = 8
_CONTEXT_MESSAGES: Final = 40
"""Messages before a range in which the two turns before a memory are looked for."""
_MIN_MEMORIES: Final = 12
_MAX_MEMORIES: Final = 40
"""Bounds of the memories of one compaction; within them it is one for every three messages."""
_CONTEXT: Final = 300
"""Characters that are kept of each of the two turns before."""
_NOT_PERMITTED: Final = "{} is asked only for callers with a proxy key, or on this machine."


class CompactionCaller(msgspec.Struct, frozen=True):
    """The caller of a compaction: the project of its memories, and whether the configured model may write them."""

    project: str = ""
    may_ask_model: bool = True


class _RangeRequest(msgspec.Struct, frozen=True):
    """What is compacted: a range of a tenant's conversation, with its topics, for a caller."""

    tenant: TenantScope
    range: MessageRange
    focus: tuple[str, ...]
    caller: CompactionCaller


class _RangeCandidates(msgspec.Struct, frozen=True):
    """The candidates of a range, their writer, and the sentences of the range and of the turns before it."""

    candidates: list[MemoryCandidate]
    writer: WriterReport
    sentences: list[Sentence]


class MemoryExtractor(msgspec.Struct, frozen=True):
    """Compacts ranges of recorded conversations into memories.

    Without a narrator, or if its model fails, rules find the candidates.
    """

    memories: MemoryStore
    conversations: RecordedConversations
    tasks: Tasks
    clock: Clock
    erasures: ErasureNotices
    narrator: Narrator | None = None
    classifier: WordClassifier = msgspec.field(default_factory=WordClassifier)

    async def find_completed(self, tenant: TenantScope, conversation: str) -> list[CompletedRange]:
        """Returns the compacted ranges of a conversation, and records the search that permits the next compaction.

        Raises NotFound if nothing is recorded, and StoreUnavailable.
        """
        await self.conversations.find_transcript(tenant, conversation)
        log = await load_entries(self.memories, tenant, conversation)
        await record_search(self.memories, tenant, conversation, len(log))
        return [CompletedRange(entry.first, entry.last, entry.focus, entry.memories) for entry in log]

    async def compact(
        self,
        tenant: TenantScope,
        conversation: str,
        first: int,
        last: int,
        focus: Sequence[str] = (),
        caller: CompactionCaller | None = None,
    ) -> CompactionResponse:
        """Compacts messages `first` to `last` (inclusive, counted from 0 with the system prompt).

        Raises NotFound if they are not recorded, BadRequest for a bad range or a missing search,
        ConcurrentWrite (also if the conversation or the memories were erased meanwhile) and StoreUnavailable.
        Nothing is written then.
        """
        await self.erasures.poll()
        started_at = self.clock.monotonic()
        message_range = await self._add_imported_background(
            tenant, await self.conversations.load_range(tenant, conversation, first, last)
        )
        request = _RangeRequest(tenant, message_range, _normalize_topics(focus), caller or CompactionCaller())
        log = await load_entries(self.memories, tenant, conversation)
        search_number = len(log)
        if _find_same_range(log, request) is None and not await was_searched(
            self.memories, tenant, conversation, search_number
        ):
            raise _not_searched_error(conversation)
        found_candidates: _RangeCandidates | None = None
        for _ in range(_MAX_ATTEMPTS):
            if (entry := _find_same_range(log, request)) is not None:
                return await self._repeat_response(tenant, entry)
            if found_candidates is None:
                found_candidates = await self._find_candidates(request)
            memories = await self._make_memories(
                request, _exclude_covered(found_candidates.candidates, log, request), found_candidates.sentences
            )
            await self._check_not_erased(tenant, conversation, search_number, started_at)
            try:
                return await self._write(request, len(log), memories, found_candidates.writer)
            except Conflict:
                log = await load_entries(self.memories, tenant, conversation)
        raise ConcurrentWrite(
            f"Conversation {conversation!r} is being compacted by others right now. Ask again in a moment."
        )

    # -- candidates -----------------------------------------------------------------

    async def _add_imported_background(self, tenant: TenantScope, message_range: MessageRange) -> MessageRange:
        """Returns the range with recalled and imported memories as background.

        A repetition of them is not new, whether the user asked for them or the proxy recalled them.
        """
        user_messages = (message for message in message_range.conversation.messages if message.role == "user")
        texts = (part.text for message in user_messages for part in message.parts if isinstance(part, Text))
        recalled_ids = [
            memory_id
            for note in await load_recalled_ids(self.memories, tenant, message_range.session)
            for memory_id in note
        ]
        ids = tuple(dict.fromkeys([*(memory_id for text in texts for memory_id in requested_ids(text)), *recalled_ids]))
        memories = await self.memories.get(tenant, ids) if ids else []
        background = tuple(Text(memory.content) for memory in memories if memory is not None)
        if not background:
            return message_range
        conversation = message_range.conversation
        return replace(
            message_range, conversation=replace(conversation, preamble=(*conversation.preamble, *background))
        )

    async def _find_candidates(self, request: _RangeRequest) -> _RangeCandidates:
        """Returns all candidates of a range: from the model or, if there is none or it fails, from the rules."""
        sentences, by_rule, background = await self.tasks.offload(_find_by_rule, request.range)
        if self.narrator is None:
            return _RangeCandidates(by_rule, WriterReport(), sentences)
        model = self.narrator.summary_caller.model
        if not request.caller.may_ask_model:
            return _RangeCandidates(by_rule, WriterReport(notice=_NOT_PERMITTED.format(model)), sentences)
        try:
            narration = await self.narrator.narrate(request.range, background, request.focus)
        except SummaryFailed as error:
            _log.warning("the model %s could not write memories, so the rules write them: %s", model, error.message)
            tokens = (error.input, error.output) if isinstance(error, SummaryRejected) else (0, 0)
            return _RangeCandidates(
                by_rule, WriterReport("rules", *tokens, f"{model} could not write them: {error.message}."), sentences
            )
        return _RangeCandidates(
            remove_duplicates(narration.candidates),
            WriterReport(narration.writer, narration.input, narration.output),
            sentences,
        )

    async def _make_memories(
        self, request: _RangeRequest, candidates: Sequence[MemoryCandidate], sentences: Sequence[Sentence]
    ) -> list[tuple[Memory, EntitiesAndRelations]]:
        """Returns the memories to write: the best of those not stored yet, in the order of the conversation."""
        by_id = {
            make_memory_id("compaction", request.caller.project, normalize_words(candidate.text)): candidate
            for candidate in candidates
        }
        old_memories = await self.memories.get(request.tenant, list(by_id))
        new_candidates = [
            (memory_id, candidate)
            for (memory_id, candidate), memory in zip(by_id.items(), old_memories, strict=True)
            if memory is None
        ]
        selection = _choose_candidates(new_candidates, request.focus, request.range.last - request.range.first + 1)
        return await self.tasks.offload(self._build_memories, request, selection, sentences)

    def _build_memories(
        self, request: _RangeRequest, selection: Sequence[tuple[str, MemoryCandidate]], sentences: Sequence[Sentence]
    ) -> list[tuple[Memory, EntitiesAndRelations]]:
        """Builds the memories. Slow: half a millisecond each."""
        first = request.range.first - request.range.shift
        frequent_words = common_words(each.text for each in sentences if each.at >= first)
        return [self._build_memory(request, *each, frequent_words, sentences) for each in selection]

    def _build_memory(
        self,
        request: _RangeRequest,
        memory_id: str,
        candidate: MemoryCandidate,
        frequent_words: Sequence[str],
        sentences: Sequence[Sentence],
    ) -> tuple[Memory, EntitiesAndRelations]:
        relations, project = find_relations(candidate.text, self.classifier), request.caller.project
        memory = Memory(
            id=memory_id,
            type=candidate.kind,
            content=candidate.content,
            topics=find_topics(candidate.text, relations.entities, request.focus, frequent_words),
            macro_topics=(project.lower(),) if project else (),
            project=project,
            source="compaction",
            conversation=request.range.session,
            first=candidate.first,
            last=candidate.last,
            context=_search_context(candidate.first - request.range.shift, sentences),
            entities=tuple(entity.name for entity in relations.entities),
        )
        return finish_memory(memory, now=self.clock.now()), relations

    # -- writing --------------------------------------------------------------------

    async def _check_not_erased(
        self, tenant: TenantScope, conversation: str, search_number: int, started_at: float
    ) -> None:
        """Raises ConcurrentWrite if the conversation or the memories were erased after `started_at` (monotonic).

        Erasing the memories also erases the marker of the search with `search_number`.
        """
        await self.erasures.poll()
        erased = self.erasures.was_erased_since(tenant, conversation, started_at)
        if erased or not await was_searched(self.memories, tenant, conversation, search_number):
            raise ConcurrentWrite(
                f"Conversation {conversation!r} or the memories were erased meanwhile.", code="erased"
            )

    async def _write(
        self,
        request: _RangeRequest,
        number: int,
        memories: Sequence[tuple[Memory, EntitiesAndRelations]],
        writer: WriterReport,
    ) -> CompactionResponse:
        """Writes memories and log entry in one transaction. Raises Conflict."""
        message_range, merged = request.range, merge_relations(relations for _, relations in memories)
        names = [each.name for each in merged.entities]
        unknown_names = await self.memories.find_unknown_entities(request.tenant, names)
        entry = LogEntry(
            message_range.first,
            message_range.last,
            list(message_range.keys),
            list(request.focus),
            [memory.id for memory, _ in memories],
            [(each.name, each.type, each.name in unknown_names) for each in merged.entities],
            list(merged.relations),
            writer,
        )
        change = MemoryChange(
            put=tuple(memory for memory, _ in memories),
            markers=((_marker_name(message_range.session, number), msgspec.json.encode(entry)),),
            require=tuple((memory.id, None) for memory, _ in memories),
        )
        await self.memories.write(request.tenant, change)
        return build_response([memory for memory, _ in memories], entry)

    async def _repeat_response(self, tenant: TenantScope, entry: LogEntry) -> CompactionResponse:
        """Builds the response of an earlier compaction again, without memories that were deleted since."""
        memories = [memory for memory in await self.memories.get(tenant, entry.memories) if memory is not None]
        return build_response(memories, entry)


def _normalize_topics(topics: Iterable[str]) -> tuple[str, ...]:
    """Returns focus topics in lower case, without duplicates and empty ones, sorted."""
    return tuple(sorted({" ".join(topic.lower().split()) for topic in topics} - {""}))


def _find_by_rule(message_range: MessageRange) -> tuple[list[Sentence], list[MemoryCandidate], KnownText]:
    """Returns the sentences of a range and of the turns before, its candidates, and its background. Slow."""
    record, background = build_record(message_range.conversation), build_background(message_range.conversation)
    first = message_range.first - message_range.shift
    nearby_sentences = [each for each in split_conversation(record) if each.at >= first - _CONTEXT_MESSAGES]
    candidates = find_candidates(
        [each for each in nearby_sentences if each.at >= first],
        record,
        background,
        since=first,
        is_end=message_range.is_end,
    )
    sentences = [each for each in nearby_sentences if not background.contains(each.text) and is_safe(each.text)]
    return (
        sentences,
        [
            replace(each, first=each.first + message_range.shift, last=each.last + message_range.shift)
            for each in candidates
            if not requested_ids(each.text)
        ],
        background,
    )


def _find_same_range(log: Sequence[LogEntry], request: _RangeRequest) -> LogEntry | None:
    """Returns the compaction with the same messages and topics; None if there is none.

    The comparison includes the message keys: after the client edited its history, equal indexes are another range.
    """
    wanted = (request.range.first, request.range.last, request.focus, request.range.keys)
    return next((each for each in log if (each.first, each.last, tuple(each.focus), tuple(each.keys)) == wanted), None)


def _exclude_covered(
    candidates: Sequence[MemoryCandidate], log: Sequence[LogEntry], request: _RangeRequest
) -> list[MemoryCandidate]:
    """Returns the candidates with at least one message that no earlier compaction with the same topics covers.

    A compaction for certain topics leaves out all other subjects, so it covers its messages for these topics only.
    """
    covered_keys = {key for each in log if tuple(each.focus) == request.focus for key in each.keys}
    indexed_keys = enumerate(request.range.keys, request.range.first)
    new_indexes = {index for index, key in indexed_keys if key not in covered_keys}
    return [each for each in candidates if any(index in new_indexes for index in range(each.first, each.last + 1))]


def _choose_candidates(
    candidates: Sequence[tuple[str, MemoryCandidate]], focus: Sequence[str], messages: int
) -> list[tuple[str, MemoryCandidate]]:
    """Chooses the best candidates, in the order of the conversation.

    Candidates about the topics come before all others, which compete by worth. A weak candidate is taken only if it
    is about a topic.
    """
    limit = min(_MAX_MEMORIES, max(_MIN_MEMORIES, messages // 3))
    rated_candidates = [
        (any(is_about(candidate.text, topic) for topic in focus), name, candidate) for name, candidate in candidates
    ]
    ranked_candidates = sorted(
        (entry for entry in rated_candidates if entry[0] or not entry[2].weak),
        key=lambda entry: (not entry[0], -entry[2].worth),
    )
    return [
        (name, candidate)
        for _, name, candidate in sorted(ranked_candidates[:limit], key=lambda entry: (entry[2].last, entry[2].first))
    ]


def _search_context(first: int, sentences: Sequence[Sentence]) -> str:
    """Returns the beginnings of the two turns before a message. They serve search only."""
    turns: dict[int, str] = {}
    for sentence in sentences:
        if sentence.at >= first:
            break
        turns[sentence.at] = f"{turns.get(sentence.at, '')} {sentence.text}".strip()
    return "\n".join(text[:_CONTEXT] for text in list(turns.values())[-2:])


def _not_searched_error(conversation: str) -> BadRequest:
    return BadRequest(
        f"First search the memories of conversation {conversation!r} (with conversation_id), read the results, then "
        "compact this range. Each compaction needs its own search.",
        code=SEARCH_REQUIRED,
    )


class CreatedMemory(msgspec.Struct, frozen=True):
    """A memory in the response."""

    id: str
    content: str
    topics: list[str]
    source_type: Literal["compaction"] = "compaction"


class ExtractedEntity(msgspec.Struct, frozen=True):
    """An entity; `is_new` if no memory of the tenant named it."""

    name: str
    entity_type: str
    is_new: bool


class ExtractedRelation(msgspec.Struct, frozen=True):
    """A relation between two entities."""

    from_entity: str
    to_entity: str
    relation_type: str


class CompactionResponse(msgspec.Struct, frozen=True):
    """The response; `msgspec.to_builtins` makes a JSON document of it.

    `writer` is `rules` or the name of the model that wrote the memories; `writer_input` and `writer_output` are the
    model's tokens; `notice` says why the rules wrote instead of a configured model.
    """

    memories_created: list[CreatedMemory]
    entities_extracted: list[ExtractedEntity]
    relations_extracted: list[ExtractedRelation]
    messages_processed: int
    memories_count: int
    entities_count: int
    relations_count: int
    writer: str
    writer_input: int
    writer_output: int
    notice: str


class CompletedRange(msgspec.Struct, frozen=True):
    """A range that was compacted before, with the ids of its memories."""

    start_index: int
    end_index: int
    focus_topics: list[str]
    memories: list[str]


def build_response(memories: Sequence[Memory], entry: LogEntry) -> CompactionResponse:
    """Builds the response of a compaction."""
    return CompactionResponse(
        [CreatedMemory(memory.id, memory.content, list(memory.topics)) for memory in memories],
        [ExtractedEntity(*each) for each in entry.entities],
        [ExtractedRelation(*each) for each in entry.relations],
        entry.last - entry.first + 1,
        len(memories),
        len(entry.entities),
        len(entry.relations),
        entry.by.writer,
        entry.by.input,
        entry.by.output,
        entry.by.notice,
    )
