"""Draws window curves as SVG: for each request what came and what was sent, with triggers and compactions.

Positions are percentages of the drawing, so that it takes the width of any screen and its letters stay readable. A
drawing has no style of its own; the style sheet has a class for each element.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from markupsafe import Markup

from accordion.accounting.ledger import DaySavings
from accordion.features.page.rendering import format_dollars
from accordion.model.budget import TokenLimits
from accordion.model.records import Exchange

_HIGHEST = 1.15
"""The largest share of the window that the scale extends to; higher columns are cut off, and marked."""
_HEIGHT = 240
"""The height of the large curve, in pixels."""
_LINE = 14
"""The distance of two names on the axis, in pixels."""
MOST_COLUMNS = 120
"""Columns of the large curve. A longer session has several requests in each."""
_GAP = 0.18
"""The share of a column's width that stays empty."""
_HEADROOM = 1.08
_SMALL_HEIGHT = 36
_NEARLY_ALL = 0.93
"""The share of a curve's height above which a mark has no space over its column."""
_DOTTED = Markup(
    '<defs><pattern id="came" width="4" height="4" patternUnits="userSpaceOnUse">'
    '<rect class="came-ground" width="4" height="4"/><rect class="came-dot" width="1.4" height="1.4"/>'
    '<rect class="came-dot" x="2" y="2" width="1.4" height="1.4"/></pattern></defs>'
)


class CurvePoint(msgspec.Struct, frozen=True):
    """One request, or a few: the tokens that came and that were sent, and the id of a compaction that was made for it.

    `link` is the URL of its row in the list of requests. A point of several requests has the most tokens of any, their
    number in `requests`, and the first of their compactions; `compactions` is the number of these.
    """

    came: int
    sent: int
    compaction: str = ""
    title: str = ""
    link: str = ""
    requests: int = 1
    compactions: int = 1


def curve_points(exchanges: Sequence[Exchange]) -> list[CurvePoint]:
    """Returns the points of a curve. Requests that were not measured have none."""
    points = []
    for exchange in exchanges:
        tokens, outcome = exchange.utilization.tokens, exchange.compaction
        if not tokens:
            continue
        came = tokens + (outcome.saved if outcome is not None else 0)
        made = outcome.id if outcome is not None and outcome.state == "compacted" else ""
        title = f"{came:,} tokens came, {tokens:,} were sent" if came != tokens else f"{tokens:,} tokens"
        name = "window" if exchange.utilization.is_window_known else "assumed window"
        points.append(CurvePoint(came, tokens, made, f"{title}, {exchange.utilization.ratio:.1%} of the {name}"))
    return points


def draw_curve(points: Sequence[CurvePoint], limits: TokenLimits, label: str, link: str = "") -> Markup:
    """Draws the large curve, with the names of the limits beside it. `link` is the URL of a compaction without its id.

    A column leads to its request by a click. By keyboard, people reach the requests in their list, so that they need
    not pass each column.
    """
    top = _top(points, limits)
    pieces = [
        Markup('<svg class="curve" role="group" aria-label="{}" width="100%" height="{}">').format(label, _HEIGHT),
        _DOTTED,
        *_columns(points, top, link),
        *_levels(limits, top),
        Markup("</svg>"),
        Markup('<svg class="axis" aria-hidden="true" width="100%" height="{}">').format(_HEIGHT),
        *_level_names(limits, top),
        Markup("</svg>"),
    ]
    return Markup("").join(pieces)


def describe_cut(points: Sequence[CurvePoint], limits: TokenLimits) -> str:
    """Says how high the columns are that the large curve cuts off; empty if it cuts none."""
    highest = max((point.came for point in points), default=0)
    if highest <= _top(points, limits):
        return ""
    window = max(1, limits.window)
    return f"Columns above {_HIGHEST:.0%} of the window are cut off; the highest is {highest / window:.0%}."


def draw_days(days: Sequence[DaySavings], label: str) -> Markup:
    """Draws a column for each day, the oldest first: dotted what it would have cost, solid what was paid."""
    top = _HEADROOM * max(1, *(max(day.costs.original_cost, day.costs.spent) for day in days))
    width = 100 / max(len(days), 30)
    pieces = [
        Markup('<svg class="curve days" role="img" aria-label="{}" width="100%" height="140">').format(label),
        _DOTTED,
    ]
    for index, day in enumerate(reversed(days)):
        left, inner, costs = index * width + width * _GAP / 2, width * (1 - _GAP), day.costs
        title = (
            f"{day.day}: {format_dollars(costs.spent)} paid, {format_dollars(costs.original_cost)} without Accordion"
        )
        columns = [("came", costs.original_cost), ("sent", costs.spent)]
        bars = [_bar(kind, left, inner, cost, top) for kind, cost in sorted(columns, key=lambda each: -each[1])]
        pieces += [Markup("<g><title>{}</title>").format(title), *bars, Markup("</g>")]
    return Markup("").join([*pieces, Markup("</svg>")])


def draw_small_curve(points: Sequence[CurvePoint], limits: TokenLimits, label: str) -> Markup:
    """Draws the small curve of a list, without letters: one path for each kind of column, since a list has many."""
    top, width = _top(points, limits), 100 / max(len(points), 12)
    came, sent = [], []
    for index, point in enumerate(points):
        if point.came > point.sent:
            came.append(_small_column(index * width, width, point.came, top))
        sent.append(_small_column(index * width, width, point.sent, top))
    marks = [f"M{(index + 0.5) * width:.2f} 0v6" for index, point in enumerate(points) if point.compaction]
    return Markup(
        '<svg class="spark" role="img" aria-label="{}" width="100%" height="36" viewBox="0 0 100 {}" '
        'preserveAspectRatio="none"><path class="came" d="{}"/><path class="sent" d="{}"/>'
        '<path class="mark-line" d="{}"/><path class="level" d="M0 {}h100"/></svg>'
    ).format(
        label,
        _SMALL_HEIGHT,
        "".join(came),
        "".join(sent),
        "".join(marks),
        f"{_SMALL_HEIGHT * (1 - limits.conversation / top):.2f}",
    )


def _small_column(left: float, width: float, tokens: int, top: float) -> str:
    height = _SMALL_HEIGHT * min(1.0, tokens / top)
    return f"M{left + width * _GAP / 2:.2f} {_SMALL_HEIGHT}v-{height:.2f}h{width * (1 - _GAP):.2f}v{height:.2f}z"


def draw_meter(used: int, limits: TokenLimits, label: str) -> Markup:
    """Draws how full a window is, with a tick at each trigger and at the hard limit."""
    window = max(1, limits.window)
    ticks = [
        Markup('<line class="tick" x1="{0}%" x2="{0}%" y1="0" y2="100%"/>').format(
            _format_number(100 * tokens / window)
        )
        for tokens in (limits.conversation, limits.generation, limits.hard)
        if 0 < tokens < window
    ]
    return Markup("").join(
        [
            Markup('<svg class="meter" role="img" aria-label="{}" width="100%" height="14">').format(label),
            Markup('<rect class="meter-ground" width="100%" height="100%" rx="3"/>'),
            Markup('<rect class="{}" width="{}%" height="100%" rx="3"/>').format(
                level_class(used, limits), _format_number(min(100.0, 100 * used / window))
            ),
            *ticks,
            Markup("</svg>"),
        ]
    )


def level_class(tokens: int, limits: TokenLimits) -> str:
    """Returns the class of a number of tokens.

    Up to the hard limit all is well: between a trigger and the limit, compaction does its work.
    """
    if tokens >= limits.hard:
        return "fill-hard"
    return "fill-working" if tokens >= limits.conversation else "fill"


def _columns(points: Sequence[CurvePoint], top: float, link: str) -> Iterator[Markup]:
    width = 100 / max(len(points), 12)
    for index, point in enumerate(points):
        left, inner = index * width + width * _GAP / 2, width * (1 - _GAP)
        column = Markup("").join(_column(point, left, inner, top))
        if point.link:
            column = Markup('<a href="{}" tabindex="-1" aria-label="{}">{}</a>').format(point.link, point.title, column)
        yield Markup("<g><title>{}</title>{}").format(point.title or f"Request {index + 1}", column)
        if point.compaction:
            yield _draw_mark(point, left + inner / 2, top, link)
        yield Markup("</g>")


def _column(point: CurvePoint, left: float, width: float, top: float) -> Iterator[Markup]:
    """Yields the parts of a column: a transparent one of the whole height, which is easy to hit, then what is seen."""
    yield _bar("target", left, width, int(top), top)
    if point.came > point.sent:
        yield _bar("came", left, width, point.came, top)
    yield _bar("sent", left, width, point.sent, top)
    if point.came > top:
        yield Markup('<rect class="cut" x="{}%" y="5" width="{}%" height="3"/>').format(
            _format_number(left), _format_number(width)
        )


def _draw_mark(point: CurvePoint, middle: float, top: float, link: str) -> Markup:
    highest = max(point.came, point.sent)
    # Above the column or, where that would be outside the drawing, at its top.
    offset = -4 if highest < _NEARLY_ALL * top else 21
    mark = Markup('<text class="mark" x="{}%" y="{}" dy="{}">▼</text>').format(
        _format_number(middle), _y(highest, top), offset
    )
    if not link:
        return mark
    name = "Compaction" if point.compactions == 1 else f"The first of {point.compactions} compactions"
    return Markup('<a href="{}{}" aria-label="{}">{}</a>').format(
        link, point.compaction, f"{name}: {point.title}", mark
    )


def _bar(kind: str, left: float, width: float, tokens: int, top: float) -> Markup:
    height = min(100.0, 100 * tokens / top)
    return Markup('<rect class="{}" x="{}%" y="{}%" width="{}%" height="{}%"/>').format(
        kind, _format_number(left), _format_number(100 - height), _format_number(width), _format_number(height)
    )


def _named_levels(limits: TokenLimits, top: float) -> Iterator[tuple[float, str, str]]:
    """Yields height (a percentage from above), name and class of each limit within the drawing, from above."""
    levels = [
        (limits.window, "window", "level-window"),
        (limits.hard, "hard limit", "level-hard"),
        (limits.generation, "generation", "level"),
        (limits.conversation, "conversation", "level"),
    ]
    for tokens, name, css in levels:
        y = 100 - 100 * tokens / top
        if 0 <= y <= 100:
            yield y, f"{tokens / max(1, limits.window):.0%} {name}", css


def _levels(limits: TokenLimits, top: float) -> Iterator[Markup]:
    """Yields a line for each limit."""
    for y, _, css in _named_levels(limits, top):
        yield Markup('<line class="{}" x1="0" x2="100%" y1="{}%" y2="{}%"/>').format(
            css, _format_number(y), _format_number(y)
        )


def _level_names(limits: TokenLimits, top: float) -> Iterator[Markup]:
    """Yields the names of the limits, each at its line, or below the name before where the lines are close together."""
    above = 0.0
    for y, name, _ in _named_levels(limits, top):
        above = max(y * _HEIGHT / 100 + 4, above + _LINE)
        yield Markup('<text class="level-name" x="6" y="{}">{}</text>').format(_format_number(above), name)


def _top(points: Sequence[CurvePoint], limits: TokenLimits) -> float:
    """Returns the tokens at the upper edge of the drawing."""
    window = max(1, limits.window)
    return _HEADROOM * max(window, min(_HIGHEST * window, max((point.came for point in points), default=0)))


def _y(tokens: int, top: float) -> str:
    return f"{_format_number(100 - min(100.0, 100 * tokens / top))}%"


def _format_number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
