"""What a splice says of the events that went on: whoever hears no more than that understands the whole reply."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.dialects.chat_splice import ChatWeaver
from accordion.dialects.messages_weaving import MessagesWeaver
from accordion.dialects.responses_weaving import ResponsesWeaver
from accordion.dialects.splice import Weaver
from tests import replies
from tests.replies import CHAT, MESSAGES, RESPONSES, sse

WEAVERS: dict[str, Weaver] = {"chat": ChatWeaver(), "responses": ResponsesWeaver(), "messages": MessagesWeaver()}
STREAMS = {"chat": (CHAT, False), "responses": (RESPONSES, True), "messages": (MESSAGES, True)}


def blocks(events: Any, sizes: list[int], *, named: bool, end: str) -> list[bytes]:
    """The stream in blocks of so many events; the rest one by one."""
    each = [sse(event, named=named and not isinstance(event, str), space="", end=end) for event in events]
    out, at = [], 0
    for size in sizes:
        out.append(b"".join(each[at : at + size]))
        at += size
    return [block for block in (*out, *each[at:]) if block]


@pytest.mark.parametrize("dialect", replies.DIALECTS, ids=lambda dialect: dialect.name)
@given(sizes=st.lists(st.integers(1, 9), max_size=8), end=st.sampled_from(["\n", "\r\n"]))
def test_who_hears_what_a_splice_tells_of_understands_the_whole_reply(dialect: Any, sizes: list[int], end: str) -> None:
    events, named = STREAMS[dialect.name]
    splice = WEAVERS[dialect.name].splice("read_artifact", True)
    whole, told = dialect.tap(True), dialect.tap(True)
    for block in blocks(events, sizes, named=named, end=end):
        shown = splice.feed(block)
        assert not splice.wanted
        whole.feed(shown)
        told.feed(shown if splice.telling is None else splice.telling)
        assert told.seen() == whole.seen()
    rest = splice.close()
    whole.feed(rest)
    told.feed(rest)
    assert told.seen() == whole.seen()
    assert whole.seen().calls


@pytest.mark.parametrize("dialect", replies.DIALECTS, ids=lambda dialect: dialect.name)
def test_of_a_text_that_goes_on_nothing_is_told(dialect: Any) -> None:
    words = {
        "chat": [replies.chunk({"content": f"word {at}"}) for at in range(9)],
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
    splice = WEAVERS[dialect.name].splice("read_artifact", True)
    first, several, alone = blocks(words[dialect.name], [3, 6], named=dialect.name != "chat", end="\n") + [b""] * (
        dialect.name != "messages"
    )
    assert splice.feed(first) == first
    assert splice.feed(several) == several
    assert splice.telling == b""
    if alone:
        assert splice.feed(alone) == alone
        assert splice.telling == b""
