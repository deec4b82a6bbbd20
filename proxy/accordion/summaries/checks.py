"""Is every claim in the source? What a model wrote is checked line by line before it is used.

A line goes where it cites nothing, or what is not there; where it holds a name, a path, a number or a quotation that
the source does not; where it makes a request up; where it says nothing. An answer fails where too little is left.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from accordion.core.plan import Kind
from accordion.core.values import dataclass
from accordion.summaries.evidence import Evidence
from accordion.summaries.instructions import states
from accordion.summaries.schema import Document, Line, lines, render

FEWEST: Final = {"conversation": 3, "generation": 2}
"""Lines that must be left of a summary."""

_USERS: Final = (
    r"ask|want|request|said|say|told|tell|prefer|insist|instruct|need|confirm|approv|agree|chose|choos|reject|declin|"
    r"wrote|report|complain|expect|demand|decid|clarif|specif|requir|provid|g[ai]ve|mention|state|allow|forb|wish|like"
)
_BY_USER = re.compile(
    rf"\b(?:user|customer|client|human)(?:['’]?s)?\s+(?:\w+\s+){{0,2}}?(?:{_USERS})\w*|"
    r"\b(?:by|per|from) the (?:user|customer|client|human)\b|"
    r"\b(?:user|customer|client|human)['’]s? (?:request|instruct|intent|goal|wish|prefer|question|order|decision)\w*",
    re.IGNORECASE,
)
_CANNED: Final = frozenset(
    {
        *("", "none", "n a", "na", "nothing", "unknown", "tbd", "todo", "not available", "not applicable", "empty"),
        *("no summary", "summary", "conversation summary", "conversation history", "summary of the conversation"),
        *("conversation history summary", "summary of conversation", "previous conversation", "see above"),
        *("no information", "not specified", "not mentioned", "no decisions", "no open questions", "no next steps"),
        *("continue", "continue the conversation", "continue the work", "various", "various tasks", "string", "text"),
        *("error", "an error occurred", "conversation in progress", "ongoing conversation", "failed to summarize"),
        *("the user and the assistant had a conversation", "summary unavailable", "summary could not be generated"),
    }
)
_REFUSED = re.compile(
    r"\b(?:I'm sorry|I am sorry|I cannot|I can't|as an AI|failed to (?:generate|create|produce) (?:a |the )?summary|"
    r"summary (?:generation )?failed|unable to summari[sz]e)\b",
    re.IGNORECASE,
)
_WORDS = re.compile(r"[A-Za-z]{4,}")
_NOT_WORD = re.compile(r"[\W_]+")
_COMMON: Final = frozenset(
    {
        *("user", "users", "want", "wants", "wanted", "asked", "asks", "request", "requested", "please", "task"),
        *("that", "this", "with", "from", "have", "been", "they", "them", "their", "then", "than", "were", "will"),
        *("would", "should", "could", "must", "need", "needs", "needed", "into", "about", "also", "only", "when"),
        *("what", "which", "while", "make", "made", "help", "said", "told", "provided", "specified", "assistant"),
        "goal",
    }
)


@dataclass(frozen=True, slots=True)
class Checked:
    """What is left of a summary, why lines went, and what is wrong with it as a whole (empty: it may be used)."""

    lines: tuple[Line, ...]
    dropped: tuple[str, ...] = ()
    problem: str = ""

    @property
    def text(self) -> str:
        """The lines that are left, rendered."""
        return render(self.lines)


def check(
    document: Document,
    kind: Kind,
    evidence: Evidence,
    *,
    limit: int,
    count: Callable[[str], int],
    upto: int | None = None,
) -> Checked:
    """Checks a summary against its source; the lines that are left count at most `limit` tokens.

    `upto` is the last message that the writer has seen, where that is not the last one covered.
    """
    kept: list[Line] = []
    dropped: list[str] = []
    listed: list[str] = []
    seen: set[str] = set()
    given = lines(document, kind)
    for line in given:
        reason = _reason(line, evidence, upto)
        if not reason and line.text in seen:
            reason = "it says what another line says"
        if not reason and line.section.limits and _restated(line, evidence):
            # The instruction itself stands in front of the record. That is no fault.
            listed.append(f"{line.section.path} {line.text[:120]!r}: it is listed word for word")
        elif reason:
            dropped.append(f"{line.section.path} {line.text[:120]!r}: {reason}")
        else:
            seen.add(line.text)
            kept.append(_attributed(line, evidence))
    failing = len(dropped)
    kept, short = _fitted(kept, limit, count)
    return Checked(tuple(kept), (*dropped, *listed, *short), _problem(kept, kind, evidence, len(given), failing))


def _reason(line: Line, evidence: Evidence, upto: int | None) -> str:
    """Why a line cannot stay; empty where it can."""
    if _says_nothing(line.text):
        return "it says nothing"
    if not line.sources:
        return "it cites no message"
    for index in line.sources:
        unseen = upto is not None and index > upto and index != evidence.task
        if (index not in evidence.known or unseen) and index not in evidence.carried:
            return f"there is no message {index} in the transcript"
    of_user = line.section.user or _BY_USER.search(line.text) is not None
    if of_user and (reason := _made_up(line, evidence)):
        return reason
    if reason := _contradicts(line, evidence):
        return reason
    if line.section.orders and evidence.tools.issuperset(line.sources):
        return "only a tool's output says so, and that decides nothing"
    if missing := evidence.missing(line.text, user=of_user):
        return f"{missing[:80]!r} is not in the {'user’s own words' if of_user else 'transcript'} like that"
    return ""


def _made_up(line: Line, evidence: Evidence) -> str:
    """Why something cannot be the user's: no message of the user's is cited, or those cited share no word with it."""
    told = [evidence.user[index] for index in line.sources if index in evidence.user]
    if not told:
        # A line that was checked when its messages were there may be carried on as it is.
        if line.text in evidence.text and evidence.carried.issuperset(line.sources):
            return ""
        return "it tells of the user and cites no message of the user's"
    said = {stem for text in told for stem in _stems(text)}
    own = _stems(line.text)
    if len(own) > 1 and len(said) > 1 and not own & said:
        return "the user's messages that it cites say nothing of the kind"
    return ""


def _contradicts(line: Line, evidence: Evidence) -> str:
    """Why a line is not what the user said: it turns an instruction around, or tells what a later one replaced."""
    for index, instruction in evidence.standing.outdated:
        if index in line.sources and states(line.text, instruction):
            return f"the user said otherwise after message {index}"
    for each in evidence.standing.cited:
        if each.index in line.sources and states(line.text, each.instruction, reversed=True):
            return f"message {each.index} says the opposite"
    return ""


def _restated(line: Line, evidence: Evidence) -> bool:
    return any(each.index in line.sources and states(line.text, each.instruction) for each in evidence.standing.cited)


def _stems(text: str) -> set[str]:
    return {word[:4] for word in map(str.lower, _WORDS.findall(text)) if word not in _COMMON}


def _says_nothing(text: str) -> bool:
    bare = _NOT_WORD.sub(" ", text).strip().lower()
    return bare in _CANNED or sum(map(str.isalnum, text)) < 2 or _REFUSED.search(text) is not None


def _attributed(line: Line, evidence: Evidence) -> Line:
    """What only tools say is marked as that: it may be wrong, or somebody's attempt to give orders."""
    if evidence.tools.issuperset(line.sources):
        return Line(line.section, line.text, line.sources, reported=True)
    return line


def _fitted(kept: list[Line], limit: int, count: Callable[[str], int]) -> tuple[list[Line], list[str]]:
    """The lines within a limit of tokens; what matters least goes first, of equals the last."""
    sizes = [count(f"{line}\n") for line in kept]
    total, gone = sum(sizes), set[int]()
    for at in sorted(range(len(kept)), key=lambda at: (-kept[at].section.rank, -at)):
        if total <= limit:
            break
        total -= sizes[at]
        gone.add(at)
    short = [f"{kept[at].section.path} {kept[at].text[:120]!r}: there is no room for it" for at in sorted(gone)]
    return [line for at, line in enumerate(kept) if at not in gone], short


def _problem(kept: list[Line], kind: Kind, evidence: Evidence, given: int, failing: int) -> str:
    if not given:
        return "the summary is empty"
    if failing * 2 > given:
        return f"{failing} of its {given} lines cannot stay"
    if len(kept) < FEWEST[kind]:
        return f"only {len(kept)} lines are left of it"
    if not any(line.section.core for line in kept):
        return "nothing is left of what it is about"
    if sum(len(line.text) for line in kept) >= evidence.size:
        return "it is not shorter than what it stands for"
    return ""
