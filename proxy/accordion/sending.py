"""The request as it leaves: its body, its headers, its key, and by which way it goes."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from msgspec import structs

from accordion.core.errors import BadRequest, Unauthorized, Unreachable
from accordion.core.http import Inbound
from accordion.core.ports import Clock, Headers, Route, Router, Translator, Upstream, UpstreamReply, UpstreamRequest
from accordion.core.summarizing import Asker
from accordion.core.values import replace
from accordion.dialects.naming import named_by, renamed_by, renamed_in
from accordion.gauged import Gauge
from accordion.identity.tenants import CREDENTIALS, Tenants
from accordion.rewriting import without_ours

_NOT_PROCESSED = frozenset({429, 503, 529})
"""Statuses by which a provider refuses a request because of its load (529 is Anthropic's `overloaded_error`)."""

FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0
"""Seconds for which a deployment that could not be reached is tried last; each failure in a row doubles them."""

_log = logging.getLogger("accordion")

_ENCODED = (
    "The model's name cannot be put in place in a body of more than 64 KB with a content encoding. Send it without one."
)


@dataclass(slots=True)
class _Pause:
    """How long a deployment is tried last; `since` and `until` by the monotonic clock."""

    seconds: float
    since: float
    until: float


class DeploymentPauses:
    """Which deployments could not be reached a moment ago. They are tried last, not left out: perhaps the others cannot
    be reached either."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pauses: dict[str, _Pause] = {}

    def ordered(self, routes: Sequence[Route]) -> list[Route]:
        """The deployments in the order in which a request is to try them."""
        if not self._pauses:
            return list(routes)
        return sorted(routes, key=self._is_paused)

    def now(self) -> float:
        """Seconds, by the monotonic clock."""
        return self._clock.monotonic()

    def reached(self, route: Route) -> None:
        """A deployment answered."""
        self._pauses.pop(_place(route), None)

    def failed(self, route: Route, began: float, error: Unreachable) -> None:
        """A deployment could not be reached by a request that tried since `began`."""
        place, now = _place(route), self.now()
        last = self._pauses.get(place)
        if last is not None and began <= last.since:
            # It tried at the same time as the one that was noted.
            return
        seconds = FIRST_PAUSE if last is None else min(LONGEST_PAUSE, 2 * last.seconds)
        self._pauses[place] = _Pause(seconds, now, now + seconds)
        _log.warning("a deployment of %s is tried last for %g seconds: %s", route.name, seconds, error.message)

    def _is_paused(self, route: Route) -> bool:
        pause, now = self._pauses.get(_place(route)), self.now()
        if pause is None:
            return False
        if now < pause.until:
            return True
        # This request tries it. Others need not, until it is known what came of that.
        pause.until = now + pause.seconds
        return False


def _place(route: Route) -> str:
    """What cannot be reached where a deployment cannot: its server, or its provider."""
    return route.base_url or (route.model or "").partition("/")[0]


@dataclass(frozen=True, slots=True)
class Sending:
    """Sends what was gauged to where its route says."""

    tenants: Tenants
    router: Router
    upstream: Upstream
    translator: Translator
    pauses: DeploymentPauses

    async def send(self, inbound: Inbound, gauge: Gauge) -> UpstreamReply:
        """Sends, and waits for the head of the reply. Raises what is wrong with the request, or with the way.

        Where a model has several deployments, the next is asked if nothing could be sent to one, or it says that it
        did not process the request (`_NOT_PROCESSED`). After a time-out, a cut connection or any other error it may
        have been processed, and perhaps billed: that is not sent again. A body that comes in pieces is sent once.
        """
        if not gauge.route.others:
            return await self._send(inbound, gauge)
        routes = self.pauses.ordered((gauge.route, *gauge.route.others))
        *first, last = routes if isinstance(inbound.body, bytes) else routes[:1]
        for route in first:
            try:
                reply = await self._tried(inbound, gauge, route)
            except Unreachable:
                continue
            if reply.status not in _NOT_PROCESSED:
                return reply
            await reply.close()
        return await self._tried(inbound, gauge, last)

    async def _tried(self, inbound: Inbound, gauge: Gauge, route: Route) -> UpstreamReply:
        """What one of several deployments answers."""
        began = self.pauses.now()
        try:
            reply = await self._send(inbound, structs.replace(gauge, route=route))
        except Unreachable as error:
            self.pauses.failed(route, began, error)
            raise
        self.pauses.reached(route)
        return reply

    async def _send(self, inbound: Inbound, gauge: Gauge) -> UpstreamReply:
        route = gauge.route
        if route.ambient and not (gauge.caller.keyed or gauge.caller.local):
            raise Unauthorized(
                f"Model {route.name!r} uses the credentials of the machine that the proxy runs on. Only callers "
                "with a proxy key may use them: configure proxy_keys and send one."
            )
        if route.family == "litellm":
            if gauge.illegible:
                raise BadRequest(
                    "The body could not be read. This model is reached by translation, which needs valid JSON and no "
                    "more messages than limits.messages_per_request.",
                    param="body",
                )
            if gauge.plain:
                credential = self._own_key(gauge) or gauge.caller.credential
                body = gauge.plain if gauge.sent is None else gauge.sent
                asked = _asked(route, inbound.headers)
                return await self.translator.send(gauge.dialect.name, body, asked, credential, inbound.request_id)
        return await self.upstream.send(self.outgoing(inbound, gauge))

    def outgoing(self, inbound: Inbound, gauge: Gauge) -> UpstreamRequest:
        """The request as it leaves: the very same, but for what was hidden or folded, our own headers, a model's alias
        and a model's own key."""
        route, body, headers, target = gauge.route, inbound.body, self._headers(inbound, gauge), inbound.target
        if route.model is not None and named_by(inbound):
            target = renamed_by(target, route.model)
            return UpstreamRequest(inbound.method, self.router.url(route, target), headers, body)
        kind = b"" if gauge.place is not None or route.model is None else inbound.fields.get(b"content-type", b"")
        if not isinstance(body, bytes):
            if route.model is not None:
                if gauge.plain not in (b"", inbound.start):
                    raise BadRequest(_ENCODED, param="body")
                start = renamed_in(inbound.start, kind, route.model)
                headers, body = _longer(headers, len(start) - len(inbound.start)), _from(start, body)
        elif gauge.rewritten or route.model is not None:
            # A body whose encoding was undone to be read goes on without it.
            body = gauge.plain or body if gauge.sent is None else gauge.sent
            body = body if route.model is None else renamed_in(body, kind, route.model)
            headers = _without(headers, b"content-length", *([b"content-encoding"] if gauge.plain else []))
        return UpstreamRequest(inbound.method, self.router.url(route, target), headers, body)

    def _headers(self, inbound: Inbound, gauge: Gauge) -> Headers:
        route, headers = gauge.route, without_ours(inbound.headers)
        if gauge.caller.keyed:
            headers = tuple([pair for pair in headers if not (pair[0] in CREDENTIALS and self.tenants.knows(pair[1]))])
            if key := self._own_key(gauge):
                headers = _with_key(headers, route.family, key)
        if gauge.offered:
            # A reply in which our tool may be called has to be read.
            headers = (*_without(headers, b"accept-encoding"), (b"accept-encoding", b"identity"))
        if route.extra_headers:
            extra = tuple((name.lower().encode(), value.encode()) for name, value in route.extra_headers)
            headers = _without(headers, *(name for name, _ in extra)) + extra
        return headers

    def asker(self, inbound: Inbound, gauge: Gauge) -> Asker | None:
        """In whose name a summary of this request is asked for; None where nobody's will do."""
        if gauge.place is None or (gauge.route.ambient and not (gauge.caller.keyed or gauge.caller.local)):
            return None
        try:
            headers = self._headers(inbound, gauge)
        except Unauthorized:
            return None
        return Asker(
            tenant=gauge.caller.tenant,
            route=gauge.route,
            dialect=gauge.dialect.name,
            model=gauge.place.conversation.model,
            headers=headers,
            credential=self._own_key(gauge) or gauge.caller.credential,
            keyed=gauge.caller.keyed,
        )

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


def _asked(route: Route, headers: Headers) -> Route:
    """The route with what the client's headers ask of the provider. A model's own header of that name holds."""
    betas = b",".join(value for name, value in headers if name == b"anthropic-beta").decode("latin-1")
    if not betas:
        return route
    return replace(route, extra_headers=(("anthropic-beta", betas), *route.extra_headers))


def _without(headers: Headers, *names: bytes) -> Headers:
    return tuple([pair for pair in headers if pair[0] not in names])


def _longer(headers: Headers, by: int) -> Headers:
    """The headers of a body that has become longer by so many bytes."""
    return tuple((name, b"%d" % (int(value) + by) if name == b"content-length" else value) for name, value in headers)


async def _from(start: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The pieces, with `start` in place of the first."""
    async for _ in pieces:
        yield start
        break
    async for piece in pieces:
        yield piece


def _with_key(headers: Headers, family: str, key: str) -> Headers:
    """The headers with the provider's key in place of whatever credential they held."""
    kept = _without(headers, *CREDENTIALS)
    own = (b"x-api-key", key.encode()) if family == "anthropic" else (b"authorization", b"Bearer " + key.encode())
    return (*kept, own)
