"""The latest plan of a conversation, complete and character for character."""

import json

import pytest

from accordion.features.memory.session.session_plan import UNAPPLIED, SessionPlan, status_mark
from accordion.features.memory.session.session_text import (
    PLAN,
    extract_plan,
    find_latest_plan,
    parse_sections,
    write_session_text,
)
from tests.features.memory.agent_conversations import (
    CLAUDE_CODE,
    ToolStep,
    conversation_of_calls,
    conversation_of_texts,
    recorded_runs,
    recorded_steps,
)
from tests.histories import PROTOCOL_NAMES
from tests.recordings import RECORDINGS

recordings = pytest.mark.skipif(not (RECORDINGS / CLAUDE_CODE[0]).exists(), reason="the recorded runs are not here")

TEXT = "# Plan: gate B7\n\n## Phase 1\n- [x] Open it\n- [ ] Close it\n\n```py\n## no heading\n```\n"
OK = "The file has been updated successfully."


def plan(*did: ToolStep, **more) -> SessionPlan:
    found = find_latest_plan(conversation_of_calls(*did, **more))
    assert found is not None
    return found


def write_call(text: str = TEXT, path: str = "/srv/app/IMPL_PLAN.md") -> ToolStep:
    return "Write", {"file_path": path, "content": text}, f"File created successfully at: {path}"


def todos(*items: tuple[str, str], name: str = "TodoWrite") -> ToolStep:
    listed = [{"content": text, "status": status, "activeForm": f"Doing {text}"} for text, status in items]
    return name, {"todos": listed}, "Todos have been modified successfully."


# -- recorded runs ----------------------------------------------------------------


@recordings
def test_the_plan_of_a_recorded_run_is_its_last_todo_call_byte_for_byte() -> None:
    seen = 0
    for name, messages, conversation in recorded_runs(*CLAUDE_CODE, "research_deerflow.jsonl.gz"):
        calls = [given for tool, given, _ in recorded_steps(messages) if tool in {"TodoWrite", "write_todos"}]
        found = find_latest_plan(conversation)
        if not calls or found is None or found.source != "todo":
            continue
        wanted = "\n".join(f"- [{status_mark(item['status'])}] {item['content']}" for item in calls[-1]["todos"])
        assert found.text == wanted, name
        assert extract_plan(parse_sections(write_session_text(conversation))[PLAN]) == wanted, name
        seen += 1
    assert seen >= 5


@recordings
def test_tasks_of_a_recorded_run_are_all_in_its_plan_in_the_words_of_their_calls() -> None:
    seen = 0
    for name, messages, conversation in recorded_runs(*CLAUDE_CODE):
        made = [given for tool, given, _ in recorded_steps(messages) if tool == "TaskCreate"]
        gone = any({"deleted"} & {given.get("status")} or "description" in given
                   for tool, given, _ in recorded_steps(messages) if tool == "TaskUpdate")  # fmt: skip
        found = find_latest_plan(conversation)
        if made and not gone and found is not None and found.source == "todo":
            lines = [line[6:] for line in found.text.split("\n") if line.startswith("- [")]
            assert lines == [given["subject"] for given in made], name
            assert all(each in found.text for given in made for each in given["description"].split("\n")), name
            seen += 1
    assert seen >= 5


@recordings
def test_the_plan_of_a_recorded_run_is_its_plan_file_with_every_edit_made() -> None:
    seen = 0
    for name, messages, conversation in recorded_runs(*CLAUDE_CODE):
        texts: dict[str, str] = {}
        for tool, given, result in recorded_steps(messages):
            path = given.get("file_path", "")
            if ("/plans/" not in path and "PLAN.md" not in path) or result.startswith("<tool_use_error>"):
                continue
            if tool == "Write":
                texts[path] = given["content"]
            elif tool == "Edit":
                assert texts[path].count(given["old_string"]) == 1
                texts[path] = texts[path].replace(given["old_string"], given["new_string"])
        if texts:
            found = find_latest_plan(conversation)
            assert found is not None, name
            assert (found.source, found.text) == ("workflow", list(texts.values())[-1]), name
            assert extract_plan(parse_sections(write_session_text(conversation))[PLAN]) == found.text, name
            seen += 1
    assert seen >= 5


@recordings
def test_a_plan_file_with_its_edits_is_what_the_agent_itself_showed_the_user() -> None:
    shown = 0
    for name, messages, conversation in recorded_runs(*CLAUDE_CODE):
        plans = [given["plan"] for tool, given, _ in recorded_steps(messages) if tool == "ExitPlanMode"]
        found = find_latest_plan(conversation)
        if plans and found is not None and found.source == "workflow":
            assert found.text.strip() == plans[-1].strip(), name
            shown += 1
    assert shown >= 3


@recordings
def test_a_users_plan_is_kept_to_its_last_character() -> None:
    seen = 0
    for name, messages, conversation in recorded_runs(*CLAUDE_CODE):
        found = find_latest_plan(conversation)
        asked = [m["content"] for m in messages if m["role"] == "user" and "following plan:\n\n" in m["content"][:60]]
        if asked and found is not None and found.source == "user-stated":
            # Below it the client says where its own transcript is.
            plan = asked[-1].split("following plan:\n\n", 1)[1].split("\n\nIf you need specific details from before")
            assert found.text == plan[0].rstrip(), name
            seen += 1
    assert seen >= 3


# -- plan files -------------------------------------------------------------------


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
def test_a_plan_file_comes_before_a_todo_list_and_is_verbatim(protocol_name) -> None:
    found = plan(write_call(), todos(("other", "pending")), protocol_name=protocol_name)
    assert (found.source, found.label, found.text) == ("workflow", "workflow (/srv/app/IMPL_PLAN.md)", TEXT)


@pytest.mark.parametrize(
    "edit",
    [
        ("Edit", {"file_path": "/srv/app/IMPL_PLAN.md", "old_string": "[ ] Close", "new_string": "[x] Close"}, OK),
        ("edit", {"filePath": "/srv/app/IMPL_PLAN.md", "oldString": "[ ] Close", "newString": "[x] Close"}, OK),
        ("edit", {"path": "/srv/app/IMPL_PLAN.md", "oldText": "[ ] Close", "newText": "[x] Close"}, OK),
        ("replace", {"file_path": "/srv/app/IMPL_PLAN.md", "old_string": "[ ] Close", "new_string": "[x] Close"}, OK),
        (
            "str_replace_editor",
            {"command": "str_replace", "path": "/srv/app/IMPL_PLAN.md", "old_str": "[ ] C", "new_str": "[x] C"},
            OK,
        ),
        (
            "MultiEdit",
            {"file_path": "/srv/app/IMPL_PLAN.md", "edits": [
                {"old_string": "[ ] Close", "new_string": "[>] Close"}, {"old_string": "[>]", "new_string": "[x]"}]},
            OK,
        ),
    ],
)  # fmt: skip
def test_an_edited_plan_file_is_given_as_it_is_after_the_edit(edit) -> None:
    assert plan(write_call(), edit).text == TEXT.replace("[ ] Close", "[x] Close")


def test_a_file_that_a_patch_in_a_shell_adds_is_a_plan() -> None:
    patch = "*** Begin Patch\n*** Add File: PLAN.md\n+# A\n+1. one\n*** End Patch"
    patched = {"command": ["bash", "-lc", f"apply_patch <<'EOF'\n{patch}\nEOF"]}
    assert plan(("shell", patched, "Success. Updated"), system="<cwd>/srv/app</cwd>").text == "# A\n1. one\n"
    assert plan(("shell", patched, "Success. Updated"), system="<cwd>/srv/app</cwd>").label.endswith(
        "/srv/app/PLAN.md)"
    )


def test_a_plan_that_a_shell_of_codex_shows_is_taken_out_of_its_frame() -> None:
    shown = (
        {"command": ["bash", "-lc", "cat /srv/app/PLAN.md"]},
        json.dumps({"output": TEXT, "metadata": {"exit_code": 0}}),
    )
    assert plan(("shell", *shown)).text == TEXT.rstrip("\n")


def test_an_edit_that_does_not_fit_is_shown_behind_the_last_whole_text() -> None:
    edit = {"file_path": "/srv/app/IMPL_PLAN.md", "old_string": "not there", "new_string": "x"}
    found = plan(write_call(), ("Edit", edit, OK))
    assert found.text.startswith(f"{TEXT}\n\n{UNAPPLIED}\n\n")
    assert json.loads(found.text.split(UNAPPLIED)[1]) == edit


CLOSED = "*** Update File: /srv/app/IMPL_PLAN.md\n@@\n-- [ ] Close it\n+- [x] Close it\n"


def test_changes_by_patch_are_shown_behind_the_last_whole_text() -> None:
    edit = {"file_path": "/srv/app/IMPL_PLAN.md", "old_string": "not there", "new_string": "x"}
    found = plan(
        write_call(), ("Edit", edit, OK), ("apply_patch", {"input": f"*** Begin Patch\n{CLOSED}*** End Patch"}, OK)
    )
    assert found.text.startswith(f"{TEXT}\n\n{UNAPPLIED}\n\n")
    assert "not there" in found.text.split(UNAPPLIED)[1]
    assert "+- [x] Close it" in found.text.split(UNAPPLIED)[1]


def test_a_plan_file_that_a_patch_deletes_is_none() -> None:
    deleted = "*** Begin Patch\n*** Delete File: /srv/app/IMPL_PLAN.md\n*** End Patch"
    found = find_latest_plan(conversation_of_calls(write_call(), ("apply_patch", {"input": deleted}, OK)))
    assert found is None or found.source == "inferred"


def test_an_edit_that_fits_at_two_places_is_not_guessed() -> None:
    edit = {"file_path": "/srv/app/IMPL_PLAN.md", "old_string": "- [", "new_string": "* ["}
    assert UNAPPLIED in plan(write_call(), ("Edit", edit, OK)).text
    everywhere = plan(write_call(), ("Edit", edit | {"replace_all": True}, OK))
    assert everywhere.text == TEXT.replace("- [", "* [")


def test_a_write_or_an_edit_that_failed_changes_nothing() -> None:
    refused = "<tool_use_error>File has not been read yet. Read it first before writing to it.</tool_use_error>"
    path = "/srv/app/IMPL_PLAN.md"
    edit = "Edit", {"file_path": path, "old_string": "Open", "new_string": "Shut"}, "Error: not found"
    assert plan(write_call(), ("Write", {"file_path": path, "content": "other"}, refused), edit).text == TEXT


def test_a_plan_that_was_only_read_is_given_without_its_line_numbers() -> None:
    numbered = "\n".join(f"{number:6}→{line}" for number, line in enumerate(TEXT.rstrip("\n").split("\n"), 1))
    reminder = "\n\n<system-reminder>\nWhenever you read a file\n</system-reminder>\n"
    read = "Read", {"file_path": "/srv/app/docs/plans/gate.md"}, numbered + reminder
    assert plan(read).text == TEXT.rstrip("\n")


def test_a_piece_of_a_plan_is_not_taken_for_the_plan() -> None:
    piece = (
        "Read",
        {"file_path": "/srv/app/PLAN.md", "offset": 3, "limit": 2},
        "     3→## Phase 1\n     4→- [x] Open it",
    )
    found = plan(piece, todos(("Open it", "completed")))
    assert (found.source, found.text) == ("todo", "- [x] Open it")


def test_a_plan_written_here_comes_before_one_that_was_read_later() -> None:
    read = "Read", {"file_path": "/srv/app/OLD_PLAN.md"}, "     1→# Old"
    assert plan(write_call(), read).label == "workflow (/srv/app/IMPL_PLAN.md)"


def test_a_quoted_here_document_is_a_plan_and_an_expanded_one_a_command() -> None:
    command = "cat > PLAN.md <<'EOF'\n# A\n$HOME stays\nEOF"
    assert plan(("Bash", {"command": command}, ""), system="cwd: /srv/app").text == "# A\n$HOME stays\n"
    more = "mkdir -p x && cat >> PLAN.md <<EOF\nmore\nEOF\necho done"
    added = plan(("Bash", {"command": command}, ""), ("Bash", {"command": more}, "done"))
    assert added.text == "# A\n$HOME stays\nmore\n"
    expanded = "cat > PLAN.md <<EOF\n# A\n$HOME goes\nEOF"
    found = find_latest_plan(
        conversation_of_calls(("Bash", {"command": command}, ""), ("Bash", {"command": expanded}, ""))
    )
    assert found is not None
    assert found.text.endswith(expanded)


def test_a_deleted_plan_is_none() -> None:
    found = plan(write_call(), ("Bash", {"command": "rm /srv/app/IMPL_PLAN.md"}, ""), todos(("a", "pending")))
    assert found.source == "todo"


def test_an_approved_plan_is_the_file_that_the_client_saved_it_in() -> None:
    saved = "User has approved your plan.\n\nYour plan has been saved to: /home/a/.claude/plans/calm-sea.md\nYou can"
    found = plan(("ExitPlanMode", {"plan": TEXT}, saved))
    assert (found.label, found.text) == ("workflow (/home/a/.claude/plans/calm-sea.md)", TEXT)


def test_a_plan_approved_without_a_file_is_kept_and_one_that_was_rejected_is_not() -> None:
    approved = plan(("ExitPlanMode", {"plan": TEXT}, "User has approved your plan. You can now start coding."))
    assert (approved.label, approved.text) == ("workflow (approved in plan mode)", TEXT)
    assert (
        find_latest_plan(
            conversation_of_calls(("ExitPlanMode", {"plan": TEXT}, "The user doesn't want to proceed with this"))
        )
        is None
    )


# -- to-do lists ------------------------------------------------------------------


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
@pytest.mark.parametrize("name", ["TodoWrite", "todo_write", "todowrite", "write_todos", "mcp__x__todo_write"])
def test_a_todo_list_is_given_with_its_marks(name, protocol_name) -> None:
    old = todos(("one", "in_progress"), ("two", "pending"), name=name)
    new = todos(("one", "completed"), ("two: `x`", "in_progress"), ("three", "pending"), ("4", "cancelled"), name=name)
    found = plan(old, new, protocol_name=protocol_name)
    assert found.source == "todo"
    assert found.text == "- [x] one\n- [>] two: `x`\n- [ ] three\n- [-] 4"
    assert found.open == ("two: `x` (in progress)", "three")


def test_codex_update_plan_is_a_todo_list() -> None:
    steps = [{"step": "Read", "status": "completed"}, {"step": "Write", "status": "in_progress"}]
    found = plan(("update_plan", {"explanation": "why", "plan": steps}, "Plan updated"), protocol_name="responses")
    assert (found.label, found.text, found.explanation) == ("todo (update_plan)", "- [x] Read\n- [>] Write", "why")


def test_todos_that_are_merged_by_id_keep_those_that_are_not_named() -> None:
    first = {"merge": False, "todos": [{"id": "1", "content": "a", "status": "pending"},
                                       {"id": "2", "content": "b", "status": "pending"}]}  # fmt: skip
    then = {"merge": True, "todos": [{"id": "1", "status": "completed"}, {"id": "3", "content": "c", "status": "done"}]}
    assert plan(("todo_write", first, "ok"), ("todo_write", then, "ok")).text == "- [x] a\n- [ ] b\n- [x] c"


def test_two_todos_of_one_id_stay_two() -> None:
    both = {"todos": [{"id": "1", "content": "a", "status": "pending"}, {"id": "1", "content": "b", "status": "done"}]}
    assert plan(("todowrite", both, "ok")).text == "- [ ] a\n- [x] b"


def test_tasks_that_are_made_and_changed_one_by_one_are_a_list() -> None:
    made: list[ToolStep] = [
        ("TaskCreate", {"subject": name, "description": f"All of {name}"}, f"Task #{n} created successfully: {name}")
        for n, name in enumerate(("a", "b", "c"), 1)
    ]
    changed: list[ToolStep] = [
        ("TaskUpdate", {"taskId": "1", "status": "completed"}, "Updated task #1 status"),
        ("TaskUpdate", {"taskId": "2", "status": "deleted"}, "Updated task #2"),
        ("TaskUpdate", {"taskId": "3", "addBlockedBy": ["1"], "subject": "c2"}, "Updated task #3"),
    ]
    assert plan(*made, *changed).text == "- [x] a\n  All of a\n- [ ] c2\n  All of c\n  blocked by: #1"


def test_a_task_whose_number_is_not_told_takes_no_other_ones_place() -> None:
    made: list[ToolStep] = [("TaskCreate", {"subject": name}, "[Old tool result content cleared]") for name in "abcd"]
    deleted: ToolStep = ("TaskUpdate", {"taskId": "1", "status": "deleted"}, "Updated task #1")
    done: ToolStep = ("TaskUpdate", {"taskId": "4", "status": "completed"}, "Updated task #4")
    assert plan(*made[:3], deleted, made[3], done).text == "- [ ] b\n- [ ] c\n- [x] d"


def test_a_list_given_as_a_text_is_kept_as_it_is() -> None:
    text = "[x] Look\n[-] Think\n[ ] Write"
    assert plan(("update_todo_list", {"todos": text}, "ok")).text == text


def test_a_todo_call_that_failed_is_left_out_and_an_emptied_list_is_none() -> None:
    kept = todos(("a", "pending"))
    assert (
        plan(kept, ("TodoWrite", {"todos": [{"content": "b"}]}, "<tool_use_error>bad</tool_use_error>")).text
        == "- [ ] a"
    )
    assert find_latest_plan(conversation_of_calls(kept, ("TodoWrite", {"todos": []}, "ok"))) is None


# -- what was said ----------------------------------------------------------------


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
def test_a_plan_that_the_user_states_is_the_whole_message(protocol_name) -> None:
    said = "Hello.\n\nHere's my plan:\n1. Read `a.py`\n   - all of it\n2. Write it\n3. Test it\n\nThanks!"
    found = find_latest_plan(conversation_of_texts(said, "I see.", "Go on.", protocol_name=protocol_name))
    assert found is not None
    assert (found.source, found.text) == ("user-stated", said)


def test_a_message_that_calls_itself_a_plan_is_preferred_to_later_steps() -> None:
    said = "Here's my plan:\n1. Read it\n2. Write it\n3. Test it"
    found = find_latest_plan(conversation_of_texts(said, "I see.", "- not a.py\n- not b.py\n- not c.py", "Good."))
    assert found is not None
    assert (found.source, found.text) == ("user-stated", said)


def test_steps_in_running_text_are_a_plan_where_the_user_calls_them_so() -> None:
    said = "Here is my plan: first read the module, then write the test, finally run it."
    found = find_latest_plan(conversation_of_texts(said, "Good."))
    assert found is not None
    assert found.text == said


def test_a_list_of_questions_or_of_two_is_no_plan() -> None:
    assert find_latest_plan(conversation_of_texts("1. Why?\n2. How?\n3. When?", "Because.")) is None
    assert find_latest_plan(conversation_of_texts("- one\n- two", "Good.")) is None


def test_what_the_assistant_laid_out_is_inferred_and_so_is_what_was_done() -> None:
    laid = "Here are the next steps:\n1. Add the gate\n2. Close it\n3. Test it"
    found = find_latest_plan(conversation_of_texts("Do it.", laid, "Yes."))
    assert found is not None
    assert (found.source, found.text) == ("inferred", laid)
    done = plan(write_call("x = 1\n", "/srv/app/gate.py"))
    assert (done.source, done.text) == ("inferred", "- [x] Create /srv/app/gate.py")


def test_without_plans_or_actions_there_is_no_plan() -> None:
    assert find_latest_plan(conversation_of_texts("Hello", "Hello!")) is None
