"""What a replay with folding on shows to a person: a table, a plot of what was sent and what would have been, sums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from accordion.core.records import CompactionSeen
from accordion.offline.listing import counted
from accordion.offline.plot import levels, plot, sparkline, style_of
from accordion.offline.refolding import Carried, Sums, sums
from accordion.offline.tables import ROWS, Requests, filled, grid, heading


@dataclass(frozen=True, slots=True)
class Refolded(Requests[Carried]):
    """A conversation whose requests were folded."""


def conversation(refolded: Refolded, console: Console, *, every: bool) -> RenderableType:
    """One conversation: heading, table, plot, the folds, the sums."""
    read = refolded.read
    shown = [*heading(refolded), "", _table(refolded.rows, every=every)]
    if read and (limits := read[-1].limits):
        turns = [index for index, row in enumerate(read) if row.starts_turn]
        sent, came = [row.sent.used.ratio for row in read], [row.came.used.ratio for row in read]
        ascii_only = console.options.ascii_only
        drawn = plot(sent, turns, limits, console.width - 2, ascii_only=ascii_only, shadow=came)
        shown += ["", *drawn]
    made = list(_folds(refolded.rows))
    shown += ["", *made] if made else []
    shown += ["", summary(sums(refolded.rows))]
    return Padding(Group(*shown), (1, 1))


def overview(all_refolded: Sequence[Refolded], console: Console) -> RenderableType:
    """A line for each of many conversations, and their sums."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_footer=True)
    whole = sums([row for refolded in all_refolded for row in refolded.rows])
    shape = max(6, min(30, console.width - 80))
    table.add_column("conversation", f"{len(all_refolded)} in total", overflow="fold", max_width=30)
    table.add_column("requests", f"{whole.requests:,}", justify="right", no_wrap=True)
    for name, total in zip(("folds", "received", "sent", "cacheable", "cost"), _figures(whole), strict=True):
        table.add_column(name, total, justify="right", no_wrap=True)
    table.add_column("utilization", no_wrap=True)
    for refolded in all_refolded:
        read, found = refolded.read, sums(refolded.rows)
        limits, ratios = read[-1].limits if read else None, [row.sent.used.ratio for row in read]
        line = sparkline(ratios, limits, shape, ascii_only=console.options.ascii_only)
        table.add_row(refolded.name, f"{found.requests:,}", *_figures(found), line)
    note = (
        "folds: compactions. received, sent: tokens. cacheable: the share of the sent tokens that repeats the "
        "beginning of the previous request. cost: see below."
    )
    return Padding(Group(table, "", Text(note, style="dim"), "", summary(whole)), (1, 1))


def summary(found: Sums) -> Text:
    """What there is to say of requests that were folded, or not: a line for each thing."""
    text, states, saved = Text(overflow="fold"), found.states, found.came - found.sent
    if not found.came:
        return Text(
            "No request could be measured, so none was compacted. Each would be forwarded unchanged, or refused."
        )
    counts = (f"{number:,} {_WORDS.get(state, state)}" for state, number in states.items())
    text.append(f"{found.requests:,} requests: {', '.join(counts)}.\n")
    text.append(f"Sent {found.sent:,} tokens instead of {found.came:,}", style="bold")
    took = (f"{name} {tokens:,}" for name, tokens in sorted(found.took.items(), key=lambda one: -one[1]))
    by = f"; removed by {', '.join(took)}" if found.took else ""
    text.append(f": {saved:,} saved ({saved / found.came:.1%}){by}.\n")
    if found.offered:
        text.append(f"The tool for reading the archive takes {found.tool:,} of the sent tokens")
        text.append(f", in {found.offered:,} requests.\n")
    text.append(f"The input costs {found.cost:.2f} times that of sending everything", style="bold")
    same = found.sent_cached / max(1, found.sent)
    text.append(f", if cached input costs a tenth: {same:.1%} of the sent tokens repeat the beginning of the previous ")
    text.append(f"request ({found.came_cached / found.came:.1%} when everything is sent).\n")
    text.append_text(_fits(found))
    if found.broken:
        numbers = ", ".join(map(str, found.broken[:ROWS]))
        text.append(f"Error: the beginning changed without a new compaction in request {numbers}.", "bold red")
    else:
        text.append("Between compactions, each request began with the whole previous request, byte for byte.")
    return text


def _fits(found: Sums) -> Text:
    missed = found.still_over + found.states.get("refused", 0)
    if not found.over and not missed:
        return Text("All requests would have fitted the window without compaction.\n")
    text = Text(f"Without compaction, {counted(found.over, 'request')} would not have fitted the window; with it, ")
    return text.append(f"{missed:,} did not fit.\n", "red") if missed else text.append("all did.\n")


_WORDS = {
    "as it came": "unchanged",
    "folded": "compacted",
    "replayed": "with an earlier compaction",
    "observed": "would be compacted",
    "failed": "not compacted",
    "unread": "not parsed",
}


def _figures(found: Sums) -> tuple[str, ...]:
    same = found.sent_cached / found.sent if found.sent else 0.0
    folds = found.states.get("folded", 0)
    return f"{folds:,}", f"{found.came:,}", f"{found.sent:,}", f"{same:.1%}", f"{found.cost:.2f}"


def _folds(rows: Sequence[Carried]) -> Iterator[Text]:
    """A line for each fold that was made, or wanted: what it came to, and why."""
    for row in rows:
        seen = row.seen
        if row.refused:
            yield Text(f"#{row.number} refused: {row.refused}", style="red", overflow="fold")
        if seen is None or row.state in ("replayed", "refused"):
            continue
        line = Text(f"#{row.number} ", overflow="fold")
        if seen.state == "failed":
            yield line.append(f"not compacted: {seen.reason}", style="red")
            continue
        took = ", ".join(f"{name} {-tokens:+,}" for name, tokens in _steps(row, seen))
        would = "would be compacted, " if seen.state == "observed" else f"generation {seen.generation}, "
        line.append(f"{would}{seen.kind}: {seen.before:,} to {seen.after:,} tokens", style="bold")
        tool = f", the tool {row.offered} {row.brought:+,}" if row.brought else ""
        yield line.append(f" ({took or 'no step'}{tool}); {seen.reason}")


def _steps(row: Carried, seen: CompactionSeen) -> Sequence[tuple[str, int]]:
    """What each strategy took out, or would."""
    return row.steps or [(name, before - after) for name, before, after in seen.steps]


def _table(rows: Sequence[Carried], *, every: bool) -> Table:
    shown = rows if every else _condensed(rows)
    names = ("#", "turn", "received", "sent", "saved", "cacheable", "cost", "used", "compaction")
    return grid(names, ("compaction",), [_cells(row) for row in shown], len(rows))


def _cells(row: Carried) -> tuple[str | Text, ...]:
    if row.limits is None:
        return (str(row.number), str(row.turn), "", "", "", "", "", "", "unchanged, not parsed")
    if row.refused:
        came = f"{row.came.tokens:,}"
        return (str(row.number), str(row.turn), came, "", "", "", "", "", Text("refused", style="bold red"))
    ratio, sent = row.sent.used.ratio, row.sent
    return (
        str(row.number),
        str(row.turn),
        f"{row.came.tokens:,}",
        f"{sent.tokens:,}",
        f"{row.came.tokens - sent.tokens:,}",
        f"{sent.cached / sent.tokens:.1%}" if sent.tokens else "",
        f"{sent.cost / row.came.cost:.2f}" if row.came.cost else "",
        Text(f"{ratio:.1%}", style=style_of(ratio, levels(row.limits))),
        _what(row),
    )


def _what(row: Carried) -> Text:
    if row.broken:
        return Text(f"{_WORDS.get(row.state, row.state)}, beginning changed", style="bold red")
    seen = row.seen
    if seen is None:
        return Text("preparing" if row.decision.action == "prepare" else "unchanged", style="dim")
    if seen.state == "failed":
        return Text("not compacted", style="red")
    if seen.state == "observed":
        return Text(f"would be compacted, {seen.kind}", style="bold")
    if seen.state == "folded":
        return Text(f"compacted, {seen.kind}", style="bold")
    return Text(f"generation {seen.generation}")


def _condensed(rows: Sequence[Carried]) -> Sequence[Carried]:
    """About ROWS of the requests: the first, the last, the folds with their neighbours, the beginnings of turns where
    they are few, and others evenly."""
    if len(rows) <= ROWS + ROWS // 4:
        return rows
    wanted = {0, len(rows) - 1}
    for index, row in enumerate(rows):
        if row.broken or row.refused or row.state in ("folded", "failed", "observed"):
            wanted |= {max(0, index - 1), index, min(len(rows) - 1, index + 1)}
        if len(wanted) > 2 * ROWS:
            break
    turns = {index for index, row in enumerate(rows) if row.starts_turn}
    return [rows[index] for index in filled(len(rows), wanted, turns)]
