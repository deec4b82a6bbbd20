"""The observable output of a tool loop: an observer that reads only it understands the whole response."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.protocols.registry import ARTIFACT_TOOLS
from tests import sample_responses
from tests.sample_responses import STREAMS, sse


def blocks(events: Any, sizes: list[int], *, named: bool, end: str) -> list[bytes]:
    """The stream in blocks of so many events; the rest one by one."""
    each = [sse(event, named=named and not isinstance(event, str), space="", end=end) for event in events]
    out, at = [], 0
    for size in sizes:
        out.append(b"".join(each[at : at + size]))
        at += size
    return [block for block in (*out, *each[at:]) if block]


@pytest.mark.parametrize("protocol", sample_responses.SSE_PROTOCOLS, ids=lambda protocol: protocol.name)
@given(sizes=st.lists(st.integers(1, 9), max_size=8), end=st.sampled_from(["\n", "\r\n"]))
def test_an_observer_of_the_tool_loops_output_understands_the_whole_response(
    protocol: Any, sizes: list[int], end: str
) -> None:
    events, named, _ = STREAMS[protocol.name]
    tool_loop = ARTIFACT_TOOLS[protocol.name].open_response("read_artifact", True)
    whole, told = protocol.observer(True), protocol.observer(True)
    for block in blocks(events, sizes, named=named, end=end):
        shown = tool_loop.feed(block)
        whole.feed(shown)
        told.feed(shown if tool_loop.non_text_events is None else tool_loop.non_text_events)
        assert told.observation() == whole.observation()
    rest = tool_loop.close()
    whole.feed(rest)
    told.feed(rest)
    assert told.observation() == whole.observation()
    assert whole.observation().calls


# Each event of Gemini's has the usage so far: all of them are told.
@pytest.mark.parametrize(
    "protocol",
    [each for each in sample_responses.SSE_PROTOCOLS if each.name != "gemini"],
    ids=lambda protocol: protocol.name,
)
def test_of_a_text_that_goes_on_nothing_is_told(protocol: Any) -> None:
    words = {
        "chat": [sample_responses.chunk({"content": f"word {at}"}) for at in range(9)],
        "responses": [
            {"type": "response.output_text.delta", "item_id": "m", "output_index": 0, "delta": f"word {at}"}
            for at in range(9)
        ],
        "messages": [
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            *(
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": f"word {at}"}}
                for at in range(9)
            ),
        ],
    }
    tool_loop = ARTIFACT_TOOLS[protocol.name].open_response("read_artifact", True)
    first, several, alone = blocks(words[protocol.name], [3, 6], named=STREAMS[protocol.name][1], end="\n") + [b""] * (
        protocol.name != "messages"
    )
    assert tool_loop.feed(first) == first
    assert tool_loop.feed(several) == several
    assert tool_loop.non_text_events == b""
    if alone:
        assert tool_loop.feed(alone) == alone
        assert tool_loop.non_text_events == b""
