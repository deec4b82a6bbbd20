"""The official Anthropic SDK for Python behaves through the proxy as it does without it."""

import asyncio
import contextlib
from typing import Any

import anthropic
import pytest
import replies
from anthropic import Anthropic, AsyncAnthropic
from lane import KEY, Lane
from replies import Call, failure, say, steps

MODEL = "claude-test"
ASK: list[Any] = [{"role": "user", "content": "Grüße aus 東京 🦜 — what is up?"}]
WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def client(lane: Lane, **options: Any) -> Anthropic:
    """A synchronous client on a lane."""
    return Anthropic(**{"base_url": lane.origin, "api_key": KEY, "timeout": 30, "max_retries": 0} | options)


def async_client(lane: Lane, **options: Any) -> AsyncAnthropic:
    """An asynchronous client on a lane."""
    return AsyncAnthropic(**{"base_url": lane.origin, "api_key": KEY, "timeout": 30, "max_retries": 0} | options)


def ask(api: Anthropic, **options: Any) -> Any:
    """One message."""
    return api.messages.create(**{"model": MODEL, "max_tokens": 100, "messages": ASK} | options)


def test_a_message_is_answered(lane: Lane) -> None:
    """The plain case, with its request id."""
    answer = ask(client(lane), system=[{"type": "text", "text": "Brief.", "cache_control": {"type": "ephemeral"}}])
    assert answer.content[0].text == replies.GREETING
    assert answer._request_id == "req_0001"
    lane.note(answer=answer.model_dump())


def test_an_async_message_is_answered(lane: Lane) -> None:
    """The same from asyncio."""

    async def main() -> Any:
        async with async_client(lane) as api:
            return await api.messages.create(model=MODEL, max_tokens=100, messages=ASK)

    lane.note(answer=asyncio.run(main()).model_dump())


def test_a_bearer_token_is_passed_on_like_a_key(lane: Lane) -> None:
    """All ways to prove who is calling; the SDK itself now sends its key as a bearer token."""
    ask(client(lane))
    ask(client(lane, api_key=None, auth_token="token-not-a-secret"))
    ask(client(lane, api_key=None, default_headers={"X-Api-Key": KEY}))
    shown = [(one.request.header("x-api-key"), one.request.header("authorization")) for one in lane.upstream.seen]
    assert shown == [(None, f"Bearer {KEY}"), (None, "Bearer token-not-a-secret"), (KEY, None)]


def test_a_streamed_message_arrives_event_by_event(lane: Lane) -> None:
    """Raw events, pings among them."""
    events = [event.model_dump() for event in ask(client(lane), stream=True)]
    assert "".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta") == replies.GREETING
    lane.note(events=events)


def test_the_stream_helper_collects_a_message(lane: Lane) -> None:
    """Text as it comes, the whole message at the end."""
    with client(lane).messages.stream(model=MODEL, max_tokens=100, messages=ASK) as stream:
        text = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(text) == replies.GREETING
    lane.note(text=text, final=final.model_dump())


def test_the_async_stream_helper_collects_a_message(lane: Lane) -> None:
    """The same from asyncio."""

    async def main() -> Any:
        options: Any = {"model": MODEL, "max_tokens": 100, "messages": ASK}
        async with async_client(lane) as api, api.messages.stream(**options) as stream:
            kinds = [event.type async for event in stream]
            return kinds, (await stream.get_final_message()).model_dump()

    lane.note(seen=asyncio.run(main()))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_tool_call_goes_out_and_its_result_comes_back(lane: Lane, stream: bool) -> None:
    """Two requests of a tool loop, with two calls in one turn."""
    calls: list[Any] = ["Looking.", Call("get_weather", {"city": "Paris"}), Call("get_weather", {"city": "Ōsaka"})]
    lane.upstream.rule = steps(calls, "a", "It says: {result}")
    api, messages = client(lane), [*ASK]
    for _ in range(2):
        options: Any = {"model": MODEL, "max_tokens": 100, "messages": messages, "tools": [WEATHER]}
        if stream:
            with api.messages.stream(**options) as events:
                answer = events.get_final_message()
        else:
            answer = api.messages.create(**options)
        uses = [block for block in answer.content if block.type == "tool_use"]
        if not uses:
            break
        results = [{"type": "tool_result", "tool_use_id": use.id, "content": "22 °C"} for use in uses]
        messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]
    assert answer.content[0].to_dict()["text"] == "It says: 22 °C"
    lane.note(answer=answer.model_dump())


THOUGHT = [
    b"event: message_start\n"
    b'data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"claude-test",'
    b'"content":[],"stop_reason":null,"usage":{"input_tokens":1,"output_tokens":1}}}\n\n',
    b"event: content_block_start\n"
    b'data: {"type":"content_block_start","index":0,'
    b'"content_block":{"type":"thinking","thinking":"","signature":""}}\n\n',
    b"event: content_block_delta\n"
    b'data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Hm \\u2014 so."}}\n\n',
    b"event: content_block_delta\n"
    b'data: {"type":"content_block_delta","index":0,"delta":'
    b'{"type":"signature_delta","signature":"c2lnbmF0dXJl+/=="}}\n\n',
    b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n',
    b"event: message_delta\n"
    b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":5}}\n\n',
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
]


def test_thinking_blocks_come_and_go_back_unchanged(lane: Lane) -> None:
    """A signed block in a stream, sent back with the next turn."""
    lane.upstream.rule = lambda request: replies.events([*THOUGHT])
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    options: Any = {"model": MODEL, "max_tokens": 2000, "thinking": thinking}
    with client(lane).messages.stream(messages=ASK, **options) as stream:
        final = stream.get_final_message()
    more = [*ASK, {"role": "assistant", "content": final.content}, {"role": "user", "content": "Go on."}]
    with client(lane).messages.stream(messages=more, **options) as stream:
        stream.until_done()
    assert b"c2lnbmF0dXJl+/==" in lane.upstream.seen[1].request.body
    lane.note(final=final.model_dump())


def test_tokens_are_counted_by_the_provider(lane: Lane) -> None:
    """`count_tokens` for a conversation that needs nothing."""
    count = client(lane).messages.count_tokens(model=MODEL, messages=ASK, tools=[WEATHER])
    assert count.input_tokens == 19


def test_batches_are_made_listed_fetched_and_cancelled(lane: Lane) -> None:
    """Batches, with results as JSON lines."""
    api = client(lane)
    params: Any = {"model": MODEL, "max_tokens": 10, "messages": ASK}
    made = api.messages.batches.create(requests=[{"custom_id": "one", "params": params}])
    listed = [batch.id for batch in api.messages.batches.list(limit=2)]
    fetched = api.messages.batches.retrieve(made.id)
    cancelled = api.messages.batches.cancel(made.id)
    lane.note(made=made.model_dump(), listed=listed, fetched=fetched.model_dump(), cancelled=cancelled.model_dump())


def test_models_are_listed(lane: Lane) -> None:
    """A GET with a query."""
    lane.note(models=[model.model_dump() for model in client(lane).models.list(limit=5)])


def test_a_raw_response_shows_the_providers_headers(lane: Lane) -> None:
    """Status, headers, repeated headers and body as the provider sent them."""
    raw = client(lane).messages.with_raw_response.create(model=MODEL, max_tokens=100, messages=ASK)
    headers = [(key, value) for key, value in raw.headers.multi_items() if not key.lower().startswith("x-accordion-")]
    assert raw.headers["anthropic-ratelimit-requests-remaining"] == "49"
    lane.note(headers=sorted(headers), text=raw.text(), status=raw.status_code)


def test_beta_headers_and_unknown_fields_reach_the_provider(lane: Lane) -> None:
    """Betas, extra headers, query and body."""
    api = client(lane, default_headers={"X-Trace": "abc"})
    api.beta.messages.create(
        model=MODEL,
        max_tokens=100,
        messages=ASK,
        betas=["one-2026-01-01", "two-2026-02-02"],
        extra_query={"q": "ä&b"},
        extra_body={"vendor": {"numbers": [1.0, 1e-9, 12345678901234567890]}},
    )
    request = lane.upstream.seen[0].request
    assert request.header("anthropic-beta") == "one-2026-01-01,two-2026-02-02"
    assert request.header("x-trace") == "abc"


ERRORS = [
    (400, "invalid_request_error", anthropic.BadRequestError),
    (401, "authentication_error", anthropic.AuthenticationError),
    (403, "permission_error", anthropic.PermissionDeniedError),
    (404, "not_found_error", anthropic.NotFoundError),
    (422, "unprocessable", anthropic.UnprocessableEntityError),
    (429, "rate_limit_error", anthropic.RateLimitError),
    (500, "api_error", anthropic.InternalServerError),
    (529, "overloaded_error", anthropic.InternalServerError),
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("status", "kind", "error"), ERRORS, ids=[str(status) for status, _, _ in ERRORS])
def test_an_error_is_the_providers_own(
    lane: Lane, status: int, kind: str, error: type[Exception], stream: bool
) -> None:
    """Class, status, body and request id; the proxy tries nothing again by itself."""
    lane.upstream.rule = lambda request: failure(status, kind, "No, because of reasons: ü.")
    with pytest.raises(error) as caught:
        ask(client(lane), stream=stream)
    seen: Any = caught.value
    assert len(lane.upstream.seen) == 1
    lane.note(text=str(seen), body=seen.body, status=seen.status_code, request_id=seen.request_id)


def test_an_overloaded_event_in_a_stream_reaches_the_client(lane: Lane) -> None:
    """HTTP 200, then `overloaded_error`."""
    event = b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}\n\n'
    lane.upstream.rule = lambda request: replies.events([*say(request, "a b").pieces[:4], event])
    got: list[str] = []
    options: Any = {"model": MODEL, "max_tokens": 100, "messages": ASK}
    with pytest.raises(anthropic.APIStatusError) as caught, client(lane).messages.stream(**options) as stream:
        got.extend(stream.text_stream)
    lane.note(got=got, error=type(caught.value).__name__, body=caught.value.body)


def test_the_client_retries_as_the_provider_tells_it(lane: Lane) -> None:
    """Overloaded twice, then the answer."""
    lane.upstream.script = [
        failure(529, "overloaded_error", "Overloaded", (("Retry-After-Ms", "5"),)),
        failure(429, "rate_limit_error", "Slowly.", (("Retry-After-Ms", "5"),)),
    ]
    assert ask(client(lane, max_retries=2)).content[0].text == replies.GREETING
    assert [seen.request.header("x-stainless-retry-count") for seen in lane.upstream.seen] == ["0", "1", "2"]


@pytest.mark.parametrize("after", [0, 4], ids=["at-once", "in-the-middle"])
def test_a_cut_stream_ends_in_an_error(lane: Lane, after: int) -> None:
    """What came before is delivered, then the client learns of the cut (its error class may be another one)."""
    lane.upstream.rule = lambda request: replies.cut_after(say(request, "one two three four"), after)
    got: list[str] = []
    with pytest.raises(Exception):  # noqa: B017
        for event in ask(client(lane), stream=True):
            got.append(event.type)
    lane.note(got=got)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_client_that_times_out_frees_the_provider(lane: Lane, stream: bool) -> None:
    """The client's own time-out ends the call upstream, too."""
    lane.upstream.rule = lambda request: replies.never(stream)
    with pytest.raises(Exception, match="timed out") as caught:
        list(ask(client(lane, timeout=2), stream=stream))
    lane.note(error=type(caught.value).__name__)
    assert lane.upstream.wait_for(lambda: bool(lane.upstream.seen) and lane.upstream.seen[0].left)


def test_a_client_that_closes_a_stream_frees_the_provider(lane: Lane) -> None:
    """Leaving early stops the generation."""
    lane.upstream.rule = lambda request: replies.held_after(say(request, "one two three"), 4)
    with client(lane).messages.stream(model=MODEL, max_tokens=100, messages=ASK) as stream:
        assert next(iter(stream.text_stream)) == "one "
    assert lane.upstream.wait_for(lambda: lane.upstream.seen[0].left)


def test_a_cancelled_task_frees_the_provider(lane: Lane) -> None:
    """Asyncio's cancellation, in the middle of a stream."""
    lane.upstream.rule = lambda request: replies.held_after(say(request, "one two three"), 4)

    async def main() -> None:
        async with async_client(lane) as api:
            started = asyncio.Event()

            async def read() -> None:
                async with api.messages.stream(model=MODEL, max_tokens=100, messages=ASK) as stream:
                    async for _ in stream.text_stream:
                        started.set()

            task = asyncio.ensure_future(read())
            await asyncio.wait_for(started.wait(), 30)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert lane.upstream.wait_for(lambda: lane.upstream.seen[0].left)


def test_a_compressed_answer_stays_compressed(lane: Lane) -> None:
    """The provider's gzip reaches the client, whole and streamed."""
    lane.upstream.rule = lambda request: replies.zipped(say(request, "Zipped ✓"))
    api = client(lane)
    with api.messages.stream(model=MODEL, max_tokens=100, messages=ASK) as stream:
        assert stream.get_final_text() == ask(api).content[0].text == "Zipped ✓"
