"""Suites that others wrote, beside the compactors that come with them. What cannot be had here is left out with a note.

Everything is measured without a model: what a suite would ask a model about is looked for in what would be sent.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.report import Cell, Table
from bench.run_settings import RunSettings
from bench.servers import Unavailable
from bench.suites import named_files
from bench.suites.environments import environment, templates
from bench.suites.environments import run as run_suite

KIT = "compaction-conformance-kit==0.8.0"
COMPACTBENCH = "compactbench==0.1.0"
CACHEBENCH = "maf-cachebench==0.4.1"
KNOWING = ("checklist-carrying", "update-aware-checklist", "semantic-checklist", "pinned-rules")
"""Compactors of the kit that look for the headers with which it marks what must survive."""


_UNBOUND = ("none", "tool_result", "selective_tool_call", "anchored_no_assistant")
"""Strategies of maf-cachebench whose last prompt is longer than the window."""

_MODES = {"one more turn": "asked for five times", "own output": "its output compacted again"}
"""How Accordion is given a conversation of the kit, in the table of goals."""

Rows = list[list[Cell]]


def run(setting: RunSettings) -> list[Table]:
    """A table of all goals, and one for each suite."""
    parts: list[Callable[[Rows], list[Table]]] = [
        _kit,
        _compactbench,
        _cachebench,
        lambda rows: _files(rows, setting.data),
    ]
    columns = ("measured", "accordion", "goal", "best of the suite's own", "best that knows its headers")
    goals, tables = Table("Suites that others wrote: now, goal, and their own compactors", columns), list[Table]()
    for part in parts:
        try:
            tables += part(goals.rows)
        except Unavailable as reason:
            goals.notes.append(f"left out: {reason}")
    if not tables:
        raise Unavailable("suites: " + "; ".join(goals.notes))
    goals.notes.append("no model anywhere: what a suite would ask a model about is looked for in what would be sent")
    return [goals, *tables]


def _kit(rows: Rows) -> list[Table]:
    found = run_suite(environment(KIT), "conformance_kit")
    shares = found["shares"]
    titles = list(next(iter(shares.values())))
    columns = ("compactor", *(f"{title}, round {number}" for title in titles for number in (1, 5)))
    table = Table(f"{KIT}: all types, window 4,000, %", columns)
    for name, each in shares.items():
        table.rows.append([_marked(name), *(each[title][at] for title in titles for at in (0, -1))])
    table.notes.append(
        "accordion: the client's list with one more exchange each time; with 40 more; what was sent the round before"
    )
    table.notes.append("* knows the headers with which the kit marks what must survive; none but accordion has a limit")
    for title in titles:
        ends = {
            name: f"{_format_share(each[title][0])} / {_format_share(each[title][-1])}" for name, each in shares.items()
        }
        last = {name: each[title][-1] for name, each in shares.items()}
        named = f"kit, {title}: all types, round 1 / 5"
        for mode, what in _MODES.items():
            rows.append([f"{named}, {what}", ends[f"accordion, {mode}"], "100", *_best(last, ends)])
    return [table, _leaderboard(rows, found["board"])]


def _best(last: dict[str, float], ends: dict[str, Any]) -> list[Cell]:
    """The best of the kit's own: of those that do not know its headers, and of those that do."""
    own = [name for name in last if not name.startswith("accordion")]
    groups = ([name for name in own if name not in KNOWING], [name for name in own if name in KNOWING])
    return [ends[max(group, key=last.__getitem__)] for group in groups]


def _format_share(share: float) -> str:
    return f"{share:.0f}"


def _leaderboard(rows: Rows, entries: list[dict[str, Any]]) -> Table:
    columns = ("budget, %", "rank", "compactor", "survival", "updates resolved", "only the old value", "distinct pairs")
    table = Table(f"{KIT}: leaderboard at equal budgets, %", columns)
    by_budget: dict[int, dict[str, float]] = {}
    for entry in entries:
        semantic = entry["semantic"]
        name, budget = entry["compactor"], round(100 * entry["budget_fraction"])
        survival = by_budget.setdefault(budget, {})[name] = 100 * entry["randomized"]["overall_final_survival"]
        conflicts = semantic["conflicts"]
        stale = 100 * conflicts["stale_only"] / conflicts["n"]
        rates = (100 * semantic["resolved_rate"], stale, 100 * semantic["distinct_pair_rate"])
        table.rows.append([budget, entry["rank"], _marked(name), survival, *rates])
    for budget, goal in ((20, 70), (30, 100)):
        shares = by_budget[budget]
        rows.append([f"kit, leaderboard at {budget} %", shares["accordion"], goal, *_best(shares, shares)])
    table.notes.append("an update is resolved if the new value is there and the old one is not")
    return table


def _compactbench(rows: Rows) -> list[Table]:
    found = run_suite(environment(COMPACTBENCH), "compact_bench", str(templates()))
    windows = sorted(found, key=int, reverse=True)
    columns = [f"{int(window):,}, round {number}" for window in windows for number in (1, 5)]
    table = Table(f"{COMPACTBENCH}: windows of some tokens, %", ("expected", *columns))
    for kind in sorted(found[windows[0]]["shares"]):
        shares = [found[window]["shares"][kind] for window in windows]
        table.rows.append([kind.replace("_", " "), *(each[at] for each in shares for at in (0, -1))])
    table.notes.append(f"{found[windows[0]]['items']} values of its templates; its own compactors need a model")
    for window in windows:
        shares, decisions = found[window]["shares"]["all"], found[window]["decisions"]
        name, stale = f"compactbench at {int(window):,}", f"{max(found[window]['stale'])} of {decisions}"
        rows.append([f"{name}: all, round 1 / 5", f"{shares[0]:.0f} / {shares[-1]:.0f}", "95", None, None])
        rows.append([f"{name}: only the old decision is left", stale, "0", None, None])
    return [table]


def _cachebench(rows: Rows) -> list[Table]:
    found = run_suite(environment(CACHEBENCH, at_least=(3, 12)), "cache_bench")
    facts, costs = found["facts"], found["costs"]
    windows, presets = sorted(facts["accordion"], key=int), sorted(costs["accordion"])
    columns = ["strategy"]
    for window in windows:
        columns += [f"facts left at {int(window):,}, %", "tokens at the end"]
    table = Table(f"{CACHEBENCH}: facts that are left, and cost", [*columns, *(f"cost, {each}" for each in presets)])
    for name, each in facts.items():
        cells: list[Cell] = [value for window in windows for value in each[window]]
        table.rows.append([name, *cells, *(round(costs[name][preset]) for preset in presets)])
    table.notes.append("cost: tokens of all prompts, those cached at a quarter; accordion has the same room in text")
    table.notes.append(f"longer than the window at the end, and so not compared: {', '.join(_UNBOUND)}")
    own = [name for name in facts if name != "accordion" and name not in _UNBOUND]
    for window in reversed(windows):
        best = max(facts[name][window][0] for name in own)
        rows.append([f"cachebench: facts left at {int(window):,}", facts["accordion"][window][0], "99", best, None])
    for preset in presets:
        cheapest = min(own, key=lambda name: costs[name][preset])
        ours, theirs = (round(costs[name][preset]) for name in ("accordion", cheapest))
        rows.append([f"cachebench: cost, {preset} (less is better)", ours, None, theirs, None])
    return [table]


def _files(rows: Rows, data: Path | None) -> list[Table]:
    if data is None or not (data / named_files.RECORDINGS).exists():
        raise Unavailable("files: say where the recorded runs are, by --data FOLDER or BENCH_DATA")
    found = named_files.measure(data)
    columns = ("summary", "characters", "files touched, %", "files needed again, %")
    table = Table("Files that summaries of Claude Code's sessions name", columns)
    for title, who in (("accordion, without a model", "ours"), ("Claude Code's own", "theirs")):
        table.rows.append([title, *(found[f"{who}, {each}"] for each in ("characters", "touched", "needed"))])
    table.notes.append(f"{found['summaries']:.0f} summaries in recorded sessions, {found['files']:.0f} files")
    theirs = found["theirs, touched"]
    rows.append(["files that a summary names, beside Claude Code's", found["ours, touched"], "64", theirs, None])
    return [table]


def _marked(name: str) -> str:
    return f"{name} *" if name in KNOWING else name
