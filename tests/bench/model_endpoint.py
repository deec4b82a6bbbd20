"""A model's endpoint for the benchmarks that ask a model: a function answers, without a network."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from bench.endpoint import Endpoint, EndpointRelay

Body = dict[str, Any]
ENDPOINT = Endpoint("http://model.test/v1", "small")


def make_relay(file: Path, answer: Callable[[Body], str | Body]) -> EndpointRelay:
    """Returns a relay to a model that gives these texts, or messages."""

    def handle(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        content = answer(body)
        message = {"role": "assistant", **({"content": content} if isinstance(content, str) else content)}
        usage = {"prompt_tokens": 100, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 60}}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        fields = {"id": "c", "object": "chat.completion", "created": 1, "model": body["model"]}
        return httpx.Response(200, json={**fields, "choices": [choice], "usage": usage})

    return EndpointRelay(ENDPOINT, file, httpx.MockTransport(handle))
