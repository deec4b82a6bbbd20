"""Tables: one value per measured row, printed with rich, written as Markdown or JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

Cell = str | float | int | None


@dataclass
class Table:
    """One scenario's outcome; `goals` are lines such as 'CPU ≤ 0.35 ms: 0.31 ms, met'."""

    title: str
    columns: Sequence[str]
    rows: list[list[Cell]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    goals: list[str] = field(default_factory=list)
    block: str = ""
    """The place in the Markdown file that the table goes to; empty: the scenario's own."""
    has_failed: bool = False
    """Whether what was measured is wrong, and the command has to say so by its status."""

    def goal(self, text: str, value: float, limit: float, unit: str, *, at_least: bool = False) -> None:
        met = value >= limit if at_least else value <= limit
        sign = "≥" if at_least else "≤"
        self.goals.append(f"{text} {sign} {show(limit)} {unit}: {show(value)} {unit}, {'met' if met else 'NOT met'}")


def show(cell: Cell) -> str:
    """A number with three significant digits or so; nothing as a dash."""
    if cell is None:
        return "-"
    if isinstance(cell, float):
        size = abs(cell)
        digits = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 1 else 3
        return f"{cell:.{digits}f}"
    return str(cell)


def display(tables: Sequence[Table], console: Console) -> None:
    for table in tables:
        drawn = RichTable(title=table.title, title_justify="left")
        for number, column in enumerate(table.columns):
            drawn.add_column(column, justify="left" if number == 0 else "right")
        for row in table.rows:
            drawn.add_row(*map(show, row))
        console.print(drawn)
        for line in table.notes + table.goals:
            console.print(f"  {line}", style="dim" if line in table.notes else "bold", highlight=False)
        console.print()


def markdown(tables: Sequence[Table]) -> str:
    return "\n\n".join(map(_markdown, tables)) + "\n"


def _markdown(table: Table) -> str:
    lines = [f"**{table.title}**", "", "| " + " | ".join(table.columns) + " |"]
    lines.append("|" + "|".join("---" if number == 0 else "---:" for number in range(len(table.columns))) + "|")
    lines += ["| " + " | ".join(map(show, row)) + " |" for row in table.rows]
    remarks = [f"- {line}" for line in table.notes] + [f"- Goal: {line}" for line in table.goals]
    return "\n".join(lines + (["", *remarks] if remarks else []))


def blocks(name: str, tables: Sequence[Table]) -> dict[str, str]:
    """The tables of a scenario by the places that they go to."""
    places = dict.fromkeys(table.block or name for table in tables)
    return {place: markdown([table for table in tables if (table.block or name) == place]) for place in places}


def write_markdown(file: Path, blocks: Mapping[str, str]) -> None:
    """Fill what is between `<!-- NAME -->` and `<!-- /NAME -->`; what has no such place goes to the end."""
    text = file.read_text() if file.exists() else ""
    for name, content in blocks.items():
        block = f"<!-- {name} -->\n{content.rstrip()}\n<!-- /{name} -->"
        text, found = re.subn(rf"<!-- {name} -->.*?<!-- /{name} -->", _constant(block), text, flags=re.DOTALL)
        if not found:
            text += f"\n{block}\n"
    file.write_text(text)


def _constant(text: str) -> Callable[[re.Match[str]], str]:
    """A replacement in which backslashes mean nothing."""
    return lambda _: text


def as_json(results: dict[str, list[Table]]) -> dict[str, Any]:
    return {name: [asdict(table) for table in tables] for name, tables in results.items()}
