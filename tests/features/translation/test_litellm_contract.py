"""LiteLLM's code on which features/translation/litellm_compat.py depends, and the reasons for its patches."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

from accordion.features.translation import litellm_compat
from accordion.features.translation.litellm_compat import (
    has_invented_end,
    load_litellm,
    message_events,
    provider_config,
)
from tests.code_fingerprints import find_changes

CODE = {
    "litellm.llms.custom_httpx.aiohttp_transport": {
        "LiteLLMAiohttpTransport.handle_async_request": "4e1bb4c7fa13",
    },
    "litellm.llms.anthropic.pass_through.messages.streaming_iterator": {
        "BaseAnthropicMessagesStreamingIterator.async_sse_wrapper": "eafbc24f936e",
        "BaseAnthropicMessagesStreamingIterator.get_async_streaming_response_iterator": "d54497a1983c",
        "BaseAnthropicMessagesStreamingIterator._convert_chunk_to_sse_format": "db8bb40648a0",
    },
    "litellm.llms.anthropic.pass_through.adapters.handler": {
        "_route_openai_thinking_to_responses_api_if_needed": "303956566c9c",
    },
    "litellm.litellm_core_utils.streaming_handler": {
        "CustomStreamWrapper.is_chunk_non_empty": "f318321eeef2",
    },
    "litellm.responses.litellm_completion_transformation.transformation": {
        "LiteLLMCompletionResponsesConfig._extract_message_output_items": "357f783f2b50",
    },
    "litellm.litellm_core_utils.secret_redaction": {
        "_python_redact_string": "13477e59c1ee",
    },
    "litellm.litellm_core_utils.core_helpers": {
        "map_finish_reason": "6c34371f1a31",
    },
}


def test_patched_code_is_as_it_was() -> None:
    assert find_changes(CODE) == {}


def source(*path: str) -> str:
    spec = find_spec("litellm")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0], *path).read_text()


def test_every_patch_is_applied() -> None:
    litellm = load_litellm()
    from litellm.litellm_core_utils import core_helpers, secret_redaction
    from litellm.litellm_core_utils.streaming_handler import CustomStreamWrapper
    from litellm.llms.anthropic.pass_through.adapters.handler import LiteLLMMessagesToCompletionTransformationHandler
    from litellm.llms.anthropic.pass_through.messages.streaming_iterator import BaseAnthropicMessagesStreamingIterator
    from litellm.llms.custom_httpx.aiohttp_transport import LiteLLMAiohttpTransport
    from litellm.responses.litellm_completion_transformation.transformation import LiteLLMCompletionResponsesConfig

    patched = [
        LiteLLMAiohttpTransport.handle_async_request,
        BaseAnthropicMessagesStreamingIterator.async_sse_wrapper,
        BaseAnthropicMessagesStreamingIterator.get_async_streaming_response_iterator,
        LiteLLMMessagesToCompletionTransformationHandler._route_openai_thinking_to_responses_api_if_needed,
        CustomStreamWrapper.is_chunk_non_empty,
        LiteLLMCompletionResponsesConfig._extract_message_output_items,
        secret_redaction._python_redact_string,
    ]
    assert {each.__code__.co_filename for each in patched} == {litellm_compat.__file__}
    assert core_helpers.map_finish_reason("model_context_window_exceeded") == "length"
    assert litellm.suppress_debug_info


def test_every_setting_is_one_of_litellms() -> None:
    names = {
        target.id
        for node in ast.walk(ast.parse(source("__init__.py")))
        for target in (node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)])
        if isinstance(target, ast.Name)
    }
    assert set(litellm_compat._SETTINGS) <= names


def test_litellm_itself_does_not_know_a_full_window() -> None:
    assert "model_context_window_exceeded" not in source("litellm_core_utils", "core_helpers.py")


def test_litellm_describes_providers_with_a_protocol_of_their_own() -> None:
    litellm = load_litellm()
    assert provider_config(litellm, "messages", "anthropic", "claude-sonnet-4-6") is not None
    assert provider_config(litellm, "messages", "groq", "llama-3.3-70b") is None


def test_streams_store_the_streams_that_they_wrap() -> None:
    adapter = source("llms", "anthropic", "pass_through", "adapters", "streaming_iterator.py")
    by_chat = source("responses", "litellm_completion_transformation", "streaming_iterator.py")
    assert "self.completion_stream" in adapter
    assert "_anthropic_wrapper" in adapter
    assert "self.received_finish_reason" in source("litellm_core_utils", "streaming_handler.py")
    assert "self.litellm_custom_stream_wrapper" in by_chat
    assert "self.collected_chat_completion_chunks" in by_chat


def test_an_invented_end_is_found_below_several_streams() -> None:
    innermost = SimpleNamespace(received_finish_reason=None)
    stream = SimpleNamespace(_anthropic_wrapper=SimpleNamespace(completion_stream=innermost))
    assert has_invented_end(stream)
    assert message_events(stream) is stream._anthropic_wrapper
    innermost.received_finish_reason = "stop"
    assert not has_invented_end(stream)
