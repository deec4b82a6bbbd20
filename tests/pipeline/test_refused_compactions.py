"""Providers that refuse a compacted list by a rule that the proxy does not know."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accordion.model.http import Outbound
from accordion.model.ports import UpstreamRequest
from accordion.model.tenant import TenantScope
from accordion.pipeline.list_refusals import describe_refusal
from tests.fakes import FakeReply, FakeWindows, FickleStore
from tests.growing_conversation import COMPACTED_AT, GrowingConversation, compaction_record, small_window_setup
from tests.pipeline_setup import CHAT, MESSAGES, RESPONSES, PipelineSetup, header
from tests.rule_provider import refuse_in_events

REFUSAL = {"error": {"type": "invalid_request_error", "message": "messages.1: the 7th block must be even"}}
BROKE = {"error": {"type": "invalid_request_error", "message": "Your credit balance is too low."}}
LISTS = {CHAT: "messages", MESSAGES: "messages", RESPONSES: "input"}


def talk(path: str, turns: int) -> dict[str, Any]:
    """A request with a talk of so many turns."""
    said: list[dict[str, Any]] = []
    for at in range(turns):
        said.append({"role": "user", "content": f"Question {at}: " + "word " * 150})
        said.append({"role": "assistant", "content": f"Answer {at}: " + "word " * 200})
    return {"model": "m", "max_tokens": 10, LISTS[path]: [*said, {"role": "user", "content": "And now?"}]}


TENANT = TenantScope("default", b"key")


def refusal(error: dict[str, Any]) -> FakeReply:
    return FakeReply(400, pieces=(json.dumps(error).encode(),))


def bytes_of(request: UpstreamRequest) -> bytes:
    assert isinstance(request.body, bytes)
    return request.body


def steps(out: Outbound) -> list[str]:
    """The names of the steps of a response's compaction."""
    return [step["compactor"] for step in compaction_record(out)["steps"]]


def sent_list(made: PipelineSetup) -> list[dict[str, Any]]:
    """The list that the provider got last."""
    sent: list[dict[str, Any]] = json.loads(bytes_of(made.upstream.requests[-1]))["messages"]
    return sent


def refusing(*errors: dict[str, Any], status: int = 400) -> PipelineSetup:
    made = PipelineSetup(windows=FakeWindows(4_000))
    made.upstream.answers = [FakeReply(status, pieces=(json.dumps(error).encode(),)) for error in errors]
    return made


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize("status", [400, 422])
async def test_a_refused_compaction_is_followed_by_the_clients_own_bytes(path: str, status: int) -> None:
    made = refusing(REFUSAL, status=status)
    body = json.dumps(talk(path, 6)).encode()
    out, _ = await made.ask(path, body)
    assert out.status == 200
    first, second = made.upstream.requests
    assert len(json.loads(bytes_of(first))[LISTS[path]]) < 13
    assert second.body == body
    outcome = json.loads(header(out, "x-accordion-compaction") or "{}")
    assert (outcome["state"], outcome["failure"]) == ("failed", "refused")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, b""),
        (400, b"<html><h1>Bad Request</h1></html>"),
        (400, b'{"error": {"message": "The reasoning_content is not there. Fix this and try again."}}'),
        (400, b'{"error": {"message": "This policy permits no two of a kind (max_tokens=10, model=m)."}}'),
        (404, b'{"error": {"message": "Item with id rs_1 not found."}}'),
        (406, "请求参数不合法".encode()),
        (409, b'{"error": {"message": "messages.3 is out of order"}}'),
        (502, b'{"error": {"message": "Provider returned error", "metadata": {"raw": "role of 3"}}}'),
    ],
)
async def test_a_refusal_that_may_concern_the_list_is_met_whatever_it_says(status: int, body: bytes) -> None:
    made = PipelineSetup(windows=FakeWindows(4_000))
    made.upstream.answers = [FakeReply(status, pieces=(body,))]
    out, _ = await made.ask(CHAT, talk(CHAT, 6))
    assert (out.status, len(made.upstream.requests)) == (200, 2)
    assert compaction_record(out)["failure"] == "refused"


@pytest.mark.parametrize("has_events", [False, True])
@pytest.mark.parametrize(
    "error",
    [
        {"error": {"message": "No."}},
        {"error": "参数错误"},
        {"message": "Something is off."},
        {"error_code": 336003, "error_msg": "The request is not as it should be"},
        {"id": "1", "choices": None, "base_resp": {"status_code": 2013, "status_msg": "wrong params"}, "msg": "no"},
    ],
)
async def test_a_refusal_with_status_200_is_met_at_once_whatever_it_says(error: Any, has_events: bool) -> None:
    made, raw = PipelineSetup(windows=FakeWindows(4_000)), json.dumps(error).encode()
    made.upstream.answers = [refuse_in_events(raw, b"") if has_events else FakeReply(pieces=(raw,))]
    body = json.dumps(talk(CHAT, 6)).encode()
    out, _ = await made.ask(CHAT, body)
    assert (out.status, len(made.upstream.requests), made.upstream.requests[-1].body) == (200, 2, body)
    assert compaction_record(out)["failure"] == "refused"


@pytest.mark.parametrize(
    "answer", [{"choices": [{"message": {"content": ""}}]}, {"choices": [], "usage": {"prompt_tokens": 3}}, {}]
)
async def test_an_empty_answer_is_no_refusal(answer: Any) -> None:
    made = PipelineSetup(windows=FakeWindows(4_000))
    made.upstream.answers = [FakeReply(pieces=(json.dumps(answer).encode(),))]
    out, _ = await made.ask(CHAT, talk(CHAT, 6))
    assert (len(made.upstream.requests), compaction_record(out)["state"]) == (1, "compacted")


@pytest.mark.parametrize("status", [500, 200])
async def test_a_server_that_fails_once_gets_the_same_compacted_list_again(status: int) -> None:
    made = refusing({"error": "Internal Server Error"}, status=status)
    out, _ = await made.ask(CHAT, talk(CHAT, 6))
    first, second = made.upstream.requests
    assert (out.status, second.body, compaction_record(out)["state"]) == (200, first.body, "compacted")


async def test_a_server_that_fails_at_the_compacted_list_only_refuses_it() -> None:
    made = refusing(*[{"error": "Internal Server Error"}] * 2, status=500)
    body = json.dumps(talk(CHAT, 6)).encode()
    out, _ = await made.ask(CHAT, body)
    assert (out.status, len(made.upstream.requests), made.upstream.requests[-1].body) == (200, 3, body)
    assert compaction_record(out)["failure"] == "refused"


async def test_an_overloaded_server_is_not_asked_again() -> None:
    made = refusing({"error": "Overloaded"}, status=500)
    out, _ = await made.ask(CHAT, talk(CHAT, 6))
    assert (out.status, len(made.upstream.requests)) == (500, 1)


@pytest.mark.parametrize("name", ["Idempotency-Key", "x-idempotency-key"])
@pytest.mark.parametrize("path", LISTS)
async def test_each_content_has_an_idempotency_key_of_its_own(path: str, name: str) -> None:
    def sent_keys(setup: PipelineSetup) -> list[bytes]:
        return [dict(request.headers)[name.lower().encode()] for request in setup.upstream.requests]

    made = refusing(REFUSAL)
    body = json.dumps(talk(path, 6)).encode()
    await made.ask(path, body, {name: "key-1"})
    compacted, own = sent_keys(made)
    assert (own, made.upstream.requests[1].body) == (b"key-1", body)
    assert compacted != own
    for key, is_same in (("key-1", True), ("key-2", False)):
        retried = refusing(REFUSAL)
        await retried.ask(path, body, {name: key})
        assert (sent_keys(retried)[0] == compacted) is is_same


async def test_an_idempotency_key_in_quotes_stays_in_quotes() -> None:
    made = refusing(REFUSAL)
    await made.ask(CHAT, talk(CHAT, 6), {"Idempotency-Key": '"key-1"'})
    key = dict(made.upstream.requests[0].headers)[b"idempotency-key"]
    assert key != b'"key-1"'
    assert (key[:1], key[-1:], len(key)) == (b'"', b'"', 38)


async def test_a_refusal_of_the_clients_own_list_is_the_clients() -> None:
    made = refusing(REFUSAL, REFUSAL)
    out, body = await made.ask(CHAT, talk(CHAT, 6))
    assert (out.status, json.loads(body)) == (400, REFUSAL)
    assert len(made.upstream.requests) == 2


@pytest.mark.parametrize(("turns", "error"), [(6, BROKE), (2, REFUSAL)])
async def test_what_sending_it_as_it_came_cannot_help_is_sent_once(turns: int, error: dict[str, Any]) -> None:
    """A refusal that is not about the list, and a list that was not compacted."""
    made = refusing(error)
    out, body = await made.ask(CHAT, talk(CHAT, turns))
    assert (out.status, json.loads(body)) == (400, error)
    assert len(made.upstream.requests) == 1


async def test_a_list_that_does_not_fit_is_compacted_in_the_most_careful_form() -> None:
    made = refusing(REFUSAL)
    out, _ = await made.ask(CHAT, talk(CHAT, 11))
    assert (out.status, len(made.upstream.requests)) == (200, 2)
    assert steps(out) == ["whole_groups"]
    sent, client = sent_list(made), talk(CHAT, 11)["messages"]
    (changed,) = [message for message in sent if message not in client]
    assert any(changed["content"].startswith(message["content"]) for message in client[::2])
    again, _ = await made.ask(CHAT, talk(CHAT, 11))
    assert (compaction_record(again)["state"], sent_list(made)) == ("replayed", sent)


async def test_the_provider_s_error_is_the_client_s_if_no_form_is_taken() -> None:
    made = refusing(REFUSAL, REFUSAL)
    out, body = await made.ask(CHAT, talk(CHAT, 14))
    assert (out.status, json.loads(body), len(made.upstream.requests)) == (400, REFUSAL, 2)


async def test_a_refused_compaction_is_never_sent_again(caplog: pytest.LogCaptureFixture) -> None:
    setup = small_window_setup()
    conversation = GrowingConversation(setup)
    await conversation.until(COMPACTED_AT - 1)
    setup.upstream.answers = [refusal(REFUSAL)]
    out = await conversation.turn(COMPACTED_AT)
    assert conversation.forwarded == conversation.bodies[-1]
    assert "(400: messages.1: the 7th block must be even)" in compaction_record(out)["reason"]
    refused = setup.upstream.requests[-2].body
    after = await conversation.turn(COMPACTED_AT + 1)
    assert (compaction_record(after)["state"], steps(after)) == ("compacted", ["whole_groups"])
    assert refused not in [request.body for request in setup.upstream.requests[-2:]]
    await conversation.turn(COMPACTED_AT + 2)
    lines = [record.getMessage() for record in caplog.records if "refused a compacted list" in record.getMessage()]
    assert len(lines) == 1
    assert "the 7th block must be even" in lines[0]


async def test_the_page_says_why_a_compaction_was_withdrawn() -> None:
    setup = small_window_setup()
    conversation = GrowingConversation(setup)
    made = await conversation.until(COMPACTED_AT)
    setup.upstream.answers = [refusal(REFUSAL)]
    await conversation.turn(COMPACTED_AT + 1)
    session, compaction = header(made, "x-accordion-session"), compaction_record(made)["id"]
    (overrides,) = await setup.builder.session_overrides.load(TENANT, [session or ""])
    assert overrides.refusals == {compaction: "400: messages.1: the 7th block must be even"}


async def test_another_session_begins_with_the_most_careful_form() -> None:
    made = refusing(REFUSAL)
    await made.ask(CHAT, talk(CHAT, 6))
    other = talk(CHAT, 6)
    other["messages"][0]["content"] = "Something else. " + "word " * 150
    out, _ = await made.ask(CHAT, other)
    assert steps(out) == ["whole_groups"]


async def test_nothing_that_fits_the_window_is_compacted_if_all_forms_are_refused() -> None:
    made = refusing()
    made.windows.refused_form = "free"
    made.upstream.answers = [refusal(REFUSAL)]
    await made.ask(CHAT, talk(CHAT, 6))
    for turns in (7, 10):
        body = json.dumps(talk(CHAT, turns)).encode()
        out, _ = await made.ask(CHAT, body)
        assert (out.status, made.upstream.requests[-1].body) == (200, body)
        assert header(out, "x-accordion-compaction") is None
    beyond, _ = await made.ask(CHAT, talk(CHAT, 14))
    assert (beyond.status, steps(beyond)) == (200, ["whole_groups"])


async def test_a_list_that_the_client_broke_withdraws_nothing() -> None:
    setup = small_window_setup()
    conversation = GrowingConversation(setup)
    made = compaction_record(await conversation.until(COMPACTED_AT))
    setup.upstream.answers = [refusal(REFUSAL), refusal(REFUSAL)]
    assert (await conversation.turn(COMPACTED_AT + 1)).status == 400
    again = compaction_record(await conversation.turn(COMPACTED_AT + 1))
    assert (again["state"], again["id"]) == ("replayed", made["id"])


@pytest.mark.parametrize("words", ["messages.1: the 7th block must be even", "Bad Request"])
async def test_an_error_at_the_beginning_of_a_stream_is_a_refusal_too(words: str) -> None:
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": words}}
    setup = small_window_setup()
    conversation = GrowingConversation(setup, "messages")
    await conversation.until(COMPACTED_AT)
    event = f"event: error\ndata: {json.dumps(error)}\n\n".encode()
    setup.upstream.answers = [FakeReply(200, ((b"content-type", b"text/event-stream"),), (event,))]
    out = await conversation.turn(COMPACTED_AT + 1)
    assert compaction_record(out)["failure"] == "refused"
    assert conversation.forwarded == conversation.bodies[-1]


async def test_what_was_refused_while_the_store_was_away_is_written_later() -> None:
    store = FickleStore()
    one = small_window_setup(store=store)
    conversation = GrowingConversation(one)
    made = await conversation.until(COMPACTED_AT)
    store.away = True
    one.upstream.answers = [refusal(REFUSAL)]
    await conversation.turn(COMPACTED_AT + 1)
    assert conversation.forwarded == conversation.bodies[-1]
    store.away = False
    await one.builder.session_overrides.poll()
    (overrides,) = await one.builder.session_overrides.load(TENANT, [header(made, "x-accordion-session") or ""])
    assert overrides.undone == {compaction_record(made)["id"]}


def test_words_of_a_refusal_quote_nothing_long() -> None:
    quoted = "Bad key sk-" + "a" * 40 + " in message 'the user said that the launch is on Monday' at 3"
    body = json.dumps({"error": {"message": quoted}}).encode()
    assert describe_refusal(400, body) == "400: Bad key … in message … at 3"
    assert len(describe_refusal(400, b"word " * 400)) < 170
