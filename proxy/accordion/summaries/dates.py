"""Finds the date at the beginning of a message, which clients and users write above what was said on it."""

from __future__ import annotations

import re
from typing import Final

_MONTH: Final = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_DATE: Final = (
    rf"\d{{4}}-\d\d-\d\d(?:[T ]\d\d:\d\d)?|\d{{1,2}}\.? {_MONTH}\.?,? \d{{4}}|"
    rf"{_MONTH}\.? \d{{1,2}}(?:st|nd|rd|th)?,? \d{{4}}"
)
_HEADING = re.compile(rf"[\[(*]?[^\n]{{0,40}}?({_DATE})[^\n]{{0,20}}(?:\n|$)|\[?({_DATE})")
"""A line that dates what follows."""
_DATE_ALONE = re.compile(rf"[\[(*][^\n]{{0,40}}?(?:{_DATE})[^\n]{{0,20}}[\])*]:?|(?:{_DATE})[\s\d:.,]*(?:[ap]\.?m\.?)?")
_MAX_READ: Final = 100
"""Characters of a text that are read for its date."""


def find_date(text: str) -> str:
    """Returns the date that a text begins with, as it is written; empty if there is none."""
    match = _HEADING.match(text[:_MAX_READ])
    return match[1] or match[2] if match is not None else ""


def is_date(line: str) -> bool:
    """Whether a line only says when what follows was said."""
    return _DATE_ALONE.fullmatch(line.strip()) is not None
