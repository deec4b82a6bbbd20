"""The official OpenAI SDK for Python behaves through the proxy as it does without it."""

import asyncio
import contextlib
import time
from dataclasses import replace
from typing import Any

import openai
import pytest
import replies
from lane import KEY, Lane
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel
from replies import Call, failure, say, steps
from wire import Request

MODEL = "gpt-test"
ASK: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Grüße aus 東京 🦜 — what is up?"},
]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class Trip(BaseModel):
    """A structured answer."""

    city: str
    days: int


def client(lane: Lane, **options: Any) -> OpenAI:
    """A synchronous client on a lane."""
    return OpenAI(**{"base_url": lane.v1, "api_key": KEY, "timeout": 30, "max_retries": 0} | options)


def async_client(lane: Lane, **options: Any) -> AsyncOpenAI:
    """An asynchronous client on a lane."""
    return AsyncOpenAI(**{"base_url": lane.v1, "api_key": KEY, "timeout": 30, "max_retries": 0} | options)


def test_a_chat_completion_is_answered(lane: Lane) -> None:
    """The plain case, with its request id."""
    answer = client(lane).chat.completions.create(model=MODEL, messages=ASK)
    assert answer.choices[0].message.content == replies.GREETING
    assert answer._request_id == "req_0001"
    lane.note(answer=answer.model_dump())


def test_an_async_chat_completion_is_answered(lane: Lane) -> None:
    """The same from asyncio."""

    async def ask() -> Any:
        async with async_client(lane) as api:
            return await api.chat.completions.create(model=MODEL, messages=ASK)

    answer = asyncio.run(ask())
    assert answer.choices[0].message.content == replies.GREETING
    lane.note(answer=answer.model_dump())


def test_a_streamed_chat_arrives_chunk_by_chunk_with_usage(lane: Lane) -> None:
    """Every chunk is the one that the provider sent."""
    options: Any = {"include_usage": True}
    stream = client(lane).chat.completions.create(model=MODEL, messages=ASK, stream=True, stream_options=options)
    chunks = [chunk.model_dump() for chunk in stream]
    assert "".join(c["choices"][0]["delta"]["content"] or "" for c in chunks if c["choices"]) == replies.GREETING
    assert chunks[-1]["usage"]["total_tokens"] == 29
    lane.note(chunks=chunks)


def test_a_streamed_chat_without_the_usage_option_gets_none(lane: Lane) -> None:
    """The proxy asks for nothing that the client did not ask for."""
    chunks = list(client(lane).chat.completions.create(model=MODEL, messages=ASK, stream=True))
    assert all(chunk.usage is None for chunk in chunks)
    assert b"stream_options" not in lane.upstream.seen[0].request.body


def test_an_async_stream_helper_collects_a_chat(lane: Lane) -> None:
    """The SDK's own accumulator sees a legal stream."""

    async def ask() -> tuple[list[str], Any]:
        async with async_client(lane) as api, api.chat.completions.stream(model=MODEL, messages=ASK) as stream:
            kinds = [event.type async for event in stream]
            return kinds, await stream.get_final_completion()

    kinds, final = asyncio.run(ask())
    assert final.choices[0].message.content == replies.GREETING
    lane.note(kinds=kinds, final=final.model_dump())


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_tool_call_goes_out_and_its_result_comes_back(lane: Lane, stream: bool) -> None:
    """Two requests of a tool loop."""
    lane.upstream.rule = steps([Call("get_weather", {"city": "Paris, île"})], "It says: {result}")
    api = client(lane)
    messages = [*ASK]
    for _ in range(2):
        if stream:
            with api.chat.completions.stream(model=MODEL, messages=messages, tools=[WEATHER]) as events:
                message: Any = events.get_final_completion().choices[0].message
        else:
            answer = api.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER])
            message = answer.choices[0].message
        if not message.tool_calls:
            break
        messages.append(message.model_dump(exclude_none=True))
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "22 °C"} for call in message.tool_calls]
    assert message.content == "It says: 22 °C"
    lane.note(message=message.model_dump())


def test_parallel_tool_calls_stay_apart(lane: Lane) -> None:
    """Two calls and a text in one streamed answer."""
    lane.upstream.rule = steps(
        ["Looking.", Call("get_weather", {"city": "A"}), Call("get_weather", {"city": "B"})], "x"
    )
    with client(lane).chat.completions.stream(model=MODEL, messages=ASK, tools=[WEATHER]) as events:
        message = events.get_final_completion().choices[0].message
    assert [call.function.arguments for call in message.tool_calls or []] == ['{"city": "A"}', '{"city": "B"}']
    lane.note(message=message.model_dump())


def test_a_structured_chat_is_parsed(lane: Lane) -> None:
    """`parse` sends a schema and reads the answer by it."""
    answer = client(lane).chat.completions.parse(model=MODEL, messages=ASK, response_format=Trip)
    assert answer.choices[0].message.parsed == Trip(city="Paris", days=3)
    lane.note(answer=answer.model_dump())


def test_a_response_is_answered_parsed_fetched_and_deleted(lane: Lane) -> None:
    """The Responses API, whole."""
    api = client(lane)
    answer = api.responses.create(model=MODEL, input="Hi", instructions="Be brief.", metadata={"a": "b"})
    parsed = api.responses.parse(model=MODEL, input="Plan", text_format=Trip)
    again = api.responses.retrieve("resp_42", include=["reasoning.encrypted_content"])
    count = api.responses.input_tokens.count(model=MODEL, input="Hi")
    api.responses.delete("resp_42")
    assert answer.output_text == replies.GREETING
    assert parsed.output_parsed == Trip(city="Paris", days=3)
    lane.note(
        answer=answer.model_dump(), parsed=parsed.model_dump(), again=again.model_dump(), count=count.model_dump()
    )


def test_a_streamed_response_arrives_event_by_event(lane: Lane) -> None:
    """Every event with its sequence number."""
    events = [event.model_dump() for event in client(lane).responses.create(model=MODEL, input="Hi", stream=True)]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == replies.GREETING
    lane.note(events=events)


def test_a_streamed_response_with_a_tool_loop_ends_in_text(lane: Lane) -> None:
    """Function calls and their outputs as items."""
    lane.upstream.rule = steps([Call("get_weather", {"city": "Oslo"})], "So: {result}")
    tool: Any = {"type": "function", "strict": None} | WEATHER["function"]
    api, items = client(lane), list[Any]([{"role": "user", "content": "Weather?"}])
    for _ in range(2):
        with api.responses.stream(model=MODEL, input=items, tools=[tool]) as stream:
            final = stream.get_final_response()
        calls = [item for item in final.output if item.type == "function_call"]
        items += [item.model_dump(exclude_none=True) for item in final.output]
        items += [{"type": "function_call_output", "call_id": call.call_id, "output": "-3 °C"} for call in calls]
    assert final.output_text == "So: -3 °C"
    lane.note(final=final.model_dump())


def test_a_response_that_continues_another_goes_on_unchanged(lane: Lane) -> None:
    """`previous_response_id` is the provider's business."""
    api = client(lane)
    first = api.responses.create(model=MODEL, input="Hi")
    second = api.responses.create(model=MODEL, input="And?", previous_response_id=first.id, store=True)
    assert second.output_text == replies.GREETING


def test_embeddings_come_back_as_numbers(lane: Lane) -> None:
    """Base64 by default, floats on demand."""
    api = client(lane)
    packed = api.embeddings.create(model="text-embedding-test", input=["one", "two"])
    plain = api.embeddings.create(model="text-embedding-test", input="one", encoding_format="float")
    assert plain.data[0].embedding == [0.25, -0.5, 1e-7]
    lane.note(packed=packed.model_dump(), plain=plain.model_dump())


def test_models_are_listed_and_fetched(lane: Lane) -> None:
    """GET requests, with a slash in a model's name and a query of the caller's own."""
    api = client(lane)
    page = api.models.list(extra_query={"after": "a b+c/ü", "empty": ""})
    one = api.models.retrieve("ft:gpt/own model")
    lane.note(page=page.model_dump(), one=one.model_dump())


def test_a_file_is_uploaded_listed_downloaded_and_deleted(lane: Lane) -> None:
    """Multipart up, binary down."""
    api = client(lane)
    made = api.files.create(file=("nötes.bin", replies.BINARY * 20), purpose="user_data")
    content = api.files.content(made.id).read()
    listed = api.files.list(limit=1)
    gone = api.files.delete(made.id)
    assert content == replies.BINARY
    lane.note(made=made.model_dump(), listed=listed.model_dump(), gone=gone.model_dump())


def test_speech_is_streamed_to_the_caller_as_bytes(lane: Lane) -> None:
    """A binary answer to a JSON request."""
    with client(lane).audio.speech.with_streaming_response.create(model="tts", voice="alloy", input="Hi") as answer:
        assert b"".join(answer.iter_bytes(777)) == replies.BINARY


def test_a_raw_response_shows_the_providers_headers(lane: Lane) -> None:
    """Status, headers, repeated headers and body as the provider sent them."""
    raw = client(lane).chat.completions.with_raw_response.create(model=MODEL, messages=ASK)
    headers = [(key, value) for key, value in raw.headers.multi_items() if not key.lower().startswith("x-accordion-")]
    assert raw.headers["openai-processing-ms"] == "17"
    assert [value for key, value in headers if key.lower() == "set-cookie"] == [
        "__session=one; Path=/; HttpOnly",
        "__other=two; Path=/",
    ]
    lane.note(headers=sorted(headers), text=raw.text, status=raw.status_code)


def test_own_headers_query_and_body_fields_reach_the_provider(lane: Lane) -> None:
    """Extra fields of any kind, organisation and project headers, numbers as they were written."""
    api = client(lane, organization="org-1", project="proj-1", default_headers={"X-Trace": "a, b;c=d"})
    extra: Any = {"vendor": {"nested": [1, 2.50, 1e22, -0.0, 12345678901234567890, None, "\u2028", "\x7f"]}}
    api.chat.completions.create(
        model=MODEL,
        messages=ASK,
        extra_headers={"X-One": "1", "X-Empty": ""},
        extra_query={"api-version": "2026-01-01", "q": "ä&b"},
        extra_body=extra,
    )
    request = lane.upstream.seen[0].request
    assert request.header("openai-organization") == "org-1"
    assert request.header("authorization") == f"Bearer {KEY}"
    assert request.target.endswith("?api-version=2026-01-01&q=%C3%A4%26b")


def test_a_compressed_answer_stays_compressed(lane: Lane) -> None:
    """The provider's gzip reaches the client, whole and streamed."""
    lane.upstream.rule = lambda request: replies.zipped(say(request, "Zipped ✓"))
    api = client(lane)
    whole = api.chat.completions.create(model=MODEL, messages=ASK)
    parts = [
        c.choices[0].delta.content or "" for c in api.chat.completions.create(model=MODEL, messages=ASK, stream=True)
    ]
    assert whole.choices[0].message.content == "".join(parts) == "Zipped ✓"
    assert all(("content-encoding", "gzip") in (e.response.headers if e.response else ()) for e in lane.exchanges())


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_a_stream_cut_into_any_pieces_reads_the_same(lane: Lane, size: int) -> None:
    """Events and characters split over writes."""
    lane.upstream.rule = lambda request: replies.in_small_pieces(say(request, replies.GREETING), size)
    chunks = list(client(lane).chat.completions.create(model=MODEL, messages=ASK, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == replies.GREETING


def test_odd_events_in_a_stream_are_passed_on(lane: Lane) -> None:
    """Comments, ids, CRLF line ends, unknown fields and a line without a space."""
    odd = [
        b": keep-alive\r\n\r\n",
        b'retry: 10\nid: 7\ndata:{"id":"1","object":"chat.completion.chunk","created":1,"model":"m","new":{"a":1.0},'
        b'"choices":[{"index":0,"delta":{"content":"od\\u0064"}}]}\r\n\r\n',
        b'data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"m",\ndata: "choices":[]}\n\n',
        b"data: [DONE]\n\n",
    ]
    lane.upstream.rule = lambda request: replies.events([*odd])
    chunks = list(client(lane).chat.completions.create(model=MODEL, messages=ASK, stream=True))
    assert chunks[0].choices[0].delta.content == "odd"
    lane.note(chunks=[chunk.model_dump() for chunk in chunks])


def test_odd_json_is_passed_on_as_it_was_written(lane: Lane) -> None:
    """White space, escapes, repeated keys, big numbers and a field nobody knows."""
    body = (
        b'{ "id":"1" , "object": "chat.completion",\n"created":1, "model":"m","model":"m", "big": 12345678901234567890,'
        b' "choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"\\u00e9\\/"}}], '
        b'"x":1.50}\n\n'
    )
    json_type = (("Content-Type", "application/json; charset=utf-8"),)
    lane.upstream.script = [
        replies.Reply(200, json_type, (body,)),
        replies.Reply(200, json_type, (body,), chunked=True),
    ]
    for _ in range(2):
        answer = client(lane).chat.completions.create(model=MODEL, messages=ASK)
        assert answer.choices[0].message.content == "é/"


ERRORS = [
    (400, "invalid_request_error", openai.BadRequestError),
    (401, "invalid_api_key", openai.AuthenticationError),
    (403, "permission_denied", openai.PermissionDeniedError),
    (404, "model_not_found", openai.NotFoundError),
    (409, "conflict", openai.ConflictError),
    (422, "unprocessable", openai.UnprocessableEntityError),
    (429, "rate_limit_exceeded", openai.RateLimitError),
    (500, "server_error", openai.InternalServerError),
    (503, "overloaded", openai.InternalServerError),
    (529, "overloaded_error", openai.InternalServerError),
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("status", "kind", "error"), ERRORS, ids=[str(status) for status, _, _ in ERRORS])
def test_an_error_is_the_providers_own(
    lane: Lane, status: int, kind: str, error: type[Exception], stream: bool
) -> None:
    """Class, status, body and request id; the proxy tries nothing again by itself."""
    lane.upstream.rule = lambda request: failure(status, kind, "No, because of reasons: ü.")
    with pytest.raises(error) as caught:
        client(lane).chat.completions.create(model=MODEL, messages=ASK, stream=stream)
    seen: Any = caught.value
    assert len(lane.upstream.seen) == 1
    lane.note(text=str(seen), body=seen.body, status=seen.status_code, request_id=seen.request_id)


def test_an_error_that_is_not_json_is_passed_on(lane: Lane) -> None:
    """What a gateway in between may say."""
    page = (b"<html><h1>502 Bad Gateway</h1></html>",)
    lane.upstream.rule = lambda request: replies.Reply(502, (("Content-Type", "text/html"),), page)
    with pytest.raises(openai.InternalServerError) as caught:
        client(lane).responses.create(model=MODEL, input="Hi")
    lane.note(text=str(caught.value), body=caught.value.response.text)


def test_the_client_retries_as_the_provider_tells_it(lane: Lane) -> None:
    """Two refusals with a pause, then the answer: three requests, one idea."""
    lane.upstream.script = [
        failure(429, "rate_limit_exceeded", "Slowly.", (("Retry-After-Ms", "5"),)),
        failure(503, "overloaded", "Not now.", (("Retry-After", "0.01"),)),
    ]
    answer = client(lane, max_retries=2).chat.completions.create(model=MODEL, messages=ASK)
    assert answer.choices[0].message.content == replies.GREETING
    counts = [seen.request.header("x-stainless-retry-count") for seen in lane.upstream.seen]
    assert counts == ["0", "1", "2"]


def test_the_client_does_not_retry_when_told_not_to(lane: Lane) -> None:
    """`x-should-retry: false` reaches it."""
    lane.upstream.rule = lambda request: failure(500, "server_error", "Never.", (("X-Should-Retry", "false"),))
    with pytest.raises(openai.InternalServerError):
        client(lane, max_retries=3).chat.completions.create(model=MODEL, messages=ASK)
    assert len(lane.upstream.seen) == 1


def test_a_provider_that_hangs_up_without_a_word_is_asked_again_by_the_client(lane: Lane) -> None:
    """Direct, that is a connection error; the proxy can only say 502: the client retries both, the proxy neither."""
    lane.repeatable = False
    lane.upstream.script = [replies.Reply(silent=True)] * 2
    answer = client(lane, max_retries=2).chat.completions.create(model=MODEL, messages=ASK)
    assert answer.choices[0].message.content == replies.GREETING
    assert [seen.request.header("x-stainless-retry-count") for seen in lane.upstream.seen] == ["0", "1", "2"]


def test_a_redirect_is_followed_by_the_client(lane: Lane) -> None:
    """The proxy hands it on as it is."""
    there = replies.Reply(307, (("Location", "/v1/elsewhere/chat/completions?moved=yes"),))
    lane.upstream.rule = lambda request: None if "elsewhere" in request.target else there
    answer = client(lane).chat.completions.create(model=MODEL, messages=ASK)
    assert answer.choices[0].message.content == replies.GREETING
    assert lane.upstream.seen[1].request.target == "/v1/elsewhere/chat/completions?moved=yes"


def test_a_provider_that_drops_idle_connections_is_no_trouble(lane: Lane) -> None:
    """Each answer is followed by an unannounced hang-up; the next request goes out on a new connection."""
    lane.upstream.rule = lambda request: replace(say(request, "ok"), hangs_up=True)
    api = client(lane)
    for _ in range(5):
        assert api.chat.completions.create(model=MODEL, messages=ASK).choices[0].message.content == "ok"
        time.sleep(0.05)


@pytest.mark.parametrize("after", [0, 3], ids=["at-once", "in-the-middle"])
def test_a_cut_stream_ends_in_an_error(lane: Lane, after: int) -> None:
    """What came before is delivered, then the client learns of the cut (its error class may be another one)."""
    lane.upstream.rule = lambda request: replies.cut_after(say(request, "one two three four"), after)
    got: list[str] = []
    with pytest.raises(Exception):  # noqa: B017
        for chunk in client(lane).chat.completions.create(model=MODEL, messages=ASK, stream=True):
            got.append(chunk.choices[0].delta.content or "")
    lane.note(got=got)


def test_a_cut_answer_is_not_taken_for_a_whole_one(lane: Lane) -> None:
    """Fewer bytes than announced."""
    lane.upstream.rule = lambda request: replies.cut_after(say(request, "never whole"), 1)
    with pytest.raises(Exception) as caught:
        client(lane).chat.completions.create(model=MODEL, messages=ASK)
    lane.note(error=type(caught.value).__name__)


def test_an_error_event_in_a_stream_reaches_the_client(lane: Lane) -> None:
    """HTTP 200, then an error."""
    event = b'data: {"error": {"message": "Out of luck", "type": "server_error", "code": null}}\n\n'
    lane.upstream.rule = lambda request: replies.events([*say(request, "a b").pieces[:2], event])
    with pytest.raises(openai.APIError) as caught:
        list(client(lane).chat.completions.create(model=MODEL, messages=ASK, stream=True))
    lane.note(error=type(caught.value).__name__, text=str(caught.value))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_client_that_times_out_frees_the_provider(lane: Lane, stream: bool) -> None:
    """The client's own time-out ends the call upstream, too."""
    lane.upstream.rule = lambda request: replies.never(stream)
    with pytest.raises(Exception, match="timed out") as caught:
        list(client(lane, timeout=2).chat.completions.create(model=MODEL, messages=ASK, stream=stream))
    lane.note(error=type(caught.value).__name__)
    assert lane.upstream.wait_for(lambda: bool(lane.upstream.seen) and lane.upstream.seen[0].left)


def test_a_client_that_closes_a_stream_frees_the_provider(lane: Lane) -> None:
    """Leaving early stops the generation."""
    lane.upstream.rule = lambda request: replies.held_after(say(request, "one two three"), 3)
    with client(lane).chat.completions.create(model=MODEL, messages=ASK, stream=True) as stream:
        first = [next(stream).choices[0].delta.content for _ in range(3)]
    assert lane.upstream.wait_for(lambda: lane.upstream.seen[0].left)
    lane.note(first=first)


def test_a_cancelled_task_frees_the_provider(lane: Lane) -> None:
    """Asyncio's cancellation, while the answer is awaited."""
    lane.upstream.rule = lambda request: replies.never()

    async def leave() -> None:
        async with async_client(lane) as api:
            task = asyncio.ensure_future(api.responses.create(model=MODEL, input="Hi"))
            assert await asyncio.to_thread(lane.upstream.wait_for, lambda: bool(lane.upstream.seen))
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    asyncio.run(leave())
    assert lane.upstream.wait_for(lambda: lane.upstream.seen[0].left)


def test_a_slow_stream_arrives_as_it_is_made(lane: Lane) -> None:
    """The first words are there while the provider still waits."""
    lane.upstream.rule = lambda request: replies.held_after(say(request, "one two three"), 3, seconds=0.5)
    answered = []
    for chunk in client(lane).chat.completions.create(model=MODEL, messages=ASK, stream=True):
        answered.append((chunk.choices[0].delta.content, lane.upstream.seen[0].answered))
    assert answered[:3] == [("", False), ("one ", False), ("two ", False)]


def test_many_calls_at_once_do_not_mix(lane: Lane) -> None:
    """Each caller gets the answer to its own question, streamed or not."""
    lane.repeatable = lane.paths = False

    def echo(request: Request) -> replies.Reply:
        asked = replies.body_of(request)["messages"][-1]["content"]
        return replies.paced(say(request, f"You said {asked}"), 0.01)

    lane.upstream.rule = echo

    async def ask(api: AsyncOpenAI, number: int) -> str:
        messages: Any = [{"role": "user", "content": f"number {number}"}]
        if number % 2:
            answer = await api.chat.completions.create(model=MODEL, messages=messages)
            return answer.choices[0].message.content or ""
        stream = await api.chat.completions.create(model=MODEL, messages=messages, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def crowd() -> list[str]:
        async with async_client(lane) as api:
            return await asyncio.gather(*(ask(api, number) for number in range(24)))

    assert asyncio.run(crowd()) == [f"You said number {number}" for number in range(24)]


def test_a_large_request_and_a_large_answer_pass_whole(lane: Lane) -> None:
    """Megabytes of inline data in both directions."""
    picture = "data:image/png;base64," + "iVBORw0KGgo" * 200_000
    messages: Any = [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": picture, "detail": "low"}}]}
    ]
    lane.upstream.rule = lambda request: say(request, "long text " * 200_000)
    answer = client(lane).chat.completions.create(model=MODEL, messages=messages)
    assert len(answer.choices[0].message.content or "") == 2_000_000


def test_the_sdks_cookies_stay_with_their_caller(lane: Lane) -> None:
    """A second client never sends the cookies that the first one was given."""
    for _ in range(2):
        client(lane).models.list()
    assert [seen.request.header("cookie") for seen in lane.upstream.seen] == [None, None]


def test_a_realtime_websocket_carries_messages_both_ways(lane: Lane) -> None:
    """The handshake's query and credentials arrive, then every message, until the client closes."""
    lane.upstream.sockets = "echo"

    async def talk() -> list[Any]:
        async with async_client(lane) as api, api.realtime.connect(model="gpt-realtime-test") as connection:
            await connection.send({"type": "session.update", "session": {"type": "realtime", "instructions": "ü 東京"}})
            first = await connection.recv()
            await connection.send({"type": "response.create", "response": {"instructions": "long " * 1000}})
            return [first.model_dump(), (await connection.recv()).model_dump()]

    heard = asyncio.run(talk())
    asked = lane.upstream.seen[0].request
    assert asked.target == "/v1/realtime?model=gpt-realtime-test"
    assert asked.header("authorization") == f"Bearer {KEY}"
    assert (asked.header("user-agent") or "").startswith("AsyncOpenAI/Python")
    assert lane.upstream.wait_for(lambda: lane.upstream.seen[0].answered)
    lane.note(heard=heard)


def test_a_refused_websocket_shows_the_providers_refusal(lane: Lane) -> None:
    """Status and body of the provider's own answer."""

    async def knock() -> None:
        async with async_client(lane) as api, api.realtime.connect(model="gpt-realtime-test") as connection:
            await connection.recv()

    with pytest.raises(Exception) as caught:
        asyncio.run(knock())
    response = getattr(caught.value, "response", None)
    lane.note(error=type(caught.value).__name__, text=str(caught.value), status=getattr(response, "status_code", None))
    lane.note(body=bytes(getattr(response, "body", b"")).decode())
