"""The values of a session's view: chips, compactions and columns."""

from __future__ import annotations

from typing import Any

import pytest

from accordion.compaction.session_overrides import SessionOverrides
from accordion.features.page.charts import MOST_COLUMNS, describe_cut
from accordion.features.page.session_view import list_columns, list_compactions, list_requests
from accordion.model.budget import Thresholds, Utilization
from accordion.model.records import CompactionOutcome, RecallUsage, ToolLoopUsage
from accordion.pipeline.session_exchanges import ExchangePage, NumberedExchange, RequestPoint
from tests.http.exchanges import exchange

LIMITS = Thresholds().limits(1_000)


def point(position: int, came: int = 200, compaction: str = "") -> RequestPoint:
    return RequestPoint(position, float(position), came, 200, 1_000, False, compaction, came, 200)


@pytest.mark.parametrize(
    ("fields", "chips"),
    [
        ({}, []),
        ({"compaction": CompactionOutcome("replayed", "f-1")}, [("quiet", "compacted earlier")]),
        (
            {"compaction": CompactionOutcome("compacted", "f-1", before=900, after=300, saved=600)},
            [("event", "compacted: 900 to 300")],
        ),
        (
            {"compaction": CompactionOutcome("replayed", "f-1", saved=800)},
            [("quiet", "compacted earlier"), ("good", "overflow avoided")],
        ),
        ({"compaction": CompactionOutcome("failed")}, [("warn", "not compacted")]),
        ({"compaction": CompactionOutcome("holdout")}, [("quiet", "due, not compacted")]),
        (
            {"compaction": CompactionOutcome("observed", is_triggered=True, before=900, after=300)},
            [("warn", "would be compacted: 900 to 300")],
        ),
        ({"status": 503, "error": "upstream_unreachable"}, [("bad", "failed: 503 upstream unreachable")]),
        ({"status": 400, "error": "context_length_exceeded"}, [("bad", "refused: too long")]),
        ({"error": "client_disconnected"}, [("warn", "the client left")]),
        ({"tool_loop": ToolLoopUsage(calls=1)}, [("event", "1 artifact read back")]),
        ({"recall": RecallUsage(tokens=120)}, [("event", "120 tokens recalled")]),
    ],
)
def test_a_request_has_a_chip_for_each_event(fields: dict[str, Any], chips: list[tuple[str, str]]) -> None:
    used = Utilization(1_000, messages=250)
    page = ExchangePage((NumberedExchange(4, exchange(utilization=used, **fields)),), None)
    (row,) = list_requests(page)
    assert [(chip.kind, chip.text) for chip in row.chips] == chips
    assert (row.number, row.id) == (5, "r5")


@pytest.mark.parametrize(
    ("decision", "outcome", "reason"),
    [
        ("25.0% of the window, under the generation trigger of 830 tokens", None, ""),
        ("45.0% of the window, near the trigger: a summary is prepared", None, "45.0%"),
        ("90.0% of the window", CompactionOutcome("failed", reason="too little would be gained"), "too little"),
        ("90.0% of the window, over the trigger", CompactionOutcome("compacted", "f-1", reason="over the"), "over the"),
    ],
)
def test_only_unusual_decisions_are_told(decision: str, outcome: CompactionOutcome | None, reason: str) -> None:
    page = ExchangePage((NumberedExchange(0, exchange(decision=decision, compaction=outcome)),), None)
    (row,) = list_requests(page)
    assert row.reason.startswith(reason)
    assert bool(row.reason) == bool(reason)


def test_all_compactions_are_listed_newest_first_and_those_undone_are_marked() -> None:
    points = [point(number, compaction=f"f-{number}" if number % 3 == 0 else "") for number in range(9)]
    rows = list_compactions(points, SessionOverrides(undone=frozenset({"f-6"})))
    assert [(row.number, row.point.compaction, row.is_undone) for row in rows] == [
        (3, "f-6", True),
        (2, "f-3", False),
        (1, "f-0", False),
    ]


def test_a_column_leads_to_its_request() -> None:
    (column,) = list_columns([point(7, 400, "f-1")], "s-1")
    assert (column.link, column.compaction) == ("s-1?before=8#r8", "f-1")
    assert column.title == "Request 8: 400 tokens came, 200 were sent, 20.0% of the window"


def test_columns_of_a_long_session_have_several_requests_each() -> None:
    points = [point(number, 200 + number % 50, "f-1" if number == 9_000 else "") for number in range(10_000)]
    columns = list_columns(points, "s-1")
    assert MOST_COLUMNS // 2 < len(columns) <= MOST_COLUMNS
    assert sum(column.requests for column in columns) == 10_000
    assert [column.compaction for column in columns if column.compaction] == ["f-1"]
    assert columns[0].title.startswith("Requests 1 to 84: at most 249 tokens came and 200 were sent")


def test_columns_that_are_cut_off_are_told() -> None:
    assert describe_cut(list_columns([point(0, 1_100)], ""), LIMITS) == ""
    told = "Columns above 115% of the window are cut off; the highest is 250%."
    assert describe_cut(list_columns([point(0, 1_100), point(1, 2_500)], ""), LIMITS) == told
