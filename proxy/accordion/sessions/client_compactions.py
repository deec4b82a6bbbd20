"""Client compactions: an agent asks its model for a summary, and goes on from that with a new list.

Theory of operation. Three things are recognized, all by what clients write; their headers are in client_metadata.py.

1. The request for the summary: by its class, or by the beginning of its prompt. It is no turn of a conversation: it
   belongs to the session that it ends, which is that of its longest recorded prefix. OpenCode writes the conversation
   into one message instead; then it is the session of its label that was continued last.
2. The response: its longest lines name the session, but for those that it quotes from the conversation. Such a line,
   of a prompt or a file, may begin other conversations too.
3. The list that goes on: it continues no recorded list, and a message before the model's second one has enough of these
   lines. With a label of one session, the words with which clients introduce a summary are enough, and so is the
   provider's own compaction item.

So one session has all of it. The summary is a message like any other.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from heapq import nlargest
from itertools import islice
from typing import Final

from accordion.model.conversation import Conversation, Message, Opaque, Text, ToolResult
from accordion.model.tenant import TenantScope
from accordion.sessions.prefix_nodes import PrefixNode
from accordion.sessions.user_text import is_client_summary

# Claude Code and its followers, Codex, OpenCode, Gemini CLI. Newer versions of some also send a header.
_PROMPTS: Final = (
    "create a detailed summary of the conversation",
    "create a detailed summary of the RECENT portion of the",
    "performing a CONTEXT CHECKPOINT COMPACTION",
    "Provide a detailed prompt for continuing our conversation",
    "anchored summary from the conversation history",
    "Update the anchored summary below",
    "Then, generate the updated <state_snapshot>",
    "Critically evaluate the <state_snapshot> you just generated",
)
_SYSTEM_PROMPTS: Final = ("You are a context summarization agent.",)
"""The beginning of OpenCode's system prompt for a summary."""
_BEGINNING: Final = 2_000
_TRIGGER, _COMPACTION_ITEM = "compaction_trigger", "compaction"
_DRAFT = re.compile(r"<analysis>.*?</analysis>", re.DOTALL)
"""What clients leave out of a summary."""
_MIN_LINE: Final = 40
"""Characters of a line that names a session: shorter ones may be in any summary."""
_MIN_TOTAL: Final = 120
"""Characters of all lines that a list must have of one session's summary: models begin many summaries alike."""
_LINES_OF_SUMMARY: Final = 4
_MAX_QUOTES: Final = 16
"""The most of a summary's lines that are looked for in the conversation."""
_LINES_OF_PART: Final = 24
"""Lines of a part of the next list that are looked for: clients put some of their own around the summary."""
_MAX_PARTS: Final = 64
_MAX_TEXT: Final = 200_000
"""Characters of one text that are read."""


def asks_for_client_compaction(conversation: Conversation) -> bool:
    """Whether the request asks for a compaction by the provider or for the client.

    By the provider: a trigger as the last item of Responses, or a top-level `compaction` of Messages. For the client:
    the last message contains a known prompt, or the system prompt is one.
    """
    if conversation.protocol_name == "messages" and conversation.envelope.get("compaction", b"null") != b"null":
        return True
    if not conversation.messages:
        return False
    last = conversation.messages[-1]
    if last.role != "user":
        return any(isinstance(part, Opaque) and part.kind == _TRIGGER for part in last.parts)
    for part in last.parts:
        if isinstance(part, Text):
            beginning = part.text[:_BEGINNING]
            for prompt in _PROMPTS:
                if prompt in beginning:
                    return True
    instructions = (*conversation.preamble, *(part for message in conversation.lead for part in message.parts))
    return any(isinstance(part, Text) and part.text.startswith(_SYSTEM_PROMPTS) for part in instructions)


def list_summary_names(tenant: TenantScope, scope: bytes, conversation: Conversation, summary: str) -> list[bytes]:
    """Returns the names of the nodes of a summary that the model wrote of a conversation: of its longest lines that
    nobody else wrote there."""
    texts = [*_texts_of_others(conversation)]
    longest = _longest_lines(_DRAFT.sub("", summary[:_MAX_TEXT]), _MAX_QUOTES)
    own = (line for line in longest if not any(line in text for text in texts))
    return [_name_of_line(tenant, scope, line) for line in islice(own, _LINES_OF_SUMMARY)]


def find_summary_names(
    tenant: TenantScope, scope: bytes, conversation: Conversation, start: int
) -> Mapping[bytes, int]:
    """Returns the names that a summary at the beginning of a list may have, in the messages from `start` on, each with
    the length of its line."""
    return {
        _name_of_line(tenant, scope, line): len(line)
        for part in _opening_parts(conversation, start)
        if isinstance(part, Text)
        for line in _longest_lines(part.text[:_MAX_TEXT], _LINES_OF_PART)
    }


def find_summarized_session(names: Mapping[bytes, int], nodes: Mapping[bytes, PrefixNode]) -> str:
    """Returns the session of which a list has most of a summary, by its names; empty if it has too little of any."""
    totals = Counter[str]()
    for name, length in names.items():
        if (node := nodes.get(name)) is not None:
            totals[node.session] += length
    return next((session for session, total in totals.most_common(1) if total >= _MIN_TOTAL), "")


def opens_with_summary(conversation: Conversation, start: int) -> bool:
    """Whether a list begins with what a client or a provider writes in place of a history, from `start` on."""
    return any(
        is_client_summary(part.text.lstrip()) if isinstance(part, Text) else part.kind == _COMPACTION_ITEM
        for part in _opening_parts(conversation, start)
    )


def label_name(scope: bytes) -> bytes:
    """Returns the name of the node of the session that was continued last under a label."""
    return scope + hashlib.sha256(b"label").digest()


def _opening_parts(conversation: Conversation, start: int) -> Iterator[Text | Opaque]:
    """Yields the texts and other items of a list before the model's second message, from `start` on."""
    count = 0
    for message in islice(_messages_before_second_response(conversation.messages), start, None):
        for part in message.parts:
            if isinstance(part, Text | Opaque):
                yield part
                count += 1
                if count == _MAX_PARTS:
                    return


def _messages_before_second_response(messages: tuple[Message, ...]) -> Iterator[Message]:
    has_response = False
    for message in messages:
        if message.role == "assistant":
            if has_response:
                return
            has_response = True
        yield message


def _longest_lines(text: str, count: int) -> list[str]:
    lines = {line.strip() for line in text.splitlines()}
    return nlargest(count, (line for line in lines if len(line) >= _MIN_LINE), key=lambda each: (len(each), each))


def _name_of_line(tenant: TenantScope, scope: bytes, line: str) -> bytes:
    return scope + hashlib.sha256(tenant.key + b"summary:" + line.encode(errors="replace")).digest()


def _texts_of_others(conversation: Conversation) -> Iterator[str]:
    """Yields the texts of a conversation that the model did not write."""
    others = (message.parts for message in conversation.messages if message.role != "assistant")
    for parts in (conversation.preamble, *others):
        for part in parts:
            inner: Iterable[object] = part.parts if isinstance(part, ToolResult) else (part,)
            yield from (each.text for each in inner if isinstance(each, Text))
