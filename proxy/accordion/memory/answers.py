"""What `compact_conversation` answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from accordion.core.memories import Entity, Memory, Relation
from accordion.memory.log import Entry


class CreatedMemory(msgspec.Struct, frozen=True):
    """A memory, as the answer names it."""

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
    """How one entity stands to another."""

    from_entity: str
    to_entity: str
    relation_type: str


class Compacted(msgspec.Struct, frozen=True):
    """The answer; `msgspec.to_builtins` makes a JSON document of it. `writer` is `rules` or the name of the model that
    wrote the memories, `writer_input` and `writer_output` are the tokens that a model took; `notice` says why the rules
    wrote in place of a configured one."""

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


class Done(msgspec.Struct, frozen=True):
    """A range that is compacted already, and the memories that it gave."""

    start_index: int
    end_index: int
    focus_topics: list[str]
    memories: list[str]


def answer(
    memories: Sequence[Memory],
    entities: Sequence[Entity],
    new: set[tuple[str, str]],
    relations: Sequence[Relation],
    entry: Entry,
) -> Compacted:
    """The answer of a compaction; `new` are the names and types of entities that it was the first to name."""
    return Compacted(
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
