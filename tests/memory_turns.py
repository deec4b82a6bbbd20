"""What tests share of memories that are put into a conversation: requests, whose memories they are, and that they
stay."""

from __future__ import annotations

import json
from typing import Any

from accordion.model.memories import Memory
from tests.insertions.test_artifact_recall import LISTING, said, sent, user
from tests.memory.fake_memories import FakeMemories
from tests.pipeline_setup import MESSAGES, World

Json = dict[str, Any]


def asking(path: str, *entries: Any, **more: Any) -> Json:
    """A request of these entries."""
    named = {"model": "gpt-5"} if path != MESSAGES else {"model": "claude-sonnet-4-5", "max_tokens": 9}
    return {**named, LISTING[path]: list(entries), **more}


def keep(of: World, memories: FakeMemories, *kept: Memory, key: str = "") -> None:
    """Has a tenant remember something."""
    caller = of.forward.tenants.identify({b"x-accordion-key": key.encode()} if key else {})
    memories.of(caller.tenant).memories.update({each.id: each for each in kept})


def unchanged(made: World, body: Json) -> bool:
    """Whether the provider got the last request as it came."""
    return made.upstream.requests[-1].body == json.dumps(body).encode()


async def stays(made: World, other: World, memories: FakeMemories, path: str, ask: str) -> None:
    """What was put in behind these words is put in by another worker too, whatever became of the memories."""
    await made.ask(path, asking(path, user(ask)))
    before = sent(made, path)
    memories.tenants.clear()
    await other.ask(path, asking(path, user(ask), said(path, "Done."), user("Go on.")))
    assert sent(other, path)[: len(before)] == before
