"""From a decision to the bytes that leave: the compactor is asked, the outcome measured, the body written anew.

Whatever fails here leaves the request as it came.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from msgspec import structs

from accordion.accounting.overflow import Overflow
from accordion.archive.named_items import NamedItems
from accordion.compaction.case import Case
from accordion.compaction.compactor import Compactor, seen_of
from accordion.compaction.controls import thinking_of
from accordion.compaction.last_resort import NAME as LAST_RESORT
from accordion.compaction.policy import ceiling, refuse
from accordion.compaction.recalling import Recalling, Turn
from accordion.compaction.rendering import Rendering
from accordion.compaction.wishes import Wishes
from accordion.compaction.woven import unbound
from accordion.core.budget import Decision, FoldKind
from accordion.core.delegation import Delegation
from accordion.core.edits import Cause, unfolded
from accordion.core.errors import Unreadable
from accordion.core.records import CompactionSeen, Recalled
from accordion.core.summarizing import Asker
from accordion.core.values import dataclass, replace
from accordion.gauge import Gauging
from accordion.gauged import Gauge, size_of
from accordion.identity.sessions import Place
from accordion.importing import Asking, Importing
from accordion.recollecting import Moment, Recollecting

_log = logging.getLogger("accordion")

# An error without a word is taken for an overflow only where the window is as full as this.
_LIKELY = 0.8
_Askers = Callable[[Gauge], Asker | None]


@dataclass(frozen=True, slots=True)
class Folding:
    """Carries decisions out."""

    gauging: Gauging
    compactors: Callable[[str, bool], Compactor]
    """By model, and whether a sub-agent asks."""
    rendering: Rendering
    wishes: Wishes
    named: NamedItems
    recalling: Recalling | None = None
    """None where nothing is recalled."""
    importing: Importing | None = None
    """None where there are no memories to be asked for."""
    recollecting: Recollecting | None = None
    """None where memories are not recalled unasked."""

    async def fold(self, gauge: Gauge, asker: _Askers, cause: Cause = "automatic") -> Gauge:
        """The request as it is to be forwarded; its decision is to refuse it where it is known to fit in no form."""
        place = gauge.place
        if place is None or gauge.folded is None:
            return gauge
        try:
            # When it overflowed they are there already, or were erased since.
            if gauge.controls.pins and not gauge.counting and cause != "overflow":
                await self.wishes.add(gauge.caller.tenant, place.session.id, gauge.controls.pins)
            # Where an earlier fold is in force, or something else stands in the list, it is dressed.
            if gauge.decision.action != "pass" or gauge.dressed is not None or gauge.remembers:
                gauge = await self._changed(gauge, place, asker, cause)
        except Exception:
            _log.exception("a request could not be compacted; it is forwarded unchanged")
            gauge = await self._as_it_came(gauge)
        window = gauge.window
        if window is None or gauge.counting or not gauge.foldable or not refuse(gauge.utilization, window, gauge.text):
            # Who asks how much it would be is told, however much that is; of what is not to be touched, the provider
            # says whether it takes it (it may make room by itself, as by `truncation`).
            return gauge
        reason = f"{gauge.utilization.tokens:,} tokens do not fit the {window.usable_input:,} of the window in any form"
        return structs.replace(gauge, decision=replace(gauge.decision, action="refuse", reason=reason))

    async def overflowed(self, gauge: Gauge, asker: _Askers, overflow: Overflow) -> Gauge | None:
        """The request folded once more because the provider said that it does not fit; None where it cannot be made
        smaller, is not to be touched, or asks for an answer that leaves it no room. A limit in the error is learnt."""
        self.gauging.overflowed(gauge, overflow)
        overflow = overflow.heard(gauge.plain)
        if gauge.foldable and gauge.place is not None:
            gauge = await self._anew(gauge, gauge.place)
        if gauge.place is None or gauge.limits is None or gauge.window is None or gauge.folded is None:
            return None
        if not gauge.foldable or (overflow.guessed and gauge.utilization.ratio < _LIKELY):
            return None
        model, windows = gauge.place.conversation.model, self.gauging.windows
        window = windows.window(model, gauge.route.name, gauge.beta, gauge.caller.tenant)
        limits = gauge.rules.thresholds.limits(min(window.size, overflow.limit or window.size))
        kind: FoldKind = "conversation" if gauge.place.conversation.starts_turn else "generation"
        target = limits.conversation_target if kind == "conversation" else limits.generation_target
        before, used = gauge.utilization.tokens, gauge.utilization
        # The plan is made by the provider's own count.
        if overflow.requested and overflow.requested > before:
            used = used.corrected(1.0, overflow.requested, carried=used.carried)
        used = replace(used, reserved_output=overflow.output or used.reserved_output)
        decision = Decision(
            "compact",
            "the provider said that the request does not fit its window",
            target=min(target, gauge.utilization.occupied // 2, ceiling(used, limits, window)),
            must_succeed=True,
            kind=kind,
            trigger=limits.hard,
            forced=True,
        )
        again = structs.replace(gauge, window=window, limits=limits, decision=decision, utilization=used)
        if overflow.output and not await self._reaches(again, gauge.place, asker):
            return None
        again = await self.fold(again, asker, "overflow")
        smaller = again.sent is not None and again.utilization.tokens < before
        if again.utilization.unfolded and not (smaller and again.utilization.occupied < limits.hard):
            again = self._written(await self._without(again))
            smaller = again.utilization.tokens < before
        return again if smaller and again.decision.action != "refuse" else None

    # -- the steps ----------------------------------------------------------------

    async def _changed(self, gauge: Gauge, place: Place, asker: _Askers, cause: Cause) -> Gauge:
        """The request with what is folded of it and put into it."""
        if gauge.decision.action == "compact" and cause != "overflow" and not gauge.counting:
            gauge = await self._anew(gauge, place)
            place = gauge.place or place
        gauge = await self._fold(gauge, place, asker, cause)
        if cause != "overflow" and not (gauge.counting or gauge.controls.compacting):
            gauge = await self._recalled(await self._imported(gauge, place), place)
            gauge = await self._recollected(gauge, place)
        if gauge.utilization.unfolded and gauge.window is not None and refuse(gauge.utilization, gauge.window):
            gauge = await self._without(gauge)
        return self._written(gauge)

    async def _reaches(self, gauge: Gauge, place: Place, asker: _Askers) -> bool:
        """Whether a fold would leave the answer its room; planned only, since one that is made stays in force."""
        decision, used = replace(gauge.decision, observed=True), gauge.utilization
        seen = (await self._fold(structs.replace(gauge, decision=decision), place, asker, "overflow")).seen
        if seen is None or seen.after + used.reserved_output > decision.trigger:
            return False
        # Where the input alone would fit, nothing that is to stay whole is cut for the answer's sake.
        return used.tokens >= decision.trigger or all(step != LAST_RESORT for step, _, _ in seen.steps)

    async def _anew(self, gauge: Gauge, place: Place) -> Gauge:
        """The request with all hidden that is others', since a fold comes. Thinking may be bound to what was shown, and
        the fold come to nothing: then the provider would refuse the list, and what was shown stays."""
        bound = thinking_of(place.conversation, gauge.beta, gauge.model) == "bound"
        return gauge if bound else await self.gauging.anew(gauge)

    async def _fold(self, gauge: Gauge, place: Place, asker: _Askers, cause: Cause) -> Gauge:
        decision, tenant, session = gauge.decision, gauge.caller.tenant, place.session.id
        if decision.action not in ("compact", "prepare") and not decision.observed:
            seen = self._replayed(gauge)
            return structs.replace(gauge, seen=seen) if seen is not None else gauge
        compactor = self.compactors(place.conversation.model, gauge.delegated)
        outcome = await compactor.fold(await self._case(gauge, asker, cause), place.conversation)
        if decision.action == "compact" and not (decision.observed or gauge.counting):
            self.wishes.defer(tenant, session, outcome.seen is None and decision.kind == "conversation")
        if decision.forced and not decision.observed and self.wishes.forced(tenant, session):
            await self.wishes.done(tenant, session)
        if outcome.folded is not gauge.folded:
            gauge = await self.gauging.refolded(gauge, outcome.folded)
        return structs.replace(gauge, seen=outcome.seen or self._replayed(gauge), flagged=outcome.flagged)

    async def _recalled(self, gauge: Gauge, place: Place) -> Gauge:
        """The request with an excerpt of what its newest turn names and only the archive holds, where a fold is in
        force."""
        folded, shown, limits = gauge.folded, gauge.dressed, gauge.limits
        if self.recalling is None or folded is None or shown is None or limits is None:
            return gauge
        if folded.compaction is None or not gauge.foldable:
            return gauge
        turn = Turn(
            dialect=gauge.dialect,
            space=gauge.caller.space,
            scope=place.label,
            session=place.session.id,
            model=gauge.model,
            client=place.conversation,
            folded=folded,
            shown=shown,
            base=place.base_index,
            room=limits.hard - gauge.utilization.occupied,
            # Some of the providers that are translated to refuse a user's message directly behind results.
            amid=gauge.route.family != "litellm",
            began=gauge.started,
        )
        return await self._with(gauge, await self.recalling.recalled(turn))

    async def _imported(self, gauge: Gauge, place: Place) -> Gauge:
        """The request with the session memories that the user asks for in it. What a main agent says to a sub-agent is
        no user's word."""
        if self.importing is None or not gauge.remembers or gauge.delegated or gauge.limits is None:
            return gauge
        asking = Asking(
            gauge.dialect, gauge.caller.space, place.label, place.session.id, gauge.model, place.conversation,
            gauge.limits.hard - gauge.utilization.occupied, gauge.started,
        )  # fmt: skip
        return await self._with(gauge, await self.importing.imported(asking))

    async def _recollected(self, gauge: Gauge, place: Place) -> Gauge:
        """The request with memories that belong to what the user, or who delegates, says last."""
        folded, limits = gauge.folded, gauge.limits
        if self.recollecting is None or not gauge.remembers or folded is None or limits is None:
            return gauge
        moment = Moment(
            gauge.dialect, gauge.caller.space, place, gauge.model, folded, gauge.dressed or folded,
            limits.hard - gauge.utilization.occupied, gauge.started, gauge.controls.project,
        )  # fmt: skip
        return await self._with(gauge, await self.recollecting.recollected(moment))

    async def _with(self, gauge: Gauge, found: Recalled | None) -> Gauge:
        """The request with what was just recorded to be put into it; None: nothing was."""
        if found is None or gauge.folded is None:
            return gauge
        again = await self.gauging.refolded(gauge, gauge.folded)
        return structs.replace(again, recalled=found + (gauge.recalled or Recalled()))

    async def _without(self, gauge: Gauge) -> Gauge:
        """The request without what was read back, which is the first to go where there is no room for it; and without
        the thinking that is bound to it."""
        place, dresser, former = gauge.place, self.gauging.dresser, gauge.dressed
        if gauge.folded is None or place is None:
            return gauge
        gauge = await self.gauging.refolded(gauge, gauge.folded, woven=False)
        thinking = thinking_of(place.conversation, gauge.beta, gauge.model)
        shown = gauge.dressed or gauge.folded
        if thinking != "bound" or shown is None or former is None or dresser is None or gauge.window is None:
            return gauge
        bare = unbound(gauge.dialect, shown, former, dresser.reader.of(gauge.dialect, gauge.caller.space))
        counted = self.gauging.meter.measure(bare.conversation, gauge.window, gauge.model).tokens
        total = max(0, gauge.utilization.tokens - gauge.counted + counted)
        used = gauge.utilization.corrected(1.0, total, carried=gauge.utilization.carried)
        return structs.replace(gauge, dressed=bare, counted=counted, utilization=used)

    def _written(self, gauge: Gauge) -> Gauge:
        """The same with the body that is forwarded, where that is not the client's. What was read back is not saved."""
        shown, seen, unfolded = gauge.dressed or gauge.folded, gauge.seen, gauge.utilization.unfolded
        if shown is None or (shown.compaction is None and gauge.dressed is None):
            return structs.replace(gauge, sent=None)
        if seen is not None and unfolded:
            seen = replace(seen, saved=max(0, seen.saved - unfolded))
        return structs.replace(gauge, sent=self.rendering.body(gauge.dialect, shown), seen=seen)

    async def _case(self, gauge: Gauge, asker: _Askers, cause: Cause) -> Case:
        place, folded, window, limits = gauge.place, gauge.folded, gauge.window, gauge.limits
        if place is None or folded is None or window is None or limits is None:
            raise Unreadable("only what was measured is folded")
        tenant, space, session = gauge.caller.tenant, gauge.caller.space, place.session.id
        if gauge.decision.forced and cause == "automatic":
            cause = "manual"
        begun: Mapping[str, Delegation] = {}
        handed = frozenset[str]()
        if (seated := gauge.seated) is not None:
            begun = await self.gauging.seating.begun(gauge.caller, seated, session)
            # What was said when the conversation was handed over is the task.
            handed = frozenset({seated.seat.call_id} if seated.seat.evidence == "handoff" else ())
        return Case(
            tenant=tenant,
            space=space,
            scope=place.label,
            session=session,
            dialect=gauge.dialect,
            folded=folded,
            utilization=gauge.utilization,
            window=window,
            limits=limits,
            decision=gauge.decision,
            model=gauge.model,
            began=gauge.started,
            request_id=gauge.request_id,
            cause=cause,
            size=size_of(gauge),
            budgets=gauge.rules.budgets,
            thinking=thinking_of(place.conversation, gauge.beta, gauge.model),
            pins=gauge.controls.pins | handed | await self.wishes.pinned(tenant, session),
            asker=asker(gauge),
            brought=await self.gauging.brought(gauge),
            counting=gauge.counting,
            delegated=gauge.delegated,
            begun=begun,
            heard=await self.named.heard(place.conversation, space, session),
            shown=gauge.dressed,
        )

    def _replayed(self, gauge: Gauge) -> CompactionSeen | None:
        compaction = gauge.folded.compaction if gauge.folded is not None else None
        return seen_of(compaction, "replayed") if compaction is not None else None

    async def _as_it_came(self, gauge: Gauge) -> Gauge:
        """The request without any fold, measured again."""
        if gauge.place is None:
            return gauge
        failed = CompactionSeen("failed", reason="an internal error; the request went on as it came")
        gauge = await self.gauging.refolded(structs.replace(gauge, reads=None), unfolded(gauge.place.conversation))
        return structs.replace(gauge, sent=None, seen=failed)
