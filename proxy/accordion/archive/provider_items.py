"""Items that a provider stores under an id of its own: their keys in the archive, and references to them."""

from __future__ import annotations

import hashlib

import msgspec

from accordion.model.ports import Key
from accordion.model.tenant import TenantScope

_MAX_REFERENCE = 512
"""Bytes of an item reference: it has nothing but the id."""


class _NamedItem(msgspec.Struct):
    id: str
    type: str | None = None
    role: str | None = None


_DECODER = msgspec.json.Decoder(_NamedItem)


def item_key(tenant: TenantScope, name: str) -> Key:
    """Returns the key of an item of a tenant's response."""
    return provider_key("item", tenant, name)


def provider_key(kind: str, tenant: TenantScope, name: str) -> Key:
    """Returns the key of a tenant's value of some kind that a provider stores under this id."""
    digest = hashlib.sha256(len(tenant.key).to_bytes(4, "big") + tenant.key)
    digest.update(name.encode("utf-8", "surrogatepass"))
    return Key("", f"{kind}/{digest.hexdigest()}")


def item_name(wire: bytes) -> str:
    """Returns the id in an item reference; empty for all other messages. The type may be left out.

    Source: openai SDK, `types/responses/response_input_item_param.py` (`ItemReference`).
    """
    if len(wire) > _MAX_REFERENCE or b'"id"' not in wire:
        return ""
    try:
        item = _DECODER.decode(wire)
    except (msgspec.MsgspecError, ValueError):
        return ""
    is_reference = item.type == "item_reference" or (item.type is None and item.role is None)
    return item.id if is_reference and item.id.startswith("msg_") else ""
