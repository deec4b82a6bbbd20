"""Undoing a compaction: the next request is as it would be without it, in every worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from accordion.compaction.session_overrides import SessionOverrides
from accordion.model.tenant import TenantScope
from accordion.stores.memory_store import InMemoryStore
from accordion.stores.sqlite import SqliteStore
from tests.growing_conversation import COMPACTED_AT, GrowingConversation, small_window_setup
from tests.http.api_client import client
from tests.pipeline_setup import PipelineSetup, header

TENANT = TenantScope("default", b"key")


def compactions(setup: PipelineSetup, session: str, state: str) -> list[dict[str, Any]]:
    exchanges = client(setup).get(f"/accordion/sessions/{session}/exchanges?limit=1000").json()["exchanges"]
    outcomes = [each["compaction"] for each in reversed(exchanges) if each["compaction"]]
    return [outcome for outcome in outcomes if outcome["state"] == state]


async def compacted(setup: PipelineSetup) -> tuple[GrowingConversation, str, str]:
    """A conversation, its session, and the id of its compaction."""
    talk = GrowingConversation(setup)
    session = header(await talk.until(COMPACTED_AT + 1), "x-accordion-session")
    assert session is not None
    (made,) = compactions(setup, session, "compacted")
    return talk, session, made["id"]


def undo(setup: PipelineSetup, session: str, compaction: str) -> Any:
    return client(setup).post(f"/accordion/sessions/{session}/compactions/{compaction}/undo")


async def test_the_next_request_after_an_undo_is_the_client_s_own() -> None:
    setup = small_window_setup()
    talk, session, made = await compacted(setup)
    answer = undo(setup, session, made)
    assert (answer.status_code, answer.json()) == (200, {"session": session, "undone": [made]})
    await talk.turn(COMPACTED_AT + 1)
    assert talk.forwarded == talk.bodies[-1]
    decision = client(setup).get(f"/accordion/sessions/{session}").json()["exchanges"][-1]["decision"]
    assert "a compaction was undone; the next is tried at" in decision


async def test_another_compaction_is_made_once_the_history_has_grown() -> None:
    setup = small_window_setup()
    talk, session, made = await compacted(setup)
    undo(setup, session, made)
    await talk.turn(COMPACTED_AT + 1)
    (only,) = compactions(setup, session, "compacted")
    assert only["id"] == made
    await talk.turn(COMPACTED_AT + 3)
    _, second = compactions(setup, session, "compacted")
    assert second["id"] != made
    assert second["generation"] == 1
    await talk.turn(COMPACTED_AT + 3)
    assert compactions(setup, session, "replayed")[-1]["id"] == second["id"]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_other_workers_pass_over_an_undone_compaction(kind: str, tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db", timeout=60.0) if kind == "sqlite" else InMemoryStore()
    one, two = small_window_setup(store=store), small_window_setup(store=store)
    _, session, made = await compacted(one)
    await one.outbox.flush()
    other = GrowingConversation(two)
    await other.until(COMPACTED_AT + 1)
    assert compactions(two, session, "replayed")[-1]["id"] == made
    undo(one, session, made)
    await two.builder.session_overrides.poll()
    await other.turn(COMPACTED_AT + 1)
    assert other.forwarded == other.bodies[-1]
    await store.close()


async def test_compactions_made_from_the_undone_one_are_undone_with_it() -> None:
    setup = small_window_setup()
    talk, session, made = await compacted(setup)
    number = COMPACTED_AT + 1
    while len(compactions(setup, session, "compacted")) < 2:
        number += 1
        await talk.turn(number)
    _, second = compactions(setup, session, "compacted")
    assert undo(setup, session, second["id"]).json()["undone"] == [second["id"]]
    await talk.turn(number + 1)
    assert compactions(setup, session, "replayed")[-1]["id"] == made
    assert {made, second["id"]} <= set(undo(setup, session, made).json()["undone"])
    await talk.turn(number + 2)
    last = client(setup).get(f"/accordion/sessions/{session}").json()["exchanges"][-1]
    assert last["compaction"] is None or last["compaction"]["id"] not in (made, second["id"])


async def test_an_undo_erases_nothing_and_an_erasure_forgets_it() -> None:
    setup = small_window_setup()
    _, session, made = await compacted(setup)
    http = client(setup)
    (artifact, *_) = http.get(f"/accordion/artifacts?session={session}").json()["artifacts"]
    undo(setup, session, made)
    assert http.get(f"/accordion/artifacts/{artifact['id']}").status_code == 200
    overrides = setup.builder.session_overrides
    (loaded,) = await overrides.load(TENANT, [session])
    assert loaded.undone == {made}
    assert http.delete(f"/accordion/sessions/{session}").status_code == 200
    assert await overrides.load(TENANT, [session]) == [SessionOverrides()]
    assert overrides.find_undone(TENANT, session) is None


async def test_only_a_compaction_of_the_session_can_be_undone() -> None:
    setup = small_window_setup()
    _, session, made = await compacted(setup)
    assert undo(setup, session, "f-none").status_code == 404
    assert undo(setup, "s-none", made).status_code == 404
