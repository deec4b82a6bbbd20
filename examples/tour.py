"""Writes the example of `accordion replay` in docs/cli.md: the program's own output, from the plot to the end.

python -m examples.tour              from the repository's root, after the example or the program has changed
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "cli.md"
COMMAND = re.compile(r"^accordion (replay .*--compact.*)$", re.MULTILINE)
OUTPUT = re.compile(r"(?<=^```text\n) *\d+% ┤.*?(?=^```$)", re.MULTILINE | re.DOTALL)
"""The output in the document: the block that begins with a plot."""


def print_example(document: str) -> str:
    """Returns what the document's `accordion replay` prints at a width of 80: the lines from the plot on."""
    found = COMMAND.search(document)
    if found is None:
        raise SystemExit("docs/cli.md names no `accordion replay … --compact`")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ACCORDION_")}
    environ |= {"COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-m", "accordion", *found[1].split()]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, encoding="utf-8", check=True)
    lines = [line.rstrip().removeprefix(" ") for line in done.stdout.splitlines()]
    start = next(index for index, line in enumerate(lines) if re.match(r" *\d+% ┤", line))
    return "\n".join(lines[start:]).rstrip() + "\n"


def main() -> None:
    """Writes the output into the document."""
    text = DOCUMENT.read_text("utf-8")
    output = print_example(text)
    DOCUMENT.write_text(OUTPUT.sub(lambda _: output, text, count=1), "utf-8")


if __name__ == "__main__":
    main()
