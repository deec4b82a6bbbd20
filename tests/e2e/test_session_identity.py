"""Conversations are told apart by their content alone."""

from tests.conftest import Start
from tests.e2e.protocol_samples import CHAT
from tests.e2e.proxy_api import get_page, sum_metric, wait_until
from tests.e2e.raw_client import post
from tests.proxy_process import PATIENT


async def test_several_workers_are_one_proxy(start: Start):
    """Whichever worker answers: sessions go on over all of them, and sums are those of all."""
    proxy = start("server: {shutdown_seconds: 1}\n" + PATIENT, "--workers", "2", ACCORDION_STORE="sqlite:///shared.db")

    async def listed() -> dict[str, int]:
        found = (await get_page(proxy, "/accordion/sessions")).json()["sessions"]
        return {entry["id"]: entry["totals"]["requests"] for entry in found}

    async def counted(requests: int) -> bool:
        page = (await get_page(proxy, "/metrics")).text
        models = (await get_page(proxy, "/accordion/models")).json()["models"]
        return (
            sum_metric(page, "accordion_requests_total", model="gpt-4o", status="2xx") == requests
            and sum((await listed()).values()) == requests
            and [row["totals"]["input"] for row in models] == [100 * requests]
        )

    opened = []
    async with proxy.provider(CHAT.answers(given=100, made=10)):
        for number in range(12):
            opened.append((await post(proxy, CHAT.path, CHAT.body(f"Worker {number}"))).header("x-accordion-session"))
        await wait_until(lambda: counted(12))
        for number, known in enumerate(opened):
            reply = await post(proxy, CHAT.path, CHAT.body(f"Worker {number}", "Yes.", "Go on."))
            assert reply.header("x-accordion-session") == known
            assert int(reply.header("x-accordion-tokens") or 0) > 100, "carried over, whoever took the report"
    await wait_until(lambda: counted(24))
    for _ in range(8):
        assert await counted(24)
    assert await listed() == dict.fromkeys(opened, 2)
