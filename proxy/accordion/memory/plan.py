"""Finds the latest plan of a conversation, complete and word for word.

The sources, in order: a plan file, a to-do list, a plan that the user stated, and one inferred from the conversation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

from accordion.memory.files import SessionFile
from accordion.memory.plan_files import PlanFile
from accordion.memory.steps import ConversationRecord, Statement
from accordion.memory.todos import TodoList, find_todos

Source = Literal["workflow", "todo", "user-stated", "inferred"]

UNAPPLIED: Final = "[Later edits of this file that could not be applied exactly, as they were made:]"
_IMPLEMENT: Final = re.compile(
    r"\s*(?:please )?(?:implement|execute|carry out|follow)(?: on)? (?:the following|this) plan:?[ \t]*\n+",
    re.IGNORECASE,
)
_ANNOUNCES_PLAN: Final = re.compile(
    r"\b(?:here['’]?s|here is|this is|follow|my|the) (?:the |my |our |a )?(?:\w+ )?(?:plan|steps|roadmap|todo list)\b"
    r"|\b(?:plan|steps|roadmap|to-?do|tasks)\s*:"
    r"|\b(?:i|we) (?:want|need|would like) (?:you )?to(?: do)?(?: the following)?:",
    re.IGNORECASE,
)
_NUMBERED_ITEM: Final = re.compile(r"^[ \t]{0,3}(?:step[ \t]+)?(\d{1,2})[.):][ \t]+\S", re.IGNORECASE)
_BULLET: Final = re.compile(r"""^[ \t]{0,3}(?:[-*•][ \t]{1,3}(?:\[[ xX>]\][ \t])?|\[[ xX>]\][ \t]+)["'`*(\w]""")
_FIRST_AND_THEN: Final = re.compile(r"\bfirst(?:ly)?\b.{3,}?\bthen\b.{3,}", re.IGNORECASE | re.DOTALL)
_FENCE: Final = re.compile(r"^\s*(?:```|~~~)")
_OPEN_BOX: Final = re.compile(r"^[ \t]*(?:[-*+]|\d+[.)])[ \t]+\[( |>|/)\][ \t]+(\S[^\n]*)", re.MULTILINE)
_NEXT_STEPS: Final = re.compile(
    r"\b(?:plan|steps?|approach|next|remaining|to-?do|I['’]ll|I will|need to|going to)\b", re.IGNORECASE
)
_MIN_STEPS: Final = 3
_MAX_CHARACTERS: Final = 60_000
_TYPED_CHARACTERS: Final = 4_000
"""Characters of a message that a person likely typed. Longer ones have pasted documents or output."""


class SessionPlan(msgspec.Struct, frozen=True):
    """A plan.

    `label` is its source with its path or tool; `text` is the plan itself, character for character; `open` are its open
    steps; `explanation` is the explanation that came with it.
    """

    source: Source
    label: str
    text: str
    open: tuple[str, ...] = ()
    explanation: str = ""


def find_plan(
    record: ConversationRecord, files: Sequence[SessionFile], plans: Sequence[PlanFile]
) -> SessionPlan | None:
    """Returns the latest plan by the order of sources; None if nothing was planned or done."""
    todos = find_todos(record.steps)
    open_items = _open_todos(todos)
    for file in plans:
        if file.text is not None and file.text.strip():
            text = _complete_text(file)
            return SessionPlan("workflow", f"workflow ({file.path})", text, open_items or open_boxes(text))
    if todos is not None:
        text = todos.render()
        return SessionPlan(
            "todo", f"todo ({todos.tool})", text, open_items or open_boxes(todos.text), todos.explanation
        )
    if plan := find_stated_plan(record.statements_by("user")):
        return SessionPlan("user-stated", "user-stated", plan, open_boxes(plan))
    return _infer_plan(record, files)


def open_boxes(text: str) -> tuple[str, ...]:
    """Returns the steps of a text with an open box."""
    return tuple(match[2].strip() for match in _OPEN_BOX.finditer(text))


def is_typed(text: str) -> bool:
    """Returns whether a person likely typed a message: it is no handed-over plan, long document or output."""
    return len(text) <= _TYPED_CHARACTERS and _IMPLEMENT.match(text) is None


def shorten_handed_plan(text: str) -> str:
    """Shortens a message that hands a plan over to its opening and the plan's title."""
    opening = _IMPLEMENT.match(text)
    return f"{opening[0]}{text[opening.end() :].split(chr(10), 1)[0]}" if opening is not None else text


def find_stated_plan(statements: Sequence[Statement]) -> str:
    """Returns the newest plan that the user stated, from its opening to its last step; empty if there is none.

    A message that calls itself a plan is preferred to a mere list.
    """
    plain_list = ""
    for statement in reversed(statements):
        text = statement.text[:_MAX_CHARACTERS]
        if (opening := _IMPLEMENT.match(text)) is not None:
            return statement.text[opening.end() :]
        plan_list = _find_list(text)
        is_announced = _ANNOUNCES_PLAN.search(text) is not None
        if is_announced and (plan_list or _FIRST_AND_THEN.search(text[:_TYPED_CHARACTERS])):
            return plan_list or text
        if plan_list and not plain_list and is_typed(text) and not _asks_only(plan_list):
            plain_list = plan_list
    return plain_list


def _complete_text(file: PlanFile) -> str:
    text = file.text or ""
    return "\n\n".join([text, UNAPPLIED, *file.unapplied]) if file.unapplied else text


def _open_todos(todos: TodoList | None) -> tuple[str, ...]:
    if todos is None:
        return ()
    return tuple(
        f"{item.text} (in progress)" if item.mark == ">" else item.text for item in todos.items if item.mark in " >"
    )


def _find_list(text: str) -> str:
    """Returns a list of at least three steps with its introduction and all its lines; empty if there is none."""
    lines, in_fence = text.split("\n"), False
    numbered: list[tuple[int, int]] = []
    bullets: list[int] = []
    for index, line in enumerate(lines):
        if _FENCE.match(line):
            in_fence = not in_fence
        if in_fence:
            continue
        if (match := _NUMBERED_ITEM.match(line)) is not None:
            numbered.append((index, int(match[1])))
        elif _BULLET.match(line):
            bullets.append(index)
    item_lines = _find_numbered(lines, numbered) or bullets
    if len(item_lines) < _MIN_STEPS:
        return ""
    first, last, steps = item_lines[0], item_lines[-1] + 1, frozenset(item_lines)
    if any(
        index not in steps and (line := lines[index]).strip() and line[0] not in " \t" for index in range(first, last)
    ):
        # The steps are paragraphs, so the end of the last one is unknown.
        return "\n".join(lines[_find_introduction(lines, first) :]).strip("\n")
    while (
        last < len(lines)
        and (lines[last].startswith((" ", "\t")) or _BULLET.match(lines[last]))
        and lines[last].strip()
    ):
        last += 1
    return "\n".join(lines[_find_introduction(lines, first) : last]).strip("\n")


def _find_numbered(lines: Sequence[str], numbered: Iterable[tuple[int, int]]) -> list[int]:
    """Returns the line indexes of the last outermost list of at least three numbered steps; empty for none.

    `numbered` are the line indexes and numbers of all numbered lines.
    """
    lists: list[list[int]] = []
    open_lists: list[list[int]] = []
    for position, number in numbered:
        indent = _indent(lines[position])
        if candidates := [line_indexes for line_indexes in reversed(open_lists) if len(line_indexes) + 1 == number]:
            # The list with the same indent, else the innermost: numbers of two digits may be indented less.
            matching = next(
                (line_indexes for line_indexes in candidates if _indent(lines[line_indexes[-1]]) == indent),
                candidates[0],
            )
            matching.append(position)
            open_lists = open_lists[: open_lists.index(matching) + 1]
        elif number == 1:
            open_lists = [
                *(line_indexes for line_indexes in open_lists if _indent(lines[line_indexes[0]]) < indent),
                [position],
            ]
            lists.append(open_lists[-1])
    plans = [line_indexes for line_indexes in lists if len(line_indexes) >= _MIN_STEPS]
    return min(reversed(plans), key=lambda line_indexes: _indent(lines[line_indexes[0]]), default=[])


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _find_introduction(lines: Sequence[str], first: int) -> int:
    """Returns the index of the line that introduces a list, or of the list's first line."""
    start = first
    while start and start > first - 2 and (not lines[start - 1].strip() or lines[start - 1].rstrip().endswith(":")):
        start -= 1
    return start


def _asks_only(text: str) -> bool:
    """Returns whether a list has questions rather than steps."""
    items = [line for line in text.split("\n") if _NUMBERED_ITEM.match(line) or _BULLET.match(line)]
    return 2 * sum(line.rstrip().endswith("?") for line in items) >= len(items)


def _infer_plan(record: ConversationRecord, files: Sequence[SessionFile]) -> SessionPlan | None:
    """Infers a plan: the assistant's last list of next steps, else the changes in their order."""
    for statement in reversed(record.statements_by("assistant")):
        plan_list = _find_list(statement.text[:_MAX_CHARACTERS])
        opening = plan_list.split("\n", 1)[0]
        if plan_list and "?" not in opening and _NEXT_STEPS.search(opening):
            return SessionPlan("inferred", "inferred (laid out by the assistant)", plan_list, open_boxes(plan_list))
    changes = [f"- [x] {_describe_file_work(file)} {file.path}" for file in files if file.is_changed]
    return SessionPlan("inferred", "inferred (from what was done)", "\n".join(changes)) if changes else None


def _describe_file_work(file: SessionFile) -> str:
    return "Delete" if file.deleted else "Create" if file.created else "Edit"
