"""A worker's part of a request: position, hidden results, session, and the calls of the response."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from accordion.delegation.tracker import DelegationTracker
from accordion.delegation.visibility_decisions import HiddenResults
from accordion.model.conversation import Conversation, Message, Part, Text, ToolCall, ToolResult
from accordion.model.delegation import AgentPosition
from accordion.model.ports import KeyValueStore
from accordion.model.records import ObservedCall
from accordion.model.tenant import TenantScope
from accordion.sessions.client_metadata import ClientMetadata, read_client_metadata
from accordion.sessions.sessions import Sessions
from accordion.sessions.tenants import Caller
from accordion.stores.memory_store import InMemoryStore
from tests.fakes import DirectOutbox, FakeClock, WaitingTasks

ALICE = Caller(TenantScope("alice", b"a" * 32), False, "")
BOB = Caller(TenantScope("bob", b"b" * 32), False, "")

Call = tuple[str, str, str]
"""Id, name, arguments."""


def message(role: str, *parts: Part) -> Message:
    key = hashlib.sha256(repr((role, parts)).encode()).digest()
    return Message(key, role, parts, b"")  # type: ignore[arg-type]


def user(*texts: str) -> Message:
    return message("user", *map(Text, texts))


def calls(*made: Call, text: str = "") -> Message:
    return message("assistant", *([Text(text)] if text else []), *(ToolCall(*call) for call in made))


def result(call_id: str, text: str = "done", *, error: bool = False) -> Message:
    return message("tool", ToolResult(call_id, (Text(text),), error))


def talk(messages: Sequence[Message], *, caller: Caller = ALICE, tools: Sequence[str] = (), system: str = "",
         continued_id: str = "") -> Conversation:  # fmt: skip
    chain, key = [], hashlib.sha256(caller.tenant.key).digest()
    for message in messages:
        key = hashlib.sha256(key + message.key).digest()
        chain.append(key)
    offered = tuple(json.dumps({"type": "function", "function": {"name": name}}) for name in tools)
    overhead = hashlib.sha256(repr((system, offered)).encode()).digest()
    return Conversation(
        "chat", "m", tuple(messages), tuple(chain), tools=offered, overhead_key=overhead, continued_id=continued_id
    )


def metadata(**headers: str) -> ClientMetadata:
    """The metadata of a request with these headers, `_` for `-`."""
    return read_client_metadata(
        {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}, {}
    )


def declared_metadata(delegation: str, parent: str = "", **more: str) -> ClientMetadata:
    """The metadata of a client that declares its delegation."""
    return metadata(x_accordion_delegation=delegation, **({"x_accordion_parent": parent} if parent else {}), **more)


@dataclass
class ServedRequest:
    """A request behind its visibility, and its session."""

    position: AgentPosition
    hidden: HiddenResults
    session: str
    conversation: Conversation

    @property
    def hidden_call_ids(self) -> set[str]:
        """The ids of the calls whose results are hidden."""
        parts = (self.conversation.messages[at].parts[part] for at, part in self.hidden.owners)
        return {part.call_id for part in parts if isinstance(part, ToolResult)}


@dataclass
class Worker:
    """A worker's delegations and sessions, over a store that workers may share."""

    store: KeyValueStore = field(default_factory=InMemoryStore)
    name: str = "w1"
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.outbox, self.clock, self.tasks = DirectOutbox(self.store), FakeClock(), WaitingTasks()
        self.tracker = DelegationTracker.build(self.store, self.outbox, self.clock, self.tasks, **self.settings)
        self.sessions = Sessions(self.store, self.outbox, self.clock, self.name)
        self.requests = 0

    async def ask(self, conversation: Conversation, metadata: ClientMetadata | None = None, made: Sequence[Call] = (),
                  *, caller: Caller = ALICE, anew: bool = False, shown: int = -1) -> ServedRequest:  # fmt: skip
        """Serves a request, and a response with these calls."""
        metadata = metadata or ClientMetadata()
        self.requests += 1
        position = self.tracker.find_top_position(metadata, conversation) or await self.tracker.find_position(
            caller, metadata, conversation
        )
        hidden = await self.tracker.find_hidden(caller, position, conversation, shown, recompute=anew)
        label = f"{metadata.session}|{position.partition}" if position.partition else metadata.session
        # A position with a scope has prefixes of its own.
        divided = ClientMetadata(label, metadata.agent) if label or metadata.agent else metadata
        place = await self.sessions.resolve(caller, divided, conversation, f"{self.name}.r{self.requests}")
        session = place.session.id
        position = await self.tracker.attach_session(
            caller, position, session, conversation, is_new=place.base_node is None
        )
        self.tracker.record_calls(caller, position, session, conversation, [ObservedCall(*call) for call in made])
        return ServedRequest(position, hidden, session, conversation)

    async def settle(self) -> None:
        """Runs all pending writes and tasks."""
        await self.outbox.flush()
        await self.tasks.run()
        await self.outbox.flush()
