"""Requests as the proxy takes them through the room: seat, filter, session, place, and the reply's calls."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from accordion.core.conversation import Conversation, Message, Part, Text, ToolCall, ToolResult
from accordion.core.delegation import Seat
from accordion.core.ports import Store
from accordion.core.records import CallSeen
from accordion.identity.lineage import Lineage
from accordion.identity.marks import Marks, read_marks
from accordion.identity.sessions import Sessions
from accordion.identity.shown import Hidden
from accordion.identity.tenants import Caller
from accordion.storage.ephemeral import EphemeralStore
from tests.fakes import DirectOutbox, FakeClock, FakeTasks

ALICE = Caller("alice", b"a" * 32, False, "")
BOB = Caller("bob", b"b" * 32, False, "")

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
    chain, key = [], hashlib.sha256(caller.space).digest()
    for message in messages:
        key = hashlib.sha256(key + message.key).digest()
        chain.append(key)
    offered = tuple(json.dumps({"type": "function", "function": {"name": name}}) for name in tools)
    overhead = hashlib.sha256(repr((system, offered)).encode()).digest()
    return Conversation(
        "chat", "m", tuple(messages), tuple(chain), tools=offered, overhead_key=overhead, previous=previous
    )


def marks(**headers: str) -> Marks:
    """Marks by headers, with `_` for `-`."""
    return read_marks({name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}, {})


def own(delegation: str, parent: str = "", **more: str) -> Marks:
    """Marks of a client that says which delegation it is."""
    return marks(x_accordion_delegation=delegation, **({"x_accordion_parent": parent} if parent else {}), **more)


@dataclass
class Asked:
    """One request, once it was let through."""

    seat: Seat
    hidden: Hidden
    session: str
    conversation: Conversation

    @property
    def unseen(self) -> set[str]:
        """The ids of the calls whose results are hidden."""
        parts = (self.conversation.messages[at].parts[part] for at, part in self.hidden.scopes)
        return {part.call_id for part in parts if isinstance(part, ToolResult)}


@dataclass
class Worker:
    """One worker's room over a store that others may share."""

    store: Store = field(default_factory=EphemeralStore)
    name: str = "w1"
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.outbox, self.clock, self.tasks = DirectOutbox(self.store), FakeClock(), LaterTasks()
        self.lineage = Lineage.build(self.store, self.outbox, self.clock, self.tasks, **self.settings)
        self.sessions = Sessions(self.store, self.outbox, self.clock, self.name)
        self.requests = 0

    async def ask(self, conversation: Conversation, said: Marks | None = None, made: Sequence[Call] = (),
                  *, caller: Caller = ALICE, anew: bool = False, shown: int = -1) -> Asked:  # fmt: skip
        """Takes a request through, and the reply that makes these calls."""
        said = said or Marks()
        self.requests += 1
        seat = self.lineage.top(said, conversation) or await self.lineage.seat(caller, said, conversation)
        hidden = await self.lineage.hidden(caller, seat, conversation, shown, anew=anew)
        label = f"{said.session}|{seat.scope}" if seat.scope else said.session
        # Places are divided by scope where a seat has one.
        divided = Marks(label, said.agent) if label or said.agent else said
        place = await self.sessions.resolve(caller, divided, conversation, f"{self.name}.r{self.requests}")
        session = place.session.id
        seat = await self.lineage.placed(caller, seat, session, conversation, new=place.base is None)
        self.lineage.answered(caller, seat, session, conversation, [CallSeen(*call) for call in made])
        return Asked(seat, hidden, session, conversation)

    async def settle(self) -> None:
        """Everything that was to be written or done later is."""
        await self.outbox.flush()
        await self.tasks.run()
        await self.outbox.flush()
