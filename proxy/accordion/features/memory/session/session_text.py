"""The text of a session memory: fourteen sections in a fixed order, with which another agent can continue.

`write_session_text` writes the text of a recorded conversation. Rules extract the sections, without a model: every
statement is a piece of the conversation, and the plan is complete. `parse_sections` checks a text that a client writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from accordion.features.memory.conversation.credentials import mask_credentials
from accordion.features.memory.conversation.sentences import Sentence, split_conversation
from accordion.features.memory.conversation.steps import ConversationRecord, RecordedStep, build_record
from accordion.features.memory.extraction.candidates import OPEN, SOLVES, is_decision, is_preference, is_safe
from accordion.features.memory.session.session_files import (
    SessionFile,
    describe_reference_files,
    describe_working_files,
    find_file_accesses,
    find_files,
    find_patch,
    find_path,
    find_root,
    is_manifest,
    is_shell,
    list_accessed_paths,
    shell_command,
    tool_kind,
)
from accordion.features.memory.session.session_plan import (
    NEW_TEXT_FIELDS,
    OLD_TEXT_FIELDS,
    SessionPlan,
    find_plan,
    find_plan_files,
    is_todo,
    is_typed,
    shorten_handed_plan,
)
from accordion.model.conversation import Conversation
from accordion.model.errors import BadRequest
from accordion.summaries.facts import find_trouble

_WORKFLOW: Final = re.compile(r"\bWFS-[A-Za-z0-9][\w.-]*[A-Za-z0-9]")
_TAG: Final = re.compile(r"</?[\w:-]{1,40}>")
_INTENT: Final = re.compile(r"Primary Request and Intent:\**\s*\n?(.+?)(?:\n\n {0,4}\d\.|\Z)", re.DOTALL)
_OBJECTIVE: Final = 600
_FEW_WORDS: Final = 4
TITLES: Final = (
    "Session ID",
    "Project Root",
    "Objective",
    "Execution Plan",
    "Working Files (Modified)",
    "Reference Files (Read-Only)",
    "Last Action",
    "Decisions",
    "Constraints",
    "Dependencies",
    "Known Issues",
    "Changes Made",
    "Pending",
    "Notes",
)
NONE: Final = "(none)"
PLAN: Final = TITLES[3]
_PLAN_SOURCE: Final = "### Source: "
_PLAN_OPENING: Final = "<details>\n<summary>Full Execution Plan (Click to expand)</summary>\n\n"
_PLAN_END: Final = "</details>"
_HEADING_LINE: Final = re.compile(r"^(?=#)", re.MULTILINE)
_PLAN_FRAME: Final = re.compile(r"<details>\s*<summary>[^<\n]*</summary>\n{0,2}")
_PLAN_SOURCES: Final = ("workflow", "todo", "user-stated", "inferred")
_MAX_ITEMS: Final = 12
"""Items of one section at most. Of decisions and issues, the latest are taken."""
_MAX_CHARACTERS: Final = 320
_MAX_EXAMINED: Final = 100_000

_REASON: Final = re.compile(r",?\s+(?:\(?because|since|so that|as it|as this|to avoid|in order to)\b", re.IGNORECASE)
_FEWEST_SPACES: Final = 4
"""Spaces that a noteworthy sentence has at least."""
_ANNOUNCEMENT: Final = re.compile(
    r"^(?:now |ok,? |okay,? |good[,.]? |great[,.]? )*(?:let me|i['’]ll (?:now|start|check))\b", re.I
)
_QUESTION_AND_ANSWER: Final = re.compile(r'"([^"\n]{3,600})"="([^"\n]{1,300})"')

_TOOLS = (
    r"(?:(?:python3?|py) -m )?(?:pip3?|pipx|uv pip|conda|mamba|apt(?:-get)?|brew|gem|dnf|yum|apk|choco|winget) "
    r"(?:-\w+ |--\S+ )*(?:install|add)"
)
_INSTALLATION: Final = re.compile(
    rf"(?:^|[;&|(\n!%])\s*(?:sudo (?:-\w+ )*)?((?:{_TOOLS}|uv (?:tool install|add)|poetry add|pdm add"
    r"|npm (?:i|install|add)|(?:pnpm|yarn|bun|cargo|deno|rye) (?:add|install)|go (?:get|install)|composer require"
    r"|bundle add|mix deps\.get|dotnet add [^\n;&|]*?package)\b[^\n;&|)]*)"
)
_COMMIT: Final = re.compile(r"^\[([^\]\n]{1,200}) ([0-9a-f]{7,40})\] (\S[^\n]*)", re.MULTILINE)


def write_session_text(conversation: Conversation) -> str:
    """Writes the session memory of a conversation: all fourteen sections in order, empty ones as `(none)`."""
    record = build_record(conversation)
    root = find_root(record, list_accessed_paths(record.steps))
    files, plans = find_files(record, root), find_plan_files(record, root)
    plan = find_plan(record, files, plans)
    remarks = [
        f"{plan_file.path} was edited; its whole text is not recorded."
        for plan_file in plans
        if plan_file.text is None and plan_file.written
    ]
    if plan is not None and plan.explanation:
        remarks.append(f"Said with the plan: {_shorten(plan.explanation)}")
    # A message that is no longer stored has an index but no content.
    if missing := sum(not message.wire for message in conversation.messages):
        remarks.append(f"{missing} of the recorded messages are not kept any more.")
    return _write_sections(record, root, files, plan, remarks)


def find_latest_plan(conversation: Conversation) -> SessionPlan | None:
    """Returns the plan for the session memory of a conversation, or None."""
    record = build_record(conversation)
    root = find_root(record, list_accessed_paths(record.steps))
    return find_plan(record, find_files(record, root), find_plan_files(record, root))


def _write_sections(
    record: ConversationRecord,
    root: str,
    files: Sequence[SessionFile],
    plan: SessionPlan | None,
    remarks: Sequence[str],
) -> str:
    typed_positions = {
        statement.at for statement in record.statements if statement.author == "assistant" or is_typed(statement.text)
    }
    sentences, steps = (
        [statement for statement in split_conversation(record) if statement.at in typed_positions],
        record.steps,
    )
    return render_sections(
        {
            "Session ID": _find_workflow(record),
            "Project Root": root,
            "Objective": _find_objective(record),
            "Execution Plan": _render_plan(plan),
            "Working Files (Modified)": _render_list(describe_working_files(files)),
            "Reference Files (Read-Only)": _render_list(describe_reference_files(files)),
            "Last Action": _describe_last_action(steps),
            "Decisions": _render_list(_find_decisions(sentences, steps)),
            "Constraints": _render_list(_find_constraints(sentences)),
            "Dependencies": _render_list(_find_dependencies(steps)),
            "Known Issues": _render_list(_find_issues(sentences, steps)),
            "Changes Made": _render_list(_describe_changes(files, steps)),
            "Pending": _render_list(_find_pending(record, plan)),
            "Notes": _render_list([*_find_notes(sentences), *remarks]),
        }
    )


def _find_workflow(record: ConversationRecord) -> str:
    """Returns the last mentioned id of a workflow session."""
    for step in reversed(record.steps):
        for text in (step.raw, step.result or ""):
            if matches := _WORKFLOW.findall(text[:200_000]):
                return str(matches[-1])
    for statement in reversed(record.statements_by("user")):
        if matches := _WORKFLOW.findall(statement.text):
            return str(matches[-1])
    return ""


def _find_objective(record: ConversationRecord) -> str:
    """Returns the user's first objective, followed by the last request if that is another."""
    requests = [_plain_line(shorten_handed_plan(statement.text)) for statement in record.statements_by("user")]
    requests = [text for text in requests if text]
    intents = [
        match[1]
        for statement in record.statements_by("summary")
        if (match := _INTENT.search(statement.text)) is not None
    ]
    long_requests = [text for text in requests if len(text.split()) >= _FEW_WORDS and not text.startswith("/")]
    first = _plain_line(intents[0]) if intents else (long_requests or requests or [""])[0]
    if not first:
        return ""
    objective = _shorten(first, _OBJECTIVE)
    if not requests or requests[-1] == first:
        return objective
    return f"{objective} (Asked last: {_shorten(requests[-1])})"


def _plain_line(text: str) -> str:
    """Returns a text on one line, without tags around it."""
    return " ".join(_TAG.sub(" ", text).split())


def _find_pending(record: ConversationRecord, plan: SessionPlan | None) -> list[str]:
    """Returns the open steps of the plan, an unanswered request of the user, and calls without a result."""
    items = [_shorten(step) for step in plan.open] if plan is not None else []
    last_step_at = max((step.at for step in record.steps), default=-1)
    if record.statements and record.statements[-1].author == "user" and record.statements[-1].at > last_step_at:
        items.append(f"Not answered yet: {_shorten(_plain_line(record.statements[-1].text))}")
    items += [f"No result yet: {step.name}" for step in record.steps[-8:] if step.result is None]
    return list(dict.fromkeys(items))


# -- the form of the text ---------------------------------------------------------------------------------------------


def render_sections(contents: Mapping[str, str]) -> str:
    """Renders the fourteen sections, those without content as `(none)`.

    The plan stays unchanged. In other sections, lines that look like headings are indented, and credentials masked.
    """
    clean_contents = {
        title: text if title == PLAN else _HEADING_LINE.sub(" ", mask_credentials(text))
        for title, text in contents.items()
    }
    return "\n\n".join(f"## {title}\n{clean_contents.get(title) or NONE}" for title in TITLES)


def _render_list(items: Sequence[str]) -> str:
    """Renders items as a list, one line each; empty if there are none."""
    return "\n".join(f"- {' '.join(item.split())}" for item in items)


def _render_plan(plan: SessionPlan | None) -> str:
    """Renders a plan under its source, character for character; empty for none."""
    return f"{_PLAN_SOURCE}{plan.label}\n\n{_PLAN_OPENING}{plan.text}\n\n{_PLAN_END}" if plan is not None else ""


def parse_sections(text: str) -> dict[str, str]:
    """Returns the contents of the sections by title. Raises BadRequest if one is missing, empty or out of order.

    A plan may contain the same headings. So the sections before it are searched from the beginning of the text, those
    after it from the end.
    """
    body = "\n" + text.strip("\n") + "\n"
    if message := _find_missing(body):
        raise BadRequest(message, code="not_a_session_memory", param="text")
    starts: dict[str, int] = {}
    position, plan_end = 0, TITLES.index(PLAN) + 1
    for title in TITLES[:plan_end]:
        position = starts[title] = body.find(_heading(title), position)
    end = len(body)
    for title in reversed(TITLES[plan_end:]):
        end = starts[title] = body.rfind(_heading(title), 0, end)
    positions = [starts[title] for title in TITLES]
    if positions[0] != 0 or any(first >= second for first, second in pairwise(positions)) or min(positions) < 0:
        order = ", ".join(TITLES)
        message = (
            f"The sections of a session memory must be in this order, and the text must begin with the first: {order}."
        )
        raise BadRequest(message, code="not_a_session_memory", param="text")
    ends = [*positions[1:], len(body)]
    contents = {
        title: body[start + len(_heading(title)) : stop].removesuffix("\n").removesuffix("\n")
        for title, start, stop in zip(TITLES, positions, ends, strict=True)
    }
    _check_sections(contents)
    return contents


def extract_plan(content: str) -> str:
    """Returns the plan in the content of the plan's section; empty if there is none."""
    frame = _PLAN_FRAME.search(content)
    body = content.rstrip()
    if frame is None or not body.endswith(_PLAN_END):
        return ""
    return body[frame.end() : -len(_PLAN_END)].removesuffix("\n").removesuffix("\n")


def _find_missing(body: str) -> str:
    missing = [title for title in TITLES if _heading(title) not in body]
    if not missing:
        return ""
    names = ", ".join(f'"## {title}"' for title in missing)
    return f"A session memory has fourteen sections; missing: {names}. One without content says {NONE}."


def _check_sections(contents: Mapping[str, str]) -> None:
    empty = [title for title, content in contents.items() if not content.strip()]
    if empty:
        message = f"These sections are empty: {', '.join(empty)}. Write {NONE} in a section without content."
        raise BadRequest(message, code="not_a_session_memory", param="text")
    plan = contents[PLAN]
    if plan.strip() == NONE:
        return
    source = plan.removeprefix(_PLAN_SOURCE).split("\n", 1)[0]
    if not plan.startswith(_PLAN_SOURCE) or not source.startswith(_PLAN_SOURCES) or not extract_plan(plan).strip():
        message = (
            f'The section "{PLAN}" must begin with "{_PLAN_SOURCE}" and one of {", ".join(_PLAN_SOURCES)}, and contain '
            f"the whole plan between <details> and </details>, under its <summary>. Without a plan, write {NONE}."
        )
        raise BadRequest(message, code="not_a_session_memory", param="text")


def _heading(title: str) -> str:
    return f"\n## {title}\n"


# -- what the sections contain ----------------------------------------------------------------------------------------


def _find_decisions(sentences: Sequence[Sentence], steps: Iterable[RecordedStep]) -> list[str]:
    """Returns decisions with their reasons, word for word, including the user's answers to questions."""
    decisions: list[tuple[int, str]] = []
    for step in steps:
        if "ask" in tool_kind(step) and step.is_done:
            decisions += [
                (step.at, f"{question}: {answer} (the user's answer)") for question, answer in _find_answers(step)
            ]
    sentences_by_position = {(sentence.at, sentence.position): sentence for sentence in sentences}
    for sentence in sentences:
        if is_decision(sentence) and _is_noteworthy(sentence.text):
            decisions.append(
                (sentence.at, _with_reason(sentence, sentences_by_position.get((sentence.at, sentence.position + 1))))
            )
    return _newest(text for _, text in sorted(decisions, key=lambda pair: pair[0]))


def _find_constraints(sentences: Iterable[Sentence]) -> list[str]:
    """Returns the user's constraints and rules in the user's words, the earliest first."""
    rules = (each.text for each in sentences if each.speaker == "user" and is_preference(each.text))
    return list(dict.fromkeys(map(_shorten, rules)))[:_MAX_ITEMS]


def _find_dependencies(steps: Sequence[RecordedStep]) -> list[str]:
    """Returns calls of package managers, and changed manifests with the added lines."""
    items: dict[str, None] = {}
    for step in steps:
        command = shell_command(step) if is_shell(step) else ""
        for call in _INSTALLATION.findall(command[:20_000]):
            outcome_note = " (failed)" if step.is_failed else " (no result recorded)" if step.result is None else ""
            items[_shorten(f"{call.strip()}{outcome_note}")] = None
        for access in find_file_accesses(step):
            if access.act != "read" and is_manifest(access.path):
                lines = "; ".join(_added_lines(step))
                items[_shorten(f"{access.path} {access.act}" + (f": {lines}" if lines else ""))] = None
    return _newest(items)


def _find_issues(sentences: Iterable[Sentence], steps: Sequence[RecordedStep]) -> list[str]:
    """Returns statements about open or broken things, and the latest failed commands."""
    issues = [_shorten(each.text) for each in sentences if OPEN.search(each.text) and _is_noteworthy(each.text)]
    latest: dict[str, RecordedStep] = {}
    for step in steps:
        if is_shell(step) and step.result is not None:
            command = shell_command(step)
            latest.pop(command, None)
            latest[command] = step
    failed_steps = [step for step in list(latest.values())[-3:] if step.is_failed]
    return _newest([*issues, *(f"{_describe_call(step)}: failed: {_describe_outcome(step)}" for step in failed_steps)])


def _describe_changes(files: Iterable[SessionFile], steps: Iterable[RecordedStep]) -> list[str]:
    """Describes the changes of files, and the commits."""
    items: list[str] = []
    for file in files:
        if file.is_changed:
            times = f" ({file.edits} edit{'s' if file.edits != 1 else ''})" if file.edits else ""
            items.append(f"{'Deleted' if file.deleted else 'Created' if file.created else 'Edited'} {file.path}{times}")
    for step in steps:
        if is_shell(step) and "git commit" in shell_command(step):
            items += [
                f"Committed {commit[1]} on {commit[0]}: {_shorten(commit[2])}"
                for commit in _COMMIT.findall((step.result or "")[:_MAX_EXAMINED])
            ]
    return list(dict.fromkeys(items))


def _find_notes(sentences: Iterable[Sentence]) -> list[str]:
    """Returns the newest causes and solutions that the assistant named."""
    notes = [
        _shorten(each.text)
        for each in sentences
        if each.speaker == "assistant" and SOLVES.search(each.text) and _is_noteworthy(each.text)
    ]
    return _newest(notes, 8)


def _describe_last_action(steps: Sequence[RecordedStep]) -> str:
    """Describes the last step that changed something and its outcome; else the last step; empty for no steps."""
    candidates = [step for step in steps if not is_todo(step)]
    changing_steps = (
        step for step in reversed(candidates) if is_shell(step) or find_patch(step) or not _only_reads(step)
    )
    step = next(changing_steps, candidates[-1] if candidates else None)
    if step is None:
        return ""
    if step.result is None:
        return f"{_describe_call(step)}: no result is recorded"
    outcome = _describe_outcome(step)
    return f"{_describe_call(step)}: {'failed' if step.is_failed else 'done'}{f': {outcome}' if outcome else ''}"


def _describe_outcome(step: RecordedStep) -> str:
    """Returns the most informative line of a result: the error, else the last or first line."""
    text = step.output[-_MAX_EXAMINED:]
    if step.is_failed and (errors := list(find_trouble(text))):
        return _shorten(next((line for line in errors if line.count(" ") >= 2), errors[0]))
    lines = [
        line.strip() for line in text.split("\n") if any(map(str.isalnum, line)) and not line.strip().startswith("<")
    ]
    if not lines:
        return ""
    return _shorten(lines[-1] if is_shell(step) else lines[0])


def _shorten(text: str, limit: int = _MAX_CHARACTERS) -> str:
    """Returns a text on one line, cut at the end if it is long."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 2].rsplit(" ", 1)[0] + " …"


def _is_noteworthy(text: str) -> bool:
    """Returns whether a sentence is noteworthy: no question, no mere announcement, no credential."""
    return (
        not text.endswith(("?", ":"))
        and text.count(" ") >= _FEWEST_SPACES
        and not _ANNOUNCEMENT.match(text)
        and is_safe(text)
    )


def _only_reads(step: RecordedStep) -> bool:
    if tool_kind(step) in ("grep", "glob", "ls", "list", "search", "find", "webfetch", "websearch", "toolsearch"):
        return True
    acts = {access.act for access in find_file_accesses(step)}
    return acts == {"read"}


def _describe_call(step: RecordedStep) -> str:
    """Describes a call on one line: the tool with its command or its file, shortened."""
    subject = (
        shell_command(step)
        if is_shell(step)
        else find_path(step) or step.text("description", "query", "prompt", "url", "pattern")
    )
    return f"{step.name} `{_shorten(subject, 200)}`" if subject else step.name


def _find_answers(step: RecordedStep) -> Iterator[tuple[str, str]]:
    for question, answer in _QUESTION_AND_ANSWER.findall((step.result or "")[:20_000]):
        yield _shorten(question), _shorten(answer)


def _with_reason(sentence: Sentence, following: Sentence | None) -> str:
    """Returns a decision, a colon and its reason, from the same sentence or the next one."""
    text = sentence.text.rstrip(".!")
    reason = _REASON.search(text)
    if reason is not None and reason.start() > 8:
        return f"{_shorten(text[: reason.start()])}: {_shorten(text[reason.start() :].lstrip(', '))}"
    if following is not None and (
        _REASON.search(f" {following.text}") or re.match(r"(?:This|It|That)\b", following.text)
    ):
        return f"{_shorten(text)}: {_shorten(following.text)}"
    return f"{_shorten(text)}: {'said by the user' if sentence.speaker == 'user' else 'no reason was given'}"


def _added_lines(step: RecordedStep) -> list[str]:
    """Returns the first lines that an edit added to a manifest."""
    old_lines, new_lines = (step.text(*names).split("\n") for names in (OLD_TEXT_FIELDS, NEW_TEXT_FIELDS))
    if patch := find_patch(step):
        return [line[1:].strip() for line in patch.split("\n") if line.startswith("+") and line[1:].strip()][:6]
    return [line.strip() for line in new_lines if line.strip() and line not in old_lines][:6]


def _newest(items: Iterable[str], limit: int = _MAX_ITEMS) -> list[str]:
    return list(dict.fromkeys(items))[-limit:]
