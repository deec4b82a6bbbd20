import logging
from typing import Any

import pytest

from accordion.http.exchange_log import MAX_UNKNOWN_MODELS, OFTEN, REQUESTS, CompactionLogger
from accordion.model.budget import Thresholds, TokenLimits, Utilization
from accordion.model.records import AgentReport, CompactionOutcome
from tests.http.exchanges import exchange

MADE = CompactionOutcome(
    "compacted",
    id="f-1",
    is_triggered=True,
    kind="conversation",
    trigger=12_000,
    steps=(("compact_tool_results", 15_291, 15_191), ("summarize", 15_191, 3_381)),
    before=15_291,
    after=3_381,
    writer="extractive",
    artifacts=12,
    saved=11_626,
    reason="63.7% of the window, over the conversation trigger of 12,000 tokens",
)


SESSIONS = 3


def limits(model: str, delegated: bool, window: int) -> TokenLimits:
    return Thresholds().limits(window)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> CompactionLogger:
    caplog.set_level(logging.DEBUG, "accordion")
    return CompactionLogger(limits, SESSIONS)


def log_exchange(lines: CompactionLogger, seen: CompactionOutcome | None, **fields: Any) -> None:
    lines.exchange("tenant", exchange(compaction=seen, **fields), "")


def changed(**fields: Any) -> CompactionOutcome:
    return CompactionOutcome(**{name: getattr(MADE, name) for name in CompactionOutcome.__slots__} | fields)


def test_a_compaction_is_one_line_with_its_figures(lines: CompactionLogger, caplog: pytest.LogCaptureFixture):
    log_exchange(lines, MADE, compaction_seconds=0.0416)
    (line,) = caplog.records
    assert (line.levelname, line.request_id) == ("INFO", "r")  # type: ignore[attr-defined]
    assert line.getMessage() == (
        "compacted session s-1 (m): 15,291 to 3,381 tokens; "
        "63.7% of the window, over the conversation trigger of 12,000 tokens; "
        "compact_tool_results 100, summarize 11,810; summary by the extractive writer; 12 artifacts; "
        "11,626 tokens less than the client sent; took 42 ms"
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"reason": "91% of the window, over the hard limit"}, "; 91% of the window, over the hard limit"),
        ({"reason": "9.1% of the window, but more images than the provider takes"}, "more images than the provider"),
        ({"cause": "manual", "reason": "9.1% of the window, on request"}, "tokens; 9.1% of the window, on request;"),
        ({"cause": "overflow"}, "tokens; the provider said that it does not fit; 63.7% of the window, over"),
        ({"writer": "scribe", "input": 700, "output": 70}, "summary by scribe (700 tokens in, 70 out);"),
        (
            {"input": 6_314, "output": 20, "failed_answers": 2, "failed_input": 6_314, "failed_output": 20},
            "summary by the extractive writer; 2 answers of the model failed before (6,334 tokens);",
        ),
    ],
)
def test_the_line_says_why_and_who_wrote(
    lines: CompactionLogger, caplog: pytest.LogCaptureFixture, fields: dict[str, Any], words: str
):
    log_exchange(lines, changed(**fields))
    assert words in caplog.records[0].getMessage()


def test_a_session_in_the_hold_out_is_one_line(lines: CompactionLogger, caplog: pytest.LogCaptureFixture):
    for _ in range(3):
        log_exchange(
            lines, CompactionOutcome("holdout", reason="the session is in the hold-out, so it is not compacted")
        )
    (line,) = caplog.records
    assert line.getMessage() == "session s-1 (m): the session is in the hold-out, so it is not compacted"


def test_the_agent_is_named(lines: CompactionLogger, caplog: pytest.LogCaptureFixture):
    log_exchange(lines, MADE, agent=AgentReport(name="explorer"))
    assert "session s-1 (m, agent explorer): " in caplog.records[0].getMessage()


@pytest.mark.parametrize("seen", [None, changed(state="replayed"), changed(state="failed")])
def test_a_replay_or_a_failure_is_no_line(
    lines: CompactionLogger, caplog: pytest.LogCaptureFixture, seen: CompactionOutcome | None
):
    log_exchange(lines, seen)
    assert caplog.records == []


def test_a_mere_count_is_no_line(lines: CompactionLogger, caplog: pytest.LogCaptureFixture):
    log_exchange(lines, MADE, session="")
    assert caplog.records == []


def test_what_would_be_compacted_is_one_line_a_session(lines: CompactionLogger, caplog: pytest.LogCaptureFixture):
    observed = changed(state="observed", writer="", artifacts=0)
    for session in ("s-1", "s-1", "s-2"):
        log_exchange(lines, observed, session=session)
    found = [line.getMessage() for line in caplog.records]
    assert len(found) == 2
    assert found[0].startswith("would compact session s-1 (m): 15,291 to 3,381 tokens")
    assert "less than" not in found[0]


def test_a_window_that_is_not_known_is_one_warning_a_model(lines: CompactionLogger, caplog: pytest.LogCaptureFixture):
    used = Utilization(120_000, messages=10, is_window_known=False)
    for model, session in (("m", "s-1"), ("m", "s-2"), ("n", "s-1")):
        log_exchange(lines, None, utilization=used, model=model, session=session)
    assert [line.levelname for line in caplog.records] == ["WARNING", "WARNING"]
    assert (
        caplog.records[0]
        .getMessage()
        .startswith("session s-1 (m): the context window of this model is not known; 120,000 tokens are assumed")
    )
    for number in range(1_000):
        log_exchange(lines, None, utilization=used, model=f"made-up-{number}")
    assert len(caplog.records) == MAX_UNKNOWN_MODELS


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line.getMessage() for line in caplog.records if line.levelname == "WARNING"]


@pytest.mark.parametrize(("tools", "level"), [(13_000, "conversation"), (19_000, "generation")])
def test_a_window_smaller_than_what_is_fixed_is_one_warning(
    lines: CompactionLogger, caplog: pytest.LogCaptureFixture, tools: int, level: str
):
    used = Utilization(24_000, preamble=1_000, tools=tools, messages=9_000)
    for _ in range(5):
        log_exchange(lines, None, utilization=used)
    (warning,) = warnings(caplog)
    assert f"take {tools + 1_000:,} of 24,000 tokens, over the {level} trigger of" in warning
    assert "larger window" in warning


def test_a_session_that_is_compacted_again_and_again_is_one_warning(
    lines: CompactionLogger, caplog: pytest.LogCaptureFixture
):
    used = Utilization(24_000, preamble=1_000, tools=8_000, messages=9_000)
    for at in range(25):
        log_exchange(lines, MADE if at % 2 else None, utilization=used)
    (warning,) = warnings(caplog)
    assert f"was compacted {OFTEN} times in its last {REQUESTS} requests" in warning
    assert "take 9,000 of 24,000 tokens, which leaves 3,000 for messages" in warning


def test_seldom_compactions_and_those_on_request_are_no_warning(
    lines: CompactionLogger, caplog: pytest.LogCaptureFixture
):
    used = Utilization(24_000, preamble=1_000, tools=8_000, messages=9_000)
    for at in range(40):
        log_exchange(lines, MADE if at % 5 == 0 else None, utilization=used)
        log_exchange(lines, changed(cause="manual"), utilization=used, session="s-2")
    assert warnings(caplog) == []


def test_with_compaction_off_nothing_is_a_warning(caplog: pytest.LogCaptureFixture):
    lines = CompactionLogger(lambda *asked: None, SESSIONS)
    log_exchange(lines, None, utilization=Utilization(24_000, tools=30_000))
    assert caplog.records == []


def test_only_so_many_sessions_are_remembered(lines: CompactionLogger, caplog: pytest.LogCaptureFixture):
    used = Utilization(24_000, preamble=1_000, tools=19_000, messages=9_000)
    for session in ("s-0", "s-1", "s-2", "s-0", "s-3", "s-1"):
        log_exchange(lines, None, utilization=used, session=session)
    assert [warning.split()[1] for warning in warnings(caplog)] == ["s-0", "s-1", "s-2", "s-3", "s-1"]
