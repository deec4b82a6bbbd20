"""The fifth step: sends a request. It chooses the deployment, builds body and headers, and sets the provider's key.

A request is sent directly, or through the translator if the model's provider uses another protocol. If a model has
several deployments, the next is tried after one that cannot be reached or is overloaded.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from accordion.model.budget import END_THREAD
from accordion.model.errors import BadRequest, ContextOverflow, ThreadNotFound, Unauthorized, Unreachable
from accordion.model.http import CompleteResponse, derive_idempotency_key, without_query_credentials
from accordion.model.ports import (
    Clock,
    Headers,
    Route,
    Router,
    SummaryCaller,
    Translator,
    Upstream,
    UpstreamRequest,
    UpstreamResponse,
)
from accordion.model.secret_names import is_secret_name
from accordion.pipeline.framed_streams import read_frames
from accordion.pipeline.relay import strip_proxy_headers
from accordion.pipeline.request import (
    IncomingRequest,
    MeasuredRequest,
    PassthroughRequest,
    PreparedRequest,
    SendableRequest,
)
from accordion.protocols.clouds import find_cloud
from accordion.protocols.model_name import model_in_target, replace_model_in_body, replace_model_in_target
from accordion.protocols.odd_json import replace_marks, restore_values
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

    def order(self, routes: Sequence[Route]) -> list[Route]:
        """Returns the deployments in the order in which a request tries them."""
        if not self._pauses:
            return list(routes)
        return sorted(routes, key=self._is_paused)

    def now(self) -> float:
        """Returns seconds by the monotonic clock."""
        return self._clock.monotonic()

    def record_success(self, route: Route) -> None:
        """Records that a deployment answered."""
        self._pauses.pop(_server_name(route), None)

    def record_failure(self, route: Route, started_at: float, error: Unreachable) -> None:
        """Records that a request that started at `started_at` could not reach a deployment."""
        server, now = _server_name(route), self.now()
        last = self._pauses.get(server)
        if last is not None and started_at <= last.since:
            # This request ran at the same time as the one that was recorded.
            return
        seconds = FIRST_PAUSE if last is None else min(LONGEST_PAUSE, 2 * last.seconds)
        self._pauses[server] = _Pause(seconds, now, now + seconds)
        _log.warning("a deployment of %s is tried last for %g seconds: %s", route.name, seconds, error.message)

    def _is_paused(self, route: Route) -> bool:
        pause, now = self._pauses.get(_server_name(route)), self.now()
        if pause is None:
            return False
        if now < pause.until:
            return True
        # This request tries it. Others wait with that until the result is known.
        pause.until = now + pause.seconds
        return False


def _server_name(route: Route) -> str:
    """Returns the server or provider that several deployments may share, and that fails as one."""
    return route.base_url or (route.model or "").partition("/")[0]


class Sender(msgspec.Struct, frozen=True):
    """Sends requests along their routes."""

    tenants: Tenants
    router: Router
    upstream: Upstream
    translator: Translator
    pauses: DeploymentPauses

    async def send(self, request: SendableRequest) -> UpstreamResponse:
        """Sends a request and waits for the head of the response.

        If a model has several deployments, the next is tried if the request could not be sent to one, or if one says
        that it did not process the request (`_OVERLOAD_STATUSES`). After a time-out, a broken connection or any other
        error it may have been processed, and perhaps billed, so it is not sent again. A body that comes in pieces is
        sent only once.

        Raises Unauthorized or BadRequest if the request is at fault, and Unreachable and similar errors of the
        connection.
        """
        if not request.route.fallbacks:
            return await self._send(request)
        routes = self.pauses.order((request.route, *request.route.fallbacks))
        *first, last = routes if isinstance(request.inbound.body, bytes) else routes[:1]
        for route in first:
            try:
                response = await self._send_to_deployment(request, route)
            except Unreachable:
                continue
            if response.status not in _OVERLOAD_STATUSES:
                return response
            await response.close()
        return await self._send_to_deployment(request, last)

    async def _send_to_deployment(self, request: SendableRequest, route: Route) -> UpstreamResponse:
        """Sends to one of several deployments, and records whether it was reached."""
        started_at = self.pauses.now()
        try:
            response = await self._send(replace(request, route=route))
        except Unreachable as error:
            self.pauses.record_failure(route, started_at, error)
            raise
        self.pauses.record_success(route)
        return response

    async def _send(self, request: SendableRequest) -> UpstreamResponse:
        route = request.route
        if not _may_use_route(request):
            raise Unauthorized(
                f"Model {route.name!r} uses the credentials of the machine that the proxy runs on. Only callers "
                "with a proxy key may use them: configure proxy_keys and send one."
            )
        if route.is_translated:
            if isinstance(request, PassthroughRequest) and request.is_unreadable:
                raise BadRequest(
                    "The body could not be read. This model is reached by translation, which needs valid JSON and no "
                    "more messages than limits.messages_per_request.",
                    param="body",
                )
            if request.decoded_body:
                return await self._translate(request)
        response = await self.upstream.send(self.build_upstream_request(request))
        if isinstance(request, PassthroughRequest) or request.frames is None:
            return response
        return read_frames(response, request.frames)

    async def _translate(self, request: SendableRequest) -> UpstreamResponse:
        """Sends a request through the translator, or counts its tokens."""
        if isinstance(request, PreparedRequest) and request.is_token_count:
            # No provider can count these tokens. Our own count is the best available.
            return CompleteResponse(b'{"input_tokens":%d}' % request.utilization.tokens)
        inbound, credential = request.inbound, self._provider_key(request) or request.caller.credential
        body = request.forwarded_body if isinstance(request, PreparedRequest) else request.decoded_body
        if inbound.has_marks:
            body = replace_marks(body)
        route = _route_with_betas(request.route, inbound.headers)
        return await self.translator.send(request.protocol.name, body, route, credential, inbound.request_id)

    def build_upstream_request(self, request: SendableRequest) -> UpstreamRequest:
        """Builds the request that is sent to the provider.

        It equals the client's request but for hidden results, compaction, our own headers, a model's alias and a
        model's own key.
        """
        route, inbound = request.route, request.inbound
        headers, target, body = self._build_headers(request), inbound.target, inbound.body
        if "?" in target and (request.caller.has_proxy_key or self._provider_key(request)):
            target = without_query_credentials(
                target, None if self._provider_key(request) else self.tenants.is_proxy_key
            )
        model = route.model
        if model is not None and model_in_target(inbound):
            target, model = replace_model_in_target(target, model), None
        if not isinstance(body, bytes):
            if model is not None:
                headers, body = _rename_model_in_pieces(request, headers, body, model)
        elif model is not None or _is_rewritten(request):
            body = _build_body(request, body, model)
            if inbound.has_marks:
                body = restore_values(body)
            # A body that was decoded to be read is sent without its encoding.
            encoding = [b"content-encoding"] if request.decoded_body else []
            headers = derive_idempotency_key(_remove_headers(headers, b"content-length", *encoding), body)
        return UpstreamRequest(inbound.method, self.router.url(route, target), headers, body)

    def _build_headers(self, request: IncomingRequest) -> Headers:
        route, headers = request.route, strip_proxy_headers(request.inbound.headers)
        if request.caller.has_proxy_key:
            headers = tuple(
                [pair for pair in headers if not (_may_be_secret(pair[0]) and self.tenants.is_proxy_key(pair[1]))]
            )
        if key := self._provider_key(request):
            headers = (*_remove_headers(headers, *CREDENTIAL_HEADERS), route.key_header(key))
        if isinstance(request, MeasuredRequest) and request.tool_name:
            # A response in which our tool may be called must be readable.
            headers = (*_remove_headers(headers, b"accept-encoding"), (b"accept-encoding", b"identity"))
        if route.extra_headers:
            extra = tuple((name.lower().encode(), value.encode()) for name, value in route.extra_headers)
            headers = _remove_headers(headers, *(name for name, _ in extra)) + extra
        return headers

    def build_summary_caller(self, request: MeasuredRequest) -> SummaryCaller | None:
        """Returns the caller in whose name a summary of this request is made; None if no credential can be used."""
        if not _may_use_route(request):
            return None
        try:
            headers = self._build_headers(request)
        except Unauthorized:
            return None
        target = without_query_credentials(request.inbound.target)
        for name, value in self._find_query_credentials(request):
            is_printable = value.isascii() and value.decode().isprintable()
            if is_printable and not any(other == name for other, _ in headers):
                headers = (*headers, (name, value))
        return SummaryCaller(
            tenant=request.caller.tenant.name,
            route=request.route,
            protocol_name=request.protocol.name,
            model=request.conversation.model,
            headers=headers,
            credential=self._provider_key(request) or request.caller.credential,
            can_use_configured_keys=request.caller.can_use_configured_keys,
            cloud_target=target if find_cloud(request.inbound.path) is not None else "",
        )

    def _find_query_credentials(self, request: IncomingRequest) -> Headers:
        """Returns the credentials for the provider in the query that are sent on, as headers."""
        if self._provider_key(request):
            return ()
        has_proxy_key, is_proxy_key = request.caller.has_proxy_key, self.tenants.is_proxy_key
        return tuple(
            pair for pair in request.inbound.query_credentials if not (has_proxy_key and is_proxy_key(pair[1]))
        )

    def _provider_key(self, request: IncomingRequest) -> str:
        """Returns the model's own key for a caller that can use it; empty if the caller's credential is forwarded.

        Raises Unauthorized if a caller with a proxy key has neither.
        """
        caller, route = request.caller, request.route
        if not caller.can_use_configured_keys:
            return ""
        has_any = route.api_key or caller.credential or route.uses_machine_credentials
        if caller.has_proxy_key and not has_any:
            raise Unauthorized(
                f"The proxy key was accepted, but no provider key is configured for {route.name!r}: set its "
                "api_key in config.yaml, or send the proxy key as x-accordion-key and the provider's as usual.",
                code="no_provider_key",
            )
        return route.api_key


@lru_cache(1_000)
def _may_be_secret(name: bytes) -> bool:
    """Returns whether a header of this name may hold a proxy key."""
    return is_secret_name(name.decode("latin-1"))


def _may_use_route(request: IncomingRequest) -> bool:
    """Returns whether the caller may use the route's credentials."""
    return not request.route.uses_machine_credentials or request.caller.can_use_configured_keys


def _is_rewritten(request: SendableRequest) -> bool:
    """Returns whether a body other than the client's is forwarded."""
    if isinstance(request, PreparedRequest) and request.rewritten_body is not None:
        return True
    return request.visible_request is not None and request.visible_request.is_changed


def _build_body(request: SendableRequest, client_body: bytes, model: str | None) -> bytes:
    """Returns the forwarded body, with the model's name at the provider if `model` is not None."""
    if isinstance(request, PreparedRequest):
        body, kind = request.forwarded_body or client_body, b""
        if request.is_token_count:
            body = request.protocol.token_count_body(body, request.client_conversation.envelope)
    else:
        body, kind = request.decoded_body or client_body, _content_type(request)
    return body if model is None else replace_model_in_body(body, kind, model)


def _rename_model_in_pieces(
    request: SendableRequest, headers: Headers, pieces: AsyncIterator[bytes], model: str
) -> tuple[Headers, AsyncIterator[bytes]]:
    """Puts the model's name at the provider into the beginning of a body that comes in pieces."""
    start = request.inbound.start
    if request.decoded_body not in (b"", start):
        raise BadRequest(_ENCODED_BODY_ERROR, param="body")
    renamed = replace_model_in_body(start, _content_type(request), model)
    return _grow_content_length(headers, len(renamed) - len(start)), _replace_first(renamed, pieces)


def _content_type(request: IncomingRequest) -> bytes:
    return request.inbound.headers_by_name.get(b"content-type", b"")


def raise_if_refused(request: MeasuredRequest) -> None:
    """Raises the error of a request that is not sent.

    Raises ThreadNotFound if the client has to send its history again, and ContextOverflow if the request does
    not fit the window in any form.
    """
    if request.decision.action == END_THREAD:
        raise ThreadNotFound(request.conversation.continued_id, request.decision.reason)
    if request.decision.action == "refuse":
        outcome = request.compaction_outcome if isinstance(request, PreparedRequest) else None
        raise ContextOverflow(
            request.utilization.tokens,
            request.window.usable_input,
            param=request.protocol.messages_field,
            failure=outcome.reason if outcome is not None and outcome.state == "failed" else "",
        )


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
