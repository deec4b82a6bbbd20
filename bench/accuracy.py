"""`python -m bench.accuracy [FILE ...]`: how far the estimate is off, before and after correction.

A provider is stood in for by another real tokenizer with overheads of its own (`StandIn` of examples/record.py). Every
request of each transcript is gauged, then its usage is learnt, then the next one is gauged, as live. Each file starts
with nothing learnt.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
from rich.console import Console

from accordion.config import SettingsFile
from accordion.features.offline.offline_pipeline import OfflinePipeline
from accordion.features.offline.replay import Accuracy, ReplayMeasurement, measure_accuracy, replay
from accordion.features.offline.replay_tables import accuracy_table as table
from accordion.features.offline.transcripts import RecordedTranscript, TranscriptFile, TranscriptSource
from examples.record import StandIn

ROOT = Path(__file__).resolve().parent.parent
OWN = ROOT / "examples" / "transcript.jsonl"


def with_usage(transcript: TranscriptFile, provider: StandIn) -> TranscriptFile:
    """The transcript with what the provider would have reported."""
    usage = provider.usages(transcript.entries, transcript.tools or [])
    return msgspec.structs.replace(transcript, usage=usage)


async def measure_file(file: str, provider: StandIn, limit: int | None = None) -> list[ReplayMeasurement]:
    """Every request of a file's conversations, at most `limit` of them."""
    pipeline, rows, left = OfflinePipeline(SettingsFile(None, os.environ).settings), [], limit
    try:
        for item in TranscriptSource(file):
            if not isinstance(item, RecordedTranscript) or left == 0:
                continue
            left = None if left is None else left - 1
            recorded = replace(item, transcript=with_usage(item.transcript, provider))
            rows += [row async for row in replay(recorded, pipeline, learn=True)]
    finally:
        await pipeline.close()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.accuracy", description="The error of the estimate.")
    parser.add_argument("file", nargs="*", help="transcripts; default: those in BENCH_DATA, or our own")
    parser.add_argument("--limit", type=int, help="conversations of each file")
    given = parser.parse_args()
    data = Path(os.environ.get("BENCH_DATA") or "data")
    files = given.file or sorted(map(str, data.glob("*.jsonl.gz"))) or [str(OWN)]
    provider, found, everything = StandIn(), list[Accuracy](), list[ReplayMeasurement]()
    err = Console(stderr=True)
    for file in files:
        err.print(file, style="dim")
        rows = asyncio.run(measure_file(file, provider, given.limit))
        everything += rows
        found.append(measure_accuracy(Path(file).name, rows))
    found.append(measure_accuracy("all", everything))
    Console(highlight=False, width=110).print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
