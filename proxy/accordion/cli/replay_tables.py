"""Renders a replay as text: tables, a plot and a summary."""

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

from accordion.cli.plot import plot, plot_levels, sparkline, style_of
from accordion.cli.replay import Accuracy, ReplayMeasurement, cacheable_share
from accordion.model.budget import TokenLimits, Window

ROWS = 20
"""The approximate number of requests in a condensed table."""

_LIMIT = re.compile(r"the (?:conversation |generation |)(trigger|hard limit) of [\d,]+ tokens")


class _Row(Protocol):
    """A request; `limits` and `window` are None if its body was not parsed."""

    @property
    def model(self) -> str: ...
    @property
    def window(self) -> Window | None: ...
    @property
    def limits(self) -> TokenLimits | None: ...


R = TypeVar("R", bound=_Row)


@dataclass(frozen=True, slots=True)
class ReplayedConversation(Generic[R]):
    """A conversation with all its requests."""

    file: str
    line: int
    name: str
    rows: tuple[R, ...]

    @property
    def parsed_rows(self) -> list[R]:
        """The requests whose bodies were parsed."""
        return [row for row in self.rows if row.limits]


@dataclass(frozen=True, slots=True)
class MeasuredConversation(ReplayedConversation[ReplayMeasurement]):
    """A conversation with measured requests."""

    @property
    def peak(self) -> ReplayMeasurement | None:
        """The request with the fullest window."""
        return max(self.parsed_rows, key=lambda row: row.utilization.ratio, default=None)


def render_conversation(replay: MeasuredConversation, console: Console, *, every: bool) -> RenderableType:
    """Renders a conversation: heading, table, plot, summary line."""
    rows = replay.parsed_rows
    sections = [*render_heading(replay), "", _table(replay.rows, every=every)]
    if rows and (limits := rows[-1].limits):
        ratios = [row.utilization.ratio for row in rows]
        turns = [index for index, row in enumerate(rows) if row.starts_turn]
        ascii_only = console.options.ascii_only
        sections += ["", *plot(ratios, turns, limits, console.width - 2, ascii_only=ascii_only)]
    sections += ["", render_summary(replay)]
    return Padding(Group(*sections), (1, 1))


def without_requests(replay: ReplayedConversation[Any]) -> RenderableType:
    """Renders a conversation without requests."""
    note = "It holds no request: a request is the list of messages before an assistant message."
    return Padding(Group(*render_heading(replay), "", note), (1, 1))


def render_heading(replay: ReplayedConversation[R]) -> list[RenderableType]:
    """Renders the heading of a conversation: its name, its place if that is different, and its last window."""
    name, source, rows = replay.name, f"{replay.file}:{replay.line}", replay.parsed_rows
    sections: list[RenderableType] = [
        Text.assemble((name, "bold"), "" if source == name else f"  {source}", overflow="fold")
    ]
    if rows and (window := rows[-1].window) and (limits := rows[-1].limits):
        sections.append(Text(_describe_window(rows[-1].model, window, limits), style="dim"))
    return sections


def render_summary(replay: MeasuredConversation) -> Text:
    """Renders a summary of a conversation in one or two lines."""
    rows, peak = replay.parsed_rows, replay.peak
    if peak is None or peak.limits is None:
        return Text("No request could be parsed. Each would be forwarded unchanged.")
    ratio, levels = peak.utilization.ratio, plot_levels(peak.limits)
    text = Text(overflow="fold")
    text.append(f"Peak {ratio:.1%}", style=f"bold {style_of(ratio, levels)}")
    text.append(f" at request {peak.number} ({peak.tokens:,} tokens). ")
    counts = [f"{level.name} ({level.share:.0%}): {_count_over(rows, level.name)}" for level in levels]
    text.append(f"Requests at or over the {', '.join(counts)}; {len(replay.rows)} in total. ")
    text.append(
        f"Total input: {sum(row.tokens for row in rows):,} tokens; {cacheable_share(rows):.1%} of them repeat the "
        "beginning "
    )
    text.append("of the previous request, which a provider can cache.")
    return text


def render_overview(replays: Sequence[MeasuredConversation], console: Console) -> RenderableType:
    """Renders a line for each conversation, and the totals."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_footer=True, title_justify="left")
    all_rows = [row for replay in replays for row in replay.parsed_rows]
    sparkline_width = max(8, min(30, console.width - 65))
    table.add_column("conversation", f"{len(replays)} in total", overflow="fold", max_width=32)
    table.add_column("requests", f"{sum(len(r.rows) for r in replays):,}", justify="right", no_wrap=True)
    max_ratio = max((row.utilization.ratio for row in all_rows), default=0.0)
    table.add_column("peak", f"{max_ratio:.1%}", justify="right", no_wrap=True)
    table.add_column("input tokens", f"{sum(row.tokens for row in all_rows):,}", justify="right", no_wrap=True)
    table.add_column("cacheable", f"{cacheable_share(all_rows):.1%}", justify="right", no_wrap=True)
    table.add_column("utilization", no_wrap=True)
    for replay in replays:
        rows, peak = replay.parsed_rows, replay.peak
        limits = peak.limits if peak else None
        ratio = peak.utilization.ratio if peak else 0.0
        style = style_of(ratio, plot_levels(limits)) if limits else "dim"
        table.add_row(
            replay.name,
            f"{len(replay.rows):,}",
            Text(f"{ratio:.1%}", style=style),
            f"{sum(row.tokens for row in rows):,}",
            f"{cacheable_share(rows):.1%}",
            sparkline(
                [r.utilization.ratio for r in rows], limits, sparkline_width, ascii_only=console.options.ascii_only
            ),
        )
    counts = [
        f"{name} {_count_over(all_rows, name):,}"
        for name in ("conversation trigger", "generation trigger", "hard limit")
    ]
    note = Text(f"Requests at or over the {', '.join(counts)}. ")
    note.append("cacheable: the share of the input that repeats the beginning of the previous request.")
    return Padding(Group(table, "", note), (1, 1))


def accuracy_table(accuracies: Sequence[Accuracy]) -> RenderableType:
    """Renders the errors of the estimates against reported usage for each file, before and after correction."""
    if not any(accuracy.plain.requests for accuracy in accuracies):
        return Padding(Text("No usage is recorded in the transcripts, so there is nothing to compare with."), (1, 1))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title_justify="left", title_style="bold")
    table.title = "Error of the estimate against reported usage"
    for name in ("", "estimate"):
        table.add_column(name, overflow="fold")
    for name in ("reports", "median", "90 %", "largest"):
        table.add_column(name, justify="right", no_wrap=True)
    for accuracy in accuracies:
        spreads = (("plain count", accuracy.plain), ("corrected", accuracy.corrected), ("later ones", accuracy.later))
        for label, spread in spreads:
            figures = (f"{share:.2%}" for share in (spread.median, spread.p90, spread.largest))
            table.add_row(accuracy.name if spread is accuracy.plain else "", label, f"{spread.requests:,}", *figures)
    note = Text(
        "corrected: with the usage that earlier responses reported. later ones: without the first request of each ",
        style="dim",
    )
    note.append("conversation, for which only other conversations can supply a correction.")
    return Padding(Group(table, "", note), (1, 1))


def _describe_window(model: str, window: Window, limits: TokenLimits) -> str:
    """Describes the model's window, its source, and its limits."""
    name = model or "no model"
    sources = {"config": "as given", "learnt": "learned from an error", "table": "LiteLLM's table"}
    source = sources.get(window.source, "assumed: the model is unknown")
    shares = (f"{limit} {tokens:,}" for limit, tokens in _limit_figures(limits))
    return f"{name}, window {window.size:,} tokens ({source}); {', '.join(shares)}"


def _limit_figures(limits: TokenLimits) -> list[tuple[str, int]]:
    return [
        ("conversation trigger", limits.conversation),
        ("generation trigger", limits.generation),
        ("hard limit", limits.hard),
    ]


def _count_over(rows: Sequence[ReplayMeasurement], name: str) -> int:
    return sum(row.utilization.occupied_tokens >= dict(_limit_figures(row.limits))[name] for row in rows if row.limits)


def _table(rows: Sequence[ReplayMeasurement], *, every: bool) -> Table:
    selected_rows = rows if every else _select_rows(rows)
    names = ("#", "turn", "messages", "tokens", "new", "used", "kind", "decision")
    return grid(names, ("kind", "decision"), [_cells(row) for row in selected_rows], len(rows))


def grid(names: Sequence[str], words: Sequence[str], cells: Sequence[Sequence[str | Text]], requests: int) -> Table:
    """Makes a table of some of `requests` requests. Columns of `words` are left-aligned; only the last one shrinks."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for column, name in enumerate(names):
        max_width = max([len(name), *(len(row[column]) for row in cells)]) if name != names[-1] else None
        justify: JustifyMethod = "left" if name in words else "right"
        table.add_column(name, justify=justify, min_width=max_width, no_wrap=True, overflow="ellipsis")
    for row in cells:
        table.add_row(*row)
    if len(cells) < requests:
        table.caption = f"{len(cells)} of {requests} requests; --all shows every one"
        table.caption_justify = "left"
    return table


def _cells(row: ReplayMeasurement) -> tuple[str | Text, ...]:
    if row.limits is None:
        return (str(row.number), str(row.turn), str(row.messages), "", "", "", "", "pass, not parsed")
    style = style_of(row.utilization.ratio, plot_levels(row.limits))
    return (
        str(row.number),
        str(row.turn),
        f"{row.messages:,}",
        f"{row.tokens:,}",
        f"{row.new:+,}",
        Text(f"{row.utilization.ratio:.1%}", style=style),
        Text("turn start", style="bold") if row.starts_turn else "generation",
        Text(_shorten_decision(row), style=style),
    )


def _shorten_decision(row: ReplayMeasurement) -> str:
    """Returns the decision without the figures of the other columns."""
    reason = row.decision.reason.rpartition(" of the window, ")[2]
    return f"{row.decision.action}, " + _LIMIT.sub(r"\1", reason)


def _select_rows(rows: Sequence[ReplayMeasurement]) -> Sequence[ReplayMeasurement]:
    """Selects about ROWS requests: the first, the last, the fullest, the first over each limit, the starts of turns if
    they are few, and others evenly."""
    if len(rows) <= ROWS + ROWS // 4:
        return rows
    required = {0, len(rows) - 1, max(range(len(rows)), key=lambda index: rows[index].utilization.ratio)}
    for name in ("conversation trigger", "generation trigger", "hard limit"):
        required |= set([index for index, row in enumerate(rows) if _count_over([row], name)][:1])
    turns = {index for index, row in enumerate(rows) if row.starts_turn}
    return [rows[index] for index in fill_indices(len(rows), required, turns)]


def fill_indices(count: int, required: set[int], turns: set[int]) -> list[int]:
    """Returns about ROWS of `count` indices: `required`, `turns` if they are few, and others evenly."""
    required = required | (turns if len(turns) <= ROWS // 2 else set())
    while len(required) < min(ROWS, count):
        before, after = max(pairwise(sorted(required)), key=lambda gap: gap[1] - gap[0])
        required.add((before + after) // 2)
    return sorted(required)
