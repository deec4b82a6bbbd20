"""Whether a sentence can stand alone, years later and without what was said around it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from accordion.memory import speech
from accordion.summaries.evidence import is_claim

_OPENS: Final = re.compile(
    r"^(?:it|its|it's|this|that|that's|these|those|they|them|their|he|him|his|she|her|which|who|there|here|here's|both|"
    r"such|so|then|also|and|but|or|however|therefore|thus|instead|otherwise|same|neither|either|one|another|yes|no|"
    r"nope|yep|ok|okay|sure|thanks|thank|not|the (?:first|second|third|last|former|latter|above|following|other|same|"
    r"rest)|above|below|if so|for (?:this|that|these|those)|in (?:this|that)|with (?:this|that)|as (?:such|above))\b",
    re.IGNORECASE,
)
_VAGUE: Final = re.compile(
    r"\b(?:the (?:above|following|latter|former|aforementioned)|as (?:mentioned|discussed|described|noted|requested)|"
    r"(?:mentioned|described|listed|shown|see|noted) (?:above|below|earlier)|"
    r"(?:option|suggestion|step|item|approach|point|solution|idea|phase|part|choice)s? "
    r"#?\d[\d,\-– and]*(?!\s*[(:—\-]|\d)|"
    r"yesterday|tomorrow|tonight|today|(?:last|next|this) (?:week|month|time|morning|evening|one|night|year)|"
    r"(?:this|these|those) (?!way\b|means\b)\w+|that (?:one|way|file|bug|test|error|issue|function|line|case|thing)|"
    r"do (?:it|that|this|so)|the same (?:in|for|with|to|there|again|thing)|"
    r"the (?:first|second|third|other) (?:one|option|approach)|"
    r"what (?:we|you|I) (?:did|discussed))\b",
    re.IGNORECASE,
)
_PRONOUN: Final = re.compile(r"\b(?:it|its|they|them|their|this|those|these)\b", re.IGNORECASE)
_SUBJECTLESS: Final = re.compile(
    r"(?!(?:does|across|besides|unless|plus|minus|versus|towards|always|perhaps|sometimes|whereas|regardless|afterwards)\b)"
    r"[a-z]{3,}s (?:(?:the|an?|all|each|any|every|existing|its|whether|if|by|no)\b|`)|needs? to\b",
    re.IGNORECASE,
)
"""How a sentence begins that leaves out who does what it says: `Returns the id`."""
_GERUND: Final = re.compile(r"(?!(?:any|every|some|no)thing\b|during\b)[a-z]{2,}ing\b", re.IGNORECASE)
_EITHER: Final = re.compile(r"[A-Za-z]+/[A-Za-z]+")
"""Plain language with a stroke."""
_WORD: Final = re.compile(r"[^\W\d_]{2,}")
_EDGES: Final = "\"'`()[]{}<>,;:!?*…—–-"
_ANTECEDENT: Final = 3
"""Words before a pronoun that may well hold what it stands for."""
_FEWEST: Final = 4
_FEW: Final = 3
"""Letters of a word of a topic that must stand as a word."""

_SMALL: Final = (
    "a an and are as at be been but by can could did do does doing done for from get go going good got had has "
    "have he her here him his how i if in into is it its just know let like look make me more most my need new no "
    "not now of off ok on one only or our out over own please really run see she should since so some still such "
    "sure take than thank thanks that the their them then there these they thing things this those to too try up "
    "us use used user using very want was way we well were what when where which while who why will with would "
    "yes yet you your im ive ill id lets dont doesnt didnt cant wont isnt also about after before because between "
    "both each every other same first next last assistant tool said found told created updated added file files "
    "code line lines work works working change changes changed test tests issue problem error option message "
    "messages"
)
EMPTY: Final = frozenset(_SMALL.split())
"""Words that say little of what a sentence is about."""


def stands(text: str) -> bool:
    """Whether nothing in a sentence points out of it. By rule: what cannot be told to stand does not."""
    opens = _OPENS.match(text)
    if (
        (opens and not (text.endswith("?") and opens.group().lower() in {"who", "which"}))
        or _VAGUE.search(text)
        or (_SUBJECTLESS.match(text) and not text.endswith("?"))
        or ((doing := _GERUND.match(text)) and not tells(text[doing.end() :]))
        or text.endswith(("…", "...", ":", ","))
    ):
        return False
    if len(_WORD.findall(text)) < _FEWEST:
        return False
    pronoun = _PRONOUN.search(text)
    # A pronoun within a sentence stands for what came before it there, where enough did.
    return pronoun is None or len(_WORD.findall(text, 0, pronoun.start())) >= _ANTECEDENT


def tells(text: str) -> bool:
    """Whether a text says something of what it names: it has a verb, as far as that is known by rule."""
    return speech.STATES.search(text) is not None or speech.MAY.search(text) is not None


def claims(text: str) -> tuple[str, ...]:
    """The words of a text that are no plain language: names, paths, identifiers, numbers."""
    return tuple(dict.fromkeys(_claims(text)))


def content(text: str) -> list[str]:
    """The words of a text, in small letters, that say what it is about."""
    return [
        word for word in map(str.lower, _WORD.findall(text.replace("'", ""))) if len(word) > 2 and word not in EMPTY
    ]


def about(text: str, topic: str) -> bool:
    """Whether a text is about a topic: every word of the topic stands there; a long one's beginning is enough."""
    low, words = text.lower(), re.findall(r"\w+", topic.lower())
    return bool(words) and all(_speaks_of(low, word) for word in words)


def _speaks_of(text: str, word: str) -> bool:
    # A few letters stand within many words: `go` within `category`. Other scripts set no spaces.
    if len(word) <= _FEW and word.isascii():
        return re.search(rf"(?<![a-z0-9]){word}s?(?![a-z0-9])", text) is not None
    return word[: max(4, len(word) - 2)] in text


def _claims(text: str) -> Iterator[str]:
    for word in text.split():
        bare = word.strip(_EDGES).rstrip(".").rstrip(_EDGES)
        if bare and is_claim(bare) and not _EITHER.fullmatch(bare):
            yield bare
