"""Reads the context windows in a list of models, as providers and gateways write it.

OpenRouter and Together have `context_length`, vLLM and SGLang `max_model_len`, Groq, Codex's catalog and Mistral
`context_window` or `max_context_length`, Anthropic and LiteLLM `max_input_tokens`, Google `inputTokenLimit`, llama.cpp
`meta.n_ctx`, LM Studio `loaded_context_length`, GitHub `capabilities.limits`. OpenAI and Ollama have none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

_LISTS = ("data", "models")
_NAMES = ("id", "slug", "name", "model_name")
_WINDOWS = frozenset(
    {
        *("context_length", "context_window", "max_context_length", "max_model_len", "max_input_tokens"),
        *("inputTokenLimit", "n_ctx", "loaded_context_length", "max_context_window_tokens"),
    }
)
_SECTIONS = frozenset({"meta", "model_info", "top_provider", "capabilities", "limits"})
_SMALLEST, _LARGEST = 1_000, 100_000_000
"""Tokens of a window; another number stands for something else."""
_MAX_MODELS = 5_000


def read_listed_windows(body: bytes) -> dict[str, int]:
    """Returns the window of each model in a list, in tokens; the smallest of several. Models without one are left out.

    It is empty for a body that is no list of models.
    """
    try:
        page = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return {}
    if isinstance(page, dict):
        page = next((page[name] for name in _LISTS if isinstance(page.get(name), list)), [])
    entries = page[:_MAX_MODELS] if isinstance(page, list) else []
    windows = {}
    for entry in entries:
        if isinstance(entry, dict) and (name := _find_name(entry)) and (sizes := list(_find_windows(entry))):
            windows[name] = min(sizes)
    return windows


def _find_name(entry: Mapping[str, Any]) -> str:
    name = next((entry[field] for field in _NAMES if isinstance(entry.get(field), str)), "")
    return name.removeprefix("models/")


def _find_windows(entry: Mapping[str, Any]) -> Iterator[int]:
    for name, value in entry.items():
        if name in _WINDOWS and type(value) is int and _SMALLEST <= value <= _LARGEST:
            yield value
        elif name in _SECTIONS and isinstance(value, dict):
            yield from _find_windows(value)
