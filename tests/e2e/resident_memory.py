"""The memory of a proxy before a measurement of its growth."""

from tests.e2e.protocol_samples import CHAT
from tests.e2e.raw_client import post
from tests.proxy_process import Proxy


async def warm_up(proxy: Proxy) -> int:
    """The proxy's resident memory in bytes once its tokenizer is loaded.

    It loads that behind its start: some 35 MB, and for a moment half as much again.
    """
    async with proxy.provider(CHAT.answers()):
        await post(proxy, CHAT.path, CHAT.body("Warm."))
    return proxy.resident
