"""The files of a session: those that it works on, with their roles, and those that it looked into."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Final

from accordion.core.values import dataclass
from accordion.memory.places import absolute, is_absolute, parts, same, within
from accordion.memory.steps import Record, Step
from accordion.memory.touched import touches

WORKING, REFERENCE = 8, 8
"""How many files are named at most."""
_ASIDE: Final = re.compile(
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
_IMPLEMENTATION: Final = ("implementation", 3)
_OTHER: Final = ("context", 1)
_CODE: Final = re.compile(
    r"\.(?:py|pyi|js|jsx|mjs|cjs|ts|tsx|go|rs|java|kt|kts|scala|c|cc|cpp|cxx|h|hpp|cs|rb|php|swift|m|mm|lua|pl|r|jl|ex"
    r"|exs|erl|hs|ml|clj|dart|vue|svelte|html?|ipynb|zig|nim|tf|proto|graphql)$",
    re.IGNORECASE,
)


@dataclass(frozen=False, slots=True)
class File:
    """A file and what was done to it."""

    path: str
    created: bool = False
    edits: int = 0
    reads: int = 0
    deleted: bool = False
    last: int = 0
    steps: list[int] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        """Whether it was written in any way."""
        return self.created or self.edits > 0 or self.deleted


def files_of(record: Record, root: str) -> list[File]:
    """All files that were touched, in the order in which they came up, under absolute paths."""
    found: dict[str, File] = {}
    for step in record.steps:
        for touch in touches(step):
            path = absolute(touch.path, root)
            if not path or (_ASIDE.match(path) and not (root and within(path, root))):
                continue
            file = found.setdefault(same(path), File(path))
            file.last = step.at
            if touch.act == "read":
                file.reads += 1
                continue
            file.steps.append(step.at)
            file.deleted = touch.act == "deleted"
            if touch.act == "created" and not (file.edits or file.created or file.reads):
                file.created = True
            elif touch.act != "deleted":
                file.edits += 1
    return list(found.values())


def given_paths(steps: Iterable[Step]) -> list[str]:
    """The paths of all files that were touched, as the agent wrote them."""
    return list(dict.fromkeys(touch.path for step in steps for touch in touches(step)))


def working(files: Sequence[File]) -> list[str]:
    """The files that were worked on most, and last, each with its role."""
    changed = [file for file in files if file.changed and not file.deleted]
    end = max((file.last for file in changed), default=0) + 1
    best = sorted(changed, key=lambda file: -(file.edits + file.created) * (0.5 + file.last / end))[:WORKING]
    main = next((file for file in best if _role(file.path) == _IMPLEMENTATION), None)
    return [_line(file, "main implementation" if file is main else _role(file.path)[0], _work(file)) for file in best]


def reference(files: Sequence[File]) -> list[str]:
    """The files that were only read and tell most, each with its role."""
    read = [file for file in files if not file.changed]
    best = sorted(read, key=lambda file: (-_role(file.path)[1] - min(file.reads, 4), -file.last))[:REFERENCE]
    return [_line(file, _role(file.path)[0], "") for file in best]


def _line(file: File, role: str, more: str) -> str:
    known = "" if is_absolute(file.path) else "; relative, the project root is not known"
    known = "; in the home directory" if file.path.startswith("~") else known
    return f"{file.path} (role: {role}{more}{known})"


def _work(file: File) -> str:
    times = f"{file.edits} edit{'s' if file.edits != 1 else ''}" if file.edits else ""
    return "".join(f", {each}" for each in ("created" if file.created else "", times) if each)


def _role(path: str) -> tuple[str, int]:
    plain = "/".join(parts(path)[-4:])
    found = next(((role, worth) for rule, role, worth in _ROLES if rule.search(plain)), None)
    return found or (_IMPLEMENTATION if _CODE.search(plain) else _OTHER)
