"""Models under names of one's own, upstreams, the environment: where a request goes, and what of it changes."""

import gzip
import json
import os
import socket
from pathlib import Path

import pytest

from tests.conftest import Start
from tests.e2e.protocol_samples import CHAT, KEY
from tests.e2e.raw_client import ask, connected
from tests.loopback import replies_json
from tests.proxy_process import Proxy

CONFIG = """
server: {shutdown_seconds: 1}
model_list:
  - model_name: smart
    litellm_params:
      model: openai/gpt-5.2
      api_base: {upstream}/east/v1
      api_key: sk-of-the-model
      extra_headers: {X-Team: research, user-agent: accordion-test}
    model_info: {max_input_tokens: 5000}
  - model_name: gpt-4o
    litellm_params: {model: openai/gpt-4o, api_base: "{upstream}/west/v1/"}
  - model_name: clever
    litellm_params: {model: anthropic/claude-haiku-4-5, api_base: "{upstream}/north"}
"""
BEARER = ("Authorization", f"Bearer {KEY}")


@pytest.fixture(scope="module")
def aliased(start: Start) -> Proxy:
    """A proxy with models of its own, and no keys of its own."""
    return start(CONFIG)


# -- the list of models ----------------------------------------------------------------------------------------------


async def test_configured_models_come_first_in_the_list(aliased: Proxy):
    listed = {"object": "list", "data": [{"id": "gpt-4o", "object": "model"}, {"id": "other", "object": "model"}]}
    async with aliased.provider(replies_json(listed, 200, [("x-request-id", "up")], encoding="gzip")):
        reply = await ask(aliased, "GET", "/v1/models", [BEARER, ("Accept-Encoding", "gzip")])
    assert [model["id"] for model in json.loads(reply.body)["data"]] == ["smart", "gpt-4o", "clever", "other"]
    assert reply.header("x-request-id") == "up"
    assert reply.header("content-encoding") is None


async def test_a_list_of_another_shape_is_passed_on_as_it_came(aliased: Proxy):
    """Codex's catalog has more than names: without it Codex asks again and assumes a smaller window."""
    catalog = {"models": [{"slug": "gpt-5", "context_window": 475_000}]}
    async with aliased.provider(replies_json(catalog, 200, [("etag", "W/1")])):
        reply = await ask(aliased, "GET", "/v1/models?client_version=1", [BEARER])
    assert json.loads(reply.body) == catalog
    assert reply.header("etag") == "W/1"


@pytest.mark.parametrize("anthropic", [False, True])
async def test_configured_models_are_listed_while_the_provider_is_away(aliased: Proxy, anthropic: bool):
    headers = [("anthropic-version", "2023-06-01")] if anthropic else []
    reply = await ask(aliased, "GET", "/v1/models", headers)
    page = json.loads(reply.body)
    assert reply.status == 200
    assert [model["id"] for model in page["data"]] == ["smart", "gpt-4o", "clever"]
    assert ("has_more" in page, page.get("object")) == ((True, None) if anthropic else (False, "list"))


@pytest.mark.parametrize(
    ("name", "target", "shape"),
    [("smart", "/east/v1/models/gpt-5.2", "object"), ("clever", "/north/v1/models/claude-haiku-4-5", "type")],
)
async def test_a_configured_model_is_found_by_its_name(aliased: Proxy, name: str, target: str, shape: str):
    version = [("anthropic-version", "2023-06-01")] if shape == "type" else []
    told = {"id": "its own name", shape: "model", "more": [1]}
    async with aliased.provider(replies_json(told, 200, [("x-request-id", "up")], encoding="gzip")) as provider:
        reply = await ask(aliased, "GET", f"/v1/models/{name}", [BEARER, *version])
    assert provider.requests[0].target == target
    assert (reply.status, json.loads(reply.body)) == (200, told | {"id": name})
    assert reply.header("x-request-id") == "up"


@pytest.mark.parametrize("status", [200, 404, 500])
@pytest.mark.parametrize("anthropic", [False, True])
async def test_of_a_model_that_its_provider_says_nothing_of_its_name_is_said(
    aliased: Proxy, status: int, anthropic: bool
):
    headers = [BEARER, *([("anthropic-version", "2023-06-01")] if anthropic else [])]
    async with aliased.provider(replies_json({"error": {"message": "no such model"}}, status)):
        reply = await ask(aliased, "GET", "/v1/models/smart", headers)
    told = json.loads(reply.body)
    assert (reply.status, told["id"], told["type" if anthropic else "object"]) == (200, "smart", "model")


async def test_a_wrong_key_does_not_find_a_model_either(aliased: Proxy):
    async with aliased.provider(replies_json({"error": {"message": "no"}}, 401)):
        reply = await ask(aliased, "GET", "/v1/models/smart", [BEARER])
    assert (reply.status, json.loads(reply.body)) == (401, {"error": {"message": "no"}})


async def test_what_would_change_a_model_means_the_providers_own(aliased: Proxy):
    async with aliased.provider(replies_json({"deleted": True})) as provider:
        reply = await ask(aliased, "DELETE", "/v1/models/smart", [BEARER])
    assert (provider.requests[0].target, json.loads(reply.body)) == ("/v1/models/smart", {"deleted": True})


# -- the two upstreams, and the environment --------------------------------------------------------------------------


def test_a_wrong_config_is_told_with_the_keys_path_and_nothing_starts(start: Start):
    with pytest.raises(RuntimeError, match=r"config: .*accordion\.yaml: \$\.model_list\[0\]\.litellm_params: "):
        start("model_list: [{model_name: a}]\n")


def test_an_address_that_is_taken_is_told_with_what_to_do(start: Start):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        said = rf"config: \$\.server: cannot listen on 127\.0\.0\.1:{taken}\. Stop the program .*--port"
        with pytest.raises(RuntimeError, match=said):
            start("", "--port", str(taken))


def test_an_address_that_does_not_exist_is_no_program_to_be_stopped(start: Start):
    said = r"cannot listen on no\.invalid:\d+\. Name or service not known: correct the address"
    with pytest.raises(RuntimeError, match=said):
        start("", "--host", "no.invalid")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_spool_that_is_another_programs_file_is_told_and_nothing_starts(start: Start, tmp_path: Path, workers: str):
    notes = tmp_path / "notes.txt"
    notes.write_text("My own notes, and no database. " * 10)
    with pytest.raises(RuntimeError, match=r"\$\.store\.spool: .*notes\.txt is another file") as told:
        start(f"store: {{spool: '{notes}'}}\n", "--workers", workers, ACCORDION_STORE="sqlite:///kept.db")
    assert "Accordion listens" not in str(told.value)


# -- bodies that no protocol reads ------------------------------------------------------------------------------------

FORM = ("Content-Type", "multipart/form-data; boundary=xyz")
AUDIO = "/v1/audio/transcriptions"


def form(model: str, *, file: bytes, last: bool = False) -> bytes:
    """A form as the OpenAI SDKs send it: the Python one its fields first, the Node one as they are given."""
    field = b'--xyz\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n' % model.encode()
    held = b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + file + b"\r\n"
    return (held + field if last else field + held) + b"--xyz--\r\n"


@pytest.mark.parametrize("size", [1_000, 65_000, 66_000, 3_000_000])
@pytest.mark.parametrize("chunked", [False, True], ids=["with a length", "chunked"])
async def test_a_form_goes_where_its_model_says_under_the_models_name(aliased: Proxy, size: int, chunked: bool):
    body = form("smart", file=os.urandom(size))
    async with aliased.provider(replies_json({"text": "Hello."})) as provider, connected(aliased) as client:
        framing = [("Transfer-Encoding", "chunked")] if chunked else []
        await client.send(client.head_of("POST", AUDIO, [FORM, BEARER, *framing], None if chunked else len(body)))
        await client.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body)
        reply = await client.reply()
    assert reply.body == b'{"text": "Hello."}'
    (request,) = provider.requests
    assert request.target == f"/east{AUDIO}"
    assert request.body == form("gpt-5.2", file=body[len(form("smart", file=b"")) - len(b"\r\n--xyz--\r\n") :][:size])


async def test_a_large_compressed_form_whose_models_name_cannot_be_put_in_is_refused(aliased: Proxy):
    body = gzip.compress(form("smart", file=os.urandom(200_000)))
    async with aliased.provider(replies_json({})) as provider:
        reply = await ask(aliased, "POST", AUDIO, [FORM, BEARER, ("Content-Encoding", "gzip")], body)
    assert (reply.status, CHAT.error_of(reply.body)["param"], provider.requests) == (400, "body", [])
