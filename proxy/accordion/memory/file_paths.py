"""Absolute paths of files, on Windows too, and the root of their project."""

from __future__ import annotations

import ntpath
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import Final

from accordion.memory.steps import ConversationRecord

_WINDOWS: Final = re.compile(r"[A-Za-z]:[\\/]|\\\\[\w.$-]")
_STATED_DIRECTORY: Final = re.compile(
    r"^[ \t*-]{0,8}(?:Primary |Current )?[Ww]orking [Dd]irectory(?: \((?P<cline>[^()\n]+)\)|: *(?P<named>\S[^\n]*))"
    r"|<cwd>(?P<tag>[^<\n]+)</cwd>|^[ \t*-]{0,8}cwd: *(?P<short>\S[^\n]*)"
    r"|working in the directory: *(?P<gemini>\S[^\n]*)",
    re.MULTILINE,
)
_RESET: Final = re.compile(r"Shell cwd was reset to (\S[^\n]*)")
_CHANGE_DIRECTORY: Final = re.compile(r"""(?:^|[;&|(]\s*)cd +(?:"([^"\n]+)"|'([^'\n]+)'|([^\s;&|)]+))""", re.MULTILINE)
_RELATIVE: Final = re.compile(r"(?<![\w/.~@:$-])(?:\./)?([\w@.-]+(?:/[\w@.-]+)+/?)")
_COMMAND: Final = 4_000
_HOME_DIRECTORY: Final = re.compile(r"(?:/Users|/home|[A-Za-z]:[\\/]Users)[\\/][^\\/]+|/root|/", re.IGNORECASE)
_SYSTEM_PATH: Final = re.compile(
    r"(?:/private)?/(?:tmp|var(?!/www/)|dev|proc|etc|usr(?!/src/)|opt/homebrew)(?:/|\Z)|.*[\\/]\.(?:claude|codex|config|cache|gemini)[\\/]"
    r"|.*[\\/]AppData[\\/]",
    re.IGNORECASE,
)
MARKERS: Final = frozenset(
    (
        *(".git", ".claude", ".hg", ".github", ".vscode", ".idea", "claude.md", "agents.md", "gemini.md"),
        *("package.json", "pyproject.toml", "setup.py", "setup.cfg", "go.mod", "cargo.toml", "pom.xml", "makefile"),
        *("build.gradle", "composer.json", "gemfile", "cmakelists.txt", "tsconfig.json", "mix.exs", "deno.json"),
    )
)
"""Names of files and folders in the root of a project, in lower case."""
_LARGE_SHARE, _MEDIUM_SHARE = 0.9, 0.6
_MAX_LENGTH: Final = 1_000
"""Characters of a path."""


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


def split_path(path: str) -> list[str]:
    """Splits a path into its names."""
    return [name for name in re.split(r"[\\/]", path) if name]


def find_root(record: ConversationRecord, paths: Sequence[str]) -> str:
    """Returns the root of the project, empty if it is unknown.

    It is the client's working directory, or a directory above it that has a file of `MARKERS`; without one it is
    derived from commands and from `paths`, the files that were accessed.
    """
    roots = set(_find_project_roots(path for path in paths if is_absolute(path)))
    directory = _find_working_directory(record)
    if directory:
        enclosing_roots = [root for root in roots if is_within(directory, root)]
        return min(enclosing_roots, key=len, default=directory)
    absolute = [path for path in paths if is_absolute(path)]
    project_paths = [path for path in absolute if not _SYSTEM_PATH.match(path)] or absolute
    if project_paths:
        if base_directory := _find_base_directory(record, project_paths):
            return base_directory
        enclosing = [
            root
            for root in roots
            if sum(is_within(path, root) for path in project_paths) >= _LARGE_SHARE * len(project_paths)
        ]
        if enclosing:
            return min(enclosing, key=len)
        return _deepest_common(project_paths, _LARGE_SHARE) or _deepest_common(project_paths, _MEDIUM_SHARE)
    return ""


def _find_working_directory(record: ConversationRecord) -> str:
    """Returns the working directory: the client's last statement, else the shell's, else the most frequent `cd`."""
    for text in reversed(record.background):
        for match in reversed(list(_STATED_DIRECTORY.finditer(text))):
            directory = (
                next(group for group in match.groups() if group).split(" (")[0].strip().strip("`\"'").rstrip(".")
            )
            if is_absolute(directory) and len(directory) <= _MAX_LENGTH:
                return directory
    visit_counts: Counter[str] = Counter()
    for step in reversed(record.steps):
        text = step.result or ""
        if (reset := _RESET.search(text[-300:])) is not None and is_absolute(reset[1]):
            return reset[1].strip()
        command = step.text("command", "cmd", "script")
        if "rev-parse --show-toplevel" in command and step.is_done and is_absolute(text) and "\n" not in text.strip():
            return text.strip()
        for groups in _CHANGE_DIRECTORY.findall(command[:_COMMAND]):
            directory = next(filter(None, groups), "")
            if (
                is_absolute(directory)
                and not _SYSTEM_PATH.match(directory)
                and not _HOME_DIRECTORY.fullmatch(directory.rstrip("\\/") or "/")
            ):
                visit_counts[directory.rstrip("\\/")] += 1
    return _find_common_directory(visit_counts)


def _find_common_directory(visit_counts: Counter[str]) -> str:
    """Returns the visited directory that contains most visits; of equal ones the most visited."""
    if not visit_counts:
        return ""
    return max(
        visit_counts,
        key=lambda root: (
            sum(count for directory, count in visit_counts.items() if is_within(directory, root)),
            visit_counts[root],
        ),
    )


def _find_base_directory(record: ConversationRecord, paths: Sequence[str]) -> str:
    """Returns the directory that relative paths in commands start from, given absolute paths of the same files.

    Of several it is the most frequent one; without such paths it is empty.
    """
    by_suffix: dict[str, set[str]] = {}
    for path in paths:
        names = normalize_path(path).split("/")
        for index in range(2, len(names) - 1):
            by_suffix.setdefault("/".join(names[index:]), set()).add(path)
            # A command may name a folder, too.
            by_suffix.setdefault("/".join(names[index:-1]), set()).add(path[: len(path) - len(names[-1]) - 1])
    match_counts: Counter[str] = Counter()
    for step in record.steps:
        for relative in dict.fromkeys(_RELATIVE.findall(step.text("command", "cmd", "script")[:_COMMAND])):
            suffix = relative.removesuffix("/...").rstrip("/.")
            # A suffix of several paths with different roots decides nothing.
            if "/" in suffix and len(roots := {path[: -len(suffix) - 1] for path in by_suffix.get(suffix, ())}) == 1:
                match_counts[roots.pop()] += 1
    return max(match_counts, key=lambda root: (match_counts[root], -len(root))) if match_counts else ""


def _find_project_roots(paths: Iterable[str]) -> Iterator[str]:
    """Returns the directories that have a file or folder of `MARKERS`."""
    for path in paths:
        names = re.split(r"([\\/])", path)
        for index, name in enumerate(names):
            if name.lower() in MARKERS:
                root = "".join(names[: max(0, index - 1)])
                if root and not _HOME_DIRECTORY.fullmatch(root) and not _SYSTEM_PATH.match(root + "/"):
                    yield root
                break


def _deepest_common(paths: Sequence[str], share: float) -> str:
    """Returns the deepest directory with this share of the paths; empty if it is only a home directory."""
    counts: Counter[str] = Counter()
    for path in paths:
        path_module, child = _path_module(path), path
        while (parent := path_module.dirname(child)) not in ("", child):
            counts[parent] += 1
            child = parent
    shared_directories = [
        directory
        for directory, count in counts.items()
        if count >= share * len(paths) and not _HOME_DIRECTORY.fullmatch(directory)
    ]
    return max(shared_directories, key=len, default="")


def is_within(path: str, root: str) -> bool:
    """Returns whether a path is `root` or inside it."""
    path, root = normalize_path(path), normalize_path(root).rstrip("/")
    return path == root or path.startswith(root + "/")


def _path_module(path: str) -> ModuleType:
    return ntpath if _WINDOWS.match(path) else posixpath
