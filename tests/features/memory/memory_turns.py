"""What tests share of memories that are put into a conversation: whose they are, and whether a request was changed."""

from __future__ import annotations

import json
from typing import Any

from accordion.features.memory.memories import Memory
from tests.features.memory.fake_memories import FakeMemories
from tests.pipeline_setup import PipelineSetup

Json = dict[str, Any]


def store_memories(of: PipelineSetup, memories: FakeMemories, *kept: Memory, key: str = "") -> None:
    """Stores memories of a tenant."""
    caller = of.forward.tenants.identify({b"x-accordion-key": key.encode()} if key else {})
    memories.of(caller.tenant).memories.update({each.id: each for each in kept})


def is_forwarded_unchanged(made: PipelineSetup, body: Json) -> bool:
    """Whether the provider got the last request as it came."""
    return made.upstream.requests[-1].body == json.dumps(body).encode()
