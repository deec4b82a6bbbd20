"""Renders, parses and checks the text of a session memory: fourteen sections in a fixed order."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from accordion.memory.credentials import mask_credentials
from accordion.memory.plan import SessionPlan
from accordion.model.errors import BadRequest

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
_HEADING_LINE: Final = re.compile(r"^(?=#)", re.MULTILINE)
_FRAME: Final = re.compile(r"<details>\s*<summary>[^<\n]*</summary>\n{0,2}")
_SOURCES: Final = ("workflow", "todo", "user-stated", "inferred")


def render_sections(contents: Mapping[str, str]) -> str:
    """Renders the fourteen sections, those without content as `(none)`.

    The plan stays unchanged. In other sections, lines that look like headings are indented, and credentials masked.
    """
    clean_contents = {
        title: text if title == PLAN else _HEADING_LINE.sub(" ", mask_credentials(text))
        for title, text in contents.items()
    }
    return "\n\n".join(f"## {title}\n{clean_contents.get(title) or NONE}" for title in TITLES)


def render_list(items: Sequence[str]) -> str:
    """Renders items as a list, one line each; empty if there are none."""
    return "\n".join(f"- {' '.join(item.split())}" for item in items)


def render_plan(plan: SessionPlan | None) -> str:
    """Renders a plan under its source, character for character; empty for none."""
    return f"{_SOURCE}{plan.label}\n\n{_OPEN}{plan.text}\n\n{_END}" if plan is not None else ""


def parse_sections(text: str) -> dict[str, str]:
    """Returns the contents of the sections by title. Raises BadRequest if one is missing, empty or out of order.

    A plan may contain the same headings. So the sections before it are searched from the beginning of the text, those
    after it from the end.
    """
    body = "\n" + text.strip("\n") + "\n"
    if message := _find_missing(body):
        raise BadRequest(message, code="not_a_session_memory", param="text")
    starts: dict[str, int] = {}
    position, plan_end = 0, TITLES.index(PLAN) + 1
    for title in TITLES[:plan_end]:
        position = starts[title] = body.find(_heading(title), position)
    end = len(body)
    for title in reversed(TITLES[plan_end:]):
        end = starts[title] = body.rfind(_heading(title), 0, end)
    positions = [starts[title] for title in TITLES]
    if positions[0] != 0 or any(first >= second for first, second in pairwise(positions)) or min(positions) < 0:
        order = ", ".join(TITLES)
        message = (
            f"The sections of a session memory must be in this order, and the text must begin with the first: {order}."
        )
        raise BadRequest(message, code="not_a_session_memory", param="text")
    ends = [*positions[1:], len(body)]
    contents = {
        title: body[start + len(_heading(title)) : stop].removesuffix("\n").removesuffix("\n")
        for title, start, stop in zip(TITLES, positions, ends, strict=True)
    }
    _check(contents)
    return contents


def extract_plan(content: str) -> str:
    """Returns the plan in the content of the plan's section; empty if there is none."""
    frame = _FRAME.search(content)
    body = content.rstrip()
    if frame is None or not body.endswith(_END):
        return ""
    return body[frame.end() : -len(_END)].removesuffix("\n").removesuffix("\n")


def _find_missing(body: str) -> str:
    missing = [title for title in TITLES if _heading(title) not in body]
    if not missing:
        return ""
    names = ", ".join(f'"## {title}"' for title in missing)
    return f"A session memory has fourteen sections; missing: {names}. One without content says {NONE}."


def _check(contents: Mapping[str, str]) -> None:
    empty = [title for title, content in contents.items() if not content.strip()]
    if empty:
        message = f"These sections are empty: {', '.join(empty)}. Write {NONE} in a section without content."
        raise BadRequest(message, code="not_a_session_memory", param="text")
    plan = contents[PLAN]
    if plan.strip() == NONE:
        return
    source = plan.removeprefix(_SOURCE).split("\n", 1)[0]
    if not plan.startswith(_SOURCE) or not source.startswith(_SOURCES) or not extract_plan(plan).strip():
        message = (
            f'The section "{PLAN}" must begin with "{_SOURCE}" and one of {", ".join(_SOURCES)}, and contain the whole '
            f"plan between <details> and </details>, under its <summary>. Without a plan, write {NONE}."
        )
        raise BadRequest(message, code="not_a_session_memory", param="text")


def _heading(title: str) -> str:
    return f"\n## {title}\n"
