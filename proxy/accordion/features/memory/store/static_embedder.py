"""The static embedding (providers/models/static_embedding.py) as the embedder of memories."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from accordion.features.memory.memories import Embedding, SearchCandidate
from accordion.providers.models.static_embedding import load_table


class StaticEmbedder:
    """An Embedder without network. It loads at first use, in a thread: 0.25 s, and some 60 MB with its libraries.

    `offload` runs a function in a thread. Raises ImportError if numpy or tokenizers are missing.
    """

    def __init__(self, offload: Callable[..., Any] = asyncio.to_thread) -> None:
        self._offload = offload

    async def embed(self, texts: Sequence[tuple[str, str]]) -> list[Embedding]:
        """See the port."""
        embeddings: list[Embedding] = await self._offload(_embed_all, tuple(texts))
        return embeddings

    async def embed_query(self, text: str) -> bytes:
        """See the port."""
        embedding: Embedding = (await self._offload(_embed_all, ((text, ""),)))[0]
        return embedding.vector

    async def score_relevance(self, query: str, candidates: Sequence[SearchCandidate]) -> list[float]:
        """See the port."""
        scores: list[float] = await self._offload(_relevance, query, [candidate.tokens for candidate in candidates])
        return scores

    @property
    def least_relevance(self) -> float:
        """See the port. With it, recall on recorded questions is the same (bench/README.md)."""
        return 0.55


def _embed_all(texts: Sequence[tuple[str, str]]) -> list[Embedding]:
    table = load_table()
    return [Embedding(*table.embed(text, context)) for text, context in texts]


def _relevance(query: str, tokens: Sequence[bytes]) -> list[float]:
    return load_table().relevance(query, tokens)
