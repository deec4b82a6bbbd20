"""Finds the latest plan of a conversation, complete and word for word.

The sources, in order: a plan file, a to-do list, a plan that the user stated, and one inferred from the conversation. A
plan file has the text after its last write, read or edit, a to-do list the items after the last call of its tool.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, Literal

import msgspec

from accordion.features.memory.conversation.steps import ConversationRecord, RecordedStep, Statement
from accordion.features.memory.session.session_files import (
    SessionFile,
    find_file_accesses,
    find_patch,
    is_shell,
    make_absolute,
    normalize_path,
    shell_command,
    split_here_documents,
    tool_kind,
)
from accordion.sessions.user_text import remove_client_blocks

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
_STEP: Final = re.compile(
    r"""[ \t]{0,3}(?:(?:step[ \t]+)?\d{1,2}[.):][ \t]+\S"""
    r"""|(?:[-*•][ \t]{1,3}(?:\[[ xX>]\][ \t])?|\[[ xX>]\][ \t]+)["'`*(\w])""",
    re.IGNORECASE,
)
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
_PATCH_PART: Final = re.compile(r"^\*\*\* (?=(?:Add|Update|Delete) File: )", re.MULTILINE)
_PATCH_END: Final = "*** End Patch"
_LIST_TOOLS: Final = frozenset(
    (
        *("todowrite", "writetodos", "updateplan", "updatetodolist", "managetodolist", "settodolist", "todolist"),
        "updatetodos",
    )
)
"""Tools that take the whole list: Claude Code, Cursor, OpenCode, LangChain, Gemini CLI, Codex, Roo, Copilot."""
_TASK_CREATE, _TASK_UPDATE = "taskcreate", "taskupdate"
_TASK_NUMBER: Final = re.compile(r"[Tt]ask #?([\w.-]+) created")
_LIST_FIELDS: Final = ("todos", "plan", "todoList", "todo_list", "items", "tasks")
_TEXT_FIELDS: Final = ("content", "step", "title", "subject", "text", "task", "description", "name")
_DONE_STATUSES: Final = frozenset({"completed", "complete", "done", "finished"})
_PROGRESS_STATUSES: Final = frozenset({"inprogress", "doing", "active", "started", "current"})
_DROPPED_STATUSES: Final = frozenset({"cancelled", "canceled", "skipped", "abandoned"})
_UNKNOWN_SUBJECT: Final = "(its subject is not recorded)"


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
    todos = _find_todos(record.steps)
    open_items = _open_todos(todos)
    for file in plans:
        if file.text is not None and file.text.strip():
            text = _complete_text(file)
            return SessionPlan("workflow", f"workflow ({file.path})", text, open_items or _open_boxes(text))
    if todos is not None:
        text = todos.render()
        return SessionPlan(
            "todo", f"todo ({todos.tool})", text, open_items or _open_boxes(todos.text), todos.explanation
        )
    if plan := _find_stated_plan(record.statements_by("user")):
        return SessionPlan("user-stated", "user-stated", plan, _open_boxes(plan))
    return _infer_plan(record, files)


def _open_boxes(text: str) -> tuple[str, ...]:
    """Returns the steps of a text with an open box."""
    return tuple(match[2].strip() for match in _OPEN_BOX.finditer(text))


def is_typed(text: str) -> bool:
    """Returns whether a person likely typed a message: it is no handed-over plan, long document or output."""
    return len(text) <= _TYPED_CHARACTERS and _IMPLEMENT.match(text) is None


def shorten_handed_plan(text: str) -> str:
    """Shortens a message that hands a plan over to its opening and the plan's title."""
    opening = _IMPLEMENT.match(text)
    return f"{opening[0]}{text[opening.end() :].split(chr(10), 1)[0]}" if opening is not None else text


def _find_stated_plan(statements: Sequence[Statement]) -> str:
    """Returns the newest message in which the user stated a plan, whole; empty if there is none.

    A message that calls itself a plan is preferred to one that only has steps.
    """
    with_steps = ""
    for statement in reversed(statements):
        text = statement.text[:_MAX_CHARACTERS]
        if (opening := _IMPLEMENT.match(text)) is not None:
            return statement.text[opening.end() :]
        steps = _find_steps(text)
        is_announced = _ANNOUNCES_PLAN.search(text) is not None
        if is_announced and (steps or _FIRST_AND_THEN.search(text[:_TYPED_CHARACTERS])):
            return text
        if steps and not with_steps and is_typed(text) and 2 * sum(map(_is_question, steps)) < len(steps):
            with_steps = text
    return with_steps


def _complete_text(file: PlanFile) -> str:
    text = file.text or ""
    return "\n\n".join([text, UNAPPLIED, *file.unapplied]) if file.unapplied else text


def _open_todos(todos: TodoList | None) -> tuple[str, ...]:
    if todos is None:
        return ()
    return tuple(
        f"{item.text} (in progress)" if item.mark == ">" else item.text for item in todos.items if item.mark in " >"
    )


def _find_steps(text: str) -> list[str]:
    """Returns the lines of a text that are steps of a list, outside of code; none if there are fewer than three."""
    steps, in_fence = list[str](), False
    for line in text.split("\n"):
        if _FENCE.match(line):
            in_fence = not in_fence
        elif not in_fence and _STEP.match(line):
            steps.append(line)
    return steps if len(steps) >= _MIN_STEPS else []


def _is_question(line: str) -> bool:
    return line.rstrip().endswith("?")


def _infer_plan(record: ConversationRecord, files: Sequence[SessionFile]) -> SessionPlan | None:
    """Infers a plan: the assistant's last message with next steps, else the changes in their order."""
    for statement in reversed(record.statements_by("assistant")):
        text = statement.text[:_MAX_CHARACTERS]
        if (steps := _find_steps(text)) and _lists_next_steps(text[: text.index(steps[0])]):
            return SessionPlan("inferred", "inferred (laid out by the assistant)", text, _open_boxes(text))
    changes = [f"- [x] {_describe_file_work(file)} {file.path}" for file in files if file.is_changed]
    return SessionPlan("inferred", "inferred (from what was done)", "\n".join(changes)) if changes else None


def _lists_next_steps(introduction: str) -> bool:
    """Returns whether the last line before a list introduces next steps."""
    line = introduction.rstrip().rpartition("\n")[2]
    return not _is_question(line) and _NEXT_STEPS.search(line) is not None


def _describe_file_work(file: SessionFile) -> str:
    return "Delete" if file.deleted else "Create" if file.created else "Edit"


# -- plan files -------------------------------------------------------------------------------------------------------


def _apply_patch(file: PlanFile, patch: str, path: str) -> bool:
    """Applies a patch to a plan file; returns False if it deletes the file. A changed part stays unapplied."""
    for part in _PATCH_PART.split(patch.split(_PATCH_END, maxsplit=1)[0])[1:]:
        heading, _, body = part.partition("\n")
        act, _, name = heading.partition(" File: ")
        if name.strip() != path:
            continue
        if act == "Delete":
            return False
        if act == "Add":
            _set_text(file, "".join(f"{line[1:]}\n" for line in body.split("\n") if line.startswith("+")))
        else:
            _add_unapplied(file, f"*** {part}".rstrip("\n"))
    return True


_PLAN_NAME: Final = re.compile(
    r"(?:^|[\\/])(?:[\w.-]*[_.-])?plan(?:[_.-][\w .-]*)?\.(?:md|markdown|txt)$"
    r"|(?:^|[\\/])plans[\\/][^\\/]+\.(?:md|markdown)$|[\\/]specs?[\\/](?:.*[\\/])?tasks\.md$|(?:^|[\\/])todo_list\.md$",
    re.IGNORECASE,
)
IN_PLAN_MODE: Final = "approved in plan mode"
"""The path of an approved plan for which a client names no file."""
_SAVED_PATH: Final = re.compile(r"Your plan has been saved to: (\S[^\n]*)")
_NUMBERED_LINE: Final = re.compile(r" {0,8}(\d{1,6})(?:→|\t|\| ?|: )")
_TRUNCATED: Final = re.compile(
    r"truncated|Showing lines|more lines|File has more|lines? omitted|\[\d+ lines", re.IGNORECASE
)
_REDIRECTION: Final = re.compile(
    r"(?:^|[;&|])\s*cat\s*(?:(>>?)\s*(?P<to>[^\s<>;|&]+)\s*<<|<<\s*['\"]?\w+['\"]?\s*(>>?)\s*(?P<after>[^\s<>;|&]+))"
)
_EXPANSION: Final = re.compile(r"[$`\\]")

OLD_TEXT_FIELDS: Final = ("old_string", "old_str", "oldText", "oldString", "old_text", "search")
NEW_TEXT_FIELDS: Final = ("new_string", "new_str", "newText", "newString", "new_text", "replace")
_CONTENT_FIELDS: Final = ("content", "contents", "file_text", "text", "file_content", "CodeContent")


@dataclass(slots=True)
class PlanFile:
    """A plan file.

    `text` is None while its complete text is unknown; `unapplied` are later edits that could not be applied exactly.
    `written`: the conversation wrote the file and did not only read it.
    """

    path: str
    text: str | None = None
    unapplied: list[str] = field(default_factory=list)
    written: bool = False
    at: int = 0


def _is_plan_file(path: str) -> bool:
    """Returns whether a file is a plan by its name: IMPL_PLAN.md, PLAN.md, x-plan.md, plans/x.md, specs/…/tasks.md."""
    return _PLAN_NAME.search(path) is not None


def find_plan_files(record: ConversationRecord, root: str) -> list[PlanFile]:
    """Returns the plan files of a conversation: the last written first, then those that were only read."""
    files: dict[str, PlanFile] = {}
    for step in record.steps:
        for path in dict.fromkeys(_find_plan_paths(step)):
            absolute = path if path == IN_PLAN_MODE else make_absolute(path, root)
            file = files.setdefault(normalize_path(absolute), PlanFile(absolute))
            file.at = step.at
            if not _apply_step(file, step, path):
                del files[normalize_path(absolute)]
    return sorted(files.values(), key=lambda file: (file.text is None, not file.written, -file.at))


def _find_plan_paths(step: RecordedStep) -> Iterator[str]:
    """Returns the plan files that a step accesses; none if it failed."""
    if not step.is_done:
        return
    if tool_kind(step) == "exitplanmode" and step.text("plan"):
        match = _SAVED_PATH.search(step.result or "")
        yield match[1].strip() if match is not None else IN_PLAN_MODE
    yield from (access.path for access in find_file_accesses(step) if _is_plan_file(access.path))


def _apply_step(file: PlanFile, step: RecordedStep, path: str) -> bool:
    """Applies a step to a file; returns False if the step deleted it."""
    if tool_kind(step) == "exitplanmode":
        return _set_text(file, step.text("plan"))
    if patch := find_patch(step):
        return _apply_patch(file, patch, path)
    if is_shell(step):
        return _apply_command(file, step, path)
    acts = {access.act for access in find_file_accesses(step)}
    if acts == {"read"}:
        text = _text_from_reader(step)
        if text is not None:
            file.text, file.unapplied = text, []
        return True
    if acts == {"deleted"}:
        return False
    changes = list(_changes(step))
    if not changes:
        content = next((value for name in _CONTENT_FIELDS if isinstance(value := step.fields.get(name), str)), None)
        return _set_text(file, content) if content is not None else _add_unapplied(file, step.raw)
    return _apply_edit(file, step, changes)


def _set_text(file: PlanFile, text: str) -> bool:
    file.text, file.unapplied, file.written = text, [], True
    return True


def _add_unapplied(file: PlanFile, edit: str) -> bool:
    file.unapplied.append(edit)
    file.written = True
    return True


def _changes(step: RecordedStep) -> Iterator[tuple[str, str, bool]]:
    """Returns the replacements of an edit: the old text, the new text, and whether to replace all."""
    edits = step.fields.get("edits")
    replacements: Iterable[Any] = edits if isinstance(edits, list) and edits else [step.fields]
    for fields in replacements:
        if not isinstance(fields, dict):
            continue
        old = next((fields[name] for name in OLD_TEXT_FIELDS if isinstance(fields.get(name), str)), None)
        new = next((fields[name] for name in NEW_TEXT_FIELDS if isinstance(fields.get(name), str)), None)
        if old is not None:
            yield old, new or "", bool(fields.get("replace_all") or fields.get("replaceAll"))


def _apply_edit(file: PlanFile, step: RecordedStep, changes: list[tuple[str, str, bool]]) -> bool:
    text = file.text
    for old, new, is_everywhere in changes:
        if text is None or file.unapplied or "user modified" in (step.result or ""):
            return _add_unapplied(file, step.raw)
        if not old and not text:
            text = new
        elif old and (text.count(old) == 1 or (is_everywhere and old in text)):
            text = text.replace(old, new)
        else:
            return _add_unapplied(file, step.raw)
    file.text, file.written = text, True
    return True


def _apply_command(file: PlanFile, step: RecordedStep, path: str) -> bool:
    """Applies a shell command: a here document, or `cat` of the whole file. Other commands stay unapplied."""
    command = shell_command(step)
    acts = {access.act for access in find_file_accesses(step) if access.path == path}
    if acts == {"read"}:
        if (
            command.strip() in (f"cat {path}", f'cat "{path}"', f"cat '{path}'")
            and (text := _text_from_reader(step)) is not None
        ):
            file.text, file.unapplied = text, []
        return True
    if "deleted" in acts:
        return False
    for document in split_here_documents(command)[1]:
        match = _REDIRECTION.search(document.line)
        if match is None or (match["to"] or match["after"]).strip("\"'") != path or not document.whole:
            continue
        if not document.exact and ("<<-" in document.line or _EXPANSION.search(document.text)):
            return _add_unapplied(file, command)
        if ">>" not in (match[1], match[3]):
            return _set_text(file, document.text)
        if file.text is not None and not file.unapplied:
            return _set_text(file, file.text + document.text)
    return _add_unapplied(file, command)


def _text_from_reader(step: RecordedStep) -> str | None:
    """Returns a file's text from a read's result, without line numbers; None if it is incomplete."""
    if any(step.fields.get(name) for name in ("offset", "limit", "start_line", "end_line", "view_range", "lines")):
        return None
    text = remove_client_blocks(step.output).rstrip("\n")
    text = text.removeprefix("<file>\n").removesuffix("</file>").rstrip("\n")
    if text.endswith(" lines)") and (end := text.rfind("\n(End of file - total ")) >= 0:
        text = text[:end].rstrip("\n")
    lines = text.split("\n")
    unnumbered = []
    for number, line in enumerate(lines, 1):
        match = _NUMBERED_LINE.match(line)
        if match is None or int(match[1]) != number:
            break
        unnumbered.append(line[match.end() :])
    if len(unnumbered) == len(lines):
        return "\n".join(unnumbered)
    return None if _NUMBERED_LINE.match(lines[0]) or _TRUNCATED.search(text[-400:]) or not text.strip() else text


# -- to-do lists ------------------------------------------------------------------------------------------------------


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
        _TASK_CREATE,
        _TASK_UPDATE,
        "tasklist",
        "taskget",
        "todoread",
        "readtodos",
    )


def _find_todos(steps: Iterable[RecordedStep]) -> TodoList | None:
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
        elif kind in (_TASK_CREATE, _TASK_UPDATE):
            _apply_task_call(step, kind, tasks)
            current = TodoList(step.name, tuple(task for task in tasks.values() if task is not None))
    if current is None or not (current.text or any(_UNKNOWN_SUBJECT not in item.text for item in current.items)):
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
    if kind == _TASK_CREATE:
        match = _TASK_NUMBER.search(step.result or "")
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
    tasks[number] = task = tasks.get(number) or TodoItem(f"Task #{number} {_UNKNOWN_SUBJECT}")
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
