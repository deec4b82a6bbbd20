"""How the commands print lists: tables whose ids are always complete, and counted nouns."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table

_NARROWEST = 12
"""Characters that a column of text gets at least."""
_GAP = 2


def print_table(table: Table) -> None:
    """Prints a table on the standard output. Columns with `no_wrap` (ids, numbers) are never cut or wrapped, at any
    width of the terminal or the pipe: the others shrink, and where that is not enough, lines get longer than it."""
    console = Console(highlight=False)
    needed = sum(_width(column) + _GAP for column in table.columns)
    console.width = max(console.width, needed)
    console.print(table)


def _width(column: Column) -> int:
    if not column.no_wrap:
        return _NARROWEST
    return max(cell_len(str(cell)) for cell in (column.header, *column.cells))


def counted(count: int, noun: str, plural: str = "") -> str:
    """A number with its noun: `1 session`, `2 sessions`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
