"""Settings that are legal and probably a mistake, as `accordion check` and the log at the start name them."""

from __future__ import annotations

from pathlib import Path

import pytest

from accordion.config import find_hints
from accordion.config.load import build


def warned(text: str) -> list[str]:
    return list(find_hints(build(text.encode(), {}, {})))


def entry(model: str, **params: str) -> str:
    more = "".join(f", {name}: '{value}'" for name, value in params.items())
    return f"model_list: [{{model_name: m, litellm_params: {{model: {model}{more}}}}}]\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("upstreams: {openai: {base_url: 'https://api.openai.com'}}", "usually need `https://api.openai.com/v1`"),
        ("upstreams: {openai: {base_url: 'http://localhost:11434/'}}", "usually need `http://localhost:11434/v1`"),
        ("upstreams: {openai: {base_url: 'https://h/v1/chat/completions'}}", "leave out `/chat/completions`"),
        ("upstreams: {anthropic: {base_url: 'https://h/v1/chat/completions'}}", "leave out `/chat/completions`"),
        (entry("openai/gpt-5", api_base="https://h/v1/responses"), "leave out `/responses`"),
        (entry("openai/gpt-5", api_base="https://h/v1/v1/"), "write `/v1` in place of `/v1/v1`"),
        ("upstreams: {openai: {base_url: 'https://h/v1/v1'}}", "write `/v1` in place of `/v1/v1`"),
        ("upstreams: {openai: {base_url: 'https://h/v1/messages'}}", "leave out `/messages`"),
        ("upstreams: {openai: {base_url: 'https://h/chat/completions/v1'}}", "leave out `/chat/completions`"),
        ("upstreams: {anthropic: {base_url: 'https://h/v1/v1'}}", "write `/v1` in place of `/v1/v1`"),
        ("upstreams: {anthropic: {base_url: 'https://h/v1/messages/v1'}}", "leave out `/v1/messages`"),
        ("upstreams: {anthropic: {base_url: 'https://h/v1/v1/messages'}}", "write `/v1` in place of `/v1/v1`"),
        ("upstreams: {gemini: {base_url: 'https://h/v1beta/v1beta'}}", "write `/v1beta` in place of"),
        (
            "upstreams: {gemini: {base_url: 'https://h/v1beta/models/gemini-pro:generateContent'}}",
            "leave out `/models/g",
        ),
        ("upstreams: {azure: {base_url: 'https://h/openai/v1'}}", "leave out `/openai/v1`"),
        ("upstreams: {vertex: {base_url: 'https://h/v1/projects/p'}}", "leave out `/v1/projects/p`"),
        ("upstreams: {bedrock: {base_url: 'https://h/model'}}", "leave out `/model`"),
        ("memory: {embeddings: {model: e, api_base: 'https://h/v1/embeddings'}}", "leave out `/embeddings`"),
        ("memory: {rerank: {model: e, api_base: 'https://h/rerank'}}", "leave out `/rerank`"),
    ],
)
def test_an_unlikely_base_url_is_named(text: str, words: str) -> None:
    (warning,) = warned(text)
    assert words in warning


@pytest.mark.parametrize(
    "text",
    [
        "upstreams: {openai: {base_url: 'https://h/openai'}}",
        "upstreams: {openai: {base_url: 'https://api.deepseek.com'}}",
        "upstreams: {anthropic: {base_url: 'https://h/v1/messages'}}",
        "upstreams: {anthropic: {base_url: 'https://h/v1'}}",
        "upstreams: {gemini: {base_url: 'https://h/v1beta'}}",
        "upstreams: {openai: {base_url: 'https://h/models/name/v1'}}",
        "memory: {rerank: {model: e, api_base: 'https://h'}}",
        entry("anthropic/claude-sonnet-4-5", api_base="https://h/v1/messages"),
        entry("azure/gpt-5", api_base="https://h"),
        "server: {}",
    ],
)
def test_a_base_url_that_works_is_not_named(text: str) -> None:
    assert not [each for each in warned(text) if "URL" in each]


def test_a_model_whose_window_nobody_knows_is_named_with_the_key_to_set() -> None:
    (warning,) = warned(entry("openai/qwen-local"))
    assert warning.startswith("$.model_list[0].model_info.max_input_tokens: the window of `m` is not known")
    assert "120,000" in warning
    assert not warned(entry("openai/gpt-5"))
    stated = entry("openai/qwen-local").replace("}]", ", model_info: {max_input_tokens: 32000}}]")
    assert not warned(stated)


def test_thresholds_for_a_name_that_no_model_has_are_named() -> None:
    models = entry("openai/gpt-5").replace("model_name: m", "model_name: smart")
    (warning,) = warned(models + "thresholds: {models: {smrt: {hard: 0.9}, smart: {hard: 0.9}, gpt-4o: {hard: 0.9}}}")
    assert warning.startswith("$.thresholds.models.smrt: ")
    assert "did you mean `smart`?" in warning
    (warning,) = warned("compaction: {models: {nobody: {mode: observe}}}")
    assert warning.startswith("$.compaction.models.nobody: ")


def test_a_store_path_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, words in ((tmp_path / "file" / "a.db", "is not a folder"), (tmp_path, "is a folder")):
        (warning,) = warned(f"store: {{url: 'sqlite:///{path}'}}")
        assert warning.startswith("$.store.url: ")
        assert words in warning
    assert not warned(f"store: {{url: 'sqlite:///{tmp_path}/new/folder/a.db'}}")


@pytest.mark.parametrize(
    ("text", "is_warned"),
    [
        ("", False),
        ("server: {host: 0.0.0.0}", True),
        ("proxy_keys: [{id: team, key: sk-of-the-team-0123456789}]", True),
        ("server: {host: 0.0.0.0}\nstore: {url: 'memory://'}", False),
        (f"server: {{host: 0.0.0.0}}\narchive: {{key: '{'00' * 32}'}}", False),
    ],
)
def test_stored_conversations_of_others_without_encryption_are_named(text: str, is_warned: bool) -> None:
    assert any(warning.startswith("$.archive.key: it is not set") for warning in warned(text)) == is_warned


def test_the_window_of_an_unknown_version_is_said_to_be_assumed() -> None:
    (warning,) = warned(entry("openai/gpt-5.99"))
    assert "the window of `m` is not known; 1,050,000 tokens are assumed" in warning
