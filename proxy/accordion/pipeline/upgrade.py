"""Passes WebSocket upgrades on. Here only the opening request is recorded.

A WebSocket of Responses is read, relayed unread, or refused (`server.responses_websocket`); all others are relayed.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Literal, TypeVar

import msgspec

from accordion.accounting.key_limits import KeyLimiter
from accordion.model.errors import AccordionError, BadRequest, UpgradeRefused
from accordion.model.http import Inbound, Outbound
from accordion.model.ports import Clock, UpstreamRequest
from accordion.model.records import ObservedResponse
from accordion.pipeline.receive import Receiver
from accordion.pipeline.record import ExchangeRecorder, RequestProgress
from accordion.pipeline.respond import Responder
from accordion.pipeline.send import Sender
from accordion.protocols.registry import find_protocol, is_protocol_path
from accordion.sessions.client_metadata import read_client_metadata, read_client_name
from accordion.sessions.tenants import Tenants

Answer = TypeVar("Answer")
ModelSockets = Literal["read", "relay", "refuse"]
"""What is done with WebSockets for endpoints that are read when they are used over HTTP."""
MAX_UNREAD_CLIENTS = 100
_NO_SOCKET_STATUSES = frozenset({400, 404, 405, 426, 501})
"""Statuses with which a provider refuses an upgrade because it has no WebSocket."""

_HTTP_ONLY = Outbound(101, (), b"")

_log = logging.getLogger("accordion")


class UpgradePipeline(msgspec.Struct, frozen=True):
    """Identifies the caller of an upgrade, finds its route, and passes it on."""

    clock: Clock
    tenants: Tenants
    key_limiter: KeyLimiter
    receiver: Receiver
    sender: Sender
    responder: Responder
    recorder: ExchangeRecorder
    model_sockets: ModelSockets = "read"
    unread_clients: set[tuple[str, str]] = msgspec.field(default_factory=set)
    """Tenants and clients whose WebSockets have been reported."""

    def reads(self, inbound: Inbound) -> bool:
        """Returns whether the messages on a WebSocket are read. Only Responses defines such messages."""
        found = find_protocol(inbound.path)
        return self.model_sockets == "read" and found is not None and found[0].name == "responses"

    async def __call__(
        self, inbound: Inbound, connect: Callable[[UpstreamRequest], Awaitable[Answer]]
    ) -> Answer | Outbound:
        """Passes an upgrade to `connect`; returns its result, or an error in the client's own format.

        Returns a response with status 101 if the messages are read and each is sent over HTTP: the provider has no
        WebSocket, or models are configured, so that each message decides where it goes, or the key has a limit of the
        day.
        """
        progress = RequestProgress(self.clock.monotonic(), inbound=inbound)
        try:
            caller = self.tenants.identify(inbound.headers_by_name)
            if caller.key is not None and caller.key.limits:
                await self.key_limiter.admit(caller.key.id, caller.tenant.name, caller.key.limits)
            progress.request = request = await self.receiver.pass_through(inbound, caller, progress.started_at)
            if self.model_sockets == "refuse" and _is_read_over_http(inbound.path):
                raise UpgradeRefused("WebSockets are switched off here (`responses_websocket`). Ask over HTTP.")
            is_read = self.reads(inbound)
            if caller.has_day_limit and not is_read and is_protocol_path(inbound.path):
                raise UpgradeRefused(
                    "This proxy key has a limit for each day, which is counted over HTTP. Ask over HTTP."
                )
            # A message that is no request could be one for the provider, and would not be counted.
            if is_read and (self.receiver.router.models or caller.has_day_limit):
                answer: Answer | Outbound = _HTTP_ONLY
            else:
                answer = await connect(self.sender.build_upstream_request(request))
            if is_read and isinstance(answer, Outbound) and answer.status in _NO_SOCKET_STATUSES:
                answer = _HTTP_ONLY
        except AccordionError as error:
            return self.responder.refuse(progress, error)
        except BaseException as reason:
            self.responder.record_interruption(progress, reason)
            raise
        progress.status = answer.status if isinstance(answer, Outbound) else 101
        if progress.status == 101 and _is_read_over_http(inbound.path) and not is_read:
            self._warn_unread(inbound, caller.tenant.name)
        self.recorder.record(progress, ObservedResponse())
        return answer

    def _warn_unread(self, inbound: Inbound, tenant: str) -> None:
        """Warns once for each tenant and client that what it sends is not read."""
        client, session = read_client_name(inbound.headers_by_name.get(b"user-agent", b"")), ""
        # A malformed header is no reason to close a WebSocket.
        with suppress(BadRequest):
            session = read_client_metadata(inbound.headers_by_name, {}).session
        key = (tenant, client)
        if key in self.unread_clients or len(self.unread_clients) >= MAX_UNREAD_CLIENTS:
            return
        self.unread_clients.add(key)
        _log.warning(
            "session %s (model not read): %s uses a WebSocket, which is relayed without being measured or compacted. "
            "Set server.responses_websocket to read",
            session or "without a name",
            client or "a client",
            extra={"request_id": inbound.request_id},
        )


def _is_read_over_http(path: str) -> bool:
    """Whether a protocol reads the requests that come to a path over HTTP, and a model answers them."""
    found = find_protocol(path)
    return found is not None and not (found[1].is_token_count or found[1].is_compaction)
