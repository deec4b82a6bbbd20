"""The text of a session memory: fourteen sections in fixed order, written, read and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from accordion.core.errors import BadRequest
from accordion.memory.credentials import masked
from accordion.memory.plan import Plan

TITLES: Final = (
    "Session ID",
    "Project Root",
    "Objective",
    "Execution Plan",
    "Working Files (Modified)",
    "Reference Files (Read-Only)",
    "Last Action",
    "Decisions",
    "Constraints",
    "Dependencies",
    "Known Issues",
    "Changes Made",
    "Pending",
    "Notes",
)
NONE: Final = "(none)"
PLAN: Final = TITLES[3]
_SOURCE: Final = "### Source: "
_OPEN: Final = "<details>\n<summary>Full Execution Plan (Click to expand)</summary>\n\n"
_END: Final = "</details>"
_HEADED: Final = re.compile(r"^(?=#)", re.MULTILINE)
_FRAME: Final = re.compile(r"<details>\s*<summary>[^<\n]*</summary>\n{0,2}")
_SOURCES: Final = ("workflow", "todo", "user-stated", "inferred")


def rendered(contents: Mapping[str, str]) -> str:
    """The text of the fourteen sections; one without content says `(none)`. Outside of the plan, which is kept as it
    is, no line of a content passes for a heading, and credentials are masked."""
    told = {title: text if title == PLAN else _HEADED.sub(" ", masked(text)) for title, text in contents.items()}
    return "\n\n".join(f"## {title}\n{told.get(title) or NONE}" for title in TITLES)


def listed(items: Sequence[str]) -> str:
    """Items as a list, each on a line of its own; empty where there are none."""
    return "\n".join(f"- {' '.join(item.split())}" for item in items)


def planned(plan: Plan | None) -> str:
    """A plan under its source, character for character; empty for none."""
    return f"{_SOURCE}{plan.label}\n\n{_OPEN}{plan.text}\n\n{_END}" if plan is not None else ""


def parsed(text: str) -> dict[str, str]:
    """The contents of the sections by title. Raises BadRequest where one is missing, empty or out of order.

    A plan may hold anything, these very headings too: what comes before it is looked for from the beginning, what comes
    behind it from the end.
    """
    body = "\n" + text.strip("\n") + "\n"
    if wrong := _missing(body):
        raise BadRequest(wrong, code="not_a_session_memory", param="text")
    starts: dict[str, int] = {}
    at, before = 0, TITLES.index(PLAN) + 1
    for title in TITLES[:before]:
        at = starts[title] = body.find(_heading(title), at)
    end = len(body)
    for title in reversed(TITLES[before:]):
        end = starts[title] = body.rfind(_heading(title), 0, end)
    places = [starts[title] for title in TITLES]
    if places[0] != 0 or any(one >= two for one, two in pairwise(places)) or min(places) < 0:
        order = ", ".join(TITLES)
        wrong = (
            f"The sections of a session memory must be in this order, and the text must begin with the first: {order}."
        )
        raise BadRequest(wrong, code="not_a_session_memory", param="text")
    ends = [*places[1:], len(body)]
    out = {
        title: body[start + len(_heading(title)) : stop].removesuffix("\n").removesuffix("\n")
        for title, start, stop in zip(TITLES, places, ends, strict=True)
    }
    _check(out)
    return out


def plan_in(content: str) -> str:
    """The plan that stands in the section of that name; empty where there is none."""
    frame = _FRAME.search(content)
    body = content.rstrip()
    if frame is None or not body.endswith(_END):
        return ""
    return body[frame.end() : -len(_END)].removesuffix("\n").removesuffix("\n")


def _missing(body: str) -> str:
    gone = [title for title in TITLES if _heading(title) not in body]
    if not gone:
        return ""
    names = ", ".join(f'"## {title}"' for title in gone)
    return f"A session memory has fourteen sections; missing: {names}. One without content says {NONE}."


def _check(contents: Mapping[str, str]) -> None:
    empty = [title for title, content in contents.items() if not content.strip()]
    if empty:
        wrong = f"These sections are empty: {', '.join(empty)}. Write {NONE} in a section without content."
        raise BadRequest(wrong, code="not_a_session_memory", param="text")
    plan = contents[PLAN]
    if plan.strip() == NONE:
        return
    source = plan.removeprefix(_SOURCE).split("\n", 1)[0]
    if not plan.startswith(_SOURCE) or not source.startswith(_SOURCES) or not plan_in(plan).strip():
        wrong = (
            f'The section "{PLAN}" must begin with "{_SOURCE}" and one of {", ".join(_SOURCES)}, and contain the whole '
            f"plan between <details> and </details>, under its <summary>. Without a plan, write {NONE}."
        )
        raise BadRequest(wrong, code="not_a_session_memory", param="text")


def _heading(title: str) -> str:
    return f"\n## {title}\n"
