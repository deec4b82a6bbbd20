"""Vectors and relevance come from configured endpoints; where these fail, the static embedding's stand in, and vectors
of both never meet."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from accordion.features.memory.memories import Memory, MemoryChange, MemoryFilter, SearchCandidate
from accordion.features.memory.store.embedding_endpoint import EmbeddingEndpoint, EmbeddingEndpoints, EndpointEmbedder
from accordion.features.memory.store.memory_index import find_nearest
from accordion.features.memory.store.static_embedder import StaticEmbedder
from accordion.features.memory.store.stored_memories import StoredMemories
from accordion.model.errors import Unreachable
from accordion.model.tenant import TenantScope
from accordion.model.words import search_terms
from accordion.providers.http.client import HttpUpstream
from accordion.providers.http.transport import AiohttpTransport
from accordion.providers.models.static_embedding import SIGN
from accordion.stores.memory_store import InMemoryStore
from tests.fakes import FakeClock, FakeReply, FakeUpstream
from tests.loopback import Answer, Loopback, Recorded, replies_json

AT = EmbeddingEndpoint("embed-1", "http://embed.test/v1", ((b"authorization", b"Bearer their-own"),))
RERANK = EmbeddingEndpoint("rerank-1", "http://rerank.test/v1")
TEXTS = (("The dog is ill.", "Who is ill?"), ("The invoice was paid.", ""))
TENANT = TenantScope("tenant", b"tenant")


class EndpointSetup:
    """An embedder, the endpoints in force, and what went to them."""

    def __init__(
        self, *answers: Any, embeddings: EmbeddingEndpoint | None = AT, rerank: EmbeddingEndpoint | None = None
    ) -> None:
        self.upstream, self.clock = FakeUpstream(list(answers)), FakeClock()
        self.endpoints = EmbeddingEndpoints(embeddings, rerank)
        self.static = StaticEmbedder()
        self.embedder = EndpointEmbedder(self.static, self.upstream, lambda: self.endpoints, self.clock.monotonic)

    @property
    def sent(self) -> list[Any]:
        return [json.loads(request.body) for request in self.upstream.requests if isinstance(request.body, bytes)]


def build_reply(document: Any, status: int = 200) -> FakeReply:
    return FakeReply(status, pieces=(json.dumps(document).encode(),))


def vectors(*given: Sequence[float], order: Sequence[int] = ()) -> FakeReply:
    rows = [{"object": "embedding", "index": at, "embedding": list(vector)} for at, vector in enumerate(given)]
    return build_reply({"object": "list", "model": "m", "data": [rows[at] for at in order] if order else rows})


def ranks(*scores: tuple[int, float]) -> FakeReply:
    return build_reply({"id": "r", "results": [{"index": at, "relevance_score": score} for at, score in scores]})


def candidates(*texts: str) -> list[SearchCandidate]:
    return [SearchCandidate(Memory(str(at), "fact", text, author="Ann")) for at, text in enumerate(texts)]


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


# -- vectors -----------------------------------------------------------------------


async def test_texts_are_sent_together_and_their_vectors_come_back_in_their_order() -> None:
    room = EndpointSetup(vectors([0.0, 1.0, -0.5], [2.0, 0.0, 0.0], order=(1, 0)))
    first, second = await room.embedder.embed(TEXTS)
    (request,) = room.upstream.requests
    assert (request.method, request.url) == ("POST", "http://embed.test/v1/embeddings")
    assert dict(request.headers)[b"authorization"] == b"Bearer their-own"
    assert room.sent == [{"model": "embed-1", "input": ["The dog is ill.", "The invoice was paid."]}]
    assert list(memoryview(first.vector[4:]).cast("b")) == [0, 127, -64]
    assert list(memoryview(second.vector[4:]).cast("b")) == [127, 0, 0]
    assert first.vector[:4] == second.vector[:4] != SIGN


async def test_the_tokens_stay_those_of_the_static_embedding_so_that_it_can_stand_in() -> None:
    room = EndpointSetup(vectors([1.0], [1.0]))
    kept, plain = await room.embedder.embed(TEXTS), await room.static.embed(TEXTS)
    assert [each.tokens for each in kept] == [each.tokens for each in plain]


async def test_a_query_is_near_to_the_text_that_the_endpoint_puts_beside_it() -> None:
    room = EndpointSetup(vectors([1.0, 0.1], [0.1, 1.0]), vectors([0.2, 1.0]))
    kept = await room.embedder.embed(TEXTS)
    query = await room.embedder.embed_query("payment")
    assert [at for at, _ in find_nearest(query, [each.vector for each in kept], 2)] == [1, 0]


async def test_many_texts_are_sent_in_parts() -> None:
    room = EndpointSetup(vectors(*[[1.0]] * 64), vectors([-1.0]))
    kept = await room.embedder.embed([(f"Text {at}.", "") for at in range(65)])
    assert [len(each["input"]) for each in room.sent] == [64, 1]
    assert kept[64].vector[4:] == (-127).to_bytes(1, signed=True)


async def test_long_texts_are_cut_and_dimensions_are_sent_only_if_configured() -> None:
    room = EndpointSetup(vectors([1.0]), embeddings=replace(AT, longest=10, dimensions=256))
    await room.embedder.embed([("x" * 50, "")])
    assert room.sent == [{"model": "embed-1", "input": ["x" * 10], "dimensions": 256}]


async def test_of_a_long_query_the_reranker_gets_the_beginning_as_of_the_texts() -> None:
    room = EndpointSetup(ranks((0, 0.5)), embeddings=None, rerank=replace(RERANK, longest=10))
    assert await room.embedder.score_relevance("y" * 50, candidates("x" * 50)) == [0.5]
    assert (room.sent[0]["query"], room.sent[0]["documents"]) == ("y" * 10, ["Ann: xxxxx"])


async def test_a_vector_of_very_small_numbers_has_its_direction() -> None:
    room = EndpointSetup(vectors([1e-310, 0.0, -1e-310]))
    assert list(memoryview((await room.embedder.embed_query("dog"))[4:]).cast("b")) == [127, 0, -127]


async def test_vectors_of_two_models_are_never_compared() -> None:
    room = EndpointSetup(vectors([1.0, 0.0]), vectors([1.0, 0.0]), vectors([1.0, 0.0]))
    (kept,) = await room.embedder.embed(TEXTS[:1])
    assert find_nearest(await room.embedder.embed_query("dog"), [kept.vector], 1)
    room.endpoints = EmbeddingEndpoints(replace(AT, model="embed-2"))
    assert not find_nearest(await room.embedder.embed_query("dog"), [kept.vector], 1)


async def test_a_vector_of_zeros_says_nothing() -> None:
    room = EndpointSetup(vectors([0.0, 0.0]))
    assert await room.embedder.embed_query("dog") == b""


async def test_without_endpoints_nothing_is_sent() -> None:
    room = EndpointSetup(embeddings=None)
    found = candidates("The dog is ill.")
    assert await room.embedder.embed(TEXTS) == await room.static.embed(TEXTS)
    assert await room.embedder.embed_query("dog") == await room.static.embed_query("dog")
    assert await room.embedder.score_relevance("dog", found) == await room.static.score_relevance("dog", found)
    assert not room.upstream.requests


async def test_nothing_is_asked_about_no_texts() -> None:
    room = EndpointSetup(rerank=RERANK)
    assert await room.embedder.embed([]) == []
    assert await room.embedder.score_relevance("dog", []) == []
    assert not room.upstream.requests


# -- relevance ---------------------------------------------------------------------


async def test_the_rerank_endpoint_scores_candidates_in_any_order_of_its_answer() -> None:
    room = EndpointSetup(ranks((2, 0.9), (0, 0.25)), embeddings=None, rerank=RERANK)
    assert await room.embedder.score_relevance("the dog?", candidates("a", "b", "c")) == [0.25, 0.0, 0.9]
    (request,) = room.upstream.requests
    assert request.url == "http://rerank.test/v1/rerank"
    documents = ["Ann: a", "Ann: b", "Ann: c"]
    assert room.sent == [{"model": "rerank-1", "query": "the dog?", "documents": documents, "top_n": 3}]


async def test_scores_beyond_0_and_1_are_brought_between_them_in_their_order() -> None:
    room = EndpointSetup(ranks((0, -4.0), (1, 7.5), (2, 0.5)), embeddings=None, rerank=RERANK)
    scores = await room.embedder.score_relevance("dog", candidates("a", "b", "c"))
    assert 0 < scores[0] < scores[2] < scores[1] < 1


# -- what goes wrong ---------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        Unreachable("No connection to embed.test"),
        build_reply({"error": {"message": "secret text"}}, 401),
        build_reply({"data": []}),
        build_reply({"data": [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}]}),
        build_reply({"data": [{"index": 0, "embedding": []}, {"index": 1, "embedding": [1.0]}]}),
        build_reply({"data": [{"index": 0, "embedding": [None]}, {"index": 1, "embedding": [1.0]}]}),
        FakeReply(pieces=(b"<html>",)),
        FakeReply(pieces=(b" " * (1 << 20),) * 70),
    ],
    ids=["away", "refused", "too few", "twice", "empty", "no number", "no JSON", "too large"],
)
async def test_static_embeddings_replace_failed_ones_with_a_warning(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    room = EndpointSetup(answer)
    assert await room.embedder.embed(TEXTS) == await room.static.embed(TEXTS)
    (warning,) = warnings_in(caplog)
    assert "embed-1" in warning
    assert "secret text" not in warning
    assert "their-own" not in warning
    assert "dog" not in warning


@pytest.mark.parametrize(
    "answer",
    [build_reply({"results": []}), ranks((0, 0.5), (0, 0.6)), ranks((2, 0.5)), ranks((-1, 0.5)), build_reply([1])],
    ids=["nothing", "twice", "nobody", "negative", "another form"],
)
async def test_static_relevance_replaces_a_failed_rerank_with_a_warning(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    room = EndpointSetup(answer, embeddings=None, rerank=RERANK)
    kept = await room.static.embed(TEXTS)
    found = [replace(each, tokens=one.tokens) for each, one in zip(candidates("a", "b"), kept, strict=True)]
    assert await room.embedder.score_relevance("dog", found) == await room.static.score_relevance("dog", found)
    assert len(warnings_in(caplog)) == 1


async def test_an_endpoint_that_failed_is_left_alone_for_a_while_and_the_other_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    room = EndpointSetup(Unreachable("away"), ranks((0, 0.5)), vectors([1.0]), rerank=RERANK)
    assert await room.embedder.embed_query("dog") == await room.static.embed_query("dog")
    assert await room.embedder.embed_query("dog") == await room.static.embed_query("dog")
    assert len(warnings_in(caplog)) == len(room.upstream.requests) == 1
    assert await room.embedder.score_relevance("dog", candidates("a")) == [0.5]
    room.clock.advance(31)
    assert (await room.embedder.embed_query("dog"))[:4] != SIGN


async def test_a_reply_is_always_let_go() -> None:
    answers = [vectors([1.0]), build_reply({}, 500)]
    room = EndpointSetup(*answers)
    await room.embedder.embed_query("dog")
    await room.embedder.embed_query("dog")
    assert [answer.closed for answer in answers] == [True, True]


def test_an_endpoints_headers_are_never_shown() -> None:
    assert "their-own" not in repr(AT)


# -- on the wire, and in the store -------------------------------------------------


@pytest.fixture
async def http(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HttpUpstream]:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    upstream = HttpUpstream(AiohttpTransport())
    yield upstream
    await upstream.close()


async def _models(request: Recorded, answer: Answer) -> None:
    """Puts what speaks of animals to one side."""
    asked = request.json()
    near = [[1.0, 0.0] if "dog" in text or "puppy" in text else [0.0, 1.0] for text in asked.get("input", ())]
    data = [{"index": at, "embedding": vector} for at, vector in enumerate(near)]
    results = [
        {"index": at, "relevance_score": float("dog" in text)} for at, text in enumerate(asked.get("documents", ()))
    ]
    body = json.dumps({"data": data} if request.target == "/v1/embeddings" else {"results": results}).encode()
    await answer.head(200, [("Content-Type", "application/json")], length=len(body))
    await answer.send(body)


def embedder_at(url: str, http: HttpUpstream, **more: Any) -> EndpointEmbedder:
    at = EmbeddingEndpoint("animals", f"{url}/v1", **more)
    return EndpointEmbedder(StaticEmbedder(), http, lambda: EmbeddingEndpoints(at, at), FakeClock().monotonic)


async def test_a_store_finds_by_vectors_and_finds_another_embedders_memories_by_words(
    http: HttpUpstream,
) -> None:
    async with Loopback(_models) as server:
        embedder = embedder_at(server.url, http)
        kept = InMemoryStore()
        store = StoredMemories(kept, StaticEmbedder())
        await store.write(TENANT, MemoryChange(put=(Memory("old", "fact", "A puppy came.", created=1.0),)))
        store = StoredMemories(kept, embedder)
        new = (
            Memory("dog", "fact", "The dog is ill.", created=2.0),
            Memory("paid", "fact", "It was paid.", created=3.0),
        )
        await store.write(TENANT, MemoryChange(put=new))
        vector = await embedder.embed_query("puppy")
        by_vector = await store.find_candidates(TENANT, (), vector, MemoryFilter(), pool=9)
        by_both = await store.find_candidates(TENANT, search_terms("puppy"), vector, MemoryFilter(), pool=9)
        scores = await embedder.score_relevance("puppy", by_both)
    assert [each.memory.id for each in by_vector] == ["dog"]
    assert {each.memory.id: score for each, score in zip(by_both, scores, strict=True)} == {"dog": 1.0, "old": 0.0}


async def test_an_endpoint_that_is_silent_is_not_waited_for(
    http: HttpUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    async def silent(request: Recorded, answer: Answer) -> None:
        await answer.until_gone()

    async with Loopback(silent) as server:
        vector = await embedder_at(server.url, http, timeout=0.05).embed_query("dog")
    assert vector[:4] == SIGN
    assert "no answer within 0.05 s" in warnings_in(caplog)[0]


async def test_a_compressed_answer_is_refused_rather_than_misread(
    http: HttpUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"data": [{"index": 0, "embedding": [1.0]}]}
    async with Loopback(replies_json(body, encoding="gzip")) as server:
        vector = await embedder_at(server.url, http).embed_query("dog")
        assert server.requests[0].header("accept-encoding") == "identity"
    assert vector[:4] == SIGN
    assert len(warnings_in(caplog)) == 1
