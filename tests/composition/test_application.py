import asyncio
import logging
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from accordion.composition.application import Application
from accordion.config.load import build
from accordion.config.value_types import is_loopback
from accordion.model.ports import Key
from accordion.model.tenant import TenantScope
from accordion.stores.worker_sync import StoreBoard, UnknownWorkers, shared_slots
from tests.compaction.compactor_setup import conversation, long_history

TENANT = TenantScope("tenant", b"space" * 6)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "localhost", "::1"])
def test_these_addresses_are_this_machines_alone(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "127.example.com", "localhost.example.com", "::1234", ""])
def test_these_are_not(host: str) -> None:
    assert not is_loopback(host)


async def test_the_last_records_are_written_when_the_proxy_stops(tmp_path: Path) -> None:
    settings = build(
        f"store: {{url: 'sqlite:///{tmp_path}/kept.db', timeout_seconds: 60, write_timeout_seconds: 60}}".encode(),
        {},
        {},
    )
    said = conversation(long_history(3), "chat")
    application = Application(settings, {})
    await application.start()
    application.forward.responder.response_history.transcripts.record(TENANT, "s-1", said, compacted=True)
    await application.stop()
    again = Application(settings, {})
    try:
        kept = await again.forward.responder.response_history.transcripts.original(TENANT, "s-1")
    finally:
        await again.stop()
    assert kept is not None
    assert kept.missing == 0
    assert all(message.wire in kept.body for message in said.messages)


@pytest.mark.parametrize(
    ("config", "others"),
    [
        ("store: {url: 'memory://'}", None),
        ("store: {url: 'sqlite:///kept.db'}", StoreBoard),
        ("{store: {url: 'sqlite:///kept.db'}, server: {workers: 2}}", StoreBoard),
        ("store: {url: 'redis://127.0.0.1:1'}", UnknownWorkers),
        ("{store: {url: 'redis://127.0.0.1:1'}, server: {workers: 2}}", UnknownWorkers),
    ],
)
async def test_a_worker_knows_whether_others_may_serve_the_same_conversations(
    config: str, others: type | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = build(config.encode(), {}, {})
    application = Application(settings, {}, shared_slots() if settings.server.workers > 1 else None)
    try:
        found = application.forward.reader.identifier.sessions.worker_sync
        assert (found if found is None else type(found)) is others
    finally:
        await application.stop()


async def test_a_store_in_memory_that_lets_go_of_what_is_oldest_was_not_emptied(caplog: pytest.LogCaptureFixture):
    application = Application(build(b"store: {url: 'memory://'}", {}, {}), {})
    await application.start()
    with caplog.at_level(logging.WARNING, "accordion"):
        for number in range(70):
            await application.store.put(Key("c", f"{number}"), b"x" * 2**20)
        await application.poll()
    assert await application.store.get(Key("c", "0")) is None
    assert caplog.messages == []
    await application.stop()


async def test_a_worker_flushes_its_pending_writes_when_it_learns_of_an_erasure() -> None:
    application = Application(build(b"store: {url: 'memory://'}", {}, {}), {})
    try:
        application.outbox.slow_queue().put(Key("c", "k"), lambda: b"v")
        await application.forward.responder.recorder.erasures.publish(TENANT, "s-1")
        # Without it that would take a second.
        for _ in range(50):
            await asyncio.sleep(0)
        assert await application.store.get(Key("c", "k")) == b"v"
    finally:
        await application.stop()


def test_health_says_how_this_proxy_serves_agents() -> None:
    application = Application(build(b"{store: {url: 'memory://'}, server: {responses_websocket: relay}}", {}, {}), {})
    health = TestClient(application.app()).get("/healthz").json()
    assert (health["responses_websocket"], health["reaches_anthropic"]) == ("relay", True)
