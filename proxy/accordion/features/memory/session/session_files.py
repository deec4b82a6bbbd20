"""The files of a session: which ones its steps access, their absolute paths, the project's root, and their roles.

Accesses are found in the calls of known agents' tools and in shell commands.
"""

from __future__ import annotations

import ntpath
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from accordion.features.memory.conversation.steps import COMMAND_ARGUMENTS, ConversationRecord, RecordedStep

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
_WINDOWS: Final = re.compile(r"[A-Za-z]:[\\/]|\\\\[\w.$-]")
_STATED_DIRECTORY: Final = re.compile(
    r"^[ \t*-]{0,8}(?:Primary |Current )?[Ww]orking [Dd]irectory(?: \((?P<cline>[^()\n]+)\)|: *(?P<named>\S[^\n]*))"
    r"|<cwd>(?P<tag>[^<\n]+)</cwd>|^[ \t*-]{0,8}cwd: *(?P<short>\S[^\n]*)"
    r"|working in the directory: *(?P<gemini>\S[^\n]*)",
    re.MULTILINE,
)
_HOME_DIRECTORY: Final = re.compile(r"(?:/Users|/home|[A-Za-z]:[\\/]Users)[\\/][^\\/]+|/root|/", re.IGNORECASE)
_OUTSIDE_PROJECTS: Final = re.compile(
    r"(?:/private)?/(?:tmp|var(?!/www/)|dev|proc|etc|usr(?!/src/)|opt/homebrew)(?:/|\Z)|.*[\\/]\.(?:claude|codex|config|cache|gemini)[\\/]"
    r"|.*[\\/]AppData[\\/]",
    re.IGNORECASE,
)
_COMMON_SHARE: Final = 0.9
"""The share of the accessed files that are in the root of a project, if no client states it."""
_MAX_WORKING, _MAX_REFERENCE = 8, 8
"""Files that a session memory lists at most."""
_IGNORED_PATH: Final = re.compile(
    r"(?:/private)?/(?:tmp|var(?!/www/)|dev|proc|sys)/|.*[\\/](?:node_modules|\.git|__pycache__|site-packages)[\\/]",
    re.IGNORECASE,
)
_MANIFEST: Final = "dependencies"
_ROLES: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), role, worth)
    for pattern, role, worth in (
        (r"(?:CLAUDE|AGENTS|GEMINI|COPILOT-INSTRUCTIONS)(?:\.local)?\.md$|\.cursorrules$", "project instructions", 5),
        (
            r"(?:^|/)(?:package\.json|pyproject\.toml|go\.mod|cargo\.toml|requirements[\w.-]*\.txt|setup\.(?:py|cfg)"
            r"|pom\.xml|build\.gradle(?:\.kts)?|composer\.json|gemfile|environment\.ya?ml|pipfile|deno\.json|mix\.exs)$",
            _MANIFEST,
            5,
        ),
        (r"(?:^|/)(?:impl_?)?plan[\w .-]*\.md$|[_-]plan\.md$|/plans?/[^/]+\.md$", "plan", 4),
        (r"(?:^|/)(?:tests?|spec|__tests__|e2e|testdata|integration_test)/|(?:^|/)test_[^/]*$", "tests", 2),
        (r"[._-](?:test|tests|spec)\.\w+$|(?:^|/)conftest\.py$|test\.(?:java|kt|cs|php)$", "tests", 2),
        (r"\.d\.ts$|(?:^|/)(?:types?|interfaces|schemas?|models?)(?:/|\.\w+$)|_types?\.\w+$", "type definitions", 5),
        (r"(?:^|/)(?:\.github|\.circleci|ci)/|(?:^|/)(?:dockerfile|makefile|justfile)[\w.]*$", "build and delivery", 3),
        (r"\.(?:json|ya?ml|toml|ini|cfg|conf|env|properties|xml|plist)$|(?:^|/)\.[\w.-]+$", "configuration", 4),
        (r"\.(?:md|mdx|rst|txt|adoc)$|(?:^|/)docs?/", "documentation", 1),
        (r"\.(?:css|scss|sass|less)$", "styles", 2),
        (r"\.(?:sh|bash|zsh|ps1|bat)$|(?:^|/)scripts?/", "script", 2),
        (r"\.(?:csv|tsv|jsonl|parquet|sql|png|jpe?g|svg|gif|pdf|log)$", "data", 1),
    )
)
_IMPLEMENTATION_ROLE: Final = ("implementation", 3)
_OTHER_ROLE: Final = ("context", 1)
_CODE: Final = re.compile(
    r"\.(?:py|pyi|js|jsx|mjs|cjs|ts|tsx|go|rs|java|kt|kts|scala|c|cc|cpp|cxx|h|hpp|cs|rb|php|swift|m|mm|lua|pl|r|jl|ex"
    r"|exs|erl|hs|ml|clj|dart|vue|svelte|html?|ipynb|zig|nim|tf|proto|graphql)$",
    re.IGNORECASE,
)


# -- accesses ---------------------------------------------------------------------------------------------------------


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
    command: Any = next((step.fields[name] for name in COMMAND_ARGUMENTS if name in step.fields), "")
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


# -- paths and the project's root -------------------------------------------------------------------------------------


def is_absolute(path: str) -> bool:
    """Returns whether a path is absolute on POSIX or Windows."""
    return path.startswith("/") or _WINDOWS.match(path) is not None


def make_absolute(path: str, root: str) -> str:
    """Returns the absolute path; a relative path stays as it is if no root is known."""
    path = path.strip().strip("\"'`")
    if not path or is_absolute(path) or path.startswith("~"):
        return path
    if not root:
        return path
    module = _path_module(root)
    return str(module.normpath(module.join(root, path)))


def normalize_path(path: str) -> str:
    """Returns a form that is equal for two spellings of one path."""
    return path.replace("\\", "/").lower() if _WINDOWS.match(path) else path


def _split_path(path: str) -> list[str]:
    """Splits a path into its names."""
    return [name for name in re.split(r"[\\/]", path) if name]


def find_root(record: ConversationRecord, paths: Sequence[str]) -> str:
    """Returns the root of the project: the working directory that the client stated last.

    Without one, it is the deepest directory of nearly all of `paths`, the accessed files; empty if there is none.
    """
    if directory := _find_working_directory(record):
        return directory
    absolute = [path for path in paths if is_absolute(path)]
    project_paths = [path for path in absolute if not _OUTSIDE_PROJECTS.match(path)] or absolute
    return _find_common_directory(project_paths)


def _find_working_directory(record: ConversationRecord) -> str:
    """Returns the working directory that the client stated last; empty if it stated none."""
    for text in reversed(record.background):
        for match in reversed(list(_STATED_DIRECTORY.finditer(text))):
            directory = (
                next(group for group in match.groups() if group).split(" (")[0].strip().strip("`\"'").rstrip(".")
            )
            if is_absolute(directory) and len(directory) <= _MAX_LENGTH:
                return directory
    return ""


def _find_common_directory(paths: Sequence[str]) -> str:
    """Returns the deepest directory with nearly all of the paths; empty if that is only a home directory."""
    counts: Counter[str] = Counter()
    for path in paths:
        path_module, child = _path_module(path), path
        while (parent := path_module.dirname(child)) not in ("", child):
            counts[parent] += 1
            child = parent
    shared_directories = [
        directory
        for directory, count in counts.items()
        if count >= _COMMON_SHARE * len(paths) and not _HOME_DIRECTORY.fullmatch(directory)
    ]
    return max(shared_directories, key=len, default="")


def _is_within(path: str, root: str) -> bool:
    """Returns whether a path is `root` or inside it."""
    path, root = normalize_path(path), normalize_path(root).rstrip("/")
    return path == root or path.startswith(root + "/")


def _path_module(path: str) -> ModuleType:
    return ntpath if _WINDOWS.match(path) else posixpath


# -- files and their roles --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class SessionFile:
    """A file with the accesses of a session."""

    path: str
    created: bool = False
    edits: int = 0
    reads: int = 0
    deleted: bool = False
    last: int = 0
    steps: list[int] = field(default_factory=list)

    @property
    def is_changed(self) -> bool:
        """Returns whether the session created, edited or deleted the file."""
        return self.created or self.edits > 0 or self.deleted


def find_files(record: ConversationRecord, root: str) -> list[SessionFile]:
    """Returns all accessed files in order of their first access, under absolute paths."""
    files: dict[str, SessionFile] = {}
    for step in record.steps:
        for access in find_file_accesses(step):
            path = make_absolute(access.path, root)
            if not path or (_IGNORED_PATH.match(path) and not (root and _is_within(path, root))):
                continue
            file = files.setdefault(normalize_path(path), SessionFile(path))
            file.last = step.at
            if access.act == "read":
                file.reads += 1
                continue
            file.steps.append(step.at)
            file.deleted = access.act == "deleted"
            if access.act == "created" and not (file.edits or file.created or file.reads):
                file.created = True
            elif access.act != "deleted":
                file.edits += 1
    return list(files.values())


def list_accessed_paths(steps: Iterable[RecordedStep]) -> list[str]:
    """Returns the paths of all accessed files, as the agent wrote them."""
    return list(dict.fromkeys(access.path for step in steps for access in find_file_accesses(step)))


def describe_working_files(files: Sequence[SessionFile]) -> list[str]:
    """Describes the files with the most and latest changes, each with its role."""
    changed = [file for file in files if file.is_changed and not file.deleted]
    end = max((file.last for file in changed), default=0) + 1
    listed_files = sorted(changed, key=lambda file: -(file.edits + file.created) * (0.5 + file.last / end))[
        :_MAX_WORKING
    ]
    main = next((file for file in listed_files if _role(file.path) == _IMPLEMENTATION_ROLE), None)
    return [
        _line(file, "main implementation" if file is main else _role(file.path)[0], _count_work(file))
        for file in listed_files
    ]


def describe_reference_files(files: Sequence[SessionFile]) -> list[str]:
    """Describes the most informative files that were only read, each with its role."""
    read_files = [file for file in files if not file.is_changed]
    listed_files = sorted(read_files, key=lambda file: (-_role(file.path)[1] - min(file.reads, 4), -file.last))[
        :_MAX_REFERENCE
    ]
    return [_line(file, _role(file.path)[0], "") for file in listed_files]


def is_manifest(path: str) -> bool:
    """Returns whether a file lists what a project depends on."""
    return _role(path)[0] == _MANIFEST


def _line(file: SessionFile, role: str, more: str) -> str:
    note = "" if is_absolute(file.path) else "; relative, the project root is not known"
    note = "; in the home directory" if file.path.startswith("~") else note
    return f"{file.path} (role: {role}{more}{note})"


def _count_work(file: SessionFile) -> str:
    times = f"{file.edits} edit{'s' if file.edits != 1 else ''}" if file.edits else ""
    return "".join(f", {each}" for each in ("created" if file.created else "", times) if each)


def _role(path: str) -> tuple[str, int]:
    path_end = "/".join(_split_path(path)[-4:])
    match = next(((role, worth) for rule, role, worth in _ROLES if rule.search(path_end)), None)
    return match or (_IMPLEMENTATION_ROLE if _CODE.search(path_end) else _OTHER_ROLE)
