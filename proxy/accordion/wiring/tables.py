"""What settings say, as the rooms take it: windows, rules, routes, names."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from accordion import __version__
from accordion.accounting.limits import Limits
from accordion.core.budget import Thresholds
from accordion.core.values import replace
from accordion.dialects.base import Dialect
from accordion.dialects.chat import ChatCompletions
from accordion.dialects.chat_splice import ChatWeaver
from accordion.dialects.messages import Messages
from accordion.dialects.messages_weaving import MessagesWeaver
from accordion.dialects.responses import Responses
from accordion.dialects.responses_weaving import ResponsesWeaver
from accordion.dialects.splice import Weaver
from accordion.gauged import Rules
from accordion.models.table import ModelTable
from accordion.models.windows import ModelWindows, shape
from accordion.settings import Model, Settings
from accordion.upstream.routes import Routes, family_of, provider_of, routes_from

if TYPE_CHECKING:
    from accordion.faces.telemetry import Spans

_log = logging.getLogger("accordion")

_RULES = 1_000


def dialects() -> dict[str, Dialect]:
    """The dialects by the path that each reads."""
    return {
        "/v1/chat/completions": ChatCompletions(),
        "/v1/responses": Responses(),
        "/v1/messages": Messages(),
    }


def dialects_by_name() -> dict[str, Dialect]:
    """The same by their names."""
    return {dialect.name: dialect for dialect in dialects().values()}


def weavers() -> dict[str, Weaver]:
    """What knows about our tool, by the dialect's name."""
    return {"chat": ChatWeaver(), "responses": ResponsesWeaver(), "messages": MessagesWeaver()}


def log_unknown_window(model: str, size: int) -> None:
    """Warns that a model's window is not known. Each worker does so once for a model."""
    _log.warning(
        "the context window of model %r is not known; %d tokens are assumed (windows.default). Set "
        "model_info.max_input_tokens for it in model_list",
        model, size,
    )  # fmt: skip


def windows(
    settings: Settings, limits: Limits, on_unknown: Callable[[str, int], None] = lambda model, size: None
) -> ModelWindows:
    """Windows as configured, with what is learnt, and the table behind."""
    overrides: dict[str, dict[str, object]] = {}
    for model in _smallest(settings):
        info = model.model_info
        if info.max_input_tokens is not None:
            given = {"max_input_tokens": info.max_input_tokens, "max_output_tokens": info.max_output_tokens}
            overrides[model.model_name] = {name: value for name, value in given.items() if value is not None}
    return ModelWindows(
        limits,
        overrides,
        default=settings.windows.default,
        learnt_for=settings.windows.learnt_hours * 3600,
        base_models=base_models(settings),
        on_unknown=on_unknown,
    )


def counters(spoken: dict[str, Dialect]) -> dict[str, Dialect]:
    """The dialects by the paths where clients ask how many tokens a request would be."""
    return {
        "/v1/responses/input_tokens": spoken["/v1/responses"],
        "/v1/messages/count_tokens": spoken["/v1/messages"],
    }


def thresholds(settings: Settings) -> dict[str, Thresholds]:
    """Thresholds by model, of who is no sub-agent; the empty name stands for all other models."""
    return {name: settings.thresholds.of(name) for name in ("", *settings.named())}


def rules(settings: Settings) -> Callable[[str, str, bool, int], Rules]:
    """What holds for a model, the family of its provider, whether a sub-agent asks, and its window."""
    known: dict[tuple[str, str, bool, int], Rules] = {}
    named, behind = frozenset(settings.named()), _behind_translation(settings)

    def of(model: str, family: str, delegated: bool, window: int) -> Rules:
        provider = behind.get(model, "") if family == "litellm" else family
        model = model if model in named else ""
        found = known.get((model, provider, delegated, window))
        if found is None:
            found = Rules(
                thresholds=settings.thresholds.of(model, delegated=delegated),
                mode=settings.compaction.mode_of(model, delegated=delegated),
                budgets=settings.budgets.of(model, provider, window),
            )
            if len(known) < _RULES:
                known[model, provider, delegated, window] = found
        return found

    return of


def _behind_translation(settings: Settings) -> dict[str, str]:
    """Whose limits hold for each configured model where it is reached by translation, as `provider_budgets` has it."""
    found = {}
    for model in settings.model_list:
        family, name = family_of(model.entry())
        claude = "claude" in f"{name} {model.model_info.base_model or ''}".lower()
        found[model.model_name] = family if family != "litellm" else provider_of(model.entry())[0] if claude else ""
    return found


def routes(settings: Settings) -> Routes:
    """Where requests go, as configured."""
    openai, anthropic = settings.upstreams.openai, settings.upstreams.anthropic
    limits = settings.timeouts
    # A time-out among a model's own litellm_params comes later, and holds.
    before, after = ("timeout", limits.read_seconds), ("connect_timeout", limits.connect_seconds)
    entries = [model.entry() for model in settings.model_list]
    return routes_from(
        [replace(entry, options=(before, *entry.options, after)) for entry in entries],
        openai.base_url,
        anthropic.base_url,
        openai_key=openai.api_key.reveal(),
        anthropic_key=anthropic.api_key.reveal(),
    )


def base_models(settings: Settings) -> dict[str, str]:
    """The model that each configured name stands for, where windows and encodings are looked up."""
    return {model.model_name: _base_model(model) for model in _smallest(settings)}


def _base_model(model: Model) -> str:
    return model.model_info.base_model or model.litellm_params.model


def _smallest(settings: Settings) -> list[Model]:
    """Each configured name once: of several deployments the one with the smallest window, since any of them may get a
    request."""
    named: dict[str, list[Model]] = {}
    for model in settings.model_list:
        named.setdefault(model.model_name, []).append(model)
    table = ModelTable() if len(named) < len(settings.model_list) else None

    def size(model: Model) -> int:
        figures = table.find(_base_model(model)) if table is not None else None
        known = shape(_base_model(model), *figures).size if figures is not None else settings.windows.default
        return model.model_info.max_input_tokens or known

    return [models[0] if len(models) == 1 else min(models, key=size) for models in named.values()]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address that is listened on."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def spans(environ: Mapping[str, str]) -> Spans | None:
    """Who tells of exchanges as traces, where an exporter is configured."""
    if not any(name.startswith("OTEL_") for name in environ):
        return None
    from accordion.faces.telemetry import Spans, provider_from  # noqa: PLC0415  # slow to import, and seldom wanted

    try:
        provider = provider_from(environ, __version__)
    except ImportError:
        _log.warning(
            "no traces are sent: a trace exporter is configured, but OpenTelemetry is not installed. Install it with "
            "`pip install accordion-proxy[otel]`"
        )
        return None
    return Spans(provider) if provider is not None else None
