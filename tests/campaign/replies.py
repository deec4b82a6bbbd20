"""What a client got for a request: an answer, an error in its own format, or a connection that broke."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.response_recorder import RecordedResponse, find_problems

Json = dict[str, Any]
ANSWERED = "answered"
NO_ANSWER = "no answer"
BROKEN = "broken off"
ERROR_EVENT = "error in the stream"


def outcome_of(heard: RecordedResponse | None, failed: bool) -> str:
    """The kind of an attempt. `heard`: what came back over the network, if anything did."""
    if heard is None:
        return NO_ANSWER
    if heard.status != 200:
        return f"HTTP {heard.status}" if heard.is_complete else BROKEN
    if not failed:
        return ANSWERED
    return ERROR_EVENT if heard.streamed and _error_event(heard) is not None else BROKEN


def problems_of(protocol_name: str, heard: RecordedResponse | None, outcome: str) -> Iterator[str]:
    """What is wrong with the form of what a client got: an answer must be a whole reply of the protocol, and an error
    one of the protocol's errors. What broke off has no form."""
    if heard is None or outcome in (NO_ANSWER, BROKEN):
        return
    if outcome == ANSWERED:
        yield from find_problems(protocol_name, heard)
    elif outcome == ERROR_EVENT:
        yield from _ERRORS[protocol_name](_error_event(heard) or {}, 0)
    else:
        try:
            value = json.loads(heard.body)
        except ValueError:
            yield f"an error of status {heard.status} is no JSON: {bytes(heard.body[:120])!r}"
            return
        yield from _ERRORS[protocol_name](value, heard.status)


def _error_event(heard: RecordedResponse) -> Json | None:
    """The error at the end of a stream."""
    lines = [line[6:] for line in bytes(heard.body).splitlines() if line.startswith(b"data: ")]
    try:
        last = json.loads(lines[-1]) if lines else {}
    except ValueError:
        return None
    return last if isinstance(last, dict) and ("error" in last or last.get("type") == "error") else None


def _openai(value: Json, status: int) -> Iterator[str]:
    error = value.get("error")
    if not isinstance(error, dict) or not {"message", "type", "param", "code"} <= error.keys() or not error["message"]:
        yield f"no error of OpenAI's: {str(value)[:200]}"


def _responses(value: Json, status: int) -> Iterator[str]:
    if status:
        yield from _openai(value, status)
    elif value.get("type") != "error" or not (value.get("message") or (value.get("error") or {}).get("message")):
        yield f"no error event of Responses: {str(value)[:200]}"


def _messages(value: Json, status: int) -> Iterator[str]:
    error = value.get("error") or {}
    if value.get("type") != "error" or not error.get("type") or not error.get("message"):
        yield f"no error of Anthropic's: {str(value)[:200]}"


def _gemini(value: Json, status: int) -> Iterator[str]:
    error = value.get("error") or {}
    if not error.get("message") or not error.get("status") or (status and error.get("code") != status):
        yield f"no error of Google's: {str(value)[:200]}"


_ERRORS = {"chat": _openai, "responses": _responses, "messages": _messages, "gemini": _gemini}
