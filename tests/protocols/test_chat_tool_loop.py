"""Our tool in Chat Completions: its calls are never seen, everything else is, and rounds make one reply."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.model.conversation import Message
from accordion.model.insertions import ToolRound, ToolRoundInsertion
from accordion.model.records import Usage
from accordion.protocols.openai_chat.protocol import ChatArtifactTool, OpenAIChat
from accordion.protocols.tool_loop import (
    ArtifactToolCall,
    ArtifactToolResult,
    ObservedRound,
    ToolDefinition,
    normalize_space,
)
from tests import sample_responses
from tests.sample_responses import sse
from tests.sdks import openai_sdk

OURS = "read_artifact"
TOOL = ToolDefinition(OURS, "Reads what left the window.", b'{"type":"object","properties":{"id":{"type":"string"}}}')
TOOL_PROTOCOL = ChatArtifactTool()
USAGE = {
    "prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120,
    "prompt_tokens_details": {"cached_tokens": 64}, "completion_tokens_details": {"reasoning_tokens": 5},
}  # fmt: skip
USAGE_2 = {
    "prompt_tokens": 150, "completion_tokens": 7, "total_tokens": 157,
    "prompt_tokens_details": {"cached_tokens": 128}, "completion_tokens_details": {"reasoning_tokens": 1},
}  # fmt: skip
BOTH = {
    "prompt_tokens": 150, "completion_tokens": 27, "total_tokens": 177,
    "prompt_tokens_details": {"cached_tokens": 128}, "completion_tokens_details": {"reasoning_tokens": 6},
}  # fmt: skip

Json = dict[str, Any]


def chunk(delta: Json | None = None, finish: str | None = None, **more: Any) -> Json:
    return sample_responses.chunk(delta, finish, object="chat.completion.chunk", **more)


def calls(*pieces: Json) -> Json:
    return chunk({"tool_calls": list(pieces)})


ROLE = chunk({"role": "assistant", "content": ""})


def call(index: int | None, call_id: str, name: str, *arguments: str) -> list[Json]:
    """The chunks of a call: the first gives id and name, each of the others a piece of the arguments."""
    place = {} if index is None else {"index": index}
    begun = {**place, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
    return [calls(begun), *(calls({**place, "function": {"arguments": piece}}) for piece in arguments)]


def end(finish: str, usage: Json | None = None) -> list[Any]:
    return [chunk({}, finish), *([chunk(usage=usage)] if usage else []), "[DONE]"]


def text_chunks(*texts: str) -> list[Json]:
    return [chunk({"content": text}) for text in texts]


THEIRS: Json = {"index": 0, "id": "call_t", "type": "function", "function": {"name": "run", "arguments": "{}"}}
OUR_CALL = call(0, "call_o", OURS, '{"id": ', '"art_1"}')
FIRST = [ROLE, *text_chunks("I ", "look."), *OUR_CALL, *end("tool_calls", USAGE)]
SECOND = [
    {**event, "id": "chatcmpl-2", "created": 9} if isinstance(event, dict) else event
    for event in [ROLE, *text_chunks(" It ", "is 5."), *end("stop", USAGE_2)]
]


def run_loop(*rounds: Iterable[bytes], stream: bool = True) -> tuple[bytes, list[ObservedRound]]:
    """Returns the response to the client of these rounds, each in blocks."""
    tool_loop, out, seen = TOOL_PROTOCOL.open_response(OURS, stream), b"", list[ObservedRound]()
    for at, blocks in enumerate(rounds):
        if at:
            tool_loop.continue_response()
        for block in blocks:
            out += tool_loop.feed(block)
        assert tool_loop.is_round_over
        seen.append(tool_loop.read_round())
    return out + tool_loop.close(), seen


def one_by_one(events: Iterable[Any]) -> list[bytes]:
    return [sse(event) for event in events]


def data(stream: bytes) -> list[Json]:
    found = [event.removeprefix(b"data:") for event in stream.split(b"\n\n") if event.startswith(b"data:")]
    return [json.loads(event) for event in found if event.strip() != b"[DONE]"]


def read_by_sdk(stream: bytes) -> Any:
    """Returns the completion that the official SDK reads from a stream."""
    sdk = openai_sdk(200, stream, "text/event-stream")
    with sdk.chat.completions.stream(model="m", messages=[{"role": "user", "content": "?"}]) as events:
        for _ in events:
            pass
        return events.get_final_completion()


def loads(wires: Sequence[bytes]) -> list[Json]:
    return [json.loads(wire) for wire in wires]


# -- a stream without a call of ours ----------------------------------------------------

PLAIN: dict[str, list[Any]] = {
    "text": [ROLE, *text_chunks("a", "b {", 'c "quoted" \\', "é☃\U0001f600", ""), *end("stop", USAGE)],
    "calls": [ROLE, *call(0, "call_a", "read", '{"pa', 'th": "x"', "}"), *call(1, "call_b", "run"), *end("tool_calls")],
    "two calls in a chunk": [
        calls(*({"index": at, "id": f"c{at}", "function": {"name": "run", "arguments": "{}"}} for at in range(2))),
        *end("stop"),
    ],
    "custom": [
        ROLE,
        calls({"index": 0, "id": "call_a", "type": "custom", "custom": {"name": "patch", "input": '{"a"'}}),
        calls({"index": 0, "custom": {"input": ': "b"}'}}),
        *end("tool_calls"),
    ],
    "thoughts": [
        ROLE,
        *(chunk({"content": None, "reasoning_content": text}) for text in ("hm", " {", "so")),
        *(chunk({"reasoning": text, "reasoning_details": [{"type": "reasoning.text", "text": text}]}) for text in "ab"),
        *text_chunks("x"),
        *end("stop"),
    ],
    "obfuscation and unknown fields": [
        *(chunk({"content": text, "new": {"x": 1.0}}, obfuscation="ab" * at) for at, text in enumerate("abc")),
        *(chunk({"content": text}, obfuscation="ab" * at, service_tier="default") for at, text in enumerate("abc")),
        *end("stop"),
    ],
    "several choices": [
        chunk({"content": "a"}),
        {"id": "x", "choices": [{"index": 1, "delta": {"content": "b"}, "finish_reason": None}]},
        {"id": "x", "choices": [{"index": 1, "delta": {"tool_calls": [{"function": {"name": "x"}}]}}]},
        {"id": "x", "choices": [{"index": 1, "delta": {}, "finish_reason": "stop"}]},
        *end("stop"),
    ],
    "an older call": [
        chunk({"role": "assistant", "function_call": {"name": "read", "arguments": ""}}),
        *(chunk({"function_call": {"arguments": text}}) for text in ("{", "}")),
        *end("function_call"),
    ],
    "a filter's verdict": [
        {"id": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]},
        *text_chunks("x"),
        chunk({}, "stop"),
        {"id": "", "choices": [{"index": 0, "delta": {}, "content_filter_offsets": {"start": 0}}]},
        "[DONE]",
    ],
    "usage in every chunk": [*(chunk({"content": "x"}, usage=USAGE) for _ in "abc"), *end("stop", USAGE)],
    "no finish": [*text_chunks("x"), "[DONE]"],
    "an error": [*text_chunks("x"), {"error": {"message": "It broke."}}, "[DONE]"],
    "odd": [
        *(chunk(delta) for delta in ({"tool_calls": None}, {"tool_calls": [None, 3]}, {"tool_calls": {}}, {})),
        *(calls({"index": "x", "id": 3, "function": held}) for held in (None, 4, {"name": 3}, {"arguments": {}})),
        *([{"choices": held}] for held in (None, 3, [None], [3], [{"index": 0}], [{"delta": 3}], [{"index": "a"}])),
        *({"choices": held} for held in (None, 3, [None], [3], [{"index": 0}], [{"delta": 3}], [{"index": "a"}])),
        "[]",
        "3",
        '{"choices": [{"delta": {"content": "\\ud83d"}}]}',
        *end("stop"),
    ],
}


@pytest.mark.parametrize("space", ["", " "])
@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("name", [name for name in PLAIN if name != "odd"])
def test_a_stream_without_a_call_of_ours_goes_on_in_its_own_bytes(name: str, ends: str, space: str) -> None:
    events = [sse(event, space=space, end=ends) for event in PLAIN[name]]
    assert run_loop(events)[0] == b"".join(events)
    assert run_loop([b"".join(events)])[0] == b"".join(events)


def test_odd_events_disturb_nothing() -> None:
    tool_loop = TOOL_PROTOCOL.open_response(OURS, True)
    for event in PLAIN["odd"]:
        tool_loop.feed(sse(event))
    assert tool_loop.close().endswith(b"[DONE]\n\n")


@pytest.mark.parametrize("name", [name for name in PLAIN if name != "odd"])
def test_an_event_that_does_not_end_the_round_goes_on_at_once(name: str) -> None:
    events = one_by_one(PLAIN[name])
    tool_loop, ended = TOOL_PROTOCOL.open_response(OURS, True), False
    for event in events:
        out = tool_loop.feed(event)
        ended = ended or b"[DONE]" in event or b'"finish_reason": "' in event
        assert out == (b"" if ended else event) or b'"index": 1' in event or b'"error"' in event


def test_comments_go_on_between_events() -> None:
    events = [
        sse(ROLE),
        b": PROCESSING\n\n",
        sse(*text_chunks("a")),
        b": PROCESSING\n\n",
        sse(*text_chunks("b"), *end("stop")),
    ]
    out, seen = run_loop(events)
    assert out == b"".join(events)
    assert seen[0].text == "ab"


def test_what_ends_a_round_is_held() -> None:
    tool_loop = TOOL_PROTOCOL.open_response(OURS, True)
    assert tool_loop.feed(sse(ROLE, *text_chunks("x"))) == sse(ROLE, *text_chunks("x"))
    assert not tool_loop.is_round_over
    last = end("stop", USAGE)
    for event in last:
        assert tool_loop.feed(sse(event)) == b""
        assert tool_loop.is_round_over
    assert tool_loop.close() == sse(*last)
    assert tool_loop.close() == b""


def test_the_last_words_do_not_wait_for_the_finish_reason_beside_them() -> None:
    tool_loop = TOOL_PROTOCOL.open_response(OURS, True)
    tool_loop.feed(sse(ROLE))
    out = tool_loop.feed(sse(chunk({"content": "x"}, "stop", usage=USAGE)))
    assert data(out)[0]["choices"] == [{"index": 0, "delta": {"content": "x"}, "finish_reason": None, "logprobs": None}]
    assert "usage" not in data(out)[0]
    rest = data(tool_loop.close())[0]
    assert rest == chunk({}, "stop", usage=USAGE)
    assert tool_loop.read_round().text == "x"


def test_a_whole_reply_in_one_event_comes_out_whole() -> None:
    event = sse(chunk({"role": "assistant", "content": "x"}, "stop", usage=USAGE), "[DONE]")
    done = read_by_sdk(run_loop([event])[0])
    assert (done.choices[0].message.content, done.choices[0].finish_reason) == ("x", "stop")
    assert done.usage.total_tokens == 120


def test_what_a_reply_said_is_told_in_the_requests_form() -> None:
    _, (seen,) = run_loop(one_by_one(PLAIN["calls"]))
    assert loads(seen.entries) == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "call_a", "type": "function", "function": {"name": "read", "arguments": '{"path": "x"}'}},
                {"id": "call_b", "type": "function", "function": {"name": "run", "arguments": ""}},
            ],
        }
    ]
    assert (seen.own_calls, seen.client_call_ids, seen.finished) == ((), ("call_a", "call_b"), True)


def test_the_text_of_a_reply_is_told_as_it_was() -> None:
    _, (seen,) = run_loop(one_by_one(PLAIN["text"]))
    assert seen.text == 'ab {c "quoted" \\é☃\U0001f600'
    assert loads(seen.entries) == [{"role": "assistant", "content": seen.text}]
    assert seen.usage == Usage(100, 20, 64, 0, 5)


def test_a_character_in_two_halves_is_put_together() -> None:
    halves = (b"x", b"y", b"\\ud83d", b"\\ude00")
    events = [b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % half for half in halves]
    out, (seen,) = run_loop([*events, sse(*end("stop"))])
    assert out.startswith(b"".join(events))
    assert seen.text == "xy\U0001f600"


def test_thoughts_go_back_to_the_provider_that_gave_them() -> None:
    details = [
        {"type": "reasoning.text", "index": 0, "text": "I "},
        {"type": "reasoning.text", "index": 0, "text": "think", "signature": "s"},
        {"type": "reasoning.encrypted", "index": 1, "data": "x"},
    ]
    events = [
        ROLE,
        *(chunk({"reasoning_content": text}) for text in ("I ", "think")),
        *(chunk({"reasoning": "z", "reasoning_details": [detail]}) for detail in details),
        calls({"index": 0, "id": "call_o", "extra_content": {"google": {"thought_signature": "t"}},
               "function": {"name": OURS, "arguments": "{}"}}),
        *end("tool_calls"),
    ]  # fmt: skip
    _, (seen,) = run_loop(one_by_one(events))
    (message,) = loads(seen.entries)
    assert message["reasoning_content"] == "I think"
    assert message["reasoning_details"] == [
        {"type": "reasoning.text", "index": 0, "text": "I think", "signature": "s"},
        {"type": "reasoning.encrypted", "index": 1, "data": "x"},
    ]
    assert message["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": "t"}}
    assert "reasoning" not in message


# -- rounds ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["thinking_blocks", "reasoning_details"])
def test_thoughts_of_each_round_are_blocks_of_their_own(name: str) -> None:
    def thought(index: int, **more: str) -> Json:
        return chunk({name: [{"type": "thinking", "index": index, **more}]})

    thoughts = [thought(0, text="I "), thought(0, text="think", signature="s"), thought(1, data="sealed")]
    rounds = [[ROLE, *thoughts, *OUR_CALL, *end("tool_calls")]] * 2
    mixed = chunk({name: [{"type": "thinking", "index": 0, "text": "So"}], **calls(THEIRS)["choices"][0]["delta"]})
    out, seen = run_loop(*map(one_by_one, rounds), one_by_one([mixed, *end("tool_calls")]))
    blocks = getattr(read_by_sdk(out).choices[0].message, name)
    two = [{"text": "I think", "signature": "s"}, {"data": "sealed"}]
    assert [{key: held for key, held in block.items() if key not in ("type", "index")} for block in blocks] == [
        *two, *two, {"text": "So"}
    ]  # fmt: skip
    assert [block["index"] for block in blocks] == [0, 1, 2, 3, 4]
    assert [[block["index"] for block in loads(each.entries)[0][name]] for each in seen] == [[0, 1], [0, 1], [0]]


def test_two_rounds_are_one_reply() -> None:
    out, (first, second) = run_loop(one_by_one(FIRST), one_by_one(SECOND))
    chunks = data(out)
    assert {each["id"] for each in chunks} == {"chatcmpl-1"}
    assert [each["choices"][0]["delta"] for each in chunks if each["choices"]] == [
        {"role": "assistant", "content": ""},
        *({"content": text} for text in ("I ", "look.", " It ", "is 5.")),
        {},
    ]
    assert [each["choices"][0]["finish_reason"] for each in chunks if each["choices"]].count("stop") == 1
    assert chunks[-1]["usage"] == BOTH
    assert out.count(b"[DONE]") == 1
    assert OURS.encode() not in out
    assert b"call_o" not in out
    assert first.own_calls == (ArtifactToolCall("call_o", OURS, '{"id": "art_1"}'),)
    assert (first.text, first.client_call_ids, first.finished, first.usage) == (
        "I look.",
        (),
        True,
        Usage(100, 20, 64, 0, 5),
    )
    assert (second.text, second.own_calls, second.finished) == (" It is 5.", (), True)


def test_the_first_round_goes_on_in_its_own_bytes_up_to_our_call() -> None:
    assert run_loop(one_by_one(FIRST), one_by_one(SECOND))[0].startswith(sse(*FIRST[:3]))


def test_the_time_and_fingerprint_are_those_of_the_first_chunk() -> None:
    first = [{**each, "created": 1, "system_fingerprint": "a"} if isinstance(each, dict) else each for each in FIRST]
    second = [{**each, "created": 2, "system_fingerprint": "b"} if isinstance(each, dict) else each for each in SECOND]
    chunks = data(run_loop(one_by_one(first), one_by_one(second))[0])
    assert {(each["created"], each["system_fingerprint"]) for each in chunks} == {(1, "a")}


def test_the_sdk_makes_one_message_of_three_rounds() -> None:
    third = [ROLE, *text_chunks(" I ask."), *call(0, "call_x", "run", '{"x"', ": 1}"), *call(1, "call_y", "run", "{}"),
             *end("tool_calls", USAGE_2)]  # fmt: skip
    done = read_by_sdk(run_loop(one_by_one(FIRST), one_by_one(FIRST), one_by_one(third))[0])
    message = done.choices[0].message
    assert message.content == "I look.\n\nI look. I ask."
    assert [(each.id, each.function.arguments) for each in message.tool_calls] == [
        ("call_x", '{"x": 1}'), ("call_y", "{}")
    ]  # fmt: skip
    assert done.choices[0].finish_reason == "tool_calls"
    assert (done.usage.prompt_tokens, done.usage.completion_tokens, done.usage.total_tokens) == (150, 47, 197)


def test_the_role_is_said_once_also_where_it_stood_beside_our_call() -> None:
    begun = {"index": 0, "id": "call_o", "function": {"name": OURS, "arguments": "{}"}}
    for first in (
        [chunk({"role": "assistant", "tool_calls": [begun]}), *end("tool_calls")],
        [chunk({"role": "assistant", "tool_calls": [begun]}, "tool_calls"), "[DONE]"],
    ):
        out, _ = run_loop(one_by_one(first), one_by_one(SECOND))
        assert [each["choices"][0]["delta"].get("role") for each in data(out)[:2]] == ["assistant", None]
        assert read_by_sdk(out).choices[0].message.content == " It is 5."


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("texts", "message_text"),
    [
        (("Let me look.", "Found it."), "Let me look.\n\nFound it."),
        (("Let me look. ", "Found it."), "Let me look. Found it."),
        (("Let me look.", "\nFound it."), "Let me look.\nFound it."),
        (("Let me look.", "", "Found it."), "Let me look.\n\nFound it."),
        (("", "Found it."), "Found it."),
        (("Let me look.", ""), "Let me look."),
    ],
)
def test_texts_of_two_rounds_are_separate_paragraphs(texts: Sequence[str], message_text: str, stream: bool) -> None:
    out, seen = run_loop(*(_saying(text, last=at == len(texts) - 1, stream=stream) for at, text in enumerate(texts)),
                        stream=stream)  # fmt: skip
    message = read_by_sdk(out).choices[0].message.content if stream else data_of(out)["content"]
    assert message == message_text
    assert [each.text for each in seen] == list(texts), "the provider gets back what it said"


def _saying(text: str, *, last: bool, stream: bool) -> list[bytes]:
    """A round that says this, the beginning piece by piece, and reads back unless it is the last."""
    if not stream:
        made = {} if last else {"tool_calls": [function("o", OURS)]}
        return [document({"content": text, **made}, "stop" if last else "tool_calls")]
    called = end("stop") if last else [*call(0, "call_o", OURS, "{}"), *end("tool_calls")]
    return one_by_one([ROLE, *text_chunks(*text), *called])


def data_of(raw: bytes) -> Json:
    """The message of a completion."""
    message: Json = json.loads(raw)["choices"][0]["message"]
    return message


def test_usage_is_told_only_where_the_provider_tells_it() -> None:
    without = [event for event in SECOND if not (isinstance(event, dict) and event["usage"])]
    assert b"completion_tokens" not in run_loop(one_by_one(FIRST), one_by_one(without))[0]


@pytest.mark.parametrize(
    "place",
    [
        lambda usage: {"id": "x", "choices": [], "x_groq": {"id": "r", "usage": usage}},
        lambda usage: {"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": usage}]},
    ],
)
def test_usage_is_summed_where_other_servers_put_it(place: Callable[[Json], Json]) -> None:
    first, second = (
        [ROLE, *OUR_CALL, chunk({}, "tool_calls"), place(USAGE)],
        [*text_chunks("x"), place(USAGE_2), "[DONE]"],
    )
    last = data(run_loop(one_by_one(first), one_by_one(second))[0])[-1]
    assert (last.get("x_groq") or last["choices"][0])["usage"] == BOTH


def test_usage_in_every_chunk_is_that_of_all_rounds_so_far() -> None:
    second = [*(chunk({"content": "x"}, usage=USAGE_2) for _ in "ab"), *end("stop", USAGE_2)]
    chunks = data(run_loop(one_by_one(FIRST), one_by_one(second))[0])
    assert [each["usage"] for each in chunks if each["usage"]] == [BOTH, BOTH, BOTH]


# -- calls of ours beside the client's ----------------------------------------------------


def test_a_chunk_with_calls_of_both_is_split() -> None:
    names = enumerate((OURS, "run"))
    both = [{"index": at, "id": f"c{at}", "function": {"name": name, "arguments": "{}"}} for at, name in names]
    out, (seen,) = run_loop(
        one_by_one([chunk({"role": "assistant", "content": "x", "tool_calls": both}, "tool_calls")])
    )
    assert data(out)[0]["choices"][0]["delta"] == {
        "role": "assistant", "content": "x",
        "tool_calls": [{"index": 0, "id": "c1", "function": {"name": "run", "arguments": "{}"}}],
    }  # fmt: skip
    assert (seen.own_calls, seen.client_call_ids) == ((ArtifactToolCall("c0", OURS, "{}"),), ("c1",))


def test_only_ours_and_no_further_round_ends_as_if_there_was_none() -> None:
    out, _ = run_loop(one_by_one(FIRST))
    done = read_by_sdk(out).choices[0]
    assert (done.finish_reason, done.message.content, done.message.tool_calls) == ("stop", "I look.", None)


def test_calls_of_a_failed_or_lost_reply_are_not_answered() -> None:
    tool_loop = TOOL_PROTOCOL.open_response(OURS, True)
    failed = sse({"error": {"message": "It broke."}})
    assert tool_loop.feed(sse(*OUR_CALL) + failed) == failed
    assert not tool_loop.read_round().finished
    tool_loop = TOOL_PROTOCOL.open_response(OURS, True)
    tool_loop.feed(sse(*OUR_CALL))
    assert not tool_loop.read_round().finished
    tool_loop = TOOL_PROTOCOL.open_response(OURS, True)
    tool_loop.feed(sse(*OUR_CALL[:-1]) + sse(OUR_CALL[-1])[:-9])
    assert not tool_loop.read_round().finished
    assert tool_loop.close() == b""


# -- how servers differ ------------------------------------------------------------------


def entry(index: int | None, call_id: str | None, name: str | None, arguments: str) -> Json:
    made: Json = {} if index is None else {"index": index}
    if call_id is not None:
        made["id"] = call_id
    return calls({**made, "type": "function", "function": {**({"name": name} if name else {}), "arguments": arguments}})


SERVERS: dict[str, list[Json]] = {
    "whole calls": [entry(0, "c0", "run", '{"a":1}'), entry(1, "c1", OURS, '{"b":2}'), entry(2, "c2", "run", "{}")],
    "whole calls without index": [
        entry(None, "c0", "run", '{"a":1}'), entry(None, "c1", OURS, '{"b":2}'), entry(None, "c2", "run", "{}")
    ],
    "whole calls at one index": [
        entry(0, "c0", "run", '{"a":1}'), entry(0, "c1", OURS, '{"b":2}'), entry(0, "c2", "run", "{}")
    ],
    "name and id repeated": [
        entry(0, "c0", "run", '{"a"'), entry(0, "c0", "run", ":1}"), entry(1, "c1", OURS, '{"b"'),
        entry(1, "c1", OURS, ":2}"), entry(2, "c2", "run", "{"), entry(2, "c2", "run", "}"),
    ],
    "name behind the id": [
        entry(0, "c0", None, ""), entry(0, None, "run", '{"a"'), entry(0, None, None, ":1}"), entry(1, "c1", None, ""),
        entry(1, None, OURS, '{"b":2}'), entry(2, "c2", None, ""), entry(2, None, "run", "{}"),
    ],
    "one in pieces without index": [
        entry(0, "c0", "run", '{"a":1}'), entry(None, "c1", OURS, '{"b"'), entry(None, None, None, ":2}"),
        entry(None, "c2", "run", "{}"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", SERVERS)
def test_calls_are_told_apart_as_servers_send_them(name: str) -> None:
    events = [ROLE, *SERVERS[name], *end("tool_calls")]
    out, (seen,) = run_loop(one_by_one(events))
    assert seen.own_calls == (ArtifactToolCall("c1", OURS, '{"b":2}'),)
    assert seen.client_call_ids == ("c0", "c2")
    made = json.loads(seen.entries[0])["tool_calls"]
    assert [each["function"]["arguments"] for each in made] == ['{"a":1}', '{"b":2}', "{}"]
    assert not any(word in out for word in (OURS.encode(), b'"c1"', b":2}"))
    arguments_by_call: dict[Any, str] = {}
    for delta in (each["choices"][0]["delta"] for each in data(out)):
        for piece in delta.get("tool_calls", []):
            key = piece["index"] if "index" not in name else piece["id"]
            arguments_by_call[key] = arguments_by_call.get(key, "") + piece["function"]["arguments"]
    assert list(arguments_by_call.values()) == ['{"a":1}', "{}"]
    assert list(arguments_by_call) in ([0, 1], ["c0", "c2"])


@pytest.mark.parametrize("call_id", ["", None])
def test_a_call_of_ours_without_an_id_gets_one(call_id: str | None) -> None:
    events = [ROLE, entry(0, call_id, OURS, '{"id":"a"}'), entry(0, call_id, OURS, '{"id":"b"}'), *end("stop")]
    _, (seen,) = run_loop(one_by_one(events))
    assert [each.arguments for each in seen.own_calls] == ['{"id":"a"}', '{"id":"b"}']
    ids = [each.call_id for each in seen.own_calls]
    assert len(set(ids)) == 2
    assert all(ids)
    assert [each["id"] for each in json.loads(seen.entries[0])["tool_calls"]] == ids


def test_a_call_whose_name_never_came_is_the_clients() -> None:
    events = [ROLE, entry(0, "c0", None, "{"), entry(0, None, None, "}"), *end("tool_calls")]
    out, (seen,) = run_loop(one_by_one(events))
    assert data(out)[1]["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert seen.client_call_ids == ("c0",)


def test_arguments_given_as_an_object_are_read() -> None:
    made = calls({"id": "c", "function": {"name": OURS, "arguments": {"id": "a"}}})
    _, (seen,) = run_loop(one_by_one([made, *end("stop")]))
    assert json.loads(seen.own_calls[0].arguments) == {"id": "a"}


# -- any stream, cut anywhere ----------------------------------------------------------


@given(st.lists(st.binary(max_size=30) | st.sampled_from(one_by_one(PLAIN["odd"] + FIRST)), max_size=12))
def test_no_bytes_are_too_odd(given: list[bytes]) -> None:
    tool_loop = TOOL_PROTOCOL.open_response(OURS, True)
    for block in given:
        tool_loop.feed(block)
    tool_loop.read_round()
    tool_loop.continue_response()
    for block in given:
        tool_loop.feed(block)
    tool_loop.read_round()
    tool_loop.close()


# -- documents -------------------------------------------------------------------------


def document(message: Json, finish: str = "stop", usage: Json | None = None, **fields: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish, "logprobs": None}
    made = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return json.dumps({**made, "usage": usage, **fields}, indent=1).encode()


def function(call_id: str, name: str, arguments: str = "{}") -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_documents_of_two_rounds_are_one() -> None:
    first = document(
        {"content": "I look.", "reasoning_content": "hm", "tool_calls": [function("o", OURS)]}, "tool_calls", USAGE
    )
    made = {"content": " It is 5.", "tool_calls": [function("c", "run"), function("o2", OURS)]}
    second = document(made, "tool_calls", USAGE_2, id="chatcmpl-2", created=2)
    out, (one, two) = run_loop([first], [second], stream=False)
    done = json.loads(out)
    assert (done["id"], done["created"], done["usage"]) == ("chatcmpl-1", 1, BOTH)
    assert done["choices"][0]["message"] == {
        "role": "assistant", "content": "I look. It is 5.", "reasoning_content": "hm",
        "tool_calls": [function("c", "run")],
    }  # fmt: skip
    assert done["choices"][0]["finish_reason"] == "tool_calls"
    assert [each.call_id for each in (*one.own_calls, *two.own_calls)] == ["o", "o2"]
    assert loads(one.entries)[0] == {
        "role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": [function("o", OURS)]
    }  # fmt: skip


def test_a_document_of_ours_alone_ends_as_if_there_was_none() -> None:
    out, _ = run_loop([document({"content": "x", "tool_calls": [function("o", OURS)]}, "tool_calls")], stream=False)
    choice = json.loads(out)["choices"][0]
    assert (choice["message"], choice["finish_reason"]) == ({"role": "assistant", "content": "x"}, "stop")


def test_a_document_that_is_too_large_goes_on_as_it_comes() -> None:
    tool_loop = TOOL_PROTOCOL.open_response(OURS, False)
    large = b'{"x": "' + b"y" * (16 * 2**20)
    assert tool_loop.feed(large) == large
    assert tool_loop.feed(b'"}') == b'"}'
    assert not tool_loop.read_round().finished
    assert tool_loop.close() == b""


# -- offering ----------------------------------------------------------------------------


def fields(**given: Any) -> dict[str, bytes]:
    return {name: json.dumps(held).encode() for name, held in given.items()}


CLIENTS = {"type": "function", "function": {"name": "run", "parameters": {}}, "strict": True}


def test_our_tool_stands_behind_the_clients_whose_bytes_stay() -> None:
    own = fields(tools=[CLIENTS])
    offered = TOOL_PROTOCOL.offer(own, TOOL)
    assert offered is not None
    assert offered["tools"].startswith(own["tools"][:-1] + b",")
    ours = json.loads(offered["tools"])[-1]
    assert ours["function"] == {"name": OURS, "description": TOOL.description, "parameters": json.loads(TOOL.schema)}
    assert offered == TOOL_PROTOCOL.offer(own, TOOL)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"tools": None},
        {"tools": []},
        {"n": 1, "tool_choice": "auto"},
        {"tools": [CLIENTS], "tool_choice": "none"},
        {"tools": [CLIENTS], "tool_choice": "required", "parallel_tool_calls": False},
        {"tools": [CLIENTS], "tool_choice": {"type": "function", "function": {"name": "run"}}},
        {"tools": [CLIENTS], "response_format": {"type": "json_schema", "json_schema": {}}},
        {"response_format": {"type": "text"}},
        {"tools": [CLIENTS] * 127},
        {"tools": [CLIENTS] * 129},
    ],
)
def test_our_tool_is_offered_and_nothing_else_changes(given: Json) -> None:
    offered = TOOL_PROTOCOL.offer(fields(**given), TOOL)
    assert offered is not None
    assert list(offered) == ["tools"]
    assert json.loads(offered["tools"])[:-1] == (given.get("tools") or [])


@pytest.mark.parametrize(
    "given",
    [
        {"n": 2, "tools": [CLIENTS]},
        {"functions": [{"name": "f"}]},
        {"function_call": "auto"},
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        {"response_format": {"type": "json_object"}},
        {"tool_choice": "none"},
        {"prediction": {"type": "content", "content": "x"}},
        {"tools": "what"},
        {"tools": [CLIENTS] * 128},
    ],
)
def test_our_tool_is_not_offered_where_it_cannot_be(given: Json) -> None:
    assert TOOL_PROTOCOL.offer(fields(**given), TOOL) is None


def test_the_names_of_the_clients_tools_are_known() -> None:
    custom = {"type": "custom", "custom": {"name": "patch"}}
    assert TOOL_PROTOCOL.tool_names(fields(tools=[CLIENTS, custom, 3], functions=[{"name": "old"}])) == {
        "run",
        "patch",
        "old",
    }
    assert TOOL_PROTOCOL.tool_names({}) == frozenset()


def test_at_last_the_client_has_its_own_tools_and_nothing_else() -> None:
    own = fields(tools=[CLIENTS])
    offered = {**own, **(TOOL_PROTOCOL.offer(own, TOOL) or {})}
    assert TOOL_PROTOCOL.final_fields(offered) == own
    alone = TOOL_PROTOCOL.offer({}, TOOL) or {}
    assert TOOL_PROTOCOL.final_fields(alone) == {"tool_choice": b'"none"'}


def test_answers_are_tool_messages() -> None:
    assert loads(
        TOOL_PROTOCOL.render_results(
            [ArtifactToolResult("a", 'x "y"'), ArtifactToolResult("b", "no", error=True)], "read_artifact"
        )
    ) == [
        {"role": "tool", "tool_call_id": "a", "content": 'x "y"'},
        {"role": "tool", "tool_call_id": "b", "content": "no"},
    ]


# -- weaving ----------------------------------------------------------------------------


def read(*entries: Json) -> list[Message]:
    protocol, out = OpenAIChat(), []
    for each in entries:
        raw = json.dumps(each).encode()
        seen = protocol.read_message(raw)
        out.append(Message(b"", seen.role, seen.parts, raw))
    return out


def build_insertion(*pairs: tuple[ObservedRound, Sequence[ArtifactToolResult]]) -> ToolRoundInsertion:
    made = tuple(
        ToolRound(seen.entries, TOOL_PROTOCOL.render_results(answers, "read_artifact")) for seen, answers in pairs
    )
    last = pairs[-1][0]
    return ToolRoundInsertion(b"", made, last.client_call_ids, normalize_space([seen.text for seen, _ in pairs]), 0.0)


MIXED = [
    ROLE,
    *text_chunks("I look."),
    *call(0, "call_a", "run", '{"x":  1.0}'),
    *call(1, "call_o", OURS, "{}"),
    *end("tool_calls"),
]
TOOL_MESSAGE = {"role": "tool", "tool_call_id": "call_a", "content": "done"}
USER = {"role": "user", "content": "go on"}


@pytest.mark.parametrize(
    "copy",
    [
        {"role": "assistant", "content": "I look.", "tool_calls": [function("call_a", "run", '{"x":  1.0}')]},
        {"role": "assistant", "content": None, "tool_calls": [function("call_a", "run", '{"x":1}')], "refusal": None},
        {"role": "assistant", "tool_calls": [{**function("call_a", "run", '{"x":1}'), "index": 0}]},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "I look. "}],
            "tool_calls": [function("call_a", "run")],
        },
    ],
)
def test_a_mixed_reply_is_inserted_with_our_result_before_the_clients(copy: Json) -> None:
    _, (seen,) = run_loop(one_by_one(MIXED))
    known = build_insertion((seen, [ArtifactToolResult("call_o", "archived")]))
    inserted = TOOL_PROTOCOL.insert_rounds(read(copy, TOOL_MESSAGE, USER), known, {})
    assert inserted is not None
    count, wires = inserted
    assert count == 1
    assert [each["role"] for each in loads(wires)] == ["assistant", "tool"]
    assert [each["id"] for each in loads(wires)[0]["tool_calls"]] == ["call_a", "call_o"]
    assert loads(wires)[0]["tool_calls"][0]["function"]["arguments"] == '{"x":  1.0}'
    protocol = OpenAIChat()
    assert not protocol.find_problems(read(USER, *loads(wires), TOOL_MESSAGE, USER))


@pytest.mark.parametrize(
    "copy",
    [
        [{"role": "assistant", "content": "I look. It is 5."}],
        [{"role": "assistant", "content": " I look.\nIt is 5. ", "refusal": None, "audio": None, "tool_calls": None}],
        [
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "I look."}, {"type": "text", "text": " It is 5."}],
            }
        ],
        [{"role": "assistant", "content": "I look."}, {"role": "assistant", "content": "It is 5."}],
    ],
)
def test_the_insertion_of_two_rounds_replaces_the_message_with_their_text(copy: list[Json]) -> None:
    _, (one, two) = run_loop(one_by_one(FIRST), one_by_one(SECOND))
    known = build_insertion((one, [ArtifactToolResult("call_o", "archived")]), (two, []))
    inserted = TOOL_PROTOCOL.insert_rounds(read(*copy, USER), known, {})
    assert inserted is not None
    assert inserted[0] == len(copy)
    entries = loads(inserted[1])
    assert [each["role"] for each in entries] == ["assistant", "tool", "assistant"]
    assert [entries[0]["content"], entries[1]["content"], entries[2]["content"]] == ["I look.", "archived", " It is 5."]
    assert not OpenAIChat().find_problems(read(USER, *entries, USER))
    assert TOOL_PROTOCOL.insert_rounds(read(*copy, USER), known, {}) == inserted


@pytest.mark.parametrize(
    "after",
    [
        [],
        [USER],
        [{"role": "assistant", "content": "Another answer."}],
        [{"role": "assistant", "content": "I look. It is 5.", "tool_calls": [function("z", "run")]}],
    ],
)
def test_a_different_reply_is_not_replaced(after: list[Json]) -> None:
    _, (one, two) = run_loop(one_by_one(FIRST), one_by_one(SECOND))
    assert (
        TOOL_PROTOCOL.insert_rounds(
            read(*after), build_insertion((one, [ArtifactToolResult("call_o", "archived")]), (two, [])), {}
        )
        is None
    )
