"""With proxy keys nobody enters without one, on any path, and none of them reaches a provider.

tests/pipeline/test_forward.py has the ways to send a key, and the errors in each protocol.
"""

import json

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.conftest import Start
from tests.e2e.protocol_samples import CHAT, KEY
from tests.e2e.raw_client import ask
from tests.loopback import replies_bytes, replies_json
from tests.proxy_process import Proxy

ONE, OWN = "acc-one-5fKq72LmZ", "sk-model-own-1a2B3c4D"
CONFIG = """
server: {shutdown_seconds: 1}
proxy_keys: [{id: one, key: "${KEY_ONE}"}]
model_list:
  - model_name: smart
    litellm_params: {model: openai/gpt-4o, api_base: "{upstream}/v1", api_key: "${OWN}"}
"""


@pytest.fixture(scope="module")
def keyed(start: Start) -> Proxy:
    """A proxy with a key and a model of its own."""
    return start(CONFIG, KEY_ONE=ONE, OWN=OWN)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", CHAT.path),
        ("GET", "/v1/models"),
        ("GET", "/v1/files"),
        ("POST", "/v1/files"),
        ("GET", "/accordion/models"),
    ],
)
async def test_no_path_is_open_without_a_key(keyed: Proxy, method: str, path: str):
    async with keyed.provider(replies_json({"data": []})) as provider:
        reply = await ask(keyed, method, path, [("Authorization", f"Bearer {KEY}")], b"" if method == "POST" else None)
    assert reply.status == 401
    assert b"smart" not in reply.body
    assert provider.requests == []


@pytest.mark.parametrize("name", ["Authorization", "x-api-key", "x-accordion-key"])
async def test_a_key_opens_the_list_of_models_and_stays_here(keyed: Proxy, name: str):
    async with keyed.provider(replies_json({"data": []})) as provider:
        reply = await ask(keyed, "GET", "/v1/models", [(name, f"Bearer {ONE}" if name == "Authorization" else ONE)])
    assert [model["id"] for model in json.loads(reply.body)["data"]] == ["smart"]
    assert all(ONE.encode() not in request.raw for request in provider.requests)


async def test_a_socket_needs_a_key_and_keeps_it_here(keyed: Proxy):
    async def dial(**headers: str) -> int:
        with pytest.raises(InvalidStatus) as caught:
            async with connect(f"ws://127.0.0.1:{keyed.port}/v1/realtime", proxy=None, additional_headers=headers):
                pass
        return caught.value.response.status_code

    async with keyed.provider(replies_bytes(b"HTTP/1.1 426 No\r\nContent-Length: 0\r\n\r\n", close=True)) as provider:
        assert await dial(Authorization=f"Bearer {KEY}") == 401
        assert await dial(Authorization=f"Bearer {ONE}") == 401
        assert provider.requests == []
        assert await dial(**{"x-accordion-key": ONE, "Authorization": f"Bearer {KEY}"}) == 426
    assert ONE.encode() not in provider.requests[0].raw
