"""What the page's view of health shows: reachability, failures, unknown windows, and warnings of the log."""

from __future__ import annotations

import logging

from accordion.features.page.recent_log import MOST_LINES, RecentLog
from accordion.features.page.request_health import MOST_EVENTS, RequestHealth
from accordion.model.budget import Utilization
from accordion.model.records import CompactionOutcome, Exchange


def exchange(at: float, status: int = 200, error: str = "", **fields: object) -> Exchange:
    measured = Utilization(100_000, is_window_known=bool(fields.pop("is_window_known", True)))
    return Exchange(
        at, f"req-{at}", "s-1", "gpt-5", "openai", "/v1/x", False, status, 1, measured, "", error=error, **fields
    )  # type: ignore[arg-type]


def test_a_provider_is_reachable_until_a_request_fails_and_again_after_an_answer() -> None:
    health = RequestHealth()
    health.exchange("one", exchange(1.0), "")
    health.exchange("one", exchange(2.0, 0, "upstream_unreachable"), "")
    health.exchange("one", exchange(3.0, 503, "provider_error"), "")
    state = health.of("one").upstreams["openai"]
    assert (state.succeeded, state.failed, state.failures, state.status) == (1.0, 3.0, 2, 503)
    # The provider refuses the request, so it is there.
    health.exchange("one", exchange(4.0, 400, "provider_error"), "")
    assert (state.succeeded, state.failures) == (4.0, 0)
    health.exchange("one", exchange(5.0, 0, "client_disconnected"), "")
    assert (state.succeeded, state.failed) == (4.0, 3.0)
    assert [each.at for each in health.of("one").failed_requests] == [4.0, 3.0, 2.0]
    assert health.of("two").upstreams == {}
    assert not health.of("two").failed_requests


def test_only_the_latest_failures_are_remembered() -> None:
    health = RequestHealth()
    for at in range(3 * MOST_EVENTS):
        health.exchange("one", exchange(float(at), 500, "provider_error"), "")
    failed = health.of("one").failed_requests
    assert [each.at for each in failed] == [float(3 * MOST_EVENTS - 1 - number) for number in range(MOST_EVENTS)]


def test_failed_compactions_and_summaries_are_remembered_with_their_reason() -> None:
    health = RequestHealth()
    failed = CompactionOutcome("failed", reason="the store is unavailable", failure="store")
    put_off = CompactionOutcome("failed", reason="it was tried a short time ago", failure="put_off")
    extracted = CompactionOutcome("compacted", writer="extractive", failed_answers=2)
    for at, outcome in enumerate((failed, put_off, extracted)):
        health.exchange("one", exchange(float(at), compaction=outcome), "")
    assert [each.reason for each in health.of("one").failed_compactions] == [
        "2 answers of the model could not be used as a summary. It was written by the extractive writer.",
        "the store is unavailable",
    ]


def test_a_window_that_is_assumed_is_named_with_its_model() -> None:
    health = RequestHealth()
    health.exchange("one", exchange(1.0, is_window_known=False), "")
    assert health.of("one").assumed_windows == {"gpt-5": 100_000}


def test_the_latest_warnings_of_the_log_are_remembered_without_credentials() -> None:
    log, recent = logging.getLogger("accordion.test_recent_log"), RecentLog()
    log.addHandler(recent)
    try:
        log.info("nothing happened")
        log.warning("the key %s was refused", "sk-abcdefghijklmnopqrst")
        assert [(line.level, line.text) for line in recent.lines] == [("warning", "the key sk-*** was refused")]
        for number in range(MOST_LINES + 5):
            log.error("failure %d", number)
        assert len(recent.lines) == MOST_LINES
        assert recent.lines[0].text == f"failure {MOST_LINES + 4}"
    finally:
        log.removeHandler(recent)
