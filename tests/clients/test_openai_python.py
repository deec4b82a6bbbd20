"""The official OpenAI SDK for Python behaves through the proxy as it does without it."""

import asyncio
import contextlib
import time
from dataclasses import replace
from typing import Any

import openai
import pytest
import replies
from client_link import KEY, ClientLink
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


def client(link: ClientLink, **options: Any) -> OpenAI:
    """A synchronous client on a link."""
    return OpenAI(**{"base_url": link.v1, "api_key": KEY, "timeout": 30, "max_retries": 0} | options)


def async_client(link: ClientLink, **options: Any) -> AsyncOpenAI:
    """An asynchronous client on a link."""
    return AsyncOpenAI(**{"base_url": link.v1, "api_key": KEY, "timeout": 30, "max_retries": 0} | options)


def test_a_chat_completion_is_answered(link: ClientLink) -> None:
    """The plain case, with its request id."""
    answer = client(link).chat.completions.create(model=MODEL, messages=ASK)
    assert answer.choices[0].message.content == replies.GREETING
    assert answer._request_id == "req_0001"
    link.note(answer=answer.model_dump())


def test_an_async_chat_completion_is_answered(link: ClientLink) -> None:
    """The same from asyncio."""

    async def ask() -> Any:
        async with async_client(link) as api:
            return await api.chat.completions.create(model=MODEL, messages=ASK)

    answer = asyncio.run(ask())
    assert answer.choices[0].message.content == replies.GREETING
    link.note(answer=answer.model_dump())


def test_a_streamed_chat_arrives_chunk_by_chunk_with_usage(link: ClientLink) -> None:
    """Every chunk is the one that the provider sent."""
    options: Any = {"include_usage": True}
    stream = client(link).chat.completions.create(model=MODEL, messages=ASK, stream=True, stream_options=options)
    chunks = [chunk.model_dump() for chunk in stream]
    assert "".join(c["choices"][0]["delta"]["content"] or "" for c in chunks if c["choices"]) == replies.GREETING
    assert chunks[-1]["usage"]["total_tokens"] == 29
    link.note(chunks=chunks)


def test_a_streamed_chat_without_the_usage_option_gets_none(link: ClientLink) -> None:
    """The proxy asks for nothing that the client did not ask for."""
    chunks = list(client(link).chat.completions.create(model=MODEL, messages=ASK, stream=True))
    assert all(chunk.usage is None for chunk in chunks)
    assert b"stream_options" not in link.upstream.received[0].request.body


def test_an_async_stream_helper_collects_a_chat(link: ClientLink) -> None:
    """The SDK's own accumulator sees a legal stream."""

    async def ask() -> tuple[list[str], Any]:
        async with async_client(link) as api, api.chat.completions.stream(model=MODEL, messages=ASK) as stream:
            kinds = [event.type async for event in stream]
            return kinds, await stream.get_final_completion()

    kinds, final = asyncio.run(ask())
    assert final.choices[0].message.content == replies.GREETING
    link.note(kinds=kinds, final=final.model_dump())


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_tool_call_goes_out_and_its_result_comes_back(link: ClientLink, stream: bool) -> None:
    """Two requests of a tool loop."""
    link.upstream.rule = steps([Call("get_weather", {"city": "Paris, île"})], "It says: {result}")
    api = client(link)
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
    link.note(message=message.model_dump())


def test_parallel_tool_calls_stay_apart(link: ClientLink) -> None:
    """Two calls and a text in one streamed answer."""
    link.upstream.rule = steps(
        ["Looking.", Call("get_weather", {"city": "A"}), Call("get_weather", {"city": "B"})], "x"
    )
    with client(link).chat.completions.stream(model=MODEL, messages=ASK, tools=[WEATHER]) as events:
        message = events.get_final_completion().choices[0].message
    assert [call.function.arguments for call in message.tool_calls or []] == ['{"city": "A"}', '{"city": "B"}']
    link.note(message=message.model_dump())


def test_a_structured_chat_is_parsed(link: ClientLink) -> None:
    """`parse` sends a schema and reads the answer by it."""
    answer = client(link).chat.completions.parse(model=MODEL, messages=ASK, response_format=Trip)
    assert answer.choices[0].message.parsed == Trip(city="Paris", days=3)
    link.note(answer=answer.model_dump())


def test_a_response_is_answered_parsed_fetched_and_deleted(link: ClientLink) -> None:
    api = client(link)
    answer = api.responses.create(model=MODEL, input="Hi", instructions="Be brief.", metadata={"a": "b"})
    parsed = api.responses.parse(model=MODEL, input="Plan", text_format=Trip)
    again = api.responses.retrieve("resp_42", include=["reasoning.encrypted_content"])
    count = api.responses.input_tokens.count(model=MODEL, input="Hi")
    api.responses.delete("resp_42")
    assert answer.output_text == replies.GREETING
    assert parsed.output_parsed == Trip(city="Paris", days=3)
    link.note(
        answer=answer.model_dump(), parsed=parsed.model_dump(), again=again.model_dump(), count=count.model_dump()
    )


def test_a_streamed_response_arrives_event_by_event(link: ClientLink) -> None:
    """Every event with its sequence number."""
    events = [event.model_dump() for event in client(link).responses.create(model=MODEL, input="Hi", stream=True)]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == replies.GREETING
    link.note(events=events)


def test_a_streamed_response_with_a_tool_loop_ends_in_text(link: ClientLink) -> None:
    """Function calls and their outputs as items."""
    link.upstream.rule = steps([Call("get_weather", {"city": "Oslo"})], "So: {result}")
    tool: Any = {"type": "function", "strict": None} | WEATHER["function"]
    api, items = client(link), list[Any]([{"role": "user", "content": "Weather?"}])
    for _ in range(2):
        with api.responses.stream(model=MODEL, input=items, tools=[tool]) as stream:
            final = stream.get_final_response()
        calls = [item for item in final.output if item.type == "function_call"]
        items += [item.model_dump(exclude_none=True) for item in final.output]
        items += [{"type": "function_call_output", "call_id": call.call_id, "output": "-3 °C"} for call in calls]
    assert final.output_text == "So: -3 °C"
    link.note(final=final.model_dump())


def test_a_response_that_continues_another_goes_on_unchanged(link: ClientLink) -> None:
    """`previous_response_id` is the provider's business."""
    api = client(link)
    first = api.responses.create(model=MODEL, input="Hi")
    second = api.responses.create(model=MODEL, input="And?", previous_response_id=first.id, store=True)
    assert second.output_text == replies.GREETING


def test_embeddings_come_back_as_numbers(link: ClientLink) -> None:
    """Base64 by default, floats on demand."""
    api = client(link)
    packed = api.embeddings.create(model="text-embedding-test", input=["one", "two"])
    plain = api.embeddings.create(model="text-embedding-test", input="one", encoding_format="float")
    assert plain.data[0].embedding == [0.25, -0.5, 1e-7]
    link.note(packed=packed.model_dump(), plain=plain.model_dump())


def test_models_are_listed_and_fetched(link: ClientLink) -> None:
    """GET requests, with a slash in a model's name and a query of the caller's own."""
    api = client(link)
    page = api.models.list(extra_query={"after": "a b+c/ü", "empty": ""})
    one = api.models.retrieve("ft:gpt/own model")
    link.note(page=page.model_dump(), one=one.model_dump())


def test_a_file_is_uploaded_listed_downloaded_and_deleted(link: ClientLink) -> None:
    """Multipart up, binary down."""
    api = client(link)
    made = api.files.create(file=("nötes.bin", replies.BINARY * 20), purpose="user_data")
    content = api.files.content(made.id).read()
    listed = api.files.list(limit=1)
    gone = api.files.delete(made.id)
    assert content == replies.BINARY
    link.note(made=made.model_dump(), listed=listed.model_dump(), gone=gone.model_dump())


def test_speech_is_streamed_to_the_caller_as_bytes(link: ClientLink) -> None:
    """A binary answer to a JSON request."""
    with client(link).audio.speech.with_streaming_response.create(model="tts", voice="alloy", input="Hi") as answer:
        assert b"".join(answer.iter_bytes(777)) == replies.BINARY


def test_a_raw_response_shows_the_providers_headers(link: ClientLink) -> None:
    """Status, headers, repeated headers and body as the provider sent them."""
    raw = client(link).chat.completions.with_raw_response.create(model=MODEL, messages=ASK)
    headers = [(key, value) for key, value in raw.headers.multi_items() if not key.lower().startswith("x-accordion-")]
    assert raw.headers["openai-processing-ms"] == "17"
    assert [value for key, value in headers if key.lower() == "set-cookie"] == [
        "__session=one; Path=/; HttpOnly",
        "__other=two; Path=/",
    ]
    link.note(headers=sorted(headers), text=raw.text, status=raw.status_code)


def test_own_headers_query_and_body_fields_reach_the_provider(link: ClientLink) -> None:
    """Extra fields of any kind, organisation and project headers, numbers as they were written."""
    api = client(link, organization="org-1", project="proj-1", default_headers={"X-Trace": "a, b;c=d"})
    extra: Any = {"vendor": {"nested": [1, 2.50, 1e22, -0.0, 12345678901234567890, None, "\u2028", "\x7f"]}}
    api.chat.completions.create(
        model=MODEL,
        messages=ASK,
        extra_headers={"X-One": "1", "X-Empty": ""},
        extra_query={"api-version": "2026-01-01", "q": "ä&b"},
        extra_body=extra,
    )
    request = link.upstream.received[0].request
    assert request.header("openai-organization") == "org-1"
    assert request.header("authorization") == f"Bearer {KEY}"
    assert request.target.endswith("?api-version=2026-01-01&q=%C3%A4%26b")


def test_a_compressed_answer_stays_compressed(link: ClientLink) -> None:
    """The provider's gzip reaches the client, whole and streamed."""
    link.upstream.rule = lambda request: replies.zipped(say(request, "Zipped ✓"))
    api = client(link)
    whole = api.chat.completions.create(model=MODEL, messages=ASK)
    parts = [
        c.choices[0].delta.content or "" for c in api.chat.completions.create(model=MODEL, messages=ASK, stream=True)
    ]
    assert whole.choices[0].message.content == "".join(parts) == "Zipped ✓"
    assert all(("content-encoding", "gzip") in (e.response.headers if e.response else ()) for e in link.exchanges())


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_a_stream_cut_into_any_pieces_reads_the_same(link: ClientLink, size: int) -> None:
    """Events and characters split over writes."""
    link.upstream.rule = lambda request: replies.in_small_pieces(say(request, replies.GREETING), size)
    chunks = list(client(link).chat.completions.create(model=MODEL, messages=ASK, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == replies.GREETING


def test_odd_events_in_a_stream_are_passed_on(link: ClientLink) -> None:
    """Comments, ids, CRLF line ends, unknown fields and a line without a space."""
    odd = [
        b": keep-alive\r\n\r\n",
        b'retry: 10\nid: 7\ndata:{"id":"1","object":"chat.completion.chunk","created":1,"model":"m","new":{"a":1.0},'
        b'"choices":[{"index":0,"delta":{"content":"od\\u0064"}}]}\r\n\r\n',
        b'data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"m",\ndata: "choices":[]}\n\n',
        b"data: [DONE]\n\n",
    ]
    link.upstream.rule = lambda request: replies.events([*odd])
    chunks = list(client(link).chat.completions.create(model=MODEL, messages=ASK, stream=True))
    assert chunks[0].choices[0].delta.content == "odd"
    link.note(chunks=[chunk.model_dump() for chunk in chunks])


def test_odd_json_is_passed_on_as_it_was_written(link: ClientLink) -> None:
    """White space, escapes, repeated keys, big numbers and a field nobody knows."""
    body = (
        b'{ "id":"1" , "object": "chat.completion",\n"created":1, "model":"m","model":"m", "big": 12345678901234567890,'
        b' "choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"\\u00e9\\/"}}], '
        b'"x":1.50}\n\n'
    )
    json_type = (("Content-Type", "application/json; charset=utf-8"),)
    link.upstream.script = [
        replies.Reply(200, json_type, (body,)),
        replies.Reply(200, json_type, (body,), chunked=True),
    ]
    for _ in range(2):
        answer = client(link).chat.completions.create(model=MODEL, messages=ASK)
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
    link: ClientLink, status: int, kind: str, error: type[Exception], stream: bool
) -> None:
    """Class, status, body and request id; the proxy tries nothing again by itself."""
    link.upstream.rule = lambda request: failure(status, kind, "No, because of reasons: ü.")
    with pytest.raises(error) as caught:
        client(link).chat.completions.create(model=MODEL, messages=ASK, stream=stream)
    seen: Any = caught.value
    assert len(link.upstream.received) == 1
    link.note(text=str(seen), body=seen.body, status=seen.status_code, request_id=seen.request_id)


def test_an_error_that_is_not_json_is_passed_on(link: ClientLink) -> None:
    """What a gateway in between may say."""
    page = (b"<html><h1>502 Bad Gateway</h1></html>",)
    link.upstream.rule = lambda request: replies.Reply(502, (("Content-Type", "text/html"),), page)
    with pytest.raises(openai.InternalServerError) as caught:
        client(link).responses.create(model=MODEL, input="Hi")
    link.note(text=str(caught.value), body=caught.value.response.text)


def test_the_client_retries_as_the_provider_tells_it(link: ClientLink) -> None:
    """Two refusals with a pause, then the answer: three requests, one idea."""
    link.upstream.script = [
        failure(429, "rate_limit_exceeded", "Slowly.", (("Retry-After-Ms", "5"),)),
        failure(503, "overloaded", "Not now.", (("Retry-After", "0.01"),)),
    ]
    answer = client(link, max_retries=2).chat.completions.create(model=MODEL, messages=ASK)
    assert answer.choices[0].message.content == replies.GREETING
    counts = [seen.request.header("x-stainless-retry-count") for seen in link.upstream.received]
    assert counts == ["0", "1", "2"]


def test_the_client_does_not_retry_when_told_not_to(link: ClientLink) -> None:
    """`x-should-retry: false` reaches it."""
    link.upstream.rule = lambda request: failure(500, "server_error", "Never.", (("X-Should-Retry", "false"),))
    with pytest.raises(openai.InternalServerError):
        client(link, max_retries=3).chat.completions.create(model=MODEL, messages=ASK)
    assert len(link.upstream.received) == 1


def test_a_provider_that_hangs_up_without_a_word_is_asked_again_by_the_client(link: ClientLink) -> None:
    """Direct, that is a connection error; the proxy can only say 502: the client retries both, the proxy neither."""
    link.repeatable = False
    link.upstream.script = [replies.Reply(silent=True)] * 2
    answer = client(link, max_retries=2).chat.completions.create(model=MODEL, messages=ASK)
    assert answer.choices[0].message.content == replies.GREETING
    assert [seen.request.header("x-stainless-retry-count") for seen in link.upstream.received] == ["0", "1", "2"]


def test_a_redirect_is_followed_by_the_client(link: ClientLink) -> None:
    """The proxy hands it on as it is."""
    there = replies.Reply(307, (("Location", "/v1/elsewhere/chat/completions?moved=yes"),))
    link.upstream.rule = lambda request: None if "elsewhere" in request.target else there
    answer = client(link).chat.completions.create(model=MODEL, messages=ASK)
    assert answer.choices[0].message.content == replies.GREETING
    assert link.upstream.received[1].request.target == "/v1/elsewhere/chat/completions?moved=yes"


def test_a_provider_that_drops_idle_connections_is_no_trouble(link: ClientLink) -> None:
    """Each answer is followed by an unannounced hang-up; the next request goes out on a new connection."""
    link.upstream.rule = lambda request: replace(say(request, "ok"), hangs_up=True)
    api = client(link)
    for _ in range(5):
        assert api.chat.completions.create(model=MODEL, messages=ASK).choices[0].message.content == "ok"
        time.sleep(0.05)


@pytest.mark.parametrize("after", [0, 3], ids=["at-once", "in-the-middle"])
def test_a_cut_stream_ends_in_an_error(link: ClientLink, after: int) -> None:
    """What came before is delivered, then the client learns of the cut (its error class may be another one)."""
    link.upstream.rule = lambda request: replies.cut_after(say(request, "one two three four"), after)
    got: list[str] = []
    with pytest.raises(Exception):  # noqa: B017
        for chunk in client(link).chat.completions.create(model=MODEL, messages=ASK, stream=True):
            got.append(chunk.choices[0].delta.content or "")
    link.note(got=got)


def test_a_cut_answer_is_not_taken_for_a_whole_one(link: ClientLink) -> None:
    """Fewer bytes than announced."""
    link.upstream.rule = lambda request: replies.cut_after(say(request, "never whole"), 1)
    with pytest.raises(Exception) as caught:
        client(link).chat.completions.create(model=MODEL, messages=ASK)
    link.note(error=type(caught.value).__name__)


def test_an_error_event_in_a_stream_reaches_the_client(link: ClientLink) -> None:
    """HTTP 200, then an error."""
    event = b'data: {"error": {"message": "Out of luck", "type": "server_error", "code": null}}\n\n'
    link.upstream.rule = lambda request: replies.events([*say(request, "a b").pieces[:2], event])
    with pytest.raises(openai.APIError) as caught:
        list(client(link).chat.completions.create(model=MODEL, messages=ASK, stream=True))
    link.note(error=type(caught.value).__name__, text=str(caught.value))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_client_that_times_out_frees_the_provider(link: ClientLink, stream: bool) -> None:
    """The client's own time-out ends the call upstream, too."""
    link.upstream.rule = lambda request: replies.never(stream)
    with pytest.raises(Exception, match="timed out") as caught:
        list(client(link, timeout=2).chat.completions.create(model=MODEL, messages=ASK, stream=stream))
    link.note(error=type(caught.value).__name__)
    assert link.upstream.wait_for(lambda: bool(link.upstream.received) and link.upstream.received[0].left)


def test_a_client_that_closes_a_stream_frees_the_provider(link: ClientLink) -> None:
    """Leaving early stops the generation."""
    link.upstream.rule = lambda request: replies.held_after(say(request, "one two three"), 3)
    with client(link).chat.completions.create(model=MODEL, messages=ASK, stream=True) as stream:
        first = [next(stream).choices[0].delta.content for _ in range(3)]
    assert link.upstream.wait_for(lambda: link.upstream.received[0].left)
    link.note(first=first)


def test_a_cancelled_task_frees_the_provider(link: ClientLink) -> None:
    """Asyncio's cancellation, while the answer is awaited."""
    link.upstream.rule = lambda request: replies.never()

    async def leave() -> None:
        async with async_client(link) as api:
            task = asyncio.ensure_future(api.responses.create(model=MODEL, input="Hi"))
            assert await asyncio.to_thread(link.upstream.wait_for, lambda: bool(link.upstream.received))
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    asyncio.run(leave())
    assert link.upstream.wait_for(lambda: link.upstream.received[0].left)


def test_a_slow_stream_arrives_as_it_is_made(link: ClientLink) -> None:
    """The first words are there while the provider still waits."""
    link.upstream.rule = lambda request: replies.held_after(say(request, "one two three"), 3, seconds=0.5)
    answered = []
    for chunk in client(link).chat.completions.create(model=MODEL, messages=ASK, stream=True):
        answered.append((chunk.choices[0].delta.content, link.upstream.received[0].answered))
    assert answered[:3] == [("", False), ("one ", False), ("two ", False)]


def test_many_calls_at_once_do_not_mix(link: ClientLink) -> None:
    """Each caller gets the answer to its own question, streamed or not."""
    link.repeatable = link.paths = False

    def echo(request: Request) -> replies.Reply:
        asked = replies.body_of(request)["messages"][-1]["content"]
        return replies.paced(say(request, f"You said {asked}"), 0.01)

    link.upstream.rule = echo

    async def ask(api: AsyncOpenAI, number: int) -> str:
        messages: Any = [{"role": "user", "content": f"number {number}"}]
        if number % 2:
            answer = await api.chat.completions.create(model=MODEL, messages=messages)
            return answer.choices[0].message.content or ""
        stream = await api.chat.completions.create(model=MODEL, messages=messages, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def crowd() -> list[str]:
        async with async_client(link) as api:
            return await asyncio.gather(*(ask(api, number) for number in range(24)))

    assert asyncio.run(crowd()) == [f"You said number {number}" for number in range(24)]


def test_a_large_request_and_a_large_answer_pass_whole(link: ClientLink) -> None:
    """Megabytes of inline data in both directions."""
    picture = "data:image/png;base64," + "iVBORw0KGgo" * 200_000
    messages: Any = [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": picture, "detail": "low"}}]}
    ]
    link.upstream.rule = lambda request: say(request, "long text " * 200_000)
    answer = client(link).chat.completions.create(model=MODEL, messages=messages)
    assert len(answer.choices[0].message.content or "") == 2_000_000


def test_the_sdks_cookies_stay_with_their_caller(link: ClientLink) -> None:
    """A second client never sends the cookies that the first one was given."""
    for _ in range(2):
        client(link).models.list()
    assert [seen.request.header("cookie") for seen in link.upstream.received] == [None, None]


def test_a_realtime_websocket_carries_messages_both_ways(link: ClientLink) -> None:
    """The handshake's query and credentials arrive, then every message, until the client closes."""
    link.upstream.sockets = "echo"

    async def talk() -> list[Any]:
        async with async_client(link) as api, api.realtime.connect(model="gpt-realtime-test") as connection:
            await connection.send({"type": "session.update", "session": {"type": "realtime", "instructions": "ü 東京"}})
            first = await connection.recv()
            await connection.send({"type": "response.create", "response": {"instructions": "long " * 1000}})
            return [first.model_dump(), (await connection.recv()).model_dump()]

    heard = asyncio.run(talk())
    asked = link.upstream.received[0].request
    assert asked.target == "/v1/realtime?model=gpt-realtime-test"
    assert asked.header("authorization") == f"Bearer {KEY}"
    assert (asked.header("user-agent") or "").startswith("AsyncOpenAI/Python")
    assert link.upstream.wait_for(lambda: link.upstream.received[0].answered)
    link.note(heard=heard)


def test_a_refused_websocket_shows_the_providers_refusal(link: ClientLink) -> None:
    """Status and body of the provider's own answer."""

    async def knock() -> None:
        async with async_client(link) as api, api.realtime.connect(model="gpt-realtime-test") as connection:
            await connection.recv()

    with pytest.raises(Exception) as caught:
        asyncio.run(knock())
    response = getattr(caught.value, "response", None)
    link.note(error=type(caught.value).__name__, text=str(caught.value), status=getattr(response, "status_code", None))
    link.note(body=bytes(getattr(response, "body", b"")).decode())
