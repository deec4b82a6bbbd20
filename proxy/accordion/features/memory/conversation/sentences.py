"""Splits a conversation into the sentences of its speakers, and collects its background.

The background is text that no speaker of the conversation wrote: system prompts, clients' additions to messages, the
proxy's own blocks, and results of memory tools. A sentence that repeats the background is not new, whoever writes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, TypeGuard

import msgspec

from accordion.archive.references import OPENINGS as REFERENCE_OPENINGS
from accordion.features.memory.conversation.steps import ConversationRecord
from accordion.insertions.excerpts import OPENING as EXCERPTS_OPENING
from accordion.model.conversation import Conversation, Message, Part, Text, ToolCall, ToolResult
from accordion.sessions.user_text import user_text
from accordion.summaries.instructions import OPENING as RECORD_OPENING

Speaker = Literal["user", "assistant"]

LONGEST: Final = 420
"""Characters of a sentence that may become a memory."""
_MIN_LENGTH: Final = 8
_LONG_TEXT_WORDS: Final = 8
"""Words from which on a sentence repeats a text if it has most of its words in a row."""
_MAX_CHARACTERS: Final = 40_000
"""Characters of one message that are examined."""
RECALL_OPENING: Final = "[Memories from this user's earlier work"
IMPORT_OPENING: Final = "[Session memory"
_OWN_BEGINNINGS: Final = (
    EXCERPTS_OPENING[:30],
    RECORD_OPENING,
    *REFERENCE_OPENINGS,
    RECALL_OPENING,
    IMPORT_OPENING,
)
"""Beginnings of the texts that the proxy writes into a conversation. An imitation is only left out."""
_PROMPT: Final = re.compile(r"\s*(?:you are (?:an?|the|now) |# (?:agents|claude|memory)\.md\b)", re.IGNORECASE)
"""The beginning of a prompt that a client sends in the user role."""
_FENCE: Final = re.compile(r"^\s{0,8}(?:```|~~~)")
_ITEM: Final = re.compile(r"^\s{0,12}(?:[-*•–]|\d{1,3}[.)])\s+(?=\S)")
_HEADING: Final = re.compile(r"^\s{0,3}#{1,6}\s+")
_NOT_PROSE: Final = re.compile(r"^\s*(?:[|>+]|---|===|\*\*\*)|^\s*$")
_END: Final = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"')\]`]))\s+(?=[\"'(`\[*]?[A-Z0-9À-ÖØ-ÞА-Я])|(?<=[。！？])")
_ABBREVIATION: Final = re.compile(r"(?:\b(?:e\.g|i\.e|etc|vs|cf|approx|Dr|Mr|Mrs|Ms|No|Fig|St|v)|\b[A-Z])\.$")
_CHECK: Final = re.compile(r"^\s*(?:\[[ xX>]\]|[✅✓✔❌⚠️🎉➜→]+)\s*")
_CODE: Final = re.compile(
    r"\s*(?:\$|>>>|//|/\*|@@|diff --git|import |from \S+ import|def |func |\"[\w ]+\"\s*:|at \S+ \()"
)
"""The beginning of a line of code or of a shell outside of a fence."""
_ASSIGNMENT: Final = re.compile(r"\s[:!=]?=\s")
_MAX_LINE_LENGTH: Final = 8_000
"""Characters of a line; a longer one is data."""
_WORD: Final = re.compile(r"\w+")


class Sentence(msgspec.Struct, frozen=True):
    """One sentence.

    `at` is the index of its message, `position` its number in that message; `previous` is the sentence before it in the
    same paragraph, empty if there is none.
    """

    at: int
    position: int
    speaker: Speaker
    text: str
    previous: str = ""


class KnownText:
    """Background text whose repetition is not new."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._text = f" {' '.join(normalize_words(text) for text in texts)} "

    def contains(self, text: str) -> bool:
        """Returns whether the background contains a text of at least three words, without case and punctuation.

        Of a text of eight words or more, seven tenths in a row are enough.
        """
        words = normalize_words(text).split()
        run_length = len(words) if len(words) < _LONG_TEXT_WORDS else -(-7 * len(words) // 10)
        runs = (f" {' '.join(words[index : index + run_length])} " for index in range(len(words) - run_length + 1))
        return len(words) >= 3 and any(run_text in self._text for run_text in runs)


def build_background(conversation: Conversation) -> KnownText:
    """Builds a conversation's background: system text, clients' additions, and results of memory tools."""
    texts = [part.text for part in conversation.preamble if isinstance(part, Text)]
    for message in conversation.messages:
        if message.role in {"user", "system", "developer"}:
            text = message.text
            own_text = user_text(text) if message.role == "user" else ""
            texts.append(text if own_text and _is_foreign(own_text) else _text_beside(text, own_text))
    return KnownText([*texts, *_memory_tool_texts(conversation.messages)])


def split_conversation(record: ConversationRecord) -> list[Sentence]:
    """Returns the sentences of users and assistants in order, without code, tables and quoted lines."""
    sentences: list[Sentence] = []
    for statement in record.statements:
        if statement.author == "summary" or (statement.author == "user" and _is_foreign(statement.text)):
            continue
        previous, position = "", 0
        for text, continues in _split(statement.text[:_MAX_CHARACTERS]):
            sentence_text = " ".join(text.replace("**", "").split())
            if _MIN_LENGTH <= len(sentence_text) <= LONGEST:
                sentences.append(
                    Sentence(statement.at, position, statement.author, sentence_text, previous if continues else "")
                )
            previous, position = sentence_text, position + 1
    return sentences


def is_own_text(text: str) -> bool:
    """Returns whether the proxy wrote a text into the conversation."""
    return text.lstrip().startswith(_OWN_BEGINNINGS)


def normalize_words(text: str) -> str:
    """Returns the words of a text in lower case, which different spellings of a sentence share."""
    return " ".join(_WORD.findall(text.lower()))


def own_parts(messages: Sequence[Message]) -> list[tuple[Part, ...]]:
    """Returns for each message its author's own parts.

    System text, additions of clients and the proxy, and results of memory tools are left out.
    """
    memory_calls = {part.call_id for message in messages for part in message.parts if _is_memory_call(part)}
    return [tuple(_own_parts(message, memory_calls)) for message in messages]


def _own_parts(message: Message, memory_calls: set[str]) -> Iterator[Part]:
    for part in message.parts if message.role in {"user", "assistant", "tool"} else ():
        if isinstance(part, Text) and message.role == "user":
            text = user_text(part.text)
            if text and not _is_foreign(text):
                yield Text(text)
        elif not (isinstance(part, ToolResult) and part.call_id in memory_calls):
            yield part


def _is_memory_call(part: Part) -> TypeGuard[ToolCall]:
    return isinstance(part, ToolCall) and is_memory_tool(part.name)


def _is_foreign(text: str) -> bool:
    """Returns whether a text in the user role is the proxy's or a client's prompt."""
    return is_own_text(text) or _PROMPT.match(text) is not None


def _text_beside(text: str, own_text: str) -> str:
    """Returns a message without the text that the user wrote."""
    if own_text and own_text not in text:
        for line in own_text.split("\n"):
            text = text.replace(line, "\n", 1) if line.strip() else text
        return text
    return text.replace(own_text, "\n", 1) if own_text else text


def _memory_tool_texts(messages: Sequence[Message]) -> Iterator[str]:
    """Returns the results of memory tools, of the proxy and of others."""
    memory_calls: set[str] = set()
    for message in messages:
        for part in message.parts:
            if _is_memory_call(part):
                memory_calls.add(part.call_id)
            elif isinstance(part, ToolResult) and part.call_id in memory_calls:
                yield part.text


def is_memory_tool(tool: str) -> bool:
    """Returns whether a tool's name names a memory."""
    return "memory" in tool.lower() or "memories" in tool.lower()


def _split(text: str) -> Iterator[tuple[str, bool]]:
    """Splits a text into sentences, each with whether it continues the paragraph of the previous one."""
    in_fence, intro = False, ""
    items: list[str] = []
    for line in text.split("\n"):
        if _FENCE.match(line):
            in_fence = not in_fence
            continue
        if in_fence:
            continue
        item = _ITEM.match(line)
        if item is not None and intro:
            items.append(_CHECK.sub("", line[item.end() :]).strip())
            continue
        if not line.strip() and intro:
            # There may be an empty line between an introduction and its list.
            continue
        if intro:
            yield from ((each, False) for each in _join_list(intro, items))
            intro, items = "", []
        if _HEADING.match(line) or _NOT_PROSE.match(line) or _is_code(line):
            continue
        sentences = _split_line(_CHECK.sub("", line[item.end() :] if item is not None else line))
        if sentences and sentences[-1].endswith(":") and item is None:
            intro = sentences.pop()
        yield from ((each, number > 0) for number, each in enumerate(sentences))
    if intro:
        yield from ((each, False) for each in _join_list(intro, items))


def _is_code(line: str) -> bool:
    """Returns whether a line is code, or too long for prose."""
    code = line.rstrip()
    if len(code) > _MAX_LINE_LENGTH or _CODE.match(code) or code.endswith(("{", "}", ";", "=>")):
        return True
    return code.endswith(("(", ")")) and _ASSIGNMENT.search(code) is not None


def _join_list(intro: str, items: Sequence[str]) -> Iterator[str]:
    """Joins an introduction and its list into one sentence, as far as it fits. Without items there is none."""
    sentence = intro
    for item in items:
        if len(sentence) + len(item) + 2 > LONGEST:
            break
        sentence += f"{' ' if sentence is intro else '; '}{item.rstrip('.;, ')}"
    if sentence is not intro:
        yield sentence


def _split_line(line: str) -> list[str]:
    sentences: list[str] = []
    for piece in _END.split(line.strip()):
        if sentences and _ABBREVIATION.search(sentences[-1][-12:]):
            sentences[-1] += f" {piece}"
        elif piece:
            sentences.append(piece)
    return sentences
