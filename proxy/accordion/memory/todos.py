"""Reconstructs the to-do list that an agent maintains with a tool, after the last call."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import msgspec

from accordion.memory.file_changes import tool_kind
from accordion.memory.steps import RecordedStep

_LIST_TOOLS: Final = frozenset(
    (
        *("todowrite", "writetodos", "updateplan", "updatetodolist", "managetodolist", "settodolist", "todolist"),
        "updatetodos",
    )
)
"""Tools that take the whole list: Claude Code, Cursor, OpenCode, LangChain, Gemini CLI, Codex, Roo, Copilot."""
_CREATE, _UPDATE = "taskcreate", "taskupdate"
_NUMBER: Final = re.compile(r"[Tt]ask #?([\w.-]+) created")
_LIST_FIELDS: Final = ("todos", "plan", "todoList", "todo_list", "items", "tasks")
_TEXT_FIELDS: Final = ("content", "step", "title", "subject", "text", "task", "description", "name")
_DONE_STATUSES: Final = frozenset({"completed", "complete", "done", "finished"})
_PROGRESS_STATUSES: Final = frozenset({"inprogress", "doing", "active", "started", "current"})
_DROPPED_STATUSES: Final = frozenset({"cancelled", "canceled", "skipped", "abandoned"})
_UNKNOWN: Final = "(its subject is not recorded)"


@dataclass(slots=True)
class TodoItem:
    """One item. `text` is as the agent wrote it; `mark` is one of `x`, `>`, space and `-` (dropped)."""

    text: str
    mark: str = " "
    description: str = ""
    blockers: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Renders the item as a line of a list, with its details below."""
        more = [self.description] if self.description else []
        more += [f"blocked by: {', '.join(self.blockers)}"] if self.blockers else []
        return "\n".join([f"- [{self.mark}] {self.text}", *(f"  {row}" for each in more for row in each.split("\n"))])


class TodoList(msgspec.Struct, frozen=True):
    """A to-do list. `tool` is the tool's name; `text` replaces the items if the tool took the list as text."""

    tool: str
    items: tuple[TodoItem, ...]
    text: str = ""
    explanation: str = ""
    """The explanation that came with the list (Codex's `explanation`)."""

    def render(self) -> str:
        """Renders the whole list."""
        return self.text or "\n".join(item.line() for item in self.items)


def is_todo(step: RecordedStep) -> bool:
    """Returns whether a step only maintains a to-do list."""
    return tool_kind(step) in _LIST_TOOLS or tool_kind(step) in (
        _CREATE,
        _UPDATE,
        "tasklist",
        "taskget",
        "todoread",
        "readtodos",
    )


def find_todos(steps: Iterable[RecordedStep]) -> TodoList | None:
    """Returns the list after the last successful call.

    The result is None if there is no list, it was emptied, or no item's text is recorded.
    """
    current: TodoList | None = None
    by_id: dict[str, TodoItem] = {}
    tasks: dict[str, TodoItem | None] = {}
    for step in steps:
        kind = tool_kind(step)
        if step.is_failed:
            continue
        if kind in _LIST_TOOLS:
            current = _read_list(step, by_id) or current
        elif kind in (_CREATE, _UPDATE):
            _apply_task_call(step, kind, tasks)
            current = TodoList(step.name, tuple(task for task in tasks.values() if task is not None))
    if current is None or not (current.text or any(_UNKNOWN not in item.text for item in current.items)):
        return None
    return current


def _read_list(step: RecordedStep, by_id: dict[str, TodoItem]) -> TodoList | None:
    """Reads the list of a call; returns None if the call has none."""
    items: Any = next((step.fields[item_id] for item_id in _LIST_FIELDS if item_id in step.fields), None)
    explanation = step.text("explanation")
    if isinstance(items, str):
        try:
            items = msgspec.json.decode(items)
        except (ValueError, RecursionError):
            return TodoList(step.name, (), str(items), explanation) if items.strip() else TodoList(step.name, ())
    if not isinstance(items, list):
        return None
    if step.fields.get("merge") is not True:
        by_id.clear()
    for position, item in enumerate(items):
        fields: Mapping[str, Any] = item if isinstance(item, dict) else {"content": item}
        item_id = str(fields.get("id", f"#{position}"))
        known_item = by_id.get(item_id)
        text = next((value for key in _TEXT_FIELDS if isinstance(value := fields.get(key), str) and value), "")
        status = fields.get("status")
        item_mark = (
            status_mark(status) if isinstance(status, str) else known_item.mark if known_item is not None else " "
        )
        if text or known_item is not None:
            # Two items with the same id are still two items.
            item_id = (
                f"{item_id}/{position}" if known_item is not None and step.fields.get("merge") is not True else item_id
            )
            by_id[item_id] = TodoItem(text or (known_item.text if known_item is not None else ""), item_mark)
    return TodoList(step.name, tuple(by_id.values()), "", explanation)


def _apply_task_call(step: RecordedStep, kind: str, tasks: dict[str, TodoItem | None]) -> None:
    """Applies a call of Claude Code's task tools, which create or update one item each.

    A deleted item (None) keeps its number, because the client uses no number twice.
    """
    fields = step.fields
    if kind == _CREATE:
        match = _NUMBER.search(step.result or "")
        unused_numbers = (str(each) for each in count(len(tasks) + 1) if str(each) not in tasks)
        number = match[1] if match is not None else next(unused_numbers)
        tasks[number] = TodoItem(step.text("subject", "title"), " ", step.text("description"))
        return
    number = str(fields.get("taskId", fields.get("task_id", "")))
    if not number:
        return
    status = step.text("status")
    if status == "deleted":
        tasks[number] = None
        return
    tasks[number] = task = tasks.get(number) or TodoItem(f"Task #{number} {_UNKNOWN}")
    task.mark = status_mark(status) if status else task.mark
    task.text, task.description = step.text("subject") or task.text, step.text("description") or task.description
    task.blockers += _read_numbers(fields.get("addBlockedBy"))
    for other_number in _read_numbers(fields.get("addBlocks")):
        if (blocked_task := tasks.get(other_number.removeprefix("#"))) is not None:
            blocked_task.blockers.append(f"#{number}")


def _read_numbers(numbers: Any) -> Sequence[str]:
    return [f"#{each}" for each in numbers if isinstance(each, str | int)] if isinstance(numbers, list) else []


def status_mark(status: str) -> str:
    """Returns the mark of a status."""
    normalized = "".join(filter(str.isalpha, status)).lower()
    return (
        "x"
        if normalized in _DONE_STATUSES
        else ">"
        if normalized in _PROGRESS_STATUSES
        else "-"
        if normalized in _DROPPED_STATUSES
        else " "
    )
