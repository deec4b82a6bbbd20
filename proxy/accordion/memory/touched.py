"""Which files a step read, wrote or changed, told by the tools of known agents and by plain shell commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, Literal

from accordion.core.values import dataclass, replace
from accordion.memory.steps import Step

Act = Literal["read", "created", "edited", "deleted"]

PATHS: Final = (
    *("file_path", "path", "filePath", "filename", "file_name", "absolute_path", "target_file", "notebook_path"),
    *("relative_workspace_path", "TargetFile", "AbsolutePath", "file"),
)
"""Names of the argument that holds a path."""
_WRITES: Final = frozenset({"write", "writefile", "writetofile", "createfile", "savefile", "fswrite", "filewrite"})
_EDITS: Final = frozenset(
    (
        *("edit", "editfile", "multiedit", "strreplace", "replace", "replaceinfile", "searchreplace", "notebookedit"),
        *("applydiff", "insertcontent", "searchandreplace", "fileedit", "replacestringinfile", "inserteditintofile"),
    )
)
_READS: Final = frozenset(
    (
        *("read", "readfile", "viewcode", "view", "viewfile", "openfile", "fsread", "fileread", "notebookread"),
        *("readtextfile", "readmultiplefiles", "readmanyfiles"),
    )
)
_EDITORS: Final = frozenset({"strreplaceeditor", "strreplacebasededittool", "texteditor"})
_DELETES: Final = frozenset({"deletefile", "removefile"})
_SHELLS: Final = frozenset(
    (
        *("bash", "shell", "execcommand", "localshell", "localshellcall", "runcommand", "runterminalcmd", "terminal"),
        *("runshellcommand", "executecommand", "execute", "containerexec", "runinterminal", "powershell", "sh"),
    )
)
_COMMANDED: Final = ("command", "cmd", "commands", "script", "code")
_OPERATIONS: Final = {"create_file": "Add", "update_file": "Update", "delete_file": "Delete"}
"""Of the patch tool that OpenAI hosts."""
_COMMANDS: Final[dict[str, Act]] = {
    "view": "read",
    "create": "created",
    "str_replace": "edited",
    "insert": "edited",
    "undo_edit": "edited",
}
_PATCHED: Final = re.compile(r"^\*\*\* (Add|Update|Delete) File: (\S[^\n\r]*)", re.MULTILINE)
_PATCH_ACTS: Final[dict[str, Act]] = {"Add": "created", "Update": "edited", "Delete": "deleted"}

_WORD = r"""("[^"\n$*?`]+"|'[^'\n]+'|[\w@%+:.,/\\~-]+)"""
_AT = r"(?:^|[;&|(\n])\s*(?:sudo\s+)?"
_INTO: Final = re.compile(r"(?<![0-9&<>=-])>>?\s*" + _WORD)
_TEE: Final = re.compile(r"\btee\s+(?:-a\s+)?" + _WORD)
_SED: Final = re.compile(_AT + r"(?:sed|perl)\s+[^\n;|&]*?-[a-zA-Z]*i[^\n;|&]*?\s" + _WORD + r"\s*(?=$|[;&|\n])")
_SHOWN: Final = re.compile(
    _AT + r"(?:cat|head|tail|less|nl|bat|sed\s+-n|wc)(?:\s+(?:-\w+(?:\s+\d+)?|'[^'\n]*p'|\"[^\"\n]*p\"|\d+,\d+p))*\s+"
    + _WORD
)  # fmt: skip
_GONE: Final = re.compile(_AT + r"(?:git\s+)?rm\s+(?:-\w+\s+)*" + _WORD)
_HEREDOC: Final = re.compile(r"(?<!<)<<(-?)[ \t]*(['\"]?)(\w+)\2(?!<)")
_CD: Final = re.compile(r"(?:^|[;&|(\n])\s*(?:cd|pushd)(?:\s+(\"[^\"\n]*\"|'[^'\n]*'|[^\s;&|)]*)|$)")
_PLAIN: Final = re.compile(r"(?![~-])[\w@%+:.,/\\ -]+")
_DRIVE: Final = re.compile(r"[A-Za-z]:[\\/]")
_SOMEWHERE: Final = "?"
_COMMAND_MOST: Final = 8_000
_LONGEST: Final = 1_000
"""Characters of a path; what is longer is none."""


@dataclass(frozen=True, slots=True)
class Touch:
    """What a step did to a file. `path` is as the agent wrote it."""

    path: str
    act: Act


@dataclass(frozen=True, slots=True)
class Here:
    """A document within a command. `line` is the command's line that begins it; `exact`: the shell changes nothing in
    it; `whole`: its end is there."""

    line: str
    text: str = ""
    exact: bool = False
    whole: bool = False


def kind_of(step: Step) -> str:
    """A tool's name without case and signs."""
    return "".join(filter(str.isalnum, step.name)).lower()


def is_shell(step: Step) -> bool:
    """Whether the step runs a command."""
    return kind_of(step) in _SHELLS and bool(command_of(step))


def command_of(step: Step) -> str:
    """The command that a step runs: Codex gives it as a list of words."""
    given: Any = next((step.fields[name] for name in _COMMANDED if name in step.fields), "")
    if isinstance(given, list) and all(isinstance(word, str) for word in given):
        if "commands" in step.fields:
            return "\n".join(given)
        return given[-1] if given[:1] in (["bash"], ["sh"], ["zsh"]) and len(given) > 2 else " ".join(given)
    return given if isinstance(given, str) else ""


def patch_of(step: Step) -> str:
    """The patch of an `apply_patch`, called as a tool or in a shell; empty where it is none."""
    if (act := _OPERATIONS.get(step.text("type"))) is not None and kind_of(step) == "applypatch":
        return f"*** Begin Patch\n*** {act} File: {path_of(step)}\n{step.text('diff')}\n*** End Patch"
    for text in (step.text("input", "patch"), command_of(step), "" if step.fields else step.raw):
        at = text.find("*** Begin Patch")
        if at >= 0:
            return text[at:]
    return ""


def path_of(step: Step) -> str:
    """The file that a tool is given."""
    return step.text(*PATHS)


def touches(step: Step) -> Iterator[Touch]:
    """What a step did to which files; nothing where it failed, or where no result is recorded."""
    if step.done:
        yield from (touch for touch in _touches(step) if 0 < len(touch.path) <= _LONGEST and "\n" not in touch.path)


def _touches(step: Step) -> Iterator[Touch]:
    kind, path, patch = kind_of(step), path_of(step), patch_of(step)
    if patch:
        for act, name in _PATCHED.findall(patch):
            yield Touch(name.strip(), _PATCH_ACTS[act])
    elif kind in _SHELLS:
        yield from _by_command(command_of(step)[:_COMMAND_MOST])
    elif kind in _EDITORS and path:
        if (act := _COMMANDS.get(step.text("command"))) is not None:
            yield Touch(path, act)
    elif kind in _READS:
        yield from (Touch(name, "read") for name in ([path] if path else _listed(step)))
    elif path:
        named: Act | None = "edited" if kind in _EDITS else "deleted" if kind in _DELETES else None
        if kind in _WRITES or kind == "create":
            named = "edited" if "has been updated" in (step.result or "")[:300] else "created"
        if named is not None:
            yield Touch(path, named)


def _listed(step: Step) -> Iterator[str]:
    """Files of a tool that takes several (`files: [{file_path: …}]`, `paths: […]`)."""
    for name in ("files", "paths", "file_paths"):
        given = step.fields.get(name)
        for each in given if isinstance(given, list) else []:
            found = each if isinstance(each, str) else next((each[n] for n in PATHS if n in each), "") if isinstance(
                each, dict
            ) else ""  # fmt: skip
            if isinstance(found, str) and found:
                yield found


def _by_command(command: str) -> Iterator[Touch]:
    lines, _ = plain_and_here(command)
    bare = "\n".join(lines)
    at = _elsewhere(bare)
    rules: tuple[tuple[re.Pattern[str], Act], ...] = (
        (_INTO, "created"), (_TEE, "created"), (_SED, "edited"), (_GONE, "deleted"), (_SHOWN, "read")
    )  # fmt: skip
    for pattern, act in rules:
        for name in dict.fromkeys(pattern.findall(bare)):
            path = name.strip("\"'")
            if not _is_file(path):
                continue
            if at and not path.startswith(("/", "~")) and not _DRIVE.match(path):
                path = f"{at}/{path}" if at != _SOMEWHERE else ""
            if path:
                yield Touch(path, act)


def plain_and_here(command: str) -> tuple[list[str], list[Here]]:
    """The lines of a command without the documents in it, and these documents."""
    lines, here = list[str](), list[Here]()
    end, text = "", list[str]()
    for line in command.split("\n"):
        if end:
            if line.strip() == end:
                here[-1] = replace(here[-1], text="".join(f"{each}\n" for each in text), whole=True)
                end, text = "", []
            else:
                text.append(line)
            continue
        lines.append(line)
        if (found := _HEREDOC.search(line)) is not None:
            end = found[3]
            here.append(Here(line, exact=bool(found[2]) and not found[1]))
    return lines, here


def _elsewhere(command: str) -> str:
    """The directory that a command goes to before anything else; empty where it goes nowhere, a sign where that cannot
    be told from its words."""
    goes = list(_CD.finditer(command))
    if not goes:
        return ""
    place = goes[0][1].strip("\"'").rstrip("/")
    told = len(goes) == 1 and not command[: goes[0].start()].strip() and place and _PLAIN.fullmatch(place) is not None
    return place if told else _SOMEWHERE


def _is_file(path: str) -> bool:
    """Whether a word of a command is likely a file: one with an ending, or in a folder; no device, no pattern."""
    if path.startswith(("-", "/dev/", "&")) or any(sign in path for sign in "*$`{}<>|") or path.endswith(("/", "\\")):
        return False
    last = re.split(r"[\\/]", path)[-1]
    return ("." in last.strip(".") or "/" in path or "\\" in path) and not last[:1].isdigit() and len(path) < 400
