"""What only looks large goes on as it came: files count by what is in them, not by their bytes."""

import json
from typing import Any

from tests.e2e.protocol_samples import EACH, GEMINI, RESPONSES, ProtocolSamples
from tests.e2e.raw_client import Reply, post
from tests.loopback import replies_json
from tests.proxy_process import Proxy
from tests.writers import LISTS


async def asked(proxy: Proxy, protocol: ProtocolSamples, *parts: dict[str, Any]) -> tuple[Reply, bool]:
    """The answer, and whether the provider saw the request as it came."""
    question = "What does it say?"
    if protocol is GEMINI:
        entry = {"role": "user", "parts": [*parts, {"text": question}]}
    else:
        text = {"type": "input_text" if protocol is RESPONSES else "text", "text": question}
        entry = {"role": "user", "content": [*parts, text]}
    body = json.dumps(json.loads(protocol.body()) | {LISTS[protocol.name]: [entry]}).encode()
    # What would be reported would correct the counts of other tests.
    async with proxy.provider(replies_json({})) as provider:
        reply = await post(proxy, protocol.path, body)
    return reply, [request.body for request in provider.requests] == [body]


@EACH
async def test_what_is_not_understood_never_has_a_request_refused(proxy: Proxy, protocol: ProtocolSamples):
    reply, untouched = await asked(proxy, protocol, {"type": "points", "at": [[0.125, 0.25]] * 120_000})
    assert reply.status == 200
    assert untouched
