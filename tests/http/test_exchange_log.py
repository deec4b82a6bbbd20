import logging

import pytest

from accordion.http.exchange_log import FailureLogger
from accordion.model.records import Exchange
from tests.http.exchanges import exchange

SAID = "purple-giraffe"


def failed_exchange(error: str, status: int, session: str = "s-1") -> Exchange:
    said = {"model": SAID, "path": f"/v1/{SAID}", "decision": SAID}
    return exchange(error=error, status=status, session=session, duration=1.23456, **said)


@pytest.mark.parametrize(
    ("error", "status", "level"),
    [
        ("upstream_unreachable", 502, "WARNING"),
        ("upstream_disconnected", 200, "WARNING"),
        ("provider_error", 429, "INFO"),
        ("context_length_exceeded", 400, "INFO"),
    ],
)
def test_a_request_that_failed_is_a_line_with_its_id(
    error: str, status: int, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "accordion")
    FailureLogger().exchange("tenant", failed_exchange(error, status), "")
    (line,) = caplog.records
    assert (line.levelname, line.request_id, line.error, line.status) == (level, "r", error, status)  # type: ignore[attr-defined]
    assert (line.upstream, line.session, line.seconds) == ("openai", "s-1", 1.235)  # type: ignore[attr-defined]
    assert SAID not in str(vars(line))


@pytest.mark.parametrize("error", ["", "client_disconnected"])
def test_what_went_well_and_who_went_away_are_no_lines(error: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "accordion")
    FailureLogger().exchange("tenant", failed_exchange(error, 200), "")
    assert caplog.records == []


def test_unknown_values_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "accordion")
    FailureLogger().exchange("tenant", failed_exchange("upstream_timeout", 504, session=""), "")
    assert not hasattr(caplog.records[0], "session")
