"""The comparison with a hold-out, as the API, the page and the command line show it."""

from __future__ import annotations

from accordion.accounting.holdout import LEAST, CompactionStop, Interval
from accordion.accounting.holdout_text import (
    ComparedRow,
    comparison_json,
    describe_comparison,
    describe_groups,
    describe_models,
    describe_stop,
    list_compared_rows,
    stop_json,
)
from tests.holdouts import compared, groups, row, spread


def test_a_sentence_says_when_compaction_does_not_pay() -> None:
    comparison = compared(groups(spread(1.12, 200), spread(1.0, 100)))
    assert comparison.verdict == "costs"
    assert describe_comparison(comparison) == (
        "Compaction does not pay for this traffic: it costs 12 % more per session (between 5 and 19 %)."
    )


def test_a_sentence_says_when_compaction_pays() -> None:
    comparison = compared(groups(spread(0.5, 200), spread(1.0, 100)))
    assert comparison.verdict == "pays"
    assert describe_comparison(comparison) == (
        "Compaction pays for this traffic: it costs 50 % less per session (between 47 and 53 %)."
    )


def test_a_sentence_says_when_both_are_possible() -> None:
    comparison = compared(groups(spread(1.01, 100), spread(1.0, 100)))
    assert comparison.verdict == "open"
    assert describe_comparison(comparison) == (
        "It is open whether compaction pays for this traffic: it costs between 6 % less and 8 % more per session."
    )


def test_a_sentence_says_when_there_are_too_few_sessions() -> None:
    comparison = compared(groups([1.0] * 1_200, [2.0] * (LEAST - 1)))
    assert comparison.verdict == "too_few"
    assert describe_comparison(comparison) == (
        "There are too few sessions to say whether compaction pays for this traffic: 1,200 with compaction and 29 in "
        "the hold-out reached a trigger; it takes 30 of each."
    )


def test_sessions_of_unknown_price_are_compared_in_all_but_dollars() -> None:
    rows = [
        row(f"{group}{number}", group, 0.0, unpriced=1) for group in ("compaction", "holdout") for number in range(30)
    ]
    comparison = compared(rows)
    assert comparison.verdict == "unpriced"
    assert [figure.name for figure in comparison.figures] == ["requests", "reads", "repeated_calls", "errors"]
    assert "prices.models" in describe_comparison(comparison)


def test_each_figure_is_a_row_with_its_intervals() -> None:
    rows = list(list_compared_rows(compared(groups(spread(0.5, 200), spread(1.0, 100)))))
    assert rows[0] == ComparedRow(
        "Dollars", "$0.5000", "$1.00", "-$0.5000 (-$0.5555 to -$0.4445)", "-50 % (-53 to -47 %)"
    )
    assert rows[1] == ComparedRow("Requests", "1.00", "1.00", "+0.00 (+0.00 to +0.00)", "+0.0 % (+0.0 to +0.0 %)")
    assert [each.title for each in rows[2:]] == ["Artifacts read back", "Repeated calls", "Errors"]
    assert rows[4].change == ""


def test_the_groups_are_described_with_those_that_were_compacted_nevertheless() -> None:
    rows = groups([1.0] * 40, [1.0] * 30)
    assert describe_groups(compared(rows)).startswith(
        "Sessions that reached a trigger, each with its sub-agents: 40 with compaction, 30 in the hold-out. In brackets"
    )
    rows.append(row("more", "holdout", compactions=1))
    assert "31 in the hold-out (of these, 1 compacted later)." in describe_groups(compared(rows))


def test_json_has_the_sentence_the_groups_and_each_figure() -> None:
    found = comparison_json(compared(groups(spread(0.5, 200), spread(1.0, 100))))
    assert (found["verdict"], found["confidence"]) == ("pays", 0.95)
    assert found["sentence"].startswith("Compaction pays for this traffic")
    assert found["sessions"] == {"compaction": 200, "holdout": 100, "compacted_holdout": 0, "least": 30}
    assert found["figures"]["spent"]["change"]["value"] == -0.5
    assert found["figures"]["errors"]["change"] is None
    assert found["models"]["gpt-5"]["figures"] == found["figures"]
    too_few = comparison_json(compared(groups([1.0] * 3, [1.0])))
    assert (too_few["verdict"], too_few["figures"]) == ("too_few", {})


def test_of_several_models_each_with_enough_sessions_has_a_sentence() -> None:
    rows = groups(spread(1.12, 200), spread(1.0, 100), "dear")
    assert describe_models(compared(rows)) == []
    rows += groups([1.0], [1.0], "rare")
    assert describe_models(compared(rows)) == [
        "Compaction does not pay for dear: it costs 12 % more per session (between 5 and 19 %)."
    ]


def test_a_stop_is_described_with_its_reason_and_its_end() -> None:
    stop = CompactionStop("a", "gpt-5", 0.0, 30 * 86_400.0, Interval(0.12, 0.05, 0.19))
    assert describe_stop(stop) == (
        "Compaction is stopped for gpt-5 since 1970-01-01: it cost 12 % more per session (between 5 and 19 %). "
        "Requests that would not fit are compacted nevertheless. It is tried again on 1970-01-31."
    )
    found = stop_json(stop)
    assert (found["model"], found["until"], found["change"]["high"]) == ("gpt-5", 2_592_000.0, 0.19)
