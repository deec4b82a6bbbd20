"""Embeddings and relevance scores from configured endpoints, with the static embedding as the fallback.

`POST …/embeddings` is OpenAI's, `POST …/rerank` Cohere's and Jina's; LiteLLM, vLLM and others serve both. The memories
of all tenants are sent there with the endpoint's own key.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from accordion.features.memory.memories import Embedder, Embedding, SearchCandidate, embedding_text
from accordion.model.errors import AccordionError
from accordion.model.hidden_fields import StructWithHiddenFields
from accordion.model.ports import Headers, Upstream, UpstreamRequest
from accordion.providers.models.static_embedding import pack_vector

T = TypeVar("T")

_log = logging.getLogger("accordion")

_BATCH_SIZE: Final = 64
"""Texts in one request."""
_PAUSE: Final = 30.0
"""Seconds without requests after a failure, so that not every search waits for a broken endpoint."""
_MAX_RESPONSE_BYTES: Final = 32 << 20
_HEADERS: Final = ((b"content-type", b"application/json"), (b"accept-encoding", b"identity"))


class EmbeddingEndpoint(StructWithHiddenFields, frozen=True):
    """A model's endpoint. `base` is the URL before `/embeddings` or `/rerank`; `timeout` is in seconds.

    The first `longest` characters of each text are sent. `dimensions` is sent unless it is 0.
    """

    hidden_fields = frozenset({"headers"})

    model: str
    base: str
    headers: Headers = ()
    timeout: float = 5.0
    longest: int = 2_000
    dimensions: int = 0

    @property
    def sign(self) -> bytes:
        """The prefix of this model's vectors."""
        return hashlib.sha256(f"embedding {self.model}".encode()).digest()[:4]


class EmbeddingEndpoints(msgspec.Struct, frozen=True):
    """The endpoints for vectors and for relevance; None: the static embedding."""

    embeddings: EmbeddingEndpoint | None = None
    rerank: EmbeddingEndpoint | None = None


class EndpointEmbedder:
    """An Embedder that calls the configured endpoints. If one fails, it logs a warning and calls `static`.

    A stored vector begins with its model's sign, so that vectors of two models are never compared: a text that another
    model embedded is found by its words. The tokens are always the static embedding's, since its relevance may be used.
    """

    def __init__(
        self,
        static: Embedder,
        upstream: Upstream,
        endpoints: Callable[[], EmbeddingEndpoints],
        monotonic: Callable[[], float],
        offload: Callable[..., Any] = asyncio.to_thread,
    ) -> None:
        self._static, self._upstream, self._endpoints = static, upstream, endpoints
        self._monotonic, self._offload = monotonic, offload
        self._paused_until: dict[str, float] = {}

    async def embed(self, texts: Sequence[tuple[str, str]]) -> list[Embedding]:
        """See the port. An endpoint gets the texts without their context."""
        embeddings = await self._static.embed(texts)
        vectors = await self._vectors([text for text, _ in texts])
        if vectors is None:
            return embeddings
        return [replace(embedding, vector=vector) for embedding, vector in zip(embeddings, vectors, strict=True)]

    async def embed_query(self, text: str) -> bytes:
        """See the port."""
        vectors = await self._vectors([text])
        return vectors[0] if vectors is not None else await self._static.embed_query(text)

    async def score_relevance(self, query: str, candidates: Sequence[SearchCandidate]) -> list[float]:
        """See the port."""
        endpoint, scores = self._endpoints().rerank, None
        if endpoint is not None and candidates:
            documents = [embedding_text(each.memory)[0][: endpoint.longest] for each in candidates]
            document = {
                "model": endpoint.model,
                "query": query[: endpoint.longest],
                "documents": documents,
                "top_n": len(documents),
            }
            scores = await self._request(endpoint, "/rerank", document, partial(_read_scores, count=len(documents)))
        return scores if scores is not None else await self._static.score_relevance(query, candidates)

    @property
    def least_relevance(self) -> float:
        """See the port. With a model of the operator's, its scale is not known."""
        endpoints = self._endpoints()
        return self._static.least_relevance if endpoints.embeddings is None and endpoints.rerank is None else 0.0

    async def _vectors(self, texts: Sequence[str]) -> list[bytes] | None:
        """Returns the vectors of the texts; None if there is no endpoint or it failed."""
        endpoint = self._endpoints().embeddings
        if endpoint is None:
            return None
        vectors: list[bytes] = []
        for index in range(0, len(texts), _BATCH_SIZE):
            part = [text[: endpoint.longest] for text in texts[index : index + _BATCH_SIZE]]
            document: dict[str, Any] = {"model": endpoint.model, "input": part}
            if endpoint.dimensions:
                document["dimensions"] = endpoint.dimensions
            read = partial(_read_vectors, count=len(part), sign=endpoint.sign)
            batch = await self._request(endpoint, "/embeddings", document, read)
            if batch is None:
                return None
            vectors += batch
        return vectors

    async def _request(
        self, endpoint: EmbeddingEndpoint, path: str, document: dict[str, Any], read: Callable[[bytes], T]
    ) -> T | None:
        """Posts a document and returns the result of `read`, called in a thread; None, with a warning, on failure."""
        url = endpoint.base + path
        if self._monotonic() < self._paused_until.get(url, -math.inf):
            return None
        try:
            async with asyncio.timeout(endpoint.timeout):
                raw = await self._post(url, endpoint.headers, msgspec.json.encode(document))
            result: T = await self._offload(read, raw)
            return result
        except TimeoutError:
            reason = f"no answer within {endpoint.timeout:g} s"
        except AccordionError as error:
            reason = error.message
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            reason = f"its answer is not as it should be: {error}"
        self._paused_until[url] = self._monotonic() + _PAUSE
        _log.warning(
            "%s of memories could not be fetched from model %s (%s). The static embedding is used; the next attempt is "
            "in %d s.",
            "Relevance" if path == "/rerank" else "Embeddings", endpoint.model, reason, _PAUSE,
        )  # fmt: skip
        return None

    async def _post(self, url: str, headers: Headers, body: bytes) -> bytes:
        """Returns the body of a response. Raises AccordionError, and ValueError for a wrong status or size."""
        response = await self._upstream.send(UpstreamRequest("POST", url, (*headers, *_HEADERS), body))
        try:
            if response.status != 200:
                raise ValueError(f"status {response.status}")
            content = bytearray()
            async with aclosing(response.chunks()) as chunks:
                async for chunk in chunks:
                    content += chunk
                    if len(content) > _MAX_RESPONSE_BYTES:
                        raise ValueError("it is too large")
            return bytes(content)
        finally:
            await response.close()


class _VectorRow(msgspec.Struct):
    index: int
    embedding: list[float]


class _VectorResponse(msgspec.Struct):
    data: list[_VectorRow]


class _RankRow(msgspec.Struct):
    index: int
    relevance_score: float


class _RankResponse(msgspec.Struct):
    results: list[_RankRow]


def _read_vectors(raw: bytes, count: int, sign: bytes) -> list[bytes]:
    """Returns the vectors of a response in the order of their texts, in the stored form. Raises ValueError."""
    numbers = {row.index: row.embedding for row in msgspec.json.decode(raw, type=_VectorResponse).data}
    if sorted(numbers) != list(range(count)) or not all(numbers.values()):
        raise ValueError("there is not one vector for each text")
    import numpy  # noqa: PLC0415  # slow to import, and not needed by all

    return [pack_vector(sign, numpy.array(numbers[index], numpy.float64)) for index in range(count)]


def _read_scores(raw: bytes, count: int) -> list[float]:
    """Returns the relevance of each candidate, from 0 to 1; 0 if the response leaves it out. Raises ValueError."""
    rows = msgspec.json.decode(raw, type=_RankResponse).results
    scores = {row.index: row.relevance_score for row in rows}
    if not scores or len(scores) < len(rows) or not all(0 <= index < count for index in scores):
        raise ValueError("it does not rank the texts that it was given")
    if min(scores.values()) < 0 or max(scores.values()) > 1:
        # Some servers return the model's raw scores (logits).
        scores = {index: _logistic(score) for index, score in scores.items()}
    return [scores.get(index, 0.0) for index in range(count)]


def _logistic(value: float) -> float:
    return 1 / (1 + math.exp(-max(-60.0, min(60.0, value))))
