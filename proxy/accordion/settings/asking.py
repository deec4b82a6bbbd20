"""Models that are asked about memories in place of the static embedding."""

from __future__ import annotations

from accordion.settings.base import Count, Name, Seconds, Section
from accordion.settings.kinds import BaseUrl, Secret


class AskedModel(Section, frozen=True):
    """One of `model_list` or, where `api_base` is given, any at that place."""

    model: Name
    api_base: BaseUrl | None = None
    api_key: Secret = Secret()
    timeout_seconds: Seconds = 5.0
    max_characters: Count = 2_000


class EmbeddingModel(AskedModel, frozen=True):
    """A model that makes vectors."""

    dimensions: Count | None = None
