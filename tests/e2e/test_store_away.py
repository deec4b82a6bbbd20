"""A store that is away never fails a request: it is forwarded without, and the answer says so."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.conftest import Start
from tests.e2e.protocol_samples import CHAT
from tests.e2e.proxy_api import get_page, sum_metric, wait_until
from tests.e2e.raw_client import Reply, post
from tests.proxy_process import Proxy
from tests.valkey import Valkey, running_valkey

CONFIG = "server: {shutdown_seconds: 1}\nstore: {timeout_seconds: 2, write_timeout_seconds: 2}\n"
"""Long enough that a store that is there is not taken for away, however busy the machine is."""
SOON = 30.0
"""Seconds for what takes some tenths; if a store that is away were waited for, it would not come at all."""


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    with running_valkey(tmp_path_factory.mktemp("valkey"), appendonly="yes") as server:
        yield server


@pytest.fixture(scope="module")
def proxy(start: Start, valkey: Valkey) -> Proxy:
    return start(CONFIG, ACCORDION_STORE=valkey.url)


async def say(proxy: Proxy, *texts: str) -> Reply:
    async with proxy.provider(CHAT.answers(given=600)):
        reply = await asyncio.wait_for(post(proxy, CHAT.path, CHAT.body(*texts)), SOON)
    assert (reply.status, reply.ended, json.loads(reply.body)["id"]) == (200, True, "chatcmpl-1")
    return reply


@asynccontextmanager
async def away(proxy: Proxy, valkey: Valkey, how: str) -> AsyncIterator[None]:
    """Within, the store is away, and the proxy has noticed; afterwards it is back, and the proxy has noticed that."""
    valkey.kill() if how == "killed" else valkey.freeze()
    try:

        async def noticed() -> bool:
            return (await say(proxy, f"Noticed that it is {how}?", "Well?", "?")).header(
                "x-accordion-store"
            ) is not None

        await wait_until(noticed)
        yield
    finally:
        valkey.start() if how == "killed" else valkey.thaw()

    async def back() -> bool:
        return (await say(proxy, "Back?", "Well?", "?")).header("x-accordion-store") is None

    await wait_until(back)


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_requests_are_answered_without_it_and_it_is_used_again_when_it_is_back(
    proxy: Proxy, valkey: Valkey, how: str
):
    first = await say(proxy, f"Begun before it was {how}.")
    outages = sum_metric((await get_page(proxy, "/metrics")).text, "accordion_store_outages_total")
    async with away(proxy, valkey, how):
        second = await say(proxy, f"Begun before it was {how}.", "Yes.", "Go on.")
        assert second.header("x-accordion-store") == "unavailable"
        assert second.header("x-accordion-session") == first.header("x-accordion-session"), "still known in memory"
        assert int(second.header("x-accordion-tokens") or 0) > 600
        fresh = await say(proxy, f"Begun while it was {how}.")
        assert (await get_page(proxy, "/readyz")).json() == {"status": "ok", "store": "unavailable"}
        page = (await get_page(proxy, "/metrics")).text
        assert sum_metric(page, "accordion_store_available") == 0
        assert sum_metric(page, "accordion_store_outages_total") == outages + 1
        refused = await get_page(proxy, "/accordion/sessions")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
        assert "the store is unavailable" in proxy.log

    async def published() -> bool:
        listed = (await get_page(proxy, "/accordion/sessions")).json().get("sessions", [])
        wanted = {first.header("x-accordion-session"), fresh.header("x-accordion-session")}
        return wanted <= {entry["id"] for entry in listed}

    await wait_until(published)
    assert sum_metric((await get_page(proxy, "/metrics")).text, "accordion_store_available") == 1


async def test_a_proxy_starts_and_forwards_while_its_store_is_away(start: Start, tmp_path: Path):
    with running_valkey(tmp_path) as server:
        server.kill()
        proxy = start(CONFIG, ACCORDION_STORE=server.url)
        assert (await say(proxy, "Anyone?", "Yes.", "Good.")).header("x-accordion-store") == "unavailable"
        server.start()

        async def back() -> bool:
            return (await say(proxy, "Back?", "Well?", "?")).header("x-accordion-store") is None

        await wait_until(back)
