"""Several deployments of one model: in which order they are tried."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

from msgspec.structs import replace

from accordion.model.errors import Unreachable
from accordion.model.ports import Route, UpstreamRequest, UpstreamResponse
from accordion.pipeline.send import FIRST_PAUSE, LONGEST_PAUSE
from tests.fakes import FakeReply, FakeRouter, FakeUpstream
from tests.pipeline_setup import CHAT, PipelineSetup

BODY = json.dumps({"model": "smart", "messages": [{"role": "user", "content": "Hello."}]}).encode()


@dataclass
class Servers(FakeUpstream):
    """Servers `a` and `b`, of which those that are `down` cannot be reached; `let` lets a request get that far."""

    down: set[str] = field(default_factory=set)
    let: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, request: UpstreamRequest) -> UpstreamResponse:
        self.requests.append(request)
        await self.let.wait()
        if request.url[7] in self.down:
            raise Unreachable("No connection.")
        return FakeReply()

    def tried(self) -> str:
        """The servers that were asked since the last look, in order."""
        names = "".join(request.url[7] for request in self.requests)
        self.requests.clear()
        return names


def setup(*down: str) -> tuple[PipelineSetup, Servers]:
    servers = Servers(down=set(down))
    servers.let.set()
    a, b = (Route("smart", "openai", f"http://{name}.test/v1") for name in "ab")
    return PipelineSetup(upstream=servers, router=FakeRouter(only=replace(a, fallbacks=(b,)))), servers


async def test_a_deployment_that_cannot_be_reached_is_tried_last_for_a_pause_that_grows():
    made, servers = setup("a")
    pause = FIRST_PAUSE
    while pause < 2 * LONGEST_PAUSE:
        await made.ask(CHAT, BODY)
        assert servers.tried() == "ab"
        made.clock.advance(min(pause, LONGEST_PAUSE) - 0.1)
        await made.ask(CHAT, BODY)
        assert servers.tried() == "b"
        made.clock.advance(0.2)
        pause *= 2


async def test_one_that_answers_again_is_tried_first_again_and_its_next_pause_is_short():
    made, servers = setup("a")
    for _ in range(3):
        await made.ask(CHAT, BODY)
        made.clock.advance(LONGEST_PAUSE)
    servers.down.clear()
    servers.tried()
    await made.ask(CHAT, BODY)
    await made.ask(CHAT, BODY)
    assert servers.tried() == "aa"
    servers.down.add("a")
    await made.ask(CHAT, BODY)
    made.clock.advance(FIRST_PAUSE)
    await made.ask(CHAT, BODY)
    assert servers.tried() == "abab"


async def test_if_no_deployment_is_reachable_each_request_tries_all():
    made, servers = setup("a", "b")
    for _ in range(3):
        await made.ask(CHAT, BODY)
        assert servers.tried() == "ab"


async def test_requests_that_fail_at_once_make_one_pause():
    made, servers = setup("a")
    servers.let.clear()
    work = asyncio.gather(*(made.ask(CHAT, BODY) for _ in range(9)))
    while len(servers.requests) < 9:
        await asyncio.sleep(0)
    servers.let.set()
    await work
    servers.tried()
    made.clock.advance(FIRST_PAUSE)
    await made.ask(CHAT, BODY)
    assert servers.tried() == "ab"


async def test_behind_a_pause_one_request_tries_and_the_others_do_not_wait_for_it():
    made, servers = setup("a")
    await made.ask(CHAT, BODY)
    made.clock.advance(FIRST_PAUSE)
    servers.tried()
    servers.let.clear()
    work = asyncio.gather(*(made.ask(CHAT, BODY) for _ in range(3)))
    while len(servers.requests) < 3:
        await asyncio.sleep(0)
    assert servers.tried() == "abb"
    servers.let.set()
    await work
