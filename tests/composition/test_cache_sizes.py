"""The caches of a worker take about as many bytes as they state, so that limits of bytes are limits of memory."""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

from accordion.compaction.repository import CompactionRepository
from accordion.config import Settings
from accordion.features.offline.offline_pipeline import OfflinePipeline
from accordion.insertions.store import InsertionStore
from accordion.model.cache import BoundedCache, count_entry
from accordion.model.http import Inbound
from accordion.protocols.body_reader import BodyReader
from accordion.summaries.facts import WordClassifier
from tests.object_sizes import retained_bytes

LOWEST, HIGHEST = 0.7, 1.5
LEAST = 20_000
"""Bytes below which a cache is not compared: the fixed parts of its dictionary weigh too much."""
_OWNERS = (BoundedCache, CompactionRepository, InsertionStore, BodyReader, WordClassifier)
WORDS = [f"{first}{last}" for first in ("rent", "mill", "sea", "cold", "north") for last in ("al", "ed", "ward", "er")]


class AgentConversation:
    """An agent's conversation with tool calls, whose texts are made of words and names."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._names = ["src/begin.py"]
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": f"Please rename {self._text(40)}"}]

    def grow(self, calls: int) -> None:
        """Adds calls with their results, an answer, and the user's next request."""
        for _ in range(calls):
            call_id, path = f"call_{self._random.getrandbits(60):x}", self._name()
            function = {"name": "read_file", "arguments": json.dumps({"path": path, "why": self._text(12)})}
            call = {"id": call_id, "type": "function", "function": function}
            self.messages.append({"role": "assistant", "content": self._text(10), "tool_calls": [call]})
            self.messages.append({"role": "tool", "tool_call_id": call_id, "content": self._text(350)})
        self.messages.append({"role": "assistant", "content": f"{self._text(40)} – done"})
        question = f"Always use {self._name()}. What is in {self._random.choice(self._names)}? {self._text(20)}"
        self.messages.append({"role": "user", "content": question})

    def _name(self) -> str:
        self._names = [*self._names, f"src/part_{self._random.getrandbits(40):x}.py"]
        return self._names[-1]

    def _text(self, words: int) -> str:
        return " ".join(
            self._name() if self._random.random() < 0.05 else self._random.choice(WORDS) for _ in range(words)
        )


async def _send(pipeline: OfflinePipeline, conversation: AgentConversation, name: str) -> None:
    body = json.dumps({"model": "any", "messages": conversation.messages}).encode()
    headers = ((b"content-type", b"application/json"), (b"x-accordion-session", name.encode()))
    await pipeline.process(Inbound("POST", "/v1/chat/completions", "", headers, body, name), pipeline.caller)


def _caches(others: Sequence[object]) -> Iterator[tuple[str, int, tuple[object, ...]]]:
    """Yields the name, the stated bytes and the content of each cache that is bounded by bytes and is not of others."""
    known = {id(each) for each in others}
    for owner in gc.get_objects():
        if id(owner) in known:
            continue
        if isinstance(owner, BoundedCache):
            if owner._size_of is not count_entry:
                keys = ", ".join(sorted({type(value).__name__ for _, value in owner.items()}))
                yield f"cache of {keys}", owner.size, (owner._entries,)
        elif isinstance(owner, CompactionRepository):
            yield "compactions", owner.size, (owner._cached,)
        elif isinstance(owner, InsertionStore):
            yield "insertions", owner.size, (owner._cached, owner._anchors, owner._evicted, owner._loaded)
        elif isinstance(owner, BodyReader):
            yield "bodies", owner.remembered_bytes, (owner._prefixes._prefixes, owner._prefixes._index)
        elif isinstance(owner, WordClassifier):
            yield "words", owner._size, (owner,)


async def test_each_cache_takes_about_the_bytes_that_it_states() -> None:
    of_other_tests = [each for each in gc.get_objects() if isinstance(each, _OWNERS)]
    pipeline = OfflinePipeline(Settings(), 40_000)
    try:
        for number in range(6):
            conversation = AgentConversation(number)
            for calls in (20, 20, 3, 3, 20, 20, 3, 3):
                conversation.grow(calls)
                await _send(pipeline, conversation, f"session-{number}")
        sizes = [(name, stated, retained_bytes(*content)) for name, stated, content in _caches(of_other_tests)]
    finally:
        await pipeline.close()
    compared = [each for each in sizes if max(each[1:]) >= LEAST]
    assert len({name for name, _, _ in compared}) >= 12
    assert [each for each in compared if not LOWEST <= each[2] / each[1] <= HIGHEST] == []
