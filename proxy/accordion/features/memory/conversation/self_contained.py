"""Rules for self-contained sentences: those that a reader understands years later, without their conversation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from accordion.model.words import UNSEARCHED
from accordion.summaries.evidence import is_claim

_DEPENDENT_BEGINNING: Final = re.compile(
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
"""The beginning of a sentence without a subject: `Returns the id`."""
_GERUND: Final = re.compile(r"(?!(?:any|every|some|no)thing\b|during\b)[a-z]{2,}ing\b", re.IGNORECASE)
_ALTERNATIVES: Final = re.compile(r"[A-Za-z]+/[A-Za-z]+")
"""Two words with a slash between them, which is no path."""
_WORD: Final = re.compile(r"[^\W\d_]{2,}")
STATES: Final = re.compile(
    r"\b(?:is|are|was|were|uses?|lives?|contains?|returns?|requires?|depends?|stores?|has|have|runs?|supports?|expects?|"
    r"reads?|writes?|takes?|calls?|means|defaults?|costs?|starts?|ends?|holds?|handles?|implements?|defines?|exists?|"
    r"replaces?|created?|added|removed|renamed|moved|updated|extracted|implemented|changed|passes|passed|fails|failed|"
    r"keeps?|overrides?|shows?|sends?|receives?|loads?|sets?|gets?|gives?|checks?|builds?|serves?|accepts?|rejects?|"
    r"wraps?|extends?|inherits?|refers?|prints?|emits?|validates?|parses?|produces?|provides?|includes?|adds?|throws?|"
    r"raises?|references?|opens?|covers?|lacks?|ignores?|skips?|breaks?|broke|allows?|enables?|disables?|"
    r"belongs?|works?|maintains?|owns?|listens?|points?|matches|needs?)\b",
    re.IGNORECASE,
)
"""Verbs of a statement."""
_MAY: Final = re.compile(
    r"\b(?:can|could|will|would|should|shall|must|may|might|do|does|did|cannot)\b|n['’]t\b|['’](?:s|re|ll|ve|d)\b",
    re.IGNORECASE,
)
"""Auxiliary verbs."""
_EDGE_CHARACTERS: Final = "\"'`()[]{}<>,;:!?*…—–-"
_ANTECEDENT: Final = 3
"""Words before a pronoun from which on they likely contain its antecedent."""
_MIN_WORDS: Final = 4
_SHORT_WORD: Final = 3
"""Letters of a topic's word up to which it must match a whole word."""

_EMPTY_TEXT: Final = (
    "added assistant because cant change changed changes code created didnt doesnt done dont error every file files "
    "first found going good id ill isnt issue ive know last lets line lines look make message messages next off "
    "option problem run said see since take test tests told tool try updated us user wont work working works yet"
)
EMPTY: Final = UNSEARCHED.union(_EMPTY_TEXT.split())
"""Words that say little about a sentence's subject."""


def is_self_contained(text: str) -> bool:
    """Returns whether nothing in a sentence refers to its context. In doubt the rules say no."""
    match = _DEPENDENT_BEGINNING.match(text)
    if (
        (match and not (text.endswith("?") and match.group().lower() in {"who", "which"}))
        or _VAGUE.search(text)
        or (_SUBJECTLESS.match(text) and not text.endswith("?"))
        or ((gerund := _GERUND.match(text)) and not has_statement(text[gerund.end() :]))
        or text.endswith(("…", "...", ":", ","))
    ):
        return False
    if len(_WORD.findall(text)) < _MIN_WORDS:
        return False
    pronoun = _PRONOUN.search(text)
    # After enough words, a pronoun refers to something in the sentence itself.
    return pronoun is None or len(_WORD.findall(text, 0, pronoun.start())) >= _ANTECEDENT


def has_statement(text: str) -> bool:
    """Returns whether a text makes a statement: whether the rules find a verb in it."""
    return STATES.search(text) is not None or _MAY.search(text) is not None


def find_claims(text: str) -> tuple[str, ...]:
    """Returns the names, paths, identifiers and numbers of a text."""
    return tuple(dict.fromkeys(_iterate_claims(text)))


def content_words(text: str) -> list[str]:
    """Returns the words of a text, in lower case, that name its subject."""
    return [
        word for word in map(str.lower, _WORD.findall(text.replace("'", ""))) if len(word) > 2 and word not in EMPTY
    ]


def is_about(text: str, topic: str) -> bool:
    """Returns whether a text has every word of a topic. Of a long word, the beginning is enough."""
    lowered, words = text.lower(), re.findall(r"\w+", topic.lower())
    return bool(words) and all(_mentions_word(lowered, word) for word in words)


def _mentions_word(text: str, word: str) -> bool:
    # A short word is part of many words: `go` of `category`. Scripts without spaces cannot be matched by word.
    if len(word) <= _SHORT_WORD and word.isascii():
        return re.search(rf"(?<![a-z0-9]){word}s?(?![a-z0-9])", text) is not None
    return word[: max(4, len(word) - 2)] in text


def _iterate_claims(text: str) -> Iterator[str]:
    for word in text.split():
        claim = word.strip(_EDGE_CHARACTERS).rstrip(".").rstrip(_EDGE_CHARACTERS)
        if claim and is_claim(claim) and not _ALTERNATIVES.fullmatch(claim):
            yield claim
