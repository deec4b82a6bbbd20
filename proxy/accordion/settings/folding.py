"""What is folded, by which strategies, who writes summaries, and what providers accept beside tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, cast

import msgspec

from accordion.compaction.case import Budgets
from accordion.compaction.strategies.summarize import SummarizeOptions
from accordion.settings.base import Name, Section
from accordion.settings.kinds import Mode, Size
from accordion.settings.pipelines import DEFAULT_PIPELINE, Strategy

ModeName = Literal["auto", "observe", "off"]
Images = Annotated[int, msgspec.Meta(ge=0, le=10**6)]
_LARGEST_200K = 200_000
_CLAUDE_BODIES = {"anthropic": 32_000_000, "bedrock": 20_000_000, "vertex_ai": 30_000_000}

WRITERS = ("request", "extractive")
"""Words for `summaries.writer`; any other is the name of a model."""


class AgentCompaction(Section, frozen=True):
    """Folding of one kind of agent's requests; what is left out is as in the next more general place."""

    mode: Mode | None = None
    pipeline: tuple[Strategy, ...] | None = None


class ModelCompaction(AgentCompaction, frozen=True):
    """Folding of one model's requests."""

    delegated: AgentCompaction = AgentCompaction()


class Compaction(Section, frozen=True):
    """Whether requests are folded, and by which strategies."""

    mode: Mode = Mode("auto")
    pipeline: tuple[Strategy, ...] = DEFAULT_PIPELINE
    pinned_tools: tuple[Name, ...] = ()
    delegated: AgentCompaction = AgentCompaction()
    models: dict[str, ModelCompaction] = msgspec.field(default_factory=dict)

    def mode_of(self, model: str, *, delegated: bool = False) -> ModeName:
        """Whether requests for the model that clients call `model` are folded; `delegated` for a sub-agent's."""
        stated = (place.mode for place in self._places(model, delegated=delegated) if place.mode is not None)
        return cast(ModeName, str(next(stated, self.mode)))

    def pipeline_of(self, model: str, *, delegated: bool = False) -> tuple[tuple[str, object], ...]:
        """Its strategies in order: names, and options of the types that `compaction.strategies` registers."""
        stated = (place.pipeline for place in self._places(model, delegated=delegated) if place.pipeline is not None)
        return tuple((strategy.name, strategy.options) for strategy in next(stated, self.pipeline))

    def writer_of(self, model: str, *, delegated: bool = False) -> str:
        """The model that its pipeline names for summaries; empty where `summaries` says who writes them."""
        pipeline = self.pipeline_of(model, delegated=delegated)
        options = (options for _, options in pipeline if isinstance(options, SummarizeOptions))
        return next((each.model or "" for each in options), "")

    def _places(self, model: str, *, delegated: bool) -> Iterator[AgentCompaction]:
        """Where something of its own may be said, the most particular place first, as with thresholds."""
        own = self.models.get(model)
        if own is not None:
            if delegated:
                yield own.delegated
            yield own
        if delegated:
            yield self.delegated


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

    def of(self, model: str, provider: str, window: int = 0) -> Budgets:
        """The limits for the model that clients call `model`, whose provider is `provider` (see `provider_budgets`) and
        window of `window` tokens (0: unknown)."""
        own, known = self.models.get(model, self), provider_budgets(provider, window)
        sizes = (own.max_body_bytes, self.max_body_bytes, known.body)
        images = (own.max_images, self.max_images, known.images)
        return Budgets(*(next(limit for limit in limits if limit is not None) for limits in (sizes, images)))


def provider_budgets(provider: str, window: int = 0) -> Budgets:
    """What a provider is documented to accept: `anthropic` or who speaks its protocol, `openai` likewise, `bedrock` and
    `vertex_ai` for their Claude models.

    Anthropic: 32 MB, 20 on Bedrock, 30 on Vertex AI (its API overview), and 100 images, 600 for models with more than
    200,000 tokens of window (its vision guide). OpenAI: 512 MB and 1,500 images (its guide to images; the older 50 MB
    and 500 are gone from it). Nothing is known of others.
    """
    if provider in _CLAUDE_BODIES:
        return Budgets(body=_CLAUDE_BODIES[provider], images=600 if window > _LARGEST_200K else 100)
    if provider == "openai":
        return Budgets(body=512_000_000, images=1_500)
    return Budgets()
