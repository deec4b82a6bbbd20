"""Renders a replay with compaction as text: a table, a plot of both sizes of each request, and the totals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from accordion.cli.listing import count_with_noun
from accordion.cli.plot import plot, plot_levels, sparkline, style_of
from accordion.cli.replay_compaction import CompactedRequest, ReplayTotals, add_up
from accordion.cli.replay_tables import ROWS, ReplayedConversation, fill_indices, grid, render_heading
from accordion.model.records import CompactionOutcome


@dataclass(frozen=True, slots=True)
class CompactedReplay(ReplayedConversation[CompactedRequest]):
    """A conversation that was replayed with compaction."""


def conversation(replay: CompactedReplay, console: Console, *, every: bool) -> RenderableType:
    """Renders a conversation: heading, table, plot, compactions, totals."""
    rows = replay.parsed_rows
    sections = [*render_heading(replay), "", _table(replay.rows, every=every)]
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
    sections += ["", summary(add_up(replay.rows))]
    return Padding(Group(*sections), (1, 1))


def overview(replays: Sequence[CompactedReplay], console: Console) -> RenderableType:
    """Renders a line for each conversation, and the totals."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_footer=True)
    totals = add_up([row for replay in replays for row in replay.rows])
    sparkline_width = max(6, min(30, console.width - 80))
    table.add_column("conversation", f"{len(replays)} in total", overflow="fold", max_width=30)
    table.add_column("requests", f"{totals.requests:,}", justify="right", no_wrap=True)
    for name, total in zip(("folds", "received", "sent", "cacheable", "cost"), _total_cells(totals), strict=True):
        table.add_column(name, total, justify="right", no_wrap=True)
    table.add_column("utilization", no_wrap=True)
    for replay in replays:
        rows, subtotals = replay.parsed_rows, add_up(replay.rows)
        limits, ratios = rows[-1].limits if rows else None, [row.forwarded.utilization.ratio for row in rows]
        line = sparkline(ratios, limits, sparkline_width, ascii_only=console.options.ascii_only)
        table.add_row(replay.name, f"{subtotals.requests:,}", *_total_cells(subtotals), line)
    note = (
        "folds: compactions. received, sent: tokens. cacheable: the share of the sent tokens that repeats the "
        "beginning of the previous request. cost: see below."
    )
    return Padding(Group(table, "", Text(note, style="dim"), "", summary(totals)), (1, 1))


def summary(totals: ReplayTotals) -> Text:
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
        numbers = ", ".join(map(str, totals.broken[:ROWS]))
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
    "folded": "compacted",
    "replayed": "with an earlier compaction",
    "observed": "would be compacted",
    "failed": "not compacted",
    "unread": "not parsed",
}


def _total_cells(totals: ReplayTotals) -> tuple[str, ...]:
    cached_share = totals.sent_cached / totals.sent if totals.sent else 0.0
    compactions = totals.states.get("folded", 0)
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
        if outcome.state == "failed":
            yield line.append(f"not compacted: {outcome.reason}", style="red")
            continue
        removals = ", ".join(f"{name} {-tokens:+,}" for name, tokens in _steps(row, outcome))
        status = "would be compacted, " if outcome.state == "observed" else f"generation {outcome.generation}, "
        line.append(f"{status}{outcome.kind}: {outcome.before:,} to {outcome.after:,} tokens", style="bold")
        tool = f", the tool {row.tool_name} {row.added_tool_tokens:+,}" if row.added_tool_tokens else ""
        yield line.append(f" ({removals or 'no step'}{tool}); {outcome.reason}")


def _steps(row: CompactedRequest, outcome: CompactionOutcome) -> Sequence[tuple[str, int]]:
    """Returns the tokens that each strategy removed, or would remove."""
    return row.steps or [(name, before - after) for name, before, after in outcome.steps]


def _table(rows: Sequence[CompactedRequest], *, every: bool) -> Table:
    selected_rows = rows if every else _select_rows(rows)
    names = ("#", "turn", "received", "sent", "saved", "cacheable", "cost", "used", "compaction")
    return grid(names, ("compaction",), [_cells(row) for row in selected_rows], len(rows))


def _cells(row: CompactedRequest) -> tuple[str | Text, ...]:
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
        return Text("preparing" if row.decision.action == "prepare" else "unchanged", style="dim")
    if outcome.state == "failed":
        return Text("not compacted", style="red")
    if outcome.state == "observed":
        return Text(f"would be compacted, {outcome.kind}", style="bold")
    if outcome.state == "folded":
        return Text(f"compacted, {outcome.kind}", style="bold")
    return Text(f"generation {outcome.generation}")


def _select_rows(rows: Sequence[CompactedRequest]) -> Sequence[CompactedRequest]:
    """Selects about ROWS requests: the first, the last, the compactions with their neighbors, the starts of turns if
    they are few, and others evenly."""
    if len(rows) <= ROWS + ROWS // 4:
        return rows
    required = {0, len(rows) - 1}
    for index, row in enumerate(rows):
        if row.is_prefix_broken or row.refused or row.state in ("folded", "failed", "observed"):
            required |= {max(0, index - 1), index, min(len(rows) - 1, index + 1)}
        if len(required) > 2 * ROWS:
            break
    turns = {index for index, row in enumerate(rows) if row.starts_turn}
    return [rows[index] for index in fill_indices(len(rows), required, turns)]
