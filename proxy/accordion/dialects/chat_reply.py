"""What a whole completion says. Most say no more than the published type has, and are read by it at once."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from accordion.core.conversation import ToolCall
from accordion.core.records import CallSeen, ReplySeen, Usage
from accordion.dialects.chat_parts import calls
from accordion.dialects.keys import number
from accordion.dialects.shared import COUNTS, count, entries, mapping, noted, string

_Count = Annotated[int, msgspec.Meta(ge=0, lt=COUNTS)]


class _Given(msgspec.Struct):
    cached_tokens: _Count | None = None
    cache_write_tokens: _Count | None = None


class _Made(msgspec.Struct):
    reasoning_tokens: _Count | None = None


class _Used(msgspec.Struct):
    prompt_tokens: _Count
    completion_tokens: _Count = 0
    prompt_tokens_details: _Given | None = None
    completion_tokens_details: _Made | None = None
    prompt_cache_hit_tokens: _Count | None = None


class _Message(msgspec.Struct):
    tool_calls: list[Any] | None = None
    function_call: dict[str, Any] | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    """A completion as it is published. What may be an error is none."""

    id: str
    model: str
    choices: list[_Choice]
    usage: _Used
    error: None = None
    object: Literal["chat.completion"] = "chat.completion"
    type: None = None


_decode = msgspec.json.Decoder(_Completion, float_hook=number).decode
_NONE_GIVEN, _NONE_MADE = _Given(), _Made()


def published(body: bytes) -> ReplySeen | None:
    """What a completion says whose fields are as they are published; None where one is not, or may be an error.
    `completion` reads the same of it, in more than twice the time."""
    try:
        said = _decode(body)
    except (ValueError, RecursionError):
        return None
    used = said.usage
    given = used.prompt_tokens_details or _NONE_GIVEN
    thought = used.completion_tokens_details or _NONE_MADE
    usage = Usage(
        used.prompt_tokens,
        used.completion_tokens,
        given.cached_tokens or used.prompt_cache_hit_tokens or 0,
        given.cache_write_tokens or 0,
        thought.reasoning_tokens or 0,
    )
    finish = ""
    made: tuple[CallSeen, ...] = ()
    for choice in said.choices:
        finish = finish or choice.finish_reason or ""
        message = choice.message
        if message.tool_calls or message.function_call:
            made += _called({"tool_calls": message.tool_calls, "function_call": message.function_call})
    return ReplySeen(said.id, said.model, usage, finish, made)


def completion(data: dict[str, Any]) -> ReplySeen:
    """What any completion says, as far as it is understood."""
    finish = ""
    made: tuple[CallSeen, ...] = ()
    choices = entries(data.get("choices"))
    for entry in choices:
        choice = mapping(entry)
        finish = finish or string(choice.get("finish_reason"))
        made += _called(mapping(choice.get("message")))
    return ReplySeen(string(data.get("id")), string(data.get("model")), reported(data, choices), finish, made)


def reported(data: dict[str, Any], choices: list[Any]) -> Usage | None:
    """Usage, wherever a server puts it: beside the choices, in Groq's field, in the last choice."""
    usage = mapping(data.get("usage") or mapping(data.get("x_groq")).get("usage"))
    if not usage and choices:
        usage = mapping(mapping(choices[-1]).get("usage"))
    if "prompt_tokens" not in usage:
        return None
    given = mapping(usage.get("prompt_tokens_details"))
    made = mapping(usage.get("completion_tokens_details"))
    return Usage(
        input=count(usage["prompt_tokens"]),
        output=count(usage.get("completion_tokens")),
        cached=count(given.get("cached_tokens")) or count(usage.get("prompt_cache_hit_tokens")),
        cache_write=count(given.get("cache_write_tokens")),
        reasoning=count(made.get("reasoning_tokens")),
    )


def _called(message: dict[str, Any]) -> tuple[CallSeen, ...]:
    made = (part for part in calls(message) if isinstance(part, ToolCall))
    return tuple(CallSeen(call.call_id, call.name, noted(call.arguments)) for call in made)
