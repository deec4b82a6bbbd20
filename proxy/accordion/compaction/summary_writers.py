"""Failures and pauses of the models that write summaries.

A model without a success is first tried on a short piece (see `SummaryAuthor.write`). A useless answer pauses the
session, and also the model in all sessions of the tenant unless its last answer was a good summary. Each consecutive
failure doubles the pause. After a pause the model is tried on a short piece again; a good summary ends all pauses.

The records outlast compactions and changes of settings. Each tenant has its own: it pays for its own summaries, and
cannot pause those of another.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final, NamedTuple

from accordion.model.cache import BoundedCache, string_size
from accordion.model.ports import Clock

FIRST_PAUSE: Final = 300.0
"""Seconds after the first failure."""
LONGEST_PAUSE: Final = 6 * 3_600.0
TOKENS_BETWEEN_TRIALS: Final = 400_000
"""Tokens of requests near or over their trigger between two trials of a model. A trial takes 8,000 at most, or 2 %."""
FAILURES_BEFORE_WARNING: Final = 3
"""Number of consecutive failures at which a warning is logged."""

_RECORD_SIZE: Final = 700
"""Estimated bytes of a record with its session's name."""

_log = logging.getLogger("accordion")


class SummaryWriter(NamedTuple):
    """A model that writes summaries for a tenant. `route` is empty if the model is configured by its name."""

    tenant: str
    route: str
    model: str


class SummaryFailure(NamedTuple):
    """An attempt without a complete summary: `useless_answers` of the model cost `input` and `output` tokens.

    No useless answer means that the model could not be asked, which cost nothing.
    """

    reason: str
    useless_answers: int = 0
    input: int = 0
    output: int = 0


@dataclass(slots=True)
class _WriterRecord:
    """The state of one writer. A pause lasts until `paused_until` (monotonic clock), and until `tokens_until_trial`
    tokens were forwarded."""

    is_proven: bool = False
    failures: int = 0
    useless: int = 0
    """Consecutive failures in which the model answered."""
    paused_until: float = 0.0
    tokens_until_trial: int = 0

    def pause(self, now: float) -> None:
        self.paused_until = now + min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(self.useless - 1, 16))


class WriterHistory:
    """The records of this process, for the last used writers and sessions, within `capacity` bytes."""

    def __init__(self, clock: Clock, capacity: int = 4 * 2**20) -> None:
        self._clock = clock
        self._records = BoundedCache[tuple[SummaryWriter, object], _WriterRecord](
            capacity, lambda key, _: _RECORD_SIZE + string_size(*key[0])
        )

    def may_try(self, writer: SummaryWriter, session: object) -> bool:
        """Whether neither the model nor the session is paused."""
        now = self._clock.monotonic()
        records = (self._records.get((writer, key)) for key in (None, session))
        return all(each is None or (now >= each.paused_until and each.tokens_until_trial <= 0) for each in records)

    def is_proven(self, writer: SummaryWriter) -> bool:
        """Whether the model's last answer was a good summary."""
        record = self._records.get((writer, None))
        return record is not None and record.is_proven

    def count_request(self, writer: SummaryWriter, tokens: int) -> None:
        """Counts the tokens of a request whose summary the model would write."""
        record = self._records.get((writer, None))
        if record is not None and record.tokens_until_trial > 0:
            record.tokens_until_trial -= tokens

    def record_success(self, writer: SummaryWriter, session: object) -> None:
        """Records a good summary, which ends all pauses."""
        self._records.pop((writer, session))
        record = self._find_record(writer, None)
        record.is_proven, record.failures, record.useless, record.paused_until, record.tokens_until_trial = (
            True,
            0,
            0,
            0.0,
            0,
        )

    def record_failure(self, writer: SummaryWriter, session: object, label: str, failure: SummaryFailure) -> None:
        """Records a failed attempt. `label` names the session in the log."""
        record, session_record = self._find_record(writer, None), self._find_record(writer, session)
        record.failures += 1
        if failure.useless_answers:
            now, was_proven, record.is_proven = self._clock.monotonic(), record.is_proven, False
            record.useless += 1
            session_record.useless += 1
            session_record.pause(now)
            if not was_proven:
                record.pause(now)
                record.tokens_until_trial = TOKENS_BETWEEN_TRIALS
        self._log(writer, label, record, session_record, failure)

    def _log(
        self,
        writer: SummaryWriter,
        label: str,
        record: _WriterRecord,
        own_record: _WriterRecord,
        failure: SummaryFailure,
    ) -> None:
        pause = max(0.0, max(record.paused_until, own_record.paused_until) - self._clock.monotonic())
        extra = {
            "tokens": failure.input + failure.output,
            "pause_seconds": round(pause),
        }
        if record.failures != FAILURES_BEFORE_WARNING:
            _log.info("session %s: a summary by %s failed: %s", label, writer.model, failure.reason, extra=extra)
        else:
            text = "session %s: summaries by %s failed %d times in a row, and are extracted without a model: %s"
            _log.warning(text, label, writer.model, record.failures, failure.reason, extra=extra)

    def _find_record(self, writer: SummaryWriter, session: object) -> _WriterRecord:
        key = (writer, session)
        record = self._records.get(key)
        if record is None:
            record = self._records[key] = _WriterRecord()
        return record
