"""Plan files as they stand at the end of a conversation: written or read in it, and edited since."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import Any, Final

from accordion.core.values import dataclass
from accordion.memory.patches import patched
from accordion.memory.places import absolute, same
from accordion.memory.steps import Record, Step, unadded
from accordion.memory.touched import command_of, is_shell, kind_of, patch_of, plain_and_here, touches

_NAMED: Final = re.compile(
    r"(?:^|[\\/])(?:[\w.-]*[_.-])?plan(?:[_.-][\w .-]*)?\.(?:md|markdown|txt)$"
    r"|(?:^|[\\/])plans[\\/][^\\/]+\.(?:md|markdown)$|[\\/]specs?[\\/](?:.*[\\/])?tasks\.md$|(?:^|[\\/])todo_list\.md$",
    re.IGNORECASE,
)
IN_PLAN_MODE: Final = "approved in plan mode"
"""What stands in place of a path where a client names no file for an approved plan."""
_SAVED: Final = re.compile(r"Your plan has been saved to: (\S[^\n]*)")
_NUMBERED: Final = re.compile(r" {0,8}(\d{1,6})(?:→|\t|\| ?|: )")
_CUT: Final = re.compile(r"truncated|Showing lines|more lines|File has more|lines? omitted|\[\d+ lines", re.IGNORECASE)
_INTO: Final = re.compile(
    r"(?:^|[;&|])\s*cat\s*(?:(>>?)\s*(?P<to>[^\s<>;|&]+)\s*<<|<<\s*['\"]?\w+['\"]?\s*(>>?)\s*(?P<after>[^\s<>;|&]+))"
)
_EXPANDED: Final = re.compile(r"[$`\\]")

_OLD: Final = ("old_string", "old_str", "oldText", "oldString", "old_text", "search")
_NEW: Final = ("new_string", "new_str", "newText", "newString", "new_text", "replace")
_WHOLE: Final = ("content", "contents", "file_text", "text", "file_content", "CodeContent")


@dataclass(frozen=False, slots=True)
class PlanFile:
    """A plan file. `text` is None while no whole text of it is known; `left` are the edits behind it that could not be
    applied exactly, as they were made. `written`: not only read here."""

    path: str
    text: str | None = None
    left: list[str] = field(default_factory=list)
    written: bool = False
    at: int = 0


def is_plan(path: str) -> bool:
    """Whether a file is a plan, by its name: IMPL_PLAN.md, PLAN.md, x-plan.md, plans/x.md, specs/…/tasks.md."""
    return _NAMED.search(path) is not None


def plan_files(record: Record, root: str) -> list[PlanFile]:
    """The plan files of a conversation, that which was written last first, then those that were read."""
    found: dict[str, PlanFile] = {}
    for step in record.steps:
        for path in dict.fromkeys(_named(step)):
            whole = path if path == IN_PLAN_MODE else absolute(path, root)
            file = found.setdefault(same(whole), PlanFile(whole))
            file.at = step.at
            if not _follow(file, step, path):
                del found[same(whole)]
    return sorted(found.values(), key=lambda file: (file.text is None, not file.written, -file.at))


def _named(step: Step) -> Iterator[str]:
    """The plan files that a step has to do with; none where it failed."""
    if not step.done:
        return
    if kind_of(step) == "exitplanmode" and step.text("plan"):
        saved = _SAVED.search(step.result or "")
        yield saved[1].strip() if saved is not None else IN_PLAN_MODE
    yield from (touch.path for touch in touches(step) if is_plan(touch.path))


def _follow(file: PlanFile, step: Step, path: str) -> bool:
    """Takes what a step did to a file; False where it is gone then."""
    if kind_of(step) == "exitplanmode":
        return _taken(file, step.text("plan"))
    if patch := patch_of(step):
        after = patched(patch, path, None if file.left else file.text)
        if after.gone:
            return False
        return _taken(file, after.text) if after.text is not None else _kept(file, after.piece)
    if is_shell(step):
        return _commanded(file, step, path)
    acts = {touch.act for touch in touches(step)}
    if acts == {"read"}:
        text = shown(step)
        if text is not None:
            file.text, file.left = text, []
        return True
    if acts == {"deleted"}:
        return False
    changes = list(_changes(step))
    if not changes:
        whole = next((value for name in _WHOLE if isinstance(value := step.fields.get(name), str)), None)
        return _taken(file, whole) if whole is not None else _kept(file, step.raw)
    return _edited(file, step, changes)


def _taken(file: PlanFile, text: str) -> bool:
    file.text, file.left, file.written = text, [], True
    return True


def _kept(file: PlanFile, edit: str) -> bool:
    file.left.append(edit)
    file.written = True
    return True


def _changes(step: Step) -> Iterator[tuple[str, str, bool]]:
    """The replacements of an edit: what stood there, what stands there now, whether everywhere."""
    many = step.fields.get("edits")
    each: Iterable[Any] = many if isinstance(many, list) and many else [step.fields]
    for fields in each:
        if not isinstance(fields, dict):
            continue
        old = next((fields[name] for name in _OLD if isinstance(fields.get(name), str)), None)
        new = next((fields[name] for name in _NEW if isinstance(fields.get(name), str)), None)
        if old is not None:
            yield old, new or "", bool(fields.get("replace_all") or fields.get("replaceAll"))


def _edited(file: PlanFile, step: Step, changes: list[tuple[str, str, bool]]) -> bool:
    text = file.text
    for old, new, everywhere in changes:
        if text is None or file.left or "user modified" in (step.result or ""):
            return _kept(file, step.raw)
        if not old and not text:
            text = new
        elif old and (text.count(old) == 1 or (everywhere and old in text)):
            text = text.replace(old, new)
        else:
            return _kept(file, step.raw)
    file.text, file.written = text, True
    return True


def _commanded(file: PlanFile, step: Step, path: str) -> bool:
    """A shell's here document, or `cat` of the whole file; of anything else it is not known what it did."""
    command = command_of(step)
    acts = {touch.act for touch in touches(step) if touch.path == path}
    if acts == {"read"}:
        if command.strip() in (f"cat {path}", f'cat "{path}"', f"cat '{path}'") and (text := shown(step)) is not None:
            file.text, file.left = text, []
        return True
    if "deleted" in acts:
        return False
    for here in plain_and_here(command)[1]:
        found = _INTO.search(here.line)
        if found is None or (found["to"] or found["after"]).strip("\"'") != path or not here.whole:
            continue
        if not here.exact and ("<<-" in here.line or _EXPANDED.search(here.text)):
            return _kept(file, command)
        if ">>" not in (found[1], found[3]):
            return _taken(file, here.text)
        if file.text is not None and not file.left:
            return _taken(file, file.text + here.text)
    return _kept(file, command)


def shown(step: Step) -> str | None:
    """The text of a file as a reader showed it, without line numbers; None where that is not all of it."""
    if any(step.fields.get(name) for name in ("offset", "limit", "start_line", "end_line", "view_range", "lines")):
        return None
    text = unadded(step.output).rstrip("\n")
    text = text.removeprefix("<file>\n").removesuffix("</file>").rstrip("\n")
    if text.endswith(" lines)") and (cut := text.rfind("\n(End of file - total ")) >= 0:
        text = text[:cut].rstrip("\n")
    lines = text.split("\n")
    out = []
    for number, line in enumerate(lines, 1):
        found = _NUMBERED.match(line)
        if found is None or int(found[1]) != number:
            break
        out.append(line[found.end() :])
    if len(out) == len(lines):
        return "\n".join(out)
    return None if _NUMBERED.match(lines[0]) or _CUT.search(text[-400:]) or not text.strip() else text
