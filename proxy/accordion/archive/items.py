"""Where the archive has what a reply said under an id of the provider's."""

from __future__ import annotations

import hashlib

import msgspec

from accordion.core.ports import Key

_LONGEST = 512
"""In bytes: nothing stands in what names an item but its id."""


class _Named(msgspec.Struct):
    id: str
    type: str | None = None
    role: str | None = None


_DECODER = msgspec.json.Decoder(_Named)


def item_key(space: bytes, name: str) -> Key:
    """Where what a tenant's reply said under this id is kept."""
    return provider_key("item", space, name)


def provider_key(kind: str, space: bytes, name: str) -> Key:
    """Where something of a tenant's is kept that a provider has under this id."""
    digest = hashlib.sha256(len(space).to_bytes(4, "big") + space)
    digest.update(name.encode("utf-8", "surrogatepass"))
    return Key("", f"{kind}/{digest.hexdigest()}")


def name_of(wire: bytes) -> str:
    """The id of a message that only names what a reply said; empty for all others. The type may be left out.

    Source: openai SDK, `types/responses/response_input_item_param.py` (`ItemReference`).
    """
    if len(wire) > _LONGEST or b'"id"' not in wire:
        return ""
    try:
        found = _DECODER.decode(wire)
    except (msgspec.MsgspecError, ValueError):
        return ""
    refers = found.type == "item_reference" or (found.type is None and found.role is None)
    return found.id if refers and found.id.startswith("msg_") else ""
