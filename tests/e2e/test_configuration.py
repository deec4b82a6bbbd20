"""Models under names of one's own, upstreams, the environment: where a request goes, and what of it changes."""

import gzip
import json
import os
import socket
from pathlib import Path

import pytest

from tests.conftest import Start
from tests.e2e.protocol_samples import CHAT, KEY, MESSAGES, RESPONSES, ProtocolSamples
from tests.e2e.raw_client import ask, connected, post
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


ODD = (
    b' {"a": [1e400, "\\ud800", NaN],\n\t"model" :  "smart" , "messages":[ {"role":"user","content":"x"} ],'
    b' "input": [{"model": "smart "}], "z":-0}\n'
)
"""What no decoder takes: it must be told all the same whose it is."""


@pytest.mark.parametrize("path", [CHAT.path, RESPONSES.path, "/v1/embeddings"])
async def test_an_alias_becomes_the_models_name_and_every_other_byte_stays(aliased: Proxy, path: str):
    async with aliased.provider(replies_json({})) as provider:
        reply = await post(aliased, path, ODD, BEARER)
    assert reply.status == 200, reply.body
    assert provider.requests[0].target == f"/east{path}"
    assert provider.requests[0].body == ODD.replace(b'"smart"', b'"gpt-5.2"')
    assert provider.requests[0].header("content-length") == str(len(provider.requests[0].body))


async def test_a_name_that_is_the_models_own_leaves_every_byte(aliased: Proxy):
    body = ODD.replace(b'"smart"', b'"gpt-4o"')
    async with aliased.provider(replies_json({})) as provider:
        await post(aliased, CHAT.path, body, BEARER)
    assert provider.requests[0].body == body
    assert provider.requests[0].target == "/west/v1/chat/completions"


async def test_a_model_that_is_not_configured_goes_to_the_default_upstream(aliased: Proxy):
    body = ODD.replace(b'"smart"', b'"gpt-4.1"')
    async with aliased.provider(replies_json({})) as provider:
        await post(aliased, CHAT.path, body, BEARER)
    assert (provider.requests[0].target, provider.requests[0].body) == (CHAT.path, body)


async def test_an_anthropic_model_is_asked_below_its_own_base(aliased: Proxy):
    body = MESSAGES.body("Hello.").replace(MESSAGES.model.encode(), b"clever")
    async with aliased.provider(MESSAGES.answers()) as provider:
        for path in ("/v1/messages", "/v1/messages/count_tokens?beta=true"):
            assert (await post(aliased, path, body, ("x-api-key", KEY))).status == 200
    assert [request.target for request in provider.requests] == [
        "/north/v1/messages",
        "/north/v1/messages/count_tokens?beta=true",
    ]
    assert all(request.json()["model"] == "claude-haiku-4-5" for request in provider.requests)
    assert provider.requests[0].header("x-api-key") == KEY


async def test_on_loopback_a_model_gets_its_own_key_except_for_web_sites(aliased: Proxy):
    async with aliased.provider(replies_json({})) as provider:
        await post(aliased, CHAT.path, ODD, BEARER)
        await post(aliased, CHAT.path, ODD, BEARER, ("Origin", "https://site.example"))
    keys = [request.header("authorization") for request in provider.requests]
    assert keys == ["Bearer sk-of-the-model", f"Bearer {KEY}"]
    assert "api_key is never used" not in aliased.log


async def test_extra_headers_are_added_and_replace_the_clients(aliased: Proxy):
    async with aliased.provider(replies_json({})) as provider:
        await post(aliased, CHAT.path, ODD, BEARER, ("User-Agent", "client"), ("x-team", "sales"))
    head = provider.requests[0]
    assert [value for name, value in head.headers if name.lower() == b"x-team"] == [b"research"]
    assert [value for name, value in head.headers if name.lower() == b"user-agent"] == [b"accordion-test"]


async def test_a_configured_window_is_what_utilization_is_measured_against(aliased: Proxy):
    async with aliased.provider(replies_json({})):
        reply = await post(aliased, CHAT.path, CHAT.body("word " * 1000).replace(b"gpt-4o", b"smart"), BEARER)
    assert reply.header("x-accordion-window") == "5000"
    tokens = int(reply.header("x-accordion-tokens") or 0)
    assert 1000 <= tokens <= 1050
    assert reply.header("x-accordion-utilization") == f"{tokens / 5000:.4f}"


# -- the list of models ----------------------------------------------------------------------------------------------


async def test_the_providers_list_is_untouched_where_no_models_are_configured(proxy: Proxy):
    raw = b'{"object":"list" , "data":[{"id":"a"}], "odd": 1e400}'
    async with proxy.provider(replies_json({"raw": raw.decode()})):
        reply = await ask(proxy, "GET", "/v1/models", [BEARER])
    assert json.loads(reply.body) == {"raw": raw.decode()}


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


async def test_a_model_that_is_asked_to_speak_is_named_in_the_query(aliased: Proxy):
    body, odd = b"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\n", "/v1/realtime?x=%2F&model=smart&y=model="
    async with aliased.provider(replies_json({})) as provider:
        for path in (odd, "/v1/realtime/calls?model=smart", "/v1/realtime?model=other"):
            await ask(aliased, "POST", path, [BEARER, ("Content-Type", "application/sdp")], body)
    assert [request.target for request in provider.requests] == [
        "/east/v1/realtime?x=%2F&model=gpt-5.2&y=model=",
        "/east/v1/realtime/calls?model=gpt-5.2",
        "/v1/realtime?model=other",
    ]
    assert all(request.body == body for request in provider.requests)


# -- the two upstreams, and the environment --------------------------------------------------------------------------


async def test_what_speaks_anthropics_protocol_goes_to_the_anthropic_upstream(start: Start):
    """The base of the one stands for /v1, that of the other stands before it."""
    proxy = start("server: {shutdown_seconds: 1}\nupstreams: {openai: {base_url: '{upstream}/wrong'}}\n")
    other = start(
        "server: {shutdown_seconds: 1}\n",
        ACCORDION_OPENAI_BASE_URL=f"http://127.0.0.1:{proxy.upstream_port}/o",
        ACCORDION_ANTHROPIC_BASE_URL=f"http://127.0.0.1:{proxy.upstream_port}/a",
    )
    version = ("anthropic-version", "2023-06-01")
    async with proxy.provider(replies_json({})) as provider:
        await post(other, "/v1/chat/completions", b"{}")
        await post(other, "/v1/messages", b"{}")
        await post(other, "/v1/messages/batches", b"{}")
        await ask(other, "GET", "/v1/models")
        await ask(other, "GET", "/v1/models", [version])
        await post(proxy, "/v1/responses", b"{}")
    assert [request.target for request in provider.requests] == [
        "/o/chat/completions",
        "/a/v1/messages",
        "/a/v1/messages/batches",
        "/o/models",
        "/a/v1/models",
        "/v1/responses",  # the environment comes before the file
    ]


async def test_options_come_before_the_environment_and_it_before_the_file(start: Start):
    proxy = start(
        "server: {host: 0.0.0.0, port: 1, shutdown_seconds: 1}\nlogging: {level: error, format: json}\n",
        "--host",
        "127.0.0.1",
        "--workers",
        "1",
        ACCORDION_HOST="::1",
        ACCORDION_PORT="2",
        ACCORDION_LOG="info,text",
        ACCORDION_STORE="sqlite:///kept.db",
    )
    assert (await ask(proxy, "GET", "/healthz")).status == 200
    assert "listens on http://127.0.0.1:" in proxy.log
    assert f"Its settings are those of {proxy.config.absolute()}\n" in proxy.log
    assert " INFO " in proxy.log
    assert (proxy.folder / "kept.db").exists()


async def test_logs_may_be_json_lines(start: Start):
    proxy = start("server: {shutdown_seconds: 1}\n", ACCORDION_LOG="debug,json")
    lines = [json.loads(line) for line in proxy.log.splitlines() if line.startswith("{")]
    assert {"time", "level", "logger", "message"} <= set(lines[0])
    assert all(not line or line.startswith((" ", "{")) for line in proxy.log.splitlines())


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("server: {prot: 1}\n", r"\.server\.prot"),
        ("model_list: [{model_name: a}]\n", r"\.model_list\[0\]\.litellm_params"),
    ],
)
def test_a_wrong_config_is_told_with_the_keys_path_and_nothing_starts(start: Start, text: str, path: str):
    with pytest.raises(RuntimeError, match=rf"config: .*accordion\.yaml: \${path}: "):
        start(text)


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


def test_a_wrong_variable_is_told_by_its_name_and_nothing_starts(start: Start):
    with pytest.raises(RuntimeError, match=r"config: \$\.store\.url: .* \(from ACCORDION_STORE\)"):
        start(ACCORDION_STORE="ftp://user:secret-word@host")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_spool_that_is_another_programs_file_is_told_and_nothing_starts(start: Start, tmp_path: Path, workers: str):
    notes = tmp_path / "notes.txt"
    notes.write_text("My own notes, and no database. " * 10)
    with pytest.raises(RuntimeError, match=r"\$\.store\.spool: .*notes\.txt is another file") as told:
        start(f"store: {{spool: '{notes}'}}\n", "--workers", workers, ACCORDION_STORE="sqlite:///kept.db")
    assert "Accordion listens" not in str(told.value)


PROTOCOL_OF_A_PATH: dict[str, ProtocolSamples] = {
    "/v1/files": CHAT,
    "/v1/messages/batches": MESSAGES,
    "/v1/responses/x": RESPONSES,
}


@pytest.mark.parametrize("path", PROTOCOL_OF_A_PATH)
async def test_errors_on_paths_that_are_not_read_have_the_shape_of_their_provider(proxy: Proxy, path: str):
    reply = await ask(proxy, "GET", path)
    assert reply.status == 502
    assert PROTOCOL_OF_A_PATH[path].error_of(reply.body)


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


async def test_a_form_whose_model_follows_a_large_file_goes_to_the_default_upstream(aliased: Proxy):
    body = form("smart", file=os.urandom(200_000), last=True)
    async with aliased.provider(replies_json({})) as provider:
        await ask(aliased, "POST", AUDIO, [FORM, BEARER], body)
    assert (provider.requests[0].target, provider.requests[0].body) == (AUDIO, body)


@pytest.mark.parametrize("size", [10, 200_000])
async def test_json_that_is_not_called_json_goes_where_its_model_says(aliased: Proxy, size: int):
    body = b'{"model": "smart", "input": "' + b"x" * size + b'"}'
    async with aliased.provider(replies_json({})) as provider:
        await ask(aliased, "POST", "/v1/embeddings", [("Content-Type", "text/plain"), BEARER], body)
    (request,) = provider.requests
    assert (request.target, request.body) == ("/east/v1/embeddings", body.replace(b'"smart"', b'"gpt-5.2"'))


@pytest.mark.parametrize("size", [10, 200_000])
async def test_a_compressed_body_goes_where_its_model_says(aliased: Proxy, size: int):
    body = b'{"model": "smart", "input": "' + b"x" * size + b'"}'
    async with aliased.provider(replies_json({})) as provider:
        await post(aliased, "/v1/embeddings", gzip.compress(body), BEARER, ("Content-Encoding", "gzip"))
    (request,) = provider.requests
    assert (request.target, request.body) == ("/east/v1/embeddings", body.replace(b'"smart"', b'"gpt-5.2"'))
    assert request.header("content-encoding") is None


async def test_a_large_compressed_form_whose_models_name_cannot_be_put_in_is_refused(aliased: Proxy):
    body = gzip.compress(form("smart", file=os.urandom(200_000)))
    async with aliased.provider(replies_json({})) as provider:
        reply = await ask(aliased, "POST", AUDIO, [FORM, BEARER, ("Content-Encoding", "gzip")], body)
    assert (reply.status, CHAT.error_of(reply.body)["param"], provider.requests) == (400, "body", [])


@pytest.mark.parametrize(("model", "way"), [("gpt-4o", "/west"), ("other", "")])
async def test_a_large_compressed_form_under_an_own_name_leaves_every_byte(aliased: Proxy, model: str, way: str):
    body = gzip.compress(form(model, file=os.urandom(200_000)))
    async with aliased.provider(replies_json({})) as provider:
        await ask(aliased, "POST", AUDIO, [FORM, BEARER, ("Content-Encoding", "gzip")], body)
    assert (provider.requests[0].target, provider.requests[0].body) == (f"{way}{AUDIO}", body)


async def test_a_compressed_body_for_a_model_under_its_own_name_leaves_every_byte(aliased: Proxy):
    body = gzip.compress(b'{"model": "gpt-4o", "input": "x"}')
    async with aliased.provider(replies_json({})) as provider:
        await post(aliased, "/v1/embeddings", body, BEARER, ("Content-Encoding", "gzip"))
    (request,) = provider.requests
    assert (request.target, request.body) == ("/west/v1/embeddings", body)
    assert request.header("content-encoding") == "gzip"


async def test_an_upload_that_names_no_model_passes_as_it_is(aliased: Proxy):
    body = os.urandom(300_000)
    async with aliased.provider(replies_json({})) as provider:
        await ask(aliased, "POST", "/v1/files", [("Content-Type", "application/octet-stream")], body)
    assert (provider.requests[0].target, provider.requests[0].body) == ("/v1/files", body)
