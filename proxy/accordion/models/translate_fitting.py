"""What a request says in a form that LiteLLM drops or a provider refuses, said in one that arrives.

Each rule is for one way of translating. Only what asks nothing of the answer is left out; what would be lost otherwise
is refused by name (translate_refusing.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from accordion.dialects.splicing import legible

_OPENAI = frozenset({"openai", "azure"})
_SERIES = {"gpt5_series/": "gpt-5", "o_series/": "o3"}
"""How LiteLLM is told what an Azure deployment serves, and the model that stands for all of the series."""
_LONGEST_USER = 64
"""How long OpenAI's `user` may be, in characters."""
_TOOL = frozenset({"name", "description", "input_schema", "type", "cache_control", "strict", "eager_input_streaming"})
"""The fields of a tool that LiteLLM knows; it writes others into the schema of the tool's arguments."""
_MINTED = "litellm_encrypted_reasoning:"
"""How a thinking block begins in which LiteLLM keeps what an OpenAI model thought; that model is to have it back."""
EFFORTS = frozenset({"reasoning_effort", "thinking", "reasoning"})
"""The fields that ask a model to think, in Chat Completions and Responses."""
_THINKING = ("thinking", "redacted_thinking")
_CALLS = ("function_call", "custom_tool_call")
_TOOLS = ("tools", "tool_choice", "parallel_tool_calls")

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """Whom a request goes to. `model` is named as in LiteLLM's table (`table_name`). `own_protocol` where the provider
    speaks the client's dialect itself, `compatible` where it speaks Chat Completions, and `drop` where what cannot be
    translated is to be left out.
    """

    dialect: str
    provider: str
    model: str
    compatible: bool
    own_protocol: bool
    drop: bool


def table_name(model: str) -> str:
    """A model's name without LiteLLM's words for how it is asked: by Responses, or as any model of an Azure series."""
    for prefix, known in _SERIES.items():
        if model.startswith(prefix):
            return known
    return model.removeprefix("responses/")


def openai_entry(litellm: Any, target: Target) -> dict[str, Any] | None:
    """What LiteLLM's table says of a model that is OpenAI's own. None for others: gateways and servers of open models
    are configured as `openai/` too.
    """
    entry: dict[str, Any] | None = litellm.model_cost.get(target.model) if target.provider in _OPENAI else None
    return entry if entry is not None and entry.get("litellm_provider") in _OPENAI else None


def fit(litellm: Any, body: Body, target: Target) -> Body:
    """The request as it is to be translated; `body` stays as it is."""
    if target.dialect == "messages":
        body = {name: value for name, value in body.items() if name != "cache_control"}
    if target.own_protocol:
        return body
    if target.dialect == "messages":
        return _messages(litellm, body, target)
    if target.dialect == "responses":
        items = body["input"]
        return body if isinstance(items, str) else body | {"input": [_item(item, target) for item in items]}
    if target.compatible:
        return body
    return _without_custom_tools(body, target) | {"messages": [*map(_chat_message, body["messages"])]}


def must_not_think(litellm: Any, body: Body, target: Target) -> bool:
    """Whether Claude would refuse to think, since calls that are answered here come without their thinking.

    The rule is LiteLLM's (`modify_params`), which is to be had for all requests only. Models that decide themselves
    how much they think go on without it.
    """
    if target.own_protocol or target.compatible or "claude" not in target.model.lower():
        return False
    if target.dialect == "chat":
        unexplained = _answers_tool_calls(body["messages"])
    else:
        unexplained = target.dialect == "responses" and _answers_calls(body["input"])
    return unexplained and not _adapts(litellm, target)


def short_user(litellm: Any, body: Body, target: Target) -> str | None:
    """The user as OpenAI takes one, where `metadata.user_id` is longer; LiteLLM reads the session out of that."""
    user = (body.get("metadata") or {}).get("user_id")
    if target.dialect != "messages" or target.provider not in _OPENAI or "user" not in _supported(litellm, target):
        return None
    if not isinstance(user, str) or len(user) <= _LONGEST_USER:
        return None
    return hashlib.sha256(user.encode(errors="replace")).hexdigest()


def one_call_at_a_time(litellm: Any, body: Body, target: Target) -> bool:
    """Whether Chat Completions' word for `disable_parallel_tool_use` is to be said. Many models refuse the field."""
    choice = body.get("tool_choice")
    if target.dialect != "messages" or target.own_protocol or not body.get("tools") or not isinstance(choice, dict):
        return False
    return choice.get("disable_parallel_tool_use") is True and "parallel_tool_calls" in _supported(litellm, target)


def _messages(litellm: Any, body: Body, target: Target) -> Body:
    fitted = {**body}
    if kind_of(body.get("thinking")) == "disabled" and not _can_be_told_not_to_think(litellm, target):
        del fitted["thinking"]
    openais = openai_entry(litellm, target) is not None
    fitted["messages"] = [_message(message, target, openais) for message in body["messages"]]
    if isinstance(tools := body.get("tools"), list):
        fitted["tools"] = [
            _tool(tool) if kind_of(tool) in (None, "custom") and "input_schema" in tool else tool for tool in tools
        ]
    return fitted


def _supported(litellm: Any, target: Target) -> Iterable[str]:
    return litellm.get_supported_openai_params(model=target.model, custom_llm_provider=target.provider) or ()


def _can_be_told_not_to_think(litellm: Any, target: Target) -> bool:
    """Whether an effort of `none` is taken. OpenAI's models take it where LiteLLM's table says so, unknown ones may."""
    if "reasoning_effort" not in _supported(litellm, target):
        return False
    known = openai_entry(litellm, target)
    return known is None or known.get("supports_none_reasoning_effort") is True


def _answers_tool_calls(messages: list[Any]) -> bool:
    """Whether results answer calls whose thinking the client did not give back, as OpenAI's clients cannot."""
    said = [message for message in messages if message.get("role") == "assistant"]
    return bool(said and said[-1].get("tool_calls")) and not any(message.get("thinking_blocks") for message in said)


def _answers_calls(items: Any) -> bool:
    """The same of Responses, where LiteLLM keeps a list of thinking blocks in the reasoning items."""
    if isinstance(items, str) or any(str(item.get("encrypted_content")).startswith("[") for item in items):
        return False
    said = [item for item in items if item.get("role") == "assistant" or item.get("type") in _CALLS]
    return bool(said) and said[-1].get("type") in _CALLS


def _adapts(litellm: Any, target: Target) -> bool:
    try:
        info = litellm.get_model_info(model=target.model, custom_llm_provider=target.provider)
    except Exception:  # LiteLLM's own, for a model that it does not know, and asks to think as older ones are asked
        return False
    return info.get("supports_adaptive_thinking") is True


def kind_of(value: Any) -> Any:
    """A part's or item's type; None where it has none or is no object."""
    return value.get("type") if isinstance(value, dict) else None


def _tool(tool: Any) -> Any:
    return {name: value for name, value in tool.items() if name in _TOOL}


def _message(message: Body, target: Target, openais: bool) -> Body:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    if message.get("role") == "user":
        return {**message, "content": _told(content, openais)}
    if target.compatible and "claude" not in target.model.lower():
        return {**message, "content": [block for block in content if _is_for(block, reads_thinking=not openais)]}
    return message


def _is_for(block: Any, *, reads_thinking: bool) -> bool:
    """Whether a block says anything to a model that is not Claude. What Claude thought is signed, for Claude alone; of
    the others some read their thinking again, which is not signed. OpenAI's models know no such field.
    """
    if kind_of(block) not in _THINKING:
        return True
    sealed = str(block.get("signature") or block.get("data") or "")
    return sealed.startswith(_MINTED) if sealed else reads_thinking


def is_pdf(block: Any) -> bool:
    """Whether a block of Messages is a PDF. LiteLLM sends it as an image to OpenAI, whose models refuse that."""
    return kind_of(block) == "document" and kind_of(block.get("source")) in ("base64", "url")


def _told(blocks: list[Any], openais: bool) -> list[Any]:
    """Blocks with text in the place of documents and search results that are text."""
    told: list[Any] = []
    for block in blocks:
        if kind_of(block) == "tool_result" and isinstance(block.get("content"), list):
            told.append({**block, "content": _told(block["content"], openais)})
        elif not (openais and is_pdf(block)):  # refused before, unless it is to be left out
            told += _as_text(block)
    return told


def _as_text(block: Any) -> list[Any]:
    if kind_of(block) == "tool_reference":  # the tool itself is among the request's, since all are sent at once
        return [{"type": "text", "text": str(block.get("tool_name"))}]
    if kind_of(block) == "search_result":
        heads, inner = (block.get("title"), block.get("source")), block.get("content")
    elif kind_of(block) == "document" and kind_of(source := block.get("source")) in ("text", "content"):
        heads, inner = (block.get("title"), block.get("context")), source.get("data", source.get("content"))
    else:
        return [block]
    said = [{"type": "text", "text": head} for head in heads if isinstance(head, str) and head]
    said += [{"type": "text", "text": inner}] if isinstance(inner, str) else inner or []
    if said and block.get("cache_control"):
        said[-1] = {"cache_control": block["cache_control"], **said[-1]}
    return said


def is_custom(tool: Any) -> bool:
    """Whether a tool or a call of Chat Completions is one whose input is plain text."""
    return kind_of(tool) == "custom" and isinstance(tool.get("custom"), dict)


def _without_custom_tools(body: Body, target: Target) -> Body:
    """The request without the tools that were refused before, unless they are to be left out."""
    tools = body.get("tools") or []
    if not target.drop or not any(map(is_custom, tools)):
        return body
    left = [tool for tool in tools if not is_custom(tool)]
    return {**body, "tools": left} if left else {name: body[name] for name in body if name not in _TOOLS}


def _chat_message(message: Body) -> Body:
    """A message of Chat Completions whose refusals are text, and whose calls have objects for arguments."""
    fitted = {**message}
    if isinstance(content := message.get("content"), list):
        fitted["content"] = [_unrefused(part, "text") for part in content]
    elif not content and message.get("refusal"):
        fitted["content"] = message["refusal"]
    if isinstance(calls := message.get("tool_calls"), list):
        fitted["tool_calls"] = [*map(_readable_call, calls)]
    if isinstance(call := message.get("function_call"), dict):
        fitted["function_call"] = _readable(call)
    return fitted


def _item(item: Body, target: Target) -> Body:
    """An item of Responses, likewise. Compatible servers take any text as arguments, as OpenAI does."""
    if isinstance(content := item.get("content"), list):
        return {**item, "content": [_unrefused(part, "output_text") for part in content]}
    if isinstance(output := item.get("output"), list):  # files were refused before, unless they are to be left out
        return {**item, "output": [part for part in output if kind_of(part) != "input_file"] or ""}
    return _readable(item) if item.get("type") == "function_call" and not target.compatible else item


def _unrefused(part: Any, kind: str) -> Any:
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
    """A call whose arguments are an object. A model may write anything there, and OpenAI takes any text back."""
    arguments = function.get("arguments")
    return {**function, "arguments": legible(arguments)} if isinstance(arguments, str) else function
