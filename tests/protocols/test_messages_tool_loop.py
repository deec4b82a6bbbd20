"""Our tool in streamed replies of Anthropic's Messages: what the client sees, and what the provider said."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.model.records import Usage
from accordion.protocols.anthropic_messages.protocol import MessagesArtifactTool
from accordion.protocols.tool_loop import ArtifactToolCall
from tests.protocols.messages_streams import (
    OURS,
    PLACES,
    START,
    TOOL,
    block_events,
    call,
    cut,
    data,
    hosted,
    read_entries,
    reply,
    run_rounds,
    text,
    thought,
    whole,
)  # fmt: skip
from tests.sample_responses import sse


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_round_tells_in_which_container_its_code_ran(stream: bool) -> None:
    ran = {"id": "container_1", "expires_at": "2030-01-01T00:00:00Z"}
    ending = b'"stop_sequence": null'
    body = reply([hosted(), OURS], stop="tool_use")
    assert ending in body
    body = body.replace(ending, ending + b',"container":' + json.dumps(ran).encode())
    if not stream:
        message = {**START, "content": [hosted(), OURS], "stop_reason": "tool_use", "container": ran}
        body = json.dumps(message).encode()
    tool_loop = MessagesArtifactTool().open_response(TOOL, stream)
    tool_loop.feed(body)
    assert tool_loop.read_round().container == "container_1"
    assert run_rounds([reply([OURS], stop="tool_use")])[1][0].container == ""


SAYING = st.text(st.sampled_from('ab"\\{}\n\r é😀'), min_size=1, max_size=60).filter(lambda words: not words.isspace())
SAID = st.one_of(
    SAYING.map(text), SAYING.map(thought), SAYING.map(lambda words: call("theirs", {words: {"a": words}}))
)  # fmt: skip


@given(st.lists(SAID, max_size=4), PLACES, st.sampled_from(["\n", "\r\n"]), st.sampled_from(["", " "]))
def test_the_providers_blocks_are_recorded_unchanged(blocks: Any, places: Any, end: str, space: str) -> None:
    stream = reply([*blocks, OURS], stop="tool_use", end=end, space=space)
    out, (seen,) = run_rounds(cut(stream, places))
    assert read_entries(seen) == [*blocks, OURS]
    shown = whole(out)["content"]
    assert [{name: got[name] for name in block} for got, block in zip(shown, blocks, strict=True)] == blocks
    assert seen.text == " ".join(block["text"] for block in blocks if "text" in block)
    odd = stream.replace(b'"}}' + end.encode(), b'"}   }' + end.encode())
    assert read_entries(run_rounds(cut(odd, places))[1][0]) == [*blocks, OURS]


def test_our_call_is_told_and_held_until_the_round_is_over() -> None:
    tool_loop = MessagesArtifactTool().open_response(TOOL, True)
    stream = reply([text("see"), OURS], stop="tool_use")
    end = stream.index(b"event: message_delta")
    assert tool_loop.feed(stream[:end]).endswith(b'"content_block_stop", "index": 0}\n\n')
    assert not tool_loop.is_round_over
    assert tool_loop.feed(stream[end:]) == b""
    assert tool_loop.is_round_over
    seen = tool_loop.read_round()
    assert seen.own_calls == (ArtifactToolCall("toolu_ours", TOOL, json.dumps(OURS["input"])),)
    assert (seen.client_call_ids, seen.text, seen.finished, seen.usage) == ((), "see", True, Usage(100, 20, 64, 8, 0))
    assert read_entries(seen) == [text("see"), OURS]


def test_an_error_ends_the_reply_and_goes_on_as_it_came() -> None:
    error = sse({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, named=True)
    begun = reply([text("a")]).split(b"event: message_delta")[0]
    out, (seen,) = run_rounds([begun + error])
    assert out == begun + error
    assert not seen.finished
    first = reply([OURS], stop="tool_use")
    opening = first[: first.index(b"event: content_block_start")]
    assert run_rounds([first], [error])[0] == opening + error
    late = reply([text("a")]).split(b"event: message_stop")[0] + error
    assert run_rounds([late])[0] == late


def test_pings_and_comments_pass_while_the_end_is_held() -> None:
    tool_loop = MessagesArtifactTool().open_response(TOOL, True)
    tool_loop.feed(reply([OURS], stop="tool_use"))
    for sign in (sse({"type": "ping"}, named=True), b": alive\n\n"):
        assert tool_loop.feed(sign) == sign


def test_usage_is_the_last_rounds_input_and_the_output_of_all() -> None:
    first = {"input_tokens": 5, "cache_read_input_tokens": 900, "output_tokens": 1}
    detail = {"output_tokens": 7, "output_tokens_details": {"thinking_tokens": 3}, "server_tool_use": {"web": 1}}
    one = reply([OURS], stop="tool_use", start=START | {"usage": first}, usage=detail)
    bare = START | {"usage": {"input_tokens": 30, "cache_creation_input_tokens": 4, "output_tokens": 1}}
    out, (_, seen) = run_rounds([one], [reply([text("done")], start=bare, usage=detail | {"input_tokens": None})])
    (end,) = [each for each in data(out) if each["type"] == "message_delta"]
    assert end["usage"] == {
        "cache_read_input_tokens": 0, "input_tokens": 30, "cache_creation_input_tokens": 4, "output_tokens": 14,
        "output_tokens_details": {"thinking_tokens": 6}, "server_tool_use": {"web": 2},
    }  # fmt: skip
    assert seen.usage == Usage(34, 7, 0, 4, 3)


def test_blocks_are_sent_back_as_they_were_said() -> None:
    cited = {"type": "char_location", "cited_text": "é"}
    compaction = {"type": "compaction", "content": None}
    events = [
        *block_events(0, compaction, {"type": "compaction_delta", "content": "short", "encrypted_content": "c"}),
        *block_events(1, thought("hm")),
        *block_events(2, {"type": "redacted_thinking", "data": "sealed"}),
        *block_events(3, text("  \n")),
        *block_events(
            4, {"type": "text", "text": "a", "citations": []}, {"type": "citations_delta", "citation": cited}
        ),
        *block_events(5, {"type": "new_block", "x": [1.0]}),
        *block_events(6, call("theirs", {})),
        *block_events(7, OURS | {"input": {}}, {"type": "input_json_delta", "partial_json": '{"id": "a'}),
        *block_events(8, call("none", None), whole=True),
    ]
    _, (seen,) = run_rounds([reply(events=events, stop="tool_use")])
    assert read_entries(seen) == [
        {"type": "compaction", "content": "short", "encrypted_content": "c"},
        thought("hm"),
        {"type": "redacted_thinking", "data": "sealed"},
        {"type": "text", "text": "a", "citations": [cited]},
        {"type": "new_block", "x": [1.0]},
        call("theirs", {}),
        OURS | {"input": {"INVALID_JSON": '{"id": "a'}},
        call("none", {}),
    ]
    assert b'{"type": "new_block", "x": [1.0]}' in seen.entries[0]
    assert seen.own_calls[0].arguments == '{"id": "a'
    assert seen.finished


def test_a_block_that_is_not_understood_makes_the_round_unanswerable() -> None:
    odd = block_events(0, {"type": "new_block"}, {"type": "new_delta", "x": 1})
    stream = reply(events=[*odd, *block_events(1, OURS)], stop="tool_use")
    out, (seen,) = run_rounds([stream])
    assert not seen.finished
    assert [b["type"] for b in read_entries(seen)] == ["new_block"]
    assert b"new_delta" in out
    assert data(out)[-2]["delta"]["stop_reason"] == "end_turn"


def test_an_event_that_cannot_be_read_passes_unless_our_call_is_open() -> None:
    half = b'event: content_block_delta\ndata: {"type": "content_block_delta", "index": 0, "delta": {"half\n\n'
    for block, shown in ((OURS, False), (text("a"), True)):
        stream = reply([block], stop="tool_use")
        at = stream.index(b"event: content_block_stop")
        out, (seen,) = run_rounds([stream[:at] + half + stream[at:]])
        assert (half in out) is shown
        assert not seen.finished


def test_events_of_any_layout_are_numbered_anew() -> None:
    odd = [{"index": 1, "content_block": text(""), "type": "content_block_start"},
           {"delta": {"text": "x", "type": "text_delta"}, "index": 1, "type": "content_block_delta"}]  # fmt: skip
    out, _ = run_rounds([reply(events=[*block_events(0, OURS), *odd], stop="tool_use")])
    assert [each["index"] for each in data(out) if "index" in each] == [0, 0]


def test_events_keep_their_order_whatever_is_read_of_them() -> None:
    delta = {"type": "text_delta", "text": "x"}
    begun, more, *_, over = block_events(0, text(""), delta, delta)
    stream = reply(events=[begun, more, more])
    ended = stream.index(b"event: message_delta")
    again = sse(more, named=True)
    odd = again.replace(b"}}", b', "n": 1}}')
    for pieces, words in (
        ([stream[:ended], b": so far\n", again, stream[ended:]], "xxx"),
        ([stream[:ended], again, stream[ended:], again, sse(over, named=True)], "xxx"),
        ([stream[:ended], odd, again, stream[ended:]], "xxxx"),
    ):
        out, (seen,) = run_rounds(pieces)
        assert out == b"".join(pieces)
        assert seen.text == words


def test_large_events_may_come_in_pieces() -> None:
    given = {"id": "hidden " * 20_000}
    called = {"type": "input_json_delta", "partial_json": json.dumps(given)}
    said = {"type": "text_delta", "text": "big " * 40_000}
    events = [*block_events(0, OURS | {"input": {}}, called), *block_events(1, text(""), said)]
    stream = reply(events=events, stop="tool_use")
    out, (seen,) = run_rounds([stream[at : at + 65_536] for at in range(0, len(stream), 65_536)])
    assert whole(out)["content"][0]["text"] == said["text"]
    assert b"hidden" not in out
    assert json.loads(seen.own_calls[0].arguments) == given
    assert read_entries(seen)[1]["text"] == said["text"]


def test_a_too_deeply_nested_stream_passes_unchanged() -> None:
    deep = b'event: new\ndata: {"type": "new", "a": ' + b"[" * 100_000 + b"\n\n"
    assert run_rounds([deep])[0] == deep


ODD = st.sampled_from([None, 3, 1.5, "x", [], [1], {}, {"type": 3}, {"type": "tool_use", "name": 4, "input": 5},
                       text("a"), call("theirs", "x"), {"stop_reason": 5}, {"stop_reason": "tool_use"}, {"usage": 5},
                       {"type": "citations_delta"}, {"type": "compaction_delta", "content": None}])  # fmt: skip
KINDS = [*("message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta"),
         *("message_stop", "error", "new_event")]  # fmt: skip
EVENT = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS)},
    optional={
        "index": st.one_of(st.integers(-1, 2), ODD), "delta": ODD, "content_block": ODD, "message": ODD, "usage": ODD
    },
)  # fmt: skip


LINES = st.sampled_from(["", "event: x\n", "data: x\n", "id: 3\n: y\n", "data\n"])


@given(st.lists(st.tuples(LINES, st.one_of(EVENT, ODD)), max_size=8), PLACES)
def test_an_unknown_stream_passes_unchanged(events: Any, places: Any) -> None:
    stream = "".join(f"{lines}data: {json.dumps(event)}\n\n" for lines, event in events).encode()
    out, (seen,) = run_rounds(cut(stream, places))
    assert out == stream
    assert seen.own_calls == ()
    before = reply([OURS, text("a")], stop="tool_use")
    assert run_rounds([before], [stream], [before])[0].startswith(
        run_rounds([before.split(b"event: message_delta")[0]])[0]
    )
