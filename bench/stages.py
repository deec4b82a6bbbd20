"""What the proxy itself does for a small request, stage by stage: one process, no socket, a provider that is ready.

A stage is done for all requests of a round before the next, so that the clock is read twice a stage and not twice a
request. The store is a fresh SQLite file; its thread is counted where the whole is.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from accordion.compaction.request_controls import read_controls
from accordion.composition.application import Application
from accordion.config.load import build
from accordion.http.proxy_app import new_id
from accordion.model.http import Inbound
from accordion.model.ports import Headers, UpstreamRequest
from accordion.model.records import ObservedResponse
from accordion.model.tenant import ConversationRef
from accordion.pipeline.overflow_probe import probe_overflow
from accordion.pipeline.relay import ExchangeProgress, relay
from accordion.protocols.registry import protocol_for
from accordion.server.interpreter import set_up_interpreter
from accordion.sessions.client_compactions import asks_for_client_compaction
from accordion.sessions.client_metadata import read_client_metadata
from bench import conversations, replies
from bench.texts import Texts

PATH = conversations.PATHS[conversations.CHAT]
SETTLE = 0.2
HEADERS: Headers = (
    (b"host", b"127.0.0.1"),
    (b"authorization", b"Bearer sk-bench"),
    (b"accept", b"*/*"),
    (b"accept-encoding", b"identity"),
    (b"user-agent", b"bench"),
    (b"content-type", b"application/json"),
    (b"content-length", b"280"),
)

Stage = Callable[[int], Any]


class Ready:
    """A provider's reply that is there already."""

    is_delimited = True

    def __init__(self, size: int) -> None:
        self.status = 200
        self.headers, self._body = replies.parts(conversations.CHAT, size)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        yield self._body

    async def close(self) -> None:
        pass


class Provider:
    """Answers every request with what is ready."""

    def __init__(self) -> None:
        self._reply = Ready(280)

    async def send(self, _request: UpstreamRequest) -> Ready:
        return self._reply

    async def close(self) -> None:
        pass


class Rounds:
    """An application, and the stages of its small requests."""

    def __init__(self, application: Application, seed: int) -> None:
        self._house, self._texts = application, Texts(seed)

    async def whole(self, count: int) -> dict[str, float]:
        """Requests one after the other as they are served, in µs of CPU: the event loop's thread, and all threads with
        what is written behind the replies."""
        inbounds = self._inbounds(count)
        await asyncio.sleep(SETTLE)
        began, loop_began = time.process_time(), time.thread_time()
        for inbound in inbounds:
            async for _ in (await self._house.forward(inbound)).body:  # type: ignore[union-attr]  # it is streamed
                pass
        await self._house.outbox.flush()
        loop = time.thread_time() - loop_began
        await asyncio.sleep(SETTLE)
        everything = time.process_time() - began
        return {"event loop": 1e6 * loop / count, "all threads": 1e6 * everything / count}

    async def stages(self, count: int) -> dict[str, float]:
        """Each stage for `count` requests of their own, in µs of the event loop's thread."""
        forward, inbounds = self._house.forward, self._inbounds(count)
        receiver, measurer, reply = forward.reader.receiver, forward.reader.measurer, Ready(280)
        visibility, sessions = forward.reader.identifier.visibility, forward.reader.identifier.sessions
        protocol, caller = protocol_for(PATH, {}), forward.tenants.identify(inbounds[0].headers_by_name)
        bodies: list[bytes] = [inbound.body for inbound in inbounds]  # type: ignore[misc]  # they are whole
        took: dict[str, float] = {}

        async def each(name: str, stage: Stage) -> list[Any]:
            began = time.thread_time()
            done = [stage(at) for at in range(count)]
            if done and isinstance(done[0], Awaitable):
                done = [await one for one in done]
            took[name] = 1e6 * (time.thread_time() - began) / count
            return done

        talks = await each("read the body", lambda at: receiver.body_reader.read(protocol, bodies[at], caller.tenant))
        marks = read_client_metadata(inbounds[0].headers_by_name, talks[0].envelope)
        await each(
            "client metadata and controls",
            lambda at: (
                read_client_metadata(inbounds[at].headers_by_name, talks[at].envelope),
                asks_for_client_compaction(talks[at]),
                read_controls(inbounds[at].headers_by_name),
            ),
        )
        seated = await each(
            "visibility", lambda at: visibility.resolve(protocol, caller, marks, talks[at], bodies[at])
        )  # fmt: skip
        places = await each(
            "session", lambda at: sessions.resolve(caller, marks, talks[at], inbounds[at].request_id)
        )  # fmt: skip
        await each("where it comes from", lambda at: visibility.attach_session(caller, seated[at], places[at]))
        window = measurer.window_table.window(talks[0].model, "openai", "", caller.tenant.name)
        await each("count tokens", lambda at: measurer.list_meter.token_meter.measure(talks[at], window))
        await each(
            "find compactions",
            lambda at: measurer.compactions.find(
                protocol, ConversationRef(caller.tenant, b"", ""), talks[at], check_store=False
            ),
        )
        inbounds = self._inbounds(count)
        measured = await each("all of that, and decide", lambda at: forward.reader.read(inbounds[at], caller))
        prepared = await each("compaction (nothing to do)", lambda at: forward.prepare(measured[at]))
        await each("the request that leaves", lambda at: forward.sender.build_upstream_request(prepared[at]))

        async def back(_at: int) -> None:
            start = await probe_overflow(reply, protocol, is_near_window=False)
            settled: Callable[[ObservedResponse], None] = lambda _seen: None  # noqa: E731
            async for _ in relay(start.response, protocol, ExchangeProgress(0.0), forward.clock, "r", settled):
                pass

        await each("relay and observer", back)
        inbounds = self._inbounds(count)
        outs = await each("all, up to the reply's head", lambda at: forward(inbounds[at]))
        bodies_out: Sequence[Any] = [out.body for out in outs]

        async def finish(at: int) -> None:
            async for _ in bodies_out[at]:
                pass

        await each("the reply's body, and the ledger", finish)
        began = time.thread_time()
        await self._house.outbox.flush()
        took["encode what is written (this round's)"] = 1e6 * (time.thread_time() - began) / (3 * count)
        return took

    def _inbounds(self, count: int) -> list[Inbound]:
        bodies = (conversations.small_body(self._texts, conversations.CHAT) for _ in range(count))
        return [Inbound("POST", PATH, "", HEADERS, body, new_id()) for body in bodies]


async def measured(rounds: int, count: int) -> tuple[dict[str, float], dict[str, float]]:
    """The stages and the whole, each figure the least of the rounds, in µs a request."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        config = f"store: {{url: 'sqlite:///{Path(folder) / 'accordion.db'}'}}\n"
        application = Application(build(config.encode(), {}, {}), {}, connect=lambda _: Provider())
        set_up_interpreter()
        await application.start()
        await asyncio.sleep(1.0)
        bench = Rounds(application, 11)
        await bench.whole(count)
        stages, whole = [], []
        for _ in range(rounds):
            whole.append(await bench.whole(count))
            stages.append(await bench.stages(count))
        await application.stop()
    return _least(stages), _least(whole)


def _least(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: min(each[name] for each in rounds) for name in rounds[0]}


if __name__ == "__main__":
    import json

    import uvloop

    print(json.dumps(uvloop.run(measured(8, 300))))
