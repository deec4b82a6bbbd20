"""What is remembered, as values under a tenant's veil: each is bound to the kind of place where it stands."""

from __future__ import annotations

import msgspec

from accordion.core.memories import Entity, Memory, Relation
from accordion.memory.entries import Line
from accordion.storage.memories_veil import Veil

_ENCODER = msgspec.msgpack.Encoder()
_MEMORY = msgspec.msgpack.Decoder(Memory)
_ENTITY = msgspec.msgpack.Decoder(Entity)
_RELATION = msgspec.msgpack.Decoder(Relation)
_MARKER = msgspec.msgpack.Decoder(tuple[str, bytes])

_TOKENS = "memories/tokens"


def sealed(veil: Veil, record: Line) -> bytes:
    """A memory, an entity, a relation or a marker with its name."""
    return veil.seal(f"memories/{type(record).__name__}", _ENCODER.encode(record))


def memory(veil: Veil, value: bytes) -> Memory:
    """A memory that was read."""
    return _MEMORY.decode(veil.open("memories/Memory", value))


def entity(veil: Veil, value: bytes) -> Entity:
    """An entity that was read."""
    return _ENTITY.decode(veil.open("memories/Entity", value))


def relation(veil: Veil, value: bytes) -> Relation:
    """A relation that was read."""
    return _RELATION.decode(veil.open("memories/Relation", value))


def marker(veil: Veil, value: bytes) -> tuple[str, bytes]:
    """A marker that was read."""
    return _MARKER.decode(veil.open("memories/tuple", value))


def sealed_tokens(veil: Veil, tokens: bytes) -> bytes:
    """The embedder's tokens."""
    return veil.seal(_TOKENS, tokens)


def tokens(veil: Veil, value: bytes) -> bytes:
    """The embedder's tokens that were read."""
    return veil.open(_TOKENS, value)
