"""A question for a summary in each dialect, and the text of the answer. Plain values in, plain values out.

Nothing that newer models refuse is asked for: no temperature, no format. Responses are not to be kept by the provider.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from accordion.core.summarizing import SummaryRequest

PATHS: Final = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}

Limit = Literal["max_tokens", "max_completion_tokens"]
"""What Chat Completions calls the longest answer: OpenAI's newer models know only the second, others only the first."""

_CUT: Final = frozenset({"length", "max_tokens", "max_output_tokens", "model_context_window_exceeded"})
_REFUSED: Final = frozenset({"content_filter", "refusal"})


def body(dialect: str, model: str, request: SummaryRequest, longest: int, limit: Limit) -> bytes:
    """The request as JSON. `longest` is the longest answer in tokens. Raises KeyError for another dialect."""
    make = {"chat": _chat, "responses": _responses, "messages": _messages}[dialect]
    return msgspec.json.encode(make(model, request, longest, limit))


def answer(dialect: str, data: Any) -> str:
    """The text that a reply holds; empty where there is none."""
    read = {"chat": _read_chat, "responses": _read_responses, "messages": _read_messages}[dialect]
    return "".join(read(data)).strip() if isinstance(data, dict) else ""


def fault(finish: str) -> str:
    """What is wrong with an answer that ended like this; empty where nothing is."""
    if finish in _CUT:
        return "the answer was cut short at its longest"
    return "the model refused" if finish in _REFUSED else ""


def _chat(model: str, request: SummaryRequest, longest: int, limit: Limit) -> dict[str, Any]:
    messages = [{"role": "system", "content": request.instructions}, {"role": "user", "content": request.text}]
    return {"model": model, "messages": messages, limit: longest, "stream": False}


def _responses(model: str, request: SummaryRequest, longest: int, limit: Limit) -> dict[str, Any]:
    return {
        "model": model,
        "instructions": request.instructions,
        "input": [{"role": "user", "content": [{"type": "input_text", "text": request.text}]}],
        "max_output_tokens": longest,
        "store": False,
        "stream": False,
    }


def _messages(model: str, request: SummaryRequest, longest: int, limit: Limit) -> dict[str, Any]:
    return {
        "model": model,
        "max_tokens": longest,
        "system": request.instructions,
        "messages": [{"role": "user", "content": request.text}],
        "stream": False,
    }


def _read_chat(data: dict[str, Any]) -> list[str]:
    choice = next((entry for entry in _list(data.get("choices")) if isinstance(entry, dict)), {})
    content = (choice.get("message") or {}).get("content")
    return [content] if isinstance(content, str) else _texts(content)


def _read_responses(data: dict[str, Any]) -> list[str]:
    items = (item for item in _list(data.get("output")) if isinstance(item, dict) and item.get("type") == "message")
    return [text for item in items for text in _texts(item.get("content"))]


def _read_messages(data: dict[str, Any]) -> list[str]:
    return _texts(data.get("content"))


def _texts(content: Any) -> list[str]:
    """The texts of a list of parts; thinking and the like have another type."""
    parts = (part for part in _list(content) if isinstance(part, dict) and part.get("type") in ("text", "output_text"))
    return [part["text"] for part in parts if isinstance(part.get("text"), str)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
