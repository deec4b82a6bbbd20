"""A session memory: what it takes to go on with a recorded conversation somewhere else, in fourteen sections.

By rules and extraction, without a model: every statement is a piece of the conversation, the plan is the whole plan.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from accordion.core.conversation import Conversation
from accordion.memory import findings
from accordion.memory.files import File, files_of, given_paths, reference, working
from accordion.memory.places import root_of
from accordion.memory.plan import Plan, is_typed, plan_of, titled
from accordion.memory.plan_files import plan_files
from accordion.memory.sections import listed, planned, rendered
from accordion.memory.sentences import sentences
from accordion.memory.steps import Record, record_of

_WORKFLOW: Final = re.compile(r"\bWFS-[A-Za-z0-9][\w.-]*[A-Za-z0-9]")
_TAG: Final = re.compile(r"</?[\w:-]{1,40}>")
_INTENT: Final = re.compile(r"Primary Request and Intent:\**\s*\n?(.+?)(?:\n\n {0,4}\d\.|\Z)", re.DOTALL)
_GOAL: Final = 600
_FEW_WORDS: Final = 4


def session_text(conversation: Conversation) -> str:
    """The session memory of a conversation, all fourteen sections in order, empty ones `(none)`."""
    record = record_of(conversation)
    root = root_of(record, given_paths(record.steps))
    files, plans = files_of(record, root), plan_files(record, root)
    plan = plan_of(record, files, plans)
    beside = [
        f"{each.path} was edited; its whole text is not recorded."
        for each in plans
        if each.text is None and each.written
    ]
    if plan is not None and plan.why:
        beside.append(f"Said with the plan: {findings.cut(plan.why)}")
    # A message that is not kept any more has a place and nothing else.
    if gone := sum(not message.wire for message in conversation.messages):
        beside.append(f"{gone} of the recorded messages are not kept any more.")
    return _written(record, root, files, plan, beside)


def latest_plan(conversation: Conversation) -> Plan | None:
    """The plan that a session memory of this conversation holds; None for none."""
    record = record_of(conversation)
    root = root_of(record, given_paths(record.steps))
    return plan_of(record, files_of(record, root), plan_files(record, root))


def _written(record: Record, root: str, files: Sequence[File], plan: Plan | None, beside: Sequence[str]) -> str:
    typed = {each.at for each in record.sayings if each.who == "assistant" or is_typed(each.text)}
    said, steps = [each for each in sentences(record) if each.at in typed], record.steps
    return rendered(
        {
            "Session ID": _workflow(record),
            "Project Root": root,
            "Objective": _objective(record),
            "Execution Plan": planned(plan),
            "Working Files (Modified)": listed(working(files)),
            "Reference Files (Read-Only)": listed(reference(files)),
            "Last Action": findings.last_action(steps),
            "Decisions": listed(findings.decisions(said, steps)),
            "Constraints": listed(findings.constraints(said)),
            "Dependencies": listed(findings.dependencies(steps)),
            "Known Issues": listed(findings.issues(said, steps)),
            "Changes Made": listed(findings.changes(files, steps)),
            "Pending": listed(_pending(record, plan)),
            "Notes": listed([*findings.notes(said), *beside]),
        }
    )


def _workflow(record: Record) -> str:
    """The id of the workflow session that was named last."""
    for step in reversed(record.steps):
        for text in (step.raw, step.result or ""):
            if found := _WORKFLOW.findall(text[:200_000]):
                return str(found[-1])
    for each in reversed(record.said("user")):
        if found := _WORKFLOW.findall(each.text):
            return str(found[-1])
    return ""


def _objective(record: Record) -> str:
    """What the user set out to do, and what was asked last where that is something else."""
    asked = [_plain(titled(each.text)) for each in record.said("user")]
    asked = [text for text in asked if text]
    told = [found[1] for each in record.said("summary") if (found := _INTENT.search(each.text)) is not None]
    long = [text for text in asked if len(text.split()) >= _FEW_WORDS and not text.startswith("/")]
    first = _plain(told[0]) if told else (long or asked or [""])[0]
    if not first:
        return ""
    goal = findings.cut(first, _GOAL)
    if not asked or asked[-1] == first:
        return goal
    return f"{goal} (Asked last: {findings.cut(asked[-1])})"


def _plain(text: str) -> str:
    """A text on one line, without tags that only wrap it."""
    return " ".join(_TAG.sub(" ", text).split())


def _pending(record: Record, plan: Plan | None) -> list[str]:
    """The steps of the plan that are open; what the user asked and nobody answered; calls without a result."""
    out = [findings.cut(step) for step in plan.open] if plan is not None else []
    last = max((step.at for step in record.steps), default=-1)
    if record.sayings and record.sayings[-1].who == "user" and record.sayings[-1].at > last:
        out.append(f"Not answered yet: {findings.cut(_plain(record.sayings[-1].text))}")
    out += [f"No result yet: {step.name}" for step in record.steps[-8:] if step.result is None]
    return list(dict.fromkeys(out))
