"""Reconstructs the plan files of a conversation: their text after its last write, read or edit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from accordion.memory.file_changes import (
    find_file_accesses,
    find_patch,
    is_shell,
    shell_command,
    split_here_documents,
    tool_kind,
)
from accordion.memory.file_paths import make_absolute, normalize_path
from accordion.memory.steps import ConversationRecord, RecordedStep, remove_client_blocks

_FILE: Final = re.compile(r"^\*\*\* (Add|Update|Delete) File: (\S[^\n\r]*)", re.MULTILINE)
_END: Final = "*** End Patch"


class PatchResult(msgspec.Struct, frozen=True):
    """The result of a patch for one file.

    `text` is None if the patch cannot be applied exactly; `piece` is the file's part of the patch.
    """

    text: str | None
    piece: str
    is_deleted: bool = False


def apply_patch(patch: str, path: str, text: str | None) -> PatchResult:
    """Applies a patch to one file. `text` is the file's previous text, None if it is unknown."""
    headers, pieces, is_deleted = list(_FILE.finditer(patch)), list[str](), False
    for index, header in enumerate(headers):
        if header[2].strip() != path:
            continue
        end = headers[index + 1].start() if index + 1 < len(headers) else len(patch)
        piece = patch[header.start() : end].split(_END, maxsplit=1)[0].rstrip("\n")
        pieces.append(piece)
        body, is_deleted = piece.split("\n")[1:], header[1] == "Delete"
        if is_deleted:
            text = None
        elif header[1] == "Add":
            text = "".join(f"{line[1:]}\n" for line in body if line.startswith("+"))
        elif text is not None:
            text = _apply_hunks(text, body)
    return PatchResult(text, "\n".join(pieces), is_deleted) if pieces else PatchResult(None, patch)


def _apply_hunks(text: str, body: list[str]) -> str | None:
    """Applies all hunks; returns None if one does not match at exactly one place after the previous one."""
    lines, result, end = text.split("\n"), list[str](), 0
    for hint, hunk in _split_hunks(body):
        old = [line[1:] for line in hunk if line[:1] in (" ", "-", "")]
        new = [line[1:] for line in hunk if line[:1] in (" ", "+", "")]
        start = end
        if hint:
            start = next((n for n in range(end, len(lines)) if lines[n].strip() == hint), -1)
            if start < 0:
                return None
        positions = (
            [n for n in range(start, len(lines) - len(old) + 1) if lines[n : n + len(old)] == old] if old else []
        )
        if not old:
            # A hunk without old lines is appended, before the last line end.
            positions = [len(lines) - 1 if lines[-1:] == [""] else len(lines)]
        if not positions or (len(positions) > 1 and not hint):
            return None
        result += [*lines[end : positions[0]], *new]
        end = positions[0] + len(old)
    return "\n".join([*result, *lines[end:]])


def _split_hunks(body: list[str]) -> list[tuple[str, list[str]]]:
    """Splits a patch into hunks, each with the line after which it is searched for (empty for none)."""
    hunks: list[tuple[str, list[str]]] = []
    for line in body:
        if line.startswith("@@"):
            hunks.append((line[2:].strip(), []))
        elif line.startswith("*** "):
            continue
        else:
            if not hunks:
                hunks.append(("", []))
            hunks[-1][1].append(line)
    return [(hint, hunk) for hint, hunk in hunks if hunk]


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

_OLD_TEXT_FIELDS: Final = ("old_string", "old_str", "oldText", "oldString", "old_text", "search")
_NEW_TEXT_FIELDS: Final = ("new_string", "new_str", "newText", "newString", "new_text", "replace")
_CONTENT: Final = ("content", "contents", "file_text", "text", "file_content", "CodeContent")


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


def is_plan(path: str) -> bool:
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
    yield from (access.path for access in find_file_accesses(step) if is_plan(access.path))


def _apply_step(file: PlanFile, step: RecordedStep, path: str) -> bool:
    """Applies a step to a file; returns False if the step deleted it."""
    if tool_kind(step) == "exitplanmode":
        return _set_text(file, step.text("plan"))
    if patch := find_patch(step):
        result = apply_patch(patch, path, None if file.unapplied else file.text)
        if result.is_deleted:
            return False
        return _set_text(file, result.text) if result.text is not None else _add_unapplied(file, result.piece)
    if is_shell(step):
        return _apply_command(file, step, path)
    acts = {access.act for access in find_file_accesses(step)}
    if acts == {"read"}:
        text = text_from_reader(step)
        if text is not None:
            file.text, file.unapplied = text, []
        return True
    if acts == {"deleted"}:
        return False
    changes = list(_changes(step))
    if not changes:
        content = next((value for name in _CONTENT if isinstance(value := step.fields.get(name), str)), None)
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
        old = next((fields[name] for name in _OLD_TEXT_FIELDS if isinstance(fields.get(name), str)), None)
        new = next((fields[name] for name in _NEW_TEXT_FIELDS if isinstance(fields.get(name), str)), None)
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
            and (text := text_from_reader(step)) is not None
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


def text_from_reader(step: RecordedStep) -> str | None:
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
