"""`python -m bench [scenario ...]`: every scenario, or those named; see bench/README.md."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from rich.console import Console

from bench import machine, report
from bench.run_settings import RunSettings, default_pins
from bench.scenarios import SCENARIOS
from bench.servers import Pins, Unavailable

ENDPOINT_OPTIONS = {
    "endpoint": "reader, agent, writer: the base URL of a model's API, with /v1",
    "model": "the model's name there (default: its only one)",
    "key_env": "the environment variable with its key",
    "context": "its window in tokens",
    "tokens": "the size of a conversation (default: twice the window)",
    "conversations": "conversations of each kind",
    "questions": "questions about a conversation, at most",
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Accordion measured side by side with others.")
    parser.add_argument("scenario", nargs="*", help=f"any of {', '.join(SCENARIOS)}; all when none is named")
    parser.add_argument("--only", help="contenders, by parts of their names: accordion,aiohttp,httpx,litellm")
    parser.add_argument("--quick", action="store_true", help="fewer requests, one round: to see that all runs")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which the median counts (default 3)")
    parser.add_argument("--store", choices=("sqlite", "memory"), default="sqlite", help="Accordion's store")
    parser.add_argument("--no-pin", action="store_true", help="do not give the server under test its own core")
    parser.add_argument("--tools", type=Path, metavar="FOLDER", help="quality: where quality.py is (or BENCH_TOOLS)")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        help="quality, recall, files, suites: where recorded runs are (or BENCH_DATA)",
    )
    parser.add_argument("--windows", default="", help="quality: some of 32k,8k,128k; all when left out")
    parser.add_argument("--seconds", type=float, default=0.0, help="soak: how long (default 300)")
    parser.add_argument("--minutes", type=float, default=0.0, help="campaign: how long at least (default 10)")
    parser.add_argument("--seed", type=int, default=1, help="campaign: decides what fails, and in which order")
    parser.add_argument("--proxies", type=int, default=0, help="fleet: how many proxies (default 4)")
    parser.add_argument("--sessions", type=int, default=0, help="fleet: how many sessions in a phase (default 48)")
    for option, text in ENDPOINT_OPTIONS.items():
        kind = int if isinstance(getattr(RunSettings, option), int) else str
        parser.add_argument(f"--{option.replace('_', '-')}", type=kind, default=getattr(RunSettings, option), help=text)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables into this Markdown file")
    given = parser.parse_args()
    unknown = [name for name in given.scenario if name not in SCENARIOS]
    if unknown:
        parser.error(f"no such scenario: {', '.join(unknown)}")
    return given


def main() -> int:
    given = arguments()
    setting = RunSettings(
        quick=given.quick,
        rounds=min(max(given.rounds, 1), 9),
        only=tuple(filter(None, (given.only or "").split(","))),
        store=given.store,
        pins=Pins() if given.no_pin else default_pins(),
        tools=given.tools or _folder("BENCH_TOOLS"),
        seconds=given.seconds,
        minutes=given.minutes,
        seed=given.seed,
        proxies=given.proxies,
        sessions=given.sessions,
        **{option: getattr(given, option) for option in ENDPOINT_OPTIONS},
        data=given.data or _folder("BENCH_DATA"),
        windows=tuple(int(each.strip().removesuffix("k")) * 1000 for each in given.windows.split(",") if each.strip()),
    )
    console = Console(width=None if sys.stdout.isatty() else 160)
    results: dict[str, list[report.Table]] = {}
    missed = 0
    for name in given.scenario or SCENARIOS:
        began = time.monotonic()
        busy = machine.busy_share()
        try:
            results[name] = SCENARIOS[name](setting)
        except Unavailable as reason:
            console.print(str(reason), style="bold", highlight=False)
            missed = missed or int(bool(given.scenario))
            continue
        results[name][0].notes.append(f"just before, other processes kept {busy:.0%} of the machine busy")
        report.display(results[name], console)
        missed = missed or int(any(table.has_failed for table in results[name]))
        console.print(f"[dim]{name}: {time.monotonic() - began:.0f} s[/dim]\n")
        if given.json:
            given.json.write_text(json.dumps(report.as_json(results), indent=1, ensure_ascii=False) + "\n")
        if given.markdown:
            report.write_markdown(given.markdown, {"machine": machine.described()})
            report.write_markdown(given.markdown, report.blocks(name, results[name]))
    return missed


def _folder(variable: str) -> Path | None:
    return Path(os.environ[variable]) if os.environ.get(variable) else None


if __name__ == "__main__":
    sys.exit(main())
