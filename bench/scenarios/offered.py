"""The cost of a tool that is offered and not called: a stream's events pass one more filter."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import uvloop
from msgspec import structs

from accordion.composition.application import Application
from accordion.config.load import build
from accordion.model.http import Inbound
from accordion.model.records import ObservedResponse
from accordion.pipeline.relay import ExchangeProgress, relay
from accordion.pipeline.request import MeasuredRequest, PreparedRequest
from accordion.protocols.registry import PROTOCOLS
from bench import replies, stages
from bench.conversations import PATHS, small_body
from bench.report import Table
from bench.run_settings import RunSettings
from bench.texts import Texts

EVENTS = 500
PIECE = 65_536
COLUMNS = ("stream", "µs CPU an event without", "with the tool offered", "more", "same bytes, same understanding")


class Stream:
    """A provider's stream that is there already, in these pieces."""

    status, is_delimited = 200, True
    headers = ((b"content-type", b"text/event-stream"),)

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        for piece in self._pieces:
            yield piece

    async def close(self) -> None:
        pass


def run(setting: RunSettings) -> list[Table]:
    return [uvloop.run(_measured(setting.fewer(15, 2)))]


async def _measured(rounds: int) -> Table:
    table = Table(f"A stream of {EVENTS} events, our own tool offered and not called", COLUMNS)
    application = Application(build(b"store: {url: 'memory://'}", {}, {}), {})
    for protocol_name in ("chat", "messages"):
        events = [each.encode() for each in replies.stream_parts(protocol_name, 1_000, EVENTS)]
        whole = b"".join(events)
        burst = [whole[at : at + PIECE] for at in range(0, len(whole), PIECE)]
        for name, pieces in (("in a burst", burst), ("one by one", events)):
            outcomes = [await _passed(application, protocol_name, pieces, offered=offered) for offered in (False, True)]
            same = outcomes[0] == outcomes[1] and outcomes[0][0] == whole
            least = [float("inf")] * 2
            for _ in range(rounds):
                for offered in (False, True):
                    began = time.thread_time()
                    for _ in range(10):
                        await _passed(application, protocol_name, pieces, offered=offered)
                    took = 1e6 * (time.thread_time() - began) / (10 * EVENTS)
                    least[offered] = min(least[offered], took)
                await asyncio.sleep(0)
            more = least[1] - least[0]
            table.rows.append([f"{protocol_name}, {name}", *least, more, "yes" if same else "no"])
    await application.stop()
    table.notes.append(
        "the relay, the observer and the filter alone, without sockets; the least of the rounds, taking turns"
    )
    return table


async def _passed(
    application: Application, protocol_name: str, pieces: Sequence[bytes], *, offered: bool
) -> tuple[bytes, ObservedResponse]:
    """What the client gets of the stream, and what was understood of it."""
    forward, course, seen = application.forward, ExchangeProgress(0.0), list[ObservedResponse]()
    spoken = PROTOCOLS[protocol_name]
    reply: Any = Stream(pieces)
    if offered:
        reply = await forward.tool_loop.run(reply, await _prepare(application, protocol_name), _nobody, course)
    out = [piece async for piece in relay(reply, spoken, course, forward.clock, "r", seen.append)]
    return b"".join(out), seen[0]


async def _prepare(application: Application, protocol_name: str) -> PreparedRequest:
    """A short request to which our tool was offered."""
    inbound = Inbound("POST", PATHS[protocol_name], "", stages.HEADERS, small_body(Texts(1), protocol_name), "r")
    request = await application.forward.reader.read(
        inbound, application.forward.tenants.identify(inbound.headers_by_name)
    )
    assert isinstance(request, MeasuredRequest)
    return structs.replace(await application.forward.prepare(request), tool_name="read_artifact")


async def _nobody(_request: PreparedRequest) -> Any:
    raise RuntimeError("nobody is asked again")
