"""What a provider taught one worker, all of them know, and the next run too."""

import asyncio

from tests.conftest import Start
from tests.e2e.protocol_samples import CHAT
from tests.e2e.proxy_api import wait_until
from tests.e2e.raw_client import post
from tests.loopback import Script, replies_json
from tests.proxy_process import PATIENT, Proxy

LIMIT = 7_700
TOO_LONG = f"This model's maximum context length is {LIMIT} tokens. However, your messages resulted in 9000 tokens."
REFUSES = replies_json({"error": {"message": TOO_LONG, "code": "context_length_exceeded"}}, 400)


async def asked(proxy: Proxy, script: Script, *texts: str, header: str = "x-accordion-window") -> list[int]:
    """What the header says to new conversations with these openings, all on connections of their own."""
    async with proxy.provider(script):
        replies = await asyncio.gather(*(post(proxy, CHAT.path, CHAT.body(text)) for text in texts))
    return [int(reply.header(header) or 0) for reply in replies]


async def test_a_limit_that_one_worker_learnt_holds_for_all_and_after_a_restart(start: Start):
    proxy = start("server: {shutdown_seconds: 1}\n" + PATIENT, "--workers", "2", ACCORDION_STORE="sqlite:///taught.db")
    assert set(await asked(proxy, CHAT.answers(), *map(str, range(4)))) == {128_000}
    await asked(proxy, REFUSES, "Too much")

    async def everywhere() -> bool:
        return set(await asked(proxy, CHAT.answers(), *(f"Again {number}" for number in range(16)))) == {LIMIT}

    await wait_until(everywhere)
    proxy.stop()
    proxy.start()
    assert set(await asked(proxy, CHAT.answers(), *(f"Later {number}" for number in range(16)))) == {LIMIT}
