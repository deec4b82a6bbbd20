"""Finds the files that a step read, created, edited or deleted, by the tools of known agents and by shell commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from accordion.memory.steps import RecordedStep

Act = Literal["read", "created", "edited", "deleted"]

PATHS: Final = (
    *("file_path", "path", "filePath", "filename", "file_name", "absolute_path", "target_file", "notebook_path"),
    *("relative_workspace_path", "TargetFile", "AbsolutePath", "file"),
)
"""Names of the argument with a path."""
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
_COMMAND_ARGUMENTS: Final = ("command", "cmd", "commands", "script", "code")
_OPERATIONS: Final = {"create_file": "Add", "update_file": "Update", "delete_file": "Delete"}
"""Operations of the patch tool that OpenAI hosts."""
_COMMANDS: Final[dict[str, Act]] = {
    "view": "read",
    "create": "created",
    "str_replace": "edited",
    "insert": "edited",
    "undo_edit": "edited",
}
_PATCH_HEADER: Final = re.compile(r"^\*\*\* (Add|Update|Delete) File: (\S[^\n\r]*)", re.MULTILINE)
_PATCH_ACTS: Final[dict[str, Act]] = {"Add": "created", "Update": "edited", "Delete": "deleted"}

_WORD = r"""("[^"\n$*?`]+"|'[^'\n]+'|[\w@%+:.,/\\~-]+)"""
_COMMAND_START = r"(?:^|[;&|(\n])\s*(?:sudo\s+)?"
_REDIRECTION: Final = re.compile(r"(?<![0-9&<>=-])>>?\s*" + _WORD)
_TEE: Final = re.compile(r"\btee\s+(?:-a\s+)?" + _WORD)
_SED: Final = re.compile(
    _COMMAND_START + r"(?:sed|perl)\s+[^\n;|&]*?-[a-zA-Z]*i[^\n;|&]*?\s" + _WORD + r"\s*(?=$|[;&|\n])"
)
_READ_BY_COMMAND: Final = re.compile(
    _COMMAND_START + r"(?:cat|head|tail|less|nl|bat|sed\s+-n|wc)"
    + r"(?:\s+(?:-\w+(?:\s+\d+)?|'[^'\n]*p'|\"[^\"\n]*p\"|\d+,\d+p))*\s+"
    + _WORD
)  # fmt: skip
_REMOVAL: Final = re.compile(_COMMAND_START + r"(?:git\s+)?rm\s+(?:-\w+\s+)*" + _WORD)
_HEREDOC: Final = re.compile(r"(?<!<)<<(-?)[ \t]*(['\"]?)(\w+)\2(?!<)")
_CHANGE_DIRECTORY: Final = re.compile(r"(?:^|[;&|(\n])\s*(?:cd|pushd)(?:\s+(\"[^\"\n]*\"|'[^'\n]*'|[^\s;&|)]*)|$)")
_SIMPLE_DIRECTORY: Final = re.compile(r"(?![~-])[\w@%+:.,/\\ -]+")
_WINDOWS_DRIVE: Final = re.compile(r"[A-Za-z]:[\\/]")
_UNKNOWN_DIRECTORY: Final = "?"
_COMMAND_MOST: Final = 8_000
_MAX_LENGTH: Final = 1_000
"""Characters of a path; a longer text is no path."""


class FileAccess(msgspec.Struct, frozen=True):
    """One access of a step to a file. `path` is as the agent wrote it."""

    path: str
    act: Act


class HereDocument(msgspec.Struct, frozen=True):
    """A here document in a command.

    `line` is the command's line that begins it; `exact`: the shell expands nothing in it; `whole`: its end is there.
    """

    line: str
    text: str = ""
    exact: bool = False
    whole: bool = False


def tool_kind(step: RecordedStep) -> str:
    """Returns a tool's name in lower case, without punctuation."""
    return "".join(filter(str.isalnum, step.name)).lower()


def is_shell(step: RecordedStep) -> bool:
    """Returns whether the step runs a command."""
    return tool_kind(step) in _SHELLS and bool(shell_command(step))


def shell_command(step: RecordedStep) -> str:
    """Returns the command that a step runs. Codex passes a list of words."""
    command: Any = next((step.fields[name] for name in _COMMAND_ARGUMENTS if name in step.fields), "")
    if isinstance(command, list) and all(isinstance(word, str) for word in command):
        if "commands" in step.fields:
            return "\n".join(command)
        return command[-1] if command[:1] in (["bash"], ["sh"], ["zsh"]) and len(command) > 2 else " ".join(command)
    return command if isinstance(command, str) else ""


def find_patch(step: RecordedStep) -> str:
    """Returns the patch of an `apply_patch`, called as a tool or in a shell; empty for other steps."""
    if (act := _OPERATIONS.get(step.text("type"))) is not None and tool_kind(step) == "applypatch":
        return f"*** Begin Patch\n*** {act} File: {find_path(step)}\n{step.text('diff')}\n*** End Patch"
    for text in (step.text("input", "patch"), shell_command(step), "" if step.fields else step.raw):
        position = text.find("*** Begin Patch")
        if position >= 0:
            return text[position:]
    return ""


def find_path(step: RecordedStep) -> str:
    """Returns the path argument of a step."""
    return step.text(*PATHS)


def find_file_accesses(step: RecordedStep) -> Iterator[FileAccess]:
    """Returns a step's file accesses; none if it failed or no result is recorded."""
    if step.is_done:
        yield from (
            access for access in _find_accesses(step) if 0 < len(access.path) <= _MAX_LENGTH and "\n" not in access.path
        )


def _find_accesses(step: RecordedStep) -> Iterator[FileAccess]:
    kind, path, patch = tool_kind(step), find_path(step), find_patch(step)
    if patch:
        for act, name in _PATCH_HEADER.findall(patch):
            yield FileAccess(name.strip(), _PATCH_ACTS[act])
    elif kind in _SHELLS:
        yield from _accesses_by_command(shell_command(step)[:_COMMAND_MOST])
    elif kind in _EDITORS and path:
        if (act := _COMMANDS.get(step.text("command"))) is not None:
            yield FileAccess(path, act)
    elif kind in _READS:
        yield from (FileAccess(name, "read") for name in ([path] if path else _list_files(step)))
    elif path:
        action: Act | None = "edited" if kind in _EDITS else "deleted" if kind in _DELETES else None
        if kind in _WRITES or kind == "create":
            action = "edited" if "has been updated" in (step.result or "")[:300] else "created"
        if action is not None:
            yield FileAccess(path, action)


def _list_files(step: RecordedStep) -> Iterator[str]:
    """Returns the files of a tool that takes several (`files: [{file_path: …}]`, `paths: […]`)."""
    for name in ("files", "paths", "file_paths"):
        items = step.fields.get(name)
        for item in items if isinstance(items, list) else []:
            path = item if isinstance(item, str) else next((item[n] for n in PATHS if n in item), "") if isinstance(
                item, dict
            ) else ""  # fmt: skip
            if isinstance(path, str) and path:
                yield path


def _accesses_by_command(command: str) -> Iterator[FileAccess]:
    lines, _ = split_here_documents(command)
    shell_text = "\n".join(lines)
    directory = _changed_directory(shell_text)
    rules: tuple[tuple[re.Pattern[str], Act], ...] = (
        (_REDIRECTION, "created"), (_TEE, "created"), (_SED, "edited"), (_REMOVAL, "deleted"),
        (_READ_BY_COMMAND, "read"),
    )  # fmt: skip
    for pattern, act in rules:
        for name in dict.fromkeys(pattern.findall(shell_text)):
            path = name.strip("\"'")
            if not _is_file(path):
                continue
            if directory and not path.startswith(("/", "~")) and not _WINDOWS_DRIVE.match(path):
                path = f"{directory}/{path}" if directory != _UNKNOWN_DIRECTORY else ""
            if path:
                yield FileAccess(path, act)


def split_here_documents(command: str) -> tuple[list[str], list[HereDocument]]:
    """Splits a command into its lines without here documents, and the here documents."""
    lines, documents = list[str](), list[HereDocument]()
    delimiter, text = "", list[str]()
    for line in command.split("\n"):
        if delimiter:
            if line.strip() == delimiter:
                documents[-1] = replace(documents[-1], text="".join(f"{each}\n" for each in text), whole=True)
                delimiter, text = "", []
            else:
                text.append(line)
            continue
        lines.append(line)
        if (match := _HEREDOC.search(line)) is not None:
            delimiter = match[3]
            documents.append(HereDocument(line, exact=bool(match[2]) and not match[1]))
    return lines, documents


def _changed_directory(command: str) -> str:
    """Returns the directory that a command changes to first.

    The result is empty if it changes nowhere, and `_UNKNOWN_DIRECTORY` where its text does not say.
    """
    changes = list(_CHANGE_DIRECTORY.finditer(command))
    if not changes:
        return ""
    directory = changes[0][1].strip("\"'").rstrip("/")
    is_known = (
        len(changes) == 1
        and not command[: changes[0].start()].strip()
        and directory
        and _SIMPLE_DIRECTORY.fullmatch(directory) is not None
    )
    return directory if is_known else _UNKNOWN_DIRECTORY


def _is_file(path: str) -> bool:
    """Returns whether a word of a command is likely a file: with a suffix or in a folder, no device, no pattern."""
    if path.startswith(("-", "/dev/", "&")) or any(sign in path for sign in "*$`{}<>|") or path.endswith(("/", "\\")):
        return False
    last = re.split(r"[\\/]", path)[-1]
    return ("." in last.strip(".") or "/" in path or "\\" in path) and not last[:1].isdigit() and len(path) < 400
