"""Responses of Anthropic's Messages as a provider streams them, and as a tool loop forwards them."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import strategies as st

from accordion.protocols.anthropic_messages.protocol import MessagesArtifactTool
from accordion.protocols.tool_loop import ObservedRound, ToolLoopResponse
from tests.reply_parts import block_deltas
from tests.sample_responses import sse
from tests.sdks import anthropic_sdk

TOOL = "read_artifact"
OURS = {"type": "tool_use", "id": "toolu_ours", "name": TOOL, "input": {"id": "deeply hidden", "limit": 3}}
USAGE = {"input_tokens": 28, "cache_creation_input_tokens": 8, "cache_read_input_tokens": 64, "output_tokens": 1}
START = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": [], "stop_reason": None,
    "stop_sequence": None, "usage": USAGE,
}  # fmt: skip
Json = dict[str, Any]
ASK: Any = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
# Places anywhere, or how many events at a time.
PLACES = st.one_of(st.lists(st.integers(0, 10_000), max_size=12), st.integers(1, 3))


def text(said: str) -> Json:
    return {"type": "text", "text": said}


def thought(said: str) -> Json:
    return {"type": "thinking", "thinking": said, "signature": "sealed" + said}


def call(name: str, given: Any) -> Json:
    return {"type": "tool_use", "id": f"toolu_{name}", "name": name, "input": given}


def hosted() -> Json:
    return {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}}


def block_events(index: int, block: Json, *deltas: Json, whole: bool = False) -> list[Json]:
    """A block's events: its start, deltas of a few characters (or `deltas`), its end. `whole`: all in the start."""
    given = json.dumps(block["input"], ensure_ascii=False) if block.get("input") else ""
    begun, found = block_deltas(block, given, _parts)
    if whole or deltas:
        begun, found = block, []
    return [
        {"type": "content_block_start", "index": index, "content_block": begun},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in (*found, *deltas)),
        {"type": "content_block_stop", "index": index},
    ]


def reply(
    blocks: Sequence[Json] = (),
    *,
    events: Sequence[Json] | None = None,
    stop: str | None = "end_turn",
    start: Json = START,
    usage: Json | None = None,
    end: str = "\n",
    space: str = " ",
) -> bytes:
    """A whole reply of these blocks, or of these events between its start and its end."""
    if events is None:
        events = [event for at, block in enumerate(blocks) for event in block_events(at, block)]
    return sse(
        {"type": "message_start", "message": start},
        {"type": "ping"},
        *events,
        {
            "type": "message_delta",
            "delta": {"stop_reason": stop, "stop_sequence": None},
            "usage": {"output_tokens": 20} if usage is None else usage,
        },
        {"type": "message_stop"},
        named=True,
        end=end,
        space=space,
    )


def document(blocks: Sequence[Json], stop: str = "end_turn", **fields: Any) -> bytes:
    """The same as one document, spaced as a provider may."""
    said = START | {"content": list(blocks), "stop_reason": stop, "usage": USAGE | {"output_tokens": 20}} | fields
    return json.dumps(said, indent=1).encode()


def _parts(said: str, size: int = 5) -> list[str]:
    return [said[at : at + size] for at in range(0, len(said), size)]


def cut(stream: bytes, places: Iterable[int] | int) -> list[bytes]:
    if isinstance(places, int):
        ends = [found.end() for found in re.finditer(rb"\n\n|\r\n\r\n", stream)][::places]
    else:
        ends = [place % (len(stream) + 1) for place in places]
    return [stream[a:b] for a, b in itertools.pairwise(sorted({0, *ends, len(stream)}))]


def feed_pieces(tool_loop: ToolLoopResponse, pieces: Iterable[bytes]) -> bytes:
    return b"".join([tool_loop.feed(piece) for piece in pieces])


def run_rounds(*rounds: Sequence[bytes]) -> tuple[bytes, list[ObservedRound]]:
    """The response to the client of these rounds, each in pieces, and the observed rounds."""
    tool_loop = MessagesArtifactTool().open_response(TOOL, True)
    out, seen = b"", list[ObservedRound]()
    for at, pieces in enumerate(rounds):
        out += feed_pieces(tool_loop, pieces)
        seen.append(tool_loop.read_round())
        if at + 1 < len(rounds):
            tool_loop.continue_response()
    return out + tool_loop.close(), seen


def whole(stream: bytes) -> Any:
    """The message that the official SDK makes of a stream; it looks up blocks by their index."""
    with anthropic_sdk(200, stream, "text/event-stream").beta.messages.stream(**ASK) as events:
        indexes = [e.index for e in events if e.type == "content_block_start"]
        message = events.get_final_message()
    assert indexes == list(range(len(message.content)))
    return message.to_dict()


def data(stream: bytes) -> list[Any]:
    lines = stream.replace(b"\r\n", b"\n").split(b"\n")
    return [json.loads(line[6:]) for line in lines if line.startswith(b"data: ")]


def read_entries(seen: ObservedRound) -> list[Any]:
    (entry,) = seen.entries
    assert json.loads(entry)["role"] == "assistant"
    return json.loads(entry)["content"]
