"""AWS's SDK for Python, and Anthropic's class for Bedrock, behave through the proxy as they do without it.

boto3 sends a key of Bedrock over TLS only. So it leaves requests unsigned here, and the key is added, as
docs/clients.md says; tests/e2e/test_bedrock.py has TLS before the proxy.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import replies
from anthropic import AnthropicBedrock
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError
from client_link import CI, KEY, ClientLink, Proxy, proxy_missing
from replies import Call, as_json, speak, steps, tool_names
from test_compaction_agent_clis import unanswered
from upstream import Upstream
from wire import Request

MODEL, CLAUDE = "amazon.nova-test-v1:0", "us.anthropic.claude-test-v1:0"
ASK: list[Any] = [{"role": "user", "content": [{"text": "Grüße aus 東京 🦜 — what is up?"}]}]
WEATHER: Any = {
    "toolSpec": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "inputSchema": {"json": {"type": "object", "properties": {"city": {"type": "string"}}}},
    }
}
WINDOW, FILES = 12_000, 14
_ARTIFACT = re.compile(r"art_[0-9a-f]{12}")
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def client(link: ClientLink) -> Any:
    """AWS's client on a link."""
    api = boto3.client(
        "bedrock-runtime",
        region_name="us-east-1",
        endpoint_url=link.origin,
        config=Config(signature_version=UNSIGNED, retries={"total_max_attempts": 1}),
    )

    def add_key(request: Any, **_: Any) -> None:
        request.headers["Authorization"] = f"Bearer {KEY}"

    api.meta.events.register("before-send.bedrock-runtime", add_key)
    return api


def ask(api: Any, messages: list[Any], stream: bool, **more: Any) -> tuple[list[Any], str, dict[str, Any]]:
    """One request; returns the blocks of the answer, why it ended, and its usage."""
    if not stream:
        answer = api.converse(modelId=MODEL, messages=messages, **more)
        return answer["output"]["message"]["content"], answer["stopReason"], answer["usage"]
    blocks: dict[int, Any] = {}
    reason, usage = "", dict[str, Any]()
    for event in api.converse_stream(modelId=MODEL, messages=messages, **more)["stream"]:
        [(name, data)] = event.items()
        if name == "contentBlockStart":
            blocks[data["contentBlockIndex"]] = {"toolUse": {**data["start"]["toolUse"], "input": ""}}
        elif name == "contentBlockDelta" and "text" in data["delta"]:
            blocks.setdefault(data["contentBlockIndex"], {"text": ""})["text"] += data["delta"]["text"]
        elif name == "contentBlockDelta":
            blocks[data["contentBlockIndex"]]["toolUse"]["input"] += data["delta"]["toolUse"]["input"]
        reason, usage = data.get("stopReason", reason), data.get("usage", usage)
    for block in blocks.values():
        if "toolUse" in block:
            block["toolUse"]["input"] = json.loads(block["toolUse"]["input"])
    return list(blocks.values()), reason, usage


@STREAMED
def test_a_conversation_is_answered(link: ClientLink, stream: bool) -> None:
    """The plain case, with a system prompt and a limit."""
    api = client(link)
    more = {"system": [{"text": "Brief."}], "inferenceConfig": {"maxTokens": 99, "temperature": 0.5}}
    blocks, reason, usage = ask(api, ASK, stream, **more)
    assert (blocks, reason) == ([{"text": replies.GREETING}], "end_turn")
    link.note(blocks=blocks, reason=reason, usage=usage)
    api.close()


@STREAMED
def test_calls_go_out_and_their_results_come_back(link: ClientLink, stream: bool) -> None:
    """Two requests of a tool loop, with two calls in one turn."""
    calls: list[Any] = ["Looking.", Call("get_weather", {"city": "Paris"}), Call("get_weather", {"city": "Ōsaka"})]
    link.upstream.rule = steps(calls, "a", "It says: {result}")
    api, more = client(link), {"toolConfig": {"tools": [WEATHER]}}
    blocks, reason, _ = ask(api, ASK, stream, **more)
    assert reason == "tool_use"
    history = [*ASK, {"role": "assistant", "content": blocks}, results_of(blocks, "22 °C")]
    answer, _, usage = ask(api, history, stream, **more)
    assert answer == [{"text": "It says: 22 °C"}]
    link.note(blocks=blocks, answer=answer, usage=usage)
    api.close()


def results_of(blocks: list[Any], text: str) -> dict[str, Any]:
    """The results of the calls among these blocks."""
    calls = [block["toolUse"]["toolUseId"] for block in blocks if "toolUse" in block]
    content = [{"toolResult": {"toolUseId": call, "content": [{"text": text}]}} for call in calls]
    return {"role": "user", "content": content}


def test_a_refusal_is_raised_as_the_providers_error(link: ClientLink) -> None:
    """An error body that is not the proxy's."""
    said = as_json({"message": "Too many."}, 429, (("x-amzn-ErrorType", "ThrottlingException:http://internal/"),))
    link.upstream.rule = lambda request: said
    api = client(link)
    for call in (api.converse, api.converse_stream):
        with pytest.raises(ClientError) as raised:
            call(modelId=MODEL, messages=ASK)
        assert raised.value.response["Error"] == {"Message": "Too many.", "Code": "ThrottlingException"}
    api.close()


@STREAMED
def test_claude_is_invoked_by_awss_client(link: ClientLink, stream: bool) -> None:
    """The bodies of Anthropic's own API."""
    body = {
        "anthropic_version": "bedrock-2023-05-31",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "Hi."}],
    }
    api, options = client(link), {"modelId": CLAUDE, "body": json.dumps(body)}
    if stream:
        chunks = api.invoke_model_with_response_stream(**options)["body"]
        told = [json.loads(each["chunk"]["bytes"]) for each in chunks]
        assert told[-1]["type"] == "message_stop"
    else:
        told = json.loads(api.invoke_model(**options)["body"].read())
        assert told["content"] == [{"type": "text", "text": replies.GREETING}]
    link.note(told=told)
    api.close()


@STREAMED
def test_anthropics_class_for_bedrock_is_answered(link: ClientLink, stream: bool) -> None:
    """A message and a stream of AnthropicBedrock."""
    asked: Any = {"model": CLAUDE, "max_tokens": 100, "messages": [{"role": "user", "content": "Hi."}]}
    with AnthropicBedrock(base_url=link.origin, api_key=KEY, aws_region="us-east-1", max_retries=0, timeout=30) as api:
        if stream:
            with api.messages.stream(**asked) as told:
                answer = told.get_final_message()
        else:
            answer = api.messages.create(**asked)
    assert answer.content[0].text == replies.GREETING  # type: ignore[union-attr]
    link.note(answer=answer.model_dump())


# -- past its window -----------------------------------------------------------------------------------------------


@pytest.fixture
def small(upstream: Upstream, tmp_path: Path) -> Iterator[ClientLink]:
    """A link through a proxy that takes all windows for small ones."""
    missing = proxy_missing()
    if missing:
        (pytest.fail if CI else pytest.skip)(missing)
    settings = {"windows": {"default": WINDOW}, "summaries": {"writer": "extractive"}}
    proxy = Proxy(upstream.port, tmp_path, json.dumps(settings))
    upstream.reset()
    recorder = upstream.record_connections(proxy.port)
    yield ClientLink("through", upstream, recorder)
    upstream.call(recorder.stop())
    proxy.stop()


class Model:
    """A model that asks for one file after the other, reads the first one back, and then answers."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.read_back = ""

    def __call__(self, request: Request) -> Any:
        self.asked.append(request)
        body = replies.body_of(request)
        text, results = request.body.decode(), replies.results_in(body)
        if "read_artifact" in tool_names(body) and not self.read_back and (found := _ARTIFACT.search(text)):
            self.read_back = found.group()
            return speak(request, [Call("read_artifact", {"id": self.read_back})])
        asked = text.count('"name":"get_weather"') - 1
        newest = int(results[-1][:2]) + 1 if results and results[-1][:2].isdigit() else asked
        if newest < FILES:
            return speak(request, [f"I read {newest}.", Call("get_weather", {"city": f"file {newest}"})])
        return speak(request, ["Found it."])


@STREAMED
def test_an_agent_works_on_over_its_window_and_the_model_reads_back(small: ClientLink, stream: bool) -> None:
    """The client's history grows to twice the window; what is forwarded never does, and the client sees no tool of the
    proxy's."""
    small.upstream.rule = model = Model()
    api, history = client(small), [{"role": "user", "content": [{"text": "Read all files."}]}]
    for number in range(FILES + 1):
        blocks, _, _ = ask(api, list(history), stream, toolConfig={"tools": [WEATHER]})
        calls = [block["toolUse"]["name"] for block in blocks if "toolUse" in block]
        assert set(calls) <= {"get_weather"}
        history.append({"role": "assistant", "content": blocks})
        if not calls:
            break
        notes = "".join(f"{number:02}-{line:03} pump {number * 7 + line} was turned\n" for line in range(120))
        history.append(results_of(blocks, notes))
    api.close()
    assert blocks[-1] == {"text": "Found it."}
    heads = [dict(one.response.headers) for one in small.exchanges() if one.response is not None]
    told = [json.loads(head["x-accordion-compaction"]) for head in heads if "x-accordion-compaction" in head]
    assert [one["state"] for one in told].count("compacted") >= 1
    assert "failed" not in {one["state"] for one in told}
    assert max(int(head["x-accordion-tokens"]) for head in heads if "x-accordion-tokens" in head) < WINDOW
    assert model.read_back
    for request in model.asked:
        assert unanswered(replies.body_of(request)) == []
        assert request.path.endswith("converse-stream" if stream else "converse")
    answers = [result for request in model.asked for result in replies.results_in(replies.body_of(request))]
    assert any(result.startswith("[") and "pump" in result for result in answers), "the answer of read_artifact"
