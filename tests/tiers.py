"""Which cases of a test with many the quick tier runs (`make test`); `make test-all` runs all. See conftest.py."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

FULL, FAST = 100, 20
"""Examples of a property that names no number: in all tests, and in the quick tier."""


def examples(count: int) -> int:
    """Returns the number of examples of a property that names `count`: all of them, or a fifth in the quick tier."""
    return max(5, count * settings().max_examples // FULL)


def first_quick(values: Iterable[Any]) -> list[Any]:
    """Parameters of a test, of which the quick tier runs only the first."""
    first, *others = values
    return [first, *(_rest(value) for value in others)]


def _rest(value: Any) -> Any:
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=pytest.mark.rest)
