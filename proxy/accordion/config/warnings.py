"""Warnings about valid settings that are probably mistakes: base URLs, windows, model names, the store's path."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import urlsplit

from accordion.config.settings import ModelConfig, Settings
from accordion.config.yaml_text import child_path
from accordion.providers.http.routes import family_of
from accordion.providers.models.model_table import ModelTable

_ENDPOINTS = ("/chat/completions", "/completions", "/responses", "/embeddings", "/messages", "/models")
_CHAT_MODES = (None, "chat", "completion", "responses")
_WITHOUT_V1 = frozenset({"api.deepseek.com"})
"""Hosts whose documentation gives a base URL without a path."""


def unlikely_base_urls(settings: Settings) -> Iterator[str]:
    """Yields base URLs that lack /v1 or name an endpoint.

    An Anthropic base URL may end in /v1 or /v1/messages, which the routes remove.
    """
    for path, family, base in _base_urls(settings):
        bare = base.rstrip("/")
        if family == "anthropic":
            bare = bare.removesuffix("/v1/messages").removesuffix("/v1")
        ending = next((each for each in _ENDPOINTS if bare.endswith(each)), None)
        if ending is not None:
            yield f"{path}: the URL names an endpoint; leave out `{ending}`, which is added to it"
        elif family == "openai" and not urlsplit(bare).path and urlsplit(bare).hostname not in _WITHOUT_V1:
            yield f"{path}: the URL has no path; OpenAI-compatible servers usually need `{bare}/v1`"


def _base_urls(settings: Settings) -> Iterator[tuple[str, str, str]]:
    yield "$.upstreams.openai.base_url", "openai", settings.upstreams.openai.base_url
    yield "$.upstreams.anthropic.base_url", "anthropic", settings.upstreams.anthropic.base_url
    for index, model in enumerate(settings.model_list):
        if base := model.litellm_params.api_base:
            family = family_of(model.entry())[0]
            if family != "litellm":
                yield f"$.model_list[{index}].litellm_params.api_base", family, base


def unknown_windows(settings: Settings) -> Iterator[str]:
    """Yields models of model_list with the default window."""
    table = ModelTable() if settings.model_list else None
    for index, model in enumerate(settings.model_list):
        if table is not None and not _is_known(model, table):
            yield (
                f"$.model_list[{index}].model_info.max_input_tokens: the window of `{model.model_name}` is not known; "
                f"{settings.windows.default:,} tokens are assumed; set this key to its window"
            )


def _is_known(model: ModelConfig, table: ModelTable) -> bool:
    info = model.model_info
    if info.max_input_tokens is not None or info.options.get("mode") not in _CHAT_MODES or "*" in model.model_name:
        return True
    return table.find(info.base_model or model.litellm_params.model) is not None


def unknown_names(settings: Settings) -> Iterator[str]:
    """Yields model names in thresholds, compaction and budgets that no model has."""
    sections = (
        ("$.thresholds.models", settings.thresholds.models),
        ("$.compaction.models", settings.compaction.models),
        ("$.budgets.models", settings.budgets.models),
    )
    configured = [model.model_name for model in settings.model_list]
    table = ModelTable() if any(own for _, own in sections) else None
    for path, own in sections:
        for name in own:
            if table is None or any(fnmatchcase(name, each) for each in configured) or table.find(name) is not None:
                continue
            similar = difflib.get_close_matches(name, configured, n=1)
            rest = f"did you mean `{similar[0]}`?" if similar else "it has an effect only if clients ask for that name"
            yield f"{child_path(path, name)}: no configured or known model has this name; {rest}"


def unusable_store_path(settings: Settings) -> Iterator[str]:
    """Yields the SQLite file if it cannot be opened or created."""
    if file := settings.store.file():
        problem = _problem_of(Path(file))
        if problem:
            yield (
                f"$.store.url: {problem}. Requests are forwarded without the store, which keeps nothing, and /readyz "
                "answers 503"
            )


def _problem_of(file: Path) -> str:
    try:
        if file.is_dir():
            return f"{file} is a folder"
        if file.exists():
            return "" if os.access(file, os.R_OK | os.W_OK) else f"no permission to write {file}"
        folder = next(each for each in file.absolute().parents if os.path.lexists(each))
        if not folder.is_dir():
            return f"{folder} is not a folder"
    except OSError as error:
        return f"{file} cannot be used: {error.strerror}"
    return "" if os.access(folder, os.W_OK | os.X_OK) else f"no permission to write in {folder}"
