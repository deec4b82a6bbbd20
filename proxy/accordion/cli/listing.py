"""Prints lists: tables that never cut an id, counted nouns, amounts of money, and the sources of windows.

Rich is imported for the first table, since `accordion serve` prints none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from accordion.model.costs import Basis, Costs, to_dollars

if TYPE_CHECKING:
    from rich.table import Column, Table

    from accordion.model.budget import WindowSource

WINDOW_SOURCES: Mapping[WindowSource, str] = {
    "config": "from the config",
    "learnt": "learned from an overflow error",
    "listed": "from the provider's list of models",
    "table": "from LiteLLM's table",
    "family": "assumed: that of another version of the model",
    "default": "assumed: the model is unknown",
}
"""Texts for the sources of a window's size."""
_MIN_WIDTH = 12
"""The minimum width of a text column, in characters."""
_COLUMN_GAP = 2
_SMALLEST = 0.01
_UNKNOWN = "unknown"


def print_table(table: Table) -> None:
    """Prints a table on the standard output.

    Columns with `no_wrap` (ids, numbers) are never cut or wrapped. The others shrink; if that is not enough, lines get
    longer than the terminal.
    """
    from rich.console import Console  # noqa: PLC0415  # see above

    console = Console(highlight=False)
    needed = sum(_width(column) + _COLUMN_GAP for column in table.columns)
    console.width = max(console.width, needed)
    console.print(table)


def _width(column: Column) -> int:
    if not column.no_wrap:
        return _MIN_WIDTH
    from rich.cells import cell_len  # noqa: PLC0415  # see above

    return max(cell_len(str(cell)) for cell in (column.header, *column.cells))


def count_with_noun(count: int, noun: str, plural: str = "") -> str:
    """Formats a number with its noun: `1 session`, `2 sessions`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def format_dollars(nanodollars: int) -> str:
    """Formats an amount: cents, or four decimals below one cent."""
    dollars = to_dollars(nanodollars)
    digits = 2 if abs(dollars) >= _SMALLEST or not dollars else 4
    amount = f"${abs(dollars):,.{digits}f}"
    return f"{'-' if dollars < 0 else ''}{'<$0.0001' if amount == '$0.0000' else amount}"


def format_cost(costs: Costs, amount: int, *, is_original: bool) -> str:
    """Formats an amount of `costs`, with or without Accordion."""
    return format_amount(costs, amount, costs.original_basis if is_original else costs.sent_basis)


def format_amount(costs: Costs, amount: int, basis: Basis) -> str:
    """Formats an amount of `costs`, with `~` before an estimate; `unknown` where no price is known."""
    if costs.requests and costs.unpriced == costs.requests:
        return _UNKNOWN
    return ("" if basis == "reported" else "~") + format_dollars(amount)
