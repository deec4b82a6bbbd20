"""How full a window is full: by model and by kind of agent, each figure with the next more general one behind it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from accordion.core.budget import Limits, Thresholds
from accordion.core.values import replace
from accordion.settings.base import Section, Share
from accordion.settings.text import step

Reserve = Annotated[int, msgspec.Meta(ge=0, le=10**9)]

_STANDARD = Thresholds()
SMALL = 99_999
"""A window of the class with the lowest hard limit, where the size decides it, in tokens."""
_SIZES = (
    (SMALL, "with a window below 100,000 tokens"),
    (499_999, "with a window below 500,000 tokens"),
    (10**9, "with a window of 500,000 tokens or more"),
)
"""A window of each class that decides where `generation` and `hard` are empty, and the class in words."""


class Shares(Section, frozen=True):
    """Thresholds of one model or one kind of agent; what is left out is as in the next more general place."""

    conversation: Share | None = None
    conversation_target: Share | None = None
    generation: Share | None = None
    generation_target: Share | None = None
    hard: Share | None = None
    soft: Share | None = None
    reserved_output: Reserve | None = None


class ModelThresholds(Shares, frozen=True):
    """Thresholds of one model."""

    delegated: Shares = Shares()


Place = tuple[str, Shares]
"""Thresholds, and the path at which they stand."""


class AllThresholds(Shares, frozen=True):
    """Thresholds of all models, and of single ones."""

    conversation: Share = _STANDARD.conversation
    soft: Share = _STANDARD.soft
    reserved_output: Reserve = _STANDARD.reserved_output
    delegated: Shares = Shares()
    models: dict[str, ModelThresholds] = msgspec.field(default_factory=dict)

    def of(self, model: str, *, delegated: bool = False) -> Thresholds:
        """The thresholds of the model that clients ask for by the name `model`; `delegated` for a sub-agent's.

        What is stated for the model goes before what is stated for all, and within each what is stated for sub-agents
        before what is stated for everyone. A target that is stated nowhere is 0.25, or half of its trigger where that
        is less.
        """
        places = self.places(model, delegated=delegated)
        stated = {name: stated_at(places, name) for name in Shares.__struct_fields__}
        found = Thresholds(**{name: getattr(at, name) for name, (_, at) in stated.items() if at is not None})
        if stated["conversation_target"][1] is None:
            target = min(_STANDARD.conversation_target, found.conversation / 2)
            found = replace(found, conversation_target=target)
        if stated["generation_target"][1] is None:
            lowest = min(limits.generation / size for size, _, limits in _classes(found))
            found = replace(found, generation_target=min(_STANDARD.generation_target, round(lowest / 2, 4)))
        return found

    def places(self, model: str, *, delegated: bool) -> tuple[Place, ...]:
        """Where thresholds of `model` may stand, the most particular place first."""
        own, path = self.models.get(model), step("$.thresholds.models", model)
        particular: tuple[Place, ...] = () if own is None else ((f"{path}.delegated", own.delegated), (path, own))
        general: tuple[Place, ...] = (("$.thresholds.delegated", self.delegated), ("$.thresholds", self))
        if delegated:
            return particular + general
        return particular[1:] + general[1:]

    def late(self, model: str, size: int) -> Iterator[tuple[str, bool, float]]:
        """The triggers above the hard limit of `model`, whose window has `size` tokens: the path of each, whether it is
        stated for this model, and the limit as a share of the window."""
        for delegated in (False, True):
            places, found = self.places(model, delegated=delegated), self.of(model, delegated=delegated)
            limits = found.limits(size)
            for kind in ("conversation", "generation"):
                # Each figure is floored by itself, so one token is no contradiction.
                if kind not in limits.never and getattr(limits, kind) > limits.hard + 1:
                    path = stated_at(places, kind)[0]
                    yield path, path.startswith(step("$.thresholds.models", model)), round(limits.hard / size, 2)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Paths and sentences for thresholds that contradict each other, at every place where any may stand."""
        for model in ("", *self.models):
            for delegated in (False, True):
                yield from _problems(self.of(model, delegated=delegated), self.places(model, delegated=delegated))


def stated_at(places: tuple[Place, ...], *names: str) -> tuple[str, Shares | None]:
    """The path of the first of `names` at the first place that states one, and that place; else None for it."""
    for path, at in places:
        for name in names:
            if getattr(at, name) is not None:
                return f"{path}.{name}", at
    return "$.thresholds", None


def _classes(thresholds: Thresholds) -> Iterator[tuple[int, str, Limits]]:
    return ((size, words, thresholds.limits(size)) for size, words in _SIZES)


def _problems(found: Thresholds, places: tuple[Place, ...]) -> Iterator[tuple[str, str]]:
    classes = tuple(_classes(found))
    for kind in ("conversation", "generation"):
        if kind in classes[0][2].never:
            continue
        broken: dict[_Rule, list[str]] = {}
        for _, words, limits in classes:
            for rule in _broken(kind, limits):
                broken.setdefault(rule, []).append(words)
        for (names, message), where in broken.items():
            everywhere = len(where) == len(classes)
            # A trigger for large windows may be above the limit that small ones have: those are folded at that limit.
            if everywhere or names[0] != "hard":
                yield stated_at(places, *names)[0], message if everywhere else f"{message} ({where[0]})"


_Rule = tuple[tuple[str, ...], str]
"""The keys that may be to blame when a rule is broken, the likeliest first, and a sentence."""


def _broken(kind: str, limits: Limits) -> Iterator[_Rule]:
    """The rules that one trigger breaks."""
    trigger, target = getattr(limits, kind), getattr(limits, f"{kind}_target")
    if trigger < target:
        yield (f"{kind}_target", kind, "hard"), f"`{kind}` (the trigger) must be at least `{kind}_target`"
    # What is always folded needs no preparing.
    if 0 < trigger < limits.soft:
        yield ("soft", kind, "hard"), f"`soft` must be at most `{kind}` (the trigger)"
    if trigger > limits.hard:
        yield ("hard", kind), f"`hard` must be at least `{kind}`; otherwise that trigger comes too late"
