"""The latest plan of a conversation, complete and word for word: a plan file, a to-do list, the user's, or inferred."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from accordion.core.values import dataclass
from accordion.memory.files import File
from accordion.memory.plan_files import PlanFile
from accordion.memory.steps import Record, Saying
from accordion.memory.todos import Todos, todos_of

Source = Literal["workflow", "todo", "user-stated", "inferred"]

LATER: Final = "[Later edits of this file that could not be applied exactly, as they were made:]"
_IMPLEMENT: Final = re.compile(
    r"\s*(?:please )?(?:implement|execute|carry out|follow)(?: on)? (?:the following|this) plan:?[ \t]*\n+",
    re.IGNORECASE,
)
_SAYS_PLAN: Final = re.compile(
    r"\b(?:here['’]?s|here is|this is|follow|my|the) (?:the |my |our |a )?(?:\w+ )?(?:plan|steps|roadmap|todo list)\b"
    r"|\b(?:plan|steps|roadmap|to-?do|tasks)\s*:"
    r"|\b(?:i|we) (?:want|need|would like) (?:you )?to(?: do)?(?: the following)?:",
    re.IGNORECASE,
)
_NUMBERED: Final = re.compile(r"^[ \t]{0,3}(?:step[ \t]+)?(\d{1,2})[.):][ \t]+\S", re.IGNORECASE)
_BULLET: Final = re.compile(r"""^[ \t]{0,3}(?:[-*•][ \t]{1,3}(?:\[[ xX>]\][ \t])?|\[[ xX>]\][ \t]+)["'`*(\w]""")
_THEN: Final = re.compile(r"\bfirst(?:ly)?\b.{3,}?\bthen\b.{3,}", re.IGNORECASE | re.DOTALL)
_FENCE: Final = re.compile(r"^\s*(?:```|~~~)")
_OPEN_BOX: Final = re.compile(r"^[ \t]*(?:[-*+]|\d+[.)])[ \t]+\[( |>|/)\][ \t]+(\S[^\n]*)", re.MULTILINE)
_AHEAD: Final = re.compile(
    r"\b(?:plan|steps?|approach|next|remaining|to-?do|I['’]ll|I will|need to|going to)\b", re.IGNORECASE
)
_FEWEST: Final = 3
_LOOKED: Final = 60_000
_OWN_WORDS: Final = 4_000
"""Characters of a message that is likely typed as a whole; in longer ones documents and output are pasted."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan. `label` is its source with where it stands; `text` is the plan itself, character for character; `open`
    are the steps of it that are not done yet, `why` is what was said with it."""

    source: Source
    label: str
    text: str
    open: tuple[str, ...] = ()
    why: str = ""


def plan_of(record: Record, files: Sequence[File], plans: Sequence[PlanFile]) -> Plan | None:
    """The latest plan by the order of sources, given the plan files; None where nothing was planned or done."""
    todos = todos_of(record.steps)
    left = _left(todos)
    for file in plans:
        if file.text is not None and file.text.strip():
            text = _whole(file)
            return Plan("workflow", f"workflow ({file.path})", text, left or boxes(text))
    if todos is not None:
        text = todos.render()
        return Plan("todo", f"todo ({todos.tool})", text, left or boxes(todos.text), todos.why)
    if stated := stated_plan(record.said("user")):
        return Plan("user-stated", "user-stated", stated, boxes(stated))
    return _inferred(record, files)


def boxes(text: str) -> tuple[str, ...]:
    """The steps of a text that have an open box."""
    return tuple(found[2].strip() for found in _OPEN_BOX.finditer(text))


def is_typed(text: str) -> bool:
    """Whether a message is likely typed by a person: no plan that is handed over, no long document or output."""
    return len(text) <= _OWN_WORDS and _IMPLEMENT.match(text) is None


def titled(text: str) -> str:
    """Of a message that hands a plan over, its opening and the plan's title; any other message as it is."""
    opening = _IMPLEMENT.match(text)
    return f"{opening[0]}{text[opening.end() :].split(chr(10), 1)[0]}" if opening is not None else text


def stated_plan(said: Sequence[Saying]) -> str:
    """The newest plan that the user stated, from its opening to its last step; empty where there is none. A message
    that calls itself a plan comes before one that merely lists."""
    listed = ""
    for each in reversed(said):
        text = each.text[:_LOOKED]
        if (opening := _IMPLEMENT.match(text)) is not None:
            return each.text[opening.end() :]
        found = _list_in(text)
        named = _SAYS_PLAN.search(text) is not None
        if named and (found or _THEN.search(text[:_OWN_WORDS])):
            return found or text
        if found and not listed and is_typed(text) and not _asks_only(found):
            listed = found
    return listed


def _whole(file: PlanFile) -> str:
    text = file.text or ""
    return "\n\n".join([text, LATER, *file.left]) if file.left else text


def _left(todos: Todos | None) -> tuple[str, ...]:
    if todos is None:
        return ()
    return tuple(
        f"{item.text} (in progress)" if item.mark == ">" else item.text for item in todos.items if item.mark in " >"
    )


def _list_in(text: str) -> str:
    """A list of three steps or more with the line that introduces it and all that stands within it; empty where there
    is none."""
    lines, fenced = text.split("\n"), False
    numbered: list[tuple[int, int]] = []
    bullets: list[int] = []
    for at, line in enumerate(lines):
        if _FENCE.match(line):
            fenced = not fenced
        if fenced:
            continue
        if (found := _NUMBERED.match(line)) is not None:
            numbered.append((at, int(found[1])))
        elif _BULLET.match(line):
            bullets.append(at)
    places = _counted(lines, numbered) or bullets
    if len(places) < _FEWEST:
        return ""
    first, last, steps = places[0], places[-1] + 1, frozenset(places)
    if any(at not in steps and (line := lines[at]).strip() and line[0] not in " \t" for at in range(first, last)):
        # Its steps are paragraphs: where the last one ends cannot be told.
        return "\n".join(lines[_opening(lines, first) :]).strip("\n")
    while (
        last < len(lines)
        and (lines[last].startswith((" ", "\t")) or _BULLET.match(lines[last]))
        and lines[last].strip()
    ):
        last += 1
    return "\n".join(lines[_opening(lines, first) : last]).strip("\n")


def _counted(lines: Sequence[str], numbered: Iterable[tuple[int, int]]) -> list[int]:
    """The places of the last list of three numbered steps or more, of those that stand within no other's steps; given
    the places and numbers of all. Empty for none."""
    lists: list[list[int]] = []
    open_: list[list[int]] = []
    for at, number in numbered:
        depth = _depth(lines[at])
        if going := [each for each in reversed(open_) if len(each) + 1 == number]:
            # The one that is as deep, else the innermost: a number of two digits may stand further left.
            own = next((each for each in going if _depth(lines[each[-1]]) == depth), going[0])
            own.append(at)
            open_ = open_[: open_.index(own) + 1]
        elif number == 1:
            open_ = [*(each for each in open_ if _depth(lines[each[0]]) < depth), [at]]
            lists.append(open_[-1])
    long = [each for each in lists if len(each) >= _FEWEST]
    return min(reversed(long), key=lambda each: _depth(lines[each[0]]), default=[])


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _opening(lines: Sequence[str], first: int) -> int:
    """Where the line stands that introduces a list; where the list begins if there is none."""
    start = first
    while start and start > first - 2 and (not lines[start - 1].strip() or lines[start - 1].rstrip().endswith(":")):
        start -= 1
    return start


def _asks_only(text: str) -> bool:
    """Whether a list is of questions rather than steps."""
    items = [line for line in text.split("\n") if _NUMBERED.match(line) or _BULLET.match(line)]
    return 2 * sum(line.rstrip().endswith("?") for line in items) >= len(items)


def _inferred(record: Record, files: Sequence[File]) -> Plan | None:
    """What the assistant laid out last, else what was done in its order."""
    for each in reversed(record.said("assistant")):
        found = _list_in(each.text[:_LOOKED])
        opening = found.split("\n", 1)[0]
        if found and "?" not in opening and _AHEAD.search(opening):
            return Plan("inferred", "inferred (laid out by the assistant)", found, boxes(found))
    done = [f"- [x] {_did(file)} {file.path}" for file in files if file.changed]
    return Plan("inferred", "inferred (from what was done)", "\n".join(done)) if done else None


def _did(file: File) -> str:
    return "Delete" if file.deleted else "Create" if file.created else "Edit"
