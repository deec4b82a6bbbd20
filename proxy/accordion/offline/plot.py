"""How full the window was, drawn with characters: a column for each request, a dotted line at each limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from rich.text import Text

from accordion.core.budget import Limits

HEIGHT = 12
WIDEST_COLUMN = 8
HIGHEST_SHADOW = 1.5
"""How far a shadow stretches the scale; what is higher is cut off."""
_AXIS = 7  # "100 % ┤"
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_SHADOW = "░"
_PLAIN = str.maketrans("▁▂▃▄▅▆▇█┄┤└┬─░", "..:::###-|++-'")


@dataclass(frozen=True, slots=True)
class Level:
    """A limit to draw a line at, as a share of the window, and the style of what is above it."""

    share: float
    name: str
    style: str


def levels(limits: Limits) -> list[Level]:
    """Both triggers and the hard limit, the lowest first."""
    of = max(1, limits.window)
    found = [
        Level(limits.conversation / of, "conversation trigger", "yellow"),
        Level(limits.generation / of, "generation trigger", "dark_orange"),
        Level(limits.hard / of, "hard limit", "red"),
    ]
    return sorted(found, key=lambda level: level.share)


def style_of(share: float, marks: Sequence[Level]) -> str:
    """The style of a window that is `share` full."""
    return next((level.style for level in reversed(marks) if share >= level.share), "green")


def plot(
    ratios: Sequence[float],
    turns: Sequence[int],
    limits: Limits,
    width: int,
    *,
    ascii_only: bool,
    shadow: Sequence[float] = (),
) -> list[Text]:
    """The lines of a plot at most `width` cells wide. `turns` holds the indices at which turns start. A `shadow`, of as
    many values, is what there would have been, and drawn behind.

    Where there are more requests than columns a column is the fullest of its requests.
    """
    marks, top = levels(limits), max(1.0, *ratios, min(HIGHEST_SHADOW, max(shadow, default=0.0)))
    names = _rows_of(marks, top)
    beside = max(len(name) for name in names.values()) + 1
    room = width - _AXIS - beside
    if room < 24:
        room, beside = max(8, width - _AXIS), 0
    columns, places = _columns(ratios, turns, room)
    behind = _columns(shadow, (), room)[0] if shadow else columns
    lines = []
    for row in reversed(range(HEIGHT)):
        line = Text(no_wrap=True, overflow="crop")
        label = _label(row, top, marks)
        line.append(f"{label:>5} {'┤' if label else '│'}", style="dim")
        empty = "┄" if row in names else " "
        cells = []
        for value, was in zip(columns, behind, strict=True):
            cell = _cell(value, row, top)
            if cell != " ":
                cells.append((cell, style_of(min(value, (row + 0.5) * top / HEIGHT), marks)))
            else:
                cells.append((_SHADOW if _cell(was, row, top) != " " else empty, "dim"))
        _append(line, cells)
        if beside and row in names:
            line.append(f" {names[row]}", style="dim")
        lines.append(line)
    lines += _foot(len(columns), places, len(ratios), width, shadow=bool(shadow))
    return [_in_ascii(line) for line in lines] if ascii_only else lines


def sparkline(ratios: Sequence[float], limits: Limits | None, width: int, *, ascii_only: bool) -> Text:
    """The same in one line of `width` cells."""
    line = Text(no_wrap=True)
    if limits is None or not ratios:
        return line
    marks = levels(limits)
    shares = _columns(ratios, (), width)[0][:width]
    _append(line, [(_EIGHTHS[max(1, min(8, round(share * 8)))], style_of(share, marks)) for share in shares])
    return _in_ascii(line) if ascii_only else line


def _append(line: Text, cells: Sequence[tuple[str, str]]) -> None:
    """Adds cells with their styles; neighbours of one style go together."""
    for style, run in groupby(cells, key=lambda cell: cell[1]):
        line.append("".join(cell for cell, _ in run), style=style)


def _columns(ratios: Sequence[float], turns: Sequence[int], room: int) -> tuple[list[float], set[int]]:
    """The height of every column, and the columns in which a turn starts."""
    count = len(ratios)
    columns = min(room, count * WIDEST_COLUMN)
    bounds = [index * count // columns for index in range(columns + 1)]
    heights = [max(ratios[start : max(end, start + 1)]) for start, end in pairwise(bounds)]
    # A request that is wider than a column begins with the first of its columns.
    return heights, {-(-turn * columns // count) if count <= columns else turn * columns // count for turn in turns}


def _rows_of(marks: Sequence[Level], top: float) -> dict[int, str]:
    """The rows in which lines stand, each with its names."""
    placed = sorted(((_row(level.share, top), level.name) for level in marks), key=lambda pair: pair[0])
    return {row: ", ".join(name for _, name in group) for row, group in groupby(placed, key=lambda pair: pair[0])}


def _row(share: float, top: float) -> int:
    return min(HEIGHT - 1, int(share / top * HEIGHT))


def _label(row: int, top: float, marks: Sequence[Level]) -> str:
    """What the axis says at a row: the highest limit in it, else the ends of the scale."""
    shares = [level.share for level in marks if _row(level.share, top) == row]
    if shares:
        return f"{max(shares):.0%}"
    if row == HEIGHT - 1:
        return f"{top:.0%}"
    return "100%" if row == _row(1.0, top) else ""


def _cell(value: float, row: int, top: float) -> str:
    filled = value / top * HEIGHT - row
    return _EIGHTHS[max(0, min(8, round(filled * 8)))]


def _foot(columns: int, places: set[int], requests: int, width: int, *, shadow: bool) -> list[Text]:
    axis = "".join("┬" if column in places else "─" for column in range(columns))
    numbers = f"1{requests:>{max(2, columns - 1)}}" if requests > 1 else "1"
    left = width - _AXIS - len(numbers)
    legends = ["  requests; ┬ starts a turn", "  requests"]
    if shadow:
        legends = [f"  requests; {_SHADOW} received", *legends]
    legend = next((text for text in legends if len(text) <= left), "")
    return [
        Text(f"{'0%':>5} └{axis}", style="dim", no_wrap=True),
        Text(f"{'':>{_AXIS}}{numbers}{legend}", style="dim", no_wrap=True, overflow="crop"),
    ]


def _in_ascii(line: Text) -> Text:
    plain = line.copy()
    plain.plain = line.plain.translate(_PLAIN).replace("│", "|")
    return plain
