"""The passage of `accordion explain` about folding, for a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from accordion.offline.explain_fold import Folding, Moved, Standing
from accordion.offline.listing import counted

ARTIFACTS = 12
"""How many artifacts are named where not all are asked for."""

_LEVELS = {
    "conversation": "conversation: the history is compacted",
    "generation": "generation: only what was produced since the task is compacted",
}
_WRITERS = {"request": "by the request's own model, if it can be called", "extractive": "the same way"}
_BECAME = {"kept": "unchanged", "left out": "removed"}


def rows(told: Folding) -> Iterator[tuple[str, str | Text]]:
    """Names and what stands behind them."""
    if told.refused:
        yield "refused", Text(told.refused, style="bold red")
    if told.state == "none":
        yield "compacted", Text("no", style="bold")
        yield "reason", told.why
        return
    if told.state == "failed":
        yield "compacted", Text("no, the compaction failed", style="bold red")
        yield "reason", told.why
    else:
        yield "compacted", Text("yes" if told.state == "folded" else "no, it is only reported", style="bold")
        yield "reason", told.why
    if not told.kind:
        return
    yield "kind", _LEVELS.get(told.kind, told.kind)
    yield "trigger", "on request" if told.forced else f"{told.trigger:,} tokens"
    yield "target", f"{told.target:,} tokens" + ("; the request does not fit without it" if told.must_succeed else "")
    if told.state == "failed":
        return
    planned = " (planned)" if told.state == "observed" else ""
    gained = 1 - told.after / told.before if told.before else 0.0
    yield "tokens", Text(f"{told.before:,} to {told.after:,}, {gained:.1%} less{planned}", style="bold")
    for place, step in enumerate(told.steps):
        yield "" if place else "steps", f"{step.strategy}: {step.before:,} to {step.after:,}"
    if (tool := told.offered) is not None:
        when = "only reported" if told.state == "observed" else "in each request from now on"
        yield "tool added", f"{tool.name}, {when}, to read the archive: {tool.tokens:,} tokens"
    if told.state == "folded":
        yield "messages", f"{told.messages[0]:,} to {told.messages[1]:,}"
        yield "body", f"{told.bytes[0]:,} to {told.bytes[1]:,} bytes"
        yield "id", f"{told.id}, generation {told.generation}"
    if told.writer:
        live = _WRITERS.get(told.live_writer, f"by the model {told.live_writer}")
        yield "summary", f"written without a model ({told.writer}); in the running proxy, {live}"


def below(told: Folding, *, full: bool) -> Iterator[RenderableType]:
    """What stands below all that: both lists side by side, the blocks, the archive; the body where it is told."""
    if told.listed:
        yield _titled("before and after", _sides(told))
        if any(one.index != one.number for one in told.listed):
            yield Padding(
                Text("The numbers leave out the system prompt, as those in the block do.", style="dim"), (0, 0, 0, 2)
            )
    for block in told.blocks:
        yield _titled(f"block {block.number}, {block.tokens:,} tokens", Text(block.text, overflow="fold"))
    if told.artifacts:
        yield _titled(f"archived: {counted(len(told.artifacts), 'artifact')}", _archived(told.artifacts, full=full))
    if told.body:
        yield _titled("forwarded body", Text(told.body, overflow="fold"))


def _titled(title: str, what: RenderableType) -> RenderableType:
    return Group("", Text(title, style="bold"), Padding(what, (0, 0, 0, 2)))


def _sides(told: Folding) -> Table:
    """The list on the left as it came, on the right as it leaves; runs that fare alike in one line."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("before", overflow="fold")
    table.add_column("tokens", justify="right", no_wrap=True)
    table.add_column("after", overflow="fold")
    table.add_column("tokens", justify="right", no_wrap=True)
    blocks, shown = {block.number: block for block in told.blocks}, set[int]()
    for (became, number, _), run in groupby(told.listed, key=_alike):
        group = list(run)
        before = f"{sum(one.tokens for one in group):,}"
        if number:
            again = number in shown
            shown.add(number)
            what = Text(f"block {number}", style="bold")
            table.add_row(_named(group), before, what, "" if again else f"{blocks[number].tokens:,}")
            continue
        text = Text(_BECAME.get(became, became), style={"kept": "green", "edited": "yellow"}.get(became, "red"))
        if group[0].text:
            text.append(f": {_short(group[0].text)}", style="default")
        after = sum(one.after for one in group)
        table.add_row(_named(group), before, text, f"{after:,}" if became != "left out" else "")
    return table


def _alike(one: Standing) -> tuple[str, int, int]:
    return one.became, one.block, one.number if one.became == "edited" else -1


def _named(group: list[Standing]) -> str:
    first, last = group[0], group[-1]
    if first is last:
        return f"[{first.number}] {first.role}"
    roles = ", ".join(f"{count} {role}" for role, count in Counter(one.role for one in group).items())
    return f"[{first.number}-{last.number}] {roles}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 90 else line[:89] + "…"


def _archived(artifacts: Iterable[Moved], *, full: bool) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    # What is read in one piece first.
    ordered = sorted(artifacts, key=lambda one: (one.kind != "range", one.first, one.last))
    for one in ordered if full else ordered[:ARTIFACTS]:
        place = f"[{one.first}-{one.last}]" if one.first != one.last else f"[{one.last}]"
        what = {"range": "messages", "result": f"result of {one.tool or 'a tool'}"}.get(one.kind, "part")
        table.add_row(one.id, f"{what} {place}", f"{one.tokens:,} tokens", f"{one.characters:,} characters")
    if not full and len(ordered) > ARTIFACTS:
        table.add_row(f"and {len(ordered) - ARTIFACTS:,} more", "--full lists all", "", "")
    return table
