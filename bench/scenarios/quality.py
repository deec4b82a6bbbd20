"""The facts an agent needs later that survive a compaction: recorded runs replayed through the product.

The measurement is `quality.py`, a tool of its own that is not part of this repository; where it lies is said by
`--tools` or `BENCH_TOOLS`, where the recordings lie by `--data` or `BENCH_DATA` (else the tool's own place for them).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.published_figures import GOALS, PUBLISHED, PUBLISHED_AT, Goal, Row
from bench.report import Cell, Table
from bench.run_settings import RunSettings
from bench.servers import HERE, Unavailable

COLUMNS: Final = (
    "compactor",
    "reduction",
    "fits",
    "valid",
    "task",
    "last",
    "far",
    "far, one retrieval",
    "code",
    "code, one retrieval",
    "prefix",
    "cost",
    "ms p50",
    "ms p95",
)
BY_FILE: Final = (
    "recordings",
    "runs",
    "steps pressed",
    "fits",
    "valid",
    "far",
    "far, one retrieval",
    "code, one retrieval",
    "prefix",
    "cost",
)
OURS: Final = "accordion"
COMMON: Final = ("--trigger", "0.5", "--reserve", "0", "--sample-steps", "80", "--compactors", "noop")
RUNS: Final[Mapping[int, tuple[int, int, Sequence[str]]]] = {
    32_000: (8_000, 20, ()),
    8_000: (2_000, 40, ("service_", "delegation", "research", "moatless")),
    128_000: (8_000, 20, ("claude_code", "pi", "super")),
}
"""For each window how many tokens back is far, how many runs of each recording are taken, and which recordings: all
where none is named."""
QUICK: Final = ("--sample", "1", "--sample-steps", "10", "--max-steps", "60")
LONGEST: Final = 3 * 3600


def run(setting: RunSettings) -> list[Table]:
    tables, script = list[Table](), tool("quality", setting)
    for window in windows("quality", setting):
        began = time.monotonic()
        found = _measured(setting, script, window)
        tables += [_table(window, found, time.monotonic() - began), _by_file(window, found)]
    return tables


def tool(scenario: str, setting: RunSettings) -> Path:
    """Where `quality.py` is. Raises Unavailable."""
    if setting.tools is None:
        raise Unavailable(f"{scenario}: say where the folder with quality.py is, by --tools FOLDER or BENCH_TOOLS")
    if not (found := setting.tools.resolve() / "quality.py").exists():
        raise Unavailable(f"{scenario}: there is no quality.py in {setting.tools}")
    return found


def windows(scenario: str, setting: RunSettings) -> Sequence[int]:
    """The windows that are wanted. Raises Unavailable."""
    if not RUNS.keys() >= set(setting.windows):
        raise Unavailable(f"{scenario}: windows are {', '.join(f'{each // 1000}k' for each in RUNS)}")
    return setting.windows or tuple(RUNS)


def _measured(setting: RunSettings, script: Path, window: int) -> dict[str, Any]:
    """What the tool wrote as JSON."""
    far, sample, only = RUNS[window]
    chosen = ["--far", str(far), "--sample", str(sample), *(("--only", *only) if only else ())]
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        out = Path(scratch) / "quality.json"
        data = ["--data", str(setting.data.resolve())] if setting.data else []
        plugin = f"{HERE / 'quality_adapter.py'}:compact={OURS}"
        command = [sys.executable, str(script), "--window", str(window), *COMMON, *chosen, *data]
        command += [*(QUICK if setting.quick else ()), "--plugin", plugin, "--json", str(out)]
        path = os.pathsep.join(filter(None, (str(HERE.parent), os.environ.get("PYTHONPATH"))))
        done = subprocess.run(
            ["nice", "-n", "10", *command],
            env={**os.environ, "PYTHONPATH": path},
            cwd=scratch,
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=False,
        )
        if done.returncode:
            raise Unavailable(f"quality: the tool failed: {done.stderr.strip()[-400:]}")
        measured: dict[str, Any] = json.loads(out.read_text())
        return measured


# -- tables ------------------------------------------------------------------------------------------------------------


def _table(window: int, found: dict[str, Any], seconds: float) -> Table:
    own, base = found["overall"][OURS], found["overall"]["noop"]
    size = f"{window // 1000}k"
    table = Table(f"Quality at a window of {size} tokens", COLUMNS, block=f"quality-{size}")
    goal, row = GOALS[window], _row(own, base)
    table.rows.append([OURS, *row])
    table.rows.append(_wanted(goal))
    if window == PUBLISHED_AT:
        table.rows += [_published(each) for each in PUBLISHED]
    else:
        table.rows.append(["send everything", *_row(base, base)])
    runs = ", ".join(f"{name.removesuffix('.jsonl.gz')} {each[OURS]['n']}" for name, each in found["by_file"].items())
    table.notes.append(
        f"{own['n']} runs ({runs}), {own['steps']:,} steps, {own['pressed']:,} of them pressed; "
        f"{own['n_far']:,} far facts, {own['n_code']:,} of code; {seconds:.0f} s"
    )
    table.notes.append(f"95 % intervals over runs: {_intervals(own['ci'])}")
    if own["violations"] or own["errors"]:
        table.notes.append(f"violations: {json.dumps(own['violations'])}; {own['errors']} errors")
    if window == PUBLISHED_AT:
        table.notes.append(
            "rows below the goal: as published with the tool; from *sticky cut* on with a smaller sample of the same"
            " recordings, those that need a model with a plain extract of about 500 tokens"
        )
    _goals(table, goal, own, base)
    return table


def _row(own: dict[str, Any], base: dict[str, Any]) -> list[Cell]:
    shares = ("reduction", "fits", "valid", "task", "last", "far", "far_retr", "code", "code_retr", "prefix")
    return [*(_percent(own[name]) for name in shares), _cost(own, base), own["ms50"], own["ms95"]]


def _wanted(goal: Goal) -> list[Cell]:
    whole: list[Cell] = [100, 100, 100]
    far: list[Cell] = [goal.far, goal.far_retr, None, goal.code_retr]
    return ["*goal*", None, goal.fits, *whole, *far, goal.prefix, goal.cost, None, None]


def _published(row: Row) -> list[Cell]:
    name, reduction, fits, far, far_retr, code, code_retr, valid, prefix, cost = row
    return [name, reduction, fits, valid, None, None, far, far_retr, code, code_retr, prefix, cost, None, None]


def _by_file(window: int, found: dict[str, Any]) -> Table:
    size = f"{window // 1000}k"
    table = Table(f"Quality at {size}, by recordings", BY_FILE, block=f"quality-{size}")
    for name, each in found["by_file"].items():
        own, base = each[OURS], each["noop"]
        shares = (own[key] for key in ("fits", "valid", "far", "far_retr", "code_retr", "prefix"))
        label = name.removesuffix(".gz").removesuffix(".jsonl")
        table.rows.append([label, own["n"], own["pressed"], *map(_percent, shares), _cost(own, base)])
    return table


def _goals(table: Table, goal: Goal, own: dict[str, Any], base: dict[str, Any]) -> None:
    shares = {
        "fits": ("fits", goal.fits),
        "valid": ("valid", 100),
        "task there": ("task", 100),
        "newest message there": ("last", 100),
        "far": ("far", goal.far),
        "far with one retrieval": ("far_retr", goal.far_retr),
        "code with one retrieval": ("code_retr", goal.code_retr),
        "prefix": ("prefix", goal.prefix),
    }
    for text, (key, least) in shares.items():
        # Judged as shown: a share that is short by less than can be seen is not short.
        table.goal(text, round(100 * (own[key] or 0), 2), float(least), "%", at_least=True)
    table.goal("cost", _cost(own, base) or 0.0, goal.cost, "of sending everything")


def _intervals(found: dict[str, list[float] | None]) -> str:
    names = {"far": "far", "far_retr": "far with one retrieval", "code_retr": "code with one retrieval"}
    return "; ".join(
        f"{text} {100 * ends[0]:.0f} to {100 * ends[1]:.0f}" for key, text in names.items() if (ends := found[key])
    )


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.1f}"


def _cost(own: dict[str, Any], base: dict[str, Any]) -> float | None:
    return own["cost_abs"] / base["cost_abs"] if base["cost_abs"] else None
