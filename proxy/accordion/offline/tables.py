"""What a replay shows to a person: tables, a plot, a summary."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, Protocol, TypeVar

from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from accordion.core.budget import Limits, Window
from accordion.offline.plot import levels, plot, sparkline, style_of
from accordion.offline.replay import Accuracy, Measured, cacheable

ROWS = 20
"""How many requests a condensed table shows, about."""

_LIMIT = re.compile(r"the (?:conversation |generation |)(trigger|hard limit) of [\d,]+ tokens")


class _Row(Protocol):
    """A request; `limits` and `window` are None where its body was not understood."""

    @property
    def model(self) -> str: ...
    @property
    def window(self) -> Window | None: ...
    @property
    def limits(self) -> Limits | None: ...


R = TypeVar("R", bound=_Row)


@dataclass(frozen=True, slots=True)
class Requests(Generic[R]):
    """A conversation with all its requests."""

    file: str
    line: int
    name: str
    rows: tuple[R, ...]

    @property
    def read(self) -> list[R]:
        """The requests whose bodies were understood."""
        return [row for row in self.rows if row.limits]


@dataclass(frozen=True, slots=True)
class Replayed(Requests[Measured]):
    """A conversation whose requests were gauged."""

    @property
    def peak(self) -> Measured | None:
        """The request with the fullest window."""
        return max(self.read, key=lambda row: row.utilization.ratio, default=None)


def conversation(replayed: Replayed, console: Console, *, every: bool) -> RenderableType:
    """One conversation: heading, table, plot, summary line."""
    read = replayed.read
    shown = [*heading(replayed), "", _table(replayed.rows, every=every)]
    if read and (limits := read[-1].limits):
        ratios = [row.utilization.ratio for row in read]
        turns = [index for index, row in enumerate(read) if row.starts_turn]
        ascii_only = console.options.ascii_only
        shown += ["", *plot(ratios, turns, limits, console.width - 2, ascii_only=ascii_only)]
    shown += ["", summary(replayed)]
    return Padding(Group(*shown), (1, 1))


def without_requests(requests: Requests[Any]) -> RenderableType:
    """A conversation in which nothing was asked."""
    said = "It holds no request: a request is the list of messages before an assistant message."
    return Padding(Group(*heading(requests), "", said), (1, 1))


def heading(requests: Requests[R]) -> list[RenderableType]:
    """What stands above a conversation: its name, and its place where that is another; the window of its end."""
    name, place, read = requests.name, f"{requests.file}:{requests.line}", requests.read
    shown: list[RenderableType] = [
        Text.assemble((name, "bold"), "" if place == name else f"  {place}", overflow="fold")
    ]
    if read and (window := read[-1].window) and (limits := read[-1].limits):
        shown.append(Text(_of_window(read[-1].model, window, limits), style="dim"))
    return shown


def summary(replayed: Replayed) -> Text:
    """What there is to say of a conversation in a line or two."""
    read, peak = replayed.read, replayed.peak
    if peak is None or peak.limits is None:
        return Text("No request could be parsed. Each would be forwarded unchanged.")
    ratio, marks = peak.utilization.ratio, levels(peak.limits)
    text = Text(overflow="fold")
    text.append(f"Peak {ratio:.1%}", style=f"bold {style_of(ratio, marks)}")
    text.append(f" at request {peak.number} ({peak.tokens:,} tokens). ")
    over = [f"{level.name} ({level.share:.0%}): {_over(read, level.name)}" for level in marks]
    text.append(f"Requests at or over the {', '.join(over)}; {len(replayed.rows)} in total. ")
    text.append(
        f"Total input: {sum(row.tokens for row in read):,} tokens; {cacheable(read):.1%} of them repeat the beginning "
    )
    text.append("of the previous request, which a provider can cache.")
    return text


def overview(all_replayed: Sequence[Replayed], console: Console) -> RenderableType:
    """A line for each of many conversations, and their sums."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_footer=True, title_justify="left")
    rows = [row for replayed in all_replayed for row in replayed.read]
    shape = max(8, min(30, console.width - 65))
    table.add_column("conversation", f"{len(all_replayed)} in total", overflow="fold", max_width=32)
    table.add_column("requests", f"{sum(len(r.rows) for r in all_replayed):,}", justify="right", no_wrap=True)
    fullest = max((row.utilization.ratio for row in rows), default=0.0)
    table.add_column("peak", f"{fullest:.1%}", justify="right", no_wrap=True)
    table.add_column("input tokens", f"{sum(row.tokens for row in rows):,}", justify="right", no_wrap=True)
    table.add_column("cacheable", f"{cacheable(rows):.1%}", justify="right", no_wrap=True)
    table.add_column("utilization", no_wrap=True)
    for replayed in all_replayed:
        read, peak = replayed.read, replayed.peak
        limits = peak.limits if peak else None
        ratio = peak.utilization.ratio if peak else 0.0
        style = style_of(ratio, levels(limits)) if limits else "dim"
        table.add_row(
            replayed.name,
            f"{len(replayed.rows):,}",
            Text(f"{ratio:.1%}", style=style),
            f"{sum(row.tokens for row in read):,}",
            f"{cacheable(read):.1%}",
            sparkline([r.utilization.ratio for r in read], limits, shape, ascii_only=console.options.ascii_only),
        )
    over = [f"{name} {_over(rows, name):,}" for name in ("conversation trigger", "generation trigger", "hard limit")]
    note = Text(f"Requests at or over the {', '.join(over)}. ")
    note.append("cacheable: the share of the input that repeats the beginning of the previous request.")
    return Padding(Group(table, "", note), (1, 1))


def accuracy(measured: Sequence[Accuracy]) -> RenderableType:
    """How far the estimates were from what the providers reported, by file: before and after correction."""
    if not any(one.plain.requests for one in measured):
        return Padding(Text("No usage is recorded in the transcripts, so there is nothing to compare with."), (1, 1))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title_justify="left", title_style="bold")
    table.title = "Error of the estimate against reported usage"
    for name in ("", "estimate"):
        table.add_column(name, overflow="fold")
    for name in ("reports", "median", "90 %", "largest"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in measured:
        shown = (("plain count", one.plain), ("corrected", one.corrected), ("later ones", one.later))
        for what, found in shown:
            figures = (f"{share:.2%}" for share in (found.median, found.p90, found.most))
            table.add_row(one.name if found is one.plain else "", what, f"{found.requests:,}", *figures)
    note = Text(
        "corrected: with the usage that earlier responses reported. later ones: without the first request of each ",
        style="dim",
    )
    note.append("conversation, for which only other conversations can supply a correction.")
    return Padding(Group(table, "", note), (1, 1))


def _of_window(model: str, window: Window, limits: Limits) -> str:
    """The model's window, how it is known, and its limits."""
    named = model or "no model"
    source = {"config": "as given", "learnt": "learned from an error", "table": "LiteLLM's table"}
    known = source.get(window.source, "assumed: the model is unknown")
    shares = (f"{name} {tokens:,}" for name, tokens in _figures(limits))
    return f"{named}, window {window.size:,} tokens ({known}); {', '.join(shares)}"


def _figures(limits: Limits) -> list[tuple[str, int]]:
    return [
        ("conversation trigger", limits.conversation),
        ("generation trigger", limits.generation),
        ("hard limit", limits.hard),
    ]


def _over(rows: Sequence[Measured], name: str) -> int:
    return sum(row.utilization.occupied >= dict(_figures(row.limits))[name] for row in rows if row.limits)


def _table(rows: Sequence[Measured], *, every: bool) -> Table:
    shown = rows if every else _condensed(rows)
    names = ("#", "turn", "messages", "tokens", "new", "used", "kind", "decision")
    return grid(names, ("kind", "decision"), [_cells(row) for row in shown], len(rows))


def grid(names: Sequence[str], words: Sequence[str], cells: Sequence[Sequence[str | Text]], requests: int) -> Table:
    """A table of some of so many `requests`. Its columns have `names`; those of `words` stand on the left, and only
    the last gives way where there is little room."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for column, name in enumerate(names):
        widest = max([len(name), *(len(row[column]) for row in cells)]) if name != names[-1] else None
        justify: JustifyMethod = "left" if name in words else "right"
        table.add_column(name, justify=justify, min_width=widest, no_wrap=True, overflow="ellipsis")
    for row in cells:
        table.add_row(*row)
    if len(cells) < requests:
        table.caption = f"{len(cells)} of {requests} requests; --all shows every one"
        table.caption_justify = "left"
    return table


def _cells(row: Measured) -> tuple[str | Text, ...]:
    if row.limits is None:
        return (str(row.number), str(row.turn), str(row.messages), "", "", "", "", "pass, not parsed")
    style = style_of(row.utilization.ratio, levels(row.limits))
    return (
        str(row.number),
        str(row.turn),
        f"{row.messages:,}",
        f"{row.tokens:,}",
        f"{row.new:+,}",
        Text(f"{row.utilization.ratio:.1%}", style=style),
        Text("turn start", style="bold") if row.starts_turn else "mid-generation",
        Text(_short(row), style=style),
    )


def _short(row: Measured) -> str:
    """The decision without the figures that stand beside it."""
    why = row.decision.reason.rpartition(" of the window, ")[2]
    return f"{row.decision.action}, " + _LIMIT.sub(r"\1", why)


def _condensed(rows: Sequence[Measured]) -> Sequence[Measured]:
    """About ROWS of the requests: the first, the last, the fullest, the first over each limit, the
    beginnings of turns where they are few, and others evenly."""
    if len(rows) <= ROWS + ROWS // 4:
        return rows
    wanted = {0, len(rows) - 1, max(range(len(rows)), key=lambda index: rows[index].utilization.ratio)}
    for name in ("conversation trigger", "generation trigger", "hard limit"):
        wanted |= set([index for index, row in enumerate(rows) if _over([row], name)][:1])
    turns = {index for index, row in enumerate(rows) if row.starts_turn}
    return [rows[index] for index in filled(len(rows), wanted, turns)]


def filled(count: int, wanted: set[int], turns: set[int]) -> list[int]:
    """About ROWS of `count` indices: those `wanted`, those of `turns` where they are few, and others evenly."""
    wanted = wanted | (turns if len(turns) <= ROWS // 2 else set())
    while len(wanted) < min(ROWS, count):
        before, after = max(pairwise(sorted(wanted)), key=lambda gap: gap[1] - gap[0])
        wanted.add((before + after) // 2)
    return sorted(wanted)
