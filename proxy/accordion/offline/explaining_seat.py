"""The passage of `accordion explain` about agents, for a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.text import Text

from accordion.offline.explain_seat import Sitting
from accordion.offline.listing import counted

HIDDEN = 12
"""How many hidden results are named where not all are asked for."""

_EVIDENCE = {
    "header": "the header or metadata field says so",
    "mark": "metadata that the client sends",
    "handoff": "{call} hands over to it",
    "tool": "its task is the exact text that {call} passes to a delegating tool",
    "argument": "its task is the exact text of an argument of {call}",
}


def rows(told: Sitting, *, full: bool) -> Iterator[tuple[str, str | Text]]:
    """Names and what stands behind them."""
    if not told.delegation:
        yield (
            "agent",
            (f"{told.agent}, " if told.agent else "") + ("a sub-agent" if told.delegated else "the main agent"),
        )
        yield "sees", "its complete message list"
    else:
        yield "delegation", told.delegation + (f", agent {told.agent}" if told.agent else "")
        if above := told.path[:-1]:
            yield "works for", ", which works for ".join(reversed(above))
        call = f"the call {told.call_id}" if told.call_id else "the call that started it"
        yield "evidence", _EVIDENCE.get(told.evidence, "none").format(call=call)
        yield "sees", "its message list without the hidden results" if told.hidden else "its complete message list"
    if told.candidates > 1:
        yield "ambiguous", f"{told.candidates} open calls contain its exact task, so it is assigned to none of them"
    if told.hidden:
        whose = Counter(each.of for each in told.hidden)
        said = ", ".join(f"{count} of {name}" for name, count in whose.most_common(HIDDEN))
        yield "hidden", Text(f"{counted(len(told.hidden), 'result')} with their calls: {said}", style="bold")
        for each in told.hidden if full else told.hidden[:HIDDEN]:
            yield "", f"[{each.index}] {each.tool or 'a result'} {each.call_id}: belongs to {each.of}"
        if not full and len(told.hidden) > HIDDEN:
            yield "", f"and {len(told.hidden) - HIDDEN:,} more; --full lists all"
    if not told.on_record:
        yield "note", "delegations known to a running proxy are not included: there is no store to read, or it is empty"
