"""Masks the characters of a text that do not belong to words."""

from __future__ import annotations

import re

# Latin, Greek and Cyrillic letters stay, so that no word is cut in the middle; any other character ends a word.
LETTERS = "\u00c0-\u024f\u0370-\u04ff"
"""Letters outside ASCII, in the syntax of a character class."""
_LETTER = re.compile(f"[{LETTERS}]")
_FOREIGN = re.compile(f"[^\x00-\x7f{LETTERS}]+")
_ASCII = bytes(range(128))


def mask_symbols(text: str) -> str:
    """Replaces each character that is neither ASCII nor one of `LETTERS` by a question mark."""
    if text.isascii():
        return text
    # Besides ASCII, most texts have only dashes and quotation marks. That is found without a search of the whole text.
    other_characters = text.encode("utf-8", "replace").translate(None, _ASCII).decode()
    if _LETTER.search(other_characters) is None:
        return text.encode("ascii", "replace").decode()
    return _FOREIGN.sub("?", text)
