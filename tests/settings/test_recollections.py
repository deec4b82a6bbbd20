"""`memory.recall`: what the file may say, and what is built of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accordion.core.errors import ConfigError
from accordion.core.http import Inbound
from accordion.identity.marks import Marks
from accordion.offline.rooms import Rooms
from accordion.recollecting import Bounds
from accordion.settings import Settings
from accordion.settings.load import build
from accordion.wiring import House
from accordion.wiring.memory import Library

STORE = "store: {url: 'memory://'}\n"


def read(text: str) -> Settings:
    return build(f"{STORE}{text}".encode(), {}, {})


def test_by_default_nothing_is_recalled() -> None:
    assert not read("").memory.recall.enabled


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("enabled: true}, enabled: false", "$.memory.recall.enabled"),
        ("enabled: perhaps}", "$.memory.recall.enabled"),
        ("tokens: 0}", "$.memory.recall.tokens"),
        ("memories: 21}", "$.memory.recall.memories"),
        ("relevance: 1.1}", "$.memory.recall.relevance"),
        ("wait_seconds: 0}", "$.memory.recall.wait_seconds"),
        ("wait_seconds: 31}", "$.memory.recall.wait_seconds"),
        ("all_project: true}", "$.memory.recall.all_project"),
    ],
)
def test_what_makes_no_sense_is_an_error_at_its_key(text: str, path: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(f"memory: {{recall: {{{text}}}")
    assert refused.value.path == path  # type: ignore[attr-defined]


async def test_what_the_file_says_is_in_force_and_follows_it() -> None:
    house = House(read(""), {})
    try:
        assert house.forward.folding.recollecting is None
        assert divided(house) == ""
        more = "tokens: 500, memories: 2, relevance: 0.5, wait_seconds: 0.25"
        house.swap(read(f"memory: {{project: ledger, recall: {{enabled: true, {more}}}}}"))
        recollecting = house.forward.folding.recollecting
        assert recollecting is not None
        assert recollecting.bounds == Bounds(500, 2, 0.5, 0.25, "ledger")
        assert divided(house) == "ledger"
        assert divided(house, "audits") == "audits"
        house.swap(read("memory: {project: ledger, recall: {enabled: true, all_projects: true}}"))
        assert house.forward.folding.recollecting is not None
        assert house.forward.folding.recollecting.bounds.everywhere
        assert divided(house) == divided(house, "audits") != ""
        house.swap(read("memory: {project: ledger}"))
        assert house.forward.folding.recollecting is None
        assert divided(house, "audits") == ""
    finally:
        await house.stop()


def divided(house: House, project: str | None = None) -> Any:
    return house.forward.gauging.mentions.divided(Marks(), project).scope


async def test_explaining_and_replaying_open_no_memories(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Library] = []
    monkeypatch.setattr(Library, "rooms", opened.append)
    rooms = Rooms(read("memory: {recall: {enabled: true}}"))
    try:
        said = [{"role": "user", "content": "Which region does the ledger replicate to?"}]
        body = json.dumps({"model": "gpt-4o", "messages": said}).encode()
        gauge = await rooms.fold(Inbound("POST", "/v1/chat/completions", "", (), body, "r"), rooms.caller)
        assert gauge.remembers
        assert opened == []
    finally:
        await rooms.close()
