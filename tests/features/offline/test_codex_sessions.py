"""Session files of Codex: the requests that their lines stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from accordion.features.offline.recordings import MalformedTranscript, PastConversation
from accordion.features.offline.transcripts import TranscriptSource, find_sources
from accordion.model.records import Usage
from tests.features.offline.session_samples import CodexSession
from tests.features.offline.test_session_files import conversations


def lists(conversation: PastConversation) -> list[list[str]]:
    """Returns the list of each request: the texts of messages, and the type of other items."""
    bodies = [json.loads(request.body) for request in conversation.requests()]
    return [[item["content"][0]["text"] if "content" in item else item["type"] for item in b["input"]] for b in bodies]


def test_a_response_is_a_request_with_all_items_before_it(tmp_path: Path) -> None:
    session = CodexSession()
    session.say("find it")
    session.call("c1")
    session.call("c2")
    session.result("c1")
    session.result("c2")
    # The report of a response comes behind the results of its calls.
    session.report(100, cached=40)
    session.answer("m1", "Found.")
    session.report(150)
    session.report(0)
    (conversation,) = conversations(session.write(tmp_path))
    calls = ["function_call"] * 2 + ["function_call_output"] * 2
    assert lists(conversation) == [["find it"], ["find it", *calls]]
    first, second = conversation.requests()
    assert [first.usage, second.usage] == [Usage(100, 5, 40), Usage(150, 5)]
    assert json.loads(first.body)["model"] == "gpt-5"
    assert json.loads(first.body)["instructions"].startswith("You are Codex.")
    assert (conversation.path, conversation.session, conversation.line) == ("/v1/responses", "t-1", 4)


def test_a_compaction_by_codex_starts_a_new_history(tmp_path: Path) -> None:
    session = CodexSession()
    session.say("one")
    session.answer("m1", "1")
    session.report(100)
    # The report of the request for the summary belongs to no response on record.
    session.report(110)
    summary = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "summary"}]}
    session.add("compacted", message="", replacement_history=[summary])
    session.say("two")
    session.answer("m2", "2")
    session.add("compacted", message="the whole")
    session.say("three")
    session.answer("m3", "3")
    first, second, third = conversations(session.write(tmp_path))
    assert [lists(each)[0] for each in (first, second, third)] == [
        ["one"],
        ["summary", "two"],
        ["one", "two", "the whole", "three"],
    ]
    assert [request.usage for request in first.requests()] == [Usage(100, 5)]
    assert [each.name[-4:] for each in (second, third)] == [" (2)", " (3)"]


def test_a_fork_repeats_no_request_of_its_origin(tmp_path: Path) -> None:
    origin, fork = CodexSession("a"), CodexSession("b")
    for session in (origin, fork):
        session.say("one")
        session.answer("m1", "1")
    fork.say("two")
    fork.answer("m2", "2")
    files = [str(origin.write(tmp_path)), str(fork.write(tmp_path))]
    found = [item for source in find_sources(files, [], {}) for item in source]
    assert [lists(each) for each in found if not isinstance(each, MalformedTranscript)] == [
        [["one"]],
        [["one", "1", "two"]],
    ]


def test_a_line_that_cannot_be_read_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    session = CodexSession()
    session.add("event_msg", type="token_count", info={"last": 1})
    session.say("hello")
    session.answer("m1", "hi")
    file = session.write(tmp_path)
    problem, conversation = TranscriptSource(str(file))
    assert str(problem).startswith(f"{file}:3: no line of Codex that is known here: ")
    assert not isinstance(conversation, MalformedTranscript)
    assert conversation.count_requests() == 1


OLD_ITEMS: list[dict[str, Any]] = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "find it"}]},
    {"type": "reasoning", "summary": []},
    {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": "c1"},
    {"type": "function_call_output", "call_id": "c1", "output": "found"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Found."}]},
]
OLD_META = {"id": "t-0", "timestamp": "2025-08-18T01:16:13.522Z", "instructions": "You are Codex."}


def test_a_file_whose_lines_are_the_items(tmp_path: Path) -> None:
    file = tmp_path / "rollout-2025-08-18T01-16-13-t-0.jsonl"
    lines = [{**OLD_META, "git": {}}, {"record_type": "state"}, *OLD_ITEMS, {"record_type": "state"}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (conversation,) = conversations(file)
    check_old(conversation)
    file.write_text(file.read_text() + '{"id": 1}\n')
    problem, conversation = TranscriptSource(str(file))
    assert str(problem).startswith(f"{file}:9: no line of Codex that is known here: ")
    assert not isinstance(conversation, MalformedTranscript)
    check_old(conversation)


def test_a_document_of_the_first_versions(tmp_path: Path) -> None:
    file = tmp_path / ".codex/sessions/rollout-2025-05-01-t-0.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"session": OLD_META, "items": OLD_ITEMS}, indent=2))
    (source,) = find_sources([], ["Codex"], {"HOME": str(tmp_path)})
    (conversation,) = source
    assert not isinstance(conversation, MalformedTranscript)
    check_old(conversation)
    file.write_text('{"session": {}}')
    (problem,) = TranscriptSource(str(file))
    assert str(problem) == (f"{file}: no document of Codex that is known here: Object missing required field `items`")


def check_old(conversation: PastConversation) -> None:
    assert lists(conversation) == [
        ["find it"],
        ["find it", "reasoning", "function_call", "function_call_output"],
    ]
    first, _ = conversation.requests("gpt-5")
    body = json.loads(first.body)
    assert (first.usage, body["model"], conversation.session) == (None, "gpt-5", "t-0")
    assert body["instructions"].startswith("You are Codex.")


def test_all_sessions_are_found(tmp_path: Path) -> None:
    file = CodexSession().write(tmp_path / ".codex/sessions/2026/11/26")
    for environ in ({"HOME": str(tmp_path)}, {"CODEX_HOME": str(tmp_path / ".codex")}):
        assert [source.name for source in find_sources([], ["Codex"], environ)] == [str(file)]
