"""The relay before a model's endpoint: each answer is stored, and asked for once."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from bench.endpoint import QUESTION, SUMMARY, TURN, Endpoint, EndpointRelay, ModelCall, answers_file, ask, dollars
from bench.servers import Unavailable
from tests.bench.model_endpoint import ENDPOINT, make_relay

MESSAGES = [{"role": "user", "content": "Which port?"}]


def asked(file: Path, *questions: str) -> tuple[list[str], int]:
    """The answers to questions in one run, and how many of them the endpoint gave."""
    relay = make_relay(file, lambda body: f"answer to {body['messages'][0]['content']}")
    with relay, httpx.Client() as client:
        answers = [
            ask(client, relay.url, [{"role": "user", "content": each}], QUESTION, "s", temperature=0)
            for each in questions
        ]
        return answers, relay.asked


def test_the_same_request_is_asked_once_also_by_a_later_run(tmp_path):
    assert asked(tmp_path / "a", "x", "y", "x") == (["answer to x", "answer to y", "answer to x"], 2)
    assert asked(tmp_path / "a", "y", "z") == (["answer to y", "answer to z"], 1)


def test_an_answer_that_an_interrupted_run_did_not_write_whole_is_asked_again(tmp_path):
    asked(tmp_path / "a", "x", "y")
    text = (tmp_path / "a").read_text()
    (tmp_path / "a").write_text(text[:-20])
    assert asked(tmp_path / "a", "x", "y")[1] == 1
    assert asked(tmp_path / "a", "x", "y")[1] == 0


def test_a_turn_that_is_replayed_is_answered_without_the_model(tmp_path):
    with make_relay(tmp_path / "a", lambda _: "no") as relay, httpx.Client() as client:
        assert ask(client, relay.url, MESSAGES, TURN, "s") == "OK"
        assert (relay.asked, relay.take()) == (0, [])


def test_calls_have_the_reported_tokens_and_their_purpose(tmp_path):
    with make_relay(tmp_path / "a", lambda _: "8080") as relay, httpx.Client() as client:
        ask(client, relay.url, MESSAGES, QUESTION, "s")
        relay.answer({"model": "any", "messages": MESSAGES}, SUMMARY)
        first, second = relay.take()
        assert (first.purpose, second.purpose) == (QUESTION, SUMMARY)
        assert (first.input, first.cached, first.output) == (100, 60, 2)
        assert relay.take() == []


def test_a_refusal_is_passed_on_and_not_stored(tmp_path):
    transport = httpx.MockTransport(lambda _: httpx.Response(429, json={"error": {"message": "later"}}))
    with EndpointRelay(ENDPOINT, tmp_path / "a", transport) as relay:
        status, answer = relay.answer({"messages": MESSAGES}, QUESTION)
        assert (status, answer["error"]["message"]) == (429, "later")
    assert (tmp_path / "a").read_text() == ""


def test_an_answer_that_is_no_json_is_a_refusal(tmp_path):
    transport = httpx.MockTransport(lambda _: httpx.Response(503, text="<html>"))
    with EndpointRelay(ENDPOINT, tmp_path / "a", transport) as relay:
        assert relay.answer({"messages": MESSAGES}, QUESTION)[0] == 502


@pytest.mark.parametrize("user", ["", "user:password@"])
def test_no_credential_is_in_a_files_name_or_an_error(user):
    endpoint = Endpoint(f"https://{user}model.test:8080/v1", "owner/small", "sk-secret")
    assert answers_file(endpoint).parent.name == "model.test-8080-v1-small"
    assert "sk-secret" not in repr(endpoint)


def test_the_key_comes_from_the_named_variable(monkeypatch):
    monkeypatch.setenv("READER_KEY", "secret")
    assert Endpoint.from_options("http://model.test/v1/", "m", "READER_KEY").key == "secret"
    with pytest.raises(Unavailable, match="OTHER_KEY is not set"):
        Endpoint.from_options("http://model.test/v1", "m", "OTHER_KEY")


def test_a_model_of_known_price_costs_dollars_and_another_nothing_known():
    call = ModelCall(QUESTION, input=1_000_000, cached=0, output=0, seconds=1.0)
    assert dollars([call], "gpt-4o") == pytest.approx(2.5)
    assert dollars([call], "small") is None
