"""The config is read again when it changes and on SIGHUP; a bad one changes nothing, and the log says why."""

import asyncio
import json
import time

import pytest

from tests.conftest import Start
from tests.e2e.protocol_samples import CHAT
from tests.e2e.raw_client import ask, connected, post
from tests.loopback import Answer, Recorded
from tests.proxy_process import Proxy

ENTRY = "  - model_name: {}\n    litellm_params: {{model: openai/gpt-4o, api_base: '{{upstream}}/v1'}}\n"


def config(proxy: Proxy | None, *models: str, more: str = "") -> str:
    listed = "model_list:\n" + "".join(ENTRY.format(name) for name in models) if models else ""
    text = f"server: {{shutdown_seconds: 1}}\n{more}{listed}"
    return text.replace("{upstream}", f"http://127.0.0.1:{proxy.upstream_port}") if proxy else text


@pytest.fixture
def changing(start: Start) -> Proxy:
    return start(config(None, "first"))


async def models(proxy: Proxy) -> list[str]:
    reply = await ask(proxy, "GET", "/v1/models")
    return [model["id"] for model in json.loads(reply.body)["data"]]


async def becomes(proxy: Proxy, *names: str) -> None:
    while await models(proxy) != list(names):
        await asyncio.sleep(0.05)


async def test_a_changed_file_a_bad_one_and_a_signal(changing: Proxy):
    """One story, for each look at the file takes its time."""
    assert await models(changing) == ["first"]
    changing.config.write_text(config(changing, "second"))
    await becomes(changing, "second")

    changing.config.write_text(config(changing, "third") + "  - model_nmae: x\n")
    await changing.says("the settings stay as they are")
    assert "$.model_list[1].model_nmae" in changing.log
    assert "did you mean `model_name`?" in changing.log
    assert await models(changing) == ["second"]

    changing.config.write_text(config(changing, "fourth", more="store: {url: 'sqlite:///other.db'}\n"))
    changing.hup()
    await becomes(changing, "fourth")
    assert not (changing.folder / "other.db").exists()

    changing.config.unlink()
    changing.hup()
    await changing.says("file not found")
    assert await models(changing) == ["fourth"]


async def test_a_file_that_was_taken_is_told_too(changing: Proxy):
    changing.config.write_text(config(changing, "first", "second"))
    changing.hup()
    await becomes(changing, "first", "second")
    await changing.says("the config file was reloaded")


async def test_a_stream_under_way_goes_on_while_settings_change(changing: Proxy):
    events, go_on = CHAT.events("one two"), asyncio.Event()

    async def script(request: Recorded, answer: Answer) -> None:
        await answer.head(200, [("Content-Type", "text/event-stream")], chunked=True)
        await answer.chunk(events[0])
        await go_on.wait()
        await answer.chunk(b"".join(events[1:]))
        await answer.last_chunk()

    async with changing.provider(script), connected(changing) as client:
        await client.ask("POST", CHAT.path, [], CHAT.body("Change.", stream=True))
        reply = await client.head()
        pieces = client.pieces(reply)
        got = await anext(pieces)
        changing.config.write_text(
            config(changing, "new", more="timeouts: {read_seconds: 77}\nlimits: {sessions_in_memory: 6}\n")
        )
        changing.hup()
        await changing.says("changes only at the next start")
        go_on.set()
        async for piece in pieces:
            got += piece
    assert (got, reply.ended) == (b"".join(events), True)


async def test_a_request_that_is_still_coming_in_while_timeouts_change_is_answered(changing: Proxy):
    async with changing.provider(CHAT.answers()) as provider, connected(changing) as client:
        await post(changing, CHAT.path, CHAT.body("Before."))
        body = CHAT.body("Change.")
        head = client.head_of("POST", CHAT.path, [("Content-Type", "application/json")], len(body))
        await client.send(head + body[:-10])
        # It is taken in by the settings of its beginning.
        await asyncio.sleep(0.5)
        changing.config.write_text(config(changing, "other", more="timeouts: {read_seconds: 55}\n"))
        changing.hup()
        await changing.says("the config file was reloaded")
        await provider.all_gone()  # the connection of the request before
        await client.send(body[-10:])
        reply = await client.reply()
    assert reply.status == 200, reply.body


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_signal_during_the_start_is_no_end(start: Start, workers: str):
    proxy = start(config(None, "first"), "--workers", workers)
    proxy.stop()

    def hang_up() -> None:
        # From the greeting on it starts its server, or its workers.
        while proxy.running and "Accordion listens" not in proxy.log:
            time.sleep(0.005)
        for _ in range(20):
            proxy.hup()
            time.sleep(0.02)

    starting = asyncio.create_task(asyncio.to_thread(proxy.start))
    while not proxy.running:
        await asyncio.sleep(0.005)
    await asyncio.to_thread(hang_up)
    await starting
    await proxy.says("the config file was reloaded")
    assert "died" not in proxy.log
    assert await models(proxy) == ["first"]
