"""`accordion compact`: a session is compacted at its next request, or a compaction is undone."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from accordion.compaction.session_overrides import MOST_PINS, SessionOverrides, SessionOverrideStore
from accordion.sessions.tenants import Tenants
from accordion.stores.sqlite import SqliteStore
from tests.cli.test_artifacts import SECRET, FilledStore, fill_store


@pytest.fixture
def store(tmp_path: Path) -> FilledStore:
    return fill_store(tmp_path)


def read_overrides(store: FilledStore) -> SessionOverrides:
    tenant = Tenants(SECRET.encode(), ()).scope(json.loads(store.run("tenants", "--json").stdout)["tenant"])

    async def read() -> SessionOverrides:
        kept: Any = SqliteStore(store.config.parent / "kept.db", timeout=30.0)
        (overrides,) = await SessionOverrideStore(kept).load(tenant, [store.tenants["default"]])
        await kept.close()
        return overrides

    return asyncio.run(read())


def test_the_next_request_of_a_session_is_to_be_compacted(store: FilledStore) -> None:
    done = store.run("compact", store.tenants["default"])
    assert (done.exit_code, "the next request is compacted" in done.stdout) == (0, True), done.output
    assert read_overrides(store).wants_compaction


def test_a_compaction_is_undone(store: FilledStore) -> None:
    compaction = re.search(r"f-[0-9a-f]{24}", store.run("export").stdout)[0]  # type: ignore[index]
    done = store.run("compact", store.tenants["default"], "--undo", compaction)
    assert (done.exit_code, compaction in done.stdout) == (0, True), done.output
    assert read_overrides(store).undone == {compaction}


@pytest.mark.parametrize("words", [["s-unknown"], ["s-unknown", "--undo", "f-1"]])
def test_an_unknown_session_is_reported(store: FilledStore, words: list[str]) -> None:
    done = store.run("compact", *words)
    assert (done.exit_code, "no such session" in done.output) == (1, True)


def test_a_compaction_of_another_session_is_not_undone(store: FilledStore) -> None:
    done = store.run("compact", store.tenants["default"], "--undo", "f-000000000000000000000000")
    assert (done.exit_code, "no such compaction" in done.output) == (1, True)


def test_all_compactions_of_a_session_are_undone(store: FilledStore) -> None:
    compactions = set(re.findall(r"f-[0-9a-f]{24}", store.run("export", "--session", store.tenants["default"]).stdout))
    done = store.run("compact", store.tenants["default"], "--undo", "all")
    assert done.exit_code == 0, done.output
    assert read_overrides(store).undone == compactions


def test_pins_are_added_removed_and_listed(store: FilledStore) -> None:
    session = store.tenants["default"]
    assert store.run("pin", session).stdout == f"{session}: no pins\n"
    assert store.run("pin", session, "call_2", "call_1").stdout == "call_1\ncall_2\n"
    assert store.run("pin", session, "call_2", "--remove").stdout == "call_1\n"
    assert read_overrides(store).pins == {"call_1"}
    assert store.run("pin", "s-unknown").exit_code == 1
    many = [f"call_{number}" for number in range(MOST_PINS)]
    assert "pins at most" in store.run("pin", session, "more", *many).output
