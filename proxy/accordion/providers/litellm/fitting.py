"""Rewrites parts of a request that LiteLLM would drop or a provider would refuse.

Each rule is for one direction of translation. Only parts without effect on the answer are removed; requests.py refuses
other losses by name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from accordion.protocols.tool_loop import legible_arguments

_OPENAI = frozenset({"openai", "azure"})
_SERIES = {"gpt5_series/": "gpt-5", "o_series/": "o3"}
"""LiteLLM's prefixes for the series of an Azure deployment, and the model that represents each series."""
_MAX_USER_LENGTH = 64
"""The longest `user` for OpenAI, in characters."""
_TOOL = frozenset({"name", "description", "input_schema", "type", "cache_control", "strict", "eager_input_streaming"})
"""The fields of a tool that LiteLLM knows. It writes others into the schema of the tool's arguments."""
_LITELLM_REASONING_PREFIX = "litellm_encrypted_reasoning:"
"""The prefix of a thinking block in which LiteLLM stores an OpenAI model's reasoning, which that model needs again."""
EFFORTS = frozenset({"reasoning_effort", "thinking", "reasoning"})
"""The fields that enable thinking in Chat Completions and Responses."""
_THINKING = ("thinking", "redacted_thinking")
_CALL_TYPES = ("function_call", "custom_tool_call")
_TOOLS = ("tools", "tool_choice", "parallel_tool_calls")

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TranslationTarget:
    """The provider and model of a request. `model` is the name in LiteLLM's table (`table_name`).

    `own_protocol`: the provider speaks the client's protocol. `compatible`: it speaks Chat Completions. `drop`: content
    that cannot be translated is dropped.
    """

    protocol_name: str
    provider: str
    model: str
    compatible: bool
    own_protocol: bool
    drop: bool


def table_name(model: str) -> str:
    """Returns a model's name without LiteLLM's prefixes for Responses or for an Azure series."""
    for prefix, series_model in _SERIES.items():
        if model.startswith(prefix):
            return series_model
    return model.removeprefix("responses/")


def openai_entry(litellm: Any, target: TranslationTarget) -> dict[str, Any] | None:
    """Returns the table's entry of a model that is OpenAI's own; None for all others.

    Gateways and servers of open models are configured as `openai/` too.
    """
    entry: dict[str, Any] | None = litellm.model_cost.get(target.model) if target.provider in _OPENAI else None
    return entry if entry is not None and entry.get("litellm_provider") in _OPENAI else None


def fit(litellm: Any, body: Body, target: TranslationTarget) -> Body:
    """Returns the request in the form for translation, without changing `body`."""
    if target.protocol_name == "messages":
        body = {name: value for name, value in body.items() if name != "cache_control"}
    if target.own_protocol:
        return body
    if target.protocol_name == "messages":
        return _fit_messages(litellm, body, target)
    if target.protocol_name == "responses":
        items = body["input"]
        return body if isinstance(items, str) else body | {"input": [_fit_item(item, target) for item in items]}
    if target.compatible:
        return body
    return _without_custom_tools(body, target) | {"messages": [*map(_chat_message, body["messages"])]}


def must_not_think(litellm: Any, body: Body, target: TranslationTarget) -> bool:
    """Whether Claude would refuse thinking, since the request has results of calls without their thinking.

    LiteLLM has this rule (`modify_params`), but only for all requests at once. Models with adaptive thinking accept
    such requests.
    """
    if target.own_protocol or target.compatible or "claude" not in target.model.lower():
        return False
    if target.protocol_name == "chat":
        unexplained = _answers_tool_calls(body["messages"])
    else:
        unexplained = target.protocol_name == "responses" and _answers_calls(body["input"])
    return unexplained and not _adapts_thinking(litellm, target)


def short_user(litellm: Any, body: Body, target: TranslationTarget) -> str | None:
    """Returns a hash of `metadata.user_id` if it is too long for OpenAI's `user`, else None."""
    user = (body.get("metadata") or {}).get("user_id")
    if (
        target.protocol_name != "messages"
        or target.provider not in _OPENAI
        or "user" not in _supported_parameters(litellm, target)
    ):
        return None
    if not isinstance(user, str) or len(user) <= _MAX_USER_LENGTH:
        return None
    return hashlib.sha256(user.encode(errors="replace")).hexdigest()


def one_call_at_a_time(litellm: Any, body: Body, target: TranslationTarget) -> bool:
    """Whether to set `parallel_tool_calls: false` for `disable_parallel_tool_use`. Many models refuse the field."""
    choice = body.get("tool_choice")
    if (
        target.protocol_name != "messages"
        or target.own_protocol
        or not body.get("tools")
        or not isinstance(choice, dict)
    ):
        return False
    return choice.get("disable_parallel_tool_use") is True and "parallel_tool_calls" in _supported_parameters(
        litellm, target
    )


def _fit_messages(litellm: Any, body: Body, target: TranslationTarget) -> Body:
    request = {**body}
    if kind_of(body.get("thinking")) == "disabled" and not _accepts_no_thinking(litellm, target):
        del request["thinking"]
    openais = openai_entry(litellm, target) is not None
    request["messages"] = [_fit_message(message, target, openais) for message in body["messages"]]
    if isinstance(tools := body.get("tools"), list):
        request["tools"] = [
            _fit_tool(tool) if kind_of(tool) in (None, "custom") and "input_schema" in tool else tool for tool in tools
        ]
    return request


def _supported_parameters(litellm: Any, target: TranslationTarget) -> Iterable[str]:
    return litellm.get_supported_openai_params(model=target.model, custom_llm_provider=target.provider) or ()


def _accepts_no_thinking(litellm: Any, target: TranslationTarget) -> bool:
    """Whether the model accepts the effort `none`: by LiteLLM's table for OpenAI's models; unknown ones may."""
    if "reasoning_effort" not in _supported_parameters(litellm, target):
        return False
    entry = openai_entry(litellm, target)
    return entry is None or entry.get("supports_none_reasoning_effort") is True


def _answers_tool_calls(messages: list[Any]) -> bool:
    """Whether results answer calls whose thinking the client did not return; OpenAI's clients cannot return it."""
    replies = [message for message in messages if message.get("role") == "assistant"]
    has_thinking = any(message.get("thinking_blocks") for message in replies)
    return bool(replies and replies[-1].get("tool_calls")) and not has_thinking


def _answers_calls(items: Any) -> bool:
    """The same for Responses, where LiteLLM stores a list of thinking blocks in the reasoning items."""
    if isinstance(items, str) or any(str(item.get("encrypted_content")).startswith("[") for item in items):
        return False
    replies = [item for item in items if item.get("role") == "assistant" or item.get("type") in _CALL_TYPES]
    return bool(replies) and replies[-1].get("type") in _CALL_TYPES


def _adapts_thinking(litellm: Any, target: TranslationTarget) -> bool:
    try:
        info = litellm.get_model_info(model=target.model, custom_llm_provider=target.provider)
    except Exception:  # LiteLLM's error for an unknown model, which it treats like an older one
        return False
    return info.get("supports_adaptive_thinking") is True


def kind_of(value: Any) -> Any:
    """Returns the type of a part or item; None if it has none or is no object."""
    return value.get("type") if isinstance(value, dict) else None


def _fit_tool(tool: Any) -> Any:
    return {name: value for name, value in tool.items() if name in _TOOL}


def _fit_message(message: Body, target: TranslationTarget, openais: bool) -> Body:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    if message.get("role") == "user":
        return {**message, "content": _blocks_as_text(content, openais)}
    if target.compatible and "claude" not in target.model.lower():
        return {
            **message,
            "content": [block for block in content if _is_readable_block(block, reads_thinking=not openais)],
        }
    return message


def _is_readable_block(block: Any, *, reads_thinking: bool) -> bool:
    """Whether a model other than Claude can use a block.

    Claude's thinking is signed, for Claude alone. Some other models use their own thinking again, which is not signed.
    OpenAI's models have no such field.
    """
    if kind_of(block) not in _THINKING:
        return True
    encrypted = str(block.get("signature") or block.get("data") or "")
    return encrypted.startswith(_LITELLM_REASONING_PREFIX) if encrypted else reads_thinking


def is_pdf(block: Any) -> bool:
    """Whether a block of Messages is a PDF. LiteLLM sends it to OpenAI as an image, which OpenAI's models refuse."""
    return kind_of(block) == "document" and kind_of(block.get("source")) in ("base64", "url")


def _blocks_as_text(blocks: list[Any], openais: bool) -> list[Any]:
    """Returns blocks with text in place of documents and search results that are text."""
    converted: list[Any] = []
    for block in blocks:
        if kind_of(block) == "tool_result" and isinstance(block.get("content"), list):
            converted.append({**block, "content": _blocks_as_text(block["content"], openais)})
        elif not (openais and is_pdf(block)):  # refused earlier, unless it is dropped
            converted += _as_text(block)
    return converted


def _as_text(block: Any) -> list[Any]:
    if kind_of(block) == "tool_reference":  # the tool itself is in the request, since all tools are sent at once
        return [{"type": "text", "text": str(block.get("tool_name"))}]
    if kind_of(block) == "search_result":
        headings, content = (block.get("title"), block.get("source")), block.get("content")
    elif kind_of(block) == "document" and kind_of(source := block.get("source")) in ("text", "content"):
        headings, content = (block.get("title"), block.get("context")), source.get("data", source.get("content"))
    else:
        return [block]
    texts = [{"type": "text", "text": head} for head in headings if isinstance(head, str) and head]
    texts += [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    if texts and block.get("cache_control"):
        texts[-1] = {"cache_control": block["cache_control"], **texts[-1]}
    return texts


def is_custom(tool: Any) -> bool:
    """Whether a tool or a call of Chat Completions has plain text as its input."""
    return kind_of(tool) == "custom" and isinstance(tool.get("custom"), dict)


def _without_custom_tools(body: Body, target: TranslationTarget) -> Body:
    """Returns the request without custom tools if they are dropped; otherwise they were refused earlier."""
    tools = body.get("tools") or []
    if not target.drop or not any(map(is_custom, tools)):
        return body
    remaining = [tool for tool in tools if not is_custom(tool)]
    return {**body, "tools": remaining} if remaining else {name: body[name] for name in body if name not in _TOOLS}


def _chat_message(message: Body) -> Body:
    """Returns a message of Chat Completions with refusals as text, and objects as arguments of calls."""
    converted = {**message}
    if isinstance(content := message.get("content"), list):
        converted["content"] = [_refusal_as_text(part, "text") for part in content]
    elif not content and message.get("refusal"):
        converted["content"] = message["refusal"]
    if isinstance(calls := message.get("tool_calls"), list):
        converted["tool_calls"] = [*map(_readable_call, calls)]
    if isinstance(call := message.get("function_call"), dict):
        converted["function_call"] = _readable(call)
    return converted


def _fit_item(item: Body, target: TranslationTarget) -> Body:
    """Does the same for an item of Responses. Compatible servers accept any text as arguments, as OpenAI does."""
    if isinstance(content := item.get("content"), list):
        return {**item, "content": [_refusal_as_text(part, "output_text") for part in content]}
    if isinstance(output := item.get("output"), list):  # files were refused earlier, unless they are dropped
        return {**item, "output": [part for part in output if kind_of(part) != "input_file"] or ""}
    return _readable(item) if item.get("type") == "function_call" and not target.compatible else item


def _refusal_as_text(part: Any, kind: str) -> Any:
    return {"type": kind, "text": part.get("refusal")} if kind_of(part) == "refusal" else part


def _readable_call(call: Any) -> Any:
    if is_custom(call):
        custom = call["custom"]
        function = {"name": custom.get("name"), "arguments": json.dumps({"input": custom.get("input")})}
        return {"id": call.get("id"), "type": "function", "function": function}
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        return call
    return {**call, "function": _readable(call["function"])}


def _readable(function: dict[str, Any]) -> dict[str, Any]:
    """Returns a call with an object as arguments. A model may write any text there, and OpenAI accepts it."""
    arguments = function.get("arguments")
    return {**function, "arguments": legible_arguments(arguments)} if isinstance(arguments, str) else function
