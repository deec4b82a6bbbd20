"""Checks settings against each other: errors for contradictions, hints for settings without effect."""

from __future__ import annotations

import os
import os.path
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import urlsplit

from accordion.config.extras import missing_extras
from accordion.config.litellm_file import ignored_keys
from accordion.config.pipelines import PipelineEntry
from accordion.config.settings import RULES, WRITERS, ModelConfig, Settings
from accordion.config.thresholds import SMALL, find_setting
from accordion.config.value_types import is_loopback
from accordion.config.yaml_text import child_path
from accordion.model.errors import ConfigError
from accordion.model.suggestions import find_nearest
from accordion.providers.http.routes import AMBIENT, DEFAULT_NAMES, family_of, provider_of
from accordion.providers.models.model_table import ModelTable
from accordion.providers.models.windows import make_window

_NEVER_USED = (
    "never used: on an address that others can reach, it is for callers with a proxy key, and `proxy_keys` is empty"
)
WITHOUT_STORE = (
    "until then requests are forwarded, and what is to be stored waits in the spool (store.spool); if that cannot be "
    "written either, it is lost when the proxy ends"
)
_SHORTEST_ADMIN_KEY = 16
"""Characters: whoever guesses this key has all data."""
_ENDPOINT = re.compile(
    r"/(?:chat/completions|completions|responses|embeddings|messages|models|rerank)$"
    r"|/models/[^/]+:(?:stream)?generateContent$",
    re.IGNORECASE,
)
_ENDPOINT_BEFORE_THE_END = re.compile(r"/(?:chat/completions|v1/messages|v1/responses)(?=/)")
_TWO_VERSIONS = re.compile(r"(/v\d+(?:(?:alpha|beta)\d*)?)/v\d+(?:(?:alpha|beta)\d*)?(?=/|$)")
_CLOUD_PATHS = {
    "azure": re.compile(r"/openai(?:/.*)?$"),
    "bedrock": re.compile(r"/model(?:/.*)?$"),
    "vertex": re.compile(r"(?:/v1(?:beta1)?)?/projects(?:/.*)?$"),
}
"""The beginnings of the paths that clients of clouds send, which a base URL does not have."""
_CHAT_MODES = (None, "chat", "completion", "responses")
_WITHOUT_V1 = frozenset({"api.deepseek.com"})
"""Hosts whose documentation gives a base URL without a path."""


def check(settings: Settings) -> None:
    """Raises ConfigError for the first contradiction between settings."""
    for path, message in _problems(settings):
        raise ConfigError(message, path=path)


def find_hints(settings: Settings) -> tuple[str, ...]:
    """Returns sentences about valid settings without the expected effect, for the log and `accordion check`."""
    hints = []
    if settings.server.workers > 1 and settings.store.url.reveal() == "memory://":
        hints.append(
            "$.store.url: with memory:// workers do not share conversations; use SQLite or Redis with several workers"
        )
    if settings.store.url.reveal() != "memory://" and not settings.archive.key.reveal() and _serves_others(settings):
        hints.append(
            "$.archive.key: it is not set, so that conversations of others are stored compressed, but not encrypted"
        )
    for name, (_, api_key) in settings.upstreams.by_family().items():
        if api_key and not settings.uses_configured_keys:
            hints.append(f"$.upstreams.{name}.api_key: {_NEVER_USED}")
    memory_models = {model.model for _, model in settings.memory.endpoint_models() if model.api_base is None}
    memory_models.add(settings.memory.model)
    for index, model in enumerate(settings.model_list):
        path = f"$.model_list[{index}].litellm_params"
        params = model.litellm_params
        if params.api_key and not settings.uses_configured_keys and model.model_name not in memory_models:
            hints.append(f"{path}: the api_key is {_NEVER_USED}")
        everywhere = ("drop_params",) if "drop_params" in settings.litellm_settings else ()
        options = [name for name in params.options if name not in ("custom_llm_provider", *everywhere)]
        if options and family_of(model.entry())[0] != "litellm":
            hints.append(f"{path}: used only for translated requests: {', '.join(options)}")
    for path, (own, message) in _find_late_triggers(settings).items():
        if not own:
            hints.append(f"{path}: {message}")
    for path, strategy in _list_strategies(settings):
        hints += [f"{child_path(path, key)}: {text}" for key, text in strategy.options.find_useless_options()]
    for warnings in (
        ignored_keys,
        _find_unlikely_base_urls,
        _find_unused_writers,
        find_unknown_windows,
        _find_unknown_names,
        find_unusable_store_path,
    ):
        hints += warnings(settings)
    return tuple(hints)


def _serves_others(settings: Settings) -> bool:
    """Whether others than the user of this machine use the proxy."""
    return settings.needs_proxy_key or not is_loopback(settings.server.host)


def _problems(settings: Settings) -> Iterator[tuple[str, str]]:
    if not settings.server.max_body_bytes:
        yield "$.server.max_body_bytes", "expected at least 1 byte"
    if "\0" in (settings.store.spool or ""):
        yield "$.store.spool", "expected a text without null characters"
    if (file := settings.store.file()) and os.path.realpath(settings.store.spool_path()) == os.path.realpath(file):
        yield "$.store.spool", "must not be the store's own file"
    if settings.compaction.stop_if_worse and not settings.compaction.holdout:
        yield (
            "$.compaction.stop_if_worse",
            "needs a hold-out, which shows what compaction costs: set `holdout`",
        )
    yield from _check_models(settings)
    yield from _check_keys(settings)
    yield from _check_thresholds(settings)
    yield from _check_memory(settings)
    yield from _check_summarizers(settings)
    yield from _check_endpoints(settings)
    yield from missing_extras(settings)


def _check_models(settings: Settings) -> Iterator[tuple[str, str]]:
    for index, model in enumerate(settings.model_list):
        path, name = f"$.model_list[{index}].model_name", model.model_name
        try:
            model.price()
        except ValueError as error:
            yield f"$.model_list[{index}].model_info.{error}", "expected a price in US dollars for one token"
        if name in DEFAULT_NAMES:
            yield path, f"`{name}` is reserved for a default upstream; choose another name"
        info = model.model_info
        if info.max_output_tokens is not None and info.max_input_tokens is None:
            path = f"$.model_list[{index}].model_info.max_output_tokens"
            yield path, "needs max_input_tokens as well, to describe a window"
        try:
            family_of(model.entry())
        except ValueError as error:
            yield f"$.model_list[{index}].litellm_params.model", str(error)


def _check_keys(settings: Settings) -> Iterator[tuple[str, str]]:
    ids: dict[str, int] = {}
    keys: dict[str, int] = {}
    for index, entry in enumerate(settings.proxy_keys):
        path, key = f"$.proxy_keys[{index}]", entry.key.reveal()
        if entry.id in ids:
            yield f"{path}.id", f"`{entry.id}` is already the id of proxy_keys[{ids[entry.id]}]"
        if not key or " " in key or "\t" in key:
            yield f"{path}.key", "expected a non-empty text without spaces"
        if key in keys:
            yield f"{path}.key", f"the same key is already used by proxy_keys[{keys[key]}]"
        ids[entry.id] = keys[key] = index
    admin_key = settings.admin_key.reveal()
    if admin_key and (len(admin_key) < _SHORTEST_ADMIN_KEY or " " in admin_key or "\t" in admin_key):
        yield "$.admin_key", f"expected at least {_SHORTEST_ADMIN_KEY} characters without spaces"
    if admin_key in keys:
        yield "$.admin_key", f"the same key is already used by proxy_keys[{keys[admin_key]}]"


def _check_thresholds(settings: Settings) -> Iterator[tuple[str, str]]:
    everywhere = settings.thresholds
    yield from everywhere.problems()
    for model in settings.model_list:
        size = model.model_info.max_input_tokens
        for delegated in (False, True):
            if (
                size is not None
                and everywhere.thresholds_for(model.model_name, delegated=delegated).reserved_output >= size
            ):
                sections = everywhere.sections(model.model_name, delegated=delegated)
                yield (
                    find_setting(sections, "reserved_output")[0],
                    f"uses up the whole window of `{model.model_name}`",
                )
    yield from ((path, message) for path, (own, message) in _find_late_triggers(settings).items() if own)


def _find_late_triggers(settings: Settings) -> dict[str, tuple[bool, str]]:
    """Returns the triggers above the hard limit of a model in model_list with a known window, by their path.

    The values are whether the trigger is set for that model alone, and a sentence.
    """
    triggers: dict[str, tuple[bool, str]] = {}
    table = ModelTable()
    for model in settings.model_list:
        name, size = model.model_name, model.model_info.max_input_tokens
        if next(settings.thresholds.find_late_triggers(name, SMALL), None) is None:
            # There is none even for a small window, so the table need not be read.
            continue
        if size is None:
            listed = model.model_info.base_model or model.litellm_params.model
            limits = table.find(listed)
            size = make_window(listed, *limits).size if limits is not None else None
        for path, own, hard in settings.thresholds.find_late_triggers(name, size) if size else ():
            window = f"{hard:g} of its window of {size:,} tokens"
            if own:
                triggers[path] = (
                    True,
                    f"expected at most {hard:g}, the hard limit of `{name}` (window: {size:,} tokens)",
                )
            else:
                message = (
                    f"`{name}` is compacted at its hard limit instead, {window}; requests wait there for summaries"
                )
                triggers.setdefault(path, (False, message))
    return triggers


def _check_summarizers(settings: Settings) -> Iterator[tuple[str, str]]:
    """Checks that the windows of models that write are known."""
    base = {
        model.model_name: model.model_info.base_model or model.litellm_params.model for model in settings.model_list
    }
    sizes = {model.model_name: model.model_info.max_input_tokens for model in settings.model_list}
    table = ModelTable()
    for path, model in _named_writers(settings):
        if sizes.get(model) is None and table.find(base.get(model, model)) is None:
            words = {"$.summaries.writer": WRITERS, "$.memory.writer": (RULES,)}.get(path, ())
            nearest = "" if model in sizes else find_nearest(model, (*words, *sizes))
            advice = "set `max_input_tokens` for it in model_list, or use a model in LiteLLM's table"
            if nearest:
                advice = f"did you mean `{nearest}`? If not, {advice}"
            yield path, f"the window of this model is not known: {advice}"


def _check_memory(settings: Settings) -> Iterator[tuple[str, str]]:
    """Checks recall, the project, and the model that writes memories, which needs its own key."""
    if settings.memory.recall.enabled and not settings.memory.enabled:
        yield "$.memory.recall.enabled", "must be `false` while `memory.enabled` is false"
    if settings.memory.project.strip() == "*":
        yield (
            "$.memory.project",
            "expected the name of one project, or nothing; `*` (all projects) is allowed in calls only",
        )
    entry = next((each.entry() for each in settings.model_list if each.model_name == settings.memory.model), None)
    if not settings.memory.model:
        return
    if entry is None:
        nearest = find_nearest(settings.memory.model, (RULES, *(each.model_name for each in settings.model_list)))
        hint = f"; did you mean `{nearest}`?" if nearest else ""
        yield "$.memory.writer", f"expected `rules`, or the name of a model of model_list{hint}"
    elif not (entry.api_key or entry.api_base or entry.extra_headers or provider_of(entry)[0] in AMBIENT):
        yield (
            "$.memory.writer",
            "expected a model with its own `api_key`; memories are never written with a caller's key",
        )


def _check_endpoints(settings: Settings) -> Iterator[tuple[str, str]]:
    """Checks that the endpoints for memories speak OpenAI's protocol."""
    families = {model.model_name: family_of(model.entry())[0] for model in settings.model_list}
    for name, endpoint in settings.memory.endpoint_models():
        path = f"$.memory.{name}"
        if endpoint.api_base is not None:
            continue
        if endpoint.model not in families:
            yield f"{path}.model", "expected a model of model_list; for any other model, set `api_base` as well"
        elif families[endpoint.model] != "openai":
            yield f"{path}.model", "the provider does not speak OpenAI's protocol; set `api_base` to a server that does"
        elif endpoint.api_key:
            yield f"{path}.api_key", "set the key of this model in model_list instead"


def _named_writers(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yields the path and the name of each model that writes summaries or memories."""
    if settings.summaries.model:
        yield "$.summaries.writer", settings.summaries.model
    if settings.memory.model:
        yield "$.memory.writer", settings.memory.model
    for path, strategy in _list_strategies(settings):
        if model := strategy.build().summary_model:
            yield f"{path}.model", model


def _find_unused_writers(settings: Settings) -> Iterator[str]:
    """Yields a sentence for each model that is to write summaries with a key or an address that is not used."""
    entries = {model.model_name: model.entry() for model in settings.model_list}
    for path, name in _named_writers(settings):
        entry = entries.get(name)
        if settings.uses_configured_keys or entry is None or path == "$.memory.writer":
            continue
        if entry.api_key or entry.api_base or entry.extra_headers:
            yield (
                f"{path}: `{name}` is called only with a caller's key, for requests to its own address, and otherwise "
                "summaries are written without a model: on an address that others can reach, a model's own key and "
                "address are for callers with a proxy key, and `proxy_keys` is empty"
            )


def _list_strategies(settings: Settings) -> Iterator[tuple[str, PipelineEntry]]:
    """Yields every strategy of every pipeline with its path."""
    everywhere = settings.compaction
    sections = [("$.compaction", everywhere.pipeline)]
    sections.append(("$.compaction.delegated", everywhere.delegated.pipeline or ()))
    for name, own in everywhere.models.items():
        path = child_path("$.compaction.models", name)
        sections += [(path, own.pipeline or ()), (f"{path}.delegated", own.delegated.pipeline or ())]
    for path, pipeline in sections:
        for index, strategy in enumerate(pipeline):
            yield f"{path}.pipeline[{index}].{strategy.name}", strategy


# -- settings that are valid and probably mistakes ---------------------------------------------------------------------


def _find_unlikely_base_urls(settings: Settings) -> Iterator[str]:
    """Yields base URLs that lack /v1, have a version twice, or have a part of what is added to them.

    An Anthropic base URL may end in /v1 or /v1/messages, which the routes remove.
    """
    for path, family, base in _base_urls(settings):
        bare = base.rstrip("/")
        removed = next((end for end in ("/v1/messages", "/v1") if bare.endswith(end)), "") * (family == "anthropic")
        url_path = urlsplit(bare).path
        cloud_path = _CLOUD_PATHS[family].search(url_path) if family in _CLOUD_PATHS else None
        if match := _TWO_VERSIONS.search(url_path):
            yield f"{path}: the URL has a version twice; write `{match[1]}` in place of `{match[0]}`"
        elif match := (
            cloud_path or _ENDPOINT_BEFORE_THE_END.search(url_path) or _ENDPOINT.search(url_path.removesuffix(removed))
        ):
            yield f"{path}: the URL names an endpoint; leave out `{match[0]}`, which is added to it"
        elif family == "openai" and not url_path and urlsplit(bare).hostname not in _WITHOUT_V1:
            yield f"{path}: the URL has no path; OpenAI-compatible servers usually need `{bare}/v1`"


def _base_urls(settings: Settings) -> Iterator[tuple[str, str, str]]:
    """Yields the path of each base URL, the family of its API (or `rerank`), and the URL."""
    for name, (base_url, _) in settings.upstreams.by_family().items():
        yield f"$.upstreams.{name}.base_url", name, base_url
    for index, model in enumerate(settings.model_list):
        if base := model.litellm_params.api_base:
            family = family_of(model.entry())[0]
            if family != "litellm":
                yield f"$.model_list[{index}].litellm_params.api_base", family, base
    for key, endpoint in settings.memory.endpoint_models():
        if endpoint.api_base is not None:
            yield f"$.memory.{key}.api_base", "rerank" if key == "rerank" else "openai", endpoint.api_base


def find_unknown_windows(settings: Settings) -> Iterator[str]:
    """Yields models of model_list whose window is assumed."""
    table = ModelTable() if settings.model_list else None
    for index, model in enumerate(settings.model_list):
        if table is not None and not _is_known(model, table):
            limits = table.find_nearest(_table_id(model))
            assumed = make_window(_table_id(model), *limits).size if limits else settings.windows.default
            yield (
                f"$.model_list[{index}].model_info.max_input_tokens: the window of `{model.model_name}` is not known; "
                f"{assumed:,} tokens are assumed; set this key to its window"
            )


def _is_known(model: ModelConfig, table: ModelTable) -> bool:
    info = model.model_info
    if info.max_input_tokens is not None or info.options.get("mode") not in _CHAT_MODES or "*" in model.model_name:
        return True
    return table.find(_table_id(model)) is not None


def _table_id(model: ModelConfig) -> str:
    """Returns the model's id in LiteLLM's table, which need not have it."""
    return model.model_info.base_model or model.litellm_params.model


def _find_unknown_names(settings: Settings) -> Iterator[str]:
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
            similar = find_nearest(name, configured)
            rest = f"did you mean `{similar}`?" if similar else "it has an effect only if clients ask for that name"
            yield f"{child_path(path, name)}: no configured or known model has this name; {rest}"


def find_unusable_store_path(settings: Settings) -> Iterator[str]:
    """Yields the SQLite file if it cannot be opened or created."""
    if file := settings.store.file():
        problem = _problem_of(Path(file))
        if problem:
            yield f"$.store.url: {problem}; {WITHOUT_STORE}. /readyz answers 503"


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
