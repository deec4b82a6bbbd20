"""Providers that refuse a compacted list by a rule that the proxy does not know."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes import FakeReply, FakeWindows
from tests.pipeline_setup import CHAT, MESSAGES, RESPONSES, PipelineSetup, header

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
    assert len(json.loads(first.body)[LISTS[path]]) < 13
    assert second.body == body
    outcome = json.loads(header(out, "x-accordion-compaction") or "{}")
    assert (outcome["state"], outcome["failure"]) == ("failed", "illegal")


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


@pytest.mark.parametrize(("turns", "error"), [(6, BROKE), (11, REFUSAL), (2, REFUSAL)])
async def test_what_sending_it_as_it_came_cannot_help_is_sent_once(turns: int, error: dict[str, Any]) -> None:
    """A refusal that is not about the list, a list that does not fit, and one that was not compacted."""
    made = refusing(error)
    out, body = await made.ask(CHAT, talk(CHAT, turns))
    assert (out.status, json.loads(body)) == (400, error)
    assert len(made.upstream.requests) == 1
