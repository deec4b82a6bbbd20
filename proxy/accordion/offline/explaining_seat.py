"""The passage of `accordion explain` about agents, for a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.text import Text

from accordion.offline.explain_seat import Sitting

HIDDEN = 12
"""How many hidden results are named where not all are asked for."""

_EVIDENCE = {
    "header": "its client says so",
    "mark": "the client's own marks",
    "handoff": "a hand-off in its list, by the call {call}",
    "tool": "its task is word for word what the call {call} of a delegating tool says",
    "argument": "its task is word for word an argument of the call {call}",
}


def rows(told: Sitting, *, full: bool) -> Iterator[tuple[str, str | Text]]:
    """Names and what stands behind them."""
    if not told.delegation:
        yield "agent", (f"{told.agent}, " if told.agent else "") + ("a sub-agent" if told.delegated else "the main one")
        yield "sees", "all of its list"
    else:
        yield "delegation", told.delegation + (f", the agent {told.agent}" if told.agent else "")
        if above := told.path[:-1]:
            yield "works for", ", for ".join(reversed(above))
        yield "known by", _EVIDENCE.get(told.evidence, "nothing").format(call=told.call_id or "that began it")
        yield "sees", "all but what is named here" if told.hidden else "all of its list"
    if told.candidates > 1:
        yield "not told", f"{told.candidates} open calls say word for word what it opens with; so it is neither's"
    if told.hidden:
        whose = Counter(each.of for each in told.hidden)
        said = ", ".join(f"{count} of {name}" for name, count in whose.most_common(HIDDEN))
        yield "hidden", Text(f"{len(told.hidden)} results with their calls: {said}", style="bold")
        for each in told.hidden if full else told.hidden[:HIDDEN]:
            yield "", f"[{each.index}] {each.tool or 'a result'} {each.call_id}: it is of {each.of}"
        if not full and len(told.hidden) > HIDDEN:
            yield "", f"and {len(told.hidden) - HIDDEN:,} more; --full shows all"
    if not told.on_record:
        yield "but", "what proxies found out could not be asked for: there is no store to read, or nothing in it"
