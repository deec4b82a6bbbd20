"""Recorded conversations of real agents have no problems, wherever a request was made of them."""

from __future__ import annotations

import gzip
import json
import os
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from proxy.core.conversation import Message
from tests.dialects.edited import SPOKEN, message
from tests.histories import DIALECTS, DialectName

# Two people who talk about their lives: either may begin.
PEOPLE = "locomo"
SHORTEST_STEP = 7


def transcripts() -> list[Path]:
    given = os.environ.get("ACCORDION_TRAJECTORIES")
    folder = Path(given) if given else Path(__file__).parents[3] / "shared" / "data" / "trajectories"
    return sorted(path for path in folder.glob("*.jsonl.gz") if not path.name.startswith(PEOPLE))


@pytest.mark.skipif(not transcripts(), reason="the recorded transcripts are not here (ACCORDION_TRAJECTORIES)")
@pytest.mark.parametrize("path", transcripts(), ids=lambda path: path.name.split(".")[0])
@pytest.mark.parametrize("name", DIALECTS)
def test_requests_of_recorded_transcripts_have_no_problems(name: DialectName, path: Path) -> None:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        recorded = [json.loads(line)["messages"] for line in islice(lines, 2)]
    looked = 0
    for said in recorded:
        listed: list[Message] = []
        for at, entry in enumerate(said):
            if entry["role"] == "assistant" and at % SHORTEST_STEP < 2:
                assert SPOKEN[name].problems(listed) == []
                looked += 1
            listed += [message(SPOKEN[name], written) for written in _written(entry, name)]
    assert looked


def _written(entry: Any, name: DialectName) -> list[Any]:
    """An entry of Chat Completions in another dialect; the system prompt is a field there."""
    role, content, calls = entry["role"], entry["content"], entry.get("tool_calls", [])
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
    if role == "tool":
        result = {"type": "tool_result", "tool_use_id": entry["tool_call_id"], "content": content}
        return [{"role": "user", "content": [result]}]
    blocks = [{"type": "text", "text": content}] if (content or "").strip() else []
    uses = [{"type": "tool_use", "id": i, "name": n, "input": {"given": a}} for i, n, a in made]
    return [{"role": role, "content": blocks + uses}]
