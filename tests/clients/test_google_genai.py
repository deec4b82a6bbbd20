"""Google's SDK for Python behaves through the proxy as it does without it, and works on over its window."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import replies
from client_link import CI, KEY, ClientLink, Proxy, proxy_missing
from google import genai
from google.genai import errors, types
from replies import Call, failure, speak, steps, tool_names
from test_compaction_agent_clis import unanswered
from upstream import Upstream
from wire import Request

MODEL = "gemini-test"
ASK = "Grüße aus 東京 🦜 — what is up?"
WEATHER = types.Tool(
    function_declarations=[
        types.FunctionDeclaration(
            name="get_weather",
            description="The weather of a city.",
            parameters_json_schema={"type": "object", "properties": {"city": {"type": "string"}}},
        )
    ]
)
WINDOW, FILES = 12_000, 14
SUMMARY = "[Record of messages"
_ARTIFACT = re.compile(r"art_[0-9a-f]{12}")


def client(link: ClientLink, version: str = "v1beta") -> genai.Client:
    """A client on a link, by the SDK's own setting of the base URL. It must stay in a name: it closes with its last."""
    options = types.HttpOptions(base_url=link.origin, api_version=version, timeout=30_000)
    return genai.Client(api_key=KEY, http_options=options)


def plain(value: Any) -> Any:
    """What the SDK made of a response, without its headers, which hold the proxy's own."""
    return value.model_dump(mode="json", exclude={"sdk_http_response"}, exclude_none=True)


@pytest.mark.parametrize("version", ["v1beta", "v1"])
def test_a_request_is_answered(link: ClientLink, version: str) -> None:
    """The plain case, with a system instruction, in both versions of the API."""
    config = types.GenerateContentConfig(system_instruction="Brief.", max_output_tokens=99, temperature=0.5)
    api = client(link, version)
    answer = api.models.generate_content(model=MODEL, contents=ASK, config=config)
    assert answer.text == replies.GREETING
    link.note(answer=plain(answer))


def test_an_async_request_is_answered(link: ClientLink) -> None:
    """The same from asyncio."""

    async def main() -> Any:
        async with client(link).aio as api:
            return await api.models.generate_content(model=MODEL, contents=ASK)

    link.note(answer=plain(asyncio.run(main())))


def test_a_stream_arrives_piece_by_piece(link: ClientLink) -> None:
    """The events of `alt=sse`."""
    api = client(link)
    chunks = list(api.models.generate_content_stream(model=MODEL, contents=ASK))
    assert "".join(chunk.text or "" for chunk in chunks) == replies.GREETING
    assert len(chunks) > 3
    link.note(chunks=[plain(chunk) for chunk in chunks])


def test_a_chat_keeps_its_own_history(link: ClientLink) -> None:
    """The SDK's chat sends each streamed piece back as a content of its own."""
    api = client(link)
    chat = api.chats.create(model=MODEL)
    for text in (ASK, "And now?"):
        assert "".join(chunk.text or "" for chunk in chat.send_message_stream(text)) == replies.GREETING
    link.note(history=[content.model_dump(mode="json", exclude_none=True) for content in chat.get_history()])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_calls_go_out_and_their_results_come_back(link: ClientLink, stream: bool) -> None:
    """Two requests of a tool loop, with two calls in one turn; the signature comes back with its part."""
    calls: list[Any] = ["Looking.", Call("get_weather", {"city": "Paris"}), Call("get_weather", {"city": "Ōsaka"})]
    link.upstream.rule = steps(calls, "a", "It says: {result}")
    contents: list[Any] = [types.Content(role="user", parts=[types.Part(text=ASK)])]
    api = client(link)
    asked, answer = ask(api, contents, stream)
    contents.append(types.Content(role="model", parts=asked))
    contents.append(
        types.Content(role="user", parts=[result_of(part, "22 °C") for part in asked if part.function_call])
    )
    _, answer = ask(api, contents, stream)
    assert answer == "It says: 22 °C"
    sent = json.loads(link.upstream.received[-1].request.body)["contents"]
    assert [part.get("thoughtSignature") for part in sent[1]["parts"] if "functionCall" in part] == [
        "c2lnbmF0dXJl",
        None,
    ]
    link.note(answer=answer)


def ask(api: genai.Client, contents: list[Any], stream: bool = False) -> tuple[list[types.Part], str]:
    """One request with the tool; returns the parts of the answer and its text."""
    config = types.GenerateContentConfig(
        tools=[WEATHER], automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True)
    )
    options: Any = {"model": MODEL, "contents": contents, "config": config}
    models = api.models
    answers = list(models.generate_content_stream(**options)) if stream else [models.generate_content(**options)]
    parts = [part for each in answers for part in each.candidates[0].content.parts or ()]
    return parts, "".join(part.text or "" for part in parts)


def result_of(part: types.Part, text: str) -> types.Part:
    """The result of a call."""
    call = part.function_call
    answer = types.FunctionResponse(id=call.id, name=call.name, response={"output": text})
    return types.Part(function_response=answer)


def test_tokens_are_counted_and_models_listed(link: ClientLink) -> None:
    """Requests that are not for an answer."""
    api = client(link)
    assert api.models.count_tokens(model=MODEL, contents=ASK).total_tokens == 19
    link.note(models=[model.name for model in api.models.list()])


def test_a_refusal_is_raised_as_googles_error(link: ClientLink) -> None:
    """An error body that is not the proxy's."""
    link.upstream.rule = lambda request: failure(429, "RESOURCE_EXHAUSTED", "Slow down.")
    api = client(link)
    with pytest.raises(errors.ClientError) as raised:
        api.models.generate_content(model=MODEL, contents=ASK)
    assert (raised.value.code, raised.value.message) == (429, "Slow down.")
    link.note(error=str(raised.value))


# -- past its window -----------------------------------------------------------------------------------------------


@pytest.fixture
def small(upstream: Upstream, tmp_path: Path) -> Iterator[ClientLink]:
    """A link through a proxy that was told of a small window."""
    missing = proxy_missing()
    if missing:
        (pytest.fail if CI else pytest.skip)(missing)
    model = {
        "model_name": MODEL,
        "litellm_params": {"model": f"gemini/{MODEL}", "api_base": f"http://127.0.0.1:{upstream.port}/v1beta"},
        "model_info": {"max_input_tokens": WINDOW, "max_output_tokens": WINDOW},
    }
    proxy = Proxy(upstream.port, tmp_path, json.dumps({"model_list": [model], "summaries": {"writer": "extractive"}}))
    upstream.reset()
    recorder = upstream.record_connections(proxy.port)
    yield ClientLink("through", upstream, recorder)
    upstream.call(recorder.stop())
    proxy.stop()


def notes(number: int) -> str:
    """A long result, unlike any other."""
    return "".join(f"{number:02}-{line:03} pump {number * 7 + line} was turned\n" for line in range(120))


class Model:
    """A model that asks for one file after the other, reads the first one back, and then answers."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.read_back = ""

    def __call__(self, request: Request) -> Any:
        if not replies.is_generation(request):
            return None
        self.asked.append(request)
        body = replies.body_of(request)
        text, results = request.body.decode(), replies.results_in(body)
        if "read_artifact" in tool_names(body) and not self.read_back and (found := _ARTIFACT.search(text)):
            self.read_back = found.group()
            return speak(request, [Call("read_artifact", {"id": self.read_back})])
        asked = sum(part.get("functionCall", {}).get("name") == "get_weather" for part in self._parts(body))
        newest = int(results[-1][:2]) + 1 if results and results[-1][:2].isdigit() else asked
        if newest < FILES:
            return speak(request, [f"I read {newest}.", Call("get_weather", {"city": f"file {newest}"})])
        return speak(request, ["Found it."])

    @staticmethod
    def _parts(body: dict[str, Any]) -> list[dict[str, Any]]:
        return [part for content in body["contents"] for part in content["parts"]]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_agent_works_on_over_its_window_and_the_model_reads_back(small: ClientLink, stream: bool) -> None:
    """The client's history grows to twice the window; what is forwarded never does, and the client sees no tool of the
    proxy's."""
    small.upstream.rule = model = Model()
    api, contents = client(small), [types.Content(role="user", parts=[types.Part(text="Read all files.")])]
    for number in range(FILES + 1):
        parts, text = ask(api, list(contents), stream)
        assert not any(part.function_call and part.function_call.name == "read_artifact" for part in parts)
        contents.append(types.Content(role="model", parts=parts))
        calls = [part for part in parts if part.function_call]
        if not calls:
            break
        contents.append(types.Content(role="user", parts=[result_of(part, notes(number)) for part in calls]))
    assert text.endswith("Found it.")
    heads = [dict(one.response.headers) for one in small.exchanges() if one.response is not None]
    told = [json.loads(head["x-accordion-compaction"]) for head in heads if "x-accordion-compaction" in head]
    assert [one["state"] for one in told].count("compacted") >= 1
    assert "failed" not in {one["state"] for one in told}
    assert max(int(head["x-accordion-tokens"]) for head in heads if "x-accordion-tokens" in head) < WINDOW
    assert model.read_back
    for request in model.asked:
        assert unanswered(replies.body_of(request)) == []
        assert request.path == f"/v1beta/models/{MODEL}:{'streamG' if stream else 'g'}enerateContent"
    last = model.asked[-1].body.decode()
    assert "Read all files." in last
    assert "functionResponse" in last
    answers = [result for request in model.asked for result in replies.results_in(replies.body_of(request))]
    assert any(result.startswith("[") and "pump" in result for result in answers), "the answer of read_artifact"
