"""What outlives conversations."""

from __future__ import annotations

from typing import Annotated

import msgspec

from accordion.settings.asking import AskedModel, EmbeddingModel
from accordion.settings.base import Name, Section, Share

RULES = "rules"
"""A word for `memory.writer`; any other is the name of a model."""


class Recollections(Section, frozen=True):
    """Whether turns are given memories unasked, how much of how many, how relevant they must be, how long a request
    waits for them, and whether those of all projects are meant."""

    enabled: bool = False
    tokens: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 800
    memories: Annotated[int, msgspec.Meta(ge=1, le=20)] = 3
    relevance: Share = 0.8
    wait_seconds: Annotated[float, msgspec.Meta(gt=0, le=30)] = 0.5
    all_projects: bool = False


class Remembering(Section, frozen=True):
    """Whether there are memories, the project that is meant where a call names none (empty: none), whether folds leave
    memories, who writes those of conversations, and whether they are recalled unasked."""

    enabled: bool = True
    project: Annotated[str, msgspec.Meta(max_length=200)] = ""
    after_fold: bool = False
    writer: Name = RULES
    recall: Recollections = Recollections()
    embeddings: EmbeddingModel | None = None
    rerank: AskedModel | None = None

    @property
    def model(self) -> str:
        """The model that is configured to write; empty where rules do."""
        return "" if self.writer == RULES else self.writer

    def asked(self) -> tuple[tuple[str, AskedModel], ...]:
        """The models that are asked, each under the name of its key."""
        both: tuple[tuple[str, AskedModel | None], ...] = (("embeddings", self.embeddings), ("rerank", self.rerank))
        return tuple((name, model) for name, model in both if model is not None)
