"""Renders a replay as text: a table and a plot of each conversation, an overview, and a summary.

A conversation was measured, or replayed with compaction. Then the tables have the sizes of what came and what was sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, Protocol, TypeVar

from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from accordion.cli.listing import count_with_noun
from accordion.features.offline.plot import plot, plot_levels, sparkline, style_of
from accordion.features.offline.replay import (
    Accuracy,
    CompactedRequest,
    ReplayMeasurement,
    ReplayTotals,
    add_up,
    cacheable_share,
)
from accordion.model.budget import SUMMARIZE_AHEAD, TokenLimits, Window
from accordion.model.records import CompactionOutcome

_ROWS = 20
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
    sections = [*_render_heading(replay), "", _table(replay.rows, every=every)]
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
    return Padding(Group(*_render_heading(replay), "", note), (1, 1))


def _render_heading(replay: ReplayedConversation[R]) -> list[RenderableType]:
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
    sources = {
        "config": "as given",
        "learnt": "learned from an error",
        "table": "LiteLLM's table",
        "family": "of an earlier version",
    }
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
    return _grid(names, ("kind", "decision"), [_cells(row) for row in selected_rows], len(rows))


def _grid(names: Sequence[str], words: Sequence[str], cells: Sequence[Sequence[str | Text]], requests: int) -> Table:
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
    reason = row.decision.reason.rpartition(" window, ")[2]
    return f"{row.decision.action}, " + _LIMIT.sub(r"\1", reason)


def _select_rows(rows: Sequence[ReplayMeasurement]) -> Sequence[ReplayMeasurement]:
    """Selects about _ROWS requests: the first, the last, the fullest, the first over each limit, the starts of turns if
    they are few, and others evenly."""
    if len(rows) <= _ROWS + _ROWS // 4:
        return rows
    required = {0, len(rows) - 1, max(range(len(rows)), key=lambda index: rows[index].utilization.ratio)}
    for name in ("conversation trigger", "generation trigger", "hard limit"):
        required |= set([index for index, row in enumerate(rows) if _count_over([row], name)][:1])
    turns = {index for index, row in enumerate(rows) if row.starts_turn}
    return [rows[index] for index in _fill_indices(len(rows), required, turns)]


def _fill_indices(count: int, required: set[int], turns: set[int]) -> list[int]:
    """Returns about _ROWS of `count` indices: `required`, `turns` if they are few, and others evenly."""
    required = required | (turns if len(turns) <= _ROWS // 2 else set())
    while len(required) < min(_ROWS, count):
        before, after = max(pairwise(sorted(required)), key=lambda gap: gap[1] - gap[0])
        required.add((before + after) // 2)
    return sorted(required)


# -- with compaction --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CompactedReplay(ReplayedConversation[CompactedRequest]):
    """A conversation that was replayed with compaction."""


def render_compacted_conversation(replay: CompactedReplay, console: Console, *, every: bool) -> RenderableType:
    """Renders a conversation: heading, table, plot, compactions, totals."""
    rows = replay.parsed_rows
    sections = [*_render_heading(replay), "", _compaction_table(replay.rows, every=every)]
    if rows and (limits := rows[-1].limits):
        turns = [index for index, row in enumerate(rows) if row.starts_turn]
        forwarded_ratios, original_ratios = (
            [row.forwarded.utilization.ratio for row in rows],
            [row.original.utilization.ratio for row in rows],
        )
        ascii_only = console.options.ascii_only
        plot_lines = plot(
            forwarded_ratios, turns, limits, console.width - 2, ascii_only=ascii_only, shadow=original_ratios
        )
        sections += ["", *plot_lines]
    compactions = list(_describe_compactions(replay.rows))
    sections += ["", *compactions] if compactions else []
    sections += ["", render_totals(add_up(replay.rows))]
    return Padding(Group(*sections), (1, 1))


def render_compacted_overview(replays: Sequence[CompactedReplay], console: Console) -> RenderableType:
    """Renders a line for each conversation, and the totals."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_footer=True)
    totals = add_up([row for replay in replays for row in replay.rows])
    sparkline_width = max(6, min(30, console.width - 80))
    table.add_column("conversation", f"{len(replays)} in total", overflow="fold", max_width=30)
    table.add_column("requests", f"{totals.requests:,}", justify="right", no_wrap=True)
    for name, total in zip(("compactions", "received", "sent", "cacheable", "cost"), _total_cells(totals), strict=True):
        table.add_column(name, total, justify="right", no_wrap=True)
    table.add_column("utilization", no_wrap=True)
    for replay in replays:
        rows, subtotals = replay.parsed_rows, add_up(replay.rows)
        limits, ratios = rows[-1].limits if rows else None, [row.forwarded.utilization.ratio for row in rows]
        line = sparkline(ratios, limits, sparkline_width, ascii_only=console.options.ascii_only)
        table.add_row(replay.name, f"{subtotals.requests:,}", *_total_cells(subtotals), line)
    note = (
        "received, sent: tokens. cacheable: the share of the sent tokens that repeats the beginning of the previous "
        "request. cost: see below."
    )
    return Padding(Group(table, "", Text(note, style="dim"), "", render_totals(totals)), (1, 1))


def render_totals(totals: ReplayTotals) -> Text:
    """Renders the totals of a replay as text."""
    text, states, saved_tokens = Text(overflow="fold"), totals.states, totals.came - totals.sent
    if not totals.came:
        return Text(
            "No request could be measured, so none was compacted. Each would be forwarded unchanged, or refused."
        )
    counts = (f"{number:,} {_STATE_NAMES.get(state, state)}" for state, number in states.items())
    text.append(f"{totals.requests:,} requests: {', '.join(counts)}.\n")
    text.append(f"Sent {totals.sent:,} tokens instead of {totals.came:,}", style="bold")
    removals = (f"{name} {tokens:,}" for name, tokens in sorted(totals.took.items(), key=lambda item: -item[1]))
    by = f"; removed by {', '.join(removals)}" if totals.took else ""
    text.append(f": {saved_tokens:,} saved ({saved_tokens / totals.came:.1%}){by}.\n")
    if totals.offered:
        text.append(f"The tool for reading the archive takes {totals.tool:,} of the sent tokens")
        text.append(f", in {totals.offered:,} requests.\n")
    text.append(f"The input costs {totals.cost:.2f} times that of sending everything", style="bold")
    cached_share = totals.sent_cached / max(1, totals.sent)
    text.append(
        f", if cached input costs a tenth: {cached_share:.1%} of the sent tokens repeat the beginning of the previous "
    )
    text.append(f"request ({totals.came_cached / totals.came:.1%} when everything is sent).\n")
    text.append_text(_describe_fit(totals))
    if totals.broken:
        numbers = ", ".join(map(str, totals.broken[:_ROWS]))
        text.append(f"Error: the beginning changed without a new compaction in request {numbers}.", "bold red")
    else:
        text.append("Between compactions, each request began with the whole previous request, byte for byte.")
    return text


def _describe_fit(totals: ReplayTotals) -> Text:
    oversized = totals.still_over + totals.states.get("refused", 0)
    if not totals.over and not oversized:
        return Text("All requests would have fitted the window without compaction.\n")
    text = Text(
        f"Without compaction, {count_with_noun(totals.over, 'request')} would not have fitted the window; with it, "
    )
    return text.append(f"{oversized:,} did not fit.\n", "red") if oversized else text.append("all did.\n")


_STATE_NAMES = {
    "as it came": "unchanged",
    "compacted": "compacted",
    "replayed": "with an earlier compaction",
    "observed": "would be compacted",
    "failed": "not compacted",
    "unread": "not parsed",
}


def _total_cells(totals: ReplayTotals) -> tuple[str, ...]:
    cached_share = totals.sent_cached / totals.sent if totals.sent else 0.0
    compactions = totals.states.get("compacted", 0)
    return f"{compactions:,}", f"{totals.came:,}", f"{totals.sent:,}", f"{cached_share:.1%}", f"{totals.cost:.2f}"


def _describe_compactions(rows: Sequence[CompactedRequest]) -> Iterator[Text]:
    """Yields a line for each compaction that was made, reported or failed, with its result and reason."""
    for row in rows:
        outcome = row.outcome
        if row.refused:
            yield Text(f"#{row.number} refused: {row.refused}", style="red", overflow="fold")
        if outcome is None or row.state in ("replayed", "refused"):
            continue
        line = Text(f"#{row.number} ", overflow="fold")
        if row.state == "failed":
            yield line.append(f"not compacted: {outcome.reason}", style="red")
            continue
        removals = ", ".join(f"{name} {-tokens:+,}" for name, tokens in _steps(row, outcome))
        status = "would be compacted, " if outcome.state == "observed" else f"compaction {outcome.generation}, "
        line.append(f"{status}{outcome.kind}: {outcome.before:,} to {outcome.after:,} tokens", style="bold")
        tool = f", the tool {row.tool_name} {row.added_tool_tokens:+,}" if row.added_tool_tokens else ""
        yield line.append(f" ({removals or 'no step'}{tool}); {outcome.reason}")


def _steps(row: CompactedRequest, outcome: CompactionOutcome) -> Sequence[tuple[str, int]]:
    """Returns the tokens that each strategy removed, or would remove."""
    return row.steps or [(name, before - after) for name, before, after in outcome.steps]


def _compaction_table(rows: Sequence[CompactedRequest], *, every: bool) -> Table:
    selected_rows = rows if every else _select_compacted_rows(rows)
    names = ("#", "turn", "received", "sent", "saved", "cacheable", "cost", "used", "compaction")
    return _grid(names, ("compaction",), [_compaction_cells(row) for row in selected_rows], len(rows))


def _compaction_cells(row: CompactedRequest) -> tuple[str | Text, ...]:
    if row.limits is None:
        return (str(row.number), str(row.turn), "", "", "", "", "", "", "unchanged, not parsed")
    if row.refused:
        original = f"{row.original.tokens:,}"
        return (str(row.number), str(row.turn), original, "", "", "", "", "", Text("refused", style="bold red"))
    ratio, forwarded = row.forwarded.utilization.ratio, row.forwarded
    return (
        str(row.number),
        str(row.turn),
        f"{row.original.tokens:,}",
        f"{forwarded.tokens:,}",
        f"{row.original.tokens - forwarded.tokens:,}",
        f"{forwarded.cached / forwarded.tokens:.1%}" if forwarded.tokens else "",
        f"{forwarded.cost / row.original.cost:.2f}" if row.original.cost else "",
        Text(f"{ratio:.1%}", style=style_of(ratio, plot_levels(row.limits))),
        _describe_row(row),
    )


def _describe_row(row: CompactedRequest) -> Text:
    if row.is_prefix_broken:
        return Text(f"{_STATE_NAMES.get(row.state, row.state)}, beginning changed", style="bold red")
    outcome = row.outcome
    if outcome is None:
        return Text("preparing" if row.decision.action == SUMMARIZE_AHEAD else "unchanged", style="dim")
    if row.state == "failed":
        return Text("not compacted", style="red")
    if outcome.state == "observed":
        return Text(f"would be compacted, {outcome.kind}", style="bold")
    if outcome.state == "compacted":
        return Text(f"compacted, {outcome.kind}", style="bold")
    return Text(f"compaction {outcome.generation}")


def _select_compacted_rows(rows: Sequence[CompactedRequest]) -> Sequence[CompactedRequest]:
    """Selects about _ROWS requests: the first, the last, the compactions with their neighbors, the starts of turns if
    they are few, and others evenly."""
    if len(rows) <= _ROWS + _ROWS // 4:
        return rows
    required = {0, len(rows) - 1}
    for index, row in enumerate(rows):
        if row.is_prefix_broken or row.refused or row.state in ("compacted", "failed", "observed"):
            required |= {max(0, index - 1), index, min(len(rows) - 1, index + 1)}
        if len(required) > 2 * _ROWS:
            break
    turns = {index for index, row in enumerate(rows) if row.starts_turn}
    return [rows[index] for index in _fill_indices(len(rows), required, turns)]
