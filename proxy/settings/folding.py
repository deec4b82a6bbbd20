"""What is folded, by which strategies, who writes summaries, and what providers accept beside tokens."""

from __future__ import annotations

from typing import Annotated, Literal, cast

import msgspec

from proxy.compaction.case import Budgets
from proxy.compaction.strategies.summarize import SummarizeOptions
from proxy.settings.base import Name, Section
from proxy.settings.kinds import Mode, Size
from proxy.settings.pipelines import DEFAULT_PIPELINE, Strategy

ModeName = Literal["auto", "observe", "off"]
Images = Annotated[int, msgspec.Meta(ge=0, le=10**6)]
_LARGEST_200K = 200_000

WRITERS = ("request", "extractive")
"""Words for `summaries.writer`; any other is the name of a model."""


class ModelCompaction(Section, frozen=True):
    """Folding of one model's requests; what is left out is as for all models."""

    mode: Mode | None = None
    pipeline: tuple[Strategy, ...] | None = None


class Compaction(Section, frozen=True):
    """Whether requests are folded, and by which strategies."""

    mode: Mode = Mode("auto")
    pipeline: tuple[Strategy, ...] = DEFAULT_PIPELINE
    pinned_tools: tuple[Name, ...] = ()
    models: dict[str, ModelCompaction] = msgspec.field(default_factory=dict)

    def mode_of(self, model: str) -> ModeName:
        """Whether requests for the model that clients call `model` are folded."""
        own = self.models.get(model)
        return cast(ModeName, str(self.mode if own is None or own.mode is None else own.mode))

    def pipeline_of(self, model: str) -> tuple[tuple[str, object], ...]:
        """Its strategies in order: names, and options of the types that `compaction.strategies` registers."""
        own = self.models.get(model)
        pipeline = self.pipeline if own is None or own.pipeline is None else own.pipeline
        return tuple((strategy.name, strategy.options) for strategy in pipeline)

    def writer_of(self, model: str) -> str:
        """The model that its pipeline names for summaries; empty where `summaries` says who writes them."""
        options = (options for _, options in self.pipeline_of(model) if isinstance(options, SummarizeOptions))
        return next((each.model or "" for each in options), "")


class Summaries(Section, frozen=True):
    """Who writes summaries, and how long is waited for them."""

    writer: Name = "request"
    wait_seconds: Annotated[float, msgspec.Meta(ge=0, le=3_600)] = 20.0
    max_concurrent: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 8

    @property
    def model(self) -> str:
        """The model that is configured to write; empty where there is none."""
        return "" if self.writer in WRITERS else self.writer


class ModelBudgets(Section, frozen=True):
    """What one model's provider accepts; what is left out is as for all models."""

    max_body_bytes: Size | None = None
    max_images: Images | None = None


class AllBudgets(ModelBudgets, frozen=True):
    """What providers accept of a request beside its tokens; 0: anything."""

    models: dict[str, ModelBudgets] = msgspec.field(default_factory=dict)

    def of(self, model: str, family: str, window: int = 0) -> Budgets:
        """The limits for the model that clients call `model`, whose provider is of `family` and window of `window`
        tokens (0: unknown)."""
        own, known = self.models.get(model, self), provider_budgets(family, window)
        sizes = (own.max_body_bytes, self.max_body_bytes, known.body)
        images = (own.max_images, self.max_images, known.images)
        return Budgets(*(next(limit for limit in limits if limit is not None) for limits in (sizes, images)))


def provider_budgets(family: str, window: int = 0) -> Budgets:
    """What a provider is documented to accept.

    Anthropic: 32 MB (its API overview), and 100 images, 600 for models with more than 200,000 tokens of window (its
    vision guide). OpenAI: 512 MB and 1,500 images (its guide to images; the older 50 MB and 500
    are gone from it). Nothing is known of others.
    """
    if family == "anthropic":
        return Budgets(body=32_000_000, images=600 if window > _LARGEST_200K else 100)
    if family == "openai":
        return Budgets(body=512_000_000, images=1_500)
    return Budgets()
