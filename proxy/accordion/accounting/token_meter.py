"""Counts the tokens of a conversation: system prompt, tools, messages and media, before any correction.

Theory of operation. Only new messages are counted. The sum up to a message is cached under its chain key, which stands
for everything before it, and a count begins after the deepest message with a known sum. Messages that a provider does
not read, since it continues from a compaction of its own, count nothing. `calibration` corrects the counts afterwards.

Fixed overheads follow OpenAI's published formats (harmony: `<|start|>role<|message|>…<|end|>`); Anthropic's documented
system prompt for tools is added if Claude is given any. Other models differ; reported usage corrects them.

Tool definitions are rendered as they are in a model's context, without those that are loaded later. OpenAI's models
read tools as TypeScript instead of JSON, which is a third shorter. Source: the rendering of tools in OpenAI's published
harmony format, which its chat models are known to share: `namespace functions {`, a `//` line for each description,
`type name = (_: { key?: type, }) => any;`.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Iterator
from functools import partial
from typing import Any, TypeGuard

import msgspec
from msgspec.structs import replace

from accordion.accounting.media_tokens import MediaRules, media_rules
from accordion.accounting.token_estimate import estimate_text_tokens
from accordion.model.boundaries import find_provider_compaction, find_skipped_messages, survives_provider_compaction
from accordion.model.budget import Utilization, Window
from accordion.model.cache import LONGEST_NAME, BoundedCache, count_entry
from accordion.model.conversation import (
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
from accordion.model.ports import TokenCounter

MESSAGE = 4  # start, role, message, end
CALL = 6  # channel, recipient and end of a tool call, besides name and arguments
RESULT = 4  # the author of a tool's answer and its address
RESPONSE_START = 3  # what opens the model's own response
TOOLS_OPENAI = 12  # the heading and the namespace around all functions
TOOLS_CLAUDE = 346  # "Tool use system prompt token count", Claude 4

BYTES_PER_TOKEN = 4
SEALED_ENVELOPE = 650
"""Bytes of an encrypted reasoning item that are not reasoning; the rest is base64, three bytes in four."""

MAX_INLINE = 32_768
"""Characters that are counted without a thread."""
ESTIMATED_FROM = 65_536
"""Characters from which on an estimate takes at most half of the time of a count."""
MOST_BYTES_PER_TOKEN = 8
"""A longer body is counted without an estimate, which could hardly be below any threshold."""
COUNTS_AT_MOST = 20_000
"""Cached sums: those of some hundred long conversations. They take 7 MB at most."""
MESSAGE_COUNTS_AT_MOST = 3_000
"""Cached counts of messages, for compactions: those of fifteen long conversations. They take 1.2 MB at most."""
SCHEMES_AT_MOST = 256
"""Models whose counting scheme is cached."""

STRIDE = 16
"""While many messages are counted at once, every 16th sum is cached, for histories that fork or are rewound."""


class TokenSum(msgspec.Struct, frozen=True):
    """Tokens of messages: `text` is counted, `media` is estimated (images, files, and parts of unknown kinds)."""

    text: int = 0
    media: int = 0

    def __add__(self, other: TokenSum) -> TokenSum:
        return TokenSum(self.text + other.text, self.media + other.media)

    def __sub__(self, other: TokenSum) -> TokenSum:
        return TokenSum(self.text - other.text, self.media - other.media)

    @property
    def tokens(self) -> int:
        """The sum of both."""
        return self.text + self.media


_NO_TOKENS = TokenSum()


class _CountingScheme(msgspec.Struct, frozen=True):
    """The rules by which one model counts; `name` is the same for models that count alike."""

    name: str
    encoding: str
    media: MediaRules


class _OverheadTokens(msgspec.Struct, frozen=True):
    preamble: int
    tools: int
    media: int


_NO_OVERHEAD = _OverheadTokens(0, 0, 0)


class EstimatedUtilization(msgspec.Struct, frozen=True):
    """An estimate: the `likely` utilization, and the `bound` that a count hardly ever exceeds (token_estimate.py)."""

    likely: Utilization
    bound: Utilization


class TokenMeter:
    """Counts the tokens of conversations. Safe to use from several threads; only its caches are locked."""

    def __init__(self, counter: TokenCounter, sums_at_most: int = COUNTS_AT_MOST) -> None:
        self._counter = counter
        self._sums: BoundedCache[Hashable, TokenSum] = BoundedCache(sums_at_most, count_entry)
        self._overheads: BoundedCache[Hashable, _OverheadTokens] = BoundedCache(sums_at_most // 16, count_entry)
        self._schemes: dict[tuple[str, str], _CountingScheme] = {}

    def measure(self, conversation: Conversation, window: Window, model: str = "") -> Utilization:
        """Returns how full the window would be. `model` is the actual model, if it is not the conversation's."""
        scheme = self._scheme(conversation, model)
        overhead = self._count_overhead(conversation, scheme)
        messages = self._count_first(conversation, scheme, len(conversation.messages))
        max_output = conversation.max_output
        return Utilization(
            window=window.size,
            preamble=overhead.preamble,
            tools=overhead.tools,
            messages=messages.text + RESPONSE_START,
            media=overhead.media + messages.media,
            reserved_output=min(max_output, window.size) if max_output is not None and max_output > 0 else 0,
            is_window_known=window.is_known,
        )

    def estimate(self, conversation: Conversation, window: Window, model: str = "") -> Iterator[EstimatedUtilization]:
        """Yields estimates of what `measure` would return, each more precise than the one before."""
        scheme = self._scheme(conversation, model)
        collector = _TextCollector(self._counter)
        rest = self._copy_sum(TokenMeter(collector), conversation, scheme).measure(conversation, window, model)
        seed = conversation.overhead_key + (conversation.chain[-1] if conversation.chain else b"")
        count = partial(self._counter.count, encoding=scheme.encoding)
        for text in estimate_text_tokens(collector.texts, seed, count):
            yield EstimatedUtilization(_add_estimate(rest, text.likely), _add_estimate(rest, text.bound))

    def is_estimable(self, conversation: Conversation, model: str = "") -> bool:
        """Whether an estimate saves time: much would have to be counted, and the encoding is loaded."""
        if not self.is_loaded(conversation, model):
            return False
        return self.pending_characters(conversation, model, ESTIMATED_FROM) >= ESTIMATED_FROM

    def _copy_sum(self, other: TokenMeter, conversation: Conversation, scheme: _CountingScheme) -> TokenMeter:
        """Gives another meter the known sum of the conversation's beginning, so that it counts only the rest."""
        known, token_sum = self._find_deepest_known(conversation, scheme, len(conversation.messages))
        if known:
            other._sums.put((conversation.chain[known - 1], scheme.name), token_sum, 1)
        return other

    def count_after(self, conversation: Conversation, index: int, model: str = "") -> TokenSum:
        """Counts the messages after `messages[index]`; -1 for all. Costs nothing if they were counted before."""
        scheme, messages = self._scheme(conversation, model), conversation.messages
        if find_provider_compaction(messages, index + 1) >= 0:
            skipped = find_skipped_messages(messages)
            rest = (at for at in range(index + 1, len(messages)) if at not in skipped)
            return sum((self._count_message(messages[at], scheme) for at in rest), _NO_TOKENS)
        return self._count_first(conversation, scheme, len(messages)) - self._count_first(
            conversation, scheme, index + 1
        )

    def count_added(self, extended: Conversation, base: Conversation, model: str = "") -> int | None:
        """Returns the tokens of the insertions in `extended`, a list made from `base`; None if it must be counted.

        Both were counted before, and the same messages have been added to both since.
        """
        name = self._scheme(extended, model).name
        for new_count in range(min(STRIDE, len(base.chain), len(extended.chain))):
            base_sum = self._sums.get((base.chain[-1 - new_count], name))
            if base_sum is not None:
                break
        else:
            return None
        extended_sum, earlier_sum = (
            self._sums.get((extended.chain[-1], name)),
            self._sums.get((extended.chain[-1 - new_count], name)),
        )
        start = len(base.messages) - new_count
        if (
            extended_sum is None
            or earlier_sum is None
            or base.messages[start:] != extended.messages[len(extended.messages) - new_count :]
        ):
            return None
        if find_provider_compaction(base.messages, start) >= 0:
            return None
        if new_count:
            self._sums.put((base.chain[-1], name), base_sum + (extended_sum - earlier_sum), 1)
        return earlier_sum.tokens - base_sum.tokens

    def count_message(self, message: Message, conversation: Conversation, model: str = "") -> TokenSum:
        """Counts one message, by the rules of the conversation's model."""
        return self._count_message(message, self._scheme(conversation, model))

    def rules_name(self, conversation: Conversation, model: str = "") -> str:
        """Returns the name of the conversation's counting rules: the same for models that count alike."""
        return self._scheme(conversation, model).name

    def count_tools(self, conversation: Conversation, model: str = "") -> int:
        """Counts the definitions of the conversation's tools."""
        return self._count_overhead(conversation, self._scheme(conversation, model)).tools

    def find_sum(self, conversation: Conversation, model: str = "") -> tuple[str, TokenSum] | None:
        """Returns the tokens of a list's messages, and the name of the counting rules, if they were counted before."""
        if not conversation.chain:
            return None
        rules = self.rules_name(conversation, model)
        token_sum = self._sums.get((conversation.chain[-1], rules))
        return None if token_sum is None else (rules, token_sum)

    def add_sum(self, chain_key: bytes, rules_name: str, token_sum: TokenSum) -> None:
        """Adds a sum of another worker: the tokens of the messages of the list that ends at a chain key."""
        self._sums.put((chain_key, rules_name), token_sum, 1)

    def count_text(self, text: str, model: str) -> int:
        """Counts a plain text in a model's encoding."""
        return self._counter.count(text, self._counter.encoding(model))

    def is_loaded(self, conversation: Conversation, model: str) -> bool:
        """Whether `measure` need not load an encoding first."""
        return self._counter.is_loaded(self._scheme(conversation, model).encoding)

    def load(self, conversation: Conversation, model: str) -> None:
        """Loads the encoding that `measure` needs; meant for a thread."""
        self._counter.load(self._scheme(conversation, model).encoding)

    def is_slow(self, conversation: Conversation, model: str, size: int) -> bool:
        """Whether `measure` belongs in a thread: it must count more than `MAX_INLINE` characters.

        `size` is that of the body in bytes, an upper bound of the characters.
        """
        return size > MAX_INLINE and self.pending_characters(conversation, model, MAX_INLINE) > MAX_INLINE

    def pending_characters(self, conversation: Conversation, model: str = "", limit: int = sys.maxsize) -> int:
        """Returns how many characters `measure` would have to count now; above `limit`, not all of them."""
        scheme, key, pending = self._scheme(conversation, model), conversation.overhead_key, 0
        if not key or self._overheads.get((key, scheme.name)) is None:
            pending = _count_characters(conversation.preamble) + sum(map(len, conversation.tools))
        start, _ = self._find_deepest_known(conversation, scheme, len(conversation.messages))
        for message in conversation.messages[start:]:
            if pending > limit:
                break
            pending += _count_characters(message.parts)
        return pending

    def _scheme(self, conversation: Conversation, model: str) -> _CountingScheme:
        key = (model or conversation.model, conversation.protocol_name)
        return self._schemes.get(key) or self._new_scheme(*key)

    def _new_scheme(self, model: str, protocol_name: str) -> _CountingScheme:
        encoding, media = self._counter.encoding(model), media_rules(model, protocol_name)
        scheme = _CountingScheme(f"{encoding}/{media.name}", encoding, media)
        if len(model) <= LONGEST_NAME:
            if len(self._schemes) >= SCHEMES_AT_MOST:
                self._schemes.clear()
            self._schemes[model, protocol_name] = scheme
        return scheme

    def _find_deepest_known(
        self, conversation: Conversation, scheme: _CountingScheme, end: int
    ) -> tuple[int, TokenSum]:
        """Returns the largest number of messages, up to `end`, whose sum is known, and that sum."""
        chain = conversation.chain
        for count in range(min(end, len(chain)), 0, -1):
            token_sum = self._sums.get((chain[count - 1], scheme.name))
            if token_sum is not None:
                return count, token_sum
        return 0, _NO_TOKENS

    def _count_first(self, conversation: Conversation, scheme: _CountingScheme, end: int) -> TokenSum:
        """Counts the first `end` messages."""
        start, total = self._find_deepest_known(conversation, scheme, end)
        messages, chain = conversation.messages, conversation.chain
        if (boundary := find_provider_compaction(messages, start, end)) >= 0:
            surviving = (
                message for message in messages[:boundary] if survives_provider_compaction(message, messages[boundary])
            )
            start, total = boundary, sum((self._count_message(message, scheme) for message in surviving), _NO_TOKENS)
        for index in range(start, end):
            message_tokens = self._count_message(messages[index], scheme)
            total = TokenSum(total.text + message_tokens.text, total.media + message_tokens.media)
            if (index + 1 == end or (index + 1) % STRIDE == 0) and index < len(chain):
                self._sums.put((chain[index], scheme.name), total, 1)
        return total

    def _count_overhead(self, conversation: Conversation, scheme: _CountingScheme) -> _OverheadTokens:
        if not (conversation.preamble or conversation.tools):
            return _NO_OVERHEAD
        key = (conversation.overhead_key, scheme.name)
        overhead = self._overheads.get(key) if conversation.overhead_key else None
        if overhead is None:
            preamble = self._count_parts(conversation.preamble, scheme) if conversation.preamble else TokenSum(-MESSAGE)
            # Parts of unknown kinds in here (tools that an item adds) are never removed, as the system prompt is not.
            fixed = sum(scheme.media.unknown_tokens(part) for part in conversation.preamble if _is_unknown(part))
            tools = self._count_tools(conversation.tools, scheme)
            overhead = _OverheadTokens(preamble.text + MESSAGE + fixed, tools, preamble.media - fixed)
            if conversation.overhead_key:
                self._overheads.put(key, overhead, 1)
        return overhead

    def _count_tools(self, tools: tuple[str, ...], scheme: _CountingScheme) -> int:
        is_claude = scheme.media.family == "anthropic"
        initial_definitions = (initial_definition(tool, named=not is_claude) for tool in tools)
        definitions = [definition for definition in initial_definitions if definition is not None]
        if not definitions:
            return 0
        if scheme.media.family == "openai":
            rendered = (function_as_typescript(tool) or tool for tool in definitions)
            return TOOLS_OPENAI + sum(self._counter.count(tool, scheme.encoding) for tool in rendered)
        overhead = TOOLS_CLAUDE if is_claude else TOOLS_OPENAI
        return overhead + sum(self._counter.count(tool, scheme.encoding) for tool in definitions)

    def _count_message(self, message: Message, scheme: _CountingScheme) -> TokenSum:
        return self._count_parts(message.parts, scheme, MESSAGE)

    def _count_parts(self, parts: Iterable[Part], scheme: _CountingScheme, text: int = 0) -> TokenSum:
        """Counts parts, and adds `text` tokens for the format around them."""
        media, count, encoding = 0, self._counter.count, scheme.encoding
        for part in parts:
            if isinstance(part, Text):
                text += count(part.text, encoding)
            elif isinstance(part, Media):
                media += scheme.media.tokens(part)
            elif isinstance(part, ToolResult):
                inner = self._count_parts(part.parts, scheme)
                text, media = text + inner.text + RESULT, media + inner.media
            elif _is_unknown(part):
                media += scheme.media.unknown_tokens(part)
            else:
                text += self._count_part(part, encoding)
        return TokenSum(text, media)

    def _count_part(self, part: Reasoning | ToolCall | Opaque, encoding: str) -> int:
        if isinstance(part, ToolCall):
            return self._counter.count(part.name, encoding) + self._counter.count(part.arguments, encoding) + CALL
        if isinstance(part, Reasoning):
            sealed = max(0, part.encrypted_size * 3 // 4 - SEALED_ENVELOPE) // BYTES_PER_TOKEN
            return max(self._counter.count(part.text, encoding), sealed)
        return -(-part.size // BYTES_PER_TOKEN)


def _add_estimate(utilization: Utilization, tokens: int) -> Utilization:
    """Returns a utilization with estimated tokens of all texts. It does not tell them apart."""
    messages = utilization.preamble + utilization.tools + utilization.messages + tokens
    return replace(utilization, preamble=0, tools=0, messages=messages)


class _TextCollector:
    """A TokenCounter (model/ports.py) that collects the texts and counts no tokens for them."""

    def __init__(self, counter: TokenCounter) -> None:
        self.encoding, self.is_loaded, self.load = counter.encoding, counter.is_loaded, counter.load
        self.texts: list[str] = []

    def count(self, text: str, encoding: str) -> int:
        """Collects a text."""
        self.texts.append(text)
        return 0


def _is_unknown(part: Part) -> TypeGuard[Opaque]:
    """Whether a part is of an unknown kind; the provider's own compaction is known."""
    return isinstance(part, Opaque) and part.kind != "compaction"


def _count_characters(parts: Iterable[Part]) -> int:
    total = 0
    for part in parts:
        if isinstance(part, Text | Reasoning):
            total += len(part.text)
        elif isinstance(part, ToolCall):
            total += len(part.arguments)
        elif isinstance(part, ToolResult):
            total += _count_characters(part.parts)
    return total


class MessageTokenCache:
    """Caches the tokens of single messages by their content, for the planner. Safe to use from several threads.

    The `at_most` most recently used ones stay.
    """

    def __init__(self, meter: TokenMeter, at_most: int = MESSAGE_COUNTS_AT_MOST) -> None:
        self._meter = meter
        self._counts: BoundedCache[tuple[bytes, str], int] = BoundedCache(at_most, count_entry)

    def count_message(self, message: Message, conversation: Conversation, model: str) -> int:
        """Counts one message, by the rules of the conversation's model."""
        key = message.key, self._meter.rules_name(conversation, model)
        count = self._counts.get(key)
        if count is None:
            count = self._meter.count_message(message, conversation, model).tokens
            self._counts.put(key, count, 1)
        return count

    def count_text(self, text: str, model: str) -> int:
        """Counts a plain text."""
        return self._meter.count_text(text, model)


# -- tools as they are in a model's context ----------------------------------------------------------------------------


_MAX_SCHEMA_DEPTH = 16
_DEFERRED = '"defer_loading":true'
_UNIONS = ("anyOf", "oneOf")
_UNTRANSLATED = (
    *("$ref", "$defs", "definitions", "allOf", "not", "if", "then", "else"),
    *("additionalProperties", "patternProperties", "dependentSchemas", "prefixItems"),
)
_DEFERRED_FIELDS = ("type", "name", "description", "server_label", "server_description")


def initial_definition(definition: str, *, named: bool) -> str | None:
    """Returns the part of a tool's definition that the model receives from the start, or None if there is none.

    The loading of a tool may be deferred until a search finds it. Of such a tool the model receives name and
    description if `named`, else nothing. A namespace loses its deferred tools.

    Source: the anthropic SDK, `types/tool_param.py` ("will not be included in initial system prompt"); OpenAI, "Tool
    search" (the model sees name and description of what is searchable, and nothing of what a namespace defers).
    """
    if _DEFERRED not in definition:
        return definition
    try:
        tool = msgspec.json.decode(definition)
    except (msgspec.DecodeError, RecursionError):
        return definition
    if not isinstance(tool, dict):
        return definition
    if isinstance(inner := tool.get("tools"), list):
        tool["tools"] = [one for one in inner if not _is_deferred(one)]
    elif _is_deferred(tool):
        if not named:
            return None
        function = tool.get("function")
        tool = _describe_deferred(tool) | (
            {"function": _describe_deferred(function)} if isinstance(function, dict) else {}
        )
    try:
        return _render_literal(tool)
    except RecursionError:
        return definition


def _is_deferred(tool: Any) -> bool:
    return isinstance(tool, dict) and tool.get("defer_loading") is True


def _describe_deferred(tool: dict[str, Any]) -> dict[str, Any]:
    return {name: tool[name] for name in _DEFERRED_FIELDS if name in tool}


def function_as_typescript(definition: str) -> str | None:
    """Renders one function tool as TypeScript; None if it is another kind of tool.

    The tool may have Chat's nested form or the flat form of Responses.
    """
    try:
        tool = msgspec.json.decode(definition)
    except (msgspec.DecodeError, RecursionError):
        return None
    if isinstance(tool, dict) and isinstance(tool.get("function"), dict):
        tool = tool["function"]
    elif not isinstance(tool, dict) or tool.get("type", "function") != "function" or "schema" in tool:
        # A name with a schema defines a structured output, not a tool.
        return None
    name, parameters = tool.get("name"), tool.get("parameters")
    if not isinstance(name, str):
        return None
    head = "".join(f"// {line}\n" for line in str(tool.get("description") or "").splitlines())
    if not isinstance(parameters, dict) or not any(map(parameters.get, ("properties", *_UNIONS, *_UNTRANSLATED))):
        return f"{head}type {name} = () => any;\n\n"
    try:
        return f"{head}type {name} = (_: {_render_type(parameters, 0)}) => any;\n\n"
    except RecursionError:
        return None


def _render_type(schema: Any, depth: int) -> str:
    """Returns the TypeScript type of a JSON schema. Keywords without an equivalent are appended as JSON."""
    if not isinstance(schema, dict) or depth > _MAX_SCHEMA_DEPTH:
        return "any"
    untranslated = [name for name in _UNTRANSLATED if isinstance(schema.get(name), dict | list | str) and schema[name]]
    if "properties" in schema:
        untranslated += [name for name in _UNIONS if schema.get(name)]
    if untranslated:
        rest = {name: value for name, value in schema.items() if name not in untranslated}
        return f"{_render_type(rest, depth)} & {_render_literal({name: schema[name] for name in untranslated})}"
    for union in _UNIONS:
        if isinstance(schema.get(union), list):
            return " | ".join(_render_type(one, depth + 1) for one in schema[union])
    if isinstance(schema.get("enum"), list):
        return " | ".join(_render_literal(value) for value in schema["enum"])
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(_render_type({**schema, "type": one}, depth + 1) for one in kind)
    if kind == "array":
        return f"{_render_type(schema.get('items'), depth + 1)}[]"
    if kind == "object" or "properties" in schema:
        return _render_object(schema, depth)
    return {"integer": "number", "string": "string", "number": "number", "boolean": "boolean", "null": "null"}.get(
        str(kind), "any"
    )


def _render_object(schema: dict[str, Any], depth: int) -> str:
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) or not properties:
        return "object"
    required_names = set(map(str, required)) if isinstance(required, list) else set()
    lines = ["{"]
    for name, inner in properties.items():
        property_schema = inner if isinstance(inner, dict) else {}
        lines += [f"// {line}" for line in str(property_schema.get("description") or "").splitlines()]
        default = f" // default: {_render_literal(property_schema['default'])}" if "default" in property_schema else ""
        lines.append(f"{name}{'' if name in required_names else '?'}: {_render_type(inner, depth + 1)},{default}")
    return "\n".join([*lines, "}"])


def _render_literal(value: Any) -> str:
    return msgspec.json.encode(value).decode("utf-8", "replace")
