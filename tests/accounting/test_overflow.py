import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.accounting.overflow import LONGEST_BODY, WindowOverflow, read_overflow

OPENAI_RESPONSES = {
    "message": "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "type": "invalid_request_error",
    "param": "input",
    "code": "context_length_exceeded",
}


def lines_of(name: str) -> list[str]:
    return (Path(__file__).parent / name).read_text("utf-8").splitlines()


def _overflow(name: str, status: int, body: object, **figures: int) -> Any:
    return pytest.param(status, body, WindowOverflow(**figures), id=name)


OVERFLOWS = [_overflow(**json.loads(line)) for line in lines_of("overflow_bodies.jsonl")]
"""Errors of each server that tell of an overflow, and the figures that they name."""
ORDINARY = [tuple(json.loads(line).values()) for line in lines_of("other_error_bodies.jsonl")]
"""Statuses and bodies of other errors."""


def openai(message: str, **fields: object) -> dict[str, object]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None, **fields}}


def anthropic(message: str, kind: str = "invalid_request_error") -> dict[str, object]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


@pytest.mark.parametrize(("status", "body", "overflow"), OVERFLOWS)
def test_an_overflow_is_read_in_every_shape(status: int, body: object, overflow: WindowOverflow) -> None:
    assert read_overflow(status, json.dumps(body)) == overflow
    assert read_overflow(status, json.dumps(body, indent=2) + "\n") == overflow
    assert read_overflow(status, f"event: error\ndata: {json.dumps(body)}\n\n") == overflow


@pytest.mark.parametrize(("limit", "requested", "text"), [line.split("\t") for line in lines_of("overflow_texts.tsv")])
def test_a_text_of_any_server_is_read_with_its_figures(limit: str, requested: str, text: str) -> None:
    figures = [int(figure) if figure else None for figure in (limit, requested)]
    for status, body in (
        (400, openai(text)),
        (500, {"detail": text}),
        (200, {"type": "error", "error": {"message": text}}),
    ):
        overflow = read_overflow(status, json.dumps(body))
        assert overflow is not None
        assert [overflow.limit, overflow.requested] == figures


@pytest.mark.parametrize(
    "body",
    [
        {"error_code": 336007, "error_msg": "prompt is too long"},
        {"base_resp": {"status_code": 2013, "status_msg": "prompt is too long"}},
        {"Message": "prompt is too long"},
        {"title": "Bad Request", "errorMessage": "prompt is too long"},
        {"ErrorDetails": [{"cause": "prompt is too long"}]},
    ],
)
def test_a_text_is_read_in_a_field_of_any_server(body: object) -> None:
    assert read_overflow(400, json.dumps(body)) is not None


def test_a_text_that_echoes_the_request_is_not_read() -> None:
    echo = {"detail": [{"loc": ["body"], "msg": "wrong", "input": {"messages": ["prompt is too long"]}}]}
    assert read_overflow(422, json.dumps(echo)) is None
    long = {"detail": [{"msg": "field required", "input": "prompt is too long: 2 tokens > 1 maximum" + "x" * 200_000}]}
    assert read_overflow(422, json.dumps(long)) is None
    told = {"detail": [{"input": "x" * 200_000, "msg": "prompt is too long: 9 tokens > 8 maximum"}]}
    assert read_overflow(422, json.dumps(told)) == WindowOverflow(8, 9)


@pytest.mark.parametrize("text", lines_of("other_error_texts.txt"))
def test_a_text_about_another_limit_is_no_overflow(text: str) -> None:
    assert read_overflow(400, json.dumps(openai(text))) is None


@pytest.mark.parametrize(
    "code",
    [
        "context_length_exceeded",
        "exceed_context_size_error",
        "model_max_prompt_tokens_exceeded",
        "tokens_limit_reached",
        "input_too_large",
        "prompt_too_long",
        "ContextWindowExceededError",
        "InputTokenLimitExceeded",
        "token_limit_exceeded",
        "request_too_large",
    ],
)
def test_a_code_is_read_like_a_text(code: str) -> None:
    assert read_overflow(400, json.dumps(openai("No.", code=code))) == WindowOverflow()


@pytest.mark.parametrize(
    "code",
    [
        "rate_limit_exceeded",
        "string_above_max_length",
        "max_tokens_exceeded",
        "image_too_large",
        "payload_too_large",
        "too_many_tools",
        "context_deadline_exceeded",
        "tokens_per_minute_exceeded",
    ],
)
def test_a_code_of_another_limit_is_no_overflow(code: str) -> None:
    assert read_overflow(400, json.dumps(openai("No.", code=code))) is None


def test_figures_that_contradict_each_other_are_not_learned() -> None:
    assert read_overflow(400, "prompt of 8192 tokens exceeds 13000 tokens") == WindowOverflow()


@pytest.mark.parametrize(
    "text",
    [
        "prompt is too long: 208310 tokens > 200000 maximum",
        "400 prompt is too long: 208310 tokens > 200000 maximum (request_id: x)",
        'data: {"type":"ping"}\n\ndata: {"error":"prompt is too long: 208310 tokens > 200000 maximum"}',
    ],
)
def test_an_overflow_is_read_from_bare_text(text: str) -> None:
    assert read_overflow(400, text) == WindowOverflow(200_000, 208_310)


@pytest.mark.parametrize(("status", "body"), ORDINARY)
def test_an_ordinary_error_is_no_overflow(status: int, body: object) -> None:
    assert read_overflow(status, body if isinstance(body, str) else json.dumps(body)) is None


@pytest.mark.parametrize("body", ["", " \n"])
@pytest.mark.parametrize("status", [400, 413])
def test_a_bare_refusal_counts_only_near_the_window(status: int, body: str) -> None:
    assert read_overflow(status, body, is_near_window=True) == WindowOverflow(is_guessed=True)
    assert read_overflow(status, body) is None


@pytest.mark.parametrize(
    "body", ["<html><h1>413 Request Entity Too Large</h1></html>", '{"error":"Payload Too Large"}']
)
def test_a_413_that_says_no_more_than_its_name_counts_only_near_the_window(body: str) -> None:
    assert read_overflow(413, body, is_near_window=True) == WindowOverflow(is_guessed=True)
    assert read_overflow(413, body) is None
    assert read_overflow(400, body, is_near_window=True) is None


@pytest.mark.parametrize("status", [401, 404, 422, 429, 500, 503])
def test_other_statuses_without_a_word_are_no_overflows(status: int) -> None:
    assert read_overflow(status, "", is_near_window=True) is None


SAYING = [(status, body) for status, body in ORDINARY if str(body).strip() and "Entity Too Large" not in str(body)]


@pytest.mark.parametrize(("status", "body"), SAYING)
def test_an_error_that_says_something_else_is_no_overflow_near_the_window(status: int, body: object) -> None:
    assert read_overflow(status, body if isinstance(body, str) else json.dumps(body), is_near_window=True) is None


def test_a_limit_named_in_an_error_differs_from_a_guess() -> None:
    told = read_overflow(
        413, json.dumps(anthropic("Request exceeds the maximum size", "request_too_large")), is_near_window=True
    )
    assert told == WindowOverflow(is_guessed=False)


LEAVES = st.none() | st.integers() | st.text(max_size=20) | st.sampled_from(["error", '{"error":', "data: {", "[[["])
JSON = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["error", "message", "code", "type", "n_ctx", "delta", "x"]), inner)
    ),
)


@given(st.integers(100, 599), JSON)
def test_no_body_however_odd_fails(status: int, body: object) -> None:
    assert read_overflow(status, json.dumps(body)) is None or status not in (401, 429)


@given(st.text())
def test_no_text_however_odd_fails(text: str) -> None:
    assert read_overflow(400, text) is None


@pytest.mark.parametrize(
    "body",
    [
        "[" * 100_000,
        '{"error":' * 50_000,
        json.dumps({"error": [[{"message": "x"}] * 200] * 20}),
        "maximum context length is " * 20_000,
        "prompt " * 20_000,
        "exceeds the limit of " + "1" * 60_000,
        "input length " * 20_000,
        "range of input length should be [" * 5_000,
        "[" + "1," * 400_000 + "1]",
        json.dumps([{"message": "input length maximum context length is " * 400}] * 60),
        "input token count (" * 20_000,
        "exceeds maximum context length of " * 20_000,
        "maximum context length is x requested 1 tokens (" * 2_000,
        "body too large for " * 20_000,
        "keep the first 1 tokens when " * 20_000,
    ],
)
def test_a_body_made_to_keep_one_busy_is_read_soon(body: str) -> None:
    overflow = read_overflow(400, body)
    assert overflow is None or overflow.limit is None


def test_numbers_beyond_reason_are_no_limits() -> None:
    assert read_overflow(400, f"prompt is too long: {'9' * 5_000} tokens > {'9' * 5_000} maximum") == WindowOverflow()


def test_a_part_of_a_figure_is_no_limit() -> None:
    assert read_overflow(400, "prompt is too long; maximum context length is 1.05.2 tokens") == WindowOverflow()
    assert read_overflow(400, "maximum context length is 1.05M tokens") == WindowOverflow(1_050_000)


def test_a_very_long_body_is_read_only_at_its_beginning() -> None:
    long = "x" * LONGEST_BODY + " prompt is too long: 2 tokens > 1 maximum"
    assert read_overflow(400, long) is None
