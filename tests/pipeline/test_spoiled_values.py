"""One value of the store that cannot be decoded is left out: all others are listed, and everything can be erased."""

from __future__ import annotations

from typing import Any

import pytest

from accordion.pipeline.queries import erase
from tests.growing_conversation import GrowingConversation, small_window_setup
from tests.pipeline_setup import CHAT, PipelineSetup

HELLO: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "one two three"}]}


async def spoil(setup: PipelineSetup) -> list[str]:
    """Cuts each value of the store in half; returns the collections."""
    collections = set()
    for key, stored in list(setup.store._values.items()):
        await setup.store.put(key, stored.value[: len(stored.value) // 2])
        collections.add((key.collection or key.name).partition("/")[0])
    for log in setup.store._logs.values():
        log.entries = type(log.entries)(entry[: len(entry) // 2] for entry in log.entries)
    return sorted(collections)


@pytest.mark.parametrize(("turns", "has_archive"), [(1, False), (12, True)])
async def test_lists_and_erasures_leave_spoiled_values_out(turns: int, has_archive: bool) -> None:
    setup = small_window_setup()
    conversation = GrowingConversation(setup)
    for turn in range(1, turns + 1):
        await conversation.turn(turn)
    caller, queries = setup.forward.tenants.identify({}), setup.observe
    session = setup.recorder.exchanges[-1].session
    await setup.outbox.flush()
    assert {"sessions", "models", "savings"} <= set(await spoil(setup))
    assert await queries.list_sessions(caller.tenant) == []
    assert await queries.list_models(caller.tenant) == []
    assert await queries.read_points(caller.tenant, session) == []
    assert await queries.find_session(caller.tenant, session) is None
    await queries.read_savings(caller.tenant, setup.clock.now())
    await queries.read_holdout([caller.tenant], setup.clock.now())
    assert [title async for title in queries.scan_titles(caller.tenant, None)] == []
    for is_verified in (not has_archive, True):
        _, erased = await erase(queries, setup.builder.export_and_erasure, setup.builder.session_overrides, caller)
        assert erased.verified is is_verified
    await setup.ask(CHAT, HELLO)
    assert len(await queries.list_sessions(caller.tenant)) == 1
