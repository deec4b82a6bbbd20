"""Makes folds: plan, summary, archive, record, in this order, once for each conversation at a time.

Whatever fails leaves the request as it came; where it must become smaller, the next smaller form is tried: a model's
summary, an extracted one, none.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import field
from functools import partial
from typing import Literal

from accordion.archive.erasures import Erasures
from accordion.archive.writing import Archive
from accordion.compaction.background import Preparations, Thread
from accordion.compaction.case import Case, Outcome
from accordion.compaction.crafting import Craft, Made, Work
from accordion.compaction.futility import Futile
from accordion.compaction.layout import Unfit
from accordion.compaction.replay import Folds
from accordion.compaction.telling import failed, observed, seen_of, utilization_of
from accordion.compaction.waiting import Signal, Waiting
from accordion.core.conversation import Conversation
from accordion.core.errors import AccordionError, StoreUnavailable
from accordion.core.ports import Clock, Tasks
from accordion.core.records import CompactionSeen
from accordion.core.values import dataclass, replace
from accordion.summaries.author import Author, Summary, SummaryTask
from accordion.summaries.extractive import Extractor

__all__ = ["Compactor", "Rooms", "seen_of"]

_log = logging.getLogger("accordion")

Writer = Literal["model", "extract", "none"]


class _Later(Exception):
    """A model is writing; the request passes as it is meanwhile."""


@dataclass(frozen=True, slots=True)
class Rooms:
    """What compactors work with. It is shared by all of them, and outlives a change of settings."""

    folds: Folds
    archive: Archive
    author: Author
    extractor: Extractor
    preparations: Preparations
    tasks: Tasks
    clock: Clock
    waiting: Waiting
    erasures: Erasures
    flights: dict[Thread, Signal] = field(default_factory=dict)
    """The folds that are being made."""
    futile: Futile = field(default_factory=Futile)


class Compactor:
    """Carries decisions out. `wait_seconds` is how long a client waits for a model's summary where the request cannot
    be sent without a fold."""

    def __init__(self, craft: Craft, rooms: Rooms, *, wait_seconds: float = 20.0) -> None:
        self._craft = craft
        self._rooms = rooms
        self._wait = wait_seconds

    async def fold(self, case: Case, client: Conversation) -> Outcome:
        """Does what `case.decision` says; `client` is the list as the client sent it. Never fails: then the request
        stays as it was, and the outcome says why."""
        decision = case.decision
        if case.asker is not None and not case.counting:
            self._rooms.preparations.forwarded(case.asker, case.utilization.tokens)
        try:
            if decision.observed:
                return await self._observed(case)
            if decision.action == "prepare" and not case.counting:
                self._prepare(case, client)
            if decision.action != "compact" or not client.chain:
                return Outcome(case.folded)
            return await self._alone(case, client)
        except _Later:
            return Outcome(case.folded)
        except Exception as error:
            return Outcome(case.folded, self._failed(case, error))

    # -- one at a time ------------------------------------------------------------

    async def _alone(self, case: Case, client: Conversation) -> Outcome:
        """One fold of a conversation at a time; who comes meanwhile waits, and takes what was made if it is enough."""
        thread, flights, waited = _thread(case, client), self._rooms.flights, False
        while (flight := flights.get(thread)) is not None:
            await flight.wait()
            waited = True
        signal = flights[thread] = self._rooms.waiting.signal()
        try:
            if waited:
                case, enough = self._renewed(case, client)
                if enough and (made := case.folded.compaction) is not None:
                    return Outcome(case.folded, seen_of(made, "replayed"))
            return await self._fold(case, client, thread)
        finally:
            del flights[thread]
            signal.set()

    def _renewed(self, case: Case, client: Conversation) -> tuple[Case, bool]:
        """The case with what was folded since, and whether that is enough."""
        found = self._rooms.folds.local(case.dialect, case.space, case.scope, client)
        before, now = case.folded.compaction, found.compaction
        if now is None or (before is not None and now.id == before.id):
            return case, False
        tokens = self._craft.refolded(case, found)
        used = case.utilization.corrected(1.0, tokens, carried=False)
        enough = case.decision.forced or used.occupied < max(1, case.decision.trigger)
        return replace(case, folded=found, utilization=used), enough

    async def _fold(self, case: Case, client: Conversation, thread: Thread) -> Outcome:
        """Tries the forms, the best first. Raises what was wrong with the last of them."""
        must, modelled = case.decision.must_succeed, self._modelled(case)
        before, tokens = case.folded.compaction, case.utilization.tokens
        bound = not (must or case.decision.forced or case.decision.trigger == 0)
        fold = before.id if before is not None else ""
        if bound and (reason := self._rooms.futile.reason(thread, client, fold, tokens)):
            raise Unfit(reason)
        prepared = self._rooms.preparations
        if modelled and _passes(case) and prepared.running(thread) and not prepared.failed(thread):
            raise _Later
        writers: list[Writer] = ["model"] if modelled else []
        writers += ["extract", "none"] if must else ["extract"]
        problem: Exception = Unfit("no message may be compacted")
        for tried, writer in enumerate(writers):
            try:
                return await self._made(case, client, thread, writer, tried)
            except _Later:
                raise
            except StoreUnavailable as error:
                # Another form would have to be kept as well.
                raise error
            except Exception as error:
                problem = error
                if not isinstance(error, AccordionError):
                    _log.warning(
                        "one way to compact failed, the next is tried: %s",
                        _where(error),
                        extra={"request_id": case.request_id},
                    )
        if bound:
            self._rooms.futile.note(thread, client, fold, tokens, _reason(problem))
        raise problem

    async def _made(self, case: Case, client: Conversation, thread: Thread, writer: Writer, tried: int) -> Outcome:
        tasks = self._rooms.tasks
        at = self._rooms.clock.now()
        work = await tasks.offload(partial(self._craft.work, case, client, at=at, plain=writer == "none"))
        summary = await self._summary(case, client, thread, work, writer)
        made = await tasks.offload(partial(self._craft.made, case, work, summary))
        outcome = await self._kept(case, client, made, tried + made.passes)
        if summary is None or case.counting or outcome.seen is None:
            return outcome
        # What was asked in vain is paid for all the same; it is told with the fold that was made at last.
        waste = self._rooms.preparations.used(thread)
        seen = replace(
            outcome.seen,
            input=outcome.seen.input + waste.input,
            output=outcome.seen.output + waste.output,
            failed_answers=waste.answers,
            failed_input=waste.failed_input,
            failed_output=waste.failed_output,
        )
        return replace(outcome, seen=seen)

    # -- summaries ----------------------------------------------------------------

    def _modelled(self, case: Case) -> bool:
        return case.asker is not None and self._rooms.author.asks

    def _may_ask(self, case: Case, thread: Thread) -> bool:
        """Whether the model that would write is not paused after failures."""
        return case.asker is not None and self._rooms.preparations.may_try(case.asker, thread)

    async def _summary(
        self, case: Case, client: Conversation, thread: Thread, work: Work, writer: Writer
    ) -> Summary | None:
        task = work.task
        if task is None:
            return None
        if writer == "model" and (told := await self._told(case, client, thread, work, task)) is not None:
            return told
        return await self._rooms.tasks.offload(self._rooms.author.extractive, task)

    async def _told(
        self, case: Case, client: Conversation, thread: Thread, work: Work, task: SummaryTask
    ) -> Summary | None:
        """What a model told ahead, with an extract of the rest; None where an extract must do. Raises _Later where it
        is still writing and the request can go on as it is: not for another try after one that failed, since requests
        that grow fast would go on so up to the hard limit."""
        prepared, tokens = self._rooms.preparations, case.utilization.tokens

        async def make() -> SummaryTask | None:
            return task

        told, since = task.prior_until, task.since
        ready = await prepared.ready(thread, client, told, since)
        again = not prepared.failed(thread) or (_waits(case) and not prepared.fruitless(thread, tokens))
        if ready is None and again and self._may_ask(case, thread):
            if not case.counting:
                prepared.begin(thread, client, tokens, told, make, since, case.began, case.asker)
            if _passes(case):
                raise _Later
            if _waits(case) and not case.counting:
                await prepared.wait(thread, self._wait)
                ready = await prepared.ready(thread, client, told, since)
        if ready is None or work.last < 0 or ready.narrated > work.last + 1:
            return None
        known = replace(task, prior=ready.narrative, prior_until=ready.narrated)
        summary = await self._rooms.tasks.offload(self._rooms.author.extractive, known)
        return replace(summary, writer=ready.writer, input=ready.input, output=ready.output, findings=ready.findings)

    def _prepare(self, case: Case, client: Conversation) -> None:
        """Has a summary written meanwhile; without a model, what an extract will be made of is looked up."""
        thread, tokens = _thread(case, client), case.utilization.tokens
        asker = case.asker if self._modelled(case) and self._may_ask(case, thread) else None
        make = self._task if asker is not None else self._facts
        base = case.folded.compaction
        told = base.narrated if base is not None and base.kind == case.decision.kind else 0
        make = partial(make, case, client)
        self._rooms.preparations.begin(thread, client, tokens, told, make, None, case.began, asker)

    async def _task(self, case: Case, client: Conversation) -> SummaryTask | None:
        work = partial(self._craft.work, case, client, at=self._rooms.clock.now(), plain=False)
        try:
            return (await self._rooms.tasks.offload(work)).task
        except Unfit:
            return None

    async def _facts(self, case: Case, client: Conversation) -> SummaryTask | None:
        await self._rooms.tasks.offload(self._rooms.extractor.prepare, client.messages)
        return None

    # -- keeping ------------------------------------------------------------------

    async def _kept(self, case: Case, client: Conversation, made: Made, passes: int) -> Outcome:
        """Archives what leaves, then makes the fold known; neither for who only counts, nor where the session was
        erased meanwhile. Raises StoreUnavailable where neither the store nor this machine takes it."""
        folds, root = self._rooms.folds, client.chain[0]
        if case.counting or self._rooms.erasures.since(case.space, case.session, case.began):
            return Outcome(made.folded, seen_of(made.compaction, "folded", case.decision, passes))
        await self._rooms.archive.keep(made.puts)
        list_of = case.folded.conversation.chain[-1]
        compaction = await folds.publish(case.space, case.scope, root, made.compaction, of=list_of)
        spooled = not self._rooms.archive.store.available
        folded, lost = made.folded, False
        if compaction.id != made.compaction.id:
            # Who comes second takes what another worker made; it is counted there. What does not hold for this list
            # (a call that it took out has been answered since) is not taken.
            with suppress(ValueError):
                folded, lost = folds.applied(case.dialect, case.space, client, compaction), True
        told = compaction if lost else made.compaction
        seen = seen_of(told, "replayed") if lost else seen_of(told, "folded", case.decision, passes)
        return Outcome(folded, seen, spooled)

    # -- telling ------------------------------------------------------------------

    async def _observed(self, case: Case) -> Outcome:
        plan, passes = await self._rooms.tasks.offload(self._craft.plan, case)
        utilization = utilization_of(case.decision, case.utilization.ratio)
        return Outcome(case.folded, observed(plan, case.decision, case.cause, utilization, passes, case.brought))

    def _failed(self, case: Case, error: Exception) -> CompactionSeen:
        reason = _reason(error)
        _log.warning("a request was not compacted: %s", reason, extra={"request_id": case.request_id})
        utilization = utilization_of(case.decision, case.utilization.ratio)
        return failed(case.decision, case.cause, utilization, case.utilization.tokens, reason, case.folded.compaction)


def _waits(case: Case) -> bool:
    """Whether the request waits for a model's summary, rather than to go on as it is meanwhile."""
    return case.decision.must_succeed or case.decision.forced


def _passes(case: Case) -> bool:
    """Whether the request goes on as it is while a model writes. At a trigger of 0 it does not: an extract does."""
    return not _waits(case) and case.decision.trigger > 0


def _thread(case: Case, client: Conversation) -> Thread:
    return Thread(case.tenant, case.space, case.scope, case.session or client.chain[0].hex())


def _reason(error: Exception) -> str:
    return error.message if isinstance(error, AccordionError) else f"an internal error: {_where(error)}"


def _where(error: Exception) -> str:
    """What was raised, and where; not what it says, which may quote the conversation."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    place = f" in {at.tb_frame.f_code.co_name}, line {at.tb_lineno}" if at is not None else ""
    return f"{type(error).__name__}{place}"
