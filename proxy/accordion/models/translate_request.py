"""From a client's request to LiteLLM's arguments.

LiteLLM takes the request's fields and its own switches (`api_base`, `api_key`, `callbacks`, ...) as keyword arguments
alike. So a field of the request is handed on by name only if it is known to be one of its protocol:

- A known field goes as it is; LiteLLM translates it, or refuses it where the provider has nothing like it
  (`drop_params: true` in the model's `litellm_params` leaves such fields out instead).
- A hint that asks nothing of the answer is left out where the provider does not speak OpenAI's protocol.
- What has a form that arrives is put into it before (translate_fitting.py).
- Any other field goes untouched in the body to OpenAI-compatible providers; elsewhere it is refused by name, or left
  out with `drop_params: true`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from accordion.core.errors import BadRequest, Unauthorized
from accordion.core.ports import Route
from accordion.models.translate_fitting import (
    EFFORTS,
    Target,
    fit,
    must_not_think,
    one_call_at_a_time,
    short_user,
    table_name,
)
from accordion.models.translate_refusing import refuse

_FUNCTIONS = {"chat": "acompletion", "responses": "aresponses", "messages": "anthropic_messages"}
_REQUIRED = {"chat": ("messages",), "responses": ("input",), "messages": ("messages", "max_tokens")}


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FIELDS = {
    "chat": _names(
        "messages functions function_call temperature top_p n stream stream_options stop max_tokens "
        "max_completion_tokens modalities prediction audio presence_penalty frequency_penalty logit_bias user "
        "response_format seed tools tool_choice parallel_tool_calls logprobs top_logprobs reasoning_effort verbosity "
        "safety_identifier service_tier store prompt_cache_key prompt_cache_retention web_search_options thinking "
        "top_k"
    ),
    "responses": _names(
        "input include instructions max_output_tokens metadata parallel_tool_calls previous_response_id reasoning "
        "store background stream temperature text tool_choice tools top_p truncation user service_tier "
        "safety_identifier prompt_cache_key prompt_cache_retention max_tool_calls top_logprobs"
    ),
    "messages": _names(
        "messages max_tokens metadata stop_sequences stream system temperature thinking tool_choice tools top_k top_p "
        "container context_management output_config output_format mcp_servers service_tier"
    ),
}
_HINTS = _names("store prompt_cache_key prompt_cache_retention prompt_cache_options client_metadata stream_options")
# They sign with the machine's or the operator's own identity, so they can be asked without a key.
_OWN_IDENTITY = frozenset(
    {"bedrock", "sagemaker", "sagemaker_chat", "vertex_ai", "vertex_ai_beta", "azure", "watsonx", "oci"}
)


CONNECT = "connect_timeout"
"""The option that says how long connecting may take, in seconds. Ours, not LiteLLM's."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What the translator was asked."""

    dialect: str
    body: bytes
    route: Route
    credential: str
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of LiteLLM: the function's name, its arguments, and what the reply is shaped by.

    `model` is the model's name in the client's words; `usage` tells whether a stream is to end with it.
    """

    dialect: str
    function: str
    arguments: dict[str, Any]
    model: str
    stream: bool
    usage: bool


def connect_limit(route: Route) -> float | None:
    """How long making a connection may take, in seconds; None where nothing is said."""
    limit = dict(route.options).get(CONNECT)
    return float(limit) if isinstance(limit, int | float) else None


def prepare(litellm: Any, ask: Ask) -> Call:
    """Make the call. Raises BadRequest or Unauthorized, or what LiteLLM raises for a provider it does not know."""
    body = _decode(ask)
    route = ask.route
    asked = body.pop("model", None)
    model = route.model or asked
    if not isinstance(model, str) or not model:
        raise BadRequest("`model` is missing.", param="model")
    name, provider = litellm.get_llm_provider(model=model, api_base=route.base_url or None)[:2]
    options: dict[str, Any] = dict(route.options)
    options.pop(CONNECT, None)
    own = _own_protocol(litellm, ask.dialect, name, provider)
    target = Target(
        ask.dialect,
        provider,
        table_name(name),
        compatible=provider in {"openai", "azure", *litellm.openai_compatible_providers},
        own_protocol=own is not None,
        drop=bool(options.get("drop_params", litellm.drop_params)),
    )
    refuse(litellm, body, target, own if ask.dialect == "responses" else None)
    fields = _fields(fit(litellm, body, target), target, options)
    if one_call_at_a_time(litellm, body, target):
        fields["parallel_tool_calls"] = False
    if (user := short_user(litellm, body, target)) is not None:
        fields["extra_body"] = {**(options.get("extra_body") or {}), **fields.get("extra_body", {}), "user": user}
    fixed = {"model": model, **_fixed(provider, ask)}
    left_out = EFFORTS if must_not_think(litellm, body, target) else frozenset()
    return Call(
        dialect=ask.dialect,
        function=_FUNCTIONS[ask.dialect],
        arguments={name: value for name, value in (options | fields | fixed).items() if name not in left_out},
        model=asked if isinstance(asked, str) and asked else model,
        stream=body.get("stream") is True,
        usage=bool((body.get("stream_options") or {}).get("include_usage")),
    )


def _fixed(provider: str, ask: Ask) -> dict[str, Any]:
    """The arguments that are not the client's to say."""
    route, key = ask.route, _key(provider, ask)
    fixed: dict[str, Any] = {"num_retries": 0, "max_retries": 0}
    if route.base_url:
        fixed["api_base"] = route.base_url
    if key is not None:
        fixed["api_key"] = key
    if route.extra_headers:
        # LiteLLM reads what it knows of them in lower case only.
        fixed["extra_headers"] = {name.lower(): value for name, value in route.extra_headers}
    return fixed


def _decode(ask: Ask) -> dict[str, Any]:
    try:
        body = json.loads(ask.body)
    except (ValueError, RecursionError) as error:
        raise BadRequest("The body is not JSON, so it cannot be translated for this model's provider.") from error
    if not isinstance(body, dict):
        raise BadRequest("The body must be a JSON object.")
    for name in _REQUIRED[ask.dialect]:
        if body.get(name) is None:
            raise BadRequest(f"`{name}` is missing.", param=name)
    listing = _REQUIRED[ask.dialect][0]
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


def _fields(body: dict[str, Any], target: Target, options: dict[str, Any]) -> dict[str, Any]:
    """The request's fields as arguments."""
    dialect, compatible, drop, provider = target.dialect, target.compatible, target.drop, target.provider
    known = _FIELDS[dialect]
    if dialect != "messages" and not compatible:
        # In a stream of Chat Completions `stream_options` is LiteLLM's own, whoever the provider is.
        hints = _HINTS - {"stream_options"} if dialect == "chat" else _HINTS
        body = {name: value for name, value in body.items() if name not in hints}
    fields = {name: value for name, value in body.items() if name in known}
    others = {name: value for name, value in body.items() if name not in known}
    if dialect != "messages" and not compatible and (user := _user_id(body)) is not None:
        fields["metadata"] = {"user_id": user}
    if not compatible:
        others.pop("metadata", None)
    if not others:
        return fields
    if compatible and not (drop and dialect == "messages"):
        fields["extra_body"] = {**(options.get("extra_body") or {}), **others}
    elif not drop:
        name = next(iter(others))
        raise BadRequest(
            f"`{name}` cannot be translated for this model's provider ({provider}). Leave it out, or set "
            "`drop_params: true` in the model's `litellm_params`.",
            code="unsupported_parameter",
            param=name,
        )
    return fields


def _user_id(body: dict[str, Any]) -> str | None:
    user = (body.get("metadata") or {}).get("user_id")
    return user if isinstance(user, str) else None


def _key(provider: str, ask: Ask) -> str | None:
    """The key to ask with. Never LiteLLM's own choice from the environment, save where a machine's identity is one."""
    key = ask.credential.strip()
    if key[:7].lower() == "bearer ":
        key = key[7:].strip()
    if key.startswith(("os.environ/", "oidc/")):
        raise Unauthorized("The credential is not one.")  # LiteLLM would look it up on this machine
    if key:
        return key
    return None if provider in _OWN_IDENTITY and not ask.route.api_key else "none"


def _own_protocol(litellm: Any, dialect: str, model: str, provider: str) -> Any:
    """LiteLLM's description of the provider's own Responses or Messages API, or None where it has none."""
    if dialect == "chat" or provider not in [known.value for known in litellm.LlmProviders]:
        return None
    configs = litellm.utils.ProviderConfigManager
    describe = {
        "responses": configs.get_provider_responses_api_config,
        "messages": configs.get_provider_anthropic_messages_config,
    }[dialect]
    return describe(provider=litellm.LlmProviders(provider), model=model)
