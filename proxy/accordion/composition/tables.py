"""Converts settings to the tables that other packages use: protocols, windows, rules, routes, model names."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from msgspec.structs import replace

from accordion.accounting.calibration import LearnedLimits
from accordion.config import ModelConfig, Settings
from accordion.model.budget import Thresholds
from accordion.pipeline.request import CompactionRules
from accordion.providers.http.routes import RouteTable, family_of, provider_of, routes_from
from accordion.providers.models.model_table import ModelTable
from accordion.providers.models.prices import ModelPrices
from accordion.providers.models.windows import ModelWindows, make_window

_MAX_CACHED_RULES = 1_000


def build_windows(settings: Settings, limits: LearnedLimits) -> ModelWindows:
    """Builds the windows: the configured ones, then the learned limits, then LiteLLM's table."""
    overrides: dict[str, dict[str, object]] = {}
    for model in _smallest(settings):
        info = model.model_info
        if info.max_input_tokens is not None:
            override = {"max_input_tokens": info.max_input_tokens, "max_output_tokens": info.max_output_tokens}
            overrides[model.model_name] = {name: value for name, value in override.items() if value is not None}
    return ModelWindows(
        limits,
        overrides,
        default=settings.windows.default,
        base_models=base_models(settings),
    )


def reaches_anthropic(settings: Settings) -> bool:
    """Whether each request for one of Anthropic's models goes to Anthropic's own API."""
    is_taken = any(
        start.startswith("claude") or (star and "claude".startswith(start))
        for start, star, _ in (model.model_name.partition("*") for model in settings.model_list)
    )
    return urlsplit(settings.upstreams.anthropic.base_url).hostname == "api.anthropic.com" and not is_taken


def build_prices(settings: Settings) -> ModelPrices:
    """Builds the prices: the configured ones, then LiteLLM's table."""
    return ModelPrices(settings.model_prices(), base_models(settings))


def find_summary_model(settings: Settings, model: str, is_subagent: bool) -> str:
    """Returns the configured model that writes summaries of a model's requests; empty for the request's own."""
    return settings.compaction.writer_of(model, delegated=is_subagent) or settings.summaries.model


def thresholds_by_model(settings: Settings) -> dict[str, Thresholds]:
    """Returns the thresholds of main agents by model; the empty name stands for all other models."""
    return {name: settings.thresholds.thresholds_for(name) for name in ("", *settings.configured_models())}


def rules_by_model(settings: Settings) -> Callable[[str, str, bool, int], CompactionRules]:
    """Returns a function from model, provider family, whether it is a sub-agent, and window to the rules in force."""
    cache: dict[tuple[str, str, bool, int], CompactionRules] = {}
    configured, families = frozenset(settings.configured_models()), _translated_families(settings)

    def of(model: str, family: str, delegated: bool, window: int) -> CompactionRules:
        provider = families.get(model, "") if family == "litellm" else family
        model = model if model in configured else ""
        rules = cache.get((model, provider, delegated, window))
        if rules is None:
            rules = CompactionRules(
                thresholds=settings.thresholds.thresholds_for(model, delegated=delegated),
                mode=settings.compaction.mode_of(model, delegated=delegated),
                budgets=settings.budgets.of(model, provider, window),
                summary_instructions=settings.summaries.instructions_for(model),
            )
            if len(cache) < _MAX_CACHED_RULES:
                cache[model, provider, delegated, window] = rules
        return rules

    return of


def _translated_families(settings: Settings) -> dict[str, str]:
    """Returns the provider whose budgets hold for each configured model, if requests to it are translated."""
    families = {}
    for model in settings.model_list:
        family, name = family_of(model.entry())
        claude = "claude" in f"{name} {model.model_info.base_model or ''}".lower()
        families[model.model_name] = family if family != "litellm" else provider_of(model.entry())[0] if claude else ""
    return families


def routes(settings: Settings) -> RouteTable:
    """Builds the configured routes."""
    upstreams, limits = settings.upstreams, settings.timeouts
    # A time-out among a model's own litellm_params comes later and wins.
    before, after = ("timeout", limits.read_seconds), ("connect_timeout", limits.connect_seconds)
    entries = [model.entry() for model in settings.model_list]
    return routes_from(
        [replace(entry, options=(before, *entry.options, after)) for entry in entries],
        {family: (base_url, key.reveal()) for family, (base_url, key) in upstreams.by_family().items()},
    )


def base_models(settings: Settings) -> dict[str, str]:
    """Returns the model by which windows and encodings are looked up, for each configured name."""
    return {model.model_name: _base_model(model) for model in _smallest(settings)}


def _base_model(model: ModelConfig) -> str:
    return model.model_info.base_model or model.litellm_params.model


def _smallest(settings: Settings) -> list[ModelConfig]:
    """Returns one deployment of each configured name: that with the smallest window, since any may get a request."""
    deployments: dict[str, list[ModelConfig]] = {}
    for model in settings.model_list:
        deployments.setdefault(model.model_name, []).append(model)
    table = ModelTable() if len(deployments) < len(settings.model_list) else None

    def size(model: ModelConfig) -> int:
        limits = table.find(_base_model(model)) if table is not None else None
        listed = make_window(_base_model(model), *limits).size if limits is not None else settings.windows.default
        return model.model_info.max_input_tokens or listed

    return [models[0] if len(models) == 1 else min(models, key=size) for models in deployments.values()]
