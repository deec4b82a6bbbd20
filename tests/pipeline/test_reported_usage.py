"""What providers report for requests that they answered: a wrong figure refuses and compacts nothing."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accordion.accounting.calibration import LEAST_RATIO, MOST_ADDED, MOST_RATIO, is_credible
from accordion.model.budget import Window
from tests.fakes import FakeReply, FakeWindows
from tests.pipeline_setup import CHAT, PATHS, PipelineSetup, header
from tests.reply_parts import fake_reply
from tests.sample_responses import sse
from tests.tiers import examples
from tests.writers import WRITERS, words

Json = dict[str, Any]
WINDOW = 8_192


class ConfiguredWindows(FakeWindows):
    """A window that the operator configured."""

    def window(self, model: str, upstream: str = "", beta: str = "", tenant: str = "") -> Window:
        return Window(self.size, self.size, "config")


def overflow() -> FakeReply:
    error = {"message": "prompt is too long", "type": "invalid_request_error", "code": "context_length_exceeded"}
    return FakeReply(400, pieces=(json.dumps({"error": error}).encode(),))


async def play_conversation(setup: PipelineSetup, turns: list[tuple[int, int]]) -> list[tuple[int, str | None, bool]]:
    """A conversation whose turns have so many words, each reported with so many tokens. Gives of every answer its
    status, its compaction record, and whether the provider had the client's own bytes."""
    messages: list[Json] = []
    answers = []
    for at, (length, reported) in enumerate(turns):
        messages.append({"role": "user", "content": words(length, f"t{at}_")})
        setup.upstream.answers = [fake_reply("chat", input=reported)]
        asked = len(setup.upstream.requests)
        body = json.dumps({"model": "m", "messages": messages}).encode()
        out, _ = await setup.ask(CHAT, body)
        same = [request.body for request in setup.upstream.requests[asked:]] == [body]
        answers.append((out.status, header(out, "x-accordion-compaction"), same))
        messages.append({"role": "assistant", "content": "Done."})
    return answers


@pytest.mark.parametrize("reported", [8_193, 8_200, 9_000, 20_000, 30_000, 10**12])
async def test_a_report_above_the_window_does_not_refuse_the_next_request(reported: int):
    setup = PipelineSetup(windows=ConfiguredWindows(WINDOW))
    assert await play_conversation(setup, [(730, reported), (20, reported), (20, 0)]) == [(200, None, True)] * 3


async def test_a_report_above_the_window_compacts_nothing_at_any_ratio():
    """A tokenizer can make 8,300 tokens of 2,900 words, but the provider cannot have answered that."""
    setup = PipelineSetup(windows=ConfiguredWindows(WINDOW))
    turns = [(2_900, 8_300), *[(20, 8_300 + at) for at in range(5)]]
    assert await play_conversation(setup, turns) == [(200, None, True)] * 6


# Tokens that a tokenizer may make of all turns, and what a provider adds, are under the trigger of half the window.
_TURNS = st.lists(st.tuples(st.integers(1, 110), st.integers(0, 9_000) | st.integers(0, 10**13)), max_size=8)


@settings(max_examples=examples(60), deadline=None)
@given(_TURNS)
def test_no_report_compacts_or_refuses_a_short_conversation(turns: list[tuple[int, int]]):
    setup = PipelineSetup(windows=ConfiguredWindows(WINDOW))
    assert asyncio.run(play_conversation(setup, turns)) == [(200, None, True)] * len(turns)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 1_000), st.integers(0, 9_000) | st.integers(0, 10**13)), max_size=8))
def test_no_report_refuses_what_our_own_count_says_fits(turns: list[tuple[int, int]]):
    setup = PipelineSetup(windows=ConfiguredWindows(WINDOW))
    answers = asyncio.run(play_conversation(setup, [(length, reported) for length, reported in turns]))
    assert all(status == 200 for status, _, _ in answers)


async def test_a_report_that_is_far_too_low_hides_no_trigger():
    """Some gateways leave out what was read from a cache."""
    setup = PipelineSetup(windows=ConfiguredWindows(WINDOW))
    answers = await play_conversation(setup, [(1_000, 3), *[(1_000, 3)] * 5])
    assert [record is not None for _, record, _ in answers] == [False] * 4 + [True] * 2


async def test_a_low_report_that_is_credible_hides_no_overflow():
    """The provider refuses what was taken for little; the request is compacted and sent again."""
    setup = PipelineSetup(windows=ConfiguredWindows(WINDOW))
    messages: list[Json] = []
    for at in range(5):
        messages.append({"role": "user", "content": words(800, f"t{at}_")})
        messages.append({"role": "assistant", "content": "Done."})
    messages.append({"role": "user", "content": "And now?"})
    setup.upstream.answers = [fake_reply("chat", input=2_200)]
    await setup.ask(CHAT, {"model": "m", "messages": messages})
    messages += [{"role": "assistant", "content": "Done."}, {"role": "user", "content": words(800, "last")}]
    setup.upstream.answers = [overflow(), fake_reply("chat", input=2_000)]
    out, _ = await setup.ask(CHAT, {"model": "m", "messages": messages})
    assert out.status == 200


@pytest.mark.parametrize(
    ("reported", "counted", "text", "credible"),
    [
        (WINDOW, 3_000, 3_000, True),
        (WINDOW + 1, 8_000, 8_000, False),
        (int(MOST_RATIO * 1_000 + MOST_ADDED * WINDOW), 1_000, 1_000, True),
        (int(MOST_RATIO * 1_000 + MOST_ADDED * WINDOW) + 1, 1_000, 1_000, False),
        (int(LEAST_RATIO * 1_000), 1_000, 1_000, True),
        (int(LEAST_RATIO * 1_000) - 1, 1_000, 1_000, False),
        # An image or a file that is only named may be anything.
        (8_000, 1_000, 900, True),
        (450, 2_000, 900, True),
    ],
)
def test_a_report_is_believed_that_a_tokenizer_can_make(reported: int, counted: int, text: int, credible: bool):
    assert is_credible(reported, counted, text, Window(WINDOW, WINDOW, "config")) is credible


def test_of_a_window_that_is_not_known_no_report_is_too_much():
    assert is_credible(200_000, 150_000, 150_000, Window(120_000, 120_000, "default"))


SEARCH: dict[str, Json] = {
    "responses": {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}},
    "messages": {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "words"}},
}


def searched(protocol_name: str, first: int, summed: int, *, stream: bool) -> FakeReply:
    """A reply in which the provider's own search ran. Its usage adds up all rounds; `first` is that of the first."""
    search, usage = SEARCH[protocol_name], {"input_tokens": summed, "output_tokens": 9}
    if protocol_name == "responses":
        document: Json = {"id": "resp_1", "status": "completed", "output": [search], "usage": usage}
        item = {"type": "response.output_item.done", "output_index": 0, "item": search}
        events = [item, {"type": "response.completed", "response": document}]
    else:
        document = {"id": "msg_1", "type": "message", "role": "assistant", "content": [search], "usage": usage}
        begun = {**document, "content": [], "usage": {"input_tokens": first, "output_tokens": 1}}
        events = [
            {"type": "message_start", "message": begun},
            {"type": "content_block_start", "index": 0, "content_block": search},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
            {"type": "message_stop"},
        ]
    if stream:
        return FakeReply(headers=((b"content-type", b"text/event-stream"),), pieces=(sse(*events, named=True),))
    return FakeReply(pieces=(json.dumps(document).encode(),))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("protocol_name", SEARCH)
async def test_usage_summed_over_rounds_of_the_providers_own_tools_is_not_the_context(protocol_name: str, stream: bool):
    """Only the stream of Messages says what the first round read."""
    writer = WRITERS[protocol_name]
    entries = [writer.user(words(500, "w")), writer.model("Found."), writer.user("More?")]

    async def tokens(setup: PipelineSetup, count: int, session: str) -> int:
        request = writer.request("m", entries[:count], stream=stream)
        out, _ = await setup.ask(PATHS[protocol_name], request, {"x-accordion-session": session})
        return int(header(out, "x-accordion-tokens") or 0)

    plain, setup = PipelineSetup(), PipelineSetup()
    counted = [await tokens(plain, count, "session-plain") for count in (1, 3)]
    setup.upstream.answers = [searched(protocol_name, counted[0], 12 * counted[0], stream=stream)]
    assert [await tokens(setup, count, "session-search") for count in (1, 3)] == counted
    assert await tokens(setup, 1, "session-other") == counted[0], "nor does it correct the counts of others"
    first, second, _ = setup.recorder.exchanges
    assert first.usage is not None
    assert first.usage.input == 12 * counted[0]
    assert second.utilization.includes_report is (stream and protocol_name == "messages")
