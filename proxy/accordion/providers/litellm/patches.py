"""Imports LiteLLM at first use, configures it to report, fetch and store nothing, and patches its errors."""

from __future__ import annotations

import functools
import gc
import importlib
import logging
import os
import sys
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from threading import Lock
from types import ModuleType
from typing import Any, cast

from accordion.model.errors import MissingExtra, UpstreamError
from accordion.providers.litellm.wire import patch_transport

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
_REPORTING = "litellm.proxy.pass_through_endpoints.success_handler"
_MESSAGE_STREAMS = "litellm.llms.anthropic.pass_through.messages.streaming_iterator"
_MESSAGES_BY_CHAT = "litellm.llms.anthropic.pass_through.adapters.handler"
_CHAT_STREAMS = "litellm.litellm_core_utils.streaming_handler"
_RESPONSES = "litellm.responses.litellm_completion_transformation.transformation"
_REDACTION = "litellm.litellm_core_utils.secret_redaction"
_REASONS = "litellm.litellm_core_utils.core_helpers"

_LONGEST_REDACTED = 2048
"""How much of an error's text LiteLLM looks through for secrets, in characters."""

_MENDING = Lock()
"""Several translators may load it at once."""
_LOGGERS = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy")


def load_litellm() -> Any:
    """Returns the configured LiteLLM module. The first call takes seconds. Raises UpstreamError if the import fails."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        litellm = _import_litellm()
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
    with _MENDING:
        _apply_patches()
    return litellm


def _apply_patches() -> None:
    """Patches LiteLLM's handling of responses. A patch that does not fit the installed version is skipped."""
    with suppress(ImportError, AttributeError):
        patch_transport(importlib.import_module(_TRANSPORT).LiteLLMAiohttpTransport)
    # Streams of providers that speak Messages themselves are reported to LiteLLM's own proxy server, and need packages
    # that only that server has; and they would be read on to their end when nobody listens any more.
    reporting = ModuleType(_REPORTING)
    reporting.__dict__["PassThroughEndpointLogging"] = object
    sys.modules.setdefault(_REPORTING, reporting)
    with suppress(ImportError, AttributeError):
        streams = importlib.import_module(_MESSAGE_STREAMS).BaseAnthropicMessagesStreamingIterator
        streams.async_sse_wrapper = _decoded_stream
        streams.get_async_streaming_response_iterator = _raw_stream
    with suppress(ImportError, AttributeError):
        # The setting above is not asked where thinking is: that would go to `/v1/responses`, which few servers have.
        handler = importlib.import_module(_MESSAGES_BY_CHAT).LiteLLMMessagesToCompletionTransformationHandler
        handler._route_openai_thinking_to_responses_api_if_needed = staticmethod(_keep_model_name)
    with suppress(ImportError, AttributeError):
        # An answer that breaks off where the window is full is none that came to its end.
        reasons = importlib.import_module(_REASONS)._FINISH_REASON_MAP
        reasons.setdefault("model_context_window_exceeded", "length")
    with suppress(ImportError, AttributeError):
        _pass_on_refusals(importlib.import_module(_CHAT_STREAMS).CustomStreamWrapper)
    with suppress(ImportError, AttributeError):
        _convert_refusals(importlib.import_module(_RESPONSES))
    with suppress(ImportError, AttributeError):
        _bound_redaction(importlib.import_module(_REDACTION))


def _keep_model_name(completion_kwargs: Any, *, thinking: Any) -> None:
    """Does nothing, so that the model keeps its name."""


def _pass_on_refusals(streams: Any) -> None:
    """Patches LiteLLM's streams to forward refusals; further calls do nothing."""
    original = streams.is_chunk_non_empty
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def is_chunk_non_empty(self: Any, completion_obj: Any, model_response: Any, response_obj: Any) -> bool:
        refusal = getattr(model_response.choices[0].delta, "refusal", None)
        return bool(refusal) or bool(original(self, completion_obj, model_response, response_obj))

    streams.is_chunk_non_empty = is_chunk_non_empty


def _convert_refusals(responses: Any) -> None:
    """Patches LiteLLM to convert messages with a refusal only, which it leaves out; further calls do nothing."""
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
        if len(value) <= _LONGEST_REDACTED:
            return str(redact(value))
        head = value[:_LONGEST_REDACTED].rpartition(" ")[0]  # no half of a secret
        return str(redact(head)) + value[len(head) :]

    redaction._python_redact_string = redacted


def _raw_stream(self: Any, httpx_response: Any, **_: Any) -> Any:
    """Returns a provider's own Messages stream unchanged."""
    return httpx_response.aiter_bytes()


async def _decoded_stream(self: Any, completion_stream: AsyncIterator[Any]) -> AsyncGenerator[bytes, None]:
    """Yields the events of a provider whose stream has another form."""
    async for chunk in completion_stream:
        yield self._convert_chunk_to_sse_format(chunk)


def _import_litellm() -> Any:
    """Imports the module without garbage collections, which would stop the other threads.

    The first import creates a million objects. They are frozen afterwards: a full collection would visit all of them,
    for 0.4 s.
    """
    if "litellm" in sys.modules:
        return importlib.import_module("litellm")  # waits for an import that another thread has begun
    collecting = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module("litellm")
    finally:
        gc.freeze()
        if collecting:
            gc.enable()
