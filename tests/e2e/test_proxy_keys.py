"""With proxy keys nobody enters without one, none of them reaches a provider, and each is a tenant of its own."""

import json

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.conftest import Start
from tests.e2e.protocol_samples import CHAT, EACH, GEMINI, KEY, MESSAGES, ProtocolSamples
from tests.e2e.proxy_api import get_page, get_session
from tests.e2e.raw_client import ask, post
from tests.loopback import replies_bytes, replies_json
from tests.proxy_process import Proxy

ONE, TWO, OWN, CLAUDE = "acc-one-5fKq72LmZ", "acc-two-9pWx31RtB", "sk-model-own-1a2B3c4D", "sk-ant-model-own-5e6F"
ADMIN = "acc-admin-7Hk2Qp4RtZ"
CONFIG = """
server: {shutdown_seconds: 1}
admin_key: "${ADMIN}"
proxy_keys:
  - {id: one, key: "${KEY_ONE}"}
  - {id: two, key: os.environ/KEY_TWO}
model_list:
  - model_name: smart
    litellm_params: {model: openai/gpt-4o, api_base: "{upstream}/v1", api_key: "${OWN}"}
  - model_name: clever
    litellm_params: {model: anthropic/claude-haiku-4-5, api_base: "{upstream}", api_key: "${CLAUDE}"}
  - model_name: keyless
    litellm_params: {model: openai/gpt-4o, api_base: "{upstream}/v1"}
"""
WAYS = {
    "bearer": [("Authorization", f"Bearer {ONE}")],
    "x-api-key": [("x-api-key", ONE)],
    "x-accordion-key": [("x-accordion-key", ONE), ("Authorization", f"Bearer {KEY}")],
    "x-accordion-key twice": [("x-accordion-key", ONE), ("Authorization", f"Bearer {ONE}")],
    "x-accordion-key alone": [("x-accordion-key", ONE)],
    "bearer and x-api-key": [("Authorization", f"Bearer {ONE}"), ("x-api-key", ONE)],
}


@pytest.fixture(scope="module")
def keyed(start: Start) -> Proxy:
    """A proxy with two keys of its own."""
    return start(CONFIG, KEY_ONE=ONE, KEY_TWO=TWO, OWN=OWN, CLAUDE=CLAUDE, ADMIN=ADMIN)


def request_for_model(protocol: ProtocolSamples, model: str) -> bytes:
    return protocol.body("Hello.").replace(protocol.model.encode(), model.encode())


@EACH
@pytest.mark.parametrize(
    "headers", [[], [("Authorization", "Bearer wrong")], [("x-accordion-key", "")], [("x-api-key", ONE + "x")]]
)
async def test_without_a_key_nobody_enters(keyed: Proxy, protocol: ProtocolSamples, headers: list[tuple[str, str]]):
    async with keyed.provider(protocol.answers()) as provider:
        reply = await post(keyed, protocol.path, request_for_model(protocol, "smart"), *headers)
    error = protocol.error_of(reply.body)
    assert reply.status == 401
    if protocol is GEMINI:
        assert (error["code"], error["status"]) == (401, "UNAUTHENTICATED")
    else:
        assert error["type"] == ("authentication_error" if protocol is MESSAGES else "invalid_request_error")
        assert error.get("code", "invalid_api_key") == "invalid_api_key"
    assert provider.requests == []


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/models"), ("GET", "/v1/files"), ("POST", "/v1/files"), ("GET", "/accordion/models")],
)
async def test_no_other_path_is_open_either(keyed: Proxy, method: str, path: str):
    async with keyed.provider(replies_json({"data": []})) as provider:
        reply = await ask(keyed, method, path, [("Authorization", f"Bearer {KEY}")], b"" if method == "POST" else None)
    assert reply.status == 401
    assert b"smart" not in reply.body
    assert provider.requests == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/files?purpose=x", "/v1/messages", "/v1/models"])
async def test_no_proxy_key_ever_reaches_a_provider(keyed: Proxy, way: str, target: str):
    """Where no model's own key takes its place, either the caller's own credential goes on, or nothing does."""
    async with keyed.provider(replies_json({"data": []})) as provider:
        if target == "/v1/models":
            reply = await ask(keyed, "GET", target, WAYS[way])
        else:
            model = "keyless" if target == CHAT.path else "unlisted"
            reply = await post(keyed, target, request_for_model(CHAT, model), *WAYS[way])
    assert all(ONE.encode() not in request.raw for request in provider.requests)
    if way == "x-accordion-key":
        assert reply.status == 200
        assert provider.requests[0].header("authorization") == f"Bearer {KEY}"
        assert provider.requests[0].header("x-accordion-key") is None
    elif target == "/v1/models":
        assert [model["id"] for model in json.loads(reply.body)["data"]] == ["smart", "clever", "keyless"]
    else:
        assert reply.status == 401
        assert b"provider key" in reply.body
        assert provider.requests == []


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


async def test_two_tenants_with_equal_text_have_nothing_in_common(keyed: Proxy):
    body = request_for_model(CHAT, "smart")
    async with keyed.provider(CHAT.answers()):
        replies = [await post(keyed, CHAT.path, body, ("Authorization", f"Bearer {key}")) for key in (ONE, TWO, ONE)]
    ids = [reply.header("x-accordion-session") for reply in replies]
    assert ids[0] == ids[2] != ids[1]
    listed = {}
    for key in (ONE, TWO):
        page = (await get_page(keyed, "/accordion/sessions", authorization=f"Bearer {key}")).json()
        listed[key] = {entry["id"] for entry in page["sessions"]}
    assert ids[0] in listed[ONE]
    assert ids[1] in listed[TWO]
    assert not listed[ONE] & listed[TWO]
    assert (await get_session(keyed, ids[0], authorization=f"Bearer {ONE}"))["id"] == ids[0]
    foreign = await get_page(keyed, f"/accordion/sessions/{ids[0]}", authorization=f"Bearer {TWO}")
    assert foreign.status_code == 404
