"""Environments for suites that others wrote, outside this repository, and made when first needed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from bench.servers import HERE, Unavailable
from bench.suites.product import PYTHON

FOLDER: Final = Path(os.environ.get("BENCH_SUITES", Path(tempfile.gettempdir()) / "accordion-suites"))
TEMPLATES: Final = "https://github.com/compactbench/compactbench"
_CLONE: Final = "BENCH_COMPACTBENCH"
_LONGEST: Final = 1800


def environment(package: str, *, at_least: tuple[int, int] = (3, 11)) -> Path:
    """The Python of an environment that has `package` (`name==version`), made where there is none. Raises
    Unavailable."""
    folder = FOLDER / package.replace("==", "-")
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        interpreter = _interpreter(at_least)
        shutil.rmtree(folder, ignore_errors=True)
        _done([interpreter, "-m", "venv", str(folder)], f"{package}: no environment")
        _done([str(python), "-m", "pip", "install", "--quiet", package], f"{package} cannot be installed")
        (folder / "complete").touch()
    return python


def templates() -> Path:
    """The folder with compactbench's templates, which its package does not hold. Raises Unavailable."""
    folder = FOLDER / "compactbench-templates"
    if not (folder / "benchmarks").exists():
        source = os.environ.get(_CLONE, TEMPLATES)
        hint = f"; {_CLONE} may name a clone of {TEMPLATES}"
        shutil.rmtree(folder, ignore_errors=True)
        _done(["git", "clone", "--quiet", "--depth", "1", source, str(folder)], f"no templates{hint}")
    return folder / "benchmarks" / "public"


def run(python: Path, runner: str, *arguments: str) -> Any:
    """What a module of `bench.suites.runners` prints, read. Raises Unavailable."""
    path = os.pathsep.join(filter(None, (str(HERE.parent), os.environ.get("PYTHONPATH"))))
    surroundings = {**os.environ, "PYTHONPATH": path, PYTHON: sys.executable, "PYTHONWARNINGS": "ignore"}
    command = [str(python), "-m", f"bench.suites.runners.{runner}", *arguments]
    return json.loads(_done(command, f"{runner} failed", surroundings))


def _interpreter(at_least: tuple[int, int]) -> str:
    names = [sys.executable, *(f"python3.{minor}" for minor in range(at_least[1], at_least[1] + 4))]
    for name in names:
        if (path := shutil.which(name)) is None:
            continue
        asked = subprocess.run(
            [path, "-c", f"import sys; sys.exit(sys.version_info < {at_least})"], capture_output=True, check=False
        )
        if not asked.returncode:
            return path
    raise Unavailable(f"it needs Python {at_least[0]}.{at_least[1]}, which is not on the path")


def _done(command: list[str], problem: str, surroundings: dict[str, str] | None = None) -> str:
    """Returns the output of a command. Raises Unavailable."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_LONGEST, check=False, env=surroundings, cwd=HERE.parent
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{problem}: {error}") from error
    if done.returncode:
        raise Unavailable(f"{problem}: {(done.stderr.strip().splitlines() or ['no message'])[-1][:300]}")
    return done.stdout
