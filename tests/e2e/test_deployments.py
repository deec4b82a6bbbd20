"""Several deployments of one model: the next is asked where it is safe to send the request again."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Start
from tests.e2e.protocol_samples import CHAT, KEY
from tests.e2e.raw_client import post
from tests.loopback import Answer, Recorded, replies_json

BEARER = ("Authorization", f"Bearer {KEY}")
BODY = CHAT.body("Hello.").replace(CHAT.model.encode(), b"smart")


def config(*bases: str) -> str:
    entries = "".join(
        f"  - {{model_name: smart, litellm_params: {{model: openai/gpt-4o, api_base: '{base}'}}}}\n" for base in bases
    )
    return f"model_list:\n{entries}"


@pytest.mark.parametrize(("status", "asked"), [(429, 2), (503, 2), (529, 2), (500, 1), (502, 1), (400, 1), (401, 1)])
async def test_only_what_was_not_processed_is_sent_again(start: Start, status: int, asked: int):
    proxy = start(config("{upstream}/one/v1", "{upstream}/two/v1"))

    async def script(request: Recorded, answer: Answer) -> None:
        if request.target.startswith("/one/"):
            await replies_json({"error": {"message": "no"}}, status)(request, answer)
        else:
            await CHAT.answers()(request, answer)

    async with proxy.provider(script) as provider:
        reply = await post(proxy, CHAT.path, BODY, BEARER)
    assert len(provider.requests) == asked
    assert reply.status == (200 if asked == 2 else status)
    assert {json.loads(request.body)["model"] for request in provider.requests} == {"gpt-4o"}
