"""The response of `compact_conversation`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from accordion.memory.compaction_log import LogEntry
from accordion.model.memories import Entity, Memory, Relation


class CreatedMemory(msgspec.Struct, frozen=True):
    """A memory in the response."""

    id: str
    content: str
    topics: list[str]
    source_type: Literal["compaction"] = "compaction"


class ExtractedEntity(msgspec.Struct, frozen=True):
    """An entity; `is_new` where the tenant had none of its name and type."""

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


def build_response(
    memories: Sequence[Memory],
    entities: Sequence[Entity],
    new: set[tuple[str, str]],
    relations: Sequence[Relation],
    entry: LogEntry,
) -> CompactionResponse:
    """Builds the response of a compaction; `new` are the (name, type) of entities new to the tenant."""
    return CompactionResponse(
        [CreatedMemory(memory.id, memory.content, list(memory.topics)) for memory in memories],
        [ExtractedEntity(each.name, each.type, (each.name, each.type) in new) for each in entities],
        [ExtractedRelation(each.start, each.end, each.type) for each in relations],
        entry.last - entry.first + 1,
        len(memories),
        len(entities),
        len(relations),
        entry.by.writer,
        entry.by.input,
        entry.by.output,
        entry.by.notice,
    )
