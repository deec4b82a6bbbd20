"""A client that goes away while its request is served is noticed, but nobody looks before the request has lasted."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest
from starlette.types import Message

from accordion.http import proxy_app
from accordion.http.proxy_app import DisconnectWatch, DisconnectWatches
from accordion.model.http import CLIENT_DISCONNECTED


class Client:
    """Goes away when it is told to; notes whether anybody looked."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.looked = asyncio.Event()

    async def receive(self) -> Message:
        self.looked.set()
        await self.left.wait()
        return {"type": "http.disconnect"}


async def serve(client: Client, watches: DisconnectWatches) -> tuple[bool, object]:
    """A request that lasts until its client has gone; whether that was noticed, and the word of the cancellation."""
    watch = DisconnectWatch(client.receive, watches)
    watch.start()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError as reason:
        return watch.is_disconnected, reason.args
    finally:
        watch.stop()
    raise AssertionError


async def test_each_request_that_lasts_is_cancelled_when_its_own_client_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_app, "_WATCH_DELAY", 0.01)
    watches, one, other = DisconnectWatches(), Client(), Client()
    serving = [asyncio.create_task(serve(one, watches))]
    await asyncio.sleep(0.005)
    serving.append(asyncio.create_task(serve(other, watches)))
    await one.looked.wait()
    await other.looked.wait()
    other.left.set()
    assert await serving[1] == (True, (CLIENT_DISCONNECTED,))
    assert not serving[0].done()
    one.left.set()
    assert await serving[0] == (True, (CLIENT_DISCONNECTED,))


async def test_nobody_looks_after_a_request_that_is_over_nor_holds_anything_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proxy_app, "_WATCH_DELAY", 0.01)
    watches, brief, long = DisconnectWatches(), Client(), Client()
    watch = DisconnectWatch(brief.receive, watches)
    watch.start()
    watch.stop()
    watch.stop()
    watch.start()
    assert not watches._scheduled
    serving = asyncio.create_task(serve(long, watches))
    await long.looked.wait()
    assert not brief.looked.is_set()
    serving.cancel()
    assert await serving == (False, ())


async def test_a_request_that_comes_after_all_others_were_over_is_looked_after_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proxy_app, "_WATCH_DELAY", 0.01)
    watches = DisconnectWatches()
    for _ in range(2):
        client = Client()
        serving = asyncio.create_task(serve(client, watches))
        await client.looked.wait()
        client.left.set()
        assert await serving == (True, (CLIENT_DISCONNECTED,))
        assert watches._timer is None


async def test_a_timer_that_rings_a_little_early_is_not_set_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    # Both loops round: asyncio's rings early by its clock's resolution, uvloop's by what is lost below a millisecond.
    monkeypatch.setattr(loop, "_clock_resolution", 10.0)
    monkeypatch.setattr(proxy_app, "_WATCH_DELAY", 0.05)
    call_at, timers = loop.call_at, list[float]()

    def noted(when: float, *given: Any, **more: Any) -> asyncio.TimerHandle:
        timers.append(when)
        return call_at(when, *given, **more)

    monkeypatch.setattr(loop, "call_at", noted)
    client = Client()
    serving = asyncio.create_task(serve(client, DisconnectWatches()))
    while not client.looked.is_set():
        await asyncio.sleep(0)
    client.left.set()
    assert await serving == (True, (CLIENT_DISCONNECTED,))
    assert len(timers) == 1


async def test_a_request_that_lasted_is_freed_without_the_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_app, "_WATCH_DELAY", 0.01)
    client = Client()
    freed = weakref.ref(client)
    gc.disable()
    try:
        serving = asyncio.create_task(serve(client, DisconnectWatches()))
        await client.looked.wait()
        serving.cancel()
        await serving
        del client, serving
        for _ in range(3):
            await asyncio.sleep(0)
        assert freed() is None
    finally:
        gc.enable()
