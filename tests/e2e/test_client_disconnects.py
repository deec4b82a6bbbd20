"""A client that goes away ends the provider's work; the ledger says why."""

import asyncio
import os
from typing import Any

import pytest

from tests.e2e.protocol_samples import CHAT
from tests.e2e.proxy_api import get_exchanges, get_page, sum_metric, wait_until
from tests.e2e.raw_client import connected
from tests.loopback import Answer, Recorded, wait_until_still
from tests.proxy_process import Proxy

SOON = 30.0
"""Seconds within which the provider must notice. It takes a hundredth of that; a time-out would take minutes."""


async def left(proxy: Proxy, label: str) -> list[dict[str, Any]]:
    """The exchanges of a label, once there are some."""
    found: list[dict[str, Any]] = await wait_until(lambda: get_exchanges(proxy, label))
    return found


async def waits(request: Recorded, answer: Answer) -> None:
    await answer.until_gone()


def streams(first: bytes) -> Any:
    async def script(request: Recorded, answer: Answer) -> None:
        await answer.head(200, [("Content-Type", "text/event-stream")], chunked=True)
        await answer.chunk(first)
        await answer.until_gone()

    return script


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_before_the_head(proxy: Proxy, stream: bool):
    label = f"before-head-{stream}"
    async with proxy.provider(waits) as provider:
        async with connected(proxy) as client:
            await client.ask("POST", CHAT.path, [("x-session-id", label)], CHAT.body("Gone?", stream=stream))
            await provider.until(lambda: provider.answers)
            client.leave()
        await asyncio.wait_for(provider.all_gone(), SOON)
    (exchange,) = await left(proxy, label)
    assert (exchange["error"], exchange["status"]) == ("client_disconnected", 499)


@pytest.mark.parametrize("quick", [True, False], ids=["at once", "later"])
async def test_in_the_middle_of_a_stream(proxy: Proxy, quick: bool):
    label = f"mid-stream-{quick}"
    first = CHAT.events()[0]
    async with proxy.provider(streams(first)) as provider:
        async with connected(proxy) as client:
            await client.ask("POST", CHAT.path, [("x-session-id", label)], CHAT.body("Stream.", stream=True))
            assert await anext(client.pieces(await client.head())) == first
            if not quick:
                await asyncio.sleep(0.5)
            client.leave()
        await asyncio.wait_for(provider.all_gone(), SOON)
    (exchange,) = await left(proxy, label)
    assert (exchange["error"], exchange["status"]) == ("client_disconnected", 200)


@pytest.mark.parametrize("quick", [True, False], ids=["at once", "later"])
@pytest.mark.parametrize("how", ["end", "reset"])
async def test_while_another_request_of_its_waits_for_its_turn(proxy: Proxy, quick: bool, how: str):
    label = f"in-line-{quick}-{how}"
    async with proxy.provider(waits) as provider:
        async with connected(proxy) as client:
            await client.ask("POST", CHAT.path, [("x-session-id", label)], CHAT.body("First."))
            await provider.until(lambda: provider.answers)
            if not quick:
                await asyncio.sleep(0.5)
            await client.ask("POST", CHAT.path, [], CHAT.body("Behind it."))
            await asyncio.sleep(0.05)
            client.leave() if how == "end" else client.reset()
        await asyncio.wait_for(provider.all_gone(), SOON)
    assert len(provider.requests) == 1
    (exchange,) = await left(proxy, label)
    assert (exchange["error"], exchange["status"]) == ("client_disconnected", 499)


@pytest.mark.parametrize("answered", [False, True], ids=["", "while it answers"])
async def test_in_the_middle_of_an_upload_that_the_provider_does_not_take(proxy: Proxy, answered: bool):
    """Nobody reads what the client sends then, and so nobody would see that it has gone."""

    async def script(request: Recorded, answer: Answer) -> None:
        if answered:
            await answer.head(200, [("Content-Type", "text/event-stream")], chunked=True)
        while True:
            await asyncio.sleep(0.05)
            if answered:
                await answer.chunk(b"data: {}\n\n")

    async def upload() -> None:
        for _ in range(600):
            await client.send(piece)
            sent[0] += len(piece)

    async def count_disconnects() -> float:
        page = (await get_page(proxy, "/metrics")).text
        return sum_metric(page, "accordion_errors_total", upstream="openai", error="client_disconnected")

    sent, piece, before = [0], os.urandom(100_000), await count_disconnects()
    async with proxy.provider(script, eager=True), connected(proxy) as client:
        await client.send(client.head_of("POST", "/v1/files", [], 600 * len(piece)))
        uploading = asyncio.create_task(upload())
        await wait_until_still(lambda: sent[0])
        if answered:
            # What still comes for it is answered by a reset.
            client.leave()
        else:
            client.reset()
        uploading.cancel()

        async def noticed() -> bool:
            return await count_disconnects() > before

        await asyncio.wait_for(wait_until(noticed), SOON)


async def test_in_the_middle_of_a_request_that_is_read(proxy: Proxy):
    """Nothing was sent on, so there is nothing to stop."""
    body = CHAT.body("Half.")
    async with proxy.provider(CHAT.answers()) as provider:
        async with connected(proxy) as client:
            await client.send(client.head_of("POST", CHAT.path, [], len(body)) + body[:-5])
            await asyncio.sleep(0.05)
            client.leave()
        async with connected(proxy) as client:
            await client.ask("POST", CHAT.path, [], body)
            assert (await client.reply()).status == 200
    assert [request.body for request in provider.requests] == [body]
