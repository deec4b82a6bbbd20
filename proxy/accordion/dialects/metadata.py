"""Our own keys in a body's `metadata`: taken out before the upstream where it would refuse the request for them.

Sources: Anthropic's reference knows `user_id` alone, and its API takes no extra inputs. OpenAI's takes 16 pairs, and of
Chat Completions only such as are stored: "The 'metadata' parameter is only allowed when 'store' is enabled." Of
Responses it takes them always.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from accordion.dialects.spans import FIELDS, with_fields

OURS = frozenset({"x-accordion-delegation", "x-accordion-parent", "x-accordion-agent"})
"""The keys of `metadata` that are for the proxy."""

_PAIRS = 16


def metadata_sent(dialect: str, fields: Mapping[str, bytes]) -> bytes | None:
    """The value of `metadata` as it is sent, of a body with these top-level fields: as it came, but without our keys
    where they would be refused. None where there is none, or nothing is left of it."""
    raw = fields.get("metadata")
    if raw is None or raw[:1] != b"{":
        return raw
    try:
        held = FIELDS.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return raw
    ours = OURS & held.keys()
    if not ours or not _refused(dialect, fields, len(held), len(ours)):
        return raw
    return with_fields(raw, dict.fromkeys(ours)) if len(ours) < len(held) else None


def without_ours(dialect: str, body: bytes, fields: Mapping[str, bytes]) -> bytes:
    """The body, whose top-level fields are `fields`, with `metadata` as it is sent and every other byte as it was."""
    sent = metadata_sent(dialect, fields)
    return body if sent == fields.get("metadata") else with_fields(body, {"metadata": sent})


def _refused(dialect: str, fields: Mapping[str, bytes], pairs: int, ours: int) -> bool:
    """Whether an upstream would refuse the request for our keys alone."""
    if dialect == "messages":
        return True
    unstored = dialect == "chat" and fields.get("store") != b"true" and pairs == ours
    return unstored or pairs > _PAIRS
