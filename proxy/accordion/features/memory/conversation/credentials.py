"""Finds credentials in a text by their form, or by the word before them.

Rules miss some credentials, so a text that must not be stored must not be sent. Callers leave out or mask a text with a
credential.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

MASK: Final = "[credential]"
"""The replacement of a credential."""

_CREDENTIAL_FORMS: Final = re.compile(
    # OpenAI, Anthropic and Stripe; GitHub and GitLab; Slack; AWS; Google; Hugging Face; npm; JSON web tokens.
    r"\b(?:(?:sk|pk|rk)[-_](?=[\w-]{0,80}\d)[\w-]{14,}|gh[opsur]_\w{14,}|(?:github_pat_|glpat-|xox[abeprs]-)[\w-]{10,}"
    r"|A(?:KIA|SIA)[A-Z0-9]{16}\b|AIza[\w-]{30,}|(?:hf|npm)_[A-Za-z0-9]{20,}|eyJ[\w-]{14,}(?:\.[\w-]+)*)"
    # A private key up to its end marker, or an incomplete one as far as it goes. In JSON and in settings its line
    # ends are escaped.
    r"|-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----"
    r"(?:(?:[^-]|-(?!----)){0,10000}-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----"
    r"|(?:(?:\s|\\[nr])+[A-Za-z0-9+/=]{3,})*)"
)
_BEARER: Final = re.compile(r"(\b(?:Bearer|Basic)\s+)([\w+/=.~-]{7,}[\w+/=])", re.IGNORECASE)
_IN_URL: Final = re.compile(r"(://[^/\s:@]*:)([^/\s@]+)(?=@)")
_USER_OPTION: Final = re.compile(r"((?<!\S)(?:-u|--user)[ =]['\"]?[^\s:'\"]+:)([^\s'\"]+)")
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
_STATED_CREDENTIAL: Final = re.compile(
    rf"(\b{_NAMES}(?: \w+){{0,3}}? (?:is|was|are)(?: now)?:? [\"'`]?)({_VALUE})", re.IGNORECASE
)
_PLACEHOLDER: Final = re.compile(
    r"\$|<|\*{3}|%[A-Z(]|os\.|process\.|env[.(\[]|None\b|null\b|true\b|false\b", re.IGNORECASE
)
"""The beginning of a value that refers to a credential elsewhere."""
_RANDOM: Final = re.compile(r"\d|[^\W\d_][!#$%&*+=?@^~|][^\W_]|[a-z][A-Z]")
"""Characters of a generated word, which ordinary words lack."""
_PASSWORD: Final = re.compile(r"pass|pwd|secret", re.IGNORECASE)
_DESCRIPTION: Final = re.compile(
    r"(?:\w+(?:ed|ing|ly|able|ible)|also|always|available|because|correct|different|empty|from|here|incorrect|invalid|just"
    r"|kept|known|long|lost|missing|more|never|only|optional|read|safe|same|sent|short|shown|still|strong|that|their|them"
    r"|there|unknown|valid|weak|what|when|where|with|without|wrong|your|ours|part|once|this|these)\b",
    re.IGNORECASE,
)
"""A word that describes a password, rather than one."""


def has_credential(text: str) -> bool:
    """Returns whether the rules find a credential in a text."""
    return mask_credentials(text) != text


def mask_credentials(text: str) -> str:
    """Replaces each credential of a text by `[credential]`. The words around it stay."""
    text = _CREDENTIAL_FORMS.sub(MASK, text)
    text = _BEARER.sub(_mask_with(lambda value: _RANDOM.search(value) is not None), text)
    text = _USER_OPTION.sub(_mask_with(_is_value), _IN_URL.sub(_mask_with(_is_value), text))
    text = _ASSIGNED.sub(_mask_with(_is_value), text)
    return _STATED_CREDENTIAL.sub(_mask_stated, text)


def _mask_stated(match: re.Match[str]) -> str:
    value = match[2]
    is_plain_password = _PASSWORD.search(match[1]) is not None and _DESCRIPTION.match(value) is None and value.isalpha()
    return f"{match[1]}{MASK}" if _is_value(value) and (is_plain_password or _RANDOM.search(value)) else match[0]


def _is_value(value: str) -> bool:
    return MASK not in f"{value}]" and _PLACEHOLDER.match(value) is None


def _mask_with(is_credential: Callable[[str], bool]) -> Callable[[re.Match[str]], str]:
    def mask(match: re.Match[str]) -> str:
        return f"{match[1]}{MASK}" if is_credential(match[2]) else match[0]

    return mask
