"""The to-do list that an agent keeps by a tool, as it stands after the last call."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from itertools import count
from typing import Any, Final

import msgspec

from accordion.core.values import dataclass
from accordion.memory.steps import Step
from accordion.memory.touched import kind_of

_LISTS: Final = frozenset(
    (
        *("todowrite", "writetodos", "updateplan", "updatetodolist", "managetodolist", "settodolist", "todolist"),
        "updatetodos",
    )
)
"""Tools that are given the whole list: Claude Code, Cursor, OpenCode, LangChain, Gemini CLI, Codex, Roo, Copilot."""
_MADE, _CHANGED = "taskcreate", "taskupdate"
_NUMBER: Final = re.compile(r"[Tt]ask #?([\w.-]+) created")
_ITEMS: Final = ("todos", "plan", "todoList", "todo_list", "items", "tasks")
_TEXTS: Final = ("content", "step", "title", "subject", "text", "task", "description", "name")
_DONE: Final = frozenset({"completed", "complete", "done", "finished"})
_DOING: Final = frozenset({"inprogress", "doing", "active", "started", "current"})
_DROPPED: Final = frozenset({"cancelled", "canceled", "skipped", "abandoned"})
_UNKNOWN: Final = "(its subject is not recorded)"


@dataclass(frozen=False, slots=True)
class Todo:
    """One item. `text` as the agent wrote it, `mark` one of `x`, `>`, space and `-` (given up)."""

    text: str
    mark: str = " "
    about: str = ""
    waits: list[str] = field(default_factory=list)

    def line(self) -> str:
        """The item as a line of a list, with what else is known of it below."""
        more = [self.about] if self.about else []
        more += [f"blocked by: {', '.join(self.waits)}"] if self.waits else []
        return "\n".join([f"- [{self.mark}] {self.text}", *(f"  {row}" for each in more for row in each.split("\n"))])


@dataclass(frozen=True, slots=True)
class Todos:
    """A to-do list. `tool` is what it was written with; `text` stands for the items where it was given as a text."""

    tool: str
    items: tuple[Todo, ...]
    text: str = ""
    why: str = ""
    """What was said with the list (Codex's `explanation`)."""

    def render(self) -> str:
        """The whole list."""
        return self.text or "\n".join(item.line() for item in self.items)


def is_todo(step: Step) -> bool:
    """Whether a step only keeps a list."""
    return kind_of(step) in _LISTS or kind_of(step) in (_MADE, _CHANGED, "tasklist", "taskget", "todoread", "readtodos")


def todos_of(steps: Iterable[Step]) -> Todos | None:
    """The list as it stands after the last call that did not fail; None where there is none, it was emptied, or
    no item's text is recorded."""
    now: Todos | None = None
    by_id: dict[str, Todo] = {}
    tasks: dict[str, Todo | None] = {}
    for step in steps:
        kind = kind_of(step)
        if step.failed:
            continue
        if kind in _LISTS:
            now = _listed(step, by_id) or now
        elif kind in (_MADE, _CHANGED):
            _task(step, kind, tasks)
            now = Todos(step.name, tuple(task for task in tasks.values() if task is not None))
    if now is None or not (now.text or any(_UNKNOWN not in item.text for item in now.items)):
        return None
    return now


def _listed(step: Step, by_id: dict[str, Todo]) -> Todos | None:
    """The list that a call gives; None where it gives none."""
    given: Any = next((step.fields[name] for name in _ITEMS if name in step.fields), None)
    why = step.text("explanation")
    if isinstance(given, str):
        try:
            given = msgspec.json.decode(given)
        except (ValueError, RecursionError):
            return Todos(step.name, (), str(given), why) if given.strip() else Todos(step.name, ())
    if not isinstance(given, list):
        return None
    if step.fields.get("merge") is not True:
        by_id.clear()
    for place, each in enumerate(given):
        fields: Mapping[str, Any] = each if isinstance(each, dict) else {"content": each}
        name = str(fields.get("id", f"#{place}"))
        old = by_id.get(name)
        text = next((value for key in _TEXTS if isinstance(value := fields.get(key), str) and value), "")
        status = fields.get("status")
        mark = mark_of(status) if isinstance(status, str) else old.mark if old is not None else " "
        if text or old is not None:
            # Two items with one id are two items still.
            name = f"{name}/{place}" if old is not None and step.fields.get("merge") is not True else name
            by_id[name] = Todo(text or (old.text if old is not None else ""), mark)
    return Todos(step.name, tuple(by_id.values()), "", why)


def _task(step: Step, kind: str, tasks: dict[str, Todo | None]) -> None:
    """Takes a call of Claude Code's task tools, which make and change one item each. What is deleted (None) keeps its
    number: the client gives none twice."""
    fields = step.fields
    if kind == _MADE:
        found = _NUMBER.search(step.result or "")
        free = (str(each) for each in count(len(tasks) + 1) if str(each) not in tasks)
        number = found[1] if found is not None else next(free)
        tasks[number] = Todo(step.text("subject", "title"), " ", step.text("description"))
        return
    number = str(fields.get("taskId", fields.get("task_id", "")))
    if not number:
        return
    status = step.text("status")
    if status == "deleted":
        tasks[number] = None
        return
    tasks[number] = task = tasks.get(number) or Todo(f"Task #{number} {_UNKNOWN}")
    task.mark = mark_of(status) if status else task.mark
    task.text, task.about = step.text("subject") or task.text, step.text("description") or task.about
    task.waits += _numbers(fields.get("addBlockedBy"))
    for other in _numbers(fields.get("addBlocks")):
        if (blocked := tasks.get(other.removeprefix("#"))) is not None:
            blocked.waits.append(f"#{number}")


def _numbers(given: Any) -> Sequence[str]:
    return [f"#{each}" for each in given if isinstance(each, str | int)] if isinstance(given, list) else []


def mark_of(status: str) -> str:
    """The sign for a status."""
    bare = "".join(filter(str.isalpha, status)).lower()
    return "x" if bare in _DONE else ">" if bare in _DOING else "-" if bare in _DROPPED else " "
