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
from pathlib import Path

import msgspec
from rich.console import Console

from accordion.offline.replay import Accuracy, Measured, accuracy, replay
from accordion.offline.rooms import Rooms
from accordion.offline.tables import accuracy as table
from accordion.offline.transcripts import Recorded, Source, Transcript
from accordion.settings import SettingsFile
from examples.record import StandIn

ROOT = Path(__file__).resolve().parent.parent
OWN = ROOT / "examples" / "transcript.jsonl"


def with_usage(transcript: Transcript, provider: StandIn) -> Transcript:
    """The transcript with what the provider would have reported."""
    usage = provider.usages(transcript.messages, transcript.tools or [])
    return msgspec.structs.replace(transcript, usage=usage)


async def measure(file: str, provider: StandIn, limit: int | None = None) -> list[Measured]:
    """Every request of a file's conversations, at most `limit` of them."""
    rooms, rows, left = Rooms(SettingsFile(None, os.environ).settings), [], limit
    try:
        for item in Source(file):
            if not isinstance(item, Recorded) or left == 0:
                continue
            left = None if left is None else left - 1
            rows += [row async for row in replay(with_usage(item.transcript, provider), rooms, learn=True)]
    finally:
        await rooms.close()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.accuracy", description="The error of the estimate.")
    parser.add_argument("file", nargs="*", help="transcripts; default: those in BENCH_DATA, or our own")
    parser.add_argument("--limit", type=int, help="conversations of each file")
    given = parser.parse_args()
    data = Path(os.environ.get("BENCH_DATA") or "data")
    files = given.file or sorted(map(str, data.glob("*.jsonl.gz"))) or [str(OWN)]
    provider, found, everything = StandIn(), list[Accuracy](), list[Measured]()
    err = Console(stderr=True)
    for file in files:
        err.print(file, style="dim")
        rows = asyncio.run(measure(file, provider, given.limit))
        everything += rows
        found.append(accuracy(Path(file).name, rows))
    found.append(accuracy("all", everything))
    Console(highlight=False, width=110).print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
