"""Converts a client's request to LiteLLM's arguments.

LiteLLM takes the request's fields and its own options (`api_base`, `api_key`, `callbacks`, ...) as keyword arguments
alike. So a field of the request becomes an argument only if its protocol has that field:

- A known field is unchanged; LiteLLM translates it, or refuses it if the provider has no such field (with
  `drop_params: true` in the model's `litellm_params`, it removes such fields instead).
- A hint without effect on the answer is removed if the provider does not speak OpenAI's protocol.
- `fit` first rewrites the parts that LiteLLM would drop or a provider would refuse. Each rule is for one direction of
  translation. It removes only parts without effect on the answer.
- Content that LiteLLM cannot translate is refused, unless the operator set `drop_params: true`: LiteLLM would drop it
  silently, and the model would answer an incomplete question. Content that agents send to every provider and can do
  without is not refused: tools that a provider runs itself, and the results of such tools in an assistant's message.
- Any other field stays in the body for OpenAI-compatible providers. For others it is refused by name, or removed with
  `drop_params: true`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from accordion.features.translation.channel import TranslationRequest
from accordion.features.translation.litellm_compat import provider_config
from accordion.model.errors import BadRequest, Unauthorized
from accordion.model.ports import Route
from accordion.protocols.tool_loop import legible_arguments

# -- rewriting ---------------------------------------------------------------------------------------------------------


_OPENAI = frozenset({"openai", "azure"})
_SERIES = {"gpt5_series/": "gpt-5", "o_series/": "o3"}
"""LiteLLM's prefixes for the series of an Azure deployment, and the model that represents each series."""
_MAX_USER_LENGTH = 64
"""The longest `user` for OpenAI, in characters."""
_TOOL = frozenset({"name", "description", "input_schema", "type", "cache_control", "strict", "eager_input_streaming"})
"""The fields of a tool that LiteLLM knows. It writes others into the schema of the tool's arguments."""
_LITELLM_REASONING_PREFIX = "litellm_encrypted_reasoning:"
"""The prefix of a thinking block in which LiteLLM stores an OpenAI model's reasoning, which that model needs again."""
_EFFORTS = frozenset({"reasoning_effort", "thinking", "reasoning"})
"""The fields that enable thinking in Chat Completions and Responses."""
_THINKING = ("thinking", "redacted_thinking")
_CALL_TYPES = ("function_call", "custom_tool_call")
_TOOLS = ("tools", "tool_choice", "parallel_tool_calls")

_Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TranslationTarget:
    """The provider and model of a request. `model` is the name in LiteLLM's table (`_table_name`).

    `own_protocol`: the provider speaks the client's protocol. `compatible`: it speaks Chat Completions. `drop`: content
    that cannot be translated is dropped.
    """

    protocol_name: str
    provider: str
    model: str
    compatible: bool
    own_protocol: bool
    drop: bool


def _table_name(model: str) -> str:
    """Returns a model's name without LiteLLM's prefixes for Responses or for an Azure series."""
    for prefix, series_model in _SERIES.items():
        if model.startswith(prefix):
            return series_model
    return model.removeprefix("responses/")


def _openai_entry(litellm: Any, target: TranslationTarget) -> dict[str, Any] | None:
    """Returns the table's entry of a model that is OpenAI's own; None for all others.

    Gateways and servers of open models are configured as `openai/` too.
    """
    entry: dict[str, Any] | None = litellm.model_cost.get(target.model) if target.provider in _OPENAI else None
    return entry if entry is not None and entry.get("litellm_provider") in _OPENAI else None


def fit(litellm: Any, body: _Body, target: TranslationTarget) -> _Body:
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


def _must_not_think(litellm: Any, body: _Body, target: TranslationTarget) -> bool:
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


def _short_user(litellm: Any, body: _Body, target: TranslationTarget) -> str | None:
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


def _one_call_at_a_time(litellm: Any, body: _Body, target: TranslationTarget) -> bool:
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


def _fit_messages(litellm: Any, body: _Body, target: TranslationTarget) -> _Body:
    request = {**body}
    if _kind_of(body.get("thinking")) == "disabled" and not _accepts_no_thinking(litellm, target):
        del request["thinking"]
    openais = _openai_entry(litellm, target) is not None
    request["messages"] = [_fit_message(message, target, openais) for message in body["messages"]]
    if isinstance(tools := body.get("tools"), list):
        request["tools"] = [
            _fit_tool(tool) if _kind_of(tool) in (None, "custom") and "input_schema" in tool else tool for tool in tools
        ]
    return request


def _supported_parameters(litellm: Any, target: TranslationTarget) -> Iterable[str]:
    return litellm.get_supported_openai_params(model=target.model, custom_llm_provider=target.provider) or ()


def _accepts_no_thinking(litellm: Any, target: TranslationTarget) -> bool:
    """Whether the model accepts the effort `none`: by LiteLLM's table for OpenAI's models; unknown ones may."""
    if "reasoning_effort" not in _supported_parameters(litellm, target):
        return False
    entry = _openai_entry(litellm, target)
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


def _kind_of(value: Any) -> Any:
    """Returns the type of a part or item; None if it has none or is no object."""
    return value.get("type") if isinstance(value, dict) else None


def _fit_tool(tool: Any) -> Any:
    return {name: value for name, value in tool.items() if name in _TOOL}


def _fit_message(message: _Body, target: TranslationTarget, openais: bool) -> _Body:
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
    if _kind_of(block) not in _THINKING:
        return True
    encrypted = str(block.get("signature") or block.get("data") or "")
    return encrypted.startswith(_LITELLM_REASONING_PREFIX) if encrypted else reads_thinking


def _is_pdf(block: Any) -> bool:
    """Whether a block of Messages is a PDF. LiteLLM sends it to OpenAI as an image, which OpenAI's models refuse."""
    return _kind_of(block) == "document" and _kind_of(block.get("source")) in ("base64", "url")


def _blocks_as_text(blocks: list[Any], openais: bool) -> list[Any]:
    """Returns blocks with text in place of documents and search results that are text."""
    converted: list[Any] = []
    for block in blocks:
        if _kind_of(block) == "tool_result" and isinstance(block.get("content"), list):
            converted.append({**block, "content": _blocks_as_text(block["content"], openais)})
        elif not (openais and _is_pdf(block)):  # refused earlier, unless it is dropped
            converted += _as_text(block)
    return converted


def _as_text(block: Any) -> list[Any]:
    if _kind_of(block) == "tool_reference":  # the tool itself is in the request, since all tools are sent at once
        return [{"type": "text", "text": str(block.get("tool_name"))}]
    if _kind_of(block) == "search_result":
        headings, content = (block.get("title"), block.get("source")), block.get("content")
    elif _kind_of(block) == "document" and _kind_of(source := block.get("source")) in ("text", "content"):
        headings, content = (block.get("title"), block.get("context")), source.get("data", source.get("content"))
    else:
        return [block]
    texts = [{"type": "text", "text": head} for head in headings if isinstance(head, str) and head]
    texts += [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    if texts and block.get("cache_control"):
        texts[-1] = {"cache_control": block["cache_control"], **texts[-1]}
    return texts


def _is_custom(tool: Any) -> bool:
    """Whether a tool or a call of Chat Completions has plain text as its input."""
    return _kind_of(tool) == "custom" and isinstance(tool.get("custom"), dict)


def _without_custom_tools(body: _Body, target: TranslationTarget) -> _Body:
    """Returns the request without custom tools if they are dropped; otherwise they were refused earlier."""
    tools = body.get("tools") or []
    if not target.drop or not any(map(_is_custom, tools)):
        return body
    remaining = [tool for tool in tools if not _is_custom(tool)]
    return {**body, "tools": remaining} if remaining else {name: body[name] for name in body if name not in _TOOLS}


def _chat_message(message: _Body) -> _Body:
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


def _fit_item(item: _Body, target: TranslationTarget) -> _Body:
    """Does the same for an item of Responses. Compatible servers accept any text as arguments, as OpenAI does."""
    if isinstance(content := item.get("content"), list):
        return {**item, "content": [_refusal_as_text(part, "output_text") for part in content]}
    if isinstance(output := item.get("output"), list):  # files were refused earlier, unless they are dropped
        return {**item, "output": [part for part in output if _kind_of(part) != "input_file"] or ""}
    return _readable(item) if item.get("type") == "function_call" and not target.compatible else item


def _refusal_as_text(part: Any, kind: str) -> Any:
    return {"type": kind, "text": part.get("refusal")} if _kind_of(part) == "refusal" else part


def _readable_call(call: Any) -> Any:
    if _is_custom(call):
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


# -- arguments ---------------------------------------------------------------------------------------------------------


_FUNCTIONS = {"chat": "acompletion", "responses": "aresponses", "messages": "anthropic_messages"}
_REQUIRED = {"chat": ("messages",), "responses": ("input",), "messages": ("messages", "max_tokens")}


def _split_names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FIELDS = {
    "chat": _split_names(
        "messages functions function_call temperature top_p n stream stream_options stop max_tokens "
        "max_completion_tokens modalities prediction audio presence_penalty frequency_penalty logit_bias user "
        "response_format seed tools tool_choice parallel_tool_calls logprobs top_logprobs reasoning_effort verbosity "
        "safety_identifier service_tier store prompt_cache_key prompt_cache_retention web_search_options thinking "
        "top_k"
    ),
    "responses": _split_names(
        "input include instructions max_output_tokens metadata parallel_tool_calls previous_response_id reasoning "
        "store background stream temperature text tool_choice tools top_p truncation user service_tier "
        "safety_identifier prompt_cache_key prompt_cache_retention max_tool_calls top_logprobs"
    ),
    "messages": _split_names(
        "messages max_tokens metadata stop_sequences stream system temperature thinking tool_choice tools top_k top_p "
        "container context_management output_config output_format mcp_servers service_tier"
    ),
}
_HINTS = _split_names(
    "store prompt_cache_key prompt_cache_retention prompt_cache_options client_metadata stream_options"
)
# These sign with the machine's or the operator's own identity, so they need no key.
_OWN_IDENTITY = frozenset(
    {"bedrock", "sagemaker", "sagemaker_chat", "vertex_ai", "vertex_ai_beta", "azure", "watsonx", "oci"}
)


CONNECT = "connect_timeout"
"""The option for the time limit of connecting, in seconds. It is Accordion's, not LiteLLM's."""


@dataclass(frozen=True, slots=True)
class LiteLLMCall:
    """One call of LiteLLM: the function's name, its arguments, and the properties that shape the response.

    `model` is the client's name for the model; `usage` is whether a stream ends with the usage.
    """

    protocol_name: str
    function: str
    arguments: dict[str, Any]
    model: str
    stream: bool
    usage: bool


def connect_limit(route: Route) -> float | None:
    """Returns the time limit for making a connection, in seconds; None if none is set."""
    limit = dict(route.options).get(CONNECT)
    return float(limit) if isinstance(limit, int | float) else None


def prepare_call(litellm: Any, request: TranslationRequest) -> LiteLLMCall:
    """Builds the call. Raises BadRequest, Unauthorized, or LiteLLM's error for an unknown provider."""
    body = _decode(request)
    route = request.route
    requested_model = body.pop("model", None)
    model = route.model or requested_model
    if not isinstance(model, str) or not model:
        raise BadRequest("`model` is missing.", param="model")
    name, provider = litellm.get_llm_provider(model=model, api_base=route.base_url or None)[:2]
    options: dict[str, Any] = dict(route.options)
    options.pop(CONNECT, None)
    own_protocol = _own_protocol(litellm, request.protocol_name, name, provider)
    target = TranslationTarget(
        request.protocol_name,
        provider,
        _table_name(name),
        compatible=provider in {"openai", "azure", *litellm.openai_compatible_providers},
        own_protocol=own_protocol is not None,
        drop=bool(options.get("drop_params", litellm.drop_params)),
    )
    _check_supported(litellm, body, target, own_protocol if request.protocol_name == "responses" else None)
    fields = _request_arguments(fit(litellm, body, target), target, options)
    if request.protocol_name == "chat":
        _unnumber_thinking(fields["messages"])
    if _one_call_at_a_time(litellm, body, target):
        fields["parallel_tool_calls"] = False
    if (user := _short_user(litellm, body, target)) is not None:
        fields["extra_body"] = {**(options.get("extra_body") or {}), **fields.get("extra_body", {}), "user": user}
    fixed_arguments = {"model": model, **_fixed_arguments(provider, request)}
    omitted_names = _EFFORTS if _must_not_think(litellm, body, target) else frozenset()
    return LiteLLMCall(
        protocol_name=request.protocol_name,
        function=_FUNCTIONS[request.protocol_name],
        arguments={
            name: value for name, value in (options | fields | fixed_arguments).items() if name not in omitted_names
        },
        model=requested_model if isinstance(requested_model, str) and requested_model else model,
        stream=body.get("stream") is True,
        usage=bool((body.get("stream_options") or {}).get("include_usage")),
    )


def _fixed_arguments(provider: str, request: TranslationRequest) -> dict[str, Any]:
    """Returns the arguments that the client cannot set."""
    route, key = request.route, _api_key(provider, request)
    arguments: dict[str, Any] = {"num_retries": 0, "max_retries": 0}
    if route.base_url:
        arguments["api_base"] = route.base_url
    if key is not None:
        arguments["api_key"] = key
    if route.extra_headers:
        # LiteLLM recognizes headers in lower case only.
        arguments["extra_headers"] = {name.lower(): value for name, value in route.extra_headers}
    return arguments


def _decode(request: TranslationRequest) -> dict[str, Any]:
    try:
        body = json.loads(request.body)
    except (ValueError, RecursionError) as error:
        raise BadRequest("The body is not JSON, so it cannot be translated for this model's provider.") from error
    if not isinstance(body, dict):
        raise BadRequest("The body must be a JSON object.")
    for name in _REQUIRED[request.protocol_name]:
        if body.get(name) is None:
            raise BadRequest(f"`{name}` is missing.", param=name)
    listing = _REQUIRED[request.protocol_name][0]
    if not _is_history(body[listing]) and not (listing == "input" and isinstance(body[listing], str)):
        raise BadRequest(f"`{listing}` must be a list of objects.", param=listing)
    if body.get("tools") is not None and not _is_history(body["tools"]):
        raise BadRequest("`tools` must be a list of objects.", param="tools")
    for name in ("stream_options", "metadata"):
        if not isinstance(body.get(name), dict | None):
            raise BadRequest(f"`{name}` must be an object.", param=name)
    return body


def _is_history(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, dict) for entry in value)


def _request_arguments(body: dict[str, Any], target: TranslationTarget, options: dict[str, Any]) -> dict[str, Any]:
    """Returns the request's fields as arguments."""
    protocol_name, compatible, drop, provider = target.protocol_name, target.compatible, target.drop, target.provider
    known_names = _FIELDS[protocol_name]
    if protocol_name != "messages" and not compatible:
        # In a stream of Chat Completions `stream_options` is LiteLLM's own, whoever the provider is.
        hints = _HINTS - {"stream_options"} if protocol_name == "chat" else _HINTS
        body = {name: value for name, value in body.items() if name not in hints}
    fields = {name: value for name, value in body.items() if name in known_names}
    other_fields = {name: value for name, value in body.items() if name not in known_names}
    if protocol_name != "messages" and not compatible and (user := _user_id(body)) is not None:
        fields["metadata"] = {"user_id": user}
    if not compatible:
        other_fields.pop("metadata", None)
    if not other_fields:
        return fields
    if compatible and not (drop and protocol_name == "messages"):
        fields["extra_body"] = {**(options.get("extra_body") or {}), **other_fields}
    elif not drop:
        name = next(iter(other_fields))
        raise BadRequest(
            f"`{name}` cannot be translated for this model's provider ({provider}). Leave it out, or set "
            "`drop_params: true` in the model's `litellm_params`.",
            code="unsupported_parameter",
            param=name,
        )
    return fields


def _unnumber_thinking(messages: list[dict[str, Any]]) -> None:
    """Removes the numbers of thinking blocks that a client sends back (responses.py). Providers that sign blocks refuse
    other fields."""
    for message in messages:
        blocks = message.get("thinking_blocks")
        for block in blocks if isinstance(blocks, list) else ():
            if isinstance(block, dict):
                block.pop("index", None)


def _user_id(body: dict[str, Any]) -> str | None:
    user = (body.get("metadata") or {}).get("user_id")
    return user if isinstance(user, str) else None


def _api_key(provider: str, request: TranslationRequest) -> str | None:
    """Returns the provider's key. LiteLLM takes none from the environment, except a machine's own identity."""
    key = request.credential.strip()
    if key[:7].lower() == "bearer ":
        key = key[7:].strip()
    if key.startswith(("os.environ/", "oidc/")):
        raise Unauthorized("The credential is not one.")  # LiteLLM would look it up on this machine
    if key:
        return key
    return None if provider in _OWN_IDENTITY and not request.route.api_key else "none"


def _own_protocol(litellm: Any, protocol_name: str, model: str, provider: str) -> Any:
    """Returns LiteLLM's description of the provider's own Responses or Messages API; None if it has none."""
    if protocol_name == "chat" or provider not in [item.value for item in litellm.LlmProviders]:
        return None
    return provider_config(litellm, "responses" if protocol_name == "responses" else "messages", provider, model)


# -- content that cannot be translated, by LiteLLM's own code ----------------------------------------------------------

_TRANSLATED_ITEMS = frozenset(
    {
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "computer_call_output",
        "web_search_call",
        "tool_result",
    }
)
"""Items of Responses that are translated. An item without a type is a message."""
_AUDIO_AND_VIDEO = frozenset({"input_audio", "audio_url", "video_url"})
"""Parts of Chat Completions that Claude does not support."""
_TRANSLATED_BLOCKS = frozenset({"text", "image", "document", "search_result", "tool_result", "tool_reference"})
"""Blocks of a user's message in Messages."""
_MAX_STOPS = 4
"""The largest number of stop sequences in Chat Completions; LiteLLM drops the others."""


def _check_supported(litellm: Any, body: _Body, target: TranslationTarget, native: Any) -> None:
    """Raises BadRequest for content that this provider does not support.

    `native` is LiteLLM's description of the provider's own Responses API; None if it has none, or for other protocols.
    """
    if target.protocol_name == "responses" and native is None:
        for name in ("previous_response_id", "conversation"):
            if body.get(name) is not None:
                raise BadRequest(
                    f"`{name}` names state that this model's provider ({target.provider}) does not keep. "
                    "Send the whole conversation as `input`.",
                    code="unsupported_parameter",
                    param=name,
                )
    tools = body.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        if _is_emulated(tool, target, native):
            raise BadRequest(
                f"A tool of type `{_kind_of(tool)}` is not offered by this model's provider ({target.provider}).",
                code="unsupported_parameter",
                param="tools",
            )
    if (
        not target.drop
        and not target.own_protocol
        and (loss := next(_find_losses(litellm, body, target), None)) is not None
    ):
        name, content = loss
        raise BadRequest(
            f"{content} cannot be translated for this model's provider ({target.provider}). Leave it out, or set "
            "`drop_params: true` in the model's `litellm_params`.",
            code="unsupported_parameter",
            param=name,
        )


def _is_emulated(tool: Any, target: TranslationTarget, native: Any) -> bool:
    """Whether LiteLLM would run a tool itself, with the help of others."""
    kind = _kind_of(tool)
    return (
        (isinstance(kind, str) and kind.startswith("advisor") and target.provider != "anthropic")
        or (kind == "mcp" and str(tool.get("server_url", "")).startswith("litellm_proxy"))
        or (kind == "file_search" and not (native is not None and native.supports_native_file_search()))
    )


def _find_losses(litellm: Any, body: _Body, target: TranslationTarget) -> Iterator[tuple[str, str]]:
    """Yields the field and a description of content that would be lost."""
    stops = "stop_sequences" if target.protocol_name == "messages" else "stop"
    if isinstance(body.get(stops), list) and len(body[stops]) > _MAX_STOPS:
        yield stops, f"More than {_MAX_STOPS} `{stops}`"
    if target.protocol_name == "messages":
        is_openai_model = _openai_entry(litellm, target) is not None
        for message in body["messages"]:
            if message.get("role") == "user":
                yield from (
                    ("messages", content) for content in _find_lost_blocks(message.get("content"), is_openai_model)
                )
    elif target.protocol_name == "responses":
        yield from (("input", content) for content in _find_lost_items(body["input"]))
    elif "claude" in target.model.lower():
        for message in body["messages"]:
            if kinds := _kinds(message.get("content")) & _AUDIO_AND_VIDEO:
                yield "messages", f"A part of type `{min(kinds)}`"
        if any(map(_is_custom, body.get("tools") or ())):
            yield "tools", "A tool of type `custom`"


def _kinds(parts: Any) -> set[Any]:
    return {part["type"] for part in parts if isinstance(_kind_of(part), str)} if isinstance(parts, list) else set()


def _find_lost_items(items: Any) -> Iterator[str]:
    for item in items if isinstance(items, list) else ():
        if (kind := item.get("type") or "message") not in _TRANSLATED_ITEMS:
            yield f"An item of type `{kind}`"
        if "input_audio" in _kinds(item.get("content")):
            yield "A part of type `input_audio`"
        if "input_file" in _kinds(item.get("output")):
            yield "A part of type `input_file` in a tool's output"


def _find_lost_blocks(blocks: Any, openais: bool) -> Iterator[str]:
    for block in blocks if isinstance(blocks, list) else ():
        kind, source = _kind_of(block), _kind_of(block.get("source")) if isinstance(block, dict) else None
        if isinstance(kind, str) and kind not in _TRANSLATED_BLOCKS:
            yield f"A block of type `{kind}`"
        elif kind in ("image", "document") and source == "file":
            yield f"The file id of `{kind}`"
        elif openais and _is_pdf(block):
            yield "A PDF"
        elif kind == "tool_result":
            yield from _find_lost_blocks(block.get("content"), openais)
