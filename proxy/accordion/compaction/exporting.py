"""What folds, overlays, prepared summaries and what was said under a provider's ids say, for who exports them."""

from __future__ import annotations

from typing import Any

import msgspec

from accordion.archive import links
from accordion.archive.artifacts import unpack
from accordion.archive.holdings import Kind
from accordion.compaction import background
from accordion.compaction.overlays import decode as decode_overlays
from accordion.compaction.records import decode as decode_record
from accordion.core.edits import Compaction, Entry, Written
from accordion.core.ports import Key
from accordion.core.weaves import Overlay, Recall


def described(kind: Kind, key: Key, value: bytes) -> object | None:
    """A value as the store keeps it, opened, in JSON-like values; None where it cannot be read."""
    if kind == "fold":
        compaction = decode_record(value)
        return _fold(compaction) if compaction is not None else None
    if kind == "summary":
        prepared = background.decode(value)
        return {**msgspec.to_builtins(prepared), "anchor": prepared.anchor.hex()} if prepared is not None else None
    if kind == "item":
        wire = unpack(value)
        return _json(wire) if wire is not None else None
    if kind == "link":
        link = links.decode(unpack(value))
        return _link(link) if link is not None else None
    if kind == "overlay":
        anchor = key.name.rpartition("/")[2]
        return [_overlay(each) for each in decode_overlays(value, bytes.fromhex(anchor)).overlays]
    return None


def _link(link: links.Link) -> dict[str, Any]:
    given, said = ([_json(wire) for wire in wires] for wires in (link.given, link.said))
    return {"previous": link.before[0] if link.before else None, "given": given, "said": said}


def _fold(compaction: Compaction) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(compaction)
    told["anchor"] = compaction.anchor.hex()
    told["entries"] = [_entry(entry) for entry in compaction.entries]
    return told


def _entry(entry: Entry) -> dict[str, Any]:
    told: dict[str, Any] = {"first": entry.first, "last": entry.last}
    if isinstance(entry, Written):
        told |= {"edited": entry.edited, "message": _json(entry.wire)}
    return told


def _overlay(overlay: Overlay) -> dict[str, Any]:
    told: dict[str, Any] = {"anchor": overlay.anchor.hex(), "at": overlay.at}
    if isinstance(overlay, Recall):
        memories = {"memories": list(overlay.names)} if overlay.names else {}
        return told | {"recall": _json(overlay.wire), "artifacts": list(overlay.artifacts)} | memories
    rounds = [
        {"said": [_json(wire) for wire in each.said], "answered": [_json(wire) for wire in each.answered]}
        for each in overlay.rounds
    ]
    return told | {"rounds": rounds, "calls": list(overlay.calls), "text": overlay.text}


def _json(wire: bytes) -> object:
    try:
        return msgspec.Raw(msgspec.json.format(wire, indent=-1))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return wire.decode(errors="replace")
