"""Writes what README shows of a replay with folding on: the program's own output, from the plot to the end.

python -m examples.tour              from the repository's root, after the example or the program has changed
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
COMMAND = re.compile(r"^accordion (replay .*--fold.*)$", re.MULTILINE)
BLOCK = re.compile(r"(?<=^```text\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)


def shown(readme: str) -> str:
    """What the command that stands in `readme` prints at a width of 80: the lines from the plot on."""
    found = COMMAND.search(readme)
    if found is None:
        raise SystemExit("README.md names no `accordion replay … --fold`")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ACCORDION_")}
    environ |= {"COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-m", "accordion", *found[1].split()]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, encoding="utf-8", check=True)
    lines = [line.rstrip().removeprefix(" ") for line in done.stdout.splitlines()]
    start = next(index for index, line in enumerate(lines) if re.match(r" *\d+% ┤", line))
    return "\n".join(lines[start:]).rstrip() + "\n"


def main() -> None:
    """Puts it in README's place for it."""
    text = README.read_text("utf-8")
    output = shown(text)
    README.write_text(BLOCK.sub(lambda _: output, text, count=1), "utf-8")


if __name__ == "__main__":
    main()
