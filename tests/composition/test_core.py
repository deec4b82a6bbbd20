"""One walk through the application: what the core does, whatever features there are."""

from __future__ import annotations

import json

from accordion.composition.application import Application
from accordion.config.load import build
from accordion.model.http import Inbound, Outbound
from tests.compaction.compactor_setup import long_history
from tests.fakes import FakeReply, FakeUpstream
from tests.histories import body
from tests.pipeline_setup import PATHS

CONFIG = b"{store: {url: 'memory://'}, windows: {default: 4000}, summaries: {writer: extractive}}"
HEADERS = ((b"content-type", b"application/json"), (b"authorization", b"Bearer sk-own"))
ANSWER = {"id": "r", "choices": [{"message": {"role": "assistant", "content": "Done."}, "finish_reason": "stop"}]}


async def send(application: Application, content: bytes) -> Outbound:
    outbound = await application.forward(Inbound("POST", PATHS["chat"], "", HEADERS, content, "r"))
    assert not isinstance(outbound.body, bytes)
    async for _ in outbound.body:
        pass
    return outbound


async def test_a_small_request_is_passed_on_and_a_long_one_is_compacted() -> None:
    upstream = FakeUpstream([FakeReply(pieces=(json.dumps(ANSWER).encode(),)) for _ in range(2)])
    application = Application(build(CONFIG, {}, {}), {}, connect=lambda _: upstream)
    await application.start()
    try:
        small = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hello"}]}).encode()
        long = json.dumps({**body(long_history(60), "chat"), "model": "m"}).encode()
        assert (await send(application, small)).status == 200
        compacted = await send(application, long)
    finally:
        await application.stop()
    forwarded = [request.body for request in upstream.requests]
    assert forwarded[0] == small
    assert isinstance(forwarded[1], bytes)
    assert len(forwarded[1]) < len(long)
    assert dict(compacted.headers)[b"x-accordion-compaction"].startswith(b'{"state":"compacted"')
