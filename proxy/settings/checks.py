"""What must hold between settings, and what is accepted but does nothing as things stand."""

from __future__ import annotations

from collections.abc import Iterator

from proxy.core.budget import Thresholds
from proxy.core.errors import ConfigError
from proxy.settings.text import step
from proxy.settings.values import AllThresholds, Settings
from proxy.upstream.routes import DEFAULT_NAMES, family_of


def check(settings: Settings) -> None:
    """Raises ConfigError for the first rule between settings that is broken."""
    for path, message in _problems(settings):
        raise ConfigError(message, path=path)


def hints(settings: Settings) -> tuple[str, ...]:
    """Sentences about settings that are legal and have no effect; for the start's log and `accordion check`."""
    found = []
    if settings.server.workers > 1 and settings.store.url.reveal() == "memory://":
        found.append("$.store.url: with memory:// each worker knows its own conversations only")
    for index, model in enumerate(settings.model_list):
        path = f"$.model_list[{index}].litellm_params"
        params = model.litellm_params
        if params.api_key and not settings.proxy_keys:
            found.append(
                f"{path}: its own key is never used; it is for callers that present a proxy key, and "
                "there are no `proxy_keys`"
            )
        options = [name for name in params.options if name != "custom_llm_provider"]
        if options and family_of(model.entry())[0] != "litellm":
            found.append(f"{path}: only requests that need translating use {', '.join(options)}")
    return tuple(found)


def _problems(settings: Settings) -> Iterator[tuple[str, str]]:
    if not settings.server.max_body_bytes:
        yield "$.server.max_body_bytes", "expected at least 1 byte"
    yield from _models(settings)
    yield from _keys(settings)
    yield from _thresholds(settings)


def _models(settings: Settings) -> Iterator[tuple[str, str]]:
    seen: dict[str, int] = {}
    for index, model in enumerate(settings.model_list):
        path, name = f"$.model_list[{index}].model_name", model.model_name
        if name in seen:
            yield path, f"`{name}` is already the name of model_list[{seen[name]}]; each model needs a name of its own"
        if name in DEFAULT_NAMES:
            yield path, f"`{name}` is the name of a default upstream; choose another"
        if "*" in name:
            yield path, "a name stands for one model; there are no patterns"
        seen[name] = index
        info = model.model_info
        if info.max_output_tokens is not None and info.max_input_tokens is None:
            path = f"$.model_list[{index}].model_info.max_output_tokens"
            yield path, "it takes max_input_tokens beside it to describe a window"
        try:
            family_of(model.entry())
        except ValueError as error:
            yield f"$.model_list[{index}].litellm_params.model", str(error)


def _keys(settings: Settings) -> Iterator[tuple[str, str]]:
    ids: dict[str, int] = {}
    keys: dict[str, int] = {}
    for index, entry in enumerate(settings.proxy_keys):
        path, key = f"$.proxy_keys[{index}]", entry.key.reveal()
        if entry.id in ids:
            yield f"{path}.id", f"`{entry.id}` is already the id of proxy_keys[{ids[entry.id]}]"
        if not key or " " in key or "\t" in key:
            yield f"{path}.key", "expected a text without spaces that is not empty"
        if key in keys:
            yield f"{path}.key", f"it is the same as that of proxy_keys[{keys[key]}]"
        ids[entry.id] = keys[key] = index


def _thresholds(settings: Settings) -> Iterator[tuple[str, str]]:
    everywhere = settings.thresholds
    places: list[tuple[str, AllThresholds | Thresholds]] = [("$.thresholds", everywhere)]
    places += [(step("$.thresholds.models", name), everywhere.of(name)) for name in everywhere.models]
    for path, at in places:
        # A trigger of 1.0 is none, so it may stand above any limit.
        if at.hard is not None and at.generation is not None and at.hard < at.generation < 1.0:
            yield f"{path}.hard", "expected at least as much as `generation`, which would come too late otherwise"
