import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.features.offline.plot import HEIGHT, plot, plot_levels, sparkline, style_of
from accordion.model.budget import Thresholds, TokenLimits

LIMITS = TokenLimits(window=1_000, conversation=500, generation=750, hard=850)


def draw(ratios: list[float], turns: tuple[int, ...] = (0,), width: int = 78, ascii_only: bool = False) -> list[str]:
    return [line.plain for line in plot(ratios, turns, LIMITS, width, ascii_only=ascii_only)]


def bars(lines: list[str]) -> list[str]:
    return [line[7:].split(" conv")[0].split(" gen")[0].split(" hard")[0].rstrip() for line in lines[:HEIGHT]]


def test_a_bar_is_as_high_as_the_window_is_full() -> None:
    lines = bars(draw([0.0, 0.5, 1.0] * 30, width=30))
    heights = [sum(line[column : column + 1] == "█" for line in lines) for column in range(23)]
    assert max(heights) == HEIGHT
    (half,) = {sum(line[:1] == "█" for line in bars(draw([0.5])))}
    assert half == HEIGHT // 2


def test_more_requests_than_columns_show_the_fullest_of_each_column() -> None:
    ratios = [0.1] * 1_000
    ratios[500] = 0.95
    top = bars(draw(ratios))[1]
    assert sum(cell in "▁▂▃▄▅▆▇█" for cell in top) == 1


def test_a_window_that_is_more_than_full_stretches_the_scale() -> None:
    lines = draw([0.5, 2.0])
    assert lines[0].strip().startswith("200%")
    assert any(line.strip().startswith("100%") for line in lines[1:])


def test_limits_that_fall_into_one_row_share_it() -> None:
    lines = [line.plain for line in plot([9.0], (0,), LIMITS, 100, ascii_only=False)]
    assert any("generation trigger, hard limit" in line for line in lines)


def test_turns_are_marked_below_their_first_request() -> None:
    ratios = [0.5] * 10
    axis = draw(ratios, turns=(0, 5), width=78)[HEIGHT][7:]
    assert axis.count("┬") == 2
    assert axis.index("┬", 1) == len(axis) // 2
    assert draw([0.5] * 500, turns=(0, 250))[HEIGHT].count("┬") == 2


@given(
    st.lists(st.floats(0, 3), min_size=1, max_size=300),
    st.integers(20, 200),
    st.builds(Thresholds, st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)),
)
def test_every_line_keeps_within_the_width_whatever_is_drawn(
    ratios: list[float], width: int, shares: Thresholds
) -> None:
    lines = plot(ratios, range(0, len(ratios), 3), shares.limits(1_000), width, ascii_only=True)
    assert len(lines) == HEIGHT + 2
    assert all(line.cell_len <= max(width, 40) for line in lines)
    assert all(line.plain.isascii() for line in lines)


def test_styles_follow_the_highest_limit_that_is_reached() -> None:
    marks = plot_levels(LIMITS)
    assert [style_of(share, marks) for share in (0.49, 0.5, 0.75, 0.85)] == ["green", "yellow", "dark_orange", "red"]


@pytest.mark.parametrize("width", [8, 30])
def test_a_sparkline_keeps_its_width(width: int) -> None:
    line = sparkline([0.1, 0.9] * 40, LIMITS, width, ascii_only=False)
    assert line.cell_len == width
    assert sparkline([], LIMITS, width, ascii_only=False).plain == ""


def test_a_shadow_stands_above_the_bars_and_is_cut_off_where_it_is_much_higher() -> None:
    lines = [line.plain for line in plot([0.5, 0.5], (0,), LIMITS, 78, ascii_only=False, shadow=[0.5, 9.0])]
    assert lines[0].strip().startswith("150%")
    tops = [line[7:].split(" conv")[0] for line in lines[:HEIGHT]]
    assert ["░" in line for line in tops] == [True] * 8 + [False] * 4
    assert all(not line.startswith("░") for line in tops)
    assert lines[-1].endswith("░ received")


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 50)), min_size=1, max_size=200), st.integers(20, 200))
def test_a_shadow_changes_neither_width_nor_height(values: list[tuple[float, float]], width: int) -> None:
    ratios, shadow = zip(*values, strict=True)
    lines = plot(ratios, (0,), LIMITS, width, ascii_only=True, shadow=shadow)
    assert len(lines) == HEIGHT + 2
    assert all(line.cell_len <= max(width, 40) and line.plain.isascii() for line in lines)
