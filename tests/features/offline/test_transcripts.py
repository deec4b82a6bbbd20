import gzip
import io
import json
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import OpenAI

from accordion.features.offline.recordings import MalformedTranscript
from accordion.features.offline.transcripts import (
    RecordedTranscript,
    TranscriptFile,
    TranscriptSource,
    count_requests,
    requests,
)
from accordion.model.records import Usage

USER, ASSISTANT = {"role": "user", "content": "Grüße \u2028 \u0007"}, {"role": "assistant", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
GOOD = {"id": "one", "model": "gpt-4o", "messages": [USER, ASSISTANT]}


def write_transcript(folder: Path, *lines: object) -> str:
    file = folder / "some.jsonl"
    file.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return str(file)


def sent_by_the_sdk(**fields: Any) -> bytes:
    seen: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.content)
        return httpx.Response(200, json={"id": "x", "object": "chat.completion", "choices": []})

    client = OpenAI(
        api_key="k", base_url="http://proxy/v1", http_client=httpx.Client(transport=httpx.MockTransport(answer))
    )
    client.chat.completions.create(**fields)
    return seen[0]


def test_a_request_is_byte_for_byte_what_openais_sdk_sends() -> None:
    messages = [
        {"role": "system", "content": "é \\ \"quoted\" \x7f"},
        USER,
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"n": 1.50}'}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "line\nline"},
        ASSISTANT,
    ]  # fmt: skip
    last = list(requests(TranscriptFile(messages=messages, tools=[TOOL], model="gpt-4o")))[-1]
    assert last.body == sent_by_the_sdk(messages=messages[:4], tools=[TOOL], model="gpt-4o")


def test_each_assistant_message_stands_for_a_request_with_all_messages_before_it() -> None:
    messages = [ASSISTANT, USER, ASSISTANT, ASSISTANT, USER]
    found = list(requests(TranscriptFile(messages=messages)))
    assert [request.index for request in found] == [2, 3]
    assert [json.loads(request.body) for request in found] == [{"messages": messages[:2]}, {"messages": messages[:3]}]
    assert count_requests(TranscriptFile(messages=messages)) == 2


def test_another_model_takes_the_recorded_ones_place() -> None:
    (request,) = requests(TranscriptFile(messages=[USER, ASSISTANT], model="gpt-4o"), "gpt-5")
    assert json.loads(request.body)["model"] == "gpt-5"


def test_usage_goes_to_the_request_of_its_reply_also_where_the_list_opens_with_one() -> None:
    usage = [
        None,
        {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}},
        {"prompt_tokens": 9},
    ]
    found = requests(TranscriptFile(messages=[ASSISTANT, USER, ASSISTANT, USER, ASSISTANT], usage=usage))
    assert [request.usage for request in found] == [Usage(7, 3, 4), Usage(9)]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.lists(st.dictionaries(st.text(), JSON, max_size=3), max_size=5))
def test_whatever_the_messages_hold_the_body_holds_it_too(held: list[dict[str, Any]]) -> None:
    messages = [{**message, "role": role} for message in held for role in ("user", "assistant")]
    for request in requests(TranscriptFile(messages=messages)):
        assert json.loads(request.body) == {"messages": messages[: request.index]}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("not json", "Expecting value"),
        ("[1]", "Expected `object`, got `array`"),
        ('{"id": 1}', "a transcript needs `messages`"),
        ('{"messages": [1]}', "got `int` - at `$.messages[0]`"),
        ('{"messages": [{"content": "x"}]}', "no role - at `$.messages[0]`"),
        ('{"messages": [{"role": "assistant"}], "usage": []}', "0 entries for 1 responses"),
        ('{"messages": [{"role": "assistant"}], "usage": [{}]}', "prompt_tokens` - at `$.usage[0]`"),
        ('{"messages": [], "tools": {}}', "at `$.tools`"),
        ('{"messages": [], "input": []}', "a transcript needs `messages`"),
        ('{"input": [{"role": "assistant"}], "usage": [{}]}', "input_tokens` - at `$.usage[0]`"),
        ('{"system": "s", "messages": [{"role": "assistant"}], "usage": [{"prompt_tokens": 1}]}', "input_tokens`"),
    ],
)
def test_a_malformed_line_is_named_and_the_others_are_read(tmp_path: Path, line: str, why: str) -> None:
    file = write_transcript(tmp_path, GOOD, "", line, GOOD)
    first, problem, last = TranscriptSource(file)
    assert isinstance(first, RecordedTranscript)
    assert isinstance(last, RecordedTranscript)
    assert isinstance(problem, MalformedTranscript)
    assert str(problem).startswith(f"{file}:3: ")
    assert why in problem.reason
    assert (first.line, last.line, last.name) == (1, 4, "one")


def test_a_conversation_without_an_id_is_called_by_its_place(tmp_path: Path) -> None:
    file = write_transcript(tmp_path, {"messages": []}, {"messages": [], "id": 7})
    assert [item.name for item in TranscriptSource(file) if isinstance(item, RecordedTranscript)] == [f"{file}:1", "7"]


def test_a_gzipped_file_is_told_by_its_bytes_and_read_alike(tmp_path: Path) -> None:
    plain = write_transcript(tmp_path, GOOD, GOOD)
    packed = tmp_path / "no-suffix"
    packed.write_bytes(gzip.compress(Path(plain).read_bytes()))
    assert [item.transcript for item in TranscriptSource(str(packed)) if isinstance(item, RecordedTranscript)] == [
        item.transcript for item in TranscriptSource(plain) if isinstance(item, RecordedTranscript)
    ]


def test_the_standard_input_is_read_too_and_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    data = io.BytesIO(gzip.compress(json.dumps(GOOD).encode()))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=data))
    assert [type(item) for item in TranscriptSource("-")] == [RecordedTranscript]
    assert not data.closed


def test_compressed_data_that_breaks_off_is_said_after_what_could_be_read(tmp_path: Path) -> None:
    file = tmp_path / "cut.gz"
    lines = "".join(json.dumps({**GOOD, "id": sha256(b"%d" % number).hexdigest()}) + "\n" for number in range(5000))
    file.write_bytes(gzip.compress(lines.encode())[:-2000])
    *read, last = TranscriptSource(str(file))
    assert len(read) > 100
    assert isinstance(last, MalformedTranscript)
    assert last.line == len(read) + 1
    assert "incomplete or damaged" in last.reason


def test_a_file_that_is_not_there_is_said_and_is_no_exception(tmp_path: Path) -> None:
    assert list(TranscriptSource(str(tmp_path / "none"))) == [
        MalformedTranscript(str(tmp_path / "none"), 0, "No such file or directory")
    ]


def test_a_lone_surrogate_is_kept_as_it_was_recorded(tmp_path: Path) -> None:
    file = write_transcript(tmp_path, '{"messages": [{"role": "user", "content": "a\\ud800b"}, {"role": "assistant"}]}')
    (item,) = TranscriptSource(file)
    assert isinstance(item, RecordedTranscript)
    (request,) = requests(item.transcript)
    assert b'"a\\ud800b"' in request.body


def read_one(folder: Path, **line: Any) -> RecordedTranscript:
    (item,) = TranscriptSource(write_transcript(folder, line))
    assert isinstance(item, RecordedTranscript)
    return item


def test_a_transcript_of_messages_is_known_by_what_chat_completions_does_not_have(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "look", "input": {}}]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "seen"}]}
    messages, tool = [USER, call, result, ASSISTANT], {"name": "look", "input_schema": {"type": "object"}}
    usage = [{"input_tokens": 2, "output_tokens": 3, "cache_read_input_tokens": 5}, None]
    recorded = read_one(
        tmp_path, messages=messages, model="claude-sonnet-4-5", system="Be kind.", tools=[tool], usage=usage
    )
    assert recorded.path == "/v1/messages"
    first, second = recorded.requests()
    assert [first.usage, second.usage] == [Usage(7, 3, 5), None]
    partial = [None, {"input_tokens": 2, "output_tokens": None, "cache_creation_input_tokens": "3"}]
    assert [request.usage for request in read_one(tmp_path, messages=messages, usage=partial).requests()] == [
        None,
        Usage(2),
    ]
    assert json.loads(second.body) == {
        "messages": messages[:3],
        "model": "claude-sonnet-4-5",
        "tools": [tool],
        "system": "Be kind.",
        "max_tokens": 32_000,
    }
    plain = [USER, ASSISTANT]
    for line in ({"messages": messages}, {"messages": plain, "system": ""}, {"messages": plain, "tools": [tool]}):
        assert read_one(tmp_path, **line).path == "/v1/messages"
    for line in ({"messages": plain}, {"messages": plain, "tools": [TOOL]}):
        assert read_one(tmp_path, **line).path == "/v1/chat/completions"


def test_a_transcript_of_responses_has_one_request_for_the_items_of_a_response(tmp_path: Path) -> None:
    items = [
        USER,
        {"type": "reasoning", "id": "r1", "summary": []},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "seen"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]},
        USER,
        ASSISTANT,
    ]
    reported = {"input_tokens": 9, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}}
    recorded = read_one(tmp_path, input=items, model="gpt-5", instructions="Be kind.", usage=[None, reported, None])
    assert (recorded.path, recorded.count_requests()) == ("/v1/responses", 3)
    found = list(recorded.requests())
    assert [request.index for request in found] == [1, 4, 6]
    assert [request.usage for request in found] == [None, Usage(9, 2, 4), None]
    assert json.loads(found[1].body) == {"input": items[:4], "model": "gpt-5", "instructions": "Be kind."}
    # These are the fields of a session file of an older Codex, too.
    line = {"id": "t", "timestamp": "2026-01-01T00:00:00Z", "instructions": "Be kind.", "input": items}
    assert read_one(tmp_path, **line).count_requests() == 3
