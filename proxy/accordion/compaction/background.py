"""Background summaries: a model writes them from a soft threshold on, before the compaction's trigger is met.

A prepared summary covers the beginning of a history up to an anchor. It is valid for every request whose history has
this beginning, so not for one that was rewound to before the anchor.

A model without a success is first tried on a short piece (see `SummaryAuthor.write`). A useless answer pauses the
session, and also the model in all sessions of the tenant unless its last answer was a good summary. Each consecutive
failure doubles the pause. After a pause the model is tried on a short piece again; a good summary ends all pauses. The
records of this (`WriterHistory`) outlast compactions and changes of settings. Each tenant has its own: it pays for its
own summaries, and cannot pause those of another.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from accordion.archive.archive import Archive
from accordion.archive.erasure_notices import ErasureNotices
from accordion.compaction.request import CompactionRequest
from accordion.model.cache import BoundedCache, count_entry, string_size
from accordion.model.conversation import Conversation
from accordion.model.errors import StoreUnavailable, SummaryFailed
from accordion.model.ports import Clock, Key, KeyValueStore, Signal, SummaryCaller, Tasks, Waiter
from accordion.model.tenant import ConversationRef
from accordion.summaries.author import Summary, SummaryAuthor, SummaryRejected, SummaryTask

_log = logging.getLogger("accordion")

# -- failures and pauses of the models that write ----------------------------------------------------------------------


FIRST_PAUSE: Final = 300.0
"""Seconds after the first failure."""
LONGEST_PAUSE: Final = 6 * 3_600.0
TOKENS_BETWEEN_TRIALS: Final = 400_000
"""Tokens of requests near or over their trigger between two trials of a model. A trial takes 8,000 at most, or 2 %."""
FAILURES_BEFORE_WARNING: Final = 3
"""Number of consecutive failures at which a warning is logged."""

_RECORD_SIZE: Final = 700
"""Estimated bytes of a record with its session's name."""


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


# -- prepared summaries ------------------------------------------------------------------------------------------------


_RETRY_GROWTH = 1.10
"""A failed preparation is repeated when the history has grown by a tenth."""


class WastedTokens(NamedTuple):
    """Tokens of one conversation's summaries that were not used: `input` and `output` in total. `failed_input` and
    `failed_output` are the part of them in `answers` useless answers of the model."""

    input: int = 0
    output: int = 0
    answers: int = 0
    failed_input: int = 0
    failed_output: int = 0


class PreparedSummary(msgspec.Struct, frozen=True):
    """A model's summary of the client's messages from index `first_index` up to, not including, `narrative_end`.

    `anchor` is the chain key of the last one.
    """

    narrative: str
    narrative_end: int
    anchor: bytes
    writer: str
    input: int
    output: int
    findings: tuple[tuple[int, str], ...] = ()
    first_index: int = 0

    def is_valid_for(self, conversation: Conversation, summarized_count: int, first_index: int | None = None) -> bool:
        """Whether it summarizes this conversation, more than its first `summarized_count` messages, and from
        `first_index` on if that is given."""
        chain = conversation.chain
        if first_index is not None and first_index != self.first_index:
            return False
        return summarized_count < self.narrative_end <= len(chain) and chain[self.narrative_end - 1] == self.anchor


class PreparationLimits(msgspec.Struct, frozen=True):
    """Limits of preparations: `max_concurrent` in one worker, `max_per_tenant` for one tenant, each `timeout_seconds`
    long. Prepared summaries are stored for `retention_seconds`. The failures of `max_conversations` are remembered."""

    max_concurrent: int = 8
    max_per_tenant: int = 4
    timeout_seconds: float = 180.0
    retention_seconds: float = 86_400.0
    max_conversations: int = 2_000


def summary_key(ref: ConversationRef) -> Key:
    """Returns the store key of the prepared summary of a conversation."""
    digest = hashlib.sha256(len(ref.tenant.key).to_bytes(4, "big") + ref.tenant.key + ref.scope + b"/")
    digest.update(ref.session.encode())
    return Key("", f"summary/{digest.hexdigest()}")


PreparedSummaryCache = BoundedCache[ConversationRef, tuple[PreparedSummary, float]]


def create_summary_cache(capacity: int) -> PreparedSummaryCache:
    """Creates a cache of `capacity` bytes for summaries that wait for their compaction, with their requests' times."""
    return BoundedCache(
        capacity,
        lambda ref, entry: (
            _SUMMARY_OVERHEAD + string_size(ref.scope, ref.session, entry[0].narrative, *_finding_texts(entry[0]))
        ),
    )


def _finding_texts(prepared: PreparedSummary) -> list[str]:
    return [text for _, text in prepared.findings]


_SUMMARY_OVERHEAD = 1_000
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(PreparedSummary)


def decode(value: bytes | None) -> PreparedSummary | None:
    """Decodes a stored summary; None if there is none or it is unreadable."""
    try:
        return _DECODER.decode(value) if value is not None else None
    except (msgspec.MsgspecError, ValueError):
        return None


class BackgroundSummaries:
    """The summaries that this worker is writing or has prepared, and those of other workers in the store."""

    def __init__(
        self,
        author: SummaryAuthor,
        store: KeyValueStore,
        tasks: Tasks,
        waiter: Waiter,
        limits: PreparationLimits,
        archive: Archive,
        erasures: ErasureNotices,
        writers: WriterHistory,
        model: str = "",
        cache: PreparedSummaryCache | None = None,
    ) -> None:
        """`writers`: the history of the models that write. `model`: the configured model, empty for the request's own.
        `cache`: the prepared summaries in memory."""
        self._writers, self._model = writers, model
        self._erasures = erasures
        self._author = author
        self._store = store
        self._archive = archive
        self._tasks = tasks
        self._waiter = waiter
        self._limits = limits
        self._running: dict[ConversationRef, Signal] = {}
        self._prepared = cache if cache is not None else create_summary_cache(16 * 2**20)
        self._failed_attempts: BoundedCache[ConversationRef, tuple[int, bool]] = BoundedCache(
            limits.max_conversations, count_entry
        )
        """The last attempt without a summary: the tokens of its history, and whether it ended in an error."""
        self._wasted_tokens: BoundedCache[ConversationRef, WastedTokens] = BoundedCache(
            limits.max_conversations, count_entry
        )

    def start(
        self,
        request: CompactionRequest,
        summarized_count: int,
        build_task: Callable[[], Awaitable[SummaryTask | None]],
        first_index: int | None,
        summary_caller: SummaryCaller | None = None,
    ) -> bool:
        """Starts to write a summary in the background. Returns whether one is being written now.

        Does not start one if one is prepared, the limits are reached, the model is paused, or the last attempt failed
        and the history has hardly grown.

        `summarized_count`: the number of the client's messages that an earlier compaction's summary covers.
        `build_task` returns the task, None if there is nothing to summarize. `first_index`: the first message to
        summarize, if known. `summary_caller`: on whose behalf the model is asked, None if none is. If the session was
        erased since the request came, the summary is neither stored nor used.
        """
        conversation_ref = request.conversation_ref
        if conversation_ref in self._running:
            return True
        prepared = self._find_in_memory(conversation_ref)
        if prepared is not None and prepared.is_valid_for(request.uncompacted, summarized_count, first_index):
            return False
        if self.is_retry_too_early(conversation_ref, request.utilization.tokens):
            return False
        if summary_caller is not None and not self.may_try(summary_caller, conversation_ref):
            return False
        tenant_count = sum(other.tenant == conversation_ref.tenant for other in self._running)
        if len(self._running) >= self._limits.max_concurrent or tenant_count >= self._limits.max_per_tenant:
            return False
        self._running[conversation_ref] = self._waiter.create_signal()
        work = self._run(request, summarized_count, build_task, first_index, summary_caller)
        self._tasks.spawn(work, "prepare a summary")
        return True

    def may_try(self, summary_caller: SummaryCaller, conversation_ref: ConversationRef) -> bool:
        """Whether the model that would write for this caller is not paused."""
        return self._writers.may_try(self._writer_for(summary_caller), conversation_ref)

    def count_request(self, summary_caller: SummaryCaller, tokens: int) -> None:
        """Counts a request that a summary may be written for."""
        self._writers.count_request(self._writer_for(summary_caller), tokens)

    def is_running(self, conversation_ref: ConversationRef) -> bool:
        """Whether a summary is being written."""
        return conversation_ref in self._running

    def is_retry_too_early(self, conversation_ref: ConversationRef, tokens: int) -> bool:
        """Whether the last attempt failed, and the history has hardly grown since."""
        attempt = self._failed_attempts.get(conversation_ref)
        return attempt is not None and tokens < _RETRY_GROWTH * attempt[0]

    def has_failed(self, conversation_ref: ConversationRef) -> bool:
        """Whether the last attempt failed with an error, and no compaction was made since."""
        attempt = self._failed_attempts.get(conversation_ref)
        return attempt is not None and attempt[1]

    async def wait(self, conversation_ref: ConversationRef, seconds: float) -> None:
        """Waits until the summary being written is ready or has failed, at most `seconds`."""
        signal = self._running.get(conversation_ref)
        if signal is not None:
            with suppress(TimeoutError):
                await self._waiter.wait_for(seconds, signal.wait())

    async def find(
        self,
        conversation_ref: ConversationRef,
        conversation: Conversation,
        summarized_count: int,
        first_index: int | None = None,
    ) -> PreparedSummary | None:
        """Returns a valid prepared summary of this conversation, by this worker or another, or None.

        It covers more than `summarized_count` messages, and starts at `first_index` if that is given.
        """
        prepared = self._find_in_memory(conversation_ref)
        if prepared is None or not prepared.is_valid_for(conversation, summarized_count, first_index):
            with suppress(StoreUnavailable):
                prepared = decode(
                    self._archive.open_value(
                        conversation_ref.tenant,
                        summary_key(conversation_ref),
                        await self._store.get(summary_key(conversation_ref)),
                    )
                )
        if prepared is None or not prepared.is_valid_for(conversation, summarized_count, first_index):
            return None
        return prepared

    def reset_after_compaction(self, conversation_ref: ConversationRef) -> WastedTokens:
        """Discards the prepared summary after a compaction. Returns the tokens wasted since the compaction before."""
        self._prepared.pop(conversation_ref)
        self._failed_attempts.pop(conversation_ref)
        return self._wasted_tokens.pop(conversation_ref) or WastedTokens()

    async def _run(
        self,
        request: CompactionRequest,
        summarized_count: int,
        build_task: Callable[[], Awaitable[SummaryTask | None]],
        first_index: int | None,
        summary_caller: SummaryCaller | None,
    ) -> None:
        conversation_ref = request.conversation_ref
        signal, prepared, failed = self._running[conversation_ref], None, False
        try:
            # Another worker may have prepared one.
            prepared = await self.find(conversation_ref, request.uncompacted, summarized_count, first_index)
            if prepared is None:
                summary = await self._write_with_timeout(conversation_ref, build_task, summary_caller)
                if summary is not None:
                    prepared = await self._store_summary(request, summarized_count, summary)
        except (SummaryFailed, TimeoutError) as error:
            failed = True
            self.record_failure(conversation_ref, summary_caller, error)
        except Exception:
            failed = True
            raise
        finally:
            if prepared is None:
                self._failed_attempts[conversation_ref] = request.utilization.tokens, failed
            else:
                self._failed_attempts.pop(conversation_ref)
                self._prepared[conversation_ref] = prepared, request.started_at
            del self._running[conversation_ref]
            signal.set()

    def _find_in_memory(self, conversation_ref: ConversationRef) -> PreparedSummary | None:
        """Returns the prepared summary in memory, unless its session was erased since its request came."""
        prepared, started_at = self._prepared.get(conversation_ref) or (None, 0.0)
        return (
            None
            if self._erasures.was_erased_since(conversation_ref.tenant, conversation_ref.session, started_at)
            else prepared
        )

    def _writer_for(self, summary_caller: SummaryCaller) -> SummaryWriter:
        route = "" if self._model else summary_caller.route.name
        return SummaryWriter(summary_caller.tenant, route, self._model or summary_caller.model)

    def record_failure(
        self,
        conversation_ref: ConversationRef,
        summary_caller: SummaryCaller | None,
        error: Exception,
        partial_summary: Summary | None = None,
    ) -> None:
        """Records an attempt that gave no summary, or only a partial one, until a compaction reports its cost."""
        failure = _build_failure(error, partial_summary)
        self._add_waste(
            conversation_ref,
            WastedTokens(failure.input, failure.output, failure.useless_answers, failure.input, failure.output),
        )
        if summary_caller is None or not isinstance(error, SummaryRejected | TimeoutError):
            # The model is not at fault.
            model = f" ({summary_caller.model})" if summary_caller is not None else ""
            _log.info("session %s%s: no summary was prepared: %s", conversation_ref.session, model, failure.reason)
            return
        self._writers.record_failure(
            self._writer_for(summary_caller), conversation_ref, conversation_ref.session, failure
        )

    def _add_waste(self, conversation_ref: ConversationRef, more: WastedTokens) -> None:
        """Adds wasted tokens, until a compaction reports them."""
        before = self._wasted_tokens.get(conversation_ref) or WastedTokens()
        self._wasted_tokens[conversation_ref] = WastedTokens(
            *(one + other for one, other in zip(before, more, strict=True))
        )

    async def _write_with_timeout(
        self,
        conversation_ref: ConversationRef,
        build_task: Callable[[], Awaitable[SummaryTask | None]],
        summary_caller: SummaryCaller | None,
    ) -> Summary | None:
        """Returns the model's summary; a partial one if a later piece failed or timed out."""
        partial_summaries: list[Summary] = []
        is_trial = summary_caller is not None and not self._writers.is_proven(self._writer_for(summary_caller))
        try:
            work = self._write_under_lock(conversation_ref, build_task, partial_summaries.append, is_trial)
            summary = await self._waiter.wait_for(self._limits.timeout_seconds, work)
        except (SummaryFailed, TimeoutError) as error:
            if not partial_summaries:
                raise
            self.record_failure(conversation_ref, summary_caller, error, partial_summaries[-1])
            return partial_summaries[-1]
        if summary is not None and summary_caller is not None:
            self._writers.record_success(self._writer_for(summary_caller), conversation_ref)
        return summary

    async def _write_under_lock(
        self,
        conversation_ref: ConversationRef,
        build_task: Callable[[], Awaitable[SummaryTask | None]],
        on_partial: Callable[[Summary], None],
        is_trial: bool,
    ) -> Summary | None:
        task = await build_task()
        if task is None:
            return None
        has_lock = True
        try:
            # The lock keeps two workers from paying for the same summary.
            lock = self._store.lock(
                Key("", f"{summary_key(conversation_ref).name}/lock"), lease=self._limits.timeout_seconds
            )
            async with lock as has_lock:
                if has_lock:
                    return await self._author.write(task, on_partial, is_trial=is_trial)
        except StoreUnavailable:
            if has_lock:
                return await self._author.write(task, on_partial, is_trial=is_trial)
        return None

    async def _store_summary(
        self, request: CompactionRequest, summarized_count: int, summary: Summary
    ) -> PreparedSummary:
        """Stores a summary for all workers. Raises SummaryFailed if it covers no new message."""
        chain, conversation_ref = request.uncompacted.chain, request.conversation_ref
        if not summarized_count < summary.narrative_end <= len(chain):
            raise SummaryFailed("everything is summarized already")
        if (unused := self._prepared.get(conversation_ref)) is not None:
            self._add_waste(conversation_ref, WastedTokens(unused[0].input, unused[0].output))
        prepared = PreparedSummary(
            summary.narrative, summary.narrative_end, chain[summary.narrative_end - 1], summary.writer, summary.input,
            summary.output, summary.findings, summary.narrative_start,
        )  # fmt: skip
        tenant, session = conversation_ref.tenant, conversation_ref.session
        if self._erasures.was_erased_since(tenant, session, request.started_at):
            return prepared
        with suppress(StoreUnavailable):
            value, key = _ENCODER.encode(prepared), summary_key(conversation_ref)
            retention = self._limits.retention_seconds
            await self._archive.write(
                self._archive.single_value_puts(tenant, session, "summary", key, value, retention)
            )
        return prepared


def _build_failure(error: Exception, partial_summary: Summary | None) -> SummaryFailure:
    """Describes a failed attempt and what it cost beside the partial summary, as far as is known."""
    reason = str(error) if isinstance(error, SummaryFailed) else "it took too long"
    input, output = (partial_summary.input, partial_summary.output) if partial_summary is not None else (0, 0)
    if not isinstance(error, SummaryRejected):
        return SummaryFailure(reason, int(isinstance(error, TimeoutError)))
    return SummaryFailure(reason, error.answers, max(0, error.input - input), max(0, error.output - output))
