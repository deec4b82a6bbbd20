"""Several deployments of one model: the next is asked where it is safe to send the request again."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Start
from tests.e2e.protocol_samples import CHAT, KEY
from tests.e2e.raw_client import post
from tests.loopback import Answer, Recorded, replies_json
from tests.proxy_process import held_port

BEARER = ("Authorization", f"Bearer {KEY}")
BODY = CHAT.body("Hello.").replace(CHAT.model.encode(), b"smart")


def config(*bases: str) -> str:
    entries = "".join(
        f"  - {{model_name: smart, litellm_params: {{model: openai/gpt-4o, api_base: '{base}'}}}}\n" for base in bases
    )
    return f"model_list:\n{entries}"


async def test_where_no_connection_is_made_the_next_deployment_is_asked(start: Start):
    with held_port() as dead:
        proxy = start(config(f"http://127.0.0.1:{dead}/v1", "{upstream}/v1"))
        async with proxy.provider(CHAT.answers()) as provider:
            reply = await post(proxy, CHAT.path, BODY, BEARER)
    assert reply.status == 200
    assert len(provider.requests) == 1


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


async def test_the_last_deployments_answer_is_the_clients(start: Start):
    proxy = start(config("{upstream}/one/v1", "{upstream}/two/v1"))
    async with proxy.provider(replies_json({"error": {"message": "busy"}}, 429)) as provider:
        reply = await post(proxy, CHAT.path, BODY, BEARER)
    assert (reply.status, len(provider.requests)) == (429, 2)


async def test_a_model_whose_window_nobody_knows_is_logged_once(start: Start):
    proxy = start("")
    async with proxy.provider(CHAT.answers()):
        for _ in range(3):
            await post(proxy, CHAT.path, CHAT.body("Hello.").replace(CHAT.model.encode(), b"nobodys-model"), BEARER)
    warning = "(nobodys-model): the context window of this model is not known; 120,000 tokens are assumed"
    assert proxy.log.count(warning) == 1
