"""Texts in which only what words are made of is left."""

from __future__ import annotations

import re

# Letters of alphabets that names are written in stay, so that no word is cut in the middle; any other sign ends it.
LETTERS = "\u00c0-\u024f\u0370-\u04ff"
"""Letters outside ASCII, as a pattern has them."""
_LETTER = re.compile(f"[{LETTERS}]")
_FOREIGN = re.compile(f"[^\x00-\x7f{LETTERS}]+")
_ASCII = bytes(range(128))


def spelled(text: str) -> str:
    """The text with a question mark in place of what is neither ASCII nor such a letter."""
    if text.isascii():
        return text
    # Most have dashes and quotation marks beside ASCII and nothing else, which is told without a pattern over it all.
    beside = text.encode("utf-8", "replace").translate(None, _ASCII).decode()
    if _LETTER.search(beside) is None:
        return text.encode("ascii", "replace").decode()
    return _FOREIGN.sub("?", text)
