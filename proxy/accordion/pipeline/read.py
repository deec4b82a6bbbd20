"""The first three steps in a row: receives, identifies and measures a request.

They run for each request. They run again for a history that takes the place of a response id
(history_reconstruction.py), and for a request whose provider turned out to lack what it asks for (retries.py): then
Accordion does the client's edits, or compacts the list.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from accordion.model.errors import BadRequest
from accordion.model.http import Inbound
from accordion.pipeline.identify import Identifier
from accordion.pipeline.measure import Measurer
from accordion.pipeline.receive import Receiver
from accordion.pipeline.request import MeasuredRequest, PassthroughRequest
from accordion.protocols.registry import is_protocol_path
from accordion.sessions.tenants import Caller


class RequestReader(msgspec.Struct, frozen=True):
    """Reads requests up to the decision about them."""

    receiver: Receiver
    identifier: Identifier
    measurer: Measurer

    async def read(
        self,
        inbound: Inbound,
        caller: Caller,
        started_at: float = 0.0,
        session_id: str = "",
        *,
        is_dry_run: bool = False,
    ) -> MeasuredRequest | PassthroughRequest:
        """Receives, identifies and measures a request. Raises AccordionError if it cannot be forwarded at all.

        `session_id` is the session of a list that continues no known one; if it is empty, a new one begins.
        `is_dry_run`: see ReceivedRequest.
        """
        received = await self.receiver.receive(inbound, caller, started_at)
        if isinstance(received, PassthroughRequest):
            return received
        if is_dry_run:
            received = replace(received, is_dry_run=True)
        identified = await self.identifier.identify(received, session_id)
        if isinstance(identified, PassthroughRequest):
            return identified
        return await self.measurer.measure(identified)


def refuse_if_uncountable(request: PassthroughRequest | MeasuredRequest) -> None:
    """Raises BadRequest if the usage of a request cannot be counted, and its proxy key has a limit of the day."""
    if not request.caller.has_day_limit:
        return
    reason, param = "", None
    if isinstance(request, PassthroughRequest):
        if request.is_unreadable:
            reason = (
                f"it holds {request.unread_content}" if request.unread_content else "its body is not of this protocol"
            )
        elif request.inbound.method != "GET" and is_protocol_path(request.inbound.path):
            reason = "its method or its path is not spelled as in the API"
    elif not request.is_token_count and request.protocol.is_background(request.conversation.envelope):
        reason, param = "with `background`, its output comes with later requests", "background"
    if reason:
        text = f"This proxy key has a limit for each day, and this request cannot be counted: {reason}."
        raise BadRequest(text, param=param)
