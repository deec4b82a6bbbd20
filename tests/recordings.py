"""Recorded conversations of real agents: where they are, what they say, and how another protocol would write them."""

from __future__ import annotations

import gzip
import json
import os
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.histories import PROTOCOL_NAMES, ProtocolName

RECORDINGS = Path(
    os.environ.get("ACCORDION_TRAJECTORIES") or Path(__file__).parents[2] / "shared" / "data" / "trajectories"
)
"""Their folder: ACCORDION_TRAJECTORIES, else `shared/data/trajectories` beside the checkout. Tests that need them are
skipped if it does not exist."""
# Two people who talk about their lives: either may begin.
PEOPLE = "locomo"


def transcripts() -> list[Path]:
    """The files; none where the recordings are not at hand."""
    return sorted(path for path in RECORDINGS.glob("*.jsonl.gz") if not path.name.startswith(PEOPLE))


def recorded_cases(*windows: int) -> list[Any]:
    """Parameters of a test: each file in each protocol, with the windows by turns. The quick tier: each file once."""
    cases = []
    for row, path in enumerate(transcripts()):
        for column, name in enumerate(PROTOCOL_NAMES):
            window = (windows[(row + column) % len(windows)],) if windows else ()
            marks = () if column == row % len(PROTOCOL_NAMES) else pytest.mark.rest
            case = "-".join(map(str, (path.name.split(".")[0], name, *window)))
            cases.append(pytest.param(path, name, *window, marks=marks, id=case))
    return cases


@cache
def read_recording(path: Path, number: int | None = None) -> list[list[dict[str, Any]]]:
    """The messages of so many of a file's conversations; of all where nothing is said."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["messages"] for line in islice(lines, number)]


def write_entry(entry: dict[str, Any], name: ProtocolName) -> list[Any]:
    """An entry of Chat Completions in another protocol."""
    role, content, calls = entry["role"], entry["content"], entry.get("tool_calls") or []
    if role == "system":
        return []
    if name == "chat":
        return [entry]
    made = [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls]
    if name == "responses":
        if role == "tool":
            return [{"type": "function_call_output", "call_id": entry["tool_call_id"], "output": content}]
        spoken = [{"role": role, "content": content}] if content else []
        return spoken + [{"type": "function_call", "call_id": i, "name": n, "arguments": a} for i, n, a in made]
    if name == "gemini":
        if role == "tool":
            answer = {"id": entry["tool_call_id"], "name": "f", "response": {"output": content}}
            return [{"role": "user", "parts": [{"functionResponse": answer}]}]
        parts: list[dict[str, Any]] = [{"text": content}] if content else []
        parts += [{"functionCall": {"id": i, "name": n, "args": {"given": a}}} for i, n, a in made]
        return [{"role": "model" if role == "assistant" else "user", "parts": parts}] if parts else []
    if name == "converse":
        if role == "tool":
            answer = {"toolUseId": entry["tool_call_id"], "content": [{"text": content}] if content else []}
            return [{"role": "user", "content": [{"toolResult": answer}]}]
        said: list[dict[str, Any]] = [{"text": content}] if (content or "").strip() else []
        said += [{"toolUse": {"toolUseId": i, "name": n, "input": {"given": a}}} for i, n, a in made]
        return [{"role": role, "content": said}] if said else []
    if role == "tool":
        result = {"type": "tool_result", "tool_use_id": entry["tool_call_id"], "content": content}
        return [{"role": "user", "content": [result]}]
    blocks = [{"type": "text", "text": content}] if (content or "").strip() else []
    uses = [{"type": "tool_use", "id": i, "name": n, "input": {"given": a}} for i, n, a in made]
    return [{"role": role, "content": blocks + uses}] if blocks or uses else []
