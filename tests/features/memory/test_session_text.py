"""Session memories: fourteen sections of a recorded conversation, and nothing in them that was not there."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accordion.features.memory.session.session_files import is_absolute
from accordion.features.memory.session.session_text import (
    NONE,
    PLAN,
    TITLES,
    extract_plan,
    parse_sections,
    render_sections,
    write_session_text,
)
from accordion.model.conversation import Conversation, Text, ToolCall, ToolResult
from accordion.model.errors import BadRequest
from tests.compaction.compactor_setup import conversation
from tests.compaction.compactor_setup import read as read_request
from tests.features.memory.agent_conversations import (
    CLAUDE_CODE,
    ToolStep,
    conversation_of_calls,
    conversation_of_texts,
    recorded_runs,
)
from tests.histories import PROTOCOL_NAMES, Call, History, HistoryRound, ProtocolName, Turn, histories
from tests.recordings import RECORDINGS
from tests.tiers import examples

ALL = (*CLAUDE_CODE, "coding_pi.jsonl.gz", "coding_mini_swe_agent.jsonl.gz", "coding_moatless.jsonl.gz",
       "repo_setup_super.jsonl.gz", "research_deerflow.jsonl.gz", "service_tau.jsonl.gz")  # fmt: skip
OK = "has been updated successfully."


def sections(*did: ToolStep, **more) -> dict[str, str]:
    return parse_sections(write_session_text(conversation_of_calls(*did, **more)))


def edit(path: str, old: str = "a", new: str = "b") -> ToolStep:
    return "Edit", {"file_path": path, "old_string": old, "new_string": new}, f"The file {path} {OK}"


def read(path: str) -> ToolStep:
    return "Read", {"file_path": path}, "     1→x"


def bash(command: str, result: str = "done") -> ToolStep:
    return "Bash", {"command": command}, result


def all_text(held: Conversation) -> str:
    """All that stands in a conversation, on one line."""
    out = [part.text for part in held.preamble if isinstance(part, Text)]
    for message in held.messages:
        for part in message.parts:
            if isinstance(part, Text):
                out.append(part.text)
            elif isinstance(part, ToolCall):
                out += [part.name, part.arguments, part.arguments.replace("\\n", " ").replace('\\"', '"')]
            elif isinstance(part, ToolResult):
                out += [inner.text for inner in part.parts if isinstance(inner, Text)]
    return " ".join(" ".join(out).replace("\\\\", "\\").split())


def paths_in(source: str) -> set[str]:
    return {path for path in PATHS if path in source}


# -- any conversation ----------------------------------------------------------------

PATHS = ("src/gate.py", "/srv/app/src/gate.py", "/srv/app/PLAN.md", r"D:\app\src\gate.py", "docs/a b.md", "/srv/x.py")
TOOLS = ("Read", "Write", "Edit", "Bash", "TodoWrite", "grep")


@st.composite
def works(draw: st.DrawFn) -> History:
    """Agents at work on a few files, who say this and that."""
    said = st.sampled_from((
        "Please fix src/gate.py.", "## Notes\nodd", "1. one\n2. two\n3. three", "Never touch docs/a b.md.",
        "</details>", "Here's my plan:\n- a\n- b\n- c", "\n## Pending\n", "## Execution Plan",
        "Let's use httpx instead of requests because it is async.",
    ))  # fmt: skip
    count = 0
    turns = []
    for _ in range(draw(st.integers(1, 3))):
        rounds = []
        for _ in range(draw(st.integers(0, 3))):
            count += 1
            name, path = draw(st.sampled_from(TOOLS)), draw(st.sampled_from(PATHS))
            text = draw(said)
            given = {
                "Read": {"file_path": path}, "Write": {"file_path": path, "content": text}, "grep": {"pattern": "x"},
                "Edit": {"file_path": path, "old_string": "a", "new_string": text},
                "Bash": {"command": draw(st.sampled_from((f"cat '{path}'", f"cd /opt && echo > '{path}'", "git log")))},
                "TodoWrite": {"todos": [{"content": text, "status": "pending"}]},
            }[name]  # fmt: skip
            result = draw(st.sampled_from(("ok", "Error: no", "", "1\tx\n2\ty", text)))
            rounds.append(HistoryRound((Call(f"call_{count}", name, given, result),), draw(st.just("") | said)))
        turns.append(Turn((draw(said),), tuple(rounds), draw(said)))
    return History(tuple(turns), draw(st.sampled_from(("", "Working directory: /srv/app", "<cwd>D:\\app</cwd>"))))


@given(works(), st.sampled_from(PROTOCOL_NAMES))
def test_a_session_memory_has_its_fourteen_sections_in_order_whatever_was_said(
    made, protocol_name: ProtocolName
) -> None:
    text = write_session_text(conversation(made, protocol_name))
    found = parse_sections(text)
    assert tuple(found) == TITLES
    assert render_sections(found) == text
    assert all(content.strip() for content in found.values())


@given(works(), st.sampled_from(PROTOCOL_NAMES))
def test_every_path_and_every_statement_is_in_the_conversation(made, protocol_name: ProtocolName) -> None:
    held = conversation(made, protocol_name)
    found, source = parse_sections(write_session_text(held)), all_text(held)
    root = found["Project Root"]
    # `cd /opt` and `docs/a b.md` lead to /opt/docs, `cd /opt` and `src/gate.py` to /opt/src.
    assert root in (NONE, "/opt/docs", "/opt/src") or root in source
    for title in ("Working Files (Modified)", "Reference Files (Read-Only)"):
        for line in filter(NONE.__ne__, found[title].split("\n")):
            path = line.removeprefix("- ").split(" (role: ", 1)[0]
            # A relative path stands in the root, or where its command went.
            under = [path.removeprefix(at).lstrip("/\\") for at in (root, "/opt") if path.startswith(at)]
            assert path in source or {each.replace("\\", "/") for each in under} & paths_in(source), path
            assert is_absolute(path) or root == NONE
    for title in ("Constraints", "Notes"):
        for line in filter(NONE.__ne__, found[title].split("\n")):
            told = line.removeprefix("- ").removesuffix(" …")
            assert told.removesuffix(" was edited; its whole text is not recorded.") in source, line


@settings(max_examples=examples(40))
@given(histories(is_plain=True), st.sampled_from(PROTOCOL_NAMES))
def test_any_history_at_all_has_a_session_memory(made, protocol_name: ProtocolName) -> None:
    assert tuple(parse_sections(write_session_text(conversation(made, protocol_name)))) == TITLES


@pytest.mark.skipif(not (RECORDINGS / CLAUDE_CODE[0]).exists(), reason="the recorded runs are not here")
@pytest.mark.parametrize("file", ALL)
def test_recorded_runs_have_session_memories_with_nothing_invented(file: str) -> None:
    for name, _, held in recorded_runs(file):
        found, source = parse_sections(write_session_text(held)), all_text(held)
        root = found["Project Root"]
        assert root == NONE or (is_absolute(root) and root in source), name
        for title in ("Working Files (Modified)", "Reference Files (Read-Only)"):
            lines = [line for line in found[title].split("\n") if line != NONE]
            assert len(lines) <= 8, name
            for line in lines:
                path = line.removeprefix("- ").split(" (role: ", 1)[0]
                relative = path.removeprefix(root).lstrip("/")
                assert path in source or relative in source, (name, path)


# -- single sections -----------------------------------------------------------------


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
def test_the_root_is_where_the_client_says_that_it_works(protocol_name) -> None:
    for system in ("<env>\nWorking directory: /srv/app\nIs directory a git repo: Yes\n</env>", "<cwd>/srv/app</cwd>"):
        found = sections(edit("src/gate.py"), system=system, protocol_name=protocol_name)
        assert found["Project Root"] == "/srv/app"
        assert found["Working Files (Modified)"] == "- /srv/app/src/gate.py (role: main implementation, 1 edit)"


def test_a_codex_environment_block_names_the_root_and_is_no_user_request() -> None:
    said = "<environment_context>\n  <cwd>/srv/app</cwd>\n</environment_context>"
    found = parse_sections(write_session_text(conversation_of_texts(said, "", "Mend the gate of the app.", "Done.")))
    assert found["Project Root"] == "/srv/app"
    assert found["Objective"] == "Mend the gate of the app."


def test_without_a_stated_directory_the_root_is_what_the_paths_have_in_common() -> None:
    found = sections(edit("/srv/app/src/a.py"), edit("/srv/app/docs/b.md"), edit("/home/a/.claude/plans/x.md"))
    assert found["Project Root"] == "/srv/app"


def test_windows_paths_are_absolute_and_relative_ones_become_so() -> None:
    did = edit(r"D:\app\src\gate.ts"), edit("src/door.ts"), read(r"D:\app\CLAUDE.md")
    found = sections(*did, system=r"Working directory: D:\app")
    assert found["Project Root"] == r"D:\app"
    assert r"- D:\app\src\door.ts (role: main implementation, 1 edit)" in found["Working Files (Modified)"]
    assert found["Reference Files (Read-Only)"] == r"- D:\app\CLAUDE.md (role: project instructions)"


def test_an_argument_that_is_no_path_is_none() -> None:
    assert sections(edit("/srv/a\n## Notes\n"), edit("/srv/" + "x" * 2_000))["Working Files (Modified)"] == NONE


@pytest.mark.parametrize(
    "command",
    ["sed " + "-i " * 4_000, "cat " + "-1 " * 4_000, "a > " * 4_000, "cat <<A\n" * 2_000, "(" * 8_000, "cd " * 4_000],
)
def test_no_command_takes_long_to_be_looked_through(command: str) -> None:
    # Without bounds on what is looked through these would take minutes, which the suite's own limit ends.
    assert sections(*[bash(command)] * 20)["Changes Made"]


def test_a_message_of_blank_lines_or_of_one_word_again_and_again_is_looked_through() -> None:
    for said in ("\n" * 60_000 + "x", "first " * 20_000, "- " * 30_000, "1. a\n" * 10_000):
        assert (
            tuple(parse_sections(write_session_text(conversation_of_texts(said, "ok", f"my plan: {said}")))) == TITLES
        )


def test_a_path_that_cannot_be_made_absolute_says_so() -> None:
    assert "the project root is not known" in sections(edit("src/gate.py"))["Working Files (Modified)"]


def test_at_most_eight_working_files_are_named_and_those_worked_on_most_come_first() -> None:
    did = [edit(f"/srv/app/f{at}.py") for at in range(10)] + [edit("/srv/app/f3.py")] * 3
    lines = sections(*did)["Working Files (Modified)"].split("\n")
    assert len(lines) == 8
    assert lines[0] == "- /srv/app/f3.py (role: main implementation, 4 edits)"


def test_an_edit_that_failed_or_was_refused_made_no_working_file() -> None:
    refused = "Edit", {"file_path": "/srv/a.py"}, "The user doesn't want to proceed with this tool use."
    found = sections(refused, ("Edit", {"file_path": "/srv/b.py"}, "<tool_use_error>no</tool_use_error>"))
    assert found["Working Files (Modified)"] == NONE
    assert found["Changes Made"] == NONE


def test_files_of_shell_commands_count_where_it_is_known_in_which_directory() -> None:
    did = (
        bash("cat > new.py <<'EOF'\nx = 1 > 2.5\nEOF"), bash("sed -i 's/a/b/' src/gate.py"), bash("cat src/door.py"),
        bash("cd /opt/x && echo 1 > away.txt"), bash('cd "$HOME" && echo 1 > lost.txt'), bash("ls > /dev/null 2>&1"),
    )  # fmt: skip
    found = sections(*did, system="cwd: /srv/app")
    names = set(re.findall(r"- (\S+)", found["Working Files (Modified)"]))
    assert names == {"/srv/app/new.py", "/srv/app/src/gate.py", "/opt/x/away.txt"}
    assert found["Reference Files (Read-Only)"] == "- /srv/app/src/door.py (role: implementation)"


def test_a_project_in_a_temporary_directory_is_a_project_too() -> None:
    found = sections(edit("/var/tmp/job/src/a.py"), edit("/var/tmp/job/b.py"))
    assert found["Project Root"] == "/var/tmp/job"
    assert "- /var/tmp/job/src/a.py (role: " in found["Working Files (Modified)"]


def test_a_log_that_tells_of_an_exit_code_was_read_all_the_same() -> None:
    found = sections(("Read", {"file_path": "/srv/app/run.log"}, '1\t{"exit_code": 1}\n2\tExit code 1'))
    assert "/srv/app/run.log" in found["Reference Files (Read-Only)"]


def test_what_codex_puts_around_a_result_is_left_out() -> None:
    framed = "Chunk ID: 1a\nWall time: 0.1 seconds\nProcess exited with code 0\nOutput:\n3 passed\n"
    assert (
        sections(("exec_command", {"cmd": "pytest"}, framed))["Last Action"] == "exec_command `pytest`: done: 3 passed"
    )
    failed = '{"output":"E: it is shut\\n","metadata":{"exit_code":1}}'
    assert "failed: E: it is shut" in sections(("shell", {"command": ["bash", "-lc", "pytest"]}, failed))["Last Action"]


def test_a_patch_that_codex_gives_as_a_text_changes_files() -> None:
    patch = "*** Begin Patch\n*** Update File: src/a.py\n@@\n-a\n+b\n*** Add File: b.py\n+x\n*** End Patch"
    items = [
        {"role": "user", "content": "<environment_context><cwd>/srv/app</cwd></environment_context>"},
        {"role": "user", "content": "Mend it."},
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": patch},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "Success. Updated the following files:"},
    ]
    found = parse_sections(write_session_text(read_request({"model": "gpt-5", "input": items}, "responses")))
    assert found["Changes Made"] == "- Edited /srv/app/src/a.py (1 edit)\n- Created /srv/app/b.py"


def test_the_last_action_is_told_with_its_result() -> None:
    failing = "Exit code 1\nFAILED test_gate.py::test_open - AssertionError: it is shut"
    found = sections(edit("/srv/a.py"), bash("pytest -q", failing), read("/srv/b.py"))
    assert found["Last Action"] == (
        "Bash `pytest -q`: failed: FAILED test_gate.py::test_open - AssertionError: it is shut"
    )
    assert "Bash `pytest -q`: failed" in found["Known Issues"]
    mended = sections(bash("pytest -q", failing), bash("pytest -q", "12 passed"))
    assert (mended["Last Action"], mended["Known Issues"]) == ("Bash `pytest -q`: done: 12 passed", NONE)


def test_decisions_come_with_their_reasons() -> None:
    found = parse_sections(write_session_text(conversation_of_texts(
        "Which client is better for us?", "I think httpx.",
        "Let's use httpx for the client because it is async.", "We decided to drop requests. It blocks the event loop.",
        "ok",
    )))  # fmt: skip
    assert found["Decisions"] == (
        "- Let's use httpx for the client: because it is async\n"
        "- We decided to drop requests: It blocks the event loop."
    )


def test_a_users_answer_to_a_question_is_a_decision() -> None:
    answered = 'User has answered your questions: "Where should it stand?"="In front". You can now continue.'
    found = sections(("AskUserQuestion", {"questions": []}, answered))
    assert found["Decisions"] == "- Where should it stand?: In front (the user's answer)"


def test_constraints_are_the_users_words_and_nobody_elses() -> None:
    found = parse_sections(
        write_session_text(
            conversation_of_texts("Mend it. Never touch the vendor folder.", "We must never stop here.", "ok")
        )
    )
    assert found["Constraints"] == "- Never touch the vendor folder."


def test_dependencies_are_package_calls_and_changed_manifests() -> None:
    did = (
        bash("cd web && npm install --save left-pad"), bash("uv add httpx", "Exit code 1\nerror: no network"),
        edit("/srv/app/go.mod", "go 1.22", "go 1.22\nrequire x.org/y v1"),
    )  # fmt: skip
    assert sections(*did)["Dependencies"] == (
        "- npm install --save left-pad\n- uv add httpx (failed)\n- /srv/app/go.mod edited: require x.org/y v1"
    )


def test_changes_name_files_and_commits() -> None:
    committed = "[main 1a2b3c4] Mend the gate\n 1 file changed"
    found = sections(edit("/srv/app/a.py"), edit("/srv/app/a.py"), bash('git commit -m "Mend the gate"', committed))
    assert found["Changes Made"] == "- Edited /srv/app/a.py (2 edits)\n- Committed 1a2b3c4 on main: Mend the gate"


def test_credentials_are_masked_in_every_section_but_the_plan_which_stays_as_it_is() -> None:
    key = "sk-proj-abcdefghijklmnop1234"
    listed = {"todos": [{"content": f"Put {key} into the vault", "status": "pending"}]}
    asked = f"Never print the key {key} of the vault gate."
    did = (
        ("TodoWrite", listed, "ok"),
        bash("pip install --index-url https://bot:s3cret@pypi.internal/simple ledger"),
        bash("DB_PASSWORD=hunter2 make check", "Exit code 1\nerror: access denied for password=hunter2"),
    )
    text = write_session_text(conversation_of_calls(*did, said=asked))
    found = parse_sections(text)
    assert extract_plan(found[PLAN]) == f"- [ ] Put {key} into the vault"
    rest = "\n".join(content for title, content in found.items() if title != PLAN)
    assert not [secret for secret in (key, "s3cret", "hunter2") if secret in rest]
    assert found["Objective"] == "Never print the key [credential] of the vault gate."
    assert found["Pending"] == "- Put [credential] into the vault"
    assert found["Dependencies"] == "- pip install --index-url https://bot:[credential]@pypi.internal/simple ledger"
    assert "DB_PASSWORD=[credential] make check" in found["Last Action"]


def test_a_key_that_is_cut_off_takes_no_other_item_with_it() -> None:
    key = "-----BEGIN RSA PRIVATE KEY----- MIIEpAIBAAKCAQEA Zm9v"
    assert render_sections({"Notes": f"- {key}\n- Next."}).endswith("## Notes\n- [credential]\n- Next.")


def test_pending_is_what_the_plan_leaves_open_and_what_was_not_answered() -> None:
    listed = {"todos": [{"content": "a", "status": "completed"}, {"content": "b", "status": "pending"}]}
    assert sections(("TodoWrite", listed, "ok"))["Pending"] == "- b"
    assert (
        parse_sections(write_session_text(conversation_of_texts("Hi", "Hello", "Is it shut?")))["Pending"]
        == "- Not answered yet: Is it shut?"
    )


def test_text_beside_a_plan_is_recorded() -> None:
    given = {"explanation": "The gate rusts.", "plan": [{"step": "Oil it", "status": "pending"}]}
    assert sections(("update_plan", given, "Plan updated"))["Notes"] == "- Said with the plan: The gate rusts."


def test_the_workflow_session_is_named_where_there_is_one() -> None:
    assert sections(read("/srv/.workflow/active/WFS-gate-b7/IMPL_PLAN.md"))["Session ID"] == "WFS-gate-b7"
    assert sections(read("/srv/a.py"))["Session ID"] == NONE


def test_a_plan_that_was_edited_and_never_shown_whole_is_noted() -> None:
    found = sections(edit("/srv/app/PLAN.md"))
    assert "- /srv/app/PLAN.md was edited; its whole text is not recorded." in found["Notes"]


# -- the text ------------------------------------------------------------------------


def test_a_plan_that_holds_these_very_headings_is_read_back_as_it_is() -> None:
    inner = render_sections({"Objective": "x", PLAN: "### Source: todo\n\n<details>\n\ny\n\n</details>"})
    frame = "### Source: workflow (PLAN.md)\n\n<details>\n<summary>Full Execution Plan</summary>\n\n{}\n\n</details>"
    held = {PLAN: frame.format(inner), "Notes": "- z"}
    assert extract_plan(parse_sections(render_sections(held))[PLAN]) == inner
    assert parse_sections(render_sections(held))["Notes"] == "- z"


@pytest.mark.parametrize("title", TITLES)
def test_a_text_without_one_of_the_sections_is_refused_by_its_name(title: str) -> None:
    text = render_sections({}).replace(f"## {title}\n", "")
    with pytest.raises(BadRequest, match=re.escape(f'"## {title}"')) as raised:
        parse_sections(text)
    assert raised.value.code == "not_a_session_memory"


def test_sections_out_of_order_empty_ones_and_a_plan_without_its_frame_are_refused() -> None:
    swapped = (
        render_sections({}).replace("## Pending", "## X").replace("## Notes", "## Pending").replace("## X", "## Notes")
    )
    with pytest.raises(BadRequest, match="in this order"):
        parse_sections(swapped)
    with pytest.raises(BadRequest, match="in this order"):
        parse_sections(f"Hello\n{render_sections({})}")
    with pytest.raises(BadRequest, match="are empty: Decisions"):
        parse_sections(render_sections({}).replace("## Decisions\n(none)", "## Decisions\n"))
    with pytest.raises(BadRequest, match="<details>"):
        parse_sections(render_sections({PLAN: "1. do it"}))
    with pytest.raises(BadRequest, match="fourteen sections"):
        parse_sections("")
