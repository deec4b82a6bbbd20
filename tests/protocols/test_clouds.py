from __future__ import annotations

import json
from time import process_time

import pytest

from accordion.protocols.base import Endpoint
from accordion.protocols.clouds import cloud_prompt, find_cloud, find_cloud_endpoint, prompt_target, unread_reason
from accordion.protocols.registry import decode_path, find_protocol, is_protocol_path

VERTEX = "/v1/projects/p/locations/global/publishers/anthropic/models"
GOOGLE = "/v1/projects/p/locations/l/publishers/google/models"
CLAUDE = "/model/eu.anthropic.claude-x-v1%3A0/invoke"
STREAM = f"{CLAUDE}-with-response-stream"
AZURE = "/openai/deployments"


@pytest.mark.parametrize(
    ("path", "protocol", "endpoint"),
    [
        ("/openai/deployments/my%20gpt/chat/completions", "chat", Endpoint(model="my gpt")),
        ("/openai/v1/chat/completions", "chat", Endpoint()),
        ("/openai/responses", "responses", Endpoint()),
        ("/openai/v1/responses/input_tokens", "responses", Endpoint(is_token_count=True)),
        (f"{VERTEX}/claude-a%40b:rawPredict", "messages", Endpoint(model="claude-a@b", is_stream=False)),
        (f"{VERTEX}/claude-a%3AstreamRawPredict", "messages", Endpoint(model="claude-a", is_stream=True)),
        (f"{VERTEX}/count-tokens:rawPredict", "messages", Endpoint(is_token_count=True)),
        (CLAUDE, "messages", Endpoint(model="eu.anthropic.claude-x-v1:0", is_stream=False)),
        (STREAM, "messages", Endpoint(model="eu.anthropic.claude-x-v1:0", is_stream=True)),
        (f"{GOOGLE}/g:streamGenerateContent", "gemini", Endpoint(model="g", is_stream=True)),
    ],
)  # fmt: skip
def test_a_clouds_path_is_read_by_its_protocol(path: str, protocol: str, endpoint: Endpoint) -> None:
    found = find_protocol(path)
    assert found is not None
    assert (found[0].name, found[1]) == (protocol, endpoint)
    assert find_cloud(path) is not None


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions", "/openai", f"{AZURE}/d/embeddings", f"{AZURE}/a/b/chat/completions",
        f"{VERTEX}/claude-a:predict", f"{VERTEX}/:rawPredict/x", "/model/amazon.nova/invoke", "/model/claude/converse",
    ],
)  # fmt: skip
def test_no_other_path_is_taken_for_one(path: str) -> None:
    assert find_cloud_endpoint(path) is None


@pytest.mark.parametrize("path", ["/model/" + "claude" * 40_000, "/openai/deployments/" + ":" * 200_000])
def test_a_long_path_is_read_in_a_time_that_grows_with_its_length(path: str) -> None:
    began = process_time()
    assert find_protocol(f"{path}/x") is None
    assert process_time() - began < 1


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (f"{AZURE}/a/chat/completions?api-version=1", f"{AZURE}/small/chat/completions?api-version=1"),
        ("/openai/responses?api-version=1", "/openai/responses?api-version=1"),
        (f"{VERTEX}/a:streamRawPredict", f"{VERTEX}/small:rawPredict"),
        ("/model/anthropic.claude-x/invoke", "/model/small/invoke"),
        ("/model/anthropic.claude-x/invoke-with-response-stream", "/model/small/invoke"),
        (f"{GOOGLE}/g:streamGenerateContent?alt=sse", f"{GOOGLE}/small:generateContent"),
    ],
)  # fmt: skip
def test_a_prompt_goes_to_the_same_cloud_and_is_not_streamed(target: str, expected: str) -> None:
    assert prompt_target(target, "small") == expected


def test_a_path_that_is_encoded_many_times_is_decoded_at_once() -> None:
    began = process_time()
    assert decode_path("/v1/%" + "25" * 100_000 + "2e%2E/%252525x%41") == "/v1/../%xA"
    assert process_time() - began < 1


def test_a_prompt_for_claude_names_the_version_in_place_of_the_model() -> None:
    body = b'{"model":"m","stream":false,"max_tokens":5,"messages":[]}'
    assert cloud_prompt("azure", "chat", body) == body
    assert cloud_prompt("openai", "messages", body) == body
    for family, version in (("vertex", "vertex-2023-10-16"), ("bedrock", "bedrock-2023-05-31")):
        fields = json.loads(cloud_prompt(family, "messages", body))  # type: ignore[arg-type]
        assert fields == {"anthropic_version": version, "max_tokens": 5, "messages": []}


def test_a_prompt_for_gemini_is_the_same_at_vertex_as_at_googles_own_api() -> None:
    body = b'{"contents":[],"generationConfig":{"maxOutputTokens":5}}'
    assert cloud_prompt("vertex", "gemini", body) == body


def test_a_signed_request_is_not_read_and_one_to_another_api_may_be_signed() -> None:
    signed = {b"authorization": b"AWS4-HMAC-SHA256 Credential=AK"}
    assert "signed" in unread_reason("/model/anthropic.claude-x/invoke", signed)
    assert unread_reason("/v1/chat/completions", signed) == ""
    assert unread_reason("/model/anthropic.claude-x/invoke", {b"authorization": b"Bearer k"}) == ""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (f"{AZURE}/d/Chat//Completions", True), (f"{AZURE}/d/embeddings", False), (f"{VERTEX}/m:RAWPREDICT", True),
        (f"{VERTEX}/count-tokens:rawPredict", False), ("/model/m/converse", True), ("/model/m/invoke%20", True),
        ("/model/m/Invoke-With-Response-Stream", True),
    ],
)  # fmt: skip
def test_other_spellings_are_known(path: str, expected: bool) -> None:
    assert is_protocol_path(path) is expected


@pytest.mark.parametrize(
    "path", ["/v1/projects/p/groups/g/roles", "/v1/projects", "/v1/models/m", "/openai", "/models"]
)
def test_a_path_of_another_api_is_no_clouds(path: str) -> None:
    assert find_cloud(path) is None
