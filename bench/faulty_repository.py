"""A repository of small faults, made by a seed, for `agent`: one task follows the other in one conversation.

A task is a module with a fault and a test. Every fourth needs a number that the user named in the opening message only,
and its test compares hashes, so that nobody reads the number there. Three rules hold until the end: tests stay as they
are, the first line of each changed module is a given comment, and each report ends with a given word.
"""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.rules import pronounceable

TOOLS: Final = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {each: {"type": "string"} for each in parameters},
                "required": parameters,
            },
        },
    }
    for name, description, parameters in (
        ("list_files", "Lists all files.", []),
        ("read_file", "Returns the text of a file.", ["path"]),
        ("replace_text", "Replaces a text that occurs once in a file.", ["path", "old", "new"]),
        ("run_test", "Runs a test; returns its output.", ["path"]),
    )
]
_NEEDS_NUMBER: Final = 4
_HELPERS: Final = 12
"""Functions beside the one with the fault; they make a file long."""
_TEST_SECONDS: Final = 10
_RUN: Final = "import runpy, sys; sys.path.insert(0, '.'); runpy.run_path(sys.argv[1])"
_FAULTS: Final = (
    (
        "def clamp(value, low, high):\n    return min(low, max(value, high))\n",
        "assert [clamp(n, 2, 5) for n in (1, 3, 9)] == [2, 3, 5]",
        "clamp must keep a value between low and high",
    ),
    (
        "def chunks(items, size):\n    return [items[at:at + size] for at in range(0, len(items) - 1, size)]\n",
        "assert chunks([1, 2, 3], 2) == [[1, 2], [3]]",
        "chunks loses the last item",
    ),
    (
        "def count_words(text):\n    return len(text.split(' '))\n",
        "assert count_words('a  b ') == 2",
        "count_words counts empty words",
    ),
)
_NUMBER_FAULT: Final = "def gross(net):\n    return round(net, 6)\n"


@dataclass(frozen=True)
class RepairTask:
    """What the user asks, the module to change, and its test."""

    request: str
    module: str
    test: str


@dataclass
class FaultyRepository:
    """The files of the repository in a folder, its tasks, and the rules that hold to the end."""

    folder: Path
    tasks: Sequence[RepairTask]
    opening: str
    comment: str
    word: str
    changed: set[str] = field(default_factory=set)
    """The files that were changed in the current task."""
    read_texts: dict[str, str] = field(default_factory=dict)
    """Each file as it was last read."""
    rereads: int = 0
    broken: list[str] = field(default_factory=list)
    """The rules that were broken, one entry each time."""

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Runs a tool; errors are its result."""
        path, file = str(arguments.get("path", "")), self.folder / str(arguments.get("path", ""))
        if name == "list_files":
            return "\n".join(sorted(str(each.relative_to(self.folder)) for each in self.folder.rglob("*.py")))
        if not file.resolve().is_relative_to(self.folder.resolve()) or not file.is_file():
            return f"error: there is no file {path!r}"
        if name == "read_file":
            return self._read(path)
        if name == "replace_text":
            return self._replace(path, str(arguments.get("old", "")), str(arguments.get("new", "")))
        return self.run_test(path) if name == "run_test" else f"error: there is no tool {name!r}"

    def _read(self, path: str) -> str:
        text = (self.folder / path).read_text()
        self.rereads += self.read_texts.get(path) == text
        self.read_texts[path] = text
        return text

    def _replace(self, path: str, old: str, new: str) -> str:
        text = (self.folder / path).read_text()
        if not old or text.count(old) != 1:
            return f"error: the old text occurs {text.count(old) if old else 0} times"
        (self.folder / path).write_text(text.replace(old, new))
        self.changed.add(path)
        return "replaced"

    def run_test(self, path: str) -> str:
        """Runs a file; returns `passed`, or the end of its output."""
        # Python's isolated mode does not confine what a model wrote; bench/README.md says so. Keys are not for it.
        command = [sys.executable, "-I", "-c", _RUN, path]
        try:
            done = subprocess.run(
                command, cwd=self.folder, env={}, capture_output=True, text=True, timeout=_TEST_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return f"failed: no end after {_TEST_SECONDS} seconds"
        return "passed" if done.returncode == 0 else f"failed: {done.stderr[-400:]}"

    def end_task(self, report: str) -> None:
        """Notes the rules that were broken in a task which ended with this report."""
        for path in sorted(self.changed):
            if path.startswith("tests"):
                self.broken.append("a test was changed")
            elif not (self.folder / path).read_text().startswith(self.comment):
                self.broken.append("a module without the comment")
        self.changed.clear()
        if not report.rstrip(" .!\n*`").endswith(self.word):
            self.broken.append("a report without the word")


def make_repository(folder: Path, seed: int, number: int) -> FaultyRepository:
    """Writes a repository with so many tasks into an empty folder."""
    chance = random.Random(f"repository/{seed}")
    comment, word = f"# checked by {pronounceable(chance)}", pronounceable(chance)
    numbers, tasks = list[str](), list[RepairTask]()
    (folder / "tests").mkdir(parents=True)
    for at in range(1, number + 1):
        name = f"part_{at:02d}"
        if at % _NEEDS_NUMBER == 0:
            rate = chance.randrange(1_000, 9_000) / 10_000
            numbers.append(f"The rate of {name} is {rate}.")
            expected = hashlib.sha256(repr(round(200 * (1 + rate), 6)).encode()).hexdigest()
            code, request = _NUMBER_FAULT, f"gross in {name}.py must add the rate of {name} that I gave first"
            check = f"import hashlib\nassert hashlib.sha256(repr(gross(200)).encode()).hexdigest() == {expected!r}"
        else:
            code, check, request = chance.choice(_FAULTS)
            request += f" in {name}.py"
        helpers = "\n".join(_helper(chance) for _ in range(_HELPERS))
        (folder / f"{name}.py").write_text(f'"""Part {at}."""\n\n{code}\n{helpers}')
        test = f"tests/test_{name}.py"
        (folder / test).write_text(f"from {name} import *\n{check}\n")
        tasks.append(RepairTask(f"Next: {request}. Mend it, and run {test} until it passes.", f"{name}.py", test))
    opening = (
        "We mend a repository of small modules, one after the other. Three rules hold for all of the work. Never "
        f"change a file in tests/. The first line of each module that you change must be `{comment}`. End each report "
        f"to me with the word {word}. You will need these numbers later. {' '.join(numbers)}"
    )
    return FaultyRepository(folder, tasks, opening, comment, word)


def _helper(chance: random.Random) -> str:
    name, number = pronounceable(chance).lower(), chance.randrange(2, 99)
    return f"def {name}(value):\n    scaled = value * {number}\n    return scaled - {number // 2}\n\n"
