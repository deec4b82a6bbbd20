"""LiteLLM, imported when first needed and made quiet: it reports nothing, fetches nothing, keeps nothing."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import sys
from typing import Any, cast

from proxy.core.errors import UpstreamError

# Read by LiteLLM while it is imported. What the operator has set stands.
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

_LOGGERS = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy")


def load_litellm() -> Any:
    """The LiteLLM module, ready for use. Takes seconds the first time. Raises UpstreamError if it cannot be had."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        litellm = _imported()
    except Exception as error:  # whatever an import may raise
        raise UpstreamError(
            f"This model is reached through LiteLLM, which could not be imported ({type(error).__name__}: {error}). "
            "Install the package `litellm` where the proxy runs.",
            code="translation_unavailable",
        ) from error
    for name, setting in _SETTINGS.items():
        setattr(litellm, name, setting)
    for name in _LOGGERS:
        logging.getLogger(name).disabled = True  # its lines may hold content
    # LiteLLM looks for its own proxy server in the middle of a request, and would start it.
    cast("dict[str, Any]", sys.modules).setdefault("litellm.proxy.proxy_server", None)
    return litellm


def _imported() -> Any:
    """The module. While a first import makes a million objects, no full collection halts the other threads.

    Afterwards they are set aside, for the same reason: a full collection would look at all of them, for 0.4 s.
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
