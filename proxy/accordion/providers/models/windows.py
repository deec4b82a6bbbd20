"""Context windows of models: from the config, then a learned limit, then the provider's list of models, then LiteLLM's
table, then the nearest version of the model's family in that table, then a default.

The meaning of the table's `max_input_tokens` (tests/providers/models/test_windows.py checks the whole table):

- OpenAI's large models have windows of 400,000 and 1,050,000 tokens and limit the input to 272,000 and 922,000 ("Input
  tokens exceed the configured limit of 272000 tokens"): 128,000 are reserved for the answer. The table has either
  number: 272,000 for gpt-5.2 and 922,000 for gpt-5.6, but 400,000 for gpt-5.1-codex and 1,050,000 for gpt-5.4. Azure
  lists its 128,000 chat models as 111,616, which is 128,000 less an answer of 16,384. Both numbers of each pair mean
  the same window.
- Claude's number is the whole window, and the prompt alone may fill it ("prompt is too long: 208310 tokens > 200000
  maximum"). The request sets the answer's part of it.
- Gemini's number is the limit of the input ("The input token count (N) exceeds the maximum number of tokens allowed
  (M)"). The answer has its own.
- For other models the number is a window that prompt and answer share, so the answer is subtracted: gpt-4o accepts
  128,000 less 16,384. The exception is a model whose output limit is more than a third of the window (gpt-4: 4,096 of
  8,192; o3; many open models: all of it). There it only limits the answer, and the provider accepts longer prompts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import replace

from accordion.accounting.calibration import LearnedLimits, LimitOwner
from accordion.model.budget import RefusedForm, Window
from accordion.model.errors import ConfigError
from accordion.providers.models.model_table import LONGEST_ID, ModelTable, candidate_names

DEFAULT_WINDOW = 120_000
LEARNED_LIMIT_SECONDS = 24 * 3600.0
"""A day: a provider may raise a limit, and a limit that still holds is learned again by one more overflow."""
MAX_CACHED_WINDOWS = 1_024

INPUT_LIMITS = {272_000: 400_000, 922_000: 1_050_000, 111_616: 128_000}
WHOLE_WINDOWS = {400_000: 272_000, 1_050_000: 922_000}
_OPENAI = re.compile(r"gpt-|codex|chat-latest|daybreak")

LONG_CONTEXT_BETA = "context-1m-2025-08-07"
LONG_CONTEXT_MODELS = ("claude-sonnet-4", "claude-sonnet-4-0", "claude-4-sonnet", "claude-sonnet-4-5")
LONG_CONTEXT = 1_000_000
"""Sonnet 4 and 4.5 have a million tokens with the beta header (or with Claude Code's `[1m]` after the id).

Later Claude models have them without either.
"""


class ModelWindows:
    """The WindowTable port (model/ports.py). Safe to use from several threads.

    `overrides` maps a model id to the config's `max_input_tokens` and optional `max_output_tokens`, which are used
    unchanged. `base_models` maps a configured name to an id of the table. Learned limits stay in `limits` for
    `learnt_for` seconds. Raises ConfigError for an override that is not a number above 0.
    """

    def __init__(
        self,
        limits: LearnedLimits,
        overrides: Mapping[str, Mapping[str, object]] | None = None,
        *,
        default: int = DEFAULT_WINDOW,
        learnt_for: float = LEARNED_LIMIT_SECONDS,
        base_models: Mapping[str, str] | None = None,
        table: ModelTable | None = None,
    ) -> None:
        self._limits = limits
        self._overrides = {model: _window_from_config(model, values) for model, values in (overrides or {}).items()}
        # One entry for all forms of an id. A provider prefix in the config limits it to that provider.
        self._override_names = {next(candidate_names(m), m): w for m, w in self._overrides.items() if "/" not in m}
        self._default = Window(size=default, usable_input=default, source="default")
        self._limit_lifetime = learnt_for
        self._base_models = dict(base_models or {})
        self._table = table if table is not None else ModelTable()
        self._windows: dict[tuple[str, bool], Window] = {}

    def window(self, model: str, upstream: str = "", beta: str = "", tenant: str = "") -> Window:
        """Returns the window of `model` at `upstream`; `beta` are the request's beta flags, which may change it."""
        long = _is_long(model, beta)
        window = self._windows.get((model, long)) or self._look_up(model, long)
        if not (self._limits.limits or self._limits.listed.limits):
            return window
        owner = LimitOwner(tenant, upstream, model, long)
        if window.source != "config":
            window = self._apply_limits(owner, window)
        refusal = self._limits.find(owner)
        if refusal is None:
            return window
        return replace(
            window,
            counts_output=refusal.counts_output,
            refused_form=refusal.refused_form,
            refused_fields=refusal.refused_fields,
        )

    def _apply_limits(self, owner: LimitOwner, window: Window) -> Window:
        """Returns the window as the provider's list of models and its errors say; the smaller of both."""
        listed, limit = self._limits.listed.get(owner), self._limits.get(owner)
        if listed is not None and not (window.source == "table" and listed in (window.usable_input, window.size)):
            window = replace(make_window(owner.model, listed, window.max_output), source="listed")
        if limit is not None and (window.source != "listed" or limit < window.size):
            window = _apply_learned_limit(owner.model, window, limit)
        return window

    def learn(
        self,
        model: str,
        upstream: str,
        beta: str,
        tenant: str,
        limit: int,
        *,
        counts_output: bool = False,
        refused_form: RefusedForm = "",
        refused_fields: tuple[str, ...] = (),
    ) -> None:
        """Stores what a refusal said, for this tenant only; it expires."""
        if not (limit > 0 or counts_output or refused_form or refused_fields) or len(model) > LONGEST_ID:
            return
        owner = LimitOwner(tenant, upstream, model, _is_long(model, beta))
        self._limits.learn(
            owner,
            max(0, limit),
            self._limit_lifetime,
            counts_output=counts_output,
            refused_form=refused_form,
            refused_fields=refused_fields,
        )

    def learn_listed(self, model: str, upstream: str, tenant: str, size: int) -> None:
        """Stores the window in the upstream's own list of models, for this tenant only; it expires."""
        known = self._windows.get((model, False)) or self._look_up(model, long=False)
        is_known = known.source == "config" or (known.source == "table" and size in (known.usable_input, known.size))
        if not is_known and len(model) <= LONGEST_ID:
            self._limits.listed.learn(LimitOwner(tenant, upstream, model, long=False), size, self._limit_lifetime)

    def _look_up(self, model: str, long: bool) -> Window:
        window = self._from_config(model) or self._from_table(model, long) or self._from_family(model) or self._default
        if len(model) <= LONGEST_ID:
            if len(self._windows) >= MAX_CACHED_WINDOWS:
                self._windows.clear()
            self._windows[model, long] = window
        return window

    def _from_config(self, model: str) -> Window | None:
        if model in self._overrides or not self._overrides or len(model) > LONGEST_ID:
            return self._overrides.get(model)
        matches = (self._override_names.get(name) for name in candidate_names(model))
        return next((window for window in matches if window is not None), None)

    def _from_table(self, model: str, long: bool) -> Window | None:
        model = self._base_models.get(model, model)
        limits = self._table.find(model)
        if limits is None:
            return None
        limit, max_output = limits
        if long and limit < LONG_CONTEXT and any(name in LONG_CONTEXT_MODELS for name in candidate_names(model)):
            limit = LONG_CONTEXT
        return make_window(model, limit, max_output)

    def _from_family(self, model: str) -> Window | None:
        """Returns the window of the nearest version of the model's family in the table."""
        limits = self._table.find_nearest(self._base_models.get(model, model))
        return replace(make_window(model, *limits), source="family") if limits is not None else None


def make_window(model: str, limit: int, max_output: int) -> Window:
    """Returns the window for the table's input limit `limit` (see the module's docstring), in tokens."""
    name = model.lower()
    size, usable_input = limit, limit
    if _OPENAI.search(name) and limit in INPUT_LIMITS:
        size = INPUT_LIMITS[limit]
    elif _OPENAI.search(name) and limit in WHOLE_WINDOWS:
        usable_input = WHOLE_WINDOWS[limit]
    elif "claude" not in name and "gemini" not in name and max_output * 3 <= limit:
        usable_input = limit - max_output
    return Window(size=size, usable_input=usable_input, source="table", max_output=max_output)


def _is_long(model: str, beta: str) -> bool:
    return LONG_CONTEXT_BETA in beta or model.endswith("[1m]")


def _apply_learned_limit(model: str, window: Window, limit: int) -> Window:
    """Returns the window with a learned limit; only its source changes if the limit is the table's own."""
    if window.source == "table" and limit in (window.usable_input, window.size):
        return replace(window, source="learnt")
    return replace(make_window(model, limit, window.max_output), source="learnt")


def _window_from_config(model: str, values: Mapping[str, object]) -> Window:
    size = _positive(model, "max_input_tokens", values.get("max_input_tokens"))
    max_output = 0
    if values.get("max_output_tokens") is not None:
        max_output = _positive(model, "max_output_tokens", values["max_output_tokens"])
    return Window(size=size, usable_input=size, source="config", max_output=max_output)


def _positive(model: str, field: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < float("inf"):
        path = f"$.model_list[?(@.model_name=='{model}')].model_info.{field}"
        raise ConfigError(f"must be a number of tokens above 0, not {value!r}", path=path)
    return int(value)
