"""Learns from providers' responses: corrections of token counts, how long responses are, and limits of windows; and
shares what was learned between workers.

A correction is the ratio of reported to counted input tokens, a plain number. Each model at each upstream has one, the
median of the latest few reports. Each session has its own: it starts from the model's and moves half-way to each
report. One odd report (a model behind a router, a cached part left out) changes either only a little.

Agents ask for far more output (`max_tokens`) than any response has. The space that is kept free for a response is a
multiple of the longest one of the session and of the model's latest ones.

An overflow error may name the limit of a window, or say that the requested output counts towards it (overflow.py reads
it). A provider's list of models may name windows, too (model_lists.py). `LearnedSync` stores all of this for other
workers and for the next run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from functools import partial
from statistics import median
from threading import Lock
from typing import NamedTuple

import msgspec

from accordion.model.budget import RefusedForm, Window, most_careful
from accordion.model.cache import LONGEST_NAME, BoundedCache, count_entry
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Clock, Key, KeyValueStore, Outbox

UNKNOWN = 1.0
"""The correction of a session without reports."""

LEAST_RATIO, MOST_RATIO = 0.5, 3.0
"""The limits of the ratio, since no tokenizer differs more from ours. A report beyond them covers something else too
(see `is_credible`). If it is used all the same, for a list with media, it is clamped to them, and does not change the
model's correction."""

MOST_ADDED = 1 / 16
"""The share of a window that a provider's own instructions may take, such as those for its own tools."""

MOST_STEP = 1.5
"""A report that differs from its session's correction by more than this factor is clamped to it."""

LEAST_COUNTED = 64
"""Exchanges with fewer counted tokens are ignored: fixed overheads dominate them."""

LEAST_OUTPUT = 8_192
"""Minimum number of tokens that are kept free for a response, if the request asks for as many."""

MAX_OUTPUTS, LEAST_OUTPUTS = 64, 4
"""How many of the latest lengths of a model's responses are stored, and from what number on they are used."""

MAX_RATIOS = 9
MODELS_AT_MOST = 1_024


class ReportedCount(NamedTuple):
    """The tokens of an exchange's list: by our count, and as the provider reported them (0: not reported)."""

    counted: int
    reported: int


class CorrectionRatios(msgspec.Struct, frozen=True):
    """The latest ratios of reported to counted tokens, oldest first; `factor` is their median (1.0 without any)."""

    latest: tuple[float, ...] = ()
    factor: float = UNKNOWN

    def add(self, ratio: float) -> CorrectionRatios:
        """Returns the ratios with one more report."""
        latest = (*self.latest, round(ratio, 4))[-MAX_RATIOS:]
        return CorrectionRatios(latest, median(latest))


class ResponseLengths:
    """The latest lengths of a model's responses in tokens, oldest first, and the longest of them (0 without any)."""

    __slots__ = ("latest", "longest")

    def __init__(self, latest: Iterable[int] = ()) -> None:
        self.latest = deque(latest, MAX_OUTPUTS)
        self.longest = max(self.latest, default=0)

    def add(self, tokens: int) -> None:
        """Adds a response. The oldest length goes."""
        self.latest.append(tokens)
        longest = max(self.longest, tokens)
        # The length that went may have been the longest.
        self.longest = longest if longest in self.latest else max(self.latest)


class Calibrations:
    """The corrections of models. Sessions store their own, as one number each. Safe to use from several threads."""

    def __init__(self) -> None:
        self._changed: set[tuple[str, str]] = set()
        self._models: BoundedCache[tuple[str, str], CorrectionRatios] = BoundedCache(
            MODELS_AT_MOST, count_entry, lambda model, _: self._changed.discard(model)
        )
        self._changed_outputs: set[tuple[str, str]] = set()
        self._outputs: BoundedCache[tuple[str, str], ResponseLengths] = BoundedCache(
            MODELS_AT_MOST, count_entry, lambda model, _: self._changed_outputs.discard(model)
        )
        self._lock = Lock()

    def factor(self, upstream: str, model: str, session: float = UNKNOWN) -> float:
        """Returns the factor of a count: the session's correction, else the model's at that upstream, else 1.0."""
        if session != UNKNOWN:
            return session
        ratios = self._models.get((upstream, model))
        return UNKNOWN if ratios is None else ratios.factor

    def learn(self, upstream: str, model: str, session: float, counted: int, reported: int) -> float:
        """Learns from a report of `reported` input tokens for `counted`; returns the session's new correction.

        Nothing changes if nothing was reported (0), or too little was counted. The caller leaves out reports that
        are not credible.
        """
        if reported <= 0 or counted < LEAST_COUNTED:
            return session
        ratio = _clamp(reported / counted, LEAST_RATIO, MOST_RATIO)
        with self._lock:
            model_ratios = self._models.get((upstream, model)) or CorrectionRatios()
            if ratio == reported / counted and len(model) <= LONGEST_NAME:
                self._models[upstream, model] = model_ratios.add(ratio)
                self._changed.add((upstream, model))
        former = session if session != UNKNOWN else model_ratios.factor
        if session == UNKNOWN and not model_ratios.latest:
            return round(ratio, 4)
        target = _clamp(ratio, former / MOST_STEP, former * MOST_STEP)
        return round(former + (target - former) / 2, 4)

    def learn_output(self, upstream: str, model: str, tokens: int) -> None:
        """Learns the length of a response, in tokens."""
        if tokens <= 0 or len(model) > LONGEST_NAME:
            return
        name = upstream, model
        with self._lock:
            lengths = self._outputs.get(name)
            if lengths is None:
                lengths = self._outputs[name] = ResponseLengths()
            former = lengths.longest
            lengths.add(tokens)
            if len(lengths.latest) <= LEAST_OUTPUTS or lengths.longest != former:
                self._changed_outputs.add(name)

    def output_space(self, upstream: str, model: str, asked: int, longest: int, factor: float) -> int:
        """Returns the tokens to keep free for a response if the request asks for `asked`.

        That is `factor` times the longest response, of the session (`longest`) or of the model lately; never less than
        LEAST_OUTPUT, never more than `asked`. It is `asked` if too few responses are known, or `factor` is 0.
        """
        if asked <= LEAST_OUTPUT or not factor:
            return asked
        lengths = self._outputs.get((upstream, model))
        if lengths is None or len(lengths.latest) < LEAST_OUTPUTS:
            return asked
        return min(asked, max(LEAST_OUTPUT, round(factor * max(longest, lengths.longest))))

    def restore_outputs(self, model: tuple[str, str], latest: tuple[int, ...]) -> None:
        """Restores the lengths of a model's responses from another run, unless this run has its own."""
        with self._lock:
            if model not in self._outputs and len(self._outputs) < MODELS_AT_MOST and latest:
                self._outputs[model] = ResponseLengths(latest)

    def drain_output_changes(self) -> dict[tuple[str, str], tuple[int, ...]]:
        """Returns the lengths of the responses of the models that changed since the last call."""
        with self._lock:
            changed, self._changed_outputs = self._changed_outputs, set()
            found = {model: self._outputs.get(model) for model in changed}
            return {model: tuple(lengths.latest) for model, lengths in found.items() if lengths is not None}

    def restore(self, model: tuple[str, str], latest: tuple[float, ...]) -> None:
        """Restores the ratios of a model at an upstream from another run, unless this run has its own."""
        with self._lock:
            if model not in self._models and len(self._models) < MODELS_AT_MOST and latest:
                ratios = tuple(_clamp(ratio, LEAST_RATIO, MOST_RATIO) for ratio in latest[-MAX_RATIOS:])
                self._models[model] = CorrectionRatios(ratios, median(ratios))

    def drain_changes(self) -> dict[tuple[str, str], tuple[float, ...]]:
        """Returns the ratios of the models that changed since the last call, by upstream and model."""
        with self._lock:
            changed, self._changed = self._changed, set()
            return {model: ratios.latest for model in changed if (ratios := self._models.get(model)) is not None}


def correction_from_report(counted: int, reported: int) -> float:
    """Returns the correction by a single report; UNKNOWN if nothing was reported or too little counted."""
    if reported <= 0 or counted < LEAST_COUNTED:
        return UNKNOWN
    return _clamp(reported / counted, LEAST_RATIO, MOST_RATIO)


def is_credible(reported: int, counted: int, text: int, window: Window) -> bool:
    """Whether a provider can have read `reported` tokens for a list that it answered.

    `counted` is our own count of the list, `text` the part of it that was counted, not estimated (all but media and
    parts of unknown kinds). The provider answered, so the list fits the `window`, if that is known. No tokenizer
    makes less than `LEAST_RATIO` of the text, or more than `MOST_RATIO` of a list of text only; a provider adds its own
    instructions, but at most `MOST_ADDED` of its window.
    """
    if window.is_known and reported > window.size:
        return False
    if reported < LEAST_RATIO * text:
        return False
    return text < counted or reported <= MOST_RATIO * counted + MOST_ADDED * window.size


def estimate_tokens(counted: int, last: ReportedCount | None, factor: float) -> int:
    """Estimates the input tokens of a list with `counted` tokens.

    `last` has the figures of an exchange whose forwarded list is a prefix of this one under the same preamble and
    tools. With it, the estimate is its reported tokens plus the corrected count of the rest; else the corrected count
    of all. A report of 0 is none.
    """
    if last is None or last.reported <= 0:
        return round(counted * factor)
    return last.reported + round(max(0, counted - last.counted) * factor)


def _clamp(value: float, least: float, most: float) -> float:
    return min(most, max(least, value))


# -- limits ------------------------------------------------------------------------------------------------------------


MAX_LIMITS = 1_024


class LimitOwner(NamedTuple):
    """The requests that a limit applies to; no other window is made smaller by it."""

    tenant: str
    upstream: str
    model: str
    long: bool
    """Whether the request asked for a long context."""


class LearnedLimit(NamedTuple):
    """A limit in tokens (0: none was named), and the time when it expires, in seconds since the epoch.

    `counts_output` says that the provider refuses a request whose input and requested output together exceed the
    window, `refused_form` that it refuses compacted lists of this form, and `refused_fields` that it refuses these
    fields of requests for summaries.
    """

    tokens: int
    until: float
    counts_output: bool = False
    refused_form: RefusedForm = ""
    refused_fields: tuple[str, ...] = ()


class LimitCache:
    """The latest limits from one source. `now` returns seconds since the epoch. Safe to use from several threads."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = Lock()
        self._changed: dict[LimitOwner, LearnedLimit] = {}
        self.limits: BoundedCache[LimitOwner, LearnedLimit] = BoundedCache(
            MAX_LIMITS, count_entry, lambda owner, _: self._changed.pop(owner, None)
        )

    def get(self, owner: LimitOwner) -> int | None:
        """Returns the limit in tokens; None if none was learned, or it has expired."""
        limit = self.find(owner)
        return limit.tokens or None if limit else None

    def find(self, owner: LimitOwner) -> LearnedLimit | None:
        """Returns what was learned; None if nothing was, or it has expired."""
        with self._lock:
            limit = self.limits.get(owner)
            if limit is not None and limit.until <= self._now():
                self.limits.pop(owner)
                return None
        return limit

    def list_limits(self, tenant: str) -> list[tuple[LimitOwner, LearnedLimit]]:
        """Returns a tenant's limits of tokens and of forms that have not expired."""
        with self._lock:
            return [
                (owner, limit)
                for owner, limit in self.limits.items()
                if owner.tenant == tenant and (limit.tokens or limit.refused_form) and limit.until > self._now()
            ]

    def learn(
        self,
        owner: LimitOwner,
        tokens: int,
        seconds: float,
        *,
        counts_output: bool = False,
        refused_form: RefusedForm = "",
        refused_fields: tuple[str, ...] = (),
    ) -> None:
        """Learns from a refusal; it applies for `seconds`. What it does not say stays as it was."""
        known = self.find(owner)
        if known is not None:
            tokens, counts_output = tokens or known.tokens, counts_output or known.counts_output
            refused_form = most_careful(refused_form, known.refused_form)
            refused_fields = refused_fields or known.refused_fields
        limit = LearnedLimit(tokens, self._now() + seconds, counts_output, refused_form, refused_fields)
        with self._lock:
            self._changed[owner] = limit
            self.limits[owner] = limit

    def restore(self, owner: LimitOwner, limit: LearnedLimit) -> None:
        """Takes a limit of another worker or an earlier run, unless this one learned a later one."""
        with self._lock:
            current = self.limits.get(owner)
            if limit.until > self._now() and (current is None or current.until < limit.until):
                self.limits[owner] = limit

    def drain_changes(self) -> dict[LimitOwner, LearnedLimit]:
        """Returns the limits that were learned here since the last call."""
        with self._lock:
            changed, self._changed = self._changed, {}
        return changed


class LearnedLimits(LimitCache):
    """The latest limits that overflow errors named, and beside them those that lists of models name.

    An agent that starts lists many models: they must not push out what errors named.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(now)
        self.listed = LimitCache(now)


# -- sharing between workers -------------------------------------------------------------------------------------------


LIMITS_COLLECTION, RATIOS_COLLECTION, OUTPUTS_COLLECTION = "learnt/limits", "learnt/ratios", "learnt/outputs"
LISTED_COLLECTION = "learnt/listed"
"""Collections. The name of a row is its owner in JSON, its value the limit, the ratios or the lengths in JSON."""

_PAGE = 500
_LISTED_POLLS = 30
"""Polls from one reading of the listed limits to the next: there are many, and they change when an agent starts."""
# Longer names are not those of models. They stay in memory.
_MAX_ROW_NAME = 512
_OWNER_DECODER, _LIMIT_DECODER = msgspec.json.Decoder(LimitOwner), msgspec.json.Decoder(LearnedLimit)
_MODEL_DECODER, _RATIOS_DECODER = msgspec.json.Decoder(tuple[str, str]), msgspec.json.Decoder(tuple[float, ...])
_LENGTHS_DECODER = msgspec.json.Decoder(tuple[int, ...])


class LearnedSync:
    """Publishes this worker's limits and corrections, and reads those of others. A correction is stored for `retention`
    seconds.

    Limits are read again and again: else the window would depend on the worker. Corrections are read once, at the
    start: from then on each worker has reports of its own.
    """

    def __init__(
        self,
        store: KeyValueStore,
        outbox: Outbox,
        clock: Clock,
        limits: LearnedLimits,
        calibrations: Calibrations,
        retention: float,
    ) -> None:
        self._store, self._outbox, self._clock = store, outbox, clock
        self._limits, self._calibrations = limits, calibrations
        self._retention = retention
        self._has_read_ratios = False
        self._polls = 0

    async def poll(self) -> None:
        """Publishes and reads; to be called about every second. Never fails."""
        self.publish()
        with suppress(StoreUnavailable):
            await self._read_limits(LIMITS_COLLECTION, self._limits)
            if self._polls % _LISTED_POLLS == 0:
                await self._read_limits(LISTED_COLLECTION, self._limits.listed)
            self._polls += 1
            if not self._has_read_ratios:
                async for name, value in self._read_rows(RATIOS_COLLECTION):
                    with suppress(msgspec.MsgspecError):
                        self._calibrations.restore(_MODEL_DECODER.decode(name), _RATIOS_DECODER.decode(value))
                async for name, value in self._read_rows(OUTPUTS_COLLECTION):
                    with suppress(msgspec.MsgspecError):
                        self._calibrations.restore_outputs(_MODEL_DECODER.decode(name), _LENGTHS_DECODER.decode(value))
                self._has_read_ratios = True

    async def _read_limits(self, collection: str, limits: LimitCache) -> None:
        async for name, value in self._read_rows(collection):
            with suppress(msgspec.MsgspecError):
                limits.restore(_OWNER_DECODER.decode(name), _LIMIT_DECODER.decode(value))

    def publish(self) -> None:
        """Queues the limits and ratios that changed here; does not wait for the write."""
        now = self._clock.now()
        for collection, limits in ((LIMITS_COLLECTION, self._limits), (LISTED_COLLECTION, self._limits.listed)):
            for owner, limit in limits.drain_changes().items():
                if limit.until > now:
                    self._put(collection, owner, limit, limit.until - now)
        for model, latest in self._calibrations.drain_changes().items():
            self._put(RATIOS_COLLECTION, model, latest, self._retention)
        for model, lengths in self._calibrations.drain_output_changes().items():
            self._put(OUTPUTS_COLLECTION, model, lengths, self._retention)

    def _put(self, collection: str, owner: tuple[object, ...], value: tuple[object, ...], ttl: float) -> None:
        name = msgspec.json.encode(owner).decode()
        if len(name) <= _MAX_ROW_NAME:
            self._outbox.put(Key(collection, name), partial(msgspec.json.encode, value), ttl)

    async def _read_rows(self, collection: str) -> AsyncIterator[tuple[str, bytes]]:
        """Reads a collection, at most as many rows as fit in memory."""
        after = ""
        for _ in range(0, MAX_LIMITS, _PAGE):
            page = await self._store.scan(collection, after=after, limit=_PAGE)
            for row in page:
                yield row
            if len(page) < _PAGE:
                return
            after = page[-1][0]
