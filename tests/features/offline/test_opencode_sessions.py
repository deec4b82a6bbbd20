"""Sessions of OpenCode, in a database and in files: the requests that they stand for."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from accordion.features.offline.recordings import MalformedTranscript, PastConversation
from accordion.features.offline.transcripts import TranscriptSource, find_sources
from accordion.model.records import Usage
from tests.features.offline.session_samples import OpenCodeSessions, opencode_call, opencode_text
from tests.features.offline.test_session_files import conversations


def lists(conversation: PastConversation) -> list[list[Any]]:
    """Returns the list of each request: texts, and the ids of calls."""
    bodies = [json.loads(request.body) for request in conversation.requests()]
    return [[shorten(message) for message in body["messages"]] for body in bodies]


def shorten(message: dict[str, Any]) -> Any:
    if "tool_calls" in message:
        return [call["id"] for call in message["tool_calls"]]
    return message["content"]


def one_session() -> OpenCodeSessions:
    """A session with two parallel calls."""
    sessions = OpenCodeSessions()
    sessions.begin()
    sessions.say("find it")
    tokens = {"total": 135, "input": 20, "output": 7, "reasoning": 8, "cache": {"read": 40, "write": 60}}
    sessions.answer(opencode_text("I look."), opencode_call("c1"), opencode_call("c2", "seen"), tokens=tokens)
    sessions.answer(opencode_text("Found."), tokens={"input": 150, "output": 7, "reasoning": 2})
    return sessions


@pytest.fixture(params=["database", "files"])
def is_database(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "database")


def read(sessions: OpenCodeSessions, folder: Path, *, is_database: bool) -> list[PastConversation]:
    """Writes the sessions in one of the two forms, and reads them."""
    if is_database:
        return conversations(sessions.write_database(folder / "opencode.db"))
    return [each for file in sessions.write_files(folder / "storage") for each in conversations(file)]


def test_a_response_is_a_request_with_all_that_the_model_read_before_it(tmp_path: Path, is_database: bool) -> None:
    (conversation,) = read(one_session(), tmp_path, is_database=is_database)
    assert lists(conversation) == [["find it"], ["find it", ["c1", "c2"], "read", "seen"]]
    first, second = conversation.requests()
    assert [first.usage, second.usage] == [Usage(120, 15, 40, 60), Usage(150, 7)]
    assert (first.index, second.index, second.at - first.at) == (1, 4, 1.0)
    body = json.loads(second.body)
    assert body["model"] == "gpt-5"
    assert body["messages"][1]["tool_calls"][0]["function"] == {"name": "read", "arguments": '{"filePath":"a"}'}
    assert body["messages"][2] == {"role": "tool", "tool_call_id": "c1", "content": "read"}
    assert (conversation.path, conversation.session, conversation.name) == ("/v1/chat/completions", "ses_1", "ses_1")
    assert conversation.count_requests() == 2
    request = next(conversation.requests("gpt-4o", 3))
    assert json.loads(request.body)["messages"][0] == {"role": "system", "content": "a a a"}


def test_an_older_message_with_several_responses(tmp_path: Path, is_database: bool) -> None:
    sessions = OpenCodeSessions()
    sessions.begin()
    sessions.say("find it")
    tokens = [{"input": 100 * number, "output": 5} for number in (1, 2)]
    steps = [
        part
        for number, usage in enumerate(tokens)
        for part in ({"type": "step-start"}, opencode_call(f"c{number}"), {"type": "step-finish", "tokens": usage})
    ]
    sessions.add("assistant", *steps, modelID="gpt-5", tokens={"input": 300, "output": 10})
    (conversation,) = read(sessions, tmp_path, is_database=is_database)
    assert lists(conversation) == [["find it"], ["find it", ["c0"], "read"]]
    assert [request.usage for request in conversation.requests()] == [Usage(100, 5), Usage(200, 5)]


def test_a_compaction_by_opencode_starts_a_new_history(tmp_path: Path, is_database: bool) -> None:
    sessions = OpenCodeSessions()
    sessions.begin()
    sessions.say("one")
    sessions.answer(opencode_text("1"))
    tail = sessions.say("two")
    sessions.answer(opencode_text("2"))
    sessions.add("user", {"type": "compaction", "auto": True, "tail_start_id": tail})
    sessions.answer(opencode_text("the summary"), summary=True)
    sessions.say("three")
    sessions.answer(opencode_text("3"))
    first, second = read(sessions, tmp_path, is_database=is_database)
    question = "What did we do so far?"
    assert lists(first)[-1] == ["one", "1", "two", "2", question]
    assert lists(second) == [[question, "the summary", "two", "2", "three"]]
    assert [first.name, second.name, second.session] == ["ses_1", "ses_1 (2)", "ses_1"]


def test_a_compaction_that_failed_is_none(tmp_path: Path, is_database: bool) -> None:
    sessions = OpenCodeSessions()
    sessions.begin()
    sessions.say("one")
    sessions.answer(opencode_text("1"))
    sessions.add("user", {"type": "compaction", "auto": True})
    sessions.answer(summary=True, error={"name": "APIError"})
    sessions.say("two", summary={"diffs": []})
    sessions.answer(opencode_text("2"))
    (conversation,) = read(sessions, tmp_path, is_database=is_database)
    assert lists(conversation)[-1] == ["one", "1", "What did we do so far?", "two"]


def test_a_result_that_opencode_left_out_later_is_whole_until_then(tmp_path: Path, is_database: bool) -> None:
    sessions = OpenCodeSessions()
    sessions.begin()
    sessions.say("one")
    sessions.answer(opencode_call("c1", "long", time={"start": 1, "end": 2, "compacted": 3_500}))
    sessions.answer(opencode_text("1"))
    sessions.say("two")
    sessions.answer(opencode_text("2"))
    first, second = read(sessions, tmp_path, is_database=is_database)
    assert lists(first) == [["one"], ["one", ["c1"], "long"]]
    assert lists(second) == [["one", ["c1"], "[Old tool result content cleared]", "1", "two"]]


def test_failed_responses_and_open_calls(tmp_path: Path, is_database: bool) -> None:
    sessions = OpenCodeSessions()
    sessions.begin()
    sessions.say("one")
    sessions.answer(opencode_text("lost"), error={"name": "APIError"})
    sessions.answer(opencode_call("c1", status="running"), error={"name": "MessageAbortedError"})
    sessions.answer(opencode_call("c2", status="error", error="no such file"))
    sessions.answer(error={"name": "MessageAbortedError"})
    sessions.answer(opencode_text("1"))
    (conversation,) = read(sessions, tmp_path, is_database=is_database)
    expected = ["one", ["c1"], "[Tool execution was interrupted]", ["c2"], "no such file"]
    assert lists(conversation)[-1] == expected


def test_files_and_texts_that_the_model_does_not_see(tmp_path: Path, is_database: bool) -> None:
    sessions = OpenCodeSessions()
    sessions.begin()
    image = {"type": "file", "mime": "image/png", "url": "data:image/png;base64,AA", "filename": "a.png"}
    paper = {"type": "file", "mime": "application/pdf", "url": "data:application/pdf;base64,AA", "filename": "a.pdf"}
    text = {"type": "file", "mime": "text/plain", "url": "file:///a.txt"}
    hidden = {"type": "text", "text": "for people", "ignored": True}
    sessions.add("user", opencode_text("look"), hidden, text, image, paper, {"type": "patch"}, {"type": "subtask"})
    sessions.answer(opencode_text("1"))
    (conversation,) = read(sessions, tmp_path, is_database=is_database)
    assert lists(conversation) == [
        [
            [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
                {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AA"}},
                {"type": "text", "text": "The following tool was executed by the user"},
            ]
        ]
    ]


def test_a_sub_agent_belongs_to_the_session_it_works_for(tmp_path: Path, is_database: bool) -> None:
    sessions = OpenCodeSessions()
    for name, parent in (("ses_1", None), ("ses_2", "ses_1"), ("ses_3", "ses_2"), ("ses_4", "ses_lost")):
        sessions.begin(name, parent)
        sessions.say("one")
        sessions.answer(opencode_text("1"))
    found = read(sessions, tmp_path, is_database=is_database)
    assert [(each.name, each.session) for each in found] == [
        ("ses_1", "ses_1"),
        ("ses_2", "ses_1"),
        ("ses_3", "ses_1"),
        ("ses_4", "ses_lost"),
    ]


def test_all_sessions_are_found_and_what_moved_into_a_database_counts_once(tmp_path: Path) -> None:
    data = tmp_path / ".local/share"
    database = one_session().write_database(data / "opencode/opencode.db")
    (file,) = one_session().write_files(data / "opencode/storage")
    for environ in ({"HOME": str(tmp_path)}, {"XDG_DATA_HOME": str(data)}):
        sources = find_sources([], ["OpenCode"], environ)
        assert [source.name for source in sources] == [str(database), str(file)]
        found = [item for source in sources for item in source]
        assert [type(item) is MalformedTranscript for item in found] == [False]


def test_a_database_is_only_read_while_opencode_writes_it(tmp_path: Path) -> None:
    file = one_session().write_database(tmp_path / "opencode.db")
    with closing(sqlite3.connect(file)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("UPDATE session SET parent_id = NULL")
        (conversation,) = conversations(file)
        assert conversation.count_requests() == 2
        writer.commit()
    assert conversations(file)[0].count_requests() == 2


def test_a_piece_that_cannot_be_read_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    file = one_session().write_database(tmp_path / "opencode.db")
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("UPDATE part SET data = '{' WHERE id = 'prt_0003'")
        database.execute("INSERT INTO message VALUES ('msg_9', 'ses_1', 9000, '{\"role\": 1}')")
    *problems, conversation = TranscriptSource(str(file))
    assert [str(problem).partition(" here: ")[0] for problem in problems] == [
        f"{file}: prt_0003: no part of OpenCode that is known",
        f"{file}: msg_9: no message of OpenCode that is known",
    ]
    assert not isinstance(conversation, MalformedTranscript)
    assert lists(conversation)[-1] == ["find it", ["c2"], "seen"]


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    (file,) = one_session().write_files(tmp_path / "storage")
    broken = tmp_path / "storage/message/ses_1/msg_0002.json"
    broken.write_text("{")
    problem, conversation = TranscriptSource(str(file))
    assert str(problem).startswith(f"{broken}: msg_0002: no message of OpenCode that is known here: ")
    assert not isinstance(conversation, MalformedTranscript)
    assert conversation.count_requests() == 1


def test_another_database_and_sessions_of_another_version_say_so(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as database, database:
        database.execute("CREATE TABLE t (x)")
    (problem,) = TranscriptSource(str(other))
    assert str(problem) == f"{other}: no database of OpenCode that is known here: no such table: session"
    torn = tmp_path / "torn.db"
    torn.write_bytes(other.read_bytes()[:1_000] + bytes(500))
    (problem,) = TranscriptSource(str(torn))
    assert str(problem).startswith(f"{torn}: no database of OpenCode that is known here: ")
    newer = one_session().write_database(tmp_path / "newer.db")
    with closing(sqlite3.connect(newer)) as database, database:
        database.execute("CREATE TABLE session_v2 (id TEXT)")
        assert len(list(TranscriptSource(str(newer)))) == 1
        database.execute("INSERT INTO session_v2 VALUES ('a')")
    conversation, problem = TranscriptSource(str(newer))
    assert not isinstance(conversation, MalformedTranscript)
    assert str(problem).startswith(f"{newer}: 1 session of OpenCode 2 (table session_v2) not read")


def test_the_bar_moves_with_the_sessions_of_a_database(tmp_path: Path) -> None:
    sessions = OpenCodeSessions()
    for number in range(4):
        sessions.begin(f"ses_{number}")
        sessions.say("one")
        sessions.answer(opencode_text("1"))
    source = TranscriptSource(str(sessions.write_database(tmp_path / "opencode.db")))
    positions = [source.position for _ in source]
    assert positions == [0, source.size // 4, source.size // 2, source.size * 3 // 4]
    assert source.position == source.size
