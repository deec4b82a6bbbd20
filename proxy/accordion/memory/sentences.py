"""What was said in a conversation, sentence by sentence, without what is not the speakers' own.

System prompts, what clients add to messages, our own blocks, and what came out of memory are background: a sentence
that stands there is nobody's new word, whoever repeats it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, TypeGuard

from accordion.archive.recall_quotes import OPENING
from accordion.core.conversation import Conversation, Message, Part, Text, ToolCall, ToolResult
from accordion.core.values import dataclass
from accordion.memory.steps import Record, spoken

Speaker = Literal["user", "assistant"]

LONGEST: Final = 420
"""Characters of a sentence that may become a memory."""
_SHORTEST: Final = 8
_LONG: Final = 8
"""Words of a sentence that is its own when less than most of it is."""
_MOST: Final = 40_000
"""Characters of one message that are looked through."""
_OURS: Final = (
    OPENING[:30],
    "[Record of message",
    "[Result of ",
    "[Result moved out",
    "[Older result of ",
    "[Note on the conversation, not part of it:",
    "[From the memory",
    "[Session memory",
)
"""How the texts begin that the proxy writes into a conversation. To imitate one only leaves the imitation out."""
_ROLE: Final = re.compile(r"\s*(?:you are (?:an?|the|now) |# (?:agents|claude|memory)\.md\b)", re.IGNORECASE)
"""How prompts begin that a client sends in the user's name."""
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
"""How lines of code and of a shell begin that stand without a fence."""
_ASSIGNS: Final = re.compile(r"\s[:!=]?=\s")
_LINE: Final = 8_000
"""Characters of a line; a longer one is data."""
_WORD: Final = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence. `at` is its message (counted as the transcript counts), `place` its number in that message;
    `before` is the sentence in front of it in the same paragraph, empty where there is none."""

    at: int
    place: int
    speaker: Speaker
    text: str
    before: str = ""


class Background:
    """What is nobody's new word."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._all = f" {' '.join(folded(text) for text in texts)} "

    def holds(self, text: str) -> bool:
        """Whether a text of three words or more stands there, whatever its case and punctuation; of a longer one, seven
        tenths in a row are enough."""
        words = folded(text).split()
        run = len(words) if len(words) < _LONG else -(-7 * len(words) // 10)
        runs = (f" {' '.join(words[at : at + run])} " for at in range(len(words) - run + 1))
        return len(words) >= 3 and any(each in self._all for each in runs)


def background_of(conversation: Conversation) -> Background:
    """The background of a conversation: system text, what clients added to messages, what memory tools brought."""
    texts = [part.text for part in conversation.preamble if isinstance(part, Text)]
    for message in conversation.messages:
        if message.role in {"user", "system", "developer"}:
            text = "\n".join(part.text for part in message.parts if isinstance(part, Text))
            own = spoken(text) if message.role == "user" else ""
            texts.append(text if own and _foreign(own) else _besides(text, own))
    return Background([*texts, *_from_memory(conversation.messages)])


def sentences(record: Record) -> list[Sentence]:
    """What users and assistants said, in order. Code, tables and quoted lines are left out."""
    out: list[Sentence] = []
    for saying in record.sayings:
        if saying.who == "summary" or (saying.who == "user" and _foreign(saying.text)):
            continue
        before, place = "", 0
        for text, joined in _split(saying.text[:_MOST]):
            held = " ".join(text.replace("**", "").split())
            if _SHORTEST <= len(held) <= LONGEST:
                out.append(Sentence(saying.at, place, saying.who, held, before if joined else ""))
            before, place = held, place + 1
    return out


def ours(text: str) -> bool:
    """Whether a text is one that the proxy writes into conversations."""
    return text.lstrip().startswith(_OURS)


def folded(text: str) -> str:
    """The words of a text in small letters: what two spellings of one sentence have in common."""
    return " ".join(_WORD.findall(text.lower()))


def own_parts(messages: Sequence[Message]) -> list[tuple[Part, ...]]:
    """Of each message what is its author's own: without system text, what clients and the proxy add, and what memory
    tools answered."""
    called = {part.call_id for message in messages for part in message.parts if _recalls(part)}
    return [tuple(_own(message, called)) for message in messages]


def _own(message: Message, called: set[str]) -> Iterator[Part]:
    for part in message.parts if message.role in {"user", "assistant", "tool"} else ():
        if isinstance(part, Text) and message.role == "user":
            text = spoken(part.text)
            if text and not _foreign(text):
                yield Text(text)
        elif not (isinstance(part, ToolResult) and part.call_id in called):
            yield part


def _recalls(part: Part) -> TypeGuard[ToolCall]:
    return isinstance(part, ToolCall) and remembers(part.name)


def _foreign(text: str) -> bool:
    """Whether what stands in the user's name is the proxy's or a prompt of the client's."""
    return ours(text) or _ROLE.match(text) is not None


def _besides(text: str, own: str) -> str:
    """A client's message without what the user wrote in it."""
    if own and own not in text:
        for line in own.split("\n"):
            text = text.replace(line, "\n", 1) if line.strip() else text
        return text
    return text.replace(own, "\n", 1) if own else text


def _from_memory(messages: Sequence[Message]) -> Iterator[str]:
    """What memory tools answered, ours and others'."""
    called: set[str] = set()
    for message in messages:
        for part in message.parts:
            if _recalls(part):
                called.add(part.call_id)
            elif isinstance(part, ToolResult) and part.call_id in called:
                yield "\n".join(inner.text for inner in part.parts if isinstance(inner, Text))


def remembers(tool: str) -> bool:
    """Whether a tool's name says that it reads or writes a memory."""
    return "memory" in tool.lower() or "memories" in tool.lower()


def _split(text: str) -> Iterator[tuple[str, bool]]:
    """Sentences, each with whether it goes on from the one before it in the same paragraph."""
    fenced, intro = False, ""
    items: list[str] = []
    for line in text.split("\n"):
        if _FENCE.match(line):
            fenced = not fenced
            continue
        if fenced:
            continue
        item = _ITEM.match(line)
        if item is not None and intro:
            items.append(_CHECK.sub("", line[item.end() :]).strip())
            continue
        if not line.strip() and intro:
            # A list may stand a line below what introduces it.
            continue
        if intro:
            yield from ((each, False) for each in _listed(intro, items))
            intro, items = "", []
        if _HEADING.match(line) or _NOT_PROSE.match(line) or _code(line):
            continue
        found = _of_line(_CHECK.sub("", line[item.end() :] if item is not None else line))
        if found and found[-1].endswith(":") and item is None:
            intro = found.pop()
        yield from ((each, number > 0) for number, each in enumerate(found))
    if intro:
        yield from ((each, False) for each in _listed(intro, items))


def _code(line: str) -> bool:
    """Whether a line is code, or too long to be anything that somebody says."""
    bare = line.rstrip()
    if len(bare) > _LINE or _CODE.match(bare) or bare.endswith(("{", "}", ";", "=>")):
        return True
    return bare.endswith(("(", ")")) and _ASSIGNS.search(bare) is not None


def _listed(intro: str, items: Sequence[str]) -> Iterator[str]:
    """A list as one sentence with what introduces it, as far as there is room; without items nothing: it says
    nothing."""
    out = intro
    for item in items:
        if len(out) + len(item) + 2 > LONGEST:
            break
        out += f"{' ' if out is intro else '; '}{item.rstrip('.;, ')}"
    if out is not intro:
        yield out


def _of_line(line: str) -> list[str]:
    out: list[str] = []
    for piece in _END.split(line.strip()):
        if out and _ABBREVIATION.search(out[-1][-12:]):
            out[-1] += f" {piece}"
        elif piece:
            out.append(piece)
    return out
