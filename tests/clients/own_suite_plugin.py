"""A pytest plugin for openai-python's own tests: it stands in for the mock server that their API description feeds.

The SDK knows the type of each answer. The plugin makes the smallest valid answer of that type, keeps it in a folder,
and names it in a request header; the loopback provider answers with what the header names. What comes back over the
wire is then judged by the project's own tests. At the end the plugin writes the outcome of every test.
"""

import hashlib
import json
import os
import types
import typing
from collections.abc import Callable
from datetime import date, datetime
from enum import Enum
from pathlib import Path
from typing import Any

import pydantic
import pytest
from openai import _base_client
from openai._legacy_response import HttpxBinaryResponseContent
from openai._models import FinalRequestOptions

HEADER = "x-answer"
FOLDER = Path(os.environ["OWN_SUITE_FOLDER"])
DEEPEST = 12
OUTCOMES: dict[str, str] = {}
KNOWN: dict[tuple[Any, bool], str] = {}
SIMPLE: dict[Any, Any] = {
    str: "text",
    int: 1,
    float: 1.5,
    bool: True,
    bytes: "text",
    datetime: "2026-11-21T12:00:00Z",
    date: "2026-11-21",
    type(None): None,
}


def sample(of: Any, depth: int = 0) -> Any:
    """The smallest value of a type, as JSON; optional fields are left out."""
    of = getattr(of, "__value__", of)
    origin, arguments = typing.get_origin(of), typing.get_args(of)
    if origin is typing.Annotated:
        return sample(arguments[0], depth)
    if origin is typing.Literal:
        return arguments[0]
    if origin in (typing.Union, types.UnionType):
        return None if type(None) in arguments and depth >= DEEPEST else sample(arguments[0], depth)
    if origin in (list, tuple, typing.Iterable):
        return [sample(arguments[0], depth + 1)] if depth < DEEPEST else []
    if of in SIMPLE:
        return SIMPLE[of]
    if isinstance(of, type) and issubclass(of, Enum):
        return next(iter(of)).value
    if isinstance(of, type) and issubclass(of, pydantic.BaseModel):
        return {
            field.alias or name: sample(field.annotation, depth + 1)
            for name, field in of.model_fields.items()
            if field.is_required() or field.default_factory is not None
        }
    return {}


def answer_for(cast_to: Any, stream: bool) -> str:
    """The name of the answer to a request, made once for each type."""
    if (known := KNOWN.get((cast_to, stream))) is None:
        kind, body = "json", b""
        if stream:
            kind, body = "events", b"data: [DONE]\n\n"
        elif cast_to is type(None):
            kind = "nothing"
        elif isinstance(cast_to, type) and issubclass(cast_to, HttpxBinaryResponseContent):
            kind, body = "binary", bytes(range(256))
        elif cast_to is str:
            kind, body = "text", b"text"
        else:
            body = json.dumps(sample(cast_to)).encode()
        known = KNOWN[cast_to, stream] = f"{kind}-{hashlib.sha256(body).hexdigest()[:16]}"
        (FOLDER / known).write_bytes(body)
    return known


def marked(method: Callable[..., Any]) -> Callable[..., Any]:
    """The SDK's request method, naming the answer that it wants."""

    def request(self: Any, cast_to: Any, options: FinalRequestOptions, *, stream: bool = False, **more: Any) -> Any:
        given = options.headers if isinstance(options.headers, dict) else {}
        options.headers = {**given, HEADER: answer_for(cast_to, stream)}
        return method(self, cast_to, options, stream=stream, **more)

    return request


_base_client.SyncAPIClient.request = marked(_base_client.SyncAPIClient.request)  # type: ignore[method-assign]
_base_client.AsyncAPIClient.request = marked(_base_client.AsyncAPIClient.request)  # type: ignore[method-assign]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how each test ended; a failure in any phase stays."""
    if report.when == "call" or report.outcome != "passed":
        OUTCOMES[report.nodeid] = report.outcome


def pytest_sessionfinish() -> None:
    """Write the outcomes."""
    (FOLDER / "outcomes.json").write_text(json.dumps(OUTCOMES))
