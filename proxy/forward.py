"""One request, from the client's bytes to the provider's and back.

A request comes in through a face; its dialect reads the bytes into a Conversation; identity finds the Session and
accounting measures it (gauge.py); the very same bytes go on; upstream sends, and the reply is relayed while a tap
listens (relay.py); the journal records and learns.

Forwarding is a promise: whatever fails on the way to knowing more about a request, the request itself goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from proxy.accounting.journal import Journal
from proxy.core.errors import AccordionError, BadRequest, Unauthorized
from proxy.core.http import Inbound, Outbound
from proxy.core.ports import Clock, Headers, Translator, Upstream, UpstreamReply, UpstreamRequest
from proxy.core.records import Exchange, ReplySeen
from proxy.dialects.spans import with_model
from proxy.gauge import Gauge, Gauging
from proxy.identity.tenants import CREDENTIALS, Tenants
from proxy.relay import Course, relay

_log = logging.getLogger("accordion")


@dataclass(frozen=True, slots=True)
class Forward:
    """The one way through the house. Holds the rooms it passes, and no state of its own."""

    tenants: Tenants
    gauging: Gauging
    upstream: Upstream
    translator: Translator
    journal: Journal
    clock: Clock

    async def __call__(self, inbound: Inbound) -> Outbound:
        """Forwards a request; gives the provider's answer, or an error in the client's own shape."""
        course, fields, gauge = Course(self.clock.monotonic()), inbound.fields, None
        try:
            caller = self.tenants.identify(fields)
            gauge = await self.gauging.gauge(inbound, fields, caller)
            reply = await self._send(inbound, gauge)
        except AccordionError as error:
            return self._refuse(inbound, fields, gauge, course, error)
        except BaseException:
            # The client went away before the provider answered.
            if gauge is not None:
                course.status, course.error = 499, "client_disconnected"
                self._settle(inbound, fields, gauge, course, ReplySeen())
            raise
        course.status = reply.status
        settle = partial(self._settle, inbound, fields, gauge, course)
        dialect = gauge.dialect if gauge.place is not None else None
        body = relay(reply, dialect, course, self.clock, inbound.request_id, settle)
        return Outbound(reply.status, reply.headers + self._headers(gauge), body)

    def reads(self, method: str, path: str, content_type: bytes) -> bool:
        """Whether a request is one that is looked into; its body must then be whole."""
        if method != "POST":
            return False
        return path in self.gauging.dialects or (bool(self.gauging.router.models) and b"json" in content_type)

    def admits(self, inbound: Inbound) -> bool:
        """Whether its caller may enter at all."""
        try:
            self.tenants.identify(inbound.fields)
        except Unauthorized:
            return False
        return True

    async def upgrade(self, inbound: Inbound) -> UpstreamRequest:
        """Where an upgrade to a WebSocket goes. Raises what is wrong with it."""
        fields = inbound.fields
        caller = self.tenants.identify(fields)
        return self.outgoing(inbound, await self.gauging.gauge(inbound, fields, caller))

    def refuse(self, inbound: Inbound, error: AccordionError) -> Outbound:
        """The answer to a request that could not even be taken in."""
        return self._refuse(inbound, inbound.fields, None, Course(self.clock.monotonic()), error)

    # -- sending -----------------------------------------------------------------

    async def _send(self, inbound: Inbound, gauge: Gauge) -> UpstreamReply:
        if gauge.route.ambient and not (gauge.caller.keyed or gauge.caller.local):
            raise Unauthorized(
                f"Model {gauge.route.name!r} is asked in this machine's own name, which only callers with a proxy key "
                "may use: configure proxy_keys and send one."
            )
        if gauge.route.family == "litellm" and not gauge.plain and self.reads(inbound.method, inbound.path, b""):
            raise BadRequest(
                "The body could not be read, which a translated model needs. Send valid JSON.", param="body"
            )
        if gauge.route.family == "litellm" and gauge.plain:
            credential = self._own_key(gauge) or gauge.caller.credential
            return await self.translator.send(gauge.dialect.name, gauge.plain, gauge.route, credential)
        return await self.upstream.send(self.outgoing(inbound, gauge))

    def outgoing(self, inbound: Inbound, gauge: Gauge) -> UpstreamRequest:
        """The request as it leaves: the very same, but for our own headers, a model's alias and a model's own key."""
        route, body = gauge.route, inbound.body
        headers = tuple(pair for pair in inbound.headers if not pair[0].startswith(b"x-accordion-"))
        if gauge.caller.keyed:
            headers = tuple(pair for pair in headers if not (pair[0] in CREDENTIALS and self.tenants.knows(pair[1])))
        if key := self._own_key(gauge):
            headers = _with_key(headers, route.family, key)
        if route.extra_headers:
            extra = tuple((name.lower().encode(), value.encode()) for name, value in route.extra_headers)
            headers = _without(headers, *(name for name, _ in extra)) + extra
        if route.model is not None and isinstance(body, bytes):
            # A body whose encoding was undone to be read goes on without it: another model's name cannot be written in.
            body = with_model(gauge.plain or body, route.model)
            headers = _without(headers, b"content-length", *([b"content-encoding"] if gauge.plain else []))
        target = f"{inbound.path}?{inbound.query}" if inbound.query else inbound.path
        return UpstreamRequest(inbound.method, self.gauging.router.url(route, target), headers, body)

    def _own_key(self, gauge: Gauge) -> str:
        """The model's own key, for who presented a proxy key; empty where the caller's own credential goes on."""
        if not gauge.caller.keyed:
            return ""
        if not gauge.route.api_key and not gauge.caller.credential and not gauge.route.ambient:
            raise Unauthorized(
                f"The proxy key was accepted, but no provider key is configured for {gauge.route.name!r}: set its "
                "api_key in config.yaml, or send the proxy key as x-accordion-key and the provider's as usual.",
                code="no_provider_key",
            )
        return gauge.route.api_key

    # -- answering ---------------------------------------------------------------

    def _refuse(
        self,
        inbound: Inbound,
        fields: Mapping[bytes, bytes],
        gauge: Gauge | None,
        course: Course,
        error: AccordionError,
    ) -> Outbound:
        """An error of ours: in the client's own shape, with a request id, and in the ledger."""
        course.status, course.error = error.status, error.code or error.type
        dialect = self.gauging.speaks(inbound.path, fields)
        named = b"request-id" if dialect is self.gauging.anthropic else b"x-request-id"
        body = dialect.error(error, inbound.request_id)
        headers: Headers = (
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (named, inbound.request_id.encode()),
        )
        if gauge is not None:
            self._settle(inbound, fields, gauge, course, ReplySeen())
            headers += self._headers(gauge)
        return Outbound(error.status, headers, body)

    def _headers(self, gauge: Gauge) -> Headers:
        """What every response says of the window."""
        store = () if self.gauging.sessions.store_available else ((b"x-accordion-store", b"unavailable"),)
        if gauge.place is None:
            return store
        used = gauge.utilization
        return (
            (b"x-accordion-session", gauge.place.session.id.encode()),
            (b"x-accordion-window", b"%d" % used.window),
            (b"x-accordion-tokens", b"%d" % used.tokens),
            (b"x-accordion-utilization", b"%.4f" % used.ratio),
            *store,
        )

    # -- remembering -------------------------------------------------------------

    def _settle(
        self, inbound: Inbound, fields: Mapping[bytes, bytes], gauge: Gauge, course: Course, seen: ReplySeen
    ) -> None:
        """Records the exchange, and learns from what the provider reported. Nobody waits for it, and its failure is
        nobody's."""
        try:
            self._record(inbound, fields, gauge, course, seen)
        except Exception:
            _log.exception("an exchange could not be recorded", extra={"request_id": inbound.request_id})

    def _record(
        self, inbound: Inbound, fields: Mapping[bytes, bytes], gauge: Gauge, course: Course, seen: ReplySeen
    ) -> None:
        place, ended = gauge.place, self.clock.monotonic()
        session = self.gauging.learn(gauge, place, course.status, seen) if place else None
        failed = "provider_error" if seen.error or course.status >= 400 else ""
        exchange = Exchange(
            at=self.clock.now(),
            request_id=inbound.request_id,
            session=session.id if session else "",
            model=place.conversation.model if place else "",
            upstream=gauge.route.name,
            path=inbound.path,
            stream=place.conversation.stream if place else False,
            status=course.status,
            messages=len(place.conversation.messages) if place else 0,
            utilization=gauge.utilization,
            decision=gauge.decision.reason,
            usage=seen.usage,
            finish=seen.finish,
            error=course.error or failed,
            first_byte=max(0.0, course.first_byte - course.started),
            duration=ended - course.started,
        )
        traceparent = fields.get(b"traceparent", b"").decode("latin-1")
        session = self.journal.record(gauge.caller.tenant, session, place.row if place else "", exchange, traceparent)
        if place is not None and session is not None:
            reported = seen.usage.input if seen.usage else 0
            self.gauging.sessions.settle(place, session, reported, gauge.counted)


def _without(headers: Headers, *names: bytes) -> Headers:
    return tuple(pair for pair in headers if pair[0] not in names)


def _with_key(headers: Headers, family: str, key: str) -> Headers:
    """The headers with the provider's key in place of whatever credential they held."""
    kept = _without(headers, *CREDENTIALS)
    own = (b"x-api-key", key.encode()) if family == "anthropic" else (b"authorization", b"Bearer " + key.encode())
    return (*kept, own)
