"""An overflow is told in each provider's own words: agents that compact themselves look for these."""

from __future__ import annotations

import json
import re
from typing import Any

import anthropic
import openai
import pytest

from accordion.accounting.overflow import read_overflow
from accordion.model.errors import ContextOverflow
from accordion.protocols.anthropic_messages.protocol import AnthropicMessages
from accordion.protocols.base import WireProtocol
from accordion.protocols.openai_chat.protocol import OpenAIChat
from accordion.protocols.openai_responses.protocol import OpenAIResponses
from tests.sdks import anthropic_sdk, openai_sdk

OVERFLOW = ContextOverflow(208_310, 200_000)
# What Claude Code matches a message with, whole.
CLAUDE_CODE = r"^prompt is too long: \d+ tokens > \d+ maximum$"


def test_chat_completions_says_it_as_openai_does() -> None:
    sdk = openai_sdk(OVERFLOW.status, OpenAIChat().render_error(OVERFLOW, "req_1"), "application/json")
    with pytest.raises(openai.BadRequestError) as raised:
        sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "a"}])
    body: Any = raised.value.body
    assert (body["type"], body["param"], body["code"]) == (
        "invalid_request_error",
        "messages",
        "context_length_exceeded",
    )
    assert body["message"].startswith(
        "This model's maximum context length is 200000 tokens. However, your messages resulted in 208310 tokens. "
    )
    assert "Everything that may be compacted was compacted." in body["message"]
    assert "req_1" in body["message"]
    assert read_overflow(400, json.dumps({"error": {"code": body["code"]}})) is not None


def test_responses_says_it_as_openai_does() -> None:
    sdk = openai_sdk(OVERFLOW.status, OpenAIResponses().render_error(OVERFLOW, "req_1"), "application/json")
    with pytest.raises(openai.BadRequestError) as raised:
        sdk.responses.create(model="m", input="a")
    body: Any = raised.value.body
    assert (body["type"], body["param"], body["code"]) == ("invalid_request_error", "input", "context_length_exceeded")
    assert body["message"].startswith("Your input exceeds the context window of this model. ")
    assert {"200000", "208310", "req_1"} <= set(re.findall(r"\w+", body["message"]))


@pytest.mark.parametrize("protocol", [OpenAIChat(), OpenAIResponses()], ids=["chat", "responses"])
def test_an_overflow_without_a_compaction_says_why(protocol: WireProtocol) -> None:
    error = ContextOverflow(208_310, 200_000, failure="the store cannot be reached.")
    said = protocol.render_error(error, "req_1").decode()
    assert "Compaction failed: the store cannot be reached." in said
    assert "was compacted" not in said + str(error)


def test_messages_has_exactly_anthropics_overflow_error() -> None:
    sdk = anthropic_sdk(OVERFLOW.status, AnthropicMessages().render_error(OVERFLOW, "req_1"), "application/json")
    with pytest.raises(anthropic.BadRequestError) as raised:
        sdk.messages.create(model="m", max_tokens=1, messages=[{"role": "user", "content": "a"}])
    body: Any = raised.value.body
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["message"] == "prompt is too long: 208310 tokens > 200000 maximum"
    assert re.search(CLAUDE_CODE, body["error"]["message"])
    assert body["request_id"] == "req_1"


@pytest.mark.parametrize(
    "protocol", [OpenAIChat(), OpenAIResponses(), AnthropicMessages()], ids=lambda protocol: protocol.name
)
def test_a_stream_that_has_begun_says_it_in_the_same_words(protocol: Any) -> None:
    whole = json.loads(protocol.render_error(OVERFLOW, "req_1"))
    event = protocol.render_stream_error(OVERFLOW, "req_1").decode().partition("data: ")[2]
    assert json.loads(event)["error"] == whole["error"]
