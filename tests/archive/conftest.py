"""The stores that an archive may be on."""

from __future__ import annotations

from pathlib import Path

import pytest

from accordion.stores.memory_store import InMemoryStore
from accordion.stores.redis import RedisStore
from accordion.stores.sqlite import SqliteStore
from tests.valkey import Valkey


@pytest.fixture(params=["memory", "sqlite", "valkey"])
async def store(request: pytest.FixtureRequest, tmp_path: Path):
    if request.param == "memory":
        made = InMemoryStore()
    elif request.param == "sqlite":
        made = SqliteStore(tmp_path / "archive.db", timeout=5.0)
    else:
        server: Valkey = request.getfixturevalue("valkey_server")
        server.command("FLUSHALL")
        made = RedisStore(server.url, timeout=5.0)
    yield made
    await made.close()
