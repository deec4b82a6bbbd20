"""A short form of what a sub-agent answered, for places where the whole of it is archived."""

from __future__ import annotations

import re
from typing import Final

from accordion.summaries.digest import digest

_FINDING: Final = re.compile(r"[ \t]{0,8}(?:[-*+•]|\d{1,3}[.)]|\|)[ \t]+\S.*", re.ASCII)
_MOST: Final = 200
"""Findings that are looked for."""
_NAMED: Final = 80
"""Characters by which a line is found again."""


def digest_of_return(text: str, budget_chars: int) -> str:
    """What tells most of an answer, verbatim, of at most `budget_chars` characters: how it begins and ends, and of what
    is between the entries of its lists, which are its findings as a rule. Without lists as of any text."""
    found = (line for line in text.split("\n") if _FINDING.match(line))
    findings = dict.fromkeys(line.strip()[:_NAMED] for line, _ in zip(found, range(_MOST), strict=False))
    return digest(text, budget_chars, wanted=findings)
