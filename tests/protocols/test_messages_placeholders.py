"""Artifacts that are named in the arguments of a client's calls, in streamed replies of Anthropic's Messages."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from accordion.protocols.anthropic_messages.protocol import MessagesArtifactTool
from accordion.protocols.tool_loop import ArtifactPlaceholder
from tests.protocols.messages_streams import (
    OURS,
    PLACES,
    TOOL,
    block_events,
    call,
    cut,
    data,
    feed_pieces,
    read_entries,
    reply,
    run_rounds,
    text,
    whole,
)
from tests.sample_responses import sse

NAMING = {"path": "a{b", "body": {"$artifact": "art_1", "path": "$.x"}, "more": [{"$artifact": "art_2"}, {"k": "v"}]}


@given(PLACES, st.booleans(), st.booleans(), st.booleans())
def test_named_artifacts_are_put_in_place_however_the_stream_is_cut(
    places: Any, known: bool, at_once: bool, first: bool
) -> None:
    block = call("theirs", NAMING)
    ours = 0 if first else 2
    others = [*block_events(1 - ours // 2, block, whole=at_once), *block_events(2 - ours // 2, text("after"))]
    events = [*block_events(0, OURS), *others] if first else [*others, *block_events(2, OURS)]
    stream = reply(events=events, stop="tool_use")
    tool_loop = MessagesArtifactTool().open_response(TOOL, True)
    seen: list[ArtifactPlaceholder] = []
    out = b""
    for piece in cut(stream, places):
        out += tool_loop.feed(piece)
        while wanted := tool_loop.pending_placeholders:
            assert b"after" not in out
            seen += wanted
            out += tool_loop.resolve([f'"{w.artifact}"\n' if known else None for w in wanted])
    ended = tool_loop.read_round()
    message = whole(out + tool_loop.close())
    texts = {"body": '"art_1"\n', "more": ['"art_2"\n', {"k": "v"}]} if known else {}
    assert message["content"][0]["input"] == NAMING | texts
    assert message["content"][1]["text"] == "after"
    assert seen == [ArtifactPlaceholder("art_1", "$.x"), ArtifactPlaceholder("art_2")]
    assert ended.resolved is known
    assert read_entries(ended)[int(first)] == block


def test_names_stay_where_nothing_is_given_for_them() -> None:
    block = call("theirs", NAMING)
    tool_loop = MessagesArtifactTool().open_response(TOOL, True)
    out = tool_loop.feed(reply([block], stop="tool_use")[:-1])
    assert tool_loop.feed(b"\n") == b""
    assert tool_loop.pending_placeholders == (ArtifactPlaceholder("art_1", "$.x"),)
    message = whole(out + tool_loop.close())
    assert (message["content"][0]["input"], message["stop_reason"]) == (NAMING, "tool_use")


def test_arguments_that_break_off_are_shown_to_their_last_byte() -> None:
    events = block_events(0, call("theirs", {}), {"type": "input_json_delta", "partial_json": '{"a": {"$art'})
    out, _ = run_rounds([reply(events=events, stop="max_tokens")])
    assert "".join(each["delta"].get("partial_json", "") for each in data(out) if "delta" in each) == '{"a": {"$art'


def test_arguments_without_names_pass_as_they_came() -> None:
    stream = reply([call("theirs", {"a": {"b": "$artifact"}, "c": '{"$artifact": "x"}'})], stop="tool_use")
    tool_loop = MessagesArtifactTool().open_response(TOOL, True)
    out = feed_pieces(tool_loop, cut(stream, range(len(stream))))
    assert data(out + tool_loop.close())[0] == data(stream)[0]
    assert whole(out + tool_loop.close() + sse({"type": "message_stop"}, named=True))["content"][0]["input"]["a"]
    assert not tool_loop.read_round().resolved
