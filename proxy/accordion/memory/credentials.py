"""Credentials in a text: known by their form, or by the word before them.

By rule, so some are missed: what must not be kept must not be said. A text with one is either left out or masked.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

MASK: Final = "[credential]"
"""What stands in a credential's place."""

_FORMS: Final = re.compile(
    # OpenAI, Anthropic and Stripe; GitHub and GitLab; Slack; AWS; Google; Hugging Face; npm; JSON web tokens.
    r"\b(?:(?:sk|pk|rk)[-_](?=[\w-]{0,80}\d)[\w-]{14,}|gh[opsur]_\w{14,}|(?:github_pat_|glpat-|xox[abeprs]-)[\w-]{10,}"
    r"|A(?:KIA|SIA)[A-Z0-9]{16}\b|AIza[\w-]{30,}|(?:hf|npm)_[A-Za-z0-9]{20,}|eyJ[\w-]{14,}(?:\.[\w-]+)*)"
    # A private key to its end, whatever stands in its lines; one that breaks off, as far as it goes. In JSON and in
    # settings its line ends are written as signs.
    r"|-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----"
    r"(?:(?:[^-]|-(?!----)){0,10000}-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----"
    r"|(?:(?:\s|\\[nr])+[A-Za-z0-9+/=]{3,})*)"
)
_BEARER: Final = re.compile(r"(\b(?:Bearer|Basic)\s+)([\w+/=.~-]{7,}[\w+/=])", re.IGNORECASE)
_IN_URL: Final = re.compile(r"(://[^/\s:@]*:)([^/\s@]+)(?=@)")
_GIVEN: Final = re.compile(r"((?<!\S)(?:-u|--user)[ =]['\"]?[^\s:'\"]+:)([^\s'\"]+)")
_NAMES: Final = (
    r"(?:pass(?:word|phrase|code|wd)|pwd|secret|(?:api|access|secret|private|account|encryption)[ _-]?key"
    r"|(?:access|auth|refresh|session|bot|api)?[ _-]?token|credentials?)"
)
_VALUE: Final = r"[^\s\"'`,;)}\]]{3,}[^\s\"'`,;)}\].!?:]"
_ASSIGNED: Final = re.compile(
    rf"((?<![A-Za-z0-9])(?:[\w-]{{0,40}}[_-])?{_NAMES}[\"'`]?\s*(?::=|=>|[:=])\s*[\"'`]?|(?<!\S)--?{_NAMES}\s+[\"'`]?)"
    rf"({_VALUE})",
    re.IGNORECASE,
)
_SAID: Final = re.compile(rf"(\b{_NAMES}(?: \w+){{0,3}}? (?:is|was|are)(?: now)?:? [\"'`]?)({_VALUE})", re.IGNORECASE)
_STANDS_FOR: Final = re.compile(
    r"\$|<|\*{3}|%[A-Z(]|os\.|process\.|env[.(\[]|None\b|null\b|true\b|false\b", re.IGNORECASE
)
"""How a value begins that only says where the credential is."""
_TELLING: Final = re.compile(r"\d|[^\W\d_][!#$%&*+=?@^~|][^\W_]|[a-z][A-Z]")
"""What a word has that somebody made up rather than said."""
_PASSWORD: Final = re.compile(r"pass|pwd|secret", re.IGNORECASE)
_PLAIN: Final = re.compile(
    r"(?:\w+(?:ed|ing|ly|able|ible)|also|always|available|because|correct|different|empty|from|here|incorrect|invalid|just"
    r"|kept|known|long|lost|missing|more|never|only|optional|read|safe|same|sent|short|shown|still|strong|that|their|them"
    r"|there|unknown|valid|weak|what|when|where|with|without|wrong|your|ours|part|once|this|these)\b",
    re.IGNORECASE,
)
"""What is said of a password, rather than what it is."""


def has_credential(text: str) -> bool:
    """Whether a text holds a credential, as far as that can be told."""
    return masked(text) != text


def masked(text: str) -> str:
    """A text with `[credential]` in the place of each credential; what says whose it is, and where it goes, stays."""
    text = _FORMS.sub(MASK, text)
    text = _BEARER.sub(_cover(lambda value: _TELLING.search(value) is not None), text)
    text = _GIVEN.sub(_cover(_is_value), _IN_URL.sub(_cover(_is_value), text))
    text = _ASSIGNED.sub(_cover(_is_value), text)
    return _SAID.sub(_said, text)


def _said(found: re.Match[str]) -> str:
    value = found[2]
    told = _PASSWORD.search(found[1]) is not None and _PLAIN.match(value) is None and value.isalpha()
    return f"{found[1]}{MASK}" if _is_value(value) and (told or _TELLING.search(value)) else found[0]


def _is_value(value: str) -> bool:
    return MASK not in f"{value}]" and _STANDS_FOR.match(value) is None


def _cover(meant: Callable[[str], bool]) -> Callable[[re.Match[str]], str]:
    def cover(found: re.Match[str]) -> str:
        return f"{found[1]}{MASK}" if meant(found[2]) else found[0]

    return cover
