"""Encodes and seals memories, entities, relations and markers. Each seal is bound to the kind of its record."""

from __future__ import annotations

import msgspec

from accordion.memory.entries import Line
from accordion.model.memories import Entity, Memory, Relation
from accordion.stores.sealed_names import SealedNames

_ENCODER = msgspec.msgpack.Encoder()
_MEMORY = msgspec.msgpack.Decoder(Memory)
_ENTITY = msgspec.msgpack.Decoder(Entity)
_RELATION = msgspec.msgpack.Decoder(Relation)
_MARKER = msgspec.msgpack.Decoder(tuple[str, bytes])

_TOKENS = "memories/tokens"


def seal_record(sealed_names: SealedNames, record: Line) -> bytes:
    """Seals a memory, an entity, a relation, or a marker with its name."""
    return sealed_names.seal(f"memories/{type(record).__name__}", _ENCODER.encode(record))


def open_memory(sealed_names: SealedNames, value: bytes) -> Memory:
    """Opens a sealed memory."""
    return _MEMORY.decode(sealed_names.open("memories/Memory", value))


def open_entity(sealed_names: SealedNames, value: bytes) -> Entity:
    """Opens a sealed entity."""
    return _ENTITY.decode(sealed_names.open("memories/Entity", value))


def open_relation(sealed_names: SealedNames, value: bytes) -> Relation:
    """Opens a sealed relation."""
    return _RELATION.decode(sealed_names.open("memories/Relation", value))


def open_marker(sealed_names: SealedNames, value: bytes) -> tuple[str, bytes]:
    """Opens a sealed marker."""
    return _MARKER.decode(sealed_names.open("memories/tuple", value))


def seal_tokens(sealed_names: SealedNames, tokens: bytes) -> bytes:
    """Seals the embedder's tokens."""
    return sealed_names.seal(_TOKENS, tokens)


def open_tokens(sealed_names: SealedNames, value: bytes) -> bytes:
    """Opens the embedder's sealed tokens."""
    return sealed_names.open(_TOKENS, value)
