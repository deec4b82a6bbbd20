"""The `memory` section."""

from __future__ import annotations

from typing import Annotated

import msgspec

from accordion.config.base import ConfigSection, Count, Name, Seconds, Share
from accordion.config.value_types import BaseUrl, Secret

RULES = "rules"
"""The value of `memory.writer` for the rules. Any other value is the name of a model."""


class EndpointModel(ConfigSection, frozen=True):
    """A model of `model_list` or, with `api_base`, any model at that URL."""

    model: Name
    api_base: BaseUrl | None = None
    api_key: Secret = Secret()
    timeout_seconds: Seconds = 5.0
    max_characters: Count = 2_000


class EmbeddingModel(EndpointModel, frozen=True):
    """A model that computes embeddings."""

    dimensions: Count | None = None


class MemoryRecallConfig(ConfigSection, frozen=True):
    """Automatic recall: the limits of a turn's memories, their least relevance, and the longest wait."""

    enabled: bool = False
    tokens: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 800
    memories: Annotated[int, msgspec.Meta(ge=1, le=20)] = 3
    relevance: Share = 0.8
    wait_seconds: Annotated[float, msgspec.Meta(gt=0, le=30)] = 0.5
    all_projects: bool = False


class MemoryConfig(ConfigSection, frozen=True):
    """The `memory` section.

    `project` is the project of calls that name none (empty: none). With `after_fold`, compactions write memories.
    """

    enabled: bool = True
    project: Annotated[str, msgspec.Meta(max_length=200)] = ""
    after_fold: bool = False
    writer: Name = RULES
    recall: MemoryRecallConfig = MemoryRecallConfig()
    embeddings: EmbeddingModel | None = None
    rerank: EndpointModel | None = None

    @property
    def model(self) -> str:
        """The model that writes memories; empty if the rules do."""
        return "" if self.writer == RULES else self.writer

    def endpoint_models(self) -> tuple[tuple[str, EndpointModel], ...]:
        """Returns the configured endpoint models with their keys."""
        models: tuple[tuple[str, EndpointModel | None], ...] = (
            ("embeddings", self.embeddings),
            ("rerank", self.rerank),
        )
        return tuple((name, model) for name, model in models if model is not None)
