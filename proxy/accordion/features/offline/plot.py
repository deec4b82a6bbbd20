"""Plots window utilization with characters: a column for each request, and a dotted line at each limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from rich.text import Text

from accordion.model.budget import TokenLimits

HEIGHT = 12
WIDEST_COLUMN = 8
HIGHEST_SHADOW = 1.5
"""The largest share that a shadow extends the scale to; higher values are cut off."""
_AXIS_WIDTH = 7  # "100 % ┤"
_BAR_CHARACTERS = " ▁▂▃▄▅▆▇█"
_SHADOW = "░"
_PLAIN = str.maketrans("▁▂▃▄▅▆▇█┄┤└┬─░", "..:::###-|++-'")


@dataclass(frozen=True, slots=True)
class PlotLevel:
    """A limit as a share of the window, and the style of the area above it."""

    share: float
    name: str
    style: str


def plot_levels(limits: TokenLimits) -> list[PlotLevel]:
    """Returns both triggers and the hard limit, the lowest first."""
    window = max(1, limits.window)
    levels = [
        PlotLevel(limits.conversation / window, "conversation trigger", "yellow"),
        PlotLevel(limits.generation / window, "generation trigger", "dark_orange"),
        PlotLevel(limits.hard / window, "hard limit", "red"),
    ]
    return sorted(levels, key=lambda level: level.share)


def style_of(share: float, levels: Sequence[PlotLevel]) -> str:
    """Returns the style for a utilization of `share`."""
    return next((level.style for level in reversed(levels) if share >= level.share), "green")


def plot(
    ratios: Sequence[float],
    turns: Sequence[int],
    limits: TokenLimits,
    width: int,
    *,
    ascii_only: bool,
    shadow: Sequence[float] = (),
) -> list[Text]:
    """Draws the lines of a plot of at most `width` cells.

    `turns` are the indices of the requests that start turns. `shadow` has another value for each request, drawn behind.
    With more requests than columns, a column shows the maximum of its requests.
    """
    levels, top = plot_levels(limits), max(1.0, *ratios, min(HIGHEST_SHADOW, max(shadow, default=0.0)))
    names = _rows_of(levels, top)
    name_width = max(len(name) for name in names.values()) + 1
    plot_width = width - _AXIS_WIDTH - name_width
    if plot_width < 24:
        plot_width, name_width = max(8, width - _AXIS_WIDTH), 0
    columns, turn_columns = _columns(ratios, turns, plot_width)
    shadow_columns = _columns(shadow, (), plot_width)[0] if shadow else columns
    lines = []
    for row in reversed(range(HEIGHT)):
        line = Text(no_wrap=True, overflow="crop")
        label = _label(row, top, levels)
        line.append(f"{label:>5} {'┤' if label else '│'}", style="dim")
        empty = "┄" if row in names else " "
        cells = []
        for value, shadow_value in zip(columns, shadow_columns, strict=True):
            cell = _cell(value, row, top)
            if cell != " ":
                cells.append((cell, style_of(min(value, (row + 0.5) * top / HEIGHT), levels)))
            else:
                cells.append((_SHADOW if _cell(shadow_value, row, top) != " " else empty, "dim"))
        _append(line, cells)
        if name_width and row in names:
            line.append(f" {names[row]}", style="dim")
        lines.append(line)
    lines += _foot(len(columns), turn_columns, len(ratios), width, shadow=bool(shadow))
    return [_in_ascii(line) for line in lines] if ascii_only else lines


def sparkline(ratios: Sequence[float], limits: TokenLimits | None, width: int, *, ascii_only: bool) -> Text:
    """Draws the utilization in one line of `width` cells."""
    line = Text(no_wrap=True)
    if limits is None or not ratios:
        return line
    levels = plot_levels(limits)
    shares = _columns(ratios, (), width)[0][:width]
    _append(line, [(_BAR_CHARACTERS[max(1, min(8, round(share * 8)))], style_of(share, levels)) for share in shares])
    return _in_ascii(line) if ascii_only else line


def _append(line: Text, cells: Sequence[tuple[str, str]]) -> None:
    """Adds cells with their styles; neighbors with the same style are joined."""
    for style, run in groupby(cells, key=lambda cell: cell[1]):
        line.append("".join(cell for cell, _ in run), style=style)


def _columns(ratios: Sequence[float], turns: Sequence[int], plot_width: int) -> tuple[list[float], set[int]]:
    """Returns the height of every column, and the columns in which turns start."""
    count = len(ratios)
    columns = min(plot_width, count * WIDEST_COLUMN)
    bounds = [index * count // columns for index in range(columns + 1)]
    heights = [max(ratios[start : max(end, start + 1)]) for start, end in pairwise(bounds)]
    # A request that is wider than a column starts with its first column.
    return heights, {-(-turn * columns // count) if count <= columns else turn * columns // count for turn in turns}


def _rows_of(levels: Sequence[PlotLevel], top: float) -> dict[int, str]:
    """Returns the rows with lines, each with the names of its limits."""
    rows = sorted(((_row(level.share, top), level.name) for level in levels), key=lambda pair: pair[0])
    return {row: ", ".join(name for _, name in group) for row, group in groupby(rows, key=lambda pair: pair[0])}


def _row(share: float, top: float) -> int:
    return min(HEIGHT - 1, int(share / top * HEIGHT))


def _label(row: int, top: float, levels: Sequence[PlotLevel]) -> str:
    """Returns the label of the axis at a row: the highest limit in it, or an end of the scale."""
    shares = [level.share for level in levels if _row(level.share, top) == row]
    if shares:
        return f"{max(shares):.0%}"
    if row == HEIGHT - 1:
        return f"{top:.0%}"
    return "100%" if row == _row(1.0, top) else ""


def _cell(value: float, row: int, top: float) -> str:
    filled = value / top * HEIGHT - row
    return _BAR_CHARACTERS[max(0, min(8, round(filled * 8)))]


def _foot(columns: int, turn_columns: set[int], requests: int, width: int, *, shadow: bool) -> list[Text]:
    axis = "".join("┬" if column in turn_columns else "─" for column in range(columns))
    numbers = f"1{requests:>{max(2, columns - 1)}}" if requests > 1 else "1"
    remaining_width = width - _AXIS_WIDTH - len(numbers)
    legends = ["  requests; ┬ starts a turn", "  requests"]
    if shadow:
        legends = [f"  requests; {_SHADOW} received", *legends]
    legend = next((text for text in legends if len(text) <= remaining_width), "")
    return [
        Text(f"{'0%':>5} └{axis}", style="dim", no_wrap=True),
        Text(f"{'':>{_AXIS_WIDTH}}{numbers}{legend}", style="dim", no_wrap=True, overflow="crop"),
    ]


def _in_ascii(line: Text) -> Text:
    plain = line.copy()
    plain.plain = line.plain.translate(_PLAIN).replace("│", "|")
    return plain
