"""Our tool in replies of Anthropic's Messages that are one document."""

from __future__ import annotations

import json

from accordion.model.records import Usage
from accordion.protocols.anthropic_messages.protocol import MessagesArtifactTool
from accordion.protocols.tool_loop import ArtifactToolCall, ObservedRound, ToolLoopResponse
from tests.protocols.messages_streams import OURS, TOOL, USAGE, call, document, text, thought


def read(*rounds: bytes) -> tuple[bytes, list[ObservedRound], ToolLoopResponse]:
    tool_loop = MessagesArtifactTool().open_response(TOOL, False)
    seen = []
    for at, body in enumerate(rounds):
        for start in range(0, len(body), 100):
            assert tool_loop.feed(body[start : start + 100]) == b""
        seen.append(tool_loop.read_round())
        if at + 1 < len(rounds):
            tool_loop.continue_response()
    return tool_loop.close(), seen, tool_loop


def test_rounds_become_one_message() -> None:
    odd = b'{"type": "text",  "text": "\\u0041"}'
    first = document([thought("hm"), text("see"), OURS], stop="tool_use").replace(b'"msg_1"', b'"msg_0"')
    last = document([text("ODD"), call("theirs", {"n": 1.0})], stop="tool_use", container={"id": "c"})
    at = last.index(b"ODD")
    last = last[: last.rindex(b"{", 0, at)] + odd + last[last.index(b"}", at) + 1 :]
    out, (one, two), tool_loop = read(first, last)
    message = json.loads(out)
    assert message["content"] == [thought("hm"), text("see"), text("A"), call("theirs", {"n": 1.0})]
    assert odd in out
    assert odd in two.entries[0]
    assert b'"n": 1.0' in out
    assert (message["id"], message["stop_reason"], message["container"]) == ("msg_0", "tool_use", {"id": "c"})
    assert message["usage"] == USAGE | {"output_tokens": 40}
    assert one.own_calls == (
        ArtifactToolCall("toolu_ours", TOOL, json.dumps(OURS["input"], indent=1).replace("\n", "\n   ")),
    )
    assert json.loads(one.entries[0])["content"] == [thought("hm"), text("see"), OURS]
    assert one.usage == Usage(100, 20, 64, 8, 0)
    assert tool_loop.is_round_over


def test_the_last_round_ends_as_its_visible_blocks_ask_for() -> None:
    out, (seen,), _ = read(document([text("see"), OURS], stop="max_tokens"))
    assert json.loads(out)["content"] == [text("see")]
    assert json.loads(out)["stop_reason"] == "max_tokens"
    assert not seen.finished
    assert json.loads(seen.entries[0])["content"] == [text("see")]
    for last in (document([]), b""):
        out, _, _ = read(document([text("a"), OURS], stop="tool_use"), last)
        assert json.loads(out)["stop_reason"] == "end_turn"
        assert json.loads(out)["content"] == [text("a")]


def test_half_a_character_and_an_error_behind_a_round_pass_unchanged() -> None:
    body = b'{"content": [{"type": "text", "text": "\\ud83d"}], "stop_reason": "end_turn"}'
    out, (seen,), _ = read(body)
    assert (out, seen.finished) == (body, False)
    assert json.loads(read(document([OURS], stop="tool_use"), b'{"type": "error"}')[0]) == {"type": "error"}
