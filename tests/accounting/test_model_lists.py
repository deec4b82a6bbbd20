"""The windows in lists of models, as servers write them."""

from __future__ import annotations

import json

import pytest

from accordion.accounting.model_lists import read_listed_windows

LISTS = {
    "OpenRouter": {"data": [{"id": "a/m", "context_length": 200_000, "top_provider": {"context_length": 131_072}}]},
    "vLLM": {"object": "list", "data": [{"id": "a/m", "object": "model", "max_model_len": 131_072}]},
    "Groq": {"data": [{"id": "a/m", "context_window": 131_072, "max_completion_tokens": 32_768}]},
    "Codex": {"models": [{"slug": "a/m", "context_window": 131_072, "auto_compact_token_limit": 120_000}]},
    "Anthropic": {"data": [{"type": "model", "id": "a/m", "max_input_tokens": 131_072, "max_tokens": 64_000}]},
    "Google": {"models": [{"name": "models/a/m", "inputTokenLimit": 131_072, "outputTokenLimit": 8_192}]},
    "llama.cpp": {"data": [{"id": "a/m", "meta": {"n_ctx_train": 262_144, "n_ctx": 131_072, "n_params": 7_000_000}}]},
    "LM Studio": {"data": [{"id": "a/m", "max_context_length": 262_144, "loaded_context_length": 131_072}]},
    "LiteLLM": {"data": [{"model_name": "a/m", "model_info": {"max_input_tokens": 131_072}}]},
    "GitHub": {"data": [{"id": "a/m", "capabilities": {"limits": {"max_context_window_tokens": 131_072}}}]},
    "Together": [{"id": "a/m", "context_length": 131_072}],
}


@pytest.mark.parametrize("server", LISTS)
def test_the_window_of_each_model_is_read(server: str) -> None:
    assert read_listed_windows(json.dumps(LISTS[server]).encode()) == {"a/m": 131_072}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no JSON",
        b"[" * 100_000,
        b"null",
        b'{"data": {}}',
        b'{"data": [1, null, {}, {"id": 5, "context_length": 9000}]}',
        b'{"data": [{"id": "m"}]}',
        b'{"data": [{"id": "m", "context_length": "131072"}]}',
        b'{"data": [{"id": "m", "context_length": true}]}',
        b'{"data": [{"id": "m", "context_length": 0}]}',
        b'{"data": [{"id": "m", "context_length": -1}]}',
        b'{"data": [{"id": "m", "context_length": 1e30}]}',
    ],
)
def test_a_body_without_windows_teaches_nothing(body: bytes) -> None:
    assert read_listed_windows(body) == {}
