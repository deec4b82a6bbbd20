"""Converts stored compactions, insertions, prepared summaries and response histories to JSON types for an export."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import structs

from accordion.archive import stored_responses
from accordion.archive.archive_entries import Kind
from accordion.archive.artifacts import unpack
from accordion.compaction import background
from accordion.compaction.repository import decode as decode_record
from accordion.insertions.store import decode as decode_insertions
from accordion.model.compaction import Compaction, CompactionEntry, StrategyRecord
from accordion.model.insertions import Insertion, RecallInsertion
from accordion.model.ports import Key

_EXPORT_NAMES = {
    "covered_count": "covered",
    "tokens_saved": "removed",
    "narrative_end": "narrated",
    "narrative_start": "narrated_from",
    "identity_key": "meaning",
}
"""The names in an export of a compaction's fields, if they differ. Programs read them."""


def describe_value(kind: Kind, key: Key, value: bytes) -> object | None:
    """Converts a stored value, opened before, to JSON types; None if it cannot be read."""
    if kind == "compaction":
        compaction = decode_record(value)
        return _describe_compaction(compaction) if compaction is not None else None
    if kind == "summary":
        prepared = background.decode(value)
        return {**msgspec.to_builtins(prepared), "anchor": prepared.anchor.hex()} if prepared is not None else None
    if kind == "item":
        wire = unpack(value)
        return _decode_json(wire) if wire is not None else None
    if kind == "link":
        link = stored_responses.decode(unpack(value))
        return _describe_link(link) if link is not None else None
    if kind == "insertion":
        anchor = key.name.rpartition("/")[2]
        return [_describe_insertion(each) for each in decode_insertions(value, bytes.fromhex(anchor)).insertions]
    return None


def _describe_link(link: stored_responses.StoredResponse) -> dict[str, Any]:
    return {
        "previous": link.previous_ids[0] if link.previous_ids else None,
        "given": [_decode_json(wire) for wire in link.input_items],
        "said": [_decode_json(wire) for wire in link.output_items],
    }


def _describe_compaction(compaction: Compaction) -> dict[str, Any]:
    fields = {_EXPORT_NAMES.get(name, name): value for name, value in structs.asdict(compaction).items()}
    return fields | {
        "anchor": compaction.anchor.hex(),
        "entries": [_describe_entry(entry) for entry in compaction.entries],
        "steps": [_describe_strategy(record) for record in compaction.steps],
        "artifacts": list(compaction.artifacts),
        "meaning": compaction.identity_key.hex(),
        "reasoning": list(compaction.reasoning),
        "edited_keys": [key.hex() for key in compaction.edited_keys],
    }


def _describe_strategy(record: StrategyRecord) -> dict[str, Any]:
    return {"compactor": record.strategy, "before": record.before, "after": record.after}


def _describe_entry(entry: CompactionEntry) -> dict[str, Any]:
    fields: dict[str, Any] = {"first": entry.first, "last": entry.last}
    if entry.wire is not None:
        fields |= {"edited": entry.is_edited, "message": _decode_json(entry.wire)}
    return fields


def _describe_insertion(insertion: Insertion) -> dict[str, Any]:
    fields: dict[str, Any] = {"anchor": insertion.anchor.hex(), "at": insertion.at}
    if isinstance(insertion, RecallInsertion):
        memories = {"memories": list(insertion.names)} if insertion.names else {}
        return fields | {"recall": _decode_json(insertion.wire), "artifacts": list(insertion.artifacts)} | memories
    rounds = [
        {
            "said": [_decode_json(wire) for wire in each.response],
            "answered": [_decode_json(wire) for wire in each.results],
        }
        for each in insertion.rounds
    ]
    return fields | {"rounds": rounds, "calls": list(insertion.calls), "text": insertion.text}


def _decode_json(wire: bytes) -> object:
    try:
        return msgspec.Raw(msgspec.json.format(wire, indent=-1))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return wire.decode(errors="replace")
