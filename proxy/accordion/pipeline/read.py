"""The first three steps in a row: receives, identifies and measures a request.

They run for each request, and once more for a request that takes a history in place of a response id
(history_reconstruction.py).
"""

from __future__ import annotations

import msgspec

from accordion.model.http import Inbound
from accordion.pipeline.identify import Identifier
from accordion.pipeline.measure import Measurer
from accordion.pipeline.receive import Receiver
from accordion.pipeline.request import MeasuredRequest, PassthroughRequest
from accordion.sessions.tenants import Caller


class RequestReader(msgspec.Struct, frozen=True):
    """Reads requests up to the decision about them."""

    receiver: Receiver
    identifier: Identifier
    measurer: Measurer

    async def read(
        self, inbound: Inbound, caller: Caller, started_at: float = 0.0, session_id: str = ""
    ) -> MeasuredRequest | PassthroughRequest:
        """Receives, identifies and measures a request. Raises AccordionError if it cannot be forwarded at all.

        `session_id` is the session of a list that continues no known one; if it is empty, a new one begins.
        """
        received = await self.receiver.receive(inbound, caller, started_at)
        if isinstance(received, PassthroughRequest):
            return received
        identified = await self.identifier.identify(received, session_id)
        if isinstance(identified, PassthroughRequest):
            return identified
        return await self.measurer.measure(identified)
