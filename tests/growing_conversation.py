"""A conversation that grows until it is compacted, and a setup with a small window for it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from accordion.model.http import Outbound
from tests.compaction.compactor_setup import long_history, with_long_results
from tests.fakes import FakeReply, FakeWindows
from tests.histories import History, ProtocolName, Turn, body
from tests.pipeline_setup import PATHS, PipelineSetup, header

_LONG = with_long_results(long_history(16))
COMPACTED_AT = 7
"""The turn whose request is over the trigger in a small window; each has one call, `call_id(turn)`."""


def small_window_setup(**fields: Any) -> PipelineSetup:
    """A setup in which every model has a window of 4,000 tokens, each a word."""
    return PipelineSetup(windows=FakeWindows(4_000), **fields)


def call_id(turn: int) -> str:
    """The id of the call that a turn made."""
    return f"call_{turn:03d}_00"


@dataclass
class GrowingConversation:
    """One conversation in one process."""

    setup: PipelineSetup
    protocol_name: ProtocolName = "chat"
    bodies: list[bytes] = field(default_factory=list)

    async def turn(self, number: int, **headers: str) -> Outbound:
        """Sends the request that begins this turn; returns the response's head. `x_name` is the header `x-name`."""
        history = History((*_LONG.turns[:number], Turn(_LONG.turns[number].said)), _LONG.system)
        answer = {"max_tokens": 10} if self.protocol_name == "messages" else {}
        self.bodies.append(json.dumps(body(history, self.protocol_name, **answer)).encode())
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        out, _ = await self.setup.ask(PATHS[self.protocol_name], self.bodies[-1], named)
        return out

    async def until(self, last: int, **headers: str) -> Outbound:
        """Sends the requests of all turns up to this one; returns the last one's response."""
        for number in range(1, last):
            await self.turn(number, **headers)
        return await self.turn(last, **headers)

    @property
    def forwarded(self) -> bytes:
        """The body that the provider got last."""
        sent = self.setup.upstream.requests[-1].body
        assert isinstance(sent, bytes)
        return sent


def compaction_record(out: Outbound) -> dict[str, Any]:
    """The compaction header of a response; empty if there is none."""
    found: dict[str, Any] = json.loads(header(out, "x-accordion-compaction") or "{}")
    return found


def reply_with_usage(prompt: int) -> FakeReply:
    """A provider's answer that reports usage."""
    usage = {"prompt_tokens": prompt, "completion_tokens": 5, "total_tokens": prompt + 5}
    return FakeReply(pieces=(json.dumps({"choices": [], "usage": usage}).encode(),))
