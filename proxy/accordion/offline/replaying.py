"""`accordion replay`: files in, tables or JSON out, progress and problems on the standard error."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import msgspec
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from accordion.offline import fold_tables, machine, tables
from accordion.offline.fold_tables import Refolded
from accordion.offline.refolding import Carried, refold, sums
from accordion.offline.replay import Accuracy, Measured, accuracy, replay
from accordion.offline.rooms import Rooms
from accordion.offline.tables import Replayed
from accordion.offline.transcripts import Malformed, Recorded, Source, count_requests
from accordion.settings import Settings

Shown = Replayed | Refolded


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for; `window` in tokens, `limit` in conversations."""

    model: str | None = None
    window: int | None = None
    limit: int | None = None
    every: bool = False
    against_usage: bool = False
    as_json: bool = False
    fold: bool = False


def run(files: Sequence[str], settings: Settings, options: Options) -> int:
    """Replays transcripts; returns the exit code: 1 where something could not be read, else 0."""
    return asyncio.run(_replay(files, settings, options))


class _Bar:
    """Progress over all files on the standard error, where that is a terminal; `say` prints above it."""

    def __init__(self, sources: Sequence[Source], *, hidden: bool) -> None:
        self._sources = sources
        console = Console(stderr=True, highlight=False)
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=hidden or not console.is_terminal)
        self._task = self._bar.add_task("reading", total=sum(source.size for source in sources) or None)
        self._begun = 0.0

    def begin(self, source: Source, name: str) -> None:
        """Another conversation of `source`; what is decompressed ahead of it counts as read."""
        self._bar.update(self._task, description=f"{source.name.rpartition('/')[2]}: {name}"[:40])

    def advance(self, source: Source, share: float) -> None:
        """A `share` of what was read of the source since the last conversation is done."""
        before = sum(other.size for other in self._sources[: self._sources.index(source)])
        reached = before + source.position
        done = self._begun + (reached - self._begun) * share
        self._bar.update(self._task, completed=done)
        if share >= 1:
            self._begun = done

    def say(self, text: str) -> None:
        """A line on the standard error."""
        self._bar.console.print(Text(text, style="red", overflow="fold"), soft_wrap=True)

    def start(self) -> None:
        """Shows the bar."""
        self._bar.start()

    def stop(self) -> None:
        """Takes it away, so that something else can be printed."""
        self._bar.stop()


async def _replay(files: Sequence[str], settings: Settings, options: Options) -> int:
    out = Console(highlight=False)
    sources = [Source(file) for file in files]
    # A bar and lines on one terminal would write over each other.
    bar = _Bar(sources, hidden=options.as_json and out.is_terminal)
    rooms, done, problems = Rooms(settings, options.window), list[Shown](), 0
    bar.start()
    try:
        for source, item in _items(sources, options.limit):
            if isinstance(item, Malformed):
                problems += 1
                bar.say(str(item))
                continue
            done.append(await _one(source, item, rooms, options, bar))
            if not options.as_json:
                bar.stop()
                out.print(_shown(done[-1], options, out))
                bar.start()
    finally:
        bar.stop()
        await rooms.close()
    if not (done or problems):
        bar.say("No conversation found in the input.")
    if options.as_json:
        for said in _last(done, options):
            _write(said)
    else:
        for shown in _closing(done, options, out):
            out.print(shown)
    return 1 if problems else 0


def _items(sources: Sequence[Source], limit: int | None) -> Iterator[tuple[Source, Recorded | Malformed]]:
    left = limit
    for source in sources:
        for item in source:
            if left is not None and isinstance(item, Recorded):
                if left <= 0:
                    return
                left -= 1
            yield source, item


async def _one(source: Source, recorded: Recorded, rooms: Rooms, options: Options, bar: _Bar) -> Shown:
    bar.begin(source, recorded.name)
    expected = max(1, count_requests(recorded.transcript))
    if options.fold:
        folded: list[Carried] = []
        async for one in refold(recorded, rooms, model=options.model):
            folded.append(one)
            bar.advance(source, one.number / expected)
            if options.as_json:
                _write(machine.carried(recorded, one))
        return Refolded(recorded.file, recorded.line, recorded.name, tuple(folded))
    rows: list[Measured] = []
    async for row in replay(recorded.transcript, rooms, model=options.model, learn=options.against_usage):
        rows.append(row)
        bar.advance(source, row.number / expected)
        if options.as_json:
            _write(machine.measured(recorded, row, usage=options.against_usage))
    return Replayed(recorded.file, recorded.line, recorded.name, tuple(rows))


def _write(said: dict[str, Any]) -> None:
    sys.stdout.write(msgspec.json.encode(said).decode() + "\n")


def _last(done: Sequence[Shown], options: Options) -> Iterator[dict[str, Any]]:
    """What machines are told at the end."""
    if options.fold:
        yield machine.totals(sums([row for one in done if isinstance(one, Refolded) for row in one.rows]))


def _shown(one: Shown, options: Options, out: Console) -> RenderableType:
    if not one.rows:
        return tables.without_requests(one)
    if isinstance(one, Refolded):
        return fold_tables.conversation(one, out, every=options.every)
    return tables.conversation(one, out, every=options.every)


def _closing(done: Sequence[Shown], options: Options, out: Console) -> Iterator[RenderableType]:
    """What is shown at the end: all conversations together, and how right the estimates were."""
    refolded = [one for one in done if isinstance(one, Refolded)]
    replayed = [one for one in done if isinstance(one, Replayed)]
    if len(refolded) > 1:
        yield fold_tables.overview(refolded, out)
    if len(replayed) > 1:
        yield tables.overview(replayed, out)
    if options.against_usage:
        found = [_accuracy(file, group) for file, group in groupby(replayed, key=lambda one: one.file)]
        if len(found) > 1:
            found.append(_accuracy("all", replayed))
        yield tables.accuracy(found)


def _accuracy(name: str, replayed: Iterable[Replayed]) -> Accuracy:
    return accuracy(name, [row for one in replayed for row in one.rows])
