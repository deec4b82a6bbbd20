"""How large a model's window is: config, then a learnt limit, then LiteLLM's table, then a default.

What the table's `max_input_tokens` means (checked over the whole table in tests/models/test_windows.py):

- OpenAI's large models have windows of 400,000 and 1,050,000 tokens and hold the input alone to 272,000 and 922,000
  ("Input tokens exceed the configured limit of 272000 tokens"): 128,000 are always left for the answer. The table has
  either figure: 272,000 for gpt-5.2 and 922,000 for gpt-5.6, but 400,000 for gpt-5.1-codex and 1,050,000 for gpt-5.4.
  Azure lists its 128,000 chat models as 111,616, which is 128,000 less an answer of 16,384. Both figures of each pair
  lead to the same window.
- Claude's figure is the whole window, and the prompt alone may fill it ("prompt is too long: 208310 tokens > 200000
  maximum"); what of it the answer may take, the request says.
- Gemini's figure is the limit of the input ("The input token count (N) exceeds the maximum number of tokens allowed
  (M)"); the answer has its own.
- Elsewhere the figure is a window that prompt and answer share, so the answer's room is taken off: gpt-4o takes 128,000
  less 16,384. Not where the table's output limit is more than a third of the window (gpt-4: 4,096 of 8,192; o3; many
  open models: all of it): there it bounds the answer and is not set aside, and prompts beyond it are accepted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from accordion.accounting.limits import Limits, Whose
from accordion.core.budget import Window
from accordion.core.errors import ConfigError
from accordion.core.values import replace
from accordion.models.table import LONGEST_ID, ModelTable, names

DEFAULT_WINDOW = 120_000
LEARNT_FOR = 24 * 3600.0
REMEMBERED = 1_024
REPORTED = 100

INPUT_LIMITS = {272_000: 400_000, 922_000: 1_050_000, 111_616: 128_000}
WHOLE_WINDOWS = {400_000: 272_000, 1_050_000: 922_000}
_OPENAI = re.compile(r"gpt-|codex|chat-latest|daybreak")

LONG_CONTEXT_BETA = "context-1m-2025-08-07"
LONG_CONTEXT_MODELS = ("claude-sonnet-4", "claude-sonnet-4-0", "claude-4-sonnet", "claude-sonnet-4-5")
LONG_CONTEXT = 1_000_000
"""Sonnet 4 and 4.5 have a million tokens with the beta header (or Claude Code's `[1m]` behind the id); later Claude
models have them without."""


class ModelWindows:
    """Windows (core/ports.py). Safe to use from several threads.

    `overrides` maps a model id to its `max_input_tokens` and, where wanted, `max_output_tokens`, as the config has
    them; they are taken literally. `base_models` says which id of the table a configured name stands for. What is
    learnt goes into `limits` for `learnt_for` seconds. `on_unknown` gets each model whose window is the default, once,
    with that window.
    Raises ConfigError for an override that is not a number above 0.
    """

    def __init__(
        self,
        limits: Limits,
        overrides: Mapping[str, Mapping[str, object]] | None = None,
        *,
        default: int = DEFAULT_WINDOW,
        learnt_for: float = LEARNT_FOR,
        base_models: Mapping[str, str] | None = None,
        table: ModelTable | None = None,
        on_unknown: Callable[[str, int], None] = lambda model, size: None,
    ) -> None:
        self._limits = limits
        self._overrides = {model: _override(model, values) for model, values in (overrides or {}).items()}
        # One for all forms of an id; a provider prefix in the config means that provider only.
        self._override_names = {next(names(m), m): w for m, w in self._overrides.items() if "/" not in m}
        self._default = Window(size=default, usable_input=default, source="default")
        self._learnt_for = learnt_for
        self._base_models = dict(base_models or {})
        self._table = table if table is not None else ModelTable()
        self._known: dict[tuple[str, bool], Window] = {}
        self._on_unknown = on_unknown
        self._reported: set[str] = set()

    def window(self, model: str, upstream: str = "", beta: str = "", tenant: str = "") -> Window:
        """The window of `model` at `upstream`; `beta` holds beta flags, of which the window-changing ones are read."""
        long = _is_long(model, beta)
        known = self._known.get((model, long)) or self._look_up(model, long)
        if known.source == "config" or not self._limits.held:
            return known
        limit = self._limits.of(Whose(tenant, upstream, model, long))
        return known if limit is None else _relearn(model, known, limit)

    def learn(self, model: str, upstream: str, beta: str, tenant: str, limit: int) -> None:
        """Remember a limit that an overflow error named, for this tenant alone; it expires."""
        if limit <= 0 or len(model) > LONGEST_ID:
            return
        self._limits.learn(Whose(tenant, upstream, model, _is_long(model, beta)), limit, self._learnt_for)

    def _look_up(self, model: str, long: bool) -> Window:
        window = self._configured(model) or self._listed(model, long) or self._default
        if window is self._default:
            self._report(model)
        if len(model) <= LONGEST_ID:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[model, long] = window
        return window

    def _report(self, model: str) -> None:
        """Says once of each model that its window is not known; of some models only, since clients choose the names."""
        if model and len(model) <= LONGEST_ID and len(self._reported) < REPORTED and model not in self._reported:
            self._reported.add(model)
            self._on_unknown(model, self._default.size)

    def _configured(self, model: str) -> Window | None:
        if model in self._overrides or not self._overrides or len(model) > LONGEST_ID:
            return self._overrides.get(model)
        found = (self._override_names.get(name) for name in names(model))
        return next((window for window in found if window is not None), None)

    def _listed(self, model: str, long: bool) -> Window | None:
        model = self._base_models.get(model, model)
        figures = self._table.find(model)
        if figures is None:
            return None
        limit, max_output = figures
        if long and limit < LONG_CONTEXT and any(name in LONG_CONTEXT_MODELS for name in names(model)):
            limit = LONG_CONTEXT
        return shape(model, limit, max_output)


def shape(model: str, limit: int, max_output: int) -> Window:
    """The window that the figure `limit` stands for (see above), in tokens."""
    name = model.lower()
    size, usable = limit, limit
    if _OPENAI.search(name) and limit in INPUT_LIMITS:
        size = INPUT_LIMITS[limit]
    elif _OPENAI.search(name) and limit in WHOLE_WINDOWS:
        usable = WHOLE_WINDOWS[limit]
    elif "claude" not in name and "gemini" not in name and max_output * 3 <= limit:
        usable = limit - max_output
    return Window(size=size, usable_input=usable, source="table", max_output=max_output)


def _is_long(model: str, beta: str) -> bool:
    return LONG_CONTEXT_BETA in beta or model.endswith("[1m]")


def _relearn(model: str, known: Window, limit: int) -> Window:
    """The window with a learnt limit. A limit that is the known input limit, or the known size, changes no figure."""
    if known.source == "table" and limit in (known.usable_input, known.size):
        return replace(known, source="learnt")
    return replace(shape(model, limit, known.max_output), source="learnt")


def _override(model: str, values: Mapping[str, object]) -> Window:
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
