"""OpenAI Chat Completions: `POST /v1/chat/completions`.

Source: the type files of the openai SDK (`openai/types/chat`), and what compatible servers add to them
(`reasoning_content` of DeepSeek and vLLM, `reasoning` and `reasoning_details` of OpenRouter,
`thinking_blocks` of LiteLLM, `video_url` of vLLM, `x_groq` of Groq).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from accordion.core.conversation import Message, Part, Text, ToolResult
from accordion.core.errors import AccordionError, ContextOverflow
from accordion.dialects import chat_writing
from accordion.dialects.base import Dialect, ReadMessage, Tap
from accordion.dialects.chat_parts import calls, parts, reasoning, spoken
from accordion.dialects.chat_reply import completion, published, reported
from accordion.dialects.keys import plain, read, tidy
from accordion.dialects.legality import chat_problems
from accordion.dialects.shared import (
    count,
    definitions,
    encode,
    entries,
    field,
    limit,
    mapping,
    opaque,
    openai_error,
    refused,
    role_of,
    string,
)
from accordion.dialects.tap import BodyTap, StreamTap

_USAGE = re.compile(rb'"usage"\s*:\s*\{').search
# Without the quote before it, which is everywhere, the name is found twice as fast. `native_finish_reason` is found
# too; that only has an event read that need not be.
_FINISH = re.compile(rb'finish_reason"\s*:\s*"').search
_CALL = re.compile(rb'"(?:tool_calls|function_call)"\s*:\s*[\[{]').search
_ERROR = re.compile(rb'"error"\s*:\s*[^\sn]').search
_LEGACY = "function_call"
# Some servers give neither id nor model; after so many events they are no longer looked for.
_OPENING = 8


class _Function(msgspec.Struct):
    arguments: str
    name: str | None = None


class _Call(msgspec.Struct):
    function: _Function
    index: int
    id: str | None = None


class _Delta(msgspec.Struct):
    tool_calls: list[_Call]


class _Choice(msgspec.Struct):
    delta: _Delta
    index: int = 0
    finish_reason: str | None = None
    usage: Any = None


class _Chunk(msgspec.Struct):
    """A chunk that goes on with calls."""

    choices: list[_Choice]
    usage: Any = None
    x_groq: Any = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class ChatCompletions(Dialect):
    """The dialect of Chat Completions."""

    name = "chat"
    listing = "messages"

    def message(self, raw: bytes) -> ReadMessage:
        """Reads one message. A legacy `function_call` and its result are paired by the function's name."""
        entry = read(raw)
        if type(entry) is not dict:
            return ReadMessage("other", (opaque(entry),), [entry])
        role = role_of(entry.get("role"))
        content = entry.get("content")
        if len(entry) == 2 and type(content) is str and role != "tool":
            # Where the role is known, these two are all.
            canonical = tidy(entry) if role == "other" else plain(entry["role"], content)
            return ReadMessage(role, (Text(content),) if content else (), canonical)
        said: tuple[Part, ...]
        if role == "tool":
            call_id = entry.get("tool_call_id") or entry.get("name")
            said = (ToolResult(string(call_id), tuple(parts(content))),)
        else:
            said = (*reasoning(entry), *parts(content), *spoken(entry), *calls(entry))
        return ReadMessage(role, said, tidy(entry))

    def is_preamble(self, message: ReadMessage) -> bool:
        """System and developer messages at the start are the system prompt."""
        return message.role in {"system", "developer"}

    def preamble(self, fields: Mapping[str, bytes]) -> tuple[Part, ...]:
        """Nothing: the system prompt stands in the list."""
        return ()

    def tools(self, fields: Mapping[str, bytes]) -> tuple[str, ...]:
        """Tools, legacy functions, and the schema of the answer."""
        schema = mapping(field(fields, "response_format")).get("json_schema")
        return definitions(field(fields, "tools"), field(fields, "functions"), schema)

    def max_output(self, fields: Mapping[str, bytes]) -> int | None:
        """`max_completion_tokens`, or the older `max_tokens`."""
        return limit(fields, "max_completion_tokens", "max_tokens")

    def error(self, error: AccordionError, request_id: str) -> bytes:
        """`{"error": {message, type, param, code}}`; an overflow in OpenAI's own words, which agents look for."""
        inner = openai_error(error, request_id)
        if isinstance(error, ContextOverflow):
            inner["message"] = (
                f"This model's maximum context length is {error.limit} tokens. However, your messages resulted in "
                f"{error.tokens} tokens. Please reduce the length of the messages. {error.folding} "
                f"(request id: {request_id})"
            )
            inner["param"] = "messages"
        return encode({"error": inner})

    def stream_error(self, error: AccordionError, request_id: str, before: bytes = b"") -> bytes:
        """A chunk with `error`, on which the official SDKs raise; no `[DONE]` follows."""
        return b"data: " + self.error(error, request_id) + b"\n\n"

    def stream_refusal(self, body: bytes) -> bytes:
        """The same with what the provider said."""
        said = refused(body)
        return b"data: " + encode(said) + b"\n\n" if said else b""

    def edit(self, message: Message, changes: Mapping[int, str | None]) -> bytes | None:
        """A message with parts changed. An assistant's message that only reasons is nothing."""
        return chat_writing.edited(message, changes)

    def text(self, text: str) -> bytes:
        """`{"role": "user", "content"}`."""
        return chat_writing.block(text)

    def joined(self, wires: Sequence[bytes], ours: Collection[int]) -> list[bytes]:
        """Blocks of ours become part of the user's messages beside them."""
        return chat_writing.joined(wires, ours)

    def marked(self, wire: bytes) -> bytes:
        """As it was: the provider finds its cached prefix by itself."""
        return wire

    def problems(self, messages: Sequence[Message]) -> list[str]:
        """Results directly behind the calls that they answer, every call answered, the user first."""
        return chat_problems(messages)

    def tap(self, stream: bool) -> Tap:
        """A tap for chunks, or for a whole completion."""
        return _ChunkTap() if stream else BodyTap(completion, published)


class _ChunkTap(StreamTap):
    """Watches chunks. Usage may come with the last one, with every one (then the last counts), or never."""

    def __init__(self) -> None:
        super().__init__()
        self._opening = _OPENING
        # The latest call at each (choice, index).
        self._open: dict[tuple[int, int], str] = {}

    def matters(self, block: bytes) -> bool:
        """The first events for id and model; then only what ends a choice, is of a call, reports or fails."""
        return bool(
            self._opening
            or (b'"usage"' in block and _USAGE(block))
            or _FINISH(block)
            or b"[DONE]" in block
            or (b'_call' in block and _CALL(block))
            or (b'"error"' in block and _ERROR(block))
        )  # fmt: skip

    def mark(self, data: bytes) -> None:
        """`[DONE]` ends the stream."""
        if data.startswith(b"[DONE]"):
            self.ended = True

    def event(self, data: dict[str, Any]) -> None:
        """Reads one chunk."""
        self.response_id = self.response_id or string(data.get("id"))
        self.model = self.model or string(data.get("model"))
        self._opening = 0 if self.response_id and self.model else max(0, self._opening - 1)
        choices = entries(data.get("choices"))
        self.usage = reported(data, choices) or self.usage
        for entry in choices:
            choice = mapping(entry)
            self.finish = string(choice.get("finish_reason")) or self.finish
            delta = mapping(choice.get("delta"))
            for position, call in enumerate(entries(delta.get("tool_calls"))):
                self._call(count(choice.get("index")), position, mapping(call))
            legacy = mapping(delta.get("function_call"))
            if legacy.get("name"):
                self.call(_LEGACY, legacy["name"], legacy["name"])
            self.given(_LEGACY, legacy.get("arguments"))

    def _call(self, choice: int, position: int, call: dict[str, Any]) -> None:
        """Calls come by index; some servers give parallel calls the same index and tell them apart by id only."""
        index = call.get("index")
        place = (choice, index if type(index) is int else position)
        call_id = string(call.get("id"))
        if call_id:
            self._open[place] = call_id
        custom = mapping(call.get("custom"))
        function = mapping(call.get("function")) or custom
        key = (place, self._open.get(place, ""))
        self.call(key, call_id, function.get("name"))
        self.given(key, function.get("input" if function is custom else "arguments"))

    def _read(self, piece: bytes) -> None:
        """Most events of a call give more of its arguments and nothing else; those are read quickly."""
        more = _more(piece)
        if more is None or self._opening:
            super()._read(piece)
            return
        place, text = more
        key = (place, self._open.get(place, ""))
        if key not in self.calls:
            self.call(key, "", "")
        self.given(key, text)


def _more(piece: bytes) -> tuple[tuple[int, int], str] | None:
    """Where a chunk goes on with a call, and how, if that is all that it says."""
    if not piece.startswith(b"data: {") or b"\n" in piece:
        return None
    try:
        chunk = _decode(piece[6:])
    except (ValueError, RecursionError):
        return None
    if len(chunk.choices) != 1 or not (chunk.usage is chunk.x_groq is chunk.error is None):
        return None
    choice = chunk.choices[0]
    if choice.finish_reason is not None or choice.usage is not None or len(choice.delta.tool_calls) != 1:
        return None
    call = choice.delta.tool_calls[0]
    if call.id or call.function.name or call.index < 0 or choice.index < 0:
        return None
    return (choice.index, call.index), call.function.arguments
