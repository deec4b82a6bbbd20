"""Which models may be asked for summaries now: their failures in a row, and the pauses that follow.

A model that nobody has seen succeed is tried on a short piece first (see `Author.write`). An answer that is of no use
pauses the session, and the model in all sessions of the tenant unless it wrote a good summary before. Each failure in a
row doubles the pause. Behind a pause comes another short piece; a good summary ends all of it.

The record outlasts compactions and changes of settings. It is kept for each tenant apart: each pays for its own
summaries, and none can pause those of another.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from accordion.core.cache import Cache, weigh
from accordion.core.ports import Clock
from accordion.core.values import dataclass

FIRST_PAUSE: Final = 300.0
"""Seconds after the first failure."""
LONGEST_PAUSE: Final = 6 * 3_600.0
TOKENS_BETWEEN: Final = 400_000
"""Tokens of requests that were near their trigger or over it, between two trials of a model. A trial takes 8,000 at
most: 2 % of them."""
WARNED_AFTER: Final = 3
"""So many failures in a row are worth a warning, and so many more another."""

_RECORD: Final = 700
"""Bytes of a record, and of the name of its session."""

_log = logging.getLogger("accordion")


class Writer(NamedTuple):
    """A model that writes summaries for a tenant. `route` is empty where the model is configured by its name."""

    tenant: str
    route: str
    model: str


class Failure(NamedTuple):
    """An attempt that gave no summary, or only the beginning of one: `answers` of the model were of no use, and cost so
    many tokens. No answer: the model could not be asked, and that cost nothing."""

    reason: str
    answers: int = 0
    input: int = 0
    output: int = 0


@dataclass(frozen=False, slots=True)
class _Record:
    """`until`: the end of a pause, by the monotonic clock; `tokens`: to be forwarded before it ends."""

    proven: bool = False
    failures: int = 0
    useless: int = 0
    """Failures in a row in which the model answered."""
    until: float = 0.0
    tokens: int = 0

    def pause(self, now: float) -> None:
        self.until = now + min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(self.useless - 1, 16))


class Writers:
    """The record of one process, of the writers and sessions that were used last, within `capacity` bytes."""

    def __init__(self, clock: Clock, capacity: int = 4 * 2**20) -> None:
        self._clock = clock
        self._records = Cache[tuple[Writer, object], _Record](capacity, lambda key, _: _RECORD + weigh(*key[0]))

    def may_try(self, writer: Writer, session: object) -> bool:
        """Whether neither the model nor the session is paused."""
        now = self._clock.monotonic()
        found = (self._records.get((writer, key)) for key in (None, session))
        return all(each is None or (now >= each.until and each.tokens <= 0) for each in found)

    def is_proven(self, writer: Writer) -> bool:
        """Whether the model's last answer was a good summary."""
        known = self._records.get((writer, None))
        return known is not None and known.proven

    def forwarded(self, writer: Writer, tokens: int) -> None:
        """Counts a request of so many tokens, whose summary the model would write."""
        known = self._records.get((writer, None))
        if known is not None and known.tokens > 0:
            known.tokens -= tokens

    def succeeded(self, writer: Writer, session: object) -> None:
        """The model wrote a good summary."""
        self._records.discard((writer, session))
        known = self._record(writer, None)
        known.proven, known.failures, known.useless, known.until, known.tokens = True, 0, 0, 0.0, 0

    def failed(self, writer: Writer, session: object, label: str, failure: Failure) -> None:
        """An attempt came to nothing. `label` names the session in the log."""
        known, own = self._record(writer, None), self._record(writer, session)
        known.failures += 1
        if failure.answers:
            now, was_proven, known.proven = self._clock.monotonic(), known.proven, False
            known.useless += 1
            own.useless += 1
            own.pause(now)
            if not was_proven:
                known.pause(now)
                known.tokens = TOKENS_BETWEEN
        self._log(writer, label, known, own, failure)

    def _log(self, writer: Writer, label: str, known: _Record, own: _Record, failure: Failure) -> None:
        pause = max(0.0, max(known.until, own.until) - self._clock.monotonic())
        told = {
            "session": label,
            "tokens": failure.input + failure.output,
            "pause_seconds": round(pause),
        }
        if known.failures % WARNED_AFTER:
            _log.info("a summary by %s failed: %s", writer.model, failure.reason, extra=told)
        else:
            text = "summaries by %s failed %d times in a row, and are extracted without a model meanwhile: %s"
            _log.warning(text, writer.model, known.failures, failure.reason, extra=told)

    def _record(self, writer: Writer, session: object) -> _Record:
        key = (writer, session)
        known = self._records.get(key)
        if known is None:
            known = self._records[key] = _Record()
        return known
