"""Which path a request's body was made for, where nobody says it."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from accordion.dialects.spans import FIELDS

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"

# Top-level fields and content blocks that Chat Completions does not have.
_FIELDS_OF_MESSAGES = frozenset({"system", "stop_sequences", "thinking", "anthropic_version", "output_config"})
_BLOCKS = re.compile(rb'"type"\s*:\s*"(?:tool_use|tool_result|redacted_thinking|document|server_tool_use)"')
_SCHEMA = re.compile(rb'"input_schema"\s*:')
_CLAUDE = re.compile(rb'"claude')


def guess_path(body: bytes, fields: Mapping[bytes, bytes]) -> str:
    """The path of the dialect that `body` looks like; Chat Completions where nothing tells. `fields` are headers."""
    try:
        raw = {name: bytes(value) for name, value in FIELDS.decode(body).items()}
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        raw = {}
    if b"anthropic-version" in fields:
        return MESSAGES
    if "messages" not in raw and ({"input", "previous_response_id", "conversation"} & raw.keys()):
        return RESPONSES
    tells = _FIELDS_OF_MESSAGES & raw.keys() or _SCHEMA.search(raw.get("tools", b""))
    if tells or _BLOCKS.search(raw.get("messages", b"")):
        return MESSAGES
    if _CLAUDE.match(raw.get("model", b"")) and "max_tokens" in raw:
        return MESSAGES
    return CHAT
