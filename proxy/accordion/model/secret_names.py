"""Recognizes headers and options whose values are secrets, by their names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

# `tokens` counts something, such as `max_tokens`.
_SECRET = re.compile(r"key|secret|token(?!s)|password|passphrase|credential|auth|cookie", re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """Whether a header or an option of this name may have a secret."""
    return _SECRET.search(name) is not None


def without_secrets(pairs: Iterable[tuple[str, T]]) -> tuple[tuple[str, T], ...]:
    """Returns names and values without those that may be secrets, also in tables that are values."""
    return tuple((name, _clean(value)) for name, value in pairs if not is_secret_name(name))


def _clean(value: T) -> T:
    return type(value)(without_secrets(value.items())) if isinstance(value, dict) else value
