"""What compactions at a cold prompt cache save in recorded sessions with times, such as those of Claude Code.

    python -m bench.cache_moments FILE_OR_FOLDER ... [--windows 200000 128000]

Each session is replayed with compaction once for each variant of `thresholds.cold_cache` and `thresholds.warm_cache`,
and its cost is computed as by `accordion savings FILE` (docs/savings.md): by the recorded usage, times and prices, with
the extractive writer. No model is called.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from accordion.composition.tables import build_prices
from accordion.config import Settings
from accordion.config.load import build
from accordion.features.offline.offline_pipeline import OfflinePipeline
from accordion.features.offline.past_savings import compute_past_costs
from accordion.features.offline.recordings import MalformedTranscript, PastConversation
from accordion.features.offline.replay import replay_with_compaction
from accordion.features.offline.transcripts import TranscriptSource
from accordion.model.costs import to_dollars
from accordion.model.shares import Share

VARIANTS: Mapping[str, tuple[float, float]] = {
    "at the trigger only": (0.0, 0.0),
    "**cold cache: from 0.10 below** (default)": (0.10, 0.0),
    "cold cache: from 0.15 below": (0.15, 0.0),
    "the default; warm cache: waits up to 0.05 above": (0.10, 0.05),
}
"""`cold_cache` and `warm_cache` by the name of the variant; the first one is the base of the comparison."""

LEAST_SHARE = 0.3
"""The share of the window that a conversation must reach. All others cost the same with each variant."""


class SessionCost(NamedTuple):
    """The cost of a session in nanodollars, its compactions, and those before the trigger."""

    spent: int
    compactions: int
    early: int


def main() -> int:
    """Prints a table for each window."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="session files, or folders with *.jsonl")
    parser.add_argument("--windows", nargs="+", type=int, default=[200_000, 128_000], help="windows in tokens")
    given = parser.parse_args()
    for window in given.windows:
        by_variant: dict[str, dict[str, SessionCost]] = {name: {} for name in VARIANTS}
        known_responses = set[str]()
        for file in _list_files(given.files):
            for recorded in _read(file, known_responses, int(window * LEAST_SHARE)):
                for name, (cold, warm) in VARIANTS.items():
                    cost = asyncio.run(_replay(recorded, window, _build_settings(cold, warm)))
                    by_variant[name][f"{file}:{recorded.line}"] = cost
        sys.stdout.write("\n".join(_write_table(window, by_variant)) + "\n")
        sys.stdout.flush()
    return 0


def _list_files(paths: Sequence[Path]) -> list[Path]:
    return [file for path in paths for file in (sorted(path.rglob("*.jsonl")) if path.is_dir() else [path])]


def _read(file: Path, known_responses: set[str], least: int) -> Iterator[PastConversation]:
    """Yields the conversations that no earlier file has, and that have times, and a prompt of `least` tokens."""
    for item in TranscriptSource(str(file), known_responses):
        if isinstance(item, MalformedTranscript):
            sys.stderr.write(f"{item}\n")
        elif any(request.at and request.usage and request.usage.input >= least for request in item.requests()):
            yield item


def _build_settings(cold_cache: float, warm_cache: float) -> Settings:
    settings = build(b"summaries: {writer: extractive}", {}, {})
    thresholds = replace(settings.thresholds, cold_cache=Share(cold_cache), warm_cache=Share(warm_cache))
    return replace(settings, thresholds=thresholds)


async def _replay(recorded: PastConversation, window: int, settings: Settings) -> SessionCost:
    pipeline = OfflinePipeline(settings, window)
    try:
        rows = [row async for row in replay_with_compaction(recorded, pipeline)]
    finally:
        await pipeline.close()
    costs = compute_past_costs(rows, build_prices(settings), lambda _model: False)
    made = [row.outcome for row in rows if row.state == "compacted" and row.outcome is not None]
    early = sum(outcome.cause == "cold_cache" for outcome in made)
    return SessionCost(sum(each.costs.spent for each in costs), len(made), early)


def _write_table(window: int, by_variant: Mapping[str, Mapping[str, SessionCost]]) -> Iterator[str]:
    base = next(iter(by_variant.values()))
    changed = {name for costs in by_variant.values() for name in costs if costs[name] != base[name]}
    yield f"\n**Window of {window:,} tokens**, {len(base):,} conversations of {LEAST_SHARE:.0%} of it or more\n"
    yield f"{len(changed):,} of them differ.\n"
    yield "| compaction | compactions | early | dollars | difference | cheaper | dearer | largest rise |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    total = sum(cost.spent for cost in base.values())
    for variant, costs in by_variant.items():
        changes = [costs[name].spent / base[name].spent - 1 for name in base if base[name].spent]
        spent = sum(cost.spent for cost in costs.values())
        yield (
            f"| {variant} | {sum(cost.compactions for cost in costs.values()):,} "
            f"| {sum(cost.early for cost in costs.values()):,} | {to_dollars(spent):,.2f} "
            f"| {spent / total - 1 if total else 0.0:+.2%} | {sum(change < 0 for change in changes):,} "
            f"| {sum(change > 0 for change in changes):,} | {max([0.0, *changes]):.1%} |"
        )


if __name__ == "__main__":
    sys.exit(main())
