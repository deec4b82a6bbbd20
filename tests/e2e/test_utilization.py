"""Every answer says how full the window is: by our own count, and by what the provider reported of the beginning."""

import json
from typing import Any

import pytest

from tests.conftest import Start
from tests.e2e.protocol_samples import CHAT, EACH, MESSAGES, RESPONSES, ProtocolSamples
from tests.e2e.proxy_api import get_page, get_session
from tests.e2e.raw_client import Reply, ask, post
from tests.e2e.small_window import fetch_session
from tests.loopback import replies_json
from tests.proxy_process import Proxy

OURS = ("session", "window", "tokens", "utilization")
SILENT = {"note": "no usage here"}


def tokens(reply: Reply) -> int:
    return int(reply.header("x-accordion-tokens") or -1)


async def turn(
    proxy: Proxy,
    protocol: ProtocolSamples,
    *texts: str,
    label: str,
    reported: int = 0,
    stream: bool = False,
    **more: Any,
) -> Reply:
    """One request of a conversation; the provider reports `reported` tokens of input, or nothing."""
    script = protocol.answers(given=reported, made=7) if reported else replies_json(SILENT)
    async with proxy.provider(script):
        body = protocol.body(*texts, stream=stream, **more)
        reply = await post(proxy, protocol.target(stream=stream), body, ("x-accordion-session", label))
    assert reply.status == 200
    return reply


@EACH
@pytest.mark.parametrize("status", [200, 400, 500])
@pytest.mark.parametrize("stream", [False, True])
async def test_every_answer_has_the_utilization_headers(
    proxy: Proxy, protocol: ProtocolSamples, status: int, stream: bool
):
    script = protocol.answers() if status == 200 else replies_json({"error": {"message": "No."}}, status)
    async with proxy.provider(script):
        reply = await post(proxy, protocol.target(stream=stream), protocol.body("How full?", stream=stream))
    assert reply.status == status
    values = {name: reply.header(f"x-accordion-{name}") or "" for name in OURS}
    assert values["session"].startswith("s-")
    assert int(values["window"]) in (128_000, 400_000, 200_000, 1_048_576)
    assert 1 < int(values["tokens"]) < 40
    assert 0 <= float(values["utilization"]) < 0.01


@EACH
async def test_our_own_errors_have_the_utilization_headers_too(proxy: Proxy, protocol: ProtocolSamples):
    reply = await post(proxy, protocol.path, protocol.body("How full?"))
    assert reply.status == 502
    assert all(reply.header(f"x-accordion-{name}") for name in OURS)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/embeddings", b'{"model": "text-embedding-3-small", "input": "x"}'),
        ("POST", "/v1/responses/compact", b'{"model": "gpt-5.2", "input": []}'),
        ("POST", "/v1/audio/transcriptions", b"--x"),
        ("GET", "/v1/models", None),
        ("GET", "/v1/responses/resp_1", None),
        ("GET", "/v1/files/f/content", None),
    ],
)
async def test_what_is_not_read_carries_none(proxy: Proxy, method: str, path: str, body: bytes | None):
    """Where nothing was counted, nothing is said."""
    async with proxy.provider(replies_json({})):
        reply = await ask(proxy, method, path, body=body)
    assert reply.status == 200
    assert not any(name.startswith(b"x-accordion-") for name, _ in reply.headers)


async def test_system_prompt_tools_and_images_are_counted(proxy: Proxy):
    label = "counting-parts"
    bare = tokens(await turn(proxy, CHAT, "Hi.", label=label))
    tool = {"type": "function", "function": {"name": "f", "description": "word " * 300, "parameters": {}}}
    assert tokens(await turn(proxy, CHAT, "Hi.", label=label, tools=[tool])) > bare + 300
    system = [{"role": "system", "content": "word " * 300}, {"role": "user", "content": "Hi."}]
    assert tokens(await turn(proxy, CHAT, label=label, messages=system)) > bare + 300
    picture = {"type": "image_url", "image_url": {"url": "https://pictures.test/a.png"}}
    shown = [{"role": "user", "content": [{"type": "text", "text": "Hi."}, picture]}]
    assert tokens(await turn(proxy, CHAT, label=label, messages=shown)) > bare + 80


async def test_the_room_for_the_answer_counts_towards_utilization_and_not_as_tokens(start: Start):
    proxy = start()  # It knows no answers yet: those of other tests would make the space smaller.
    reply = await turn(proxy, CHAT, "Hi.", label="reserving", max_tokens=64_000)
    assert tokens(reply) < 40
    assert 0.5 <= float(reply.header("x-accordion-utilization") or 0) < 0.51


# -- reported usage --------------------------------------------------------------------------------------------------


@EACH
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_reported_usage_is_carried_to_the_next_turn(proxy: Proxy, protocol: ProtocolSamples, stream: bool):
    """The second turn is what was reported for the first, plus our own count of what is new."""
    talk, told = ("First question.", "First answer.", "Second question?"), f"carried-{protocol.name}-{stream}"
    plain = [tokens(await turn(proxy, protocol, *talk[:n], label=f"{told}-plain")) for n in (1, 3)]
    first = await turn(proxy, protocol, *talk[:1], label=told, reported=1000, stream=stream)
    second = await turn(proxy, protocol, *talk, label=told, reported=1030, stream=stream)
    third = await turn(proxy, protocol, *talk, "Second answer.", "Third?", label=told)
    assert tokens(first) == plain[0]
    assert tokens(second) == 1000 + plain[1] - plain[0]
    assert 1030 < tokens(third) < 1060
    last = (await get_session(proxy, third.header("x-accordion-session")))["exchanges"]
    assert [entry["utilization"]["carried"] for entry in last] == [False, True, True]
    assert [entry["stream"] for entry in last] == [stream, stream, False]
    assert [(entry["usage"] or {}).get("input") for entry in last] == [1000, 1030, None]


@EACH
async def test_a_long_new_request_goes_by_an_estimate_and_is_recorded_with_the_count(
    proxy: Proxy, protocol: ProtocolSamples
):
    text, label = f"To {protocol.name}: " + "Some words to be counted. " * 3_000, f"long-{protocol.name}"
    await turn(proxy, protocol, "Load the encoding.", label=f"short-{protocol.name}")
    first = await turn(proxy, protocol, text, label=label)
    session = await fetch_session(proxy, first.header("x-accordion-session"), 1)
    again = await turn(proxy, protocol, text, label=label)
    assert [each.header("x-accordion-tokens-source") for each in (first, again)] == ["estimate", None]
    assert session["exchanges"][0]["utilization"]["tokens"] == tokens(again)
    assert tokens(first) == pytest.approx(tokens(again), rel=0.15)


async def test_usage_is_not_carried_where_the_system_prompt_or_the_tools_changed(proxy: Proxy):
    talk, label = ("Question.", "Answer.", "More?"), "changed-overhead"
    await turn(proxy, MESSAGES, talk[0], label=label, reported=5000, system="One.")
    reply = await turn(proxy, MESSAGES, *talk, label=label, system="Two.")
    assert tokens(reply) < 100


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_what_anthropic_read_from_and_wrote_to_its_cache_is_input(proxy: Proxy, stream: bool):
    label = f"cached-{stream}"
    usage = {"cache_creation_input_tokens": 200, "cache_read_input_tokens": 3000}
    async with proxy.provider(MESSAGES.answers(given=10, made=5, **usage)):
        body = MESSAGES.body("Cached?", stream=stream)
        first = await post(proxy, MESSAGES.path, body, ("x-accordion-session", label))
    second = await turn(proxy, MESSAGES, "Cached?", "Yes.", "Good.", label=label)
    assert 3210 < tokens(second) < 3240
    totals = (await get_session(proxy, first.header("x-accordion-session")))["totals"]
    assert (totals["input"], totals["cached"], totals["cache_write"], totals["output"]) == (3210, 3000, 200, 5)


async def test_a_new_conversation_is_corrected_by_what_was_reported_for_its_model(proxy: Proxy):
    model = {"model": "never-heard-of-1"}
    text = "Some words to be counted. " * 40
    plain = tokens(await turn(proxy, CHAT, text, label="before-report", **model))
    await turn(proxy, CHAT, text, label="the-report", reported=2 * plain, **model)
    assert tokens(await turn(proxy, CHAT, text, label="after-report", **model)) == 2 * plain
    assert tokens(await turn(proxy, CHAT, text, label="other-model", model="never-heard-of-2")) == plain


# -- state kept by the provider --------------------------------------------------------------------------------------


async def test_a_request_that_goes_on_from_a_response_is_gauged_by_what_was_reported(proxy: Proxy):
    async with proxy.provider(RESPONSES.answers(given=500, made=20, response_id="resp_gauge_1")):
        first = await post(proxy, RESPONSES.path, RESPONSES.body("Begin."))
    async with proxy.provider(RESPONSES.answers(given=540, made=10, response_id="resp_gauge_2")) as provider:
        body = RESPONSES.body("Go on.", previous_response_id="resp_gauge_1")
        second = await post(proxy, RESPONSES.path, body)
        third = await post(proxy, RESPONSES.path, RESPONSES.body("On.", previous_response_id="resp_gauge_2"))
    assert provider.requests[0].body == body
    assert 520 < tokens(second) < 540
    assert 550 < tokens(third) < 570
    sessions = {reply.header("x-accordion-session") for reply in (first, second, third)}
    assert len(sessions) == 1


async def test_a_request_within_a_conversation_object_is_gauged_by_what_was_reported(proxy: Proxy):
    replies = []
    async with proxy.provider(RESPONSES.answers(given=900, made=100)):
        for text in ("One.", "Two."):
            body = RESPONSES.body(text, conversation={"id": "conv_gauge_1"})
            replies.append(await post(proxy, RESPONSES.path, body))
    assert tokens(replies[0]) < 40
    assert 1000 < tokens(replies[1]) < 1030
    assert replies[0].header("x-accordion-session") == replies[1].header("x-accordion-session")


async def test_state_that_nobody_knows_passes_and_is_a_session_of_its_own(proxy: Proxy):
    async with proxy.provider(RESPONSES.answers()) as provider:
        body = RESPONSES.body("Who?", previous_response_id="resp_from_elsewhere")
        reply = await post(proxy, RESPONSES.path, body)
    assert (reply.status, provider.requests[0].body) == (200, body)
    assert tokens(reply) < 40


# -- the ledger ------------------------------------------------------------------------------------------------------


async def test_models_and_sessions_show_what_happened(proxy: Proxy):
    model = {"model": "ledger-model"}
    reply = await turn(proxy, CHAT, "For the ledger.", label="ledger-label", reported=321, **model)
    await turn(proxy, CHAT, "For the ledger.", "Yes.", "On.", label="ledger-label", reported=400, **model)
    known = await get_session(proxy, reply.header("x-accordion-session"))
    assert (known["label"], known["model"], known["totals"]["requests"]) == ("ledger-label", "ledger-model", 2)
    assert (known["totals"]["input"], known["totals"]["output"]) == (721, 14)
    assert [entry["status"] for entry in known["exchanges"]] == [200, 200]
    assert known["exchanges"][0]["duration"] >= known["exchanges"][0]["first_byte"] > 0
    assert known["last"]["window_known"] is False
    listed = (await get_page(proxy, "/accordion/models")).json()["models"]
    row = next(row for row in listed if row["model"] == "ledger-model")
    assert (row["totals"]["input"], row["window_source"], row["limits"]["window"]) == (721, "default", 120_000)
    # The first words of the user are the name of the session, and nothing else shows them.
    assert known.pop("name") == "For the ledger."
    assert "For the ledger" not in json.dumps([known, listed])


async def test_a_session_that_is_not_there_and_a_limit_that_is_none(proxy: Proxy):
    missing = await get_page(proxy, "/accordion/sessions/s-none")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "session_not_found")
    for wrong in ("0", "-1", "x", "1001", "1e3"):
        reply = await get_page(proxy, f"/accordion/sessions?limit={wrong}")
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "limit")
    assert len((await get_page(proxy, "/accordion/sessions?limit=1")).json()["sessions"]) == 1


async def test_our_own_pages(proxy: Proxy):
    root = (await get_page(proxy, "/")).json()
    assert (root["openai_base_url"], root["anthropic_base_url"]) == (f"{proxy.url}/v1", proxy.url)
    assert root["gemini_base_url"] == proxy.url
    for page in root["see"]:
        assert (await get_page(proxy, page)).status_code == 200
    assert (await get_page(proxy, root["memory"])).status_code == 200
    assert (root["mcp"], root["artifacts"]) == (f"{proxy.url}/mcp", "/accordion/artifacts?session={id}")
    assert (await get_page(proxy, "/nothing")).json()["error"]["code"] == "not_found"
    assert (await get_page(proxy, "/readyz")).json() == {"status": "ok", "store": "ok"}


async def test_a_window_in_the_provider_s_list_of_models_counts_from_then_on(proxy: Proxy):
    catalog = {"data": [{"id": "local-model", "max_model_len": 24_000}]}
    before = await turn(proxy, CHAT, "How full?", label="before-the-list", model="local-model")
    async with proxy.provider(replies_json(catalog, encoding="gzip")):
        reply = await ask(proxy, "GET", "/v1/models", [("Accept-Encoding", "gzip")])
    assert reply.header("content-encoding") == "gzip"
    after = await turn(proxy, CHAT, "How full now?", label="after-the-list", model="local-model")
    assert (before.header("x-accordion-window"), after.header("x-accordion-window")) == ("120000", "24000")
