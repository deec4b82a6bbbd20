"""Passes WebSocket upgrades on. Only the opening request is recorded."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import msgspec

from accordion.accounting.key_limits import KeyLimiter
from accordion.model.errors import AccordionError, BadRequest, UpgradeRefused
from accordion.model.http import Inbound, Outbound
from accordion.model.ports import Clock, UpstreamRequest
from accordion.model.records import ObservedResponse
from accordion.pipeline.receive import Receiver
from accordion.pipeline.record import RequestProgress
from accordion.pipeline.respond import Responder
from accordion.pipeline.send import Sender
from accordion.sessions.client_metadata import read_client_metadata, read_client_name
from accordion.sessions.tenants import Tenants

Answer = TypeVar("Answer")
MAX_UNREAD_CLIENTS = 100

_log = logging.getLogger("accordion")


class UpgradePipeline(msgspec.Struct, frozen=True):
    """Identifies the caller of an upgrade, finds its route, and passes it on."""

    clock: Clock
    tenants: Tenants
    key_limiter: KeyLimiter
    receiver: Receiver
    sender: Sender
    responder: Responder
    relays_model_sockets: bool = True
    """Whether WebSockets are relayed for endpoints that are read when they are used over HTTP."""
    unread_clients: set[tuple[str, str]] = msgspec.field(default_factory=set)
    """Tenants and clients whose WebSockets have been reported."""

    async def __call__(
        self, inbound: Inbound, connect: Callable[[UpstreamRequest], Awaitable[Answer]]
    ) -> Answer | Outbound:
        """Passes an upgrade to `connect`; returns its result, or an error in the client's own format."""
        progress = RequestProgress(self.clock.monotonic(), inbound=inbound)
        try:
            caller = self.tenants.identify(inbound.fields)
            if caller.key is not None and caller.key.limits:
                await self.key_limiter.admit(caller.key.id, caller.tenant.name, caller.key.limits)
            progress.request = request = await self.receiver.pass_through(inbound, caller, progress.started_at)
            if not self.relays_model_sockets and inbound.path in self.receiver.protocols:
                raise UpgradeRefused("WebSockets are switched off here (`responses_websocket`). Ask over HTTP.")
            if caller.has_day_limit and inbound.path in self.receiver.protocols:
                raise UpgradeRefused(
                    "This proxy key has a limit for each day, which is counted over HTTP. Ask over HTTP."
                )
            answer = await connect(self.sender.build_upstream_request(request))
        except AccordionError as error:
            return self.responder.refuse(progress, error)
        except BaseException as reason:
            self.responder.record_interruption(progress, reason)
            raise
        progress.status = answer.status if isinstance(answer, Outbound) else 101
        if progress.status == 101 and inbound.path in self.receiver.protocols:
            self._warn_unread(inbound, caller.tenant.name)
        self.responder.recorder.record(progress, ObservedResponse())
        return answer

    def _warn_unread(self, inbound: Inbound, tenant: str) -> None:
        """Warns once for each tenant and client that what it sends is not read."""
        client, session = read_client_name(inbound.fields.get(b"user-agent", b"")), ""
        # A malformed header is no reason to close a WebSocket.
        with suppress(BadRequest):
            session = read_client_metadata(inbound.fields, {}).session
        key = (tenant, client)
        if key in self.unread_clients or len(self.unread_clients) >= MAX_UNREAD_CLIENTS:
            return
        self.unread_clients.add(key)
        _log.warning(
            "session %s (model not read): %s uses a WebSocket, which is relayed without being measured or compacted. "
            "Set server.responses_websocket to false, and the client uses HTTP",
            session or "without a name",
            client or "a client",
            extra={"request_id": inbound.request_id},
        )
