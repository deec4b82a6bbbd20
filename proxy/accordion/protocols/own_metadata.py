"""Removes the proxy's own keys from a body's `metadata` where the upstream would reject the request because of them.

Sources: Anthropic's reference has `user_id` only, and its API rejects extra inputs. OpenAI's API takes 16 pairs; Chat
Completions takes them only if the completion is stored: "The 'metadata' parameter is only allowed when 'store' is
enabled." Responses always takes them.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from accordion.protocols.json_spans import FIELDS, with_fields

OWN_KEYS = frozenset({"x-accordion-delegation", "x-accordion-parent", "x-accordion-agent"})
"""The keys of `metadata` that are for the proxy."""

_PAIRS = 16


def metadata_to_send(protocol_name: str, fields: Mapping[str, bytes]) -> bytes | None:
    """Returns the value of `metadata` to send, without the proxy's keys where the upstream would reject them.

    None where there is no such field, or nothing is left of it.
    """
    raw = fields.get("metadata")
    if raw is None or raw[:1] != b"{":
        return raw
    try:
        pairs = FIELDS.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return raw
    own = OWN_KEYS & pairs.keys()
    if not own or not _would_be_refused(protocol_name, fields, len(pairs), len(own)):
        return raw
    return with_fields(raw, dict.fromkeys(own)) if len(own) < len(pairs) else None


def remove_own_keys(protocol_name: str, body: bytes, fields: Mapping[str, bytes]) -> bytes:
    """Returns the body with `metadata` as it is sent and every other byte unchanged; `fields` are its top-level
    fields."""
    metadata = metadata_to_send(protocol_name, fields)
    return body if metadata == fields.get("metadata") else with_fields(body, {"metadata": metadata})


def _would_be_refused(protocol_name: str, fields: Mapping[str, bytes], pairs: int, own: int) -> bool:
    """Whether the upstream would reject the request only because of the proxy's keys."""
    if protocol_name == "messages":
        return True
    unstored = protocol_name == "chat" and fields.get("store") != b"true" and pairs == own
    return unstored or pairs > _PAIRS
