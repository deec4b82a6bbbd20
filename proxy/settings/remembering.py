"""What outlives conversations."""

from __future__ import annotations

from typing import Annotated

import msgspec

from proxy.settings.asking import AskedModel, EmbeddingModel
from proxy.settings.base import Section


class Remembering(Section, frozen=True):
    """Whether there are memories, the project that is meant where a call names none (empty: none), and whether folds
    leave memories."""

    enabled: bool = True
    project: Annotated[str, msgspec.Meta(max_length=200)] = ""
    after_fold: bool = False
    embeddings: EmbeddingModel | None = None
    rerank: AskedModel | None = None

    def asked(self) -> tuple[tuple[str, AskedModel], ...]:
        """The models that are asked, each under the name of its key."""
        both: tuple[tuple[str, AskedModel | None], ...] = (("embeddings", self.embeddings), ("rerank", self.rerank))
        return tuple((name, model) for name, model in both if model is not None)
