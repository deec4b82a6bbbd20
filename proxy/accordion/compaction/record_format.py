"""The stored format of compactions and their keys: a version byte, then MessagePack, compressed.

The id is a hash of the rest, so that a damaged record is detected. It does not cover the forms of the messages, which
earlier versions do not know; these have a digest of their own.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from operator import attrgetter

import msgspec
from msgspec.structs import replace

from accordion.model.compaction import Cause, Compaction
from accordion.model.ports import Key
from accordion.model.tenant import ScopePrefix
from accordion.protocols.zstd import ZstdError, compress, decompress

_VERSION = b"\x01"
_MAX_UNPACKED_BYTES = 256 * 2**20
"""No valid record unpacks to more bytes; one that claims to is damaged."""
MAX_LEVELS = 6
"""Maximum number of compactions at one anchor: a compacted history that is still too long is compacted again."""


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Compaction)
_FORMS = ("meaning", "reasoning", "edited_keys")
_CONTENT = attrgetter(*Compaction.__struct_fields__[1 : Compaction.__struct_fields__.index(_FORMS[0])])


def with_content_id(compaction: Compaction) -> Compaction:
    """Returns the compaction with its id, a hash of its content, and the digest of its forms."""
    bare = _ENCODER.encode(("", *_CONTENT(compaction)))
    compaction_id, digest = "f-" + hashlib.sha256(bare).hexdigest()[:24], b""
    if any(forms := [getattr(compaction, name) for name in _FORMS]):
        digest = hashlib.sha256(_ENCODER.encode((compaction_id, *forms))).digest()[:8]
    return replace(compaction, id=compaction_id, digest=digest)


def encode(compaction: Compaction) -> bytes:
    """Encodes a compaction for the store."""
    return _VERSION + compress(_ENCODER.encode(compaction))


def decode(value: bytes | None) -> Compaction | None:
    """Decodes a stored compaction; None if there is none, it is damaged, or of a later version."""
    if value is None or value[:1] != _VERSION:
        return None
    try:
        plain = decompress(value[1:], limit=_MAX_UNPACKED_BYTES)
        compaction = _DECODER.decode(plain)
    except (ZstdError, msgspec.MsgspecError, ValueError):
        return None
    checked = with_content_id(compaction)
    return compaction if (checked.id, checked.digest) == (compaction.id, compaction.digest) else None


def memory_size(compaction: Compaction) -> int:
    """Estimates the bytes of a compaction in memory."""
    entries = sum(150 + len(entry.wire or b"") for entry in compaction.entries)
    return 1_000 + entries + 80 * len(compaction.artifacts) + 2 * len(compaction.narrative)


@lru_cache(1_024)
def compaction_key(label: ScopePrefix, anchor: bytes, level: int) -> Key:
    """Returns the key of the compaction at this anchor and level; `level` others lie below it."""
    return Key("", f"fold/{label.hex()}/{anchor.hex()}/{level}")


def is_compaction_key(key: Key) -> bool:
    """Whether this is the key of a compaction."""
    return key.name.startswith("fold/")


def compaction_keys(label: ScopePrefix, anchor: bytes) -> list[Key]:
    """Returns the keys of all levels at an anchor."""
    return [compaction_key(label, anchor, level) for level in range(MAX_LEVELS)]


def parse_key(key: Key) -> tuple[ScopePrefix, bytes, int]:
    """Returns label, anchor and level of a key made by `compaction_key`."""
    _, label, anchor, level = key.name.split("/")
    return ScopePrefix(bytes.fromhex(label)), bytes.fromhex(anchor), int(level)


def form_key(label: ScopePrefix, meaning: bytes) -> Key:
    """Returns the key for the anchor of the newest compaction whose last covered message has this identity key."""
    return Key("", f"form/{label.hex()}/{meaning.hex()}")


def race_key(label: ScopePrefix, last_chain_key: bytes, cause: Cause) -> Key:
    """Returns the key that workers compete for when they compact the same history for the same cause."""
    return Key("", f"folding/{label.hex()}/{last_chain_key.hex()}/{cause}")
