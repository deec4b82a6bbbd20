"""Requests as the proxy takes them through the room: seat, filter, session, place, and the reply's calls."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Coroutine, Sequence
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
from tests.fakes import DirectOutbox, FakeClock, FakeTasks

ALICE = Caller(TenantScope("alice", b"a" * 32), False, "")
BOB = Caller(TenantScope("bob", b"b" * 32), False, "")

Call = tuple[str, str, str]
"""Id, name, arguments."""


class LaterTasks(FakeTasks):
    """Keeps what is spawned until it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Coroutine[Any, Any, Any]] = []

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        self.waiting.append(work)

    def __del__(self) -> None:
        for work in self.waiting:
            work.close()

    async def run(self) -> None:
        while self.waiting:
            await self.waiting.pop(0)


def said(role: str, *parts: Part) -> Message:
    key = hashlib.sha256(repr((role, parts)).encode()).digest()
    return Message(key, role, parts, b"")  # type: ignore[arg-type]


def user(*texts: str) -> Message:
    return said("user", *map(Text, texts))


def calls(*made: Call, text: str = "") -> Message:
    return said("assistant", *([Text(text)] if text else []), *(ToolCall(*call) for call in made))


def result(call_id: str, text: str = "done", *, error: bool = False) -> Message:
    return said("tool", ToolResult(call_id, (Text(text),), error))


def talk(messages: Sequence[Message], *, caller: Caller = ALICE, tools: Sequence[str] = (), system: str = "",
         previous: str | None = None) -> Conversation:  # fmt: skip
    chain, key = [], hashlib.sha256(caller.tenant.key).digest()
    for message in messages:
        key = hashlib.sha256(key + message.key).digest()
        chain.append(key)
    offered = tuple(json.dumps({"type": "function", "function": {"name": name}}) for name in tools)
    overhead = hashlib.sha256(repr((system, offered)).encode()).digest()
    return Conversation(
        "chat", "m", tuple(messages), tuple(chain), tools=offered, overhead_key=overhead, previous=previous
    )


def marks(**headers: str) -> ClientMetadata:
    """Marks by headers, with `_` for `-`."""
    return read_client_metadata(
        {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}, {}
    )


def own(delegation: str, parent: str = "", **more: str) -> ClientMetadata:
    """Marks of a client that says which delegation it is."""
    return marks(x_accordion_delegation=delegation, **({"x_accordion_parent": parent} if parent else {}), **more)


@dataclass
class Asked:
    """One request, once it was let through."""

    seat: AgentPosition
    hidden: HiddenResults
    session: str
    conversation: Conversation

    @property
    def unseen(self) -> set[str]:
        """The ids of the calls whose results are hidden."""
        parts = (self.conversation.messages[at].parts[part] for at, part in self.hidden.owners)
        return {part.call_id for part in parts if isinstance(part, ToolResult)}


@dataclass
class Worker:
    """One worker's room over a store that others may share."""

    store: KeyValueStore = field(default_factory=InMemoryStore)
    name: str = "w1"
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.outbox, self.clock, self.tasks = DirectOutbox(self.store), FakeClock(), LaterTasks()
        self.lineage = DelegationTracker.build(self.store, self.outbox, self.clock, self.tasks, **self.settings)
        self.sessions = Sessions(self.store, self.outbox, self.clock, self.name)
        self.requests = 0

    async def ask(self, conversation: Conversation, said: ClientMetadata | None = None, made: Sequence[Call] = (),
                  *, caller: Caller = ALICE, anew: bool = False, shown: int = -1) -> Asked:  # fmt: skip
        """Takes a request through, and the reply that makes these calls."""
        said = said or ClientMetadata()
        self.requests += 1
        seat = self.lineage.find_top_position(said, conversation) or await self.lineage.find_position(
            caller, said, conversation
        )
        hidden = await self.lineage.find_hidden(caller, seat, conversation, shown, recompute=anew)
        label = f"{said.session}|{seat.scope}" if seat.scope else said.session
        # Places are divided by scope where a seat has one.
        divided = ClientMetadata(label, said.agent) if label or said.agent else said
        place = await self.sessions.resolve(caller, divided, conversation, f"{self.name}.r{self.requests}")
        session = place.session.id
        seat = await self.lineage.attach_session(caller, seat, session, conversation, is_new=place.base_node is None)
        self.lineage.record_calls(caller, seat, session, conversation, [ObservedCall(*call) for call in made])
        return Asked(seat, hidden, session, conversation)

    async def settle(self) -> None:
        """Everything that was to be written or done later is."""
        await self.outbox.flush()
        await self.tasks.run()
        await self.outbox.flush()
