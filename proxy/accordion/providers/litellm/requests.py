"""Converts a client's request to LiteLLM's arguments.

LiteLLM takes the request's fields and its own options (`api_base`, `api_key`, `callbacks`, ...) as keyword arguments
alike. So a field of the request becomes an argument only if its protocol has that field:

- A known field is unchanged; LiteLLM translates it, or refuses it if the provider has no such field (with
  `drop_params: true` in the model's `litellm_params`, it removes such fields instead).
- A hint without effect on the answer is removed if the provider does not speak OpenAI's protocol.
- fitting.py first rewrites fields that LiteLLM would lose.
- Content that LiteLLM cannot translate is refused, unless the operator set `drop_params: true`: LiteLLM would drop it
  silently, and the model would answer an incomplete question. Content that agents send to every provider and can do
  without is not refused: tools that a provider runs itself, and the results of such tools in an assistant's message.
- Any other field stays in the body for OpenAI-compatible providers. For others it is refused by name, or removed with
  `drop_params: true`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from accordion.model.errors import BadRequest, Unauthorized
from accordion.model.ports import Route
from accordion.providers.litellm.fitting import (
    EFFORTS,
    Body,
    TranslationTarget,
    fit,
    is_custom,
    is_pdf,
    kind_of,
    must_not_think,
    one_call_at_a_time,
    openai_entry,
    short_user,
    table_name,
)
from accordion.providers.litellm.litellm_compat import provider_config

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
class TranslationRequest:
    """A request to translate."""

    protocol_name: str
    body: bytes
    route: Route
    credential: str
    request_id: str = ""


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
        table_name(name),
        compatible=provider in {"openai", "azure", *litellm.openai_compatible_providers},
        own_protocol=own_protocol is not None,
        drop=bool(options.get("drop_params", litellm.drop_params)),
    )
    _check_supported(litellm, body, target, own_protocol if request.protocol_name == "responses" else None)
    fields = _request_arguments(fit(litellm, body, target), target, options)
    if request.protocol_name == "chat":
        _unnumber_thinking(fields["messages"])
    if one_call_at_a_time(litellm, body, target):
        fields["parallel_tool_calls"] = False
    if (user := short_user(litellm, body, target)) is not None:
        fields["extra_body"] = {**(options.get("extra_body") or {}), **fields.get("extra_body", {}), "user": user}
    fixed_arguments = {"model": model, **_fixed_arguments(provider, request)}
    omitted_names = EFFORTS if must_not_think(litellm, body, target) else frozenset()
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


def _check_supported(litellm: Any, body: Body, target: TranslationTarget, native: Any) -> None:
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
                f"A tool of type `{kind_of(tool)}` is not offered by this model's provider ({target.provider}).",
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
    kind = kind_of(tool)
    return (
        (isinstance(kind, str) and kind.startswith("advisor") and target.provider != "anthropic")
        or (kind == "mcp" and str(tool.get("server_url", "")).startswith("litellm_proxy"))
        or (kind == "file_search" and not (native is not None and native.supports_native_file_search()))
    )


def _find_losses(litellm: Any, body: Body, target: TranslationTarget) -> Iterator[tuple[str, str]]:
    """Yields the field and a description of content that would be lost."""
    stops = "stop_sequences" if target.protocol_name == "messages" else "stop"
    if isinstance(body.get(stops), list) and len(body[stops]) > _MAX_STOPS:
        yield stops, f"More than {_MAX_STOPS} `{stops}`"
    if target.protocol_name == "messages":
        is_openai_model = openai_entry(litellm, target) is not None
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
        if any(map(is_custom, body.get("tools") or ())):
            yield "tools", "A tool of type `custom`"


def _kinds(parts: Any) -> set[Any]:
    return {part["type"] for part in parts if isinstance(kind_of(part), str)} if isinstance(parts, list) else set()


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
        kind, source = kind_of(block), kind_of(block.get("source")) if isinstance(block, dict) else None
        if isinstance(kind, str) and kind not in _TRANSLATED_BLOCKS:
            yield f"A block of type `{kind}`"
        elif kind in ("image", "document") and source == "file":
            yield f"The file id of `{kind}`"
        elif openais and is_pdf(block):
            yield "A PDF"
        elif kind == "tool_result":
            yield from _find_lost_blocks(block.get("content"), openais)
