from __future__ import annotations

import json
from typing import Any

import pytest

from accordion.composition.application import Application
from accordion.config import Settings, find_hints
from accordion.config.load import build
from accordion.features.memory.memories import Memory, MemoryChange
from accordion.features.memory.memory_parts import build_endpoints
from accordion.features.memory.search.memory_search import SearchQuery
from accordion.features.memory.store.embedding_endpoint import EmbeddingEndpoint, EmbeddingEndpoints
from accordion.model.errors import ConfigError
from accordion.model.tenant import TenantScope
from tests.features.memory.running import running_memory
from tests.loopback import Answer, Loopback, Recorded

TENANT = TenantScope("tenant", b"key")

LISTED = (
    "model_list: [{model_name: vectors, litellm_params: {model: openai/text-embedding-3-small, api_key: k-1, "
    "extra_headers: {X-Team: a}}}, {model_name: own, litellm_params: {model: hosted_vllm/bge, "
    "api_base: 'http://here.test/v1/'}}, {model_name: far, litellm_params: {model: bedrock/titan}}, "
    "{model_name: keyless, litellm_params: {model: openai/gpt-4o}}]\n"
)


def read(text: str) -> Settings:
    return build(text.encode(), {}, {})


def test_without_a_word_nobody_is_asked() -> None:
    assert build_endpoints(read(LISTED)) == EmbeddingEndpoints()


def test_a_model_of_the_list_is_asked_at_its_own_place_with_its_own_key() -> None:
    found = build_endpoints(
        read(LISTED + "memory: {embeddings: {model: vectors, dimensions: 256}, rerank: {model: own}}")
    )
    headers = ((b"x-team", b"a"), (b"authorization", b"Bearer k-1"))
    assert found.embeddings == EmbeddingEndpoint(
        "text-embedding-3-small", "https://api.openai.com/v1", headers, dimensions=256
    )
    assert found.rerank == EmbeddingEndpoint("bge", "http://here.test/v1")


def test_with_a_base_of_its_own_the_list_is_not_looked_at() -> None:
    text = "{model: vectors, api_base: 'http://there.test/v2/', api_key: k-2, timeout_seconds: 1, max_characters: 9}"
    found = build_endpoints(read(f"{LISTED}memory: {{rerank: {text}}}")).rerank
    assert found == EmbeddingEndpoint("vectors", "http://there.test/v2", ((b"authorization", b"Bearer k-2"),), 1.0, 9)


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("embeddings: {model: nobodys}", "$.memory.embeddings.model", "`api_base`"),
        ("rerank: {model: far}", "$.memory.rerank.model", "does not speak"),
        ("rerank: {model: own, api_key: k}", "$.memory.rerank.api_key", "set the key of this model in model_list"),
        ("rerank: {model: own, dimensions: 3}", "$.memory.rerank.dimensions", "unknown key"),
        ("embeddings: {api_base: 'http://h/v1'}", "$.memory.embeddings.model", "required"),
        ("embeddings: {model: m, api_base: here}", "$.memory.embeddings.api_base", "URL"),
        ("project: '*'", "$.memory.project", "one project"),
        ("writer: nobodys", "$.memory.writer", "`rules`"),
        ("writer: request", "$.memory.writer", "`rules`"),
        ("writer: ''", "$.memory.writer", ""),
        ("writer: keyless", "$.memory.writer", "`api_key`"),
        ("writer: own", "$.memory.writer", "window"),
    ],
)
def test_what_cannot_be_asked_is_an_error_at_its_key(text: str, path: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(f"{LISTED}memory: {{{text}}}")
    assert refused.value.path == path  # type: ignore[attr-defined]
    assert words in refused.value.message


def test_a_key_that_only_memories_use_is_not_called_unused() -> None:
    def about(text: str) -> list[Any]:
        everywhere = "\nserver: {host: 0.0.0.0}\n"
        return [hint for hint in find_hints(read(text + everywhere)) if "api_key is never" in hint]

    assert len(about(LISTED)) == 1
    assert not about(LISTED + "memory: {embeddings: {model: vectors}}")
    assert len(about(LISTED + "memory: {embeddings: {model: vectors, api_base: 'http://h/v1'}}")) == 1


async def test_the_endpoints_of_the_file_are_asked_and_follow_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")

    async def model(request: Recorded, answer: Answer) -> None:
        asked = request.json()
        data = [{"index": at, "embedding": [1.0, 0.5]} for at, _ in enumerate(asked.get("input", ()))]
        results = [{"index": at, "relevance_score": 0.5} for at, _ in enumerate(asked.get("documents", ()))]
        body = json.dumps({"data": data} if "input" in asked else {"results": results}).encode()
        await answer.head(200, length=len(body))
        await answer.send(body)

    async with Loopback(model) as server:
        there = f"api_base: '{server.url}/v1', api_key: k"
        text = f"store: {{url: 'memory://'}}\nmemory: {{embeddings: {{model: e-1, {there}}}}}"
        application = Application(read(text), {})
        try:
            services = running_memory(application).load().services()
            await services.memories.write(TENANT, MemoryChange(put=(Memory("a", "fact", "The dog is ill."),)))
            application.apply_settings(read(text.replace("embeddings", "rerank")))
            found = await running_memory(application).load().services().search.search(TENANT, SearchQuery("dog"))
        finally:
            await application.stop()
    assert [each.memory.id for each in found.results] == ["a"]
    assert [request.target for request in server.requests] == ["/v1/embeddings", "/v1/rerank"]
    assert {request.header("authorization") for request in server.requests} == {"Bearer k"}


@pytest.mark.parametrize(
    "params",
    [
        "{model: openai/gpt-4o, api_key: k}",
        "{model: anthropic/claude-sonnet-4-5, api_key: k}",
        "{model: gemini/gemini-2.5-pro, api_key: k}",
        "{model: openai/gpt-4o, api_base: 'http://here.test/v1'}",
        "{model: openai/gpt-4o, extra_headers: {authorization: k}}",
        "{model: bedrock/anthropic.claude-3-5-sonnet-20240620-v1:0}",
    ],
)
def test_a_model_that_can_be_asked_in_its_own_name_may_write_memories(params: str) -> None:
    settings = read(f"model_list: [{{model_name: w, litellm_params: {params}}}]\nmemory: {{writer: w}}")
    assert settings.memory.model == "w"
    assert not [hint for hint in find_hints(settings) if "never used" in hint]


def test_rules_write_memories_where_nobody_else_is_named() -> None:
    assert read("").memory.model == read("memory: {writer: rules}").memory.model == ""
