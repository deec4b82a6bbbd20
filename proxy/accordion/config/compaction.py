"""The sections `compaction`, `summaries` and `budgets`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, cast

import msgspec

from accordion.compaction.request import RequestBudgets
from accordion.config.base import ConfigSection, Name
from accordion.config.pipelines import DEFAULT_PIPELINE, PipelineEntry
from accordion.config.value_types import CompactionMode, Size

ModeName = Literal["auto", "observe", "off"]
Images = Annotated[int, msgspec.Meta(ge=0, le=10**6)]
_LARGEST_200K = 200_000
_CLAUDE_BODIES = {"anthropic": 32_000_000, "bedrock": 20_000_000, "vertex_ai": 30_000_000}

WRITERS = ("request", "extractive")
"""The fixed values of `summaries.writer`. Any other value is the name of a model."""


class AgentCompaction(ConfigSection, frozen=True):
    """Compaction for one kind of agent. Omitted keys have the value of the next more general section."""

    mode: CompactionMode | None = None
    pipeline: tuple[PipelineEntry, ...] | None = None


class ModelCompaction(AgentCompaction, frozen=True):
    """Compaction for one model."""

    delegated: AgentCompaction = AgentCompaction()


class CompactionConfig(ConfigSection, frozen=True):
    """The `compaction` section: whether requests are compacted, and by which strategies."""

    mode: CompactionMode = CompactionMode("auto")
    pipeline: tuple[PipelineEntry, ...] = DEFAULT_PIPELINE
    pinned_tools: tuple[Name, ...] = ()
    delegated: AgentCompaction = AgentCompaction()
    models: dict[str, ModelCompaction] = msgspec.field(default_factory=dict)

    def mode_of(self, model: str, *, delegated: bool = False) -> ModeName:
        """Returns the mode for a model by the clients' name; `delegated` for requests of sub-agents."""
        modes = (section.mode for section in self._sections(model, delegated=delegated) if section.mode is not None)
        return cast(ModeName, str(next(modes, self.mode)))

    def pipeline_of(self, model: str, *, delegated: bool = False) -> tuple[PipelineEntry, ...]:
        """Returns a model's strategies in order."""
        sections = self._sections(model, delegated=delegated)
        pipelines = (section.pipeline for section in sections if section.pipeline is not None)
        return next(pipelines, self.pipeline)

    def writer_of(self, model: str, *, delegated: bool = False) -> str:
        """Returns the model that the pipeline sets for summaries; empty if the `summaries` section decides."""
        models = (entry.build().summary_model for entry in self.pipeline_of(model, delegated=delegated))
        return next((each for each in models if each is not None), "")

    def _sections(self, model: str, *, delegated: bool) -> Iterator[AgentCompaction]:
        """Yields the sections that may override the general one, the most specific first, as with thresholds."""
        own = self.models.get(model)
        if own is not None:
            if delegated:
                yield own.delegated
            yield own
        if delegated:
            yield self.delegated


class SummariesConfig(ConfigSection, frozen=True):
    """The `summaries` section: the writer, and the longest wait for it."""

    writer: Name = "request"
    wait_seconds: Annotated[float, msgspec.Meta(ge=0, le=3_600)] = 20.0
    max_concurrent: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 8

    @property
    def model(self) -> str:
        """The configured model that writes summaries; empty if there is none."""
        return "" if self.writer in WRITERS else self.writer


class ModelBudgets(ConfigSection, frozen=True):
    """The limits of one model's provider. Omitted keys have the value for all models."""

    max_body_bytes: Size | None = None
    max_images: Images | None = None


class AllBudgets(ModelBudgets, frozen=True):
    """The `budgets` section: the providers' limits beside tokens; 0: no limit."""

    models: dict[str, ModelBudgets] = msgspec.field(default_factory=dict)

    def of(self, model: str, provider: str, window: int = 0) -> RequestBudgets:
        """Returns the limits of a model by the clients' name.

        `provider` is a name for `provider_budgets`, `window` is in tokens (0: unknown).
        """
        own, documented = self.models.get(model, self), provider_budgets(provider, window)
        sizes = (own.max_body_bytes, self.max_body_bytes, documented.max_body_bytes)
        images = (own.max_images, self.max_images, documented.max_images)
        return RequestBudgets(*(next(limit for limit in limits if limit is not None) for limits in (sizes, images)))


def provider_budgets(provider: str, window: int = 0) -> RequestBudgets:
    """Returns a provider's documented limits.

    `provider` is `anthropic` or `openai`, for compatible servers too, or `bedrock` or `vertex_ai` for Claude models.
    Anthropic: 32 MB, 20 on Bedrock, 30 on Vertex AI (its API overview), and 100 images, 600 for models with more than
    200,000 tokens of window (its vision guide). OpenAI: 512 MB and 1,500 images (its guide to images; the older 50 MB
    and 500 are no longer in it). Other providers have no known limits.
    """
    if provider in _CLAUDE_BODIES:
        return RequestBudgets(
            max_body_bytes=_CLAUDE_BODIES[provider], max_images=600 if window > _LARGEST_200K else 100
        )
    if provider == "openai":
        return RequestBudgets(max_body_bytes=512_000_000, max_images=1_500)
    return RequestBudgets()
