"""Where files are: absolute paths, those of Windows too, and the root of the project that they belong to."""

from __future__ import annotations

import ntpath
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import Final

from accordion.memory.steps import Record

_WINDOWS: Final = re.compile(r"[A-Za-z]:[\\/]|\\\\[\w.$-]")
_SAID: Final = re.compile(
    r"^[ \t*-]{0,8}(?:Primary |Current )?[Ww]orking [Dd]irectory(?: \((?P<cline>[^()\n]+)\)|: *(?P<named>\S[^\n]*))"
    r"|<cwd>(?P<tag>[^<\n]+)</cwd>|^[ \t*-]{0,8}cwd: *(?P<short>\S[^\n]*)"
    r"|working in the directory: *(?P<gemini>\S[^\n]*)",
    re.MULTILINE,
)
_RESET: Final = re.compile(r"Shell cwd was reset to (\S[^\n]*)")
_CD: Final = re.compile(r"""(?:^|[;&|(]\s*)cd +(?:"([^"\n]+)"|'([^'\n]+)'|([^\s;&|)]+))""", re.MULTILINE)
_RELATIVE: Final = re.compile(r"(?<![\w/.~@:$-])(?:\./)?([\w@.-]+(?:/[\w@.-]+)+/?)")
_COMMAND: Final = 4_000
_HOME: Final = re.compile(r"(?:/Users|/home|[A-Za-z]:[\\/]Users)[\\/][^\\/]+|/root|/", re.IGNORECASE)
_ASIDE: Final = re.compile(
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
"""Names that stand in the root of a project, in lower case."""
_MOST, _MANY = 0.9, 0.6
_LONGEST: Final = 1_000
"""Characters of a path."""


def is_absolute(path: str) -> bool:
    """Whether a path is absolute, on whichever system."""
    return path.startswith("/") or _WINDOWS.match(path) is not None


def absolute(path: str, root: str) -> str:
    """A path as it is from the root of the file system; a relative one as it came where no root is known."""
    path = path.strip().strip("\"'`")
    if not path or is_absolute(path) or path.startswith("~"):
        return path
    if not root:
        return path
    kind = _kind(root)
    return str(kind.normpath(kind.join(root, path)))


def same(path: str) -> str:
    """Equal for two spellings of one path."""
    return path.replace("\\", "/").lower() if _WINDOWS.match(path) else path


def parts(path: str) -> list[str]:
    """The names in a path."""
    return [each for each in re.split(r"[\\/]", path) if each]


def base(path: str) -> str:
    """The last name in a path."""
    return (parts(path) or [""])[-1]


def root_of(record: Record, touched: Sequence[str]) -> str:
    """The root of the project: where the client says that it works, or a directory above it that bears the marks of a
    project; else what the commands and `touched` paths have in common. Empty where nothing tells."""
    marked = set(_marked(path for path in touched if is_absolute(path)))
    at = _working(record)
    if at:
        above = [root for root in marked if within(at, root)]
        return min(above, key=len, default=at)
    whole = [path for path in touched if is_absolute(path)]
    inside = [path for path in whole if not _ASIDE.match(path)] or whole
    if inside:
        if named := _named_from(record, inside):
            return named
        held = [root for root in marked if sum(within(path, root) for path in inside) >= _MOST * len(inside)]
        if held:
            return min(held, key=len)
        return _common(inside, _MOST) or _common(inside, _MANY)
    return ""


def _working(record: Record) -> str:
    """The working directory: what the client said last of it, else where a shell says that it is, or is sent most."""
    for text in reversed(record.background):
        for found in reversed(list(_SAID.finditer(text))):
            told = next(group for group in found.groups() if group).split(" (")[0].strip().strip("`\"'").rstrip(".")
            if is_absolute(told) and len(told) <= _LONGEST:
                return told
    sent: Counter[str] = Counter()
    for step in reversed(record.steps):
        text = step.result or ""
        if (found_reset := _RESET.search(text[-300:])) is not None and is_absolute(found_reset[1]):
            return found_reset[1].strip()
        command = step.text("command", "cmd", "script")
        if "rev-parse --show-toplevel" in command and step.done and is_absolute(text) and "\n" not in text.strip():
            return text.strip()
        for groups in _CD.findall(command[:_COMMAND]):
            place = next(filter(None, groups), "")
            if is_absolute(place) and not _ASIDE.match(place) and not _HOME.fullmatch(place.rstrip("\\/") or "/"):
                sent[place.rstrip("\\/")] += 1
    return _shortest(sent)


def _shortest(sent: Counter[str]) -> str:
    """Of the directories that commands go to the one that holds most of the others; of equals the one gone to most."""
    if not sent:
        return ""
    return max(sent, key=lambda root: (sum(n for place, n in sent.items() if within(place, root)), sent[root]))


def _named_from(record: Record, paths: Sequence[str]) -> str:
    """The directory from which commands name files whose absolute paths are known; of several the one that most of them
    say. Empty where none does."""
    ends: dict[str, set[str]] = {}
    for path in paths:
        names = same(path).split("/")
        for at in range(2, len(names) - 1):
            ends.setdefault("/".join(names[at:]), set()).add(path)
            # A command may name a folder as well.
            ends.setdefault("/".join(names[at:-1]), set()).add(path[: len(path) - len(names[-1]) - 1])
    votes: Counter[str] = Counter()
    for step in record.steps:
        for told in dict.fromkeys(_RELATIVE.findall(step.text("command", "cmd", "script")[:_COMMAND])):
            bare = told.removesuffix("/...").rstrip("/.")
            # A name that ends several of the paths alike says nothing.
            if "/" in bare and len(roots := {path[: -len(bare) - 1] for path in ends.get(bare, ())}) == 1:
                votes[roots.pop()] += 1
    return max(votes, key=lambda root: (votes[root], -len(root))) if votes else ""


def _marked(paths: Iterable[str]) -> Iterator[str]:
    """The directories in which something stands that marks a project's root."""
    for path in paths:
        names = re.split(r"([\\/])", path)
        for at, name in enumerate(names):
            if name.lower() in MARKERS:
                root = "".join(names[: max(0, at - 1)])
                if root and not _HOME.fullmatch(root) and not _ASIDE.match(root + "/"):
                    yield root
                break


def _common(paths: Sequence[str], share: float) -> str:
    """The deepest directory that holds such a share of the paths; empty where that is no more than somebody's home."""
    held: Counter[str] = Counter()
    for path in paths:
        kind, at = _kind(path), path
        while (up := kind.dirname(at)) not in ("", at):
            held[up] += 1
            at = up
    deep = [place for place, count in held.items() if count >= share * len(paths) and not _HOME.fullmatch(place)]
    return max(deep, key=len, default="")


def within(path: str, root: str) -> bool:
    """Whether a path is a directory or stands in it."""
    path, root = same(path), same(root).rstrip("/")
    return path == root or path.startswith(root + "/")


def _kind(path: str) -> ModuleType:
    return ntpath if _WINDOWS.match(path) else posixpath
