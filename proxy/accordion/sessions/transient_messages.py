"""Transient messages: the end of a list that a client sends once and leaves out of its next request.

Some agents add a clock, a reminder or a dump of their state to each request, as its last message or as the last text of
that message. No later request contains the end of such a list, by which its prefix node is named (prefix_nodes.py).

Theory of operation. When the response has arrived, the node gets a second name: a hash of the list without its possible
transient end, and of the response. A later request that contains both continues from that node. No other request has
this name: the same list without its end may begin many conversations, but the response came to one of them. A response
is recognized by its calls, or by its text if it has none and is not short.

Only the last message or its last text may be left out: a list that is shortened otherwise begins a new session.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from accordion.model.conversation import (
    INSTRUCTION_ROLES,
    Conversation,
    Message,
    Text,
    ToolCall,
    canonical_arguments,
)
from accordion.model.records import ObservedCall
from accordion.model.tenant import TenantScope
from accordion.protocols.base import WireProtocol
from accordion.protocols.json_values import bounded_arguments
from accordion.protocols.message_keys import chain_key, chain_start, identity_key
from accordion.protocols.written_messages import read_written_message

_MIN_CHARACTERS = 40
"""Characters, without white space, that a text needs to recognize a response. Two conversations may both get "Done." as
an answer."""
_MAX_RESPONSES = 4
"""The newest responses of a list that are looked for: the last one may have been interrupted or rewritten."""


def has_possible_end(conversation: Conversation) -> bool:
    """Whether a list may end in a transient message or text."""
    return _may_drop_message(conversation.messages) or _may_drop_text(conversation.messages)


def list_ends(conversation: Conversation, protocol: WireProtocol, tenant: TenantScope) -> Iterator[tuple[bytes, bytes]]:
    """Yields the identity key and the chain key of the end of each shorter list that the client may keep."""
    messages, chain, identity = conversation.messages, conversation.chain, conversation.identity_chain
    if _may_drop_message(messages):
        yield identity[-2], chain[-2]
    if _may_drop_text(messages) and (last := _drop_text(messages[-1], protocol, tenant)) is not None:
        start = chain_start(tenant, protocol.name)
        before, identity_before = (chain[-2], identity[-2]) if len(chain) > 1 else (start, start)
        yield identity_key(identity_before, last, start), chain_key(before, last.key)


def _may_drop_message(messages: tuple[Message, ...]) -> bool:
    if len(messages) < 2 or messages[-2].role == "assistant":
        return False
    return _is_of_client(messages[-1]) and not messages[-1].has_tool_result


def _may_drop_text(messages: tuple[Message, ...]) -> bool:
    if not messages or len(messages[-1].parts) < 2:
        return False
    return _is_of_client(messages[-1]) and type(messages[-1].parts[-1]) is Text


def _is_of_client(message: Message) -> bool:
    return message.role == "user" or message.role in INSTRUCTION_ROLES


def _drop_text(message: Message, protocol: WireProtocol, tenant: TenantScope) -> Message | None:
    """Returns a message without its last text; None if it cannot be written."""
    try:
        wire = protocol.edit_message(message, {len(message.parts) - 1: None})
        return read_written_message(protocol, tenant, wire) if wire is not None else None
    except ValueError:
        return None


def find_newest_request(messages: Sequence[Message]) -> int:
    """Returns the index of the message before the last response of a list; -1 if there is none."""
    index = len(messages) - 1
    while index >= 0 and messages[index].role != "assistant":
        index -= 1
    while index >= 0 and messages[index].role == "assistant":
        index -= 1
    return index


def find_responses(conversation: Conversation) -> Iterator[tuple[int, Sequence[Message]]]:
    """Yields the client's copies of the newest responses of a list, the newest first.

    Each comes with the index of the message before it.
    """
    messages: Sequence[Message] = conversation.messages
    for _ in range(_MAX_RESPONSES):
        index = find_newest_request(messages)
        if index < 0:
            return
        yield index, [message for message in messages[index + 1 :] if message.role == "assistant"]
        messages = messages[: index + 1]


def copy_digest(messages: Iterable[Message]) -> bytes:
    """Returns the digest of the client's copy of a response; empty if it cannot be recognized."""
    parts = [part for message in messages for part in message.parts]
    calls = [part for part in parts if isinstance(part, ToolCall)]
    return response_digest(calls, [part.text for part in parts if isinstance(part, Text)])


def response_digest(calls: Iterable[ToolCall | ObservedCall], texts: Iterable[str]) -> bytes:
    """Returns the digest of a response; empty if it cannot be recognized."""
    # Ids alone do not recognize a call: some servers number the calls of each conversation.
    found = sorted(
        f"{call.call_id}\n{call.name}\n{canonical_arguments(bounded_arguments(call.arguments) or '{}')}"
        for call in calls
    )
    # Clients join the texts of a response with white space or without.
    text = "" if found else "".join("".join(texts).split())
    if not found and len(text) < _MIN_CHARACTERS:
        return b""
    return hashlib.sha256("\n\n".join([*found, text]).encode(errors="replace")).digest()


def second_name(scope: bytes, end: bytes, digest: bytes) -> bytes:
    """Returns the second name of a node: `end` is the identity key of the end of the shorter list."""
    return scope + hashlib.sha256(b"without end:" + end + digest).digest()


def with_end(conversation: Conversation, index: int, end: bytes) -> Conversation:
    """Returns a conversation for the search of nodes: at `index` it has the identity key of the longer list's end."""
    identity = conversation.identity_chain
    return replace(conversation, identity=(*identity[:index], end, *identity[index + 1 :]))
