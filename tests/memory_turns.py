"""What tests share of memories that are put into a conversation: requests, whose memories they are, and that they
stay."""

from __future__ import annotations

import json
from typing import Any

from accordion.model.memories import Memory
from tests.insertions.test_artifact_recall import assistant_entry, build_request, sent, user_entry
from tests.memory.fake_memories import FakeMemories
from tests.pipeline_setup import PipelineSetup

Json = dict[str, Any]


def store_memories(of: PipelineSetup, memories: FakeMemories, *kept: Memory, key: str = "") -> None:
    """Stores memories of a tenant."""
    caller = of.forward.tenants.identify({b"x-accordion-key": key.encode()} if key else {})
    memories.of(caller.tenant).memories.update({each.id: each for each in kept})


def is_forwarded_unchanged(made: PipelineSetup, body: Json) -> bool:
    """Whether the provider got the last request as it came."""
    return made.upstream.requests[-1].body == json.dumps(body).encode()


async def check_memories_stay(
    made: PipelineSetup, other: PipelineSetup, memories: FakeMemories, path: str, ask: str
) -> None:
    """Checks that another worker inserts the same text behind `ask` after the memories are gone."""
    await made.ask(path, build_request(path, user_entry(path, ask)))
    before = sent(made, path)
    memories.tenants.clear()
    await other.ask(
        path, build_request(path, user_entry(path, ask), assistant_entry(path, "Done."), user_entry(path, "Go on."))
    )
    assert sent(other, path)[: len(before)] == before
