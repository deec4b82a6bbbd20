"""Embeddings and relevance of models that the config names; where these fail, the static embedding's stand in.

`POST …/embeddings` is OpenAI's, `POST …/rerank` Cohere's and Jina's; LiteLLM, vLLM and others serve both. Memories are
sent there with the endpoint's own key, whichever tenant they are of.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import field
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from accordion.core.errors import AccordionError
from accordion.core.memories import Candidate, Embedded, Embedder, embedding_text
from accordion.core.ports import Headers, Upstream, UpstreamRequest
from accordion.core.values import dataclass, replace
from accordion.models.embedder import packed

T = TypeVar("T")

_log = logging.getLogger("accordion")

_AT_ONCE: Final = 64
"""Texts of one request."""
_PAUSE: Final = 30.0
"""Seconds for which an endpoint that failed is not asked: a search must not wait for it each time."""
_LARGEST: Final = 32 << 20
_HEADERS: Final = ((b"content-type", b"application/json"), (b"accept-encoding", b"identity"))


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A model and where it is asked. `base` is what stands before `/embeddings` or `/rerank`, `timeout` is in seconds.
    Of each text the first `longest` characters are sent; `dimensions` are asked for where they are not 0."""

    model: str
    base: str
    headers: Headers = field(default=(), repr=False)
    timeout: float = 5.0
    longest: int = 2_000
    dimensions: int = 0

    @property
    def sign(self) -> bytes:
        """What this model's vectors begin with."""
        return hashlib.sha256(f"embedding {self.model}".encode()).digest()[:4]


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Who is asked for vectors and for relevance; None: the static embedding."""

    embeddings: Endpoint | None = None
    rerank: Endpoint | None = None


class EndpointEmbedder:
    """An Embedder that asks the endpoints in force. What they cannot answer `static` does, with a warning.

    What is kept of a text begins with its model's sign, so that vectors of two models never meet: a text that was
    embedded by another is found by its words. The tokens are always the static ones, for when its relevance stands in.
    """

    def __init__(
        self,
        static: Embedder,
        upstream: Upstream,
        endpoints: Callable[[], Endpoints],
        monotonic: Callable[[], float],
        offload: Callable[..., Any] = asyncio.to_thread,
    ) -> None:
        self._static, self._upstream, self._endpoints = static, upstream, endpoints
        self._monotonic, self._offload = monotonic, offload
        self._paused: dict[str, float] = {}

    async def embed(self, texts: Sequence[tuple[str, str]]) -> list[Embedded]:
        """See the port. An endpoint gets the texts without their context."""
        kept = await self._static.embed(texts)
        found = await self._vectors([text for text, _ in texts])
        if found is None:
            return kept
        return [replace(each, vector=vector) for each, vector in zip(kept, found, strict=True)]

    async def query(self, text: str) -> bytes:
        """See the port."""
        found = await self._vectors([text])
        return found[0] if found is not None else await self._static.query(text)

    async def relevance(self, query: str, candidates: Sequence[Candidate]) -> list[float]:
        """See the port."""
        endpoint, found = self._endpoints().rerank, None
        if endpoint is not None and candidates:
            documents = [embedding_text(each.memory)[0][: endpoint.longest] for each in candidates]
            asked = {
                "model": endpoint.model,
                "query": query[: endpoint.longest],
                "documents": documents,
                "top_n": len(documents),
            }
            found = await self._asked(endpoint, "/rerank", asked, partial(_scores, count=len(documents)))
        return found if found is not None else await self._static.relevance(query, candidates)

    async def _vectors(self, texts: Sequence[str]) -> list[bytes] | None:
        """The vectors of the texts; None where they cannot be had."""
        endpoint = self._endpoints().embeddings
        if endpoint is None:
            return None
        found: list[bytes] = []
        for at in range(0, len(texts), _AT_ONCE):
            part = [text[: endpoint.longest] for text in texts[at : at + _AT_ONCE]]
            asked: dict[str, Any] = {"model": endpoint.model, "input": part}
            if endpoint.dimensions:
                asked["dimensions"] = endpoint.dimensions
            read = partial(_read, count=len(part), sign=endpoint.sign)
            made = await self._asked(endpoint, "/embeddings", asked, read)
            if made is None:
                return None
            found += made
        return found

    async def _asked(
        self, endpoint: Endpoint, path: str, document: dict[str, Any], read: Callable[[bytes], T]
    ) -> T | None:
        """What `read` makes of the answer, in a thread; None, with a warning, where there is none to be had."""
        url = endpoint.base + path
        if self._monotonic() < self._paused.get(url, -math.inf):
            return None
        try:
            async with asyncio.timeout(endpoint.timeout):
                raw = await self._answer(url, endpoint.headers, msgspec.json.encode(document))
            found: T = await self._offload(read, raw)
            return found
        except TimeoutError:
            why = f"no answer within {endpoint.timeout:g} s"
        except AccordionError as error:
            why = error.message
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            why = f"its answer is not as it should be: {error}"
        self._paused[url] = self._monotonic() + _PAUSE
        _log.warning(
            "%s of memories could not be had of model %s (%s). The static embedding stands in; it is asked again in "
            "%d s.",
            "Relevance" if path == "/rerank" else "Embeddings", endpoint.model, why, _PAUSE,
        )  # fmt: skip
        return None

    async def _answer(self, url: str, headers: Headers, body: bytes) -> bytes:
        """The body of an answer. Raises AccordionError, and ValueError for one of another status or size."""
        reply = await self._upstream.send(UpstreamRequest("POST", url, (*headers, *_HEADERS), body))
        try:
            if reply.status != 200:
                raise ValueError(f"status {reply.status}")
            held = bytearray()
            async with aclosing(reply.chunks()) as chunks:
                async for chunk in chunks:
                    held += chunk
                    if len(held) > _LARGEST:
                        raise ValueError("it is too large")
            return bytes(held)
        finally:
            await reply.close()


class _Vector(msgspec.Struct):
    index: int
    embedding: list[float]


class _Vectors(msgspec.Struct):
    data: list[_Vector]


class _Rank(msgspec.Struct):
    index: int
    relevance_score: float


class _Ranks(msgspec.Struct):
    results: list[_Rank]


def _read(raw: bytes, count: int, sign: bytes) -> list[bytes]:
    """The vectors of an answer in the order of their texts, as the store keeps them. Raises ValueError."""
    found = {each.index: each.embedding for each in msgspec.json.decode(raw, type=_Vectors).data}
    if sorted(found) != list(range(count)) or not all(found.values()):
        raise ValueError("there is not one vector for each text")
    import numpy  # noqa: PLC0415  # slow to import, and not wanted by all

    return [packed(sign, numpy.array(found[at], numpy.float64)) for at in range(count)]


def _scores(raw: bytes, count: int) -> list[float]:
    """How relevant each candidate is, from 0 to 1; one that is not named is not. Raises ValueError."""
    given = msgspec.json.decode(raw, type=_Ranks).results
    found = {each.index: each.relevance_score for each in given}
    if not found or len(found) < len(given) or not all(0 <= at < count for at in found):
        raise ValueError("it does not rank the texts that it was given")
    if min(found.values()) < 0 or max(found.values()) > 1:
        # Some servers give what a model says before it is brought between 0 and 1.
        found = {at: _logistic(score) for at, score in found.items()}
    return [found.get(at, 0.0) for at in range(count)]


def _logistic(value: float) -> float:
    return 1 / (1 + math.exp(-max(-60.0, min(60.0, value))))
