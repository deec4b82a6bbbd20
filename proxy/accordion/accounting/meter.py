"""How many tokens a conversation is: system prompt, tools, messages and media, before any correction.

Only what is new is counted. The sums up to a message are kept under its chain key, which stands for everything before
it, and a count begins behind the deepest one that is known. What a provider does not read, since it goes on from a
compaction of its own, counts nothing.

Fixed overheads follow OpenAI's published formats (harmony: `<|start|>role<|message|>…<|end|>`); Anthropic's documented
system prompt for tools is added where Claude is given any. Other models differ; reported usage corrects them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from threading import Lock
from typing import Generic, TypeGuard, TypeVar

from accordion.accounting.media import MediaRules, media_rules
from accordion.accounting.schemas import function_as_typescript, standing
from accordion.core.boundaries import outlasts, passed_over, resumption
from accordion.core.budget import Utilization, Window
from accordion.core.cache import LONGEST_NAME
from accordion.core.conversation import (
    Conversation,
    Media,
    Message,
    Opaque,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)
from accordion.core.ports import TokenCounter
from accordion.core.values import dataclass

MESSAGE = 4  # start, role, message, end
CALL = 6  # channel, recipient and end of a tool call, besides name and arguments
RESULT = 4  # the author of a tool's answer and its address
REPLY = 3  # what opens the model's own answer
TOOLS_OPENAI = 12  # the heading and the namespace around all functions
TOOLS_CLAUDE = 346  # "Tool use system prompt token count", Claude 4

BYTES_PER_TOKEN = 4
SEALED_ENVELOPE = 650
"""Bytes of an encrypted reasoning item that are not reasoning; the rest is base64, three bytes in four."""

AT_ONCE = 32_768
"""Characters that are counted without a thread."""
SUMS_AT_MOST = 16_384
"""Kept sums, each about 300 bytes with its keys."""
SCHEMES_AT_MOST = 256
"""Models whose way to count is kept."""

STRIDE = 16
"""While many messages are counted at once, every so many sums are kept, for histories that fork or are rewound."""

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Sum:
    """Tokens of messages: `text` is what was counted, `media` what is reckoned: media, and what is not understood."""

    text: int = 0
    media: int = 0

    def __add__(self, other: Sum) -> Sum:
        return Sum(self.text + other.text, self.media + other.media)

    def __sub__(self, other: Sum) -> Sum:
        return Sum(self.text - other.text, self.media - other.media)

    @property
    def tokens(self) -> int:
        """All of it."""
        return self.text + self.media


_NOTHING = Sum()


@dataclass(frozen=True, slots=True)
class _Scheme:
    """How one model counts; `name` is the same for models that count alike."""

    name: str
    encoding: str
    media: MediaRules


@dataclass(frozen=True, slots=True)
class _Overhead:
    preamble: int
    tools: int
    media: int


_NO_OVERHEAD = _Overhead(0, 0, 0)


class Meter:
    """Measures conversations. Safe to use from several threads; only its tables are locked, counting is not."""

    def __init__(self, counter: TokenCounter, sums_at_most: int = SUMS_AT_MOST) -> None:
        self._counter = counter
        self._sums: _Bounded[Sum] = _Bounded(sums_at_most)
        self._overheads: _Bounded[_Overhead] = _Bounded(max(1, sums_at_most // 16))
        self._schemes: dict[tuple[str, str], _Scheme] = {}

    def measure(self, conversation: Conversation, window: Window, model: str = "") -> Utilization:
        """How full `window` would be. `model` is the one that is really asked, where it is not the conversation's."""
        scheme = self._scheme(conversation, model)
        overhead = self._overhead(conversation, scheme)
        messages = self._sum(conversation, scheme, len(conversation.messages))
        asked = conversation.max_output
        return Utilization(
            window=window.size,
            preamble=overhead.preamble,
            tools=overhead.tools,
            messages=messages.text + REPLY,
            media=overhead.media + messages.media,
            reserved_output=min(asked, window.size) if asked is not None and asked > 0 else 0,
            window_known=window.known,
        )

    def after(self, conversation: Conversation, index: int, model: str = "") -> Sum:
        """What the messages behind `messages[index]` count; -1 for all. Costs nothing for what was counted before."""
        scheme, messages = self._scheme(conversation, model), conversation.messages
        if resumption(messages, index + 1) >= 0:
            passed = passed_over(messages)
            behind = (at for at in range(index + 1, len(messages)) if at not in passed)
            return sum((self._message(messages[at], scheme) for at in behind), _NOTHING)
        return self._sum(conversation, scheme, len(messages)) - self._sum(conversation, scheme, index + 1)

    def longer(self, listed: Conversation, bare: Conversation, model: str = "") -> int | None:
        """By how many tokens the messages of `listed` are more than those of `bare`, of which it was made; None where
        that takes counting. Both were counted before, and have gone on alike since."""
        name = self._scheme(listed, model).name
        for since in range(min(STRIDE, len(bare.chain), len(listed.chain))):
            before = self._sums.get((bare.chain[-1 - since], name))
            if before is not None:
                break
        else:
            return None
        now, then = self._sums.get((listed.chain[-1], name)), self._sums.get((listed.chain[-1 - since], name))
        start = len(bare.messages) - since
        if now is None or then is None or bare.messages[start:] != listed.messages[len(listed.messages) - since :]:
            return None
        if resumption(bare.messages, start) >= 0:
            return None
        if since:
            self._sums.put((bare.chain[-1], name), before + (now - then))
        return then.tokens - before.tokens

    def message(self, message: Message, conversation: Conversation, model: str = "") -> Sum:
        """What one message counts, by the rules of the conversation's model."""
        return self._message(message, self._scheme(conversation, model))

    def rules(self, conversation: Conversation, model: str = "") -> str:
        """A name for how the conversation's model counts: the same for models that count alike."""
        return self._scheme(conversation, model).name

    def text(self, text: str, model: str) -> int:
        """What a plain text counts in a model's encoding."""
        return self._counter.count(text, self._counter.encoding(model))

    def slow(self, conversation: Conversation, model: str, size: int) -> bool:
        """Whether `measure` is better left to a thread: where an encoding must be loaded first, or more than
        `AT_ONCE` characters counted. `size`, of the body in bytes, is what they hardly exceed."""
        if not self._counter.loaded(self._scheme(conversation, model).encoding):
            return True
        return size > AT_ONCE and self.pending(conversation, model) > AT_ONCE

    def pending(self, conversation: Conversation, model: str = "") -> int:
        """How many characters `measure` would have to count now."""
        scheme = self._scheme(conversation, model)
        start, _ = self._deepest(conversation, scheme, len(conversation.messages))
        pending = sum(_characters(message.parts) for message in conversation.messages[start:])
        key = conversation.overhead_key
        if not key or self._overheads.get((key, scheme.name)) is None:
            pending += _characters(conversation.preamble) + sum(map(len, conversation.tools))
        return pending

    def _scheme(self, conversation: Conversation, model: str) -> _Scheme:
        key = (model or conversation.model, conversation.dialect)
        return self._schemes.get(key) or self._new_scheme(*key)

    def _new_scheme(self, model: str, dialect: str) -> _Scheme:
        encoding, media = self._counter.encoding(model), media_rules(model, dialect)
        scheme = _Scheme(f"{encoding}/{media.name}", encoding, media)
        if len(model) <= LONGEST_NAME:
            if len(self._schemes) >= SCHEMES_AT_MOST:
                self._schemes.clear()
            self._schemes[model, dialect] = scheme
        return scheme

    def _deepest(self, conversation: Conversation, scheme: _Scheme, end: int) -> tuple[int, Sum]:
        """How many messages before `end` have a known sum, and that sum."""
        chain = conversation.chain
        for count in range(min(end, len(chain)), 0, -1):
            known = self._sums.get((chain[count - 1], scheme.name))
            if known is not None:
                return count, known
        return 0, _NOTHING

    def _sum(self, conversation: Conversation, scheme: _Scheme, end: int) -> Sum:
        """The sum of the first `end` messages."""
        start, total = self._deepest(conversation, scheme, end)
        messages, chain = conversation.messages, conversation.chain
        if (resumed := resumption(messages, start, end)) >= 0:
            before = (message for message in messages[:resumed] if outlasts(message, messages[resumed]))
            start, total = resumed, sum((self._message(message, scheme) for message in before), _NOTHING)
        for index in range(start, end):
            one = self._message(messages[index], scheme)
            total = Sum(total.text + one.text, total.media + one.media)
            if (index + 1 == end or (index + 1) % STRIDE == 0) and index < len(chain):
                self._sums.put((chain[index], scheme.name), total)
        return total

    def _overhead(self, conversation: Conversation, scheme: _Scheme) -> _Overhead:
        if not (conversation.preamble or conversation.tools):
            return _NO_OVERHEAD
        key = (conversation.overhead_key, scheme.name)
        overhead = self._overheads.get(key) if conversation.overhead_key else None
        if overhead is None:
            preamble = self._parts(conversation.preamble, scheme) if conversation.preamble else Sum(-MESSAGE)
            # What is not understood here (tools that an item adds) stays, as the system prompt does.
            fixed = sum(scheme.media.unknown(part) for part in conversation.preamble if _unknown(part))
            tools = self._tools(conversation.tools, scheme)
            overhead = _Overhead(preamble.text + MESSAGE + fixed, tools, preamble.media - fixed)
            if conversation.overhead_key:
                self._overheads.put(key, overhead)
        return overhead

    def _tools(self, tools: tuple[str, ...], scheme: _Scheme) -> int:
        claude = scheme.media.family == "anthropic"
        shown = [first for tool in tools if (first := standing(tool, named=not claude)) is not None]
        if not shown:
            return 0
        if scheme.media.family == "openai":
            rendered = (function_as_typescript(tool) or tool for tool in shown)
            return TOOLS_OPENAI + sum(self._counter.count(tool, scheme.encoding) for tool in rendered)
        fixed = TOOLS_CLAUDE if claude else TOOLS_OPENAI
        return fixed + sum(self._counter.count(tool, scheme.encoding) for tool in shown)

    def _message(self, message: Message, scheme: _Scheme) -> Sum:
        return self._parts(message.parts, scheme, MESSAGE)

    def _parts(self, parts: Iterable[Part], scheme: _Scheme, text: int = 0) -> Sum:
        """The sum of parts, and of `text` tokens around them."""
        media, count, encoding = 0, self._counter.count, scheme.encoding
        for part in parts:
            if isinstance(part, Text):
                text += count(part.text, encoding)
            elif isinstance(part, Media):
                media += scheme.media.tokens(part)
            elif isinstance(part, ToolResult):
                inner = self._parts(part.parts, scheme)
                text, media = text + inner.text + RESULT, media + inner.media
            elif _unknown(part):
                media += scheme.media.unknown(part)
            else:
                text += self._part(part, encoding)
        return Sum(text, media)

    def _part(self, part: Reasoning | ToolCall | Opaque, encoding: str) -> int:
        if isinstance(part, ToolCall):
            called = self._counter.count(part.name, encoding) + self._counter.count(part.arguments, encoding)
            return called + CALL
        if isinstance(part, Reasoning):
            sealed = max(0, part.sealed * 3 // 4 - SEALED_ENVELOPE) // BYTES_PER_TOKEN
            return max(self._counter.count(part.text, encoding), sealed)
        return -(-part.size // BYTES_PER_TOKEN)


class _Bounded(Generic[V]):
    """The most recently used entries."""

    def __init__(self, at_most: int) -> None:
        self._entries: OrderedDict[Hashable, V] = OrderedDict()
        self._at_most = at_most
        self._lock = Lock()

    def get(self, key: Hashable) -> V | None:
        value = self._entries.get(key)
        if value is not None:
            with self._lock:
                # Another thread may have let go of it.
                if key in self._entries:
                    self._entries.move_to_end(key)
        return value

    def put(self, key: Hashable, value: V) -> None:
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            while len(self._entries) > self._at_most:
                self._entries.popitem(last=False)


def _unknown(part: Part) -> TypeGuard[Opaque]:
    """Whether it is not understood; the provider's own summary is."""
    return isinstance(part, Opaque) and part.kind != "compaction"


def _characters(parts: Iterable[Part]) -> int:
    total = 0
    for part in parts:
        if isinstance(part, Text | Reasoning):
            total += len(part.text)
        elif isinstance(part, ToolCall):
            total += len(part.arguments)
        elif isinstance(part, ToolResult):
            total += _characters(part.parts)
    return total
