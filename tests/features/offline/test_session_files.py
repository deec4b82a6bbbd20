"""Session files of coding agents: the requests that their lines stand for."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from accordion.features.offline.recordings import MalformedTranscript, PastConversation
from accordion.features.offline.transcripts import TranscriptSource, find_sources
from accordion.model.records import Usage
from tests.features.offline.session_samples import ClaudeSession, call, report, result, text


def conversations(file: Path | str) -> list[PastConversation]:
    found = list(TranscriptSource(str(file)))
    problems = [item for item in found if isinstance(item, MalformedTranscript)]
    assert problems == []
    return [item for item in found if not isinstance(item, MalformedTranscript)]


def lists(conversation: PastConversation) -> list[list[tuple[str, Any]]]:
    """Returns the list of each request: role, and blocks as text, id of the call, or id of the result's call."""
    bodies = [json.loads(request.body) for request in conversation.requests()]
    return [[(message["role"], shorten(message["content"])) for message in body["messages"]] for body in bodies]


def shorten(blocks: list[dict[str, Any]]) -> list[str]:
    return [block.get("text") or block.get("tool_use_id") or block["id"] for block in blocks]


def test_a_response_is_a_request_with_all_that_the_model_read_before_it(tmp_path: Path) -> None:
    session = ClaudeSession()
    session.say("find it")
    session.add("attachment", attachment={"type": "skill_listing"})
    session.answer("m1", text("I look."), call("c1"), usage=report(120, cached=20, written=60))
    session.say([result("c1")])
    session.answer("m2", text("Found."), usage=report(150, cached=80))
    (conversation,) = conversations(session.write(tmp_path))
    assert lists(conversation) == [
        [("user", ["find it"])],
        [("user", ["find it"]), ("assistant", ["I look.", "c1"]), ("user", ["c1"])],
    ]
    first, second = conversation.requests()
    assert json.loads(first.body) | {"messages": 0} == {
        "model": "claude-sonnet-4-5",
        "max_tokens": 32_000,
        "messages": 0,
    }
    assert [first.usage, second.usage] == [Usage(120, 7, 20, 60), Usage(150, 7, 80)]
    assert (first.index, second.index) == (1, 3)
    assert second.at - first.at == 3.0
    assert (conversation.path, conversation.session, conversation.line) == ("/v1/messages", "s-1", 3)
    assert conversation.count_requests() == 2


def test_another_model_and_a_text_in_place_of_the_system_prompt(tmp_path: Path) -> None:
    session = ClaudeSession()
    session.say("hello")
    session.answer("m1", text("hi"))
    (conversation,) = conversations(session.write(tmp_path))
    (request,) = conversation.requests("claude-opus-4-5", 3)
    body = json.loads(request.body)
    assert body["model"] == "claude-opus-4-5"
    assert body["system"] == [{"type": "text", "text": "a a a"}]


def test_the_results_of_parallel_calls_are_all_in_the_next_request(tmp_path: Path) -> None:
    session = ClaudeSession()
    session.say("find both")
    first = session.answer("m1", call("c1"))
    second = session.answer("m1", call("c2"))
    # Each result is a child of the line of its own call.
    session.say([result("c1")], parent=first)
    session.say([result("c2")], parent=second)
    session.answer("m2", text("Both found."))
    (conversation,) = conversations(session.write(tmp_path))
    assert lists(conversation)[1] == [("user", ["find both"]), ("assistant", ["c1", "c2"]), ("user", ["c1", "c2"])]


def test_a_compaction_by_claude_code_starts_a_new_history(tmp_path: Path) -> None:
    session = ClaudeSession()
    session.say("work")
    session.answer("m1", text("done"))
    session.compact("This session is being continued")
    session.say("go on")
    session.answer("m2", text("yes"))
    before, after = conversations(session.write(tmp_path))
    assert lists(before) == [[("user", ["work"])]]
    assert lists(after) == [[("user", ["This session is being continued", "go on"])]]
    assert (before.name, after.name) == ("s-1", "s-1 (2)")
    assert before.session == after.session == "s-1"


def test_a_sub_agent_is_a_conversation_of_its_own(tmp_path: Path) -> None:
    session = ClaudeSession()
    session.say("delegate")
    asked = session.answer("m1", call("c1", "Task"))
    session.say("look for it", parent=None, isSidechain=True)
    session.answer("m2", text("It is there."), isSidechain=True)
    session.say([result("c1", "It is there.")], parent=asked)
    session.answer("m3", text("There it is."))
    main, agent = conversations(session.write(tmp_path))
    assert [len(each) for each in lists(main)] == [1, 3]
    assert lists(agent) == [[("user", ["look for it"])]]


def test_a_user_who_goes_back_makes_a_branch(tmp_path: Path) -> None:
    session = ClaudeSession()
    session.say("one")
    fork = session.answer("m1", text("1"))
    session.say("two")
    session.answer("m2", text("2"))
    session.say("rather three", parent=fork)
    session.answer("m3", text("3"))
    (conversation,) = conversations(session.write(tmp_path))
    assert lists(conversation)[2] == [("user", ["one"]), ("assistant", ["1"]), ("user", ["rather three"])]


def test_errors_and_remarks_for_the_user_are_not_sent(tmp_path: Path) -> None:
    session = ClaudeSession()
    session.say("hello")
    session.add(
        "assistant",
        isApiErrorMessage=True,
        message={"id": "e", "role": "assistant", "model": "<synthetic>", "content": [text("API Error: 500")]},
    )
    session.say("again", isVisibleInTranscriptOnly=False)
    session.say("only shown", isVisibleInTranscriptOnly=True)
    session.answer("m1", text("hi"))
    (conversation,) = conversations(session.write(tmp_path))
    assert lists(conversation) == [[("user", ["hello", "again"])]]


def test_a_response_that_an_earlier_file_has_counts_once(tmp_path: Path) -> None:
    first = ClaudeSession("a")
    first.say("hello")
    first.answer("m1", text("hi"))
    first.write(tmp_path)
    second = ClaudeSession("b")
    second.lines = [line | {"sessionId": "b"} for line in first.lines]
    second.last = first.last
    second.say("more")
    second.answer("m2", text("yes"))
    second.write(tmp_path)
    sources = find_sources([str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")], [], {})
    found = [item for source in sources for item in source if not isinstance(item, MalformedTranscript)]
    assert [lists(each) for each in found] == [
        [[("user", ["hello"])]],
        [[("user", ["hello"]), ("assistant", ["hi"]), ("user", ["more"])]],
    ]


def test_a_prompt_beyond_the_usual_window_had_the_long_one(tmp_path: Path) -> None:
    session = ClaudeSession()
    session.say("a long story")
    session.answer("m1", text("hi"), usage=report(200_001))
    (conversation,) = conversations(session.write(tmp_path))
    assert dict(conversation.headers) == {b"anthropic-beta": b"context-1m-2025-08-07"}


def test_a_response_without_usage_has_no_report(tmp_path: Path) -> None:
    session = ClaudeSession()
    session.say("hello")
    session.answer("m1", text("hi"), usage=report(0))
    (conversation,) = conversations(session.write(tmp_path))
    (request,) = conversation.requests()
    assert request.usage is None


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{broken", "no line of Claude Code that is known here: "),
        (
            '{"type": "user", "uuid": "x", "sessionId": "s", "version": "9.0"}',
            "without its message or `uuid` (version 9.0)",
        ),
        (
            '{"type": "assistant", "version": "9.0", "sessionId": "s", "message": {"role": "assistant", "content": 5}}',
            "at `$.message.content` (version 9.0)",
        ),
    ],
)
def test_a_line_that_cannot_be_read_is_named_and_the_others_are_read(tmp_path: Path, line: str, why: str) -> None:
    session = ClaudeSession()
    session.say("hello")
    session.answer("m1", text("hi"))
    file = session.write(tmp_path)
    file.write_text(f"{line}\n{file.read_text()}")
    problem, conversation = TranscriptSource(str(file))
    assert isinstance(problem, MalformedTranscript)
    assert not isinstance(conversation, MalformedTranscript)
    assert str(problem).startswith(f"{file}:1: ")
    assert why in problem.reason
    assert conversation.count_requests() == 1


def test_a_compressed_session_file_is_read_too(tmp_path: Path) -> None:
    session = ClaudeSession()
    session.say("hello")
    session.answer("m1", text("hi"))
    file = session.write(tmp_path)
    file.write_bytes(gzip.compress(file.read_bytes()))
    assert [each.count_requests() for each in conversations(file)] == [1]


def test_all_files_of_an_agent_are_found_also_those_of_sub_agents(tmp_path: Path) -> None:
    for place in ("one/s-1.jsonl", "two/s-2/subagents/agent-1.jsonl"):
        ClaudeSession(Path(place).stem).write((tmp_path / ".claude/projects" / place).parent)
    sources = find_sources([], ["Claude Code"], {"HOME": str(tmp_path)})
    assert {Path(source.name).name for source in sources} == {"s-1.jsonl", "agent-1.jsonl"}
    moved = find_sources([], ["Claude Code"], {"HOME": "elsewhere", "CLAUDE_CONFIG_DIR": str(tmp_path / ".claude")})
    assert [source.name for source in moved] == [source.name for source in sources]


def test_an_agent_without_sessions_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no session file of Claude Code in .*projects"):
        find_sources([], ["Claude Code"], {"HOME": str(tmp_path)})
