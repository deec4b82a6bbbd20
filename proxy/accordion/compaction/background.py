"""Summaries that a model writes ahead: begun at a soft threshold, used when the trigger is met.

What is prepared is what a model told of the beginning of a history, and up to where. It is good as long as that
beginning is the request's own; a history that was rewound has no use for it.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple, TypeVar

import msgspec

from accordion.archive.erasures import Erasures
from accordion.archive.writing import Archive
from accordion.compaction.waiting import Signal, Waiting
from accordion.compaction.writers import Failure, Writer, Writers
from accordion.core.cache import Cache, weigh
from accordion.core.conversation import Conversation
from accordion.core.errors import StoreUnavailable, SummaryFailed
from accordion.core.ports import Key, Store, Tasks
from accordion.core.summarizing import Asker
from accordion.core.values import dataclass
from accordion.summaries.author import Author, Summary, SummaryRejected, SummaryTask

V = TypeVar("V")

_log = logging.getLogger("accordion")

_AGAIN = 1.10
"""A preparation that came to nothing is tried again when the history has grown by a tenth."""


class Waste(NamedTuple):
    """Tokens that models took for nothing in one conversation: `input` and `output` in all, and of these what answers
    cost that were of no use (`answers` of them)."""

    input: int = 0
    output: int = 0
    answers: int = 0
    failed_input: int = 0
    failed_output: int = 0


class Thread(NamedTuple):
    """Which conversation, as far as preparing goes: one preparation at a time for each."""

    tenant: str
    space: bytes
    scope: bytes
    session: str

    @property
    def key(self) -> Key:
        """Where what is prepared is kept."""
        digest = hashlib.sha256(len(self.space).to_bytes(4, "big") + self.space + self.scope + b"/")
        digest.update(self.session.encode())
        return Key("", f"summary/{digest.hexdigest()}")


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a model told of the client's messages from `since` to before `narrated`, the last of which has the chain key
    `anchor`."""

    narrative: str
    narrated: int
    anchor: bytes
    writer: str
    input: int
    output: int
    findings: tuple[tuple[int, str], ...] = ()
    since: int = 0

    def holds(self, conversation: Conversation, told: int, since: int | None = None) -> bool:
        """Whether it tells of this conversation, of more than its first `told` messages, and from `since` on where that
        is said."""
        chain = conversation.chain
        if since is not None and since != self.since:
            return False
        return told < self.narrated <= len(chain) and chain[self.narrated - 1] == self.anchor


@dataclass(frozen=True, slots=True)
class Bounds:
    """`at_once` preparations in one worker, `per_tenant` of one tenant; each ends after `longest` seconds. What is
    prepared is kept for `keep` seconds. `threads` is how many conversations' fruitless tries are in memory."""

    at_once: int = 8
    per_tenant: int = 4
    longest: float = 180.0
    keep: float = 86_400.0
    threads: int = 2_000


Ready = Cache[Thread, tuple[Prepared, float]]


def ready_summaries(capacity: int) -> Ready:
    """A cache of `capacity` bytes for summaries that wait for their compaction, each with when its request came."""
    return Cache(capacity, lambda thread, ready: _READY + weigh(*thread, ready[0].narrative, *_texts(ready[0])))


def _texts(prepared: Prepared) -> list[str]:
    return [text for _, text in prepared.findings]


_READY = 1_000
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Prepared)


def decode(value: bytes | None) -> Prepared | None:
    """What was prepared, as it is kept; None where there is nothing that can be read."""
    try:
        return _DECODER.decode(value) if value is not None else None
    except (msgspec.MsgspecError, ValueError):
        return None


class Preparations:
    """The summaries of one worker that are being written or ready; behind them the store, for those of others."""

    def __init__(
        self,
        author: Author,
        store: Store,
        tasks: Tasks,
        waiting: Waiting,
        bounds: Bounds,
        archive: Archive,
        erasures: Erasures,
        writers: Writers,
        model: str = "",
        ready: Ready | None = None,
    ) -> None:
        """`writers`: the record of models that write; `model`: the one that is configured to, empty for the request's
        own; `ready`: where summaries wait in memory."""
        self._writers, self._model = writers, model
        self._erasures = erasures
        self._author = author
        self._store = store
        self._archive = archive
        self._tasks = tasks
        self._waiting = waiting
        self._bounds = bounds
        self._running: dict[Thread, Signal] = {}
        self._ready = ready if ready is not None else ready_summaries(16 * 2**20)
        self._fruitless: OrderedDict[Thread, tuple[int, bool]] = OrderedDict()
        self._wasted: OrderedDict[Thread, Waste] = OrderedDict()

    def begin(
        self,
        thread: Thread,
        conversation: Conversation,
        tokens: int,
        told: int,
        make: Callable[[], Awaitable[SummaryTask | None]],
        since: int | None,
        began: float,
        asker: Asker | None = None,
    ) -> bool:
        """Begins to write a summary, unless one is ready or being written, there is no room for another, the last try
        came to nothing and the history (of `tokens`) has hardly grown, or the model is paused. Gives whether one is
        being written now.

        `asker`: in whose name a model is asked; None where none is. `told`: of so many of the client's messages a model
        has told in an earlier fold already. `make` says what is to
        be told now, None where nothing is; `since` from which of the client's messages on, where that is known. It is
        neither kept nor used where the session was erased after `began`, by the monotonic clock.
        """
        if thread in self._running:
            return True
        held = self._held(thread)
        if (held is not None and held.holds(conversation, told, since)) or self.fruitless(thread, tokens):
            return False
        if asker is not None and not self.may_try(asker, thread):
            return False
        mine = sum(other.tenant == thread.tenant for other in self._running)
        if len(self._running) >= self._bounds.at_once or mine >= self._bounds.per_tenant:
            return False
        self._running[thread] = self._waiting.signal()
        work = self._run(thread, conversation, tokens, told, make, since, began, asker)
        self._tasks.spawn(work, "prepare a summary")
        return True

    def may_try(self, asker: Asker, thread: Thread) -> bool:
        """Whether the model may be asked now that would write for `asker`."""
        return self._writers.may_try(self._writer(asker), thread)

    def forwarded(self, asker: Asker, tokens: int) -> None:
        """Counts a request that a summary may be written for."""
        self._writers.forwarded(self._writer(asker), tokens)

    def running(self, thread: Thread) -> bool:
        """Whether a summary is being written."""
        return thread in self._running

    def fruitless(self, thread: Thread, tokens: int) -> bool:
        """Whether the last try came to nothing, and the history has hardly grown since."""
        noted = self._fruitless.get(thread)
        return noted is not None and tokens < _AGAIN * noted[0]

    def failed(self, thread: Thread) -> bool:
        """Whether the last try that ended failed, and no fold was made since."""
        return thread in self._fruitless and self._fruitless[thread][1]

    async def wait(self, thread: Thread, seconds: float) -> None:
        """Returns when what is being written is ready or has failed, or after so many seconds."""
        signal = self._running.get(thread)
        if signal is not None:
            with suppress(TimeoutError):
                await self._waiting.within(seconds, signal.wait())

    async def ready(
        self, thread: Thread, conversation: Conversation, told: int, since: int | None = None
    ) -> Prepared | None:
        """What was prepared for this conversation, by this worker or another, tells of more than `told` messages, and
        begins at `since` where that is said; None where there is nothing that holds."""
        held = self._held(thread)
        if held is None or not held.holds(conversation, told, since):
            with suppress(StoreUnavailable):
                held = decode(self._archive.opened(thread.space, thread.key, await self._store.get(thread.key)))
        return held if held is not None and held.holds(conversation, told, since) else None

    def used(self, thread: Thread) -> Waste:
        """A compaction was made: what is prepared has served. Gives what models took for nothing in this conversation
        since the last one."""
        self._ready.discard(thread)
        self._fruitless.pop(thread, None)
        return self._wasted.pop(thread, Waste())

    async def _run(
        self, thread: Thread, conversation: Conversation, tokens: int, told: int,
        make: Callable[[], Awaitable[SummaryTask | None]], since: int | None, began: float, asker: Asker | None,
    ) -> None:  # fmt: skip
        signal, prepared, failed = self._running[thread], None, False
        try:
            # Another worker may have prepared one.
            prepared = await self.ready(thread, conversation, told, since)
            if prepared is None:
                summary = await self._told(thread, make, asker)
                if summary is not None:
                    prepared = await self._prepared(thread, conversation, told, summary, began)
        except (SummaryFailed, TimeoutError) as error:
            failed = True
            self._failed(thread, asker, error)
        except Exception:
            failed = True
            raise
        finally:
            if prepared is None:
                self._fruitless[thread] = tokens, failed
                _bounded(self._fruitless, thread, self._bounds.threads)
            else:
                self._fruitless.pop(thread, None)
                self._ready[thread] = prepared, began
            del self._running[thread]
            signal.set()

    def _held(self, thread: Thread) -> Prepared | None:
        """What is ready in memory, unless its session was erased since the request came that it was told for."""
        prepared, began = self._ready.get(thread) or (None, 0.0)
        return None if self._erasures.since(thread.space, thread.session, began) else prepared

    def _writer(self, asker: Asker) -> Writer:
        route = "" if self._model else asker.route.name
        return Writer(asker.tenant, route, self._model or asker.model)

    def _failed(self, thread: Thread, asker: Asker | None, error: Exception, part: Summary | None = None) -> None:
        """Notes an attempt that gave no summary, or only a `part` of one, until a compaction tells of it."""
        failure = _failure(error, part)
        self._waste(thread, Waste(*failure[2:], *failure[1:]))
        if asker is None or not isinstance(error, SummaryRejected | TimeoutError):
            # It is not the model's fault.
            _log.info("no summary was prepared: %s", failure.reason, extra={"session": thread.session})
            return
        self._writers.failed(self._writer(asker), thread, thread.session, failure)

    def _waste(self, thread: Thread, more: Waste) -> None:
        """Notes what was paid for nothing, until a compaction tells of it."""
        before = self._wasted.get(thread, Waste())
        self._wasted[thread] = Waste(*(one + other for one, other in zip(before, more, strict=True)))
        _bounded(self._wasted, thread, self._bounds.threads)

    async def _told(
        self, thread: Thread, make: Callable[[], Awaitable[SummaryTask | None]], asker: Asker | None
    ) -> Summary | None:
        """What a model told in time; of several pieces the first ones, where the rest failed or took too long."""
        heard: list[Summary] = []
        is_trial = asker is not None and not self._writers.is_proven(self._writer(asker))
        try:
            work = self._written(thread, make, heard.append, is_trial)
            summary = await self._waiting.within(self._bounds.longest, work)
        except (SummaryFailed, TimeoutError) as error:
            if not heard:
                raise
            self._failed(thread, asker, error, heard[-1])
            return heard[-1]
        if summary is not None and asker is not None:
            self._writers.succeeded(self._writer(asker), thread)
        return summary

    async def _written(
        self,
        thread: Thread,
        make: Callable[[], Awaitable[SummaryTask | None]],
        heard: Callable[[Summary], None],
        is_trial: bool,
    ) -> Summary | None:
        task = await make()
        if task is None:
            return None
        held = True
        try:
            # Two workers need not both pay for the same summary.
            lock = self._store.lock(Key("", f"{thread.key.name}/lock"), lease=self._bounds.longest)
            async with lock as held:
                if held:
                    return await self._author.write(task, heard, is_trial=is_trial)
        except StoreUnavailable:
            if held:
                return await self._author.write(task, heard, is_trial=is_trial)
        return None

    async def _prepared(
        self, thread: Thread, conversation: Conversation, told: int, summary: Summary, began: float
    ) -> Prepared:
        """What a model told, kept for other workers too. Raises SummaryFailed where that is nothing new."""
        if not told < summary.narrated <= len(conversation.chain):
            raise SummaryFailed("everything is summarized already")
        anchor = conversation.chain[summary.narrated - 1]
        if (unused := self._ready.get(thread)) is not None:
            self._waste(thread, Waste(unused[0].input, unused[0].output))
        prepared = Prepared(
            summary.narrative, summary.narrated, anchor, summary.writer, summary.input, summary.output,
            summary.findings, summary.since,
        )  # fmt: skip
        if self._erasures.since(thread.space, thread.session, began):
            return prepared
        with suppress(StoreUnavailable):
            value = _ENCODER.encode(prepared)
            puts = self._archive.single(thread.space, thread.session, "summary", thread.key, value, self._bounds.keep)
            await self._archive.keep(puts)
        return prepared


def _failure(error: Exception, part: Summary | None) -> Failure:
    """What a failed attempt cost beside the `part` that is of use, as far as is known."""
    reason = str(error) if isinstance(error, SummaryFailed) else "it took too long"
    input, output = (part.input, part.output) if part is not None else (0, 0)
    if not isinstance(error, SummaryRejected):
        return Failure(reason, int(isinstance(error, TimeoutError)))
    return Failure(reason, error.answers, max(0, error.input - input), max(0, error.output - output))


def _bounded(held: OrderedDict[Thread, V], newest: Thread, most: int) -> None:
    held.move_to_end(newest)
    while len(held) > most:
        held.popitem(last=False)
