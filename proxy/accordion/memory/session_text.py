"""Writes session memories: fourteen sections with which another agent can continue a recorded conversation.

Rules extract the sections, without a model: every statement is a piece of the conversation, and the plan is complete.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from accordion.memory import findings
from accordion.memory.file_paths import find_root
from accordion.memory.files import (
    SessionFile,
    describe_reference_files,
    describe_working_files,
    find_files,
    list_accessed_paths,
)
from accordion.memory.plan import SessionPlan, find_plan, is_typed, shorten_handed_plan
from accordion.memory.plan_files import find_plan_files
from accordion.memory.sections import render_list, render_plan, render_sections
from accordion.memory.sentences import split_conversation
from accordion.memory.steps import ConversationRecord, build_record
from accordion.model.conversation import Conversation

_WORKFLOW: Final = re.compile(r"\bWFS-[A-Za-z0-9][\w.-]*[A-Za-z0-9]")
_TAG: Final = re.compile(r"</?[\w:-]{1,40}>")
_INTENT: Final = re.compile(r"Primary Request and Intent:\**\s*\n?(.+?)(?:\n\n {0,4}\d\.|\Z)", re.DOTALL)
_OBJECTIVE: Final = 600
_FEW_WORDS: Final = 4


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
        remarks.append(f"Said with the plan: {findings.shorten(plan.explanation)}")
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
            "Execution Plan": render_plan(plan),
            "Working Files (Modified)": render_list(describe_working_files(files)),
            "Reference Files (Read-Only)": render_list(describe_reference_files(files)),
            "Last Action": findings.describe_last_action(steps),
            "Decisions": render_list(findings.find_decisions(sentences, steps)),
            "Constraints": render_list(findings.find_constraints(sentences)),
            "Dependencies": render_list(findings.find_dependencies(steps)),
            "Known Issues": render_list(findings.find_issues(sentences, steps)),
            "Changes Made": render_list(findings.describe_changes(files, steps)),
            "Pending": render_list(_find_pending(record, plan)),
            "Notes": render_list([*findings.find_notes(sentences), *remarks]),
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
    objective = findings.shorten(first, _OBJECTIVE)
    if not requests or requests[-1] == first:
        return objective
    return f"{objective} (Asked last: {findings.shorten(requests[-1])})"


def _plain_line(text: str) -> str:
    """Returns a text on one line, without tags around it."""
    return " ".join(_TAG.sub(" ", text).split())


def _find_pending(record: ConversationRecord, plan: SessionPlan | None) -> list[str]:
    """Returns the open steps of the plan, an unanswered request of the user, and calls without a result."""
    items = [findings.shorten(step) for step in plan.open] if plan is not None else []
    last_step_at = max((step.at for step in record.steps), default=-1)
    if record.statements and record.statements[-1].author == "user" and record.statements[-1].at > last_step_at:
        items.append(f"Not answered yet: {findings.shorten(_plain_line(record.statements[-1].text))}")
    items += [f"No result yet: {step.name}" for step in record.steps[-8:] if step.result is None]
    return list(dict.fromkeys(items))
