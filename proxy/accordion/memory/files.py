"""The files of a session with their roles: those that it changed, and those that it only read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from accordion.memory.file_changes import find_file_accesses
from accordion.memory.file_paths import is_absolute, is_within, make_absolute, normalize_path, split_path
from accordion.memory.steps import ConversationRecord, RecordedStep

WORKING, REFERENCE = 8, 8
"""Files that a session memory lists at most."""
_SYSTEM_PATH: Final = re.compile(
    r"(?:/private)?/(?:tmp|var(?!/www/)|dev|proc|sys)/|.*[\\/](?:node_modules|\.git|__pycache__|site-packages)[\\/]",
    re.IGNORECASE,
)
_ROLES: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), role, worth)
    for pattern, role, worth in (
        (r"(?:CLAUDE|AGENTS|GEMINI|COPILOT-INSTRUCTIONS)(?:\.local)?\.md$|\.cursorrules$", "project instructions", 5),
        (
            r"(?:^|/)(?:package\.json|pyproject\.toml|go\.mod|cargo\.toml|requirements[\w.-]*\.txt|setup\.(?:py|cfg)"
            r"|pom\.xml|build\.gradle(?:\.kts)?|composer\.json|gemfile|environment\.ya?ml)$",
            "dependencies",
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
            if not path or (_SYSTEM_PATH.match(path) and not (root and is_within(path, root))):
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
    listed_files = sorted(changed, key=lambda file: -(file.edits + file.created) * (0.5 + file.last / end))[:WORKING]
    main = next((file for file in listed_files if _role(file.path) == _IMPLEMENTATION_ROLE), None)
    return [
        _line(file, "main implementation" if file is main else _role(file.path)[0], _count_work(file))
        for file in listed_files
    ]


def describe_reference_files(files: Sequence[SessionFile]) -> list[str]:
    """Describes the most informative files that were only read, each with its role."""
    read_files = [file for file in files if not file.is_changed]
    listed_files = sorted(read_files, key=lambda file: (-_role(file.path)[1] - min(file.reads, 4), -file.last))[
        :REFERENCE
    ]
    return [_line(file, _role(file.path)[0], "") for file in listed_files]


def _line(file: SessionFile, role: str, more: str) -> str:
    note = "" if is_absolute(file.path) else "; relative, the project root is not known"
    note = "; in the home directory" if file.path.startswith("~") else note
    return f"{file.path} (role: {role}{more}{note})"


def _count_work(file: SessionFile) -> str:
    times = f"{file.edits} edit{'s' if file.edits != 1 else ''}" if file.edits else ""
    return "".join(f", {each}" for each in ("created" if file.created else "", times) if each)


def _role(path: str) -> tuple[str, int]:
    path_end = "/".join(split_path(path)[-4:])
    match = next(((role, worth) for rule, role, worth in _ROLES if rule.search(path_end)), None)
    return match or (_IMPLEMENTATION_ROLE if _CODE.search(path_end) else _OTHER_ROLE)
