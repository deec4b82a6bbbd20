"""Sends a request: chooses the deployment, builds body and headers, and sets the provider's key.

A request is sent directly, or through the translator if the model's provider uses another protocol. If a model has
several deployments, the next is tried after one that cannot be reached or is overloaded.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from msgspec import structs

from accordion.model.errors import BadRequest, Unauthorized, Unreachable
from accordion.model.http import Inbound
from accordion.model.ports import Clock, Headers, Route, Router, Translator, Upstream, UpstreamRequest, UpstreamResponse
from accordion.model.summarizer import SummaryCaller
from accordion.model.values import replace
from accordion.pipeline.request import RequestState
from accordion.pipeline.response_rewriting import strip_proxy_headers
from accordion.protocols.model_name import model_in_target, replace_model_in_body, replace_model_in_target
from accordion.sessions.tenants import CREDENTIAL_HEADERS, Tenants

_OVERLOAD_STATUSES = frozenset({429, 503, 529})
"""Statuses by which a provider refuses a request because of its load (529 is Anthropic's `overloaded_error`)."""

FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0
"""Seconds for which an unreachable deployment is tried last: initial and maximum.

Each further failure in a row doubles the pause.
"""

_log = logging.getLogger("accordion")

_ENCODED_BODY_ERROR = (
    "The model's name cannot be put in place in a body of more than 64 KB with a content encoding. Send it without one."
)


@dataclass(slots=True)
class _Pause:
    """A period in which a deployment is tried last; `since` and `until` by the monotonic clock."""

    seconds: float
    since: float
    until: float


class DeploymentPauses:
    """Remembers which deployments could not be reached recently.

    They are tried last, not left out, since the others may be unreachable as well.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pauses: dict[str, _Pause] = {}

    def ordered(self, routes: Sequence[Route]) -> list[Route]:
        """Returns the deployments in the order in which a request tries them."""
        if not self._pauses:
            return list(routes)
        return sorted(routes, key=self._is_paused)

    def now(self) -> float:
        """Returns seconds by the monotonic clock."""
        return self._clock.monotonic()

    def reached(self, route: Route) -> None:
        """Records that a deployment answered."""
        self._pauses.pop(_place(route), None)

    def failed(self, route: Route, began: float, error: Unreachable) -> None:
        """Records that a request that started at `began` could not reach a deployment."""
        place, now = _place(route), self.now()
        last = self._pauses.get(place)
        if last is not None and began <= last.since:
            # This request ran at the same time as the one that was recorded.
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
        # This request tries it. Others wait with that until the result is known.
        pause.until = now + pause.seconds
        return False


def _place(route: Route) -> str:
    """Returns the server or provider that several deployments may share, and that fails as one."""
    return route.base_url or (route.model or "").partition("/")[0]


@dataclass(frozen=True, slots=True)
class Sender:
    """Sends measured requests along their routes."""

    tenants: Tenants
    router: Router
    upstream: Upstream
    translator: Translator
    pauses: DeploymentPauses

    async def send(self, inbound: Inbound, request: RequestState) -> UpstreamResponse:
        """Sends a request and waits for the head of the response.

        If a model has several deployments, the next is tried if the request could not be sent to one, or if one says
        that it did not process the request (`_OVERLOAD_STATUSES`). After a time-out, a broken connection or any other
        error it may have been processed, and perhaps billed, so it is not sent again. A body that comes in pieces is
        sent only once.

        Raises Unauthorized or BadRequest if the request is at fault, and Unreachable and similar errors of the
        connection.
        """
        if not request.route.others:
            return await self._send(inbound, request)
        routes = self.pauses.ordered((request.route, *request.route.others))
        *first, last = routes if isinstance(inbound.body, bytes) else routes[:1]
        for route in first:
            try:
                reply = await self._tried(inbound, request, route)
            except Unreachable:
                continue
            if reply.status not in _OVERLOAD_STATUSES:
                return reply
            await reply.close()
        return await self._tried(inbound, request, last)

    async def _tried(self, inbound: Inbound, gauge: RequestState, route: Route) -> UpstreamResponse:
        """Sends to one of several deployments, and records whether it was reached."""
        began = self.pauses.now()
        try:
            reply = await self._send(inbound, structs.replace(gauge, route=route))
        except Unreachable as error:
            self.pauses.failed(route, began, error)
            raise
        self.pauses.reached(route)
        return reply

    async def _send(self, inbound: Inbound, request: RequestState) -> UpstreamResponse:
        route = request.route
        if route.ambient and not (request.caller.has_proxy_key or request.caller.is_local):
            raise Unauthorized(
                f"Model {route.name!r} uses the credentials of the machine that the proxy runs on. Only callers "
                "with a proxy key may use them: configure proxy_keys and send one."
            )
        if route.family == "litellm":
            if request.is_unreadable:
                raise BadRequest(
                    "The body could not be read. This model is reached by translation, which needs valid JSON and no "
                    "more messages than limits.messages_per_request.",
                    param="body",
                )
            if request.decoded_body:
                credential = self._provider_key(request) or request.caller.credential
                body = request.decoded_body if request.rewritten_body is None else request.rewritten_body
                asked = _route_with_betas(route, inbound.headers)
                return await self.translator.send(request.protocol.name, body, asked, credential, inbound.request_id)
        return await self.upstream.send(self.build_upstream_request(inbound, request))

    def build_upstream_request(self, inbound: Inbound, request: RequestState) -> UpstreamRequest:
        """Builds the request that is sent to the provider.

        It equals the client's request but for hidden results, compaction, our own headers, a model's alias and a
        model's own key.
        """
        route, body, headers, target = (
            request.route,
            inbound.body,
            self._build_headers(inbound, request),
            inbound.target,
        )
        if route.model is not None and model_in_target(inbound):
            target = replace_model_in_target(target, route.model)
            return UpstreamRequest(inbound.method, self.router.url(route, target), headers, body)
        kind = (
            b""
            if request.session_match is not None or route.model is None
            else inbound.fields.get(b"content-type", b"")
        )
        if not isinstance(body, bytes):
            if route.model is not None:
                if request.decoded_body not in (b"", inbound.start):
                    raise BadRequest(_ENCODED_BODY_ERROR, param="body")
                start = replace_model_in_body(inbound.start, kind, route.model)
                headers, body = (
                    _grow_content_length(headers, len(start) - len(inbound.start)),
                    _replace_first(start, body),
                )
        elif request.is_rewritten or route.model is not None:
            # A body that was decoded to be read is sent without its encoding.
            body = request.decoded_body or body if request.rewritten_body is None else request.rewritten_body
            body = body if route.model is None else replace_model_in_body(body, kind, route.model)
            headers = _remove_headers(
                headers, b"content-length", *([b"content-encoding"] if request.decoded_body else [])
            )
        return UpstreamRequest(inbound.method, self.router.url(route, target), headers, body)

    def _build_headers(self, inbound: Inbound, request: RequestState) -> Headers:
        route, headers = request.route, strip_proxy_headers(inbound.headers)
        if request.caller.has_proxy_key:
            headers = tuple(
                [pair for pair in headers if not (pair[0] in CREDENTIAL_HEADERS and self.tenants.is_proxy_key(pair[1]))]
            )
            if key := self._provider_key(request):
                headers = _set_provider_key(headers, route.family, key)
        if request.tool_name:
            # A response in which our tool may be called must be readable.
            headers = (*_remove_headers(headers, b"accept-encoding"), (b"accept-encoding", b"identity"))
        if route.extra_headers:
            extra = tuple((name.lower().encode(), value.encode()) for name, value in route.extra_headers)
            headers = _remove_headers(headers, *(name for name, _ in extra)) + extra
        return headers

    def build_summary_caller(self, inbound: Inbound, request: RequestState) -> SummaryCaller | None:
        """Returns the caller in whose name a summary of this request is made; None if no credential can be used."""
        if request.session_match is None or (
            request.route.ambient and not (request.caller.has_proxy_key or request.caller.is_local)
        ):
            return None
        try:
            headers = self._build_headers(inbound, request)
        except Unauthorized:
            return None
        return SummaryCaller(
            tenant=request.caller.tenant,
            route=request.route,
            dialect=request.protocol.name,
            model=request.session_match.conversation.model,
            headers=headers,
            credential=self._provider_key(request) or request.caller.credential,
            keyed=request.caller.has_proxy_key,
        )

    def _provider_key(self, request: RequestState) -> str:
        """Returns the model's own key for a caller with a proxy key; empty if the caller's credential is forwarded.

        Raises Unauthorized if there is neither.
        """
        if not request.caller.has_proxy_key:
            return ""
        if not request.route.api_key and not request.caller.credential and not request.route.ambient:
            raise Unauthorized(
                f"The proxy key was accepted, but no provider key is configured for {request.route.name!r}: set its "
                "api_key in config.yaml, or send the proxy key as x-accordion-key and the provider's as usual.",
                code="no_provider_key",
            )
        return request.route.api_key


def _route_with_betas(route: Route, headers: Headers) -> Route:
    """Returns the route with the client's `anthropic-beta` headers.

    A model's own header of that name takes precedence.
    """
    betas = b",".join(value for name, value in headers if name == b"anthropic-beta").decode("latin-1")
    if not betas:
        return route
    return replace(route, extra_headers=(("anthropic-beta", betas), *route.extra_headers))


def _remove_headers(headers: Headers, *names: bytes) -> Headers:
    return tuple([pair for pair in headers if pair[0] not in names])


def _grow_content_length(headers: Headers, added_bytes: int) -> Headers:
    """Returns the headers of a body that has grown by `added_bytes`."""
    return tuple(
        (name, b"%d" % (int(value) + added_bytes) if name == b"content-length" else value) for name, value in headers
    )


async def _replace_first(first: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yields the pieces, with `first` in place of the first one."""
    async for _ in pieces:
        yield first
        break
    async for piece in pieces:
        yield piece


def _set_provider_key(headers: Headers, family: str, key: str) -> Headers:
    """Returns the headers with the provider's key in place of any credential."""
    kept = _remove_headers(headers, *CREDENTIAL_HEADERS)
    own = (b"x-api-key", key.encode()) if family == "anthropic" else (b"authorization", b"Bearer " + key.encode())
    return (*kept, own)
