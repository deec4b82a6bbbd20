"""Replies of Responses as a provider streams them, made of items, and what a client understands of such a stream."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from accordion.protocols.openai_responses.tool_rounds import ResponsesToolStream
from accordion.protocols.sse import SseBuffer
from accordion.protocols.tool_loop import ObservedRound
from tests.reply_parts import item_events

Json = dict[str, Any]

OURS = "read_artifact"
OUR_TOOL = {
    "type": "function",
    "name": OURS,
    "description": "Reads.",
    "parameters": {"type": "object"},
    "strict": False,
}
THEIR_TOOL = {"type": "function", "name": "run", "parameters": {"x": [{"sequence_number": 1}]}, "strict": True}


def reasoning(name: str, text: str = "", sealed: str = "") -> Json:
    item: Json = {"id": f"rs_{name}", "type": "reasoning", "summary": []}
    if text:
        item["summary"] = [{"type": "summary_text", "text": text}]
    return {**item, "encrypted_content": sealed} if sealed else item


def message(name: str, text: str) -> Json:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"id": f"msg_{name}", "type": "message", "status": "completed", "role": "assistant", "content": [part]}


def function(call_id: str, arguments: str = "{}", name: str = "run") -> Json:
    made = {"id": f"fc_{call_id}", "type": "function_call", "status": "completed", "arguments": arguments}
    return {**made, "call_id": call_id, "name": name}


def own_call(call_id: str, artifact: str = "art_secret") -> Json:
    return function(call_id, f'{{"id": "{artifact}"}}', OURS)


def custom(call_id: str, text: str) -> Json:
    return {"id": f"ctc_{call_id}", "type": "custom_tool_call", "call_id": call_id, "name": "patch", "input": text}


def search(name: str) -> Json:
    action = {"type": "search", "query": "x"}
    return {"id": f"ws_{name}", "type": "web_search_call", "status": "completed", "action": action}


def response(name: str, items: Sequence[Json], status: str = "completed", **more: Any) -> Json:
    """The object of a response; `usage` grows with its items."""
    made = len(items)
    used = {
        "input_tokens": 100, "input_tokens_details": {"cached_tokens": 64}, "output_tokens": 10 * made,
        "output_tokens_details": {"reasoning_tokens": made}, "total_tokens": 100 + 10 * made,
    }  # fmt: skip
    return {
        "id": f"resp_{name}", "object": "response", "created_at": 1, "status": status, "model": "small",
        "instructions": f"Call {OURS}.", "output": list(items), "parallel_tool_calls": True, "temperature": 1.0,
        "tool_choice": "auto", "tools": [THEIR_TOOL, OUR_TOOL], "error": None, "usage": used, **more,
    }  # fmt: skip


def events_of(whole: Json, size: int = 7) -> list[Json]:
    """The events of a response; texts and arguments come in pieces of this size."""
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    out: list[Json] = [{"type": f"response.{word}", "response": begun} for word in ("created", "in_progress")]
    for at, item in enumerate(whole["output"]):
        out += item_events(at, item, lambda text: [text[at : at + size] for at in range(0, len(text), size)])
    out.append({"type": f"response.{whole['status']}", "response": whole})
    return [{**event, "sequence_number": number} for number, event in enumerate(out)]


def stream(events: Sequence[Json], *, named: bool = True, end: str = "\n") -> bytes:
    lines = (
        (f"event: {event['type']}{end}" if named else "") + f"data: {json.dumps(event)}{end}{end}" for event in events
    )
    return "".join(lines).encode()


def read_events(shown: bytes) -> list[Json]:
    """The events of a stream as a client reads them."""
    out = []
    for piece in shown.replace(b"\r\n", b"\n").split(b"\n\n"):
        for line in piece.split(b"\n"):
            if line.startswith(b"data: ") and line != b"data: [DONE]":
                out.append(json.loads(line[6:]))
                name = piece.split(b"\n")[0].removeprefix(b"event: ").decode()
                assert name == out[-1]["type"] or not piece.startswith(b"event")
    return out


def blocks(body: bytes, cuts: Sequence[int]) -> list[bytes]:
    """The body as a tool loop gets it: whole events, in blocks that depend on the cuts."""
    events, at, out = SseBuffer(2**24), 0, []
    for cut in [*sorted(cut % (len(body) + 1) for cut in cuts), len(body)]:
        if block := events.feed(body[at:cut]):
            out.append(block)
        at = cut
    return [*out, events.flush()]


def run_loop(rounds: Sequence[bytes], cuts: Sequence[int] = ()) -> tuple[bytes, list[ObservedRound]]:
    tool_loop = ResponsesToolStream(OURS)
    out, seen = b"", []
    for number, body in enumerate(rounds):
        if number:
            tool_loop.continue_response()
        for block in blocks(body, cuts):
            out += tool_loop.feed(block)
        assert tool_loop.is_round_over
        seen.append(tool_loop.read_round())
    return out + tool_loop.close(), seen


def joined(events: Sequence[Json], name: str) -> dict[int, str]:
    """Returns the joined deltas of this kind, by item."""
    out: dict[int, str] = {}
    for event in events:
        if event["type"] == f"response.{name}.delta":
            out[event["output_index"]] = out.get(event["output_index"], "") + event["delta"]
    return out
