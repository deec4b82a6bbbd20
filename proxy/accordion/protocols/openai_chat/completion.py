"""Reads a complete chat completion. Most have the published form, which msgspec decodes directly into a type."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from accordion.model.conversation import ToolCall
from accordion.model.records import ObservedCall, ObservedResponse, Usage
from accordion.protocols.json_values import COUNTS, as_count, as_list, as_mapping, as_string, bounded_arguments
from accordion.protocols.message_keys import parse_number
from accordion.protocols.openai_chat.parts import read_calls

_Count = Annotated[int, msgspec.Meta(ge=0, lt=COUNTS)]


class _PromptDetails(msgspec.Struct):
    cached_tokens: _Count | None = None
    cache_write_tokens: _Count | None = None


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: _Count | None = None


class _CompletionUsage(msgspec.Struct):
    prompt_tokens: _Count
    completion_tokens: _Count = 0
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None
    prompt_cache_hit_tokens: _Count | None = None


class _CompletionMessage(msgspec.Struct):
    tool_calls: list[Any] | None = None
    function_call: dict[str, Any] | None = None


class _CompletionChoice(msgspec.Struct):
    message: _CompletionMessage
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    """A completion in the published form. A possible error does not match it."""

    id: str
    model: str
    choices: list[_CompletionChoice]
    usage: _CompletionUsage
    error: None = None
    object: Literal["chat.completion"] = "chat.completion"
    type: None = None


_decode = msgspec.json.Decoder(_Completion, float_hook=parse_number).decode
_NO_PROMPT_DETAILS, _NO_COMPLETION_DETAILS = _PromptDetails(), _CompletionDetails()


def read_published_form(body: bytes) -> ObservedResponse | None:
    """Reads a completion in the published form; None for any other, and for a possible error. `read_any_form` returns
    the same, in more than twice the time."""
    try:
        completion = _decode(body)
    except (ValueError, RecursionError):
        return None
    counts = completion.usage
    prompt_details = counts.prompt_tokens_details or _NO_PROMPT_DETAILS
    completion_details = counts.completion_tokens_details or _NO_COMPLETION_DETAILS
    usage = Usage(
        counts.prompt_tokens,
        counts.completion_tokens,
        prompt_details.cached_tokens or counts.prompt_cache_hit_tokens or 0,
        prompt_details.cache_write_tokens or 0,
        completion_details.reasoning_tokens or 0,
    )
    finish = ""
    calls: tuple[ObservedCall, ...] = ()
    for choice in completion.choices:
        finish = finish or choice.finish_reason or ""
        message = choice.message
        if message.tool_calls or message.function_call:
            calls += _read_calls({"tool_calls": message.tool_calls, "function_call": message.function_call})
    return ObservedResponse(completion.id, completion.model, usage, finish, calls)


def read_any_form(data: dict[str, Any]) -> ObservedResponse:
    """Reads any completion, as far as its fields are known."""
    finish = ""
    calls: tuple[ObservedCall, ...] = ()
    choices = as_list(data.get("choices"))
    for entry in choices:
        choice = as_mapping(entry)
        finish = finish or as_string(choice.get("finish_reason"))
        calls += _read_calls(as_mapping(choice.get("message")))
    return ObservedResponse(
        as_string(data.get("id")), as_string(data.get("model")), find_usage(data, choices), finish, calls
    )


def find_usage(data: dict[str, Any], choices: list[Any]) -> Usage | None:
    """Finds the usage: servers put it beside the choices, in Groq's field, or in the last choice."""
    usage = as_mapping(data.get("usage") or as_mapping(data.get("x_groq")).get("usage"))
    if not usage and choices:
        usage = as_mapping(as_mapping(choices[-1]).get("usage"))
    if "prompt_tokens" not in usage:
        return None
    prompt_details = as_mapping(usage.get("prompt_tokens_details"))
    completion_details = as_mapping(usage.get("completion_tokens_details"))
    return Usage(
        input=as_count(usage["prompt_tokens"]),
        output=as_count(usage.get("completion_tokens")),
        cached=as_count(prompt_details.get("cached_tokens")) or as_count(usage.get("prompt_cache_hit_tokens")),
        cache_write=as_count(prompt_details.get("cache_write_tokens")),
        reasoning=as_count(completion_details.get("reasoning_tokens")),
    )


def _read_calls(message: dict[str, Any]) -> tuple[ObservedCall, ...]:
    calls = (part for part in read_calls(message) if isinstance(part, ToolCall))
    return tuple(ObservedCall(call.call_id, call.name, bounded_arguments(call.arguments)) for call in calls)
