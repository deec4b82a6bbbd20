"""Everything that depends on LiteLLM's internals: its import, its settings, patches, and its streams' attributes.

`pyproject.toml` has an upper bound for its version, and `tests/features/translation/test_litellm_contract.py` fails
when the code changes that is patched or read here. Each patch names the client or the measurement that it is there for.
A patch that does not fit the installed version is skipped.

LiteLLM's transport class is patched to use the connections of a call: their time limit, the responses' headers, and
streams that must be closed.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import sys
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from threading import Lock
from types import ModuleType
from typing import Any, Literal, cast

import aiohttp
import httpx

from accordion.model.errors import MissingExtra, UpstreamError

# LiteLLM reads these during its import. Values that the operator has set stay.
_ENVIRONMENT = {
    "LITELLM_MODE": "PRODUCTION",  # no .env file is read from the working directory
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "MAX_IMAGE_URL_DOWNLOAD_SIZE_MB": "0",  # a client's image URL is for the provider to fetch, not for us
}

_SETTINGS: dict[str, object] = {
    "suppress_debug_info": True,
    "redact_messages_in_exceptions": True,
    "turn_off_message_logging": True,
    "disable_streaming_logging": True,
    # Guessed usage must not look like reported usage, and guessing may fetch images and tokenizers.
    "disable_token_counter": True,
    "disable_hf_tokenizer_download": True,
    "strip_anthropic_total_tokens": True,
    # Every OpenAI-compatible server speaks Chat Completions; `openai/responses/<model>` asks for the other.
    "use_chat_completions_url_for_anthropic_messages": True,
}

_TRANSPORT = "litellm.llms.custom_httpx.aiohttp_transport"
_SUCCESS_HANDLER = "litellm.proxy.pass_through_endpoints.success_handler"
_MESSAGE_STREAMS = "litellm.llms.anthropic.pass_through.messages.streaming_iterator"
_MESSAGES_BY_CHAT = "litellm.llms.anthropic.pass_through.adapters.handler"
_CHAT_STREAMS = "litellm.litellm_core_utils.streaming_handler"
_RESPONSES = "litellm.responses.litellm_completion_transformation.transformation"
_REDACTION = "litellm.litellm_core_utils.secret_redaction"
_REASONS = "litellm.litellm_core_utils.core_helpers"

_WRAPPED_STREAM_FIELDS = ("_anthropic_wrapper", "litellm_custom_stream_wrapper", "completion_stream", "_stream")
"""The attributes in which LiteLLM's streams store the streams that they wrap."""

_MAX_REDACTED_LENGTH = 2048
"""How much of an error's text LiteLLM looks through for secrets, in characters."""

_PATCH_LOCK = Lock()
"""Several translators may load it at once."""
_LOGGERS = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy")


def load_litellm() -> Any:
    """Returns the configured LiteLLM module. The first call takes seconds. Raises UpstreamError if the import fails."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        litellm = importlib.import_module("litellm")
    except ModuleNotFoundError as error:
        text = MissingExtra("translation between providers' protocols", "litellm").message
        raise UpstreamError(f"This model is reached through LiteLLM: {text}", code="translation_unavailable") from error
    except Exception as error:  # whatever an import may raise
        raise UpstreamError(
            f"This model is reached through LiteLLM, which could not be imported ({type(error).__name__}: {error}).",
            code="translation_unavailable",
        ) from error
    for name, setting in _SETTINGS.items():
        setattr(litellm, name, setting)
    for name in _LOGGERS:
        logging.getLogger(name).disabled = True  # its lines may hold content
    # LiteLLM looks for its own proxy server in the middle of a request, and would start it.
    cast("dict[str, Any]", sys.modules).setdefault("litellm.proxy.proxy_server", None)
    with _PATCH_LOCK:
        _apply_patches()
    return litellm


def _apply_patches() -> None:
    """Patches LiteLLM's handling of responses. A patch that does not fit the installed version is skipped."""
    with suppress(ImportError, AttributeError):
        _patch_transport(importlib.import_module(_TRANSPORT).LiteLLMAiohttpTransport)
    # For Claude Code and others that break off a stream: streams of providers that speak Messages themselves are
    # reported to LiteLLM's own proxy server, which needs packages that only that server has, and are read on to their
    # end when nobody listens any more.
    reporting = ModuleType(_SUCCESS_HANDLER)
    reporting.__dict__["PassThroughEndpointLogging"] = object
    sys.modules.setdefault(_SUCCESS_HANDLER, reporting)
    with suppress(ImportError, AttributeError):
        streams = importlib.import_module(_MESSAGE_STREAMS).BaseAnthropicMessagesStreamingIterator
        streams.async_sse_wrapper = _decoded_stream
        streams.get_async_streaming_response_iterator = _raw_stream
    with suppress(ImportError, AttributeError):
        # For Claude Code, which thinks: the setting above is not asked then, and the request would go to
        # `/v1/responses`, which few servers have.
        handler = importlib.import_module(_MESSAGES_BY_CHAT).LiteLLMMessagesToCompletionTransformationHandler
        handler._route_openai_thinking_to_responses_api_if_needed = staticmethod(_keep_model_name)
    with suppress(ImportError, AttributeError):
        # For OpenAI's SDKs, whose `parse` raises for `length`: an answer that breaks off where the window is full did
        # not come to its end.
        reasons = importlib.import_module(_REASONS)._FINISH_REASON_MAP
        reasons.setdefault("model_context_window_exceeded", "length")
    with suppress(ImportError, AttributeError):
        _pass_on_refusals(importlib.import_module(_CHAT_STREAMS).CustomStreamWrapper)
    with suppress(ImportError, AttributeError):
        _convert_refusals(importlib.import_module(_RESPONSES))
    with suppress(ImportError, AttributeError):
        _bound_redaction(importlib.import_module(_REDACTION))


def _patch_transport(transport: Any) -> None:
    """Patches LiteLLM's transport class to record each call's responses; further calls do nothing.

    With most providers LiteLLM waits as long for a connection as for a response, whatever the operator has set
    (`timeouts.connect_seconds`). It loses the headers of some streams, which OpenAI's and Anthropic's SDKs read to try
    again (`retry-after`, limits), leaves streams that a client broke off to the garbage collector, and repeats a
    request after a broken connection as if none was made. All calls use this one class.
    """
    send = transport.handle_async_request
    if hasattr(send, "__wrapped__"):
        return

    @functools.wraps(send)
    async def handle_async_request(self: Any, request: httpx.Request) -> httpx.Response:
        connections = _current_connections()
        if connections is None:
            response: httpx.Response = await send(self, request)
            return response
        connections.is_sent = True
        limits: dict[str, Any] = request.extensions.get("timeout") or {}
        limits = {**limits, "connect": connections.limit(limits.get("connect"))}
        request.extensions = {**request.extensions, "timeout": limits}
        try:
            response = await send(self, request)
        except httpx.ConnectError as error:
            raise _translate_error(error) from error.__cause__
        response.stream = _WatchedStream(response.stream)
        connections.note(response)
        if response.has_redirect_location:
            # LiteLLM would follow it with the conversation and, in headers other than `Authorization`, the key.
            raise UpstreamError(
                f"The provider answered {response.status_code}, a redirect, which is not followed. "
                "Set the model's `api_base` to where it leads."
            )
        return response

    transport.handle_async_request = handle_async_request


def _keep_model_name(completion_kwargs: Any, *, thinking: Any) -> None:
    """Does nothing, so that the model keeps its name."""


def _pass_on_refusals(streams: Any) -> None:
    """Patches LiteLLM's streams to forward refusals, which OpenAI's SDKs show; further calls do nothing."""
    original = streams.is_chunk_non_empty
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def is_chunk_non_empty(self: Any, completion_obj: Any, model_response: Any, response_obj: Any) -> bool:
        refusal = getattr(model_response.choices[0].delta, "refusal", None)
        return bool(refusal) or bool(original(self, completion_obj, model_response, response_obj))

    streams.is_chunk_non_empty = is_chunk_non_empty


def _convert_refusals(responses: Any) -> None:
    """Patches LiteLLM to convert messages with a refusal only, which it leaves out; further calls do nothing.

    For OpenAI's SDKs, which would get a response without any output.
    """
    config = responses.LiteLLMCompletionResponsesConfig
    original = config._extract_message_output_items
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def extract_message_output_items(chat_completion_response: Any, choices: Any) -> Any:
        items = original(chat_completion_response, choices)
        for choice in choices:
            # LiteLLM stores it beside OpenAI's own fields.
            refusal = (getattr(choice.message, "provider_specific_fields", None) or {}).get("refusal")
            if refusal and not choice.message.content:
                part = responses.OutputText(type="refusal", text=None, annotations=None, refusal=refusal)
                item = {"type": "message", "id": f"msg_{uuid.uuid4()}", "status": "completed", "role": "assistant"}
                items.append(responses.GenericResponseOutputItem(**item, content=[part]))
        return items

    config._extract_message_output_items = staticmethod(extract_message_output_items)


def _bound_redaction(redaction: Any) -> None:
    """Patches LiteLLM to search only the beginning of an error's text for secrets; further calls do nothing.

    LiteLLM searches five times, with a pattern whose time may grow with the square of the text's length: minutes if a
    provider echoes a text that a client wrote for this. errors.py also removes the secrets from texts for clients.
    """
    redact = redaction._python_redact_string
    if hasattr(redact, "__wrapped__"):
        return

    @functools.wraps(redact)
    def redacted(value: str) -> str:
        if len(value) <= _MAX_REDACTED_LENGTH:
            return str(redact(value))
        head = value[:_MAX_REDACTED_LENGTH].rpartition(" ")[0]  # no half of a secret
        return str(redact(head)) + value[len(head) :]

    redaction._python_redact_string = redacted


def _raw_stream(self: Any, httpx_response: Any, **_: Any) -> Any:
    """Returns a provider's own Messages stream unchanged."""
    return httpx_response.aiter_bytes()


async def _decoded_stream(self: Any, completion_stream: AsyncIterator[Any]) -> AsyncGenerator[bytes, None]:
    """Yields the events of a provider whose stream has another form."""
    async for chunk in completion_stream:
        yield self._convert_chunk_to_sse_format(chunk)


def provider_config(litellm: Any, kind: Literal["responses", "messages"], provider: str, model: str) -> Any:
    """Returns LiteLLM's description of a provider's own Responses or Messages API; None if it has none."""
    configs = litellm.utils.ProviderConfigManager
    describe = {
        "responses": configs.get_provider_responses_api_config,
        "messages": configs.get_provider_anthropic_messages_config,
    }[kind]
    return describe(provider=litellm.LlmProviders(provider), model=model)


def message_events(stream: Any) -> Any:
    """Returns the events of a stream of Messages.

    For Anthropic's SDKs: the adapter's bytes would contain LiteLLM's error texts; its events raise the error instead.
    """
    return getattr(stream, "_anthropic_wrapper", stream)


def collected_chunks(stream: Any) -> Any:
    """Returns the chunks of which LiteLLM builds a stream of Responses; None for a provider's own events."""
    return getattr(stream, "collected_chat_completion_chunks", None)


def has_invented_end(stream: Any) -> bool:
    """Whether LiteLLM invented the end of a stream: it sends a finish reason although the provider sent none.

    For every client, which would take a response that was cut for a whole one.
    """
    source = stream
    while source is not None and not hasattr(source, "received_finish_reason"):
        source = next(
            (inner for name in _WRAPPED_STREAM_FIELDS if (inner := getattr(source, name, None)) is not None), None
        )
    return source is not None and source.received_finish_reason is None


# -- the connections of a call -----------------------------------------------------------------------------------------


class CallConnections:
    """The requests and responses of one call. `connect` is the time limit for making a connection, in seconds."""

    __slots__ = ("_connect", "_responses", "is_sent")

    def __init__(self, connect: float | None = None) -> None:
        self.is_sent = False
        """Whether the call tried to send anything. Earlier errors are not the provider's."""
        self._connect = connect
        self._responses: list[httpx.Response] = []

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the newest response. A request for a token may come before the actual one."""
        return self._responses[-1].headers if self._responses else {}

    def limit(self, connect: float | None) -> float | None:
        """Returns the time limit for connecting: the lower one of the call's limit and LiteLLM's."""
        limits = [limit for limit in (self._connect, connect) if limit is not None]
        return min(limits, default=None)

    def note(self, response: httpx.Response) -> None:
        """Adds a response whose head has arrived."""
        self._responses.append(response)

    async def close(self) -> None:
        """Closes all responses, so that the providers notice."""
        for response in self._responses:
            with suppress(Exception):  # broken already
                await response.aclose()


class _WatchedStream(httpx.AsyncByteStream):
    """A response's body that raises the right error if its connection breaks."""

    def __init__(self, body: Any) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._body:
                yield piece
        except httpx.ConnectError as error:
            raise _translate_error(error) from error.__cause__

    async def aclose(self) -> None:
        """Closes the body's connection."""
        await self._body.aclose()


def _translate_error(error: httpx.ConnectError) -> httpx.TransportError:
    """Returns ReadError for a broken connection, which may have carried the request; else the error itself."""
    cause = error.__cause__
    if isinstance(cause, aiohttp.ClientOSError) and not isinstance(cause, aiohttp.ClientConnectorError):
        return httpx.ReadError("the connection broke")
    return error


_CONNECTIONS: ContextVar[CallConnections | None] = ContextVar("connections", default=None)


def _current_connections() -> CallConnections | None:
    """Returns the connections of this task's call; None outside of a call."""
    return _CONNECTIONS.get()


def bind_task(connections: CallConnections) -> None:
    """Assigns all further requests of this task and its child tasks to `connections`."""
    _CONNECTIONS.set(connections)
