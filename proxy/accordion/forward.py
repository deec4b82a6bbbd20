"""One request, from the client's bytes to the provider's and back.

A request comes in through a face; its dialect reads the bytes into a Conversation; identity finds who asks among the
agents, and the filter leaves what that one may see (seating.py); identity finds the Session, replay puts earlier folds
back, accounting measures and policy decides (gauge.py); what is too full is folded, else the very same bytes go on
(folding.py); what the provider keeps of it is put in place of its id for that (completing.py); upstream sends
(sending.py); an overflow that the provider reports is answered by one more fold (opening.py); what the model reads back
is answered within the reply (unfolding.py), which is relayed while a tap listens (relay.py); the journal records, and
what the reply taught is kept (learning.py).

Forwarding is a promise: whatever fails on the way to knowing more about a request, the request itself goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from accordion.accounting.journal import Journal
from accordion.archive.erasures import Erasures
from accordion.archive.named_items import NamedItems
from accordion.completing import Askers, Completing
from accordion.core.cache import LONGEST_NAME
from accordion.core.errors import AccordionError, ContextOverflow, ThreadGone, Unauthorized, UpgradeRefused
from accordion.core.http import Inbound, Outbound, Told, stopped
from accordion.core.ports import Clock, Headers, UpstreamReply, UpstreamRequest
from accordion.core.records import Exchange, ReplySeen
from accordion.core.values import replace
from accordion.folding import Folding
from accordion.gauge import Gauging
from accordion.gauged import Gauge
from accordion.identity.sessions import Place
from accordion.identity.tenants import Tenants
from accordion.learning import learnt
from accordion.opening import Opened, opened
from accordion.relay import Course, relay
from accordion.remembering import Remembering
from accordion.response_history import ResponseHistory
from accordion.retrieving import Retrieving
from accordion.sending import Sending
from accordion.telling import agent_of, headers_of, with_ours
from accordion.unfolding import Unfolding

_MENDED = 8
"""So often a request is sent again with what the provider missed in it; each of its errors names one thing."""

T = TypeVar("T")
_log = logging.getLogger("accordion")


@dataclass(frozen=True, slots=True)
class Forward:
    """The one way through the house. Holds the rooms it passes, and no state of its own."""

    tenants: Tenants
    gauging: Gauging
    folding: Folding
    sending: Sending
    journal: Journal
    clock: Clock
    erasures: Erasures
    named: NamedItems
    completing: Completing
    history: ResponseHistory
    unfolding: Unfolding | None = None
    """None where nothing is read back."""
    retrieving: Retrieving | None = None
    """None where nothing is read back."""
    remembering: Remembering | None = None
    """None where folds leave no memories."""
    relays: bool = True
    """Whether WebSockets are relayed where the same may be asked over HTTP and is read then."""

    async def __call__(self, inbound: Inbound) -> Outbound:
        """Forwards a request; gives the provider's answer, or an error in the client's own shape."""
        course, fields = _Course(self.clock.monotonic()), inbound.fields
        try:
            caller = self.tenants.identify(fields)
            course.gauge = gauge = await self.gauging.gauge(inbound, fields, caller, course.started)
            reply = await self._ask(inbound, course, gauge)
        except AccordionError as error:
            return self._refuse(inbound, fields, course, error)
        except BaseException as reason:
            self._left(inbound, fields, course, reason)
            raise
        gauge, course.status = course.gauge, reply.status
        settle = partial(self._settle, inbound, fields, course)
        dialect = gauge.dialect if gauge.place is not None and not gauge.counting else None
        store = partial(self._store, course) if reply.status < 400 and self.history.is_needed(gauge) else None
        body = relay(reply, dialect, course, self.clock, inbound.request_id, settle, store)
        await anext(body)  # Only what has begun lets go of the reply when it is closed.
        return Outbound(reply.status, with_ours(reply.headers, self._headers(gauge)), body)

    async def _ask(self, inbound: Inbound, course: _Course, gauge: Gauge) -> UpstreamReply:
        """Folds where that is decided, and sends; once more where the provider says that it did not fit, or refuses
        what was put together. `course` always holds what was sent last."""
        if gauge.decision.action == "resend" and gauge.place is not None:
            raise ThreadGone(gauge.place.conversation.previous or "", gauge.decision.reason)
        asker = partial(self.sending.asker, inbound)
        began = self.clock.monotonic()
        course.gauge = gauge = await self.completing.fold(self.folding, inbound, gauge, asker)
        if gauge.seen is not None and gauge.seen.triggered:
            course.folding = self.clock.monotonic() - began
        if gauge.decision.action == "refuse" and gauge.window is not None:
            raise ContextOverflow(
                gauge.utilization.tokens, gauge.window.usable_input, param=gauge.dialect.listing,
                failure=gauge.seen.reason if gauge.seen is not None and gauge.seen.state == "failed" else "",
            )  # fmt: skip
        if gauge.counting and gauge.route.family == "litellm":
            # Nobody can be asked; what the gauge says is the best that is known.
            return Told(b'{"input_tokens":%d}' % gauge.utilization.tokens)
        course.gauge = gauge = await self._continued(gauge)
        if self.retrieving is not None and gauge.place is None:
            kept = await self.retrieving.retrieved(inbound, gauge, self.sending.send)
            if kept is not None:
                return kept
        if gauge.place is None or gauge.counting:
            return await self.sending.send(inbound, gauge)
        start = await self._opened(inbound, course, gauge, asker)
        gauge = course.gauge
        if start.overflow is None and (gauge.asked is None or start.reply.status != 400):
            return await self._unfolded(inbound, gauge, course, start.reply) if gauge.offered else start.reply
        try:
            began = self.clock.monotonic()
            again = await self.completing.again(self.folding, inbound, gauge, asker, start.overflow)
            course.folding += self.clock.monotonic() - began
        except BaseException:
            await start.reply.close()
            raise
        if again is None and (not gauge.thread or start.overflow is None or start.overflow.guessed):
            return start.reply
        await start.reply.close()
        if again is None:
            raise ThreadGone(gauge.thread, "the provider said that it does not fit its window")
        course.gauge = again = await self._continued(again)
        if start.overflow is None:
            return (await self._opened(inbound, course, again, asker, whole=False)).reply
        return await self._unfolded(inbound, again, course, await self.sending.send(inbound, again))

    async def _opened(
        self, inbound: Inbound, course: _Course, gauge: Gauge, asker: Askers, *, whole: bool = True
    ) -> Opened:
        """Sends a request, and as often as the provider says that something is missing behind a response's id, once
        more with that put in; `whole`: the whole history may be. Gives the reply, whose beginning was read."""
        start = await opened(await self.sending.send(inbound, gauge), gauge.dialect, near=gauge.near)
        for _ in range(_MENDED):
            if start.reply.status != 400 or not start.refusal:
                break
            mended = await self.completing.mended(self.folding, inbound, gauge, asker, start.refusal, whole=whole)
            if mended is None:
                break
            await start.reply.close()
            course.gauge = gauge = mended
            start = await opened(await self.sending.send(inbound, gauge), gauge.dialect, near=gauge.near)
        return start

    async def _continued(self, gauge: Gauge) -> Gauge:
        """The request behind what was read back in the reply that it goes on from."""
        return gauge if self.unfolding is None else await self.unfolding.continued(gauge)

    async def _unfolded(self, inbound: Inbound, gauge: Gauge, course: Course, reply: UpstreamReply) -> UpstreamReply:
        """The reply in which the model's calls of our own tool are answered."""
        if self.unfolding is None:
            return reply
        return await self.unfolding.spliced(reply, gauge, partial(self.sending.send, inbound), course)

    def reads(self, method: str, path: str, content_type: bytes) -> bool:
        """Whether a request is one that is looked into; its body must then be whole."""
        if method != "POST":
            return False
        known = path in self.gauging.dialects or path in self.gauging.counters
        return known or (bool(self.gauging.router.models) and b"json" in content_type)

    def admits(self, inbound: Inbound) -> bool:
        """Whether its caller may enter at all."""
        try:
            self.tenants.identify(inbound.fields)
        except Unauthorized:
            return False
        return True

    async def upgrade(self, inbound: Inbound, ask: Callable[[UpstreamRequest], Awaitable[T]]) -> T | Outbound:
        """What `ask` makes of an upgrade to a WebSocket, as it leaves; or an error in the client's own shape. Only the
        opening is recorded."""
        course, fields = _Course(self.clock.monotonic()), inbound.fields
        try:
            caller = self.tenants.identify(fields)
            course.gauge = gauge = await self.gauging.gauge(inbound, fields, caller, course.started)
            if not self.relays and inbound.path in self.gauging.dialects:
                raise UpgradeRefused("WebSockets are switched off here (`responses_websocket`). Ask over HTTP.")
            answer = await ask(self.sending.outgoing(inbound, gauge))
        except AccordionError as error:
            return self._refuse(inbound, fields, course, error)
        except BaseException as reason:
            self._left(inbound, fields, course, reason)
            raise
        course.status = answer.status if isinstance(answer, Outbound) else 101
        self._settle(inbound, fields, course, ReplySeen())
        return answer

    def refuse(self, inbound: Inbound, error: AccordionError) -> Outbound:
        """The answer to a request that could not even be taken in."""
        return self._refuse(inbound, inbound.fields, _Course(self.clock.monotonic()), error)

    # -- answering ---------------------------------------------------------------

    def _refuse(
        self, inbound: Inbound, fields: Mapping[bytes, bytes], course: _Course, error: AccordionError
    ) -> Outbound:
        """An error of ours: in the client's own shape, with a request id, and in the ledger."""
        course.status, course.error = error.status, error.code or error.type
        out = self.gauging.speaks(inbound.path, fields).refusal(error, inbound.request_id)
        if course.gauge is None:
            return out
        self._settle(inbound, fields, course, ReplySeen())
        return replace(out, headers=out.headers + self._headers(course.gauge))

    def _left(self, inbound: Inbound, fields: Mapping[bytes, bytes], course: _Course, reason: BaseException) -> None:
        """The client went away before the provider answered, or the proxy is being stopped."""
        told = stopped(reason)
        course.status, course.error = (told.status, told.code) if told else (499, "client_disconnected")
        self._settle(inbound, fields, course, ReplySeen())

    def _headers(self, gauge: Gauge) -> Headers:
        return headers_of(gauge, store_available=self.gauging.sessions.store.available)

    # -- remembering -------------------------------------------------------------

    async def _store(self, course: _Course, seen: ReplySeen) -> None:
        """Stores what a later request needs of the response."""
        if course.gauge is not None:
            await self.history.store(course.gauge, seen, _first(course, seen), course.ids, course.weave)
            course.stored = True

    def _settle(self, inbound: Inbound, fields: Mapping[bytes, bytes], course: _Course, seen: ReplySeen) -> None:
        """Records the exchange, and learns from what the provider reported. Nobody waits for it, and its failure is
        nobody's."""
        if course.gauge is None:
            return
        try:
            self._record(inbound, fields, course.gauge, course, seen)
        except Exception:
            _log.exception("an exchange could not be recorded", extra={"request_id": inbound.request_id})

    def _record(
        self, inbound: Inbound, fields: Mapping[bytes, bytes], gauge: Gauge, course: _Course, seen: ReplySeen
    ) -> None:
        place = None if gauge.counting else gauge.place
        exchange = Exchange(
            at=self.clock.now(),
            request_id=inbound.request_id,
            session=place.session.id if place else "",
            model=gauge.place.conversation.model[:LONGEST_NAME] if gauge.place else "",
            upstream=gauge.route.name,
            path=inbound.path,
            stream=place.conversation.stream if place else False,
            status=course.status,
            messages=len(place.conversation.messages) if place else 0,
            utilization=gauge.utilization,
            decision=f"not read: it holds {gauge.unread}" if gauge.unread else gauge.decision.reason,
            usage=seen.usage,
            finish=seen.finish,
            error=course.error or ("provider_error" if seen.error or course.status >= 400 else ""),
            first_byte=course.first_byte - course.started if course.first_byte else 0.0,
            duration=self.clock.monotonic() - course.started,
            compaction=gauge.seen,
            folding=course.folding,
            unfolded=course.unfolded,
            recalled=gauge.recalled,
            agent=agent_of(gauge.seated),
        )
        tenant, traceparent = gauge.caller.tenant, fields.get(b"traceparent", b"").decode("latin-1")
        if place is None or self.erasures.since(gauge.caller.space, place.session.id, course.started):
            # Of a session that was erased while the request was under way, nothing is kept.
            self.journal.record(tenant, None, "", exchange, traceparent)
            return
        own = _first(course, seen)
        session = learnt(self.gauging, gauge, place, course.status, own)
        fold = gauge.fold
        self._keep(gauge, place, session.id)
        if (seen.items or self.named.waiting) and gauge.foldable:
            self.named.said(gauge.caller.space, session.id, place.conversation, seen.items, course.started)
        if not course.stored and course.status < 400 and (place.conversation.kept or course.weave is not None):
            if self.history.is_needed(gauge):
                # The client has gone before the end, and may come back.
                self.gauging.tasks.spawn(self._store(course, seen), "store a response")
            else:
                self.history.note(gauge, seen, own, course.ids)
        session = self.journal.record(tenant, session, place.row, exchange, traceparent) or session
        self.gauging.sessions.settle(place, session, own.read, gauge.counted, fold)

    def _keep(self, gauge: Gauge, place: Place, session: str) -> None:
        """Keeps what others may read of the request: the results in it, what was said, and what a fold took out."""
        seated, sharing = gauge.seated, self.gauging.seating.sharing
        if seated is not None and seated.taken and sharing is not None:
            sharing.keep(gauge.dialect.name, gauge.caller, seated.seat, seated.client, seated.taken, seated.owners)
        self.history.record(gauge, place)
        if self.remembering is not None and gauge.seen is not None and gauge.seen.state == "folded":
            made = gauge.folded.compaction if gauge.folded is not None else None
            if made is not None:
                self.remembering.folded(gauge.caller.space, session, made.covered, gauge.controls.project)


class _Course(Course):
    """With how far the request has come: what was known of it last. None before it was gauged."""

    gauge: Gauge | None = None
    stored: bool = False
    """Whether what a later request needs of the response was stored."""


def _first(course: Course, seen: ReplySeen) -> ReplySeen:
    """What was understood of a response, with the usage of its first round, which is that of the request as it was
    measured; the client is told of the last."""
    return seen if course.unfolded is None else replace(seen, usage=course.unfolded.first)
