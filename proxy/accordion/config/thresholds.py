"""The `thresholds` section: triggers and targets by model and by kind of agent.

A key that a specific section omits has the value of the next more general section.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from accordion.config.value_types import ConfigSection
from accordion.config.yaml_text import child_path
from accordion.model.budget import Thresholds, TokenLimits
from accordion.model.shares import Share

Reserve = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
OutputFactor = Annotated[float, msgspec.Meta(ge=0, le=1_000)]

_STANDARD = Thresholds()
SMALL = 99_999
"""A window in tokens of the class with the lowest hard limit, which depends on the window's size by default."""
_SIZES = (
    (SMALL, "with a window below 100,000 tokens"),
    (499_999, "with a window below 500,000 tokens"),
    (10**9, "with a window of 500,000 tokens or more"),
)
"""A window of each class and its description. The class decides if `generation` and `hard` are empty."""


class ThresholdShares(ConfigSection, frozen=True):
    """Thresholds of one model or one kind of agent."""

    conversation: Share | None = None
    conversation_target: Share | None = None
    generation: Share | None = None
    generation_target: Share | None = None
    hard: Share | None = None
    soft: Share | None = None
    warning: Share | None = None
    cold_cache: Share | None = None
    warm_cache: Share | None = None
    reserved_output: Reserve | None = None
    output_factor: OutputFactor | None = None


class ModelThresholds(ThresholdShares, frozen=True):
    """Thresholds of one model."""

    delegated: ThresholdShares = ThresholdShares()


SectionPath = tuple[str, ThresholdShares]
"""A section of thresholds with its path in the file."""


class AllThresholds(ThresholdShares, frozen=True):
    """The `thresholds` section: for all models, and for single ones."""

    conversation: Share = Share(_STANDARD.conversation)
    soft: Share = Share(_STANDARD.soft)
    warning: Share = Share(_STANDARD.warning)
    cold_cache: Share = Share(_STANDARD.cold_cache)
    warm_cache: Share = Share(_STANDARD.warm_cache)
    reserved_output: Reserve = _STANDARD.reserved_output
    output_factor: OutputFactor = _STANDARD.output_factor
    delegated: ThresholdShares = ThresholdShares()
    models: dict[str, ModelThresholds] = msgspec.field(default_factory=dict)

    def thresholds_for(self, model: str, *, delegated: bool = False) -> Thresholds:
        """Returns the thresholds of a model by the clients' name; `delegated` for requests of sub-agents.

        The model's own values come before those of all models, and in each, the values for sub-agents before the
        others. A target that is set nowhere is 0.25, or half of its trigger if that is less.
        """
        sections = self.sections(model, delegated=delegated)
        settings = {name: find_setting(sections, name) for name in ThresholdShares.__struct_fields__}
        values: dict[str, Any] = {
            name: getattr(section, name) for name, (_, section) in settings.items() if section is not None
        }
        # Only plain numbers can be written as JSON.
        numbers: dict[str, Any] = {
            name: float(value) if isinstance(value, Share) else value for name, value in values.items()
        }
        thresholds = Thresholds(**numbers)
        if settings["conversation_target"][1] is None:
            target = min(_STANDARD.conversation_target, thresholds.conversation / 2)
            thresholds = replace(thresholds, conversation_target=target)
        if settings["generation_target"][1] is None:
            lowest = min(limits.generation / size for size, _, limits in _classes(thresholds))
            target = min(_STANDARD.generation_target, round(lowest / 2, 4))
            thresholds = replace(thresholds, generation_target=target)
        return thresholds

    def sections(self, model: str, *, delegated: bool) -> tuple[SectionPath, ...]:
        """Returns the sections that may set thresholds of `model`, the most specific first."""
        own, path = self.models.get(model), child_path("$.thresholds.models", model)
        specific: tuple[SectionPath, ...] = () if own is None else ((f"{path}.delegated", own.delegated), (path, own))
        general: tuple[SectionPath, ...] = (("$.thresholds.delegated", self.delegated), ("$.thresholds", self))
        if delegated:
            return specific + general
        return specific[1:] + general[1:]

    def find_late_triggers(self, model: str, size: int) -> Iterator[tuple[str, bool, float]]:
        """Yields the triggers above the hard limit of `model`, whose window has `size` tokens.

        Each is a path, whether it is set for this model alone, and the hard limit as a share of the window.
        """
        for delegated in (False, True):
            sections = self.sections(model, delegated=delegated)
            limits = self.thresholds_for(model, delegated=delegated).limits(size)
            for kind in ("conversation", "generation"):
                # Each number is rounded down by itself, so a difference of one token is no contradiction.
                if kind not in limits.never and getattr(limits, kind) > limits.hard + 1:
                    path = find_setting(sections, kind)[0]
                    yield path, path.startswith(child_path("$.thresholds.models", model)), round(limits.hard / size, 2)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yields a path and a sentence for thresholds that contradict each other, in every section."""
        for model in ("", *self.models):
            for delegated in (False, True):
                yield from _problems(
                    self.thresholds_for(model, delegated=delegated), self.sections(model, delegated=delegated)
                )


def find_setting(sections: tuple[SectionPath, ...], *names: str) -> tuple[str, ThresholdShares | None]:
    """Returns the path of the first of `names` in the first section that sets one, and that section, or None."""
    for path, section in sections:
        for name in names:
            if getattr(section, name) is not None:
                return f"{path}.{name}", section
    return "$.thresholds", None


def _classes(thresholds: Thresholds) -> Iterator[tuple[int, str, TokenLimits]]:
    return ((size, words, thresholds.limits(size)) for size, words in _SIZES)


def _problems(thresholds: Thresholds, sections: tuple[SectionPath, ...]) -> Iterator[tuple[str, str]]:
    if 0 < thresholds.output_factor < 1:
        yield find_setting(sections, "output_factor")[0], "`output_factor` must be 0 or at least 1"
    classes = tuple(_classes(thresholds))
    for kind in ("conversation", "generation"):
        if kind in classes[0][2].never:
            continue
        broken: dict[_Rule, list[str]] = {}
        for _, words, limits in classes:
            for rule in _broken_rules(kind, limits):
                broken.setdefault(rule, []).append(words)
        for (names, message), where in broken.items():
            everywhere = len(where) == len(classes)
            # A trigger for large windows may be above the limit of small ones, which are compacted at that limit.
            if everywhere or names[0] != "hard":
                yield find_setting(sections, *names)[0], message if everywhere else f"{message} ({where[0]})"


_Rule = tuple[tuple[str, ...], str]
"""The keys that may have broken a rule, the likeliest first, and a sentence."""


def _broken_rules(kind: str, limits: TokenLimits) -> Iterator[_Rule]:
    """Yields the rules that one trigger breaks."""
    trigger, target = getattr(limits, kind), getattr(limits, f"{kind}_target")
    if trigger < target:
        yield (f"{kind}_target", kind, "hard"), f"`{kind}` (the trigger) must be at least `{kind}_target`"
    # A trigger of 0 always compacts, so nothing is prepared.
    if 0 < trigger < limits.soft:
        yield ("soft", kind, "hard"), f"`soft` must be at most `{kind}` (the trigger)"
    if trigger > limits.hard:
        yield ("hard", kind), f"`hard` must be at least `{kind}`; otherwise that trigger comes too late"
