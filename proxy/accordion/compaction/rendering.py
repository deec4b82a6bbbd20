"""Renders a compacted history to the bytes that are sent: the same bytes every time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter, itemgetter

import msgspec

from accordion.model.cache import BoundedCache
from accordion.model.compaction import CompactedConversation
from accordion.model.conversation import INSTRUCTION_ROLES, Conversation, Message, Text
from accordion.model.plan import WRITTEN_BY_COMPACTION
from accordion.protocols import json_writing
from accordion.protocols.base import WireProtocol
from accordion.protocols.json_spans import is_text
from accordion.protocols.message_keys import count_breakpoints

_MAX_BREAKPOINTS = 4
"""Cache breakpoints that a provider takes in one request (wire notes, Caching)."""
_AUTOMATIC = "cache_control"
"""The top-level field by which a client lets the provider set a breakpoint."""
_MIN_FIELD_LENGTH = 16
"""A field of fewer bytes cannot contain a breakpoint."""
_HOUR_BREAKPOINT = b'"1h"'
"""A breakpoint that lasts an hour must not stand after one of five minutes."""
_WIRE = attrgetter("wire")


class _RenderedPrefix(msgspec.Struct, frozen=True):
    wires_hash: int
    """A hash of the messages as they were, in 64 bits with Python's salt, so that no other messages can be made for it.
    They themselves are as many bytes as `written`."""
    written: tuple[bytes, ...]


class RequestRenderer:
    """Renders requests, and caches the rendered part of each compaction within `capacity` bytes."""

    def __init__(self, capacity: int = 32 * 2**20) -> None:
        self._prefixes = BoundedCache[tuple[str, str, bool], _RenderedPrefix](capacity)

    def render_body(self, protocol: WireProtocol, history: CompactedConversation) -> bytes:
        """Renders the whole request. The message list comes last, so that the bytes before it stay in place."""
        return json_writing.write_body(
            history.conversation, protocol.messages_field, self.render_entries(protocol, history)
        )

    def render_entries(self, protocol: WireProtocol, history: CompactedConversation) -> list[bytes]:
        """Renders the entries of the message list. If the protocol has cache breakpoints and the request has fewer than
        four, adds one at the end of the last message written by the compaction."""
        wires = list(map(_WIRE, history.conversation.messages))
        if history.compaction is None:
            if wires and is_text(wires[0]):
                # Responses accepts a single text in place of a list; with insertions it must become a list.
                wires[:1] = protocol.join_messages(wires[:1], ())
            return wires
        covered = _count_prefix(history)
        end = _find_rendered_end(history.conversation.messages, covered)
        has_own_breakpoint = protocol.has_breakpoints and history.compaction.form == "free"
        index = _find_last_written(history, covered) if has_own_breakpoint else -1
        has_breakpoint = index >= 0 and _may_add_breakpoint(history.conversation, index)
        wires[:end] = self._render_prefix(protocol, history, wires[:end], index if has_breakpoint else -1)
        return wires

    def _render_prefix(
        self, protocol: WireProtocol, history: CompactedConversation, wires: list[bytes], breakpoint_index: int
    ) -> Sequence[bytes]:
        key = (history.compaction.id if history.compaction else "", protocol.name, breakpoint_index >= 0)
        known, wires_hash = self._prefixes.get(key), hash(tuple(wires))
        if known is not None and known.wires_hash == wires_hash:
            return known.written
        parts = wires.copy()
        if breakpoint_index >= 0:
            parts[breakpoint_index] = protocol.with_breakpoint(parts[breakpoint_index])
        written = tuple(_join_blocks(protocol, history, parts))
        self._prefixes.put(key, _RenderedPrefix(wires_hash, written), 600 + sum(map(len, written)))
        return written


def _join_blocks(protocol: WireProtocol, history: CompactedConversation, wires: list[bytes]) -> list[bytes]:
    """Joins the blocks of a compaction with the messages beside them."""
    if history.compaction is not None and history.compaction.form == "whole":
        ours = {index for index, origin in enumerate(history.origins[: len(wires)]) if origin == WRITTEN_BY_COMPACTION}
        texts_by_target = dict[int, list[str]]()
        with suppress(ValueError):
            for index in sorted(ours):
                texts = [part.text for part in history.conversation.messages[index].parts if isinstance(part, Text)]
                texts_by_target.setdefault(_find_user_message(history, index, len(wires)), []).extend(texts)
            messages = history.conversation.messages
            changed = {at: _append_texts(protocol, messages[at], texts) for at, texts in texts_by_target.items()}
            return [changed.get(index, wire) for index, wire in enumerate(wires) if index not in ours]
    return protocol.join_messages(wires, {index for index in range(len(wires)) if _is_joined(history, index)})


def _find_user_message(history: CompactedConversation, block: int, end: int) -> int:
    """Returns the index of the user's message that takes the text of a block: the last one before it, else the first
    behind it. Raises ValueError if there is none."""
    indexes: list[int] = [*range(block - 1, -1, -1), *range(block + 1, end)]
    for index in indexes:
        message = history.conversation.messages[index]
        if history.origins[index] >= 0 and message.has_user_text and not message.has_tool_result:
            return index
    raise ValueError("there is no message of the user")


def _append_texts(protocol: WireProtocol, message: Message, texts: Sequence[str]) -> bytes:
    """Returns a message with more text at its end. All of its fields stay."""
    index, last = [(at, part) for at, part in enumerate(message.parts) if isinstance(part, Text)][-1]
    wire = protocol.edit_message(message, {index: "\n\n".join((last.text, *texts))})
    if wire is None:
        raise ValueError("the message is empty")
    return wire


def _count_prefix(history: CompactedConversation) -> int:
    """Counts the messages that the compaction wrote or kept. Behind them are the client's own, with insertions."""
    return bisect_left(history.spans, history.covered_count, key=itemgetter(0))


def _find_rendered_end(messages: Sequence[Message], covered: int) -> int:
    """Returns the end of the messages that are rendered with the compaction, which covers the first `covered`.

    A summary may be merged into the client's message after it. An instruction may stand behind the user's messages that
    follow.
    """
    end, start = covered, covered
    while start and messages[start - 1].role != "assistant":
        start -= 1
    if any(message.role in INSTRUCTION_ROLES for message in messages[start:covered]):
        while end < len(messages) and messages[end].role != "assistant":
            end += 1
    return min(end + 1, len(messages))


def _is_joined(history: CompactedConversation, index: int) -> bool:
    """Whether a message is merged with the user's messages beside it: the compaction wrote it, or it is the user's, and
    the reply between it and the user's message before it is gone."""
    if history.origins[index] == WRITTEN_BY_COMPACTION:
        return True
    messages, spans = history.conversation.messages, history.spans
    is_after_user = index > 0 and messages[index].role == messages[index - 1].role == "user"
    return is_after_user and 0 <= spans[index - 1][1] < spans[index][0] - 1


def _find_last_written(history: CompactedConversation, end: int) -> int:
    """Returns the index of the last message before `end` that a compaction wrote or edited; -1 if there is none."""
    for index in range(end - 1, -1, -1):
        if history.origins[index] == WRITTEN_BY_COMPACTION or history.spans[index][2]:
            return index
    return -1


def _may_add_breakpoint(conversation: Conversation, index: int) -> bool:
    messages, envelope = conversation.messages, conversation.envelope
    if messages[index].cache_breakpoints:
        return False
    automatic = envelope.get(_AUTOMATIC)
    if automatic is not None and _HOUR_BREAKPOINT in automatic:
        return False
    with_breakpoints = [at for at, message in enumerate(messages) if message.cache_breakpoints]
    field_breakpoints = sum([count_breakpoints(value) for value in envelope.values() if len(value) > _MIN_FIELD_LENGTH])
    message_breakpoints = sum([message.cache_breakpoints for message in conversation.lead]) + sum(
        [messages[at].cache_breakpoints for at in with_breakpoints]
    )
    if field_breakpoints + (automatic is not None) + message_breakpoints >= _MAX_BREAKPOINTS:
        return False
    return not any(_HOUR_BREAKPOINT in messages[at].wire for at in with_breakpoints if at >= index)
