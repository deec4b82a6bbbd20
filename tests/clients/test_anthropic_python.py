"""The official Anthropic SDK for Python behaves through the proxy as it does without it."""

import asyncio
import contextlib
from typing import Any

import anthropic
import pytest
import replies
from anthropic import Anthropic, AsyncAnthropic
from client_link import KEY, ClientLink
from replies import Call, failure, say, steps

MODEL = "claude-test"
ASK: list[Any] = [{"role": "user", "content": "Grüße aus 東京 🦜 — what is up?"}]
WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def client(link: ClientLink, **options: Any) -> Anthropic:
    """A synchronous client on a link."""
    return Anthropic(**{"base_url": link.origin, "api_key": KEY, "timeout": 30, "max_retries": 0} | options)


def async_client(link: ClientLink, **options: Any) -> AsyncAnthropic:
    """An asynchronous client on a link."""
    return AsyncAnthropic(**{"base_url": link.origin, "api_key": KEY, "timeout": 30, "max_retries": 0} | options)


def ask(api: Anthropic, **options: Any) -> Any:
    """One message."""
    return api.messages.create(**{"model": MODEL, "max_tokens": 100, "messages": ASK} | options)


def test_a_message_is_answered(link: ClientLink) -> None:
    """The plain case, with its request id."""
    answer = ask(client(link), system=[{"type": "text", "text": "Brief.", "cache_control": {"type": "ephemeral"}}])
    assert answer.content[0].text == replies.GREETING
    assert answer._request_id == "req_0001"
    link.note(answer=answer.model_dump())


def test_an_async_message_is_answered(link: ClientLink) -> None:
    """The same from asyncio."""

    async def main() -> Any:
        async with async_client(link) as api:
            return await api.messages.create(model=MODEL, max_tokens=100, messages=ASK)

    link.note(answer=asyncio.run(main()).model_dump())


def test_a_bearer_token_is_passed_on_like_a_key(link: ClientLink) -> None:
    """All ways to prove who is calling; the SDK itself now sends its key as a bearer token."""
    ask(client(link))
    ask(client(link, api_key=None, auth_token="token-not-a-secret"))
    ask(client(link, api_key=None, default_headers={"X-Api-Key": KEY}))
    shown = [(one.request.header("x-api-key"), one.request.header("authorization")) for one in link.upstream.received]
    assert shown == [(None, f"Bearer {KEY}"), (None, "Bearer token-not-a-secret"), (KEY, None)]


def test_a_streamed_message_arrives_event_by_event(link: ClientLink) -> None:
    """Raw events, pings among them."""
    events = [event.model_dump() for event in ask(client(link), stream=True)]
    assert "".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta") == replies.GREETING
    link.note(events=events)


def test_the_stream_helper_collects_a_message(link: ClientLink) -> None:
    """Text as it comes, the whole message at the end."""
    with client(link).messages.stream(model=MODEL, max_tokens=100, messages=ASK) as stream:
        text = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(text) == replies.GREETING
    link.note(text=text, final=final.model_dump())


def test_the_async_stream_helper_collects_a_message(link: ClientLink) -> None:
    """The same from asyncio."""

    async def main() -> Any:
        options: Any = {"model": MODEL, "max_tokens": 100, "messages": ASK}
        async with async_client(link) as api, api.messages.stream(**options) as stream:
            kinds = [event.type async for event in stream]
            return kinds, (await stream.get_final_message()).model_dump()

    link.note(seen=asyncio.run(main()))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_tool_call_goes_out_and_its_result_comes_back(link: ClientLink, stream: bool) -> None:
    """Two requests of a tool loop, with two calls in one turn."""
    calls: list[Any] = ["Looking.", Call("get_weather", {"city": "Paris"}), Call("get_weather", {"city": "Ōsaka"})]
    link.upstream.rule = steps(calls, "a", "It says: {result}")
    api, messages = client(link), [*ASK]
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
    link.note(answer=answer.model_dump())


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


def test_thinking_blocks_come_and_go_back_unchanged(link: ClientLink) -> None:
    """A signed block in a stream, sent back with the next turn."""
    link.upstream.rule = lambda request: replies.events([*THOUGHT])
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    options: Any = {"model": MODEL, "max_tokens": 2000, "thinking": thinking}
    with client(link).messages.stream(messages=ASK, **options) as stream:
        final = stream.get_final_message()
    more = [*ASK, {"role": "assistant", "content": final.content}, {"role": "user", "content": "Go on."}]
    with client(link).messages.stream(messages=more, **options) as stream:
        stream.until_done()
    assert b"c2lnbmF0dXJl+/==" in link.upstream.received[1].request.body
    link.note(final=final.model_dump())


def test_tokens_are_counted_by_the_provider(link: ClientLink) -> None:
    """`count_tokens` for a conversation that needs nothing."""
    count = client(link).messages.count_tokens(model=MODEL, messages=ASK, tools=[WEATHER])
    assert count.input_tokens == 19


def test_batches_are_made_listed_fetched_and_cancelled(link: ClientLink) -> None:
    """Batches, with results as JSON lines."""
    api = client(link)
    params: Any = {"model": MODEL, "max_tokens": 10, "messages": ASK}
    made = api.messages.batches.create(requests=[{"custom_id": "one", "params": params}])
    listed = [batch.id for batch in api.messages.batches.list(limit=2)]
    fetched = api.messages.batches.retrieve(made.id)
    cancelled = api.messages.batches.cancel(made.id)
    link.note(made=made.model_dump(), listed=listed, fetched=fetched.model_dump(), cancelled=cancelled.model_dump())


def test_models_are_listed(link: ClientLink) -> None:
    """A GET with a query."""
    link.note(models=[model.model_dump() for model in client(link).models.list(limit=5)])


def test_a_raw_response_shows_the_providers_headers(link: ClientLink) -> None:
    """Status, headers, repeated headers and body as the provider sent them."""
    raw = client(link).messages.with_raw_response.create(model=MODEL, max_tokens=100, messages=ASK)
    headers = [(key, value) for key, value in raw.headers.multi_items() if not key.lower().startswith("x-accordion-")]
    assert raw.headers["anthropic-ratelimit-requests-remaining"] == "49"
    link.note(headers=sorted(headers), text=raw.text(), status=raw.status_code)


def test_beta_headers_and_unknown_fields_reach_the_provider(link: ClientLink) -> None:
    """Betas, extra headers, query and body."""
    api = client(link, default_headers={"X-Trace": "abc"})
    api.beta.messages.create(
        model=MODEL,
        max_tokens=100,
        messages=ASK,
        betas=["one-2026-01-01", "two-2026-02-02"],
        extra_query={"q": "ä&b"},
        extra_body={"vendor": {"numbers": [1.0, 1e-9, 12345678901234567890]}},
    )
    request = link.upstream.received[0].request
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
    link: ClientLink, status: int, kind: str, error: type[Exception], stream: bool
) -> None:
    """Class, status, body and request id; the proxy tries nothing again by itself."""
    link.upstream.rule = lambda request: failure(status, kind, "No, because of reasons: ü.")
    with pytest.raises(error) as caught:
        ask(client(link), stream=stream)
    seen: Any = caught.value
    assert len(link.upstream.received) == 1
    link.note(text=str(seen), body=seen.body, status=seen.status_code, request_id=seen.request_id)


def test_an_overloaded_event_in_a_stream_reaches_the_client(link: ClientLink) -> None:
    """HTTP 200, then `overloaded_error`."""
    event = b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}\n\n'
    link.upstream.rule = lambda request: replies.events([*say(request, "a b").pieces[:4], event])
    got: list[str] = []
    options: Any = {"model": MODEL, "max_tokens": 100, "messages": ASK}
    with pytest.raises(anthropic.APIStatusError) as caught, client(link).messages.stream(**options) as stream:
        got.extend(stream.text_stream)
    link.note(got=got, error=type(caught.value).__name__, body=caught.value.body)


def test_the_client_retries_as_the_provider_tells_it(link: ClientLink) -> None:
    """Overloaded twice, then the answer."""
    link.upstream.script = [
        failure(529, "overloaded_error", "Overloaded", (("Retry-After-Ms", "5"),)),
        failure(429, "rate_limit_error", "Slowly.", (("Retry-After-Ms", "5"),)),
    ]
    assert ask(client(link, max_retries=2)).content[0].text == replies.GREETING
    assert [seen.request.header("x-stainless-retry-count") for seen in link.upstream.received] == ["0", "1", "2"]


@pytest.mark.parametrize("after", [0, 4], ids=["at-once", "in-the-middle"])
def test_a_cut_stream_ends_in_an_error(link: ClientLink, after: int) -> None:
    """What came before is delivered, then the client learns of the cut (its error class may be another one)."""
    link.upstream.rule = lambda request: replies.cut_after(say(request, "one two three four"), after)
    got: list[str] = []
    with pytest.raises(Exception):  # noqa: B017
        for event in ask(client(link), stream=True):
            got.append(event.type)
    link.note(got=got)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_client_that_times_out_frees_the_provider(link: ClientLink, stream: bool) -> None:
    """The client's own time-out ends the call upstream, too."""
    link.upstream.rule = lambda request: replies.never(stream)
    with pytest.raises(Exception, match="timed out") as caught:
        list(ask(client(link, timeout=2), stream=stream))
    link.note(error=type(caught.value).__name__)
    assert link.upstream.wait_for(lambda: bool(link.upstream.received) and link.upstream.received[0].left)


def test_a_client_that_closes_a_stream_frees_the_provider(link: ClientLink) -> None:
    """Leaving early stops the generation."""
    link.upstream.rule = lambda request: replies.held_after(say(request, "one two three"), 4)
    with client(link).messages.stream(model=MODEL, max_tokens=100, messages=ASK) as stream:
        assert next(iter(stream.text_stream)) == "one "
    assert link.upstream.wait_for(lambda: link.upstream.received[0].left)


def test_a_cancelled_task_frees_the_provider(link: ClientLink) -> None:
    """Asyncio's cancellation, in the middle of a stream."""
    link.upstream.rule = lambda request: replies.held_after(say(request, "one two three"), 4)

    async def main() -> None:
        async with async_client(link) as api:
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
    assert link.upstream.wait_for(lambda: link.upstream.received[0].left)


def test_a_compressed_answer_stays_compressed(link: ClientLink) -> None:
    """The provider's gzip reaches the client, whole and streamed."""
    link.upstream.rule = lambda request: replies.zipped(say(request, "Zipped ✓"))
    api = client(link)
    with api.messages.stream(model=MODEL, max_tokens=100, messages=ASK) as stream:
        assert stream.get_final_text() == ask(api).content[0].text == "Zipped ✓"
