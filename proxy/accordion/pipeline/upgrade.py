"""Passes WebSocket upgrades on. Only the opening request is recorded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from accordion.model.errors import AccordionError, UpgradeRefused
from accordion.model.http import Inbound, Outbound
from accordion.model.ports import Clock, UpstreamRequest
from accordion.model.records import ObservedResponse
from accordion.pipeline.receive import Receiver
from accordion.pipeline.record import RequestProgress
from accordion.pipeline.respond import Responder
from accordion.pipeline.send import Sender
from accordion.sessions.tenants import Tenants

Answer = TypeVar("Answer")


class UpgradePipeline(msgspec.Struct, frozen=True):
    """Identifies the caller of an upgrade, finds its route, and passes it on."""

    clock: Clock
    tenants: Tenants
    receiver: Receiver
    sender: Sender
    responder: Responder
    relays_model_sockets: bool = True
    """Whether WebSockets are relayed for endpoints that are read when they are used over HTTP."""

    async def __call__(
        self, inbound: Inbound, connect: Callable[[UpstreamRequest], Awaitable[Answer]]
    ) -> Answer | Outbound:
        """Passes an upgrade to `connect`; returns its result, or an error in the client's own format."""
        progress = RequestProgress(self.clock.monotonic(), inbound=inbound)
        try:
            caller = self.tenants.identify(inbound.fields)
            progress.request = request = await self.receiver.pass_through(inbound, caller, progress.started_at)
            if not self.relays_model_sockets and inbound.path in self.receiver.protocols:
                raise UpgradeRefused("WebSockets are switched off here (`responses_websocket`). Ask over HTTP.")
            answer = await connect(self.sender.build_upstream_request(request))
        except AccordionError as error:
            return self.responder.refuse(progress, error)
        except BaseException as reason:
            self.responder.record_interruption(progress, reason)
            raise
        progress.status = answer.status if isinstance(answer, Outbound) else 101
        self.responder.recorder.record(progress, ObservedResponse())
        return answer
