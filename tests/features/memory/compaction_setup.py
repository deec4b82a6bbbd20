"""Records conversations, and compacts them into memories."""

from __future__ import annotations

from typing import Any

from accordion.features.memory.conversation.message_ranges import RecordedConversations
from accordion.features.memory.extraction.memory_extractor import CompactionCaller, CompactionResponse, MemoryExtractor
from accordion.features.memory.extraction.narration import Narrator
from accordion.model.conversation import Conversation
from accordion.model.tenant import TenantScope
from accordion.protocols.registry import PROTOCOLS
from tests.archive.archive_setup import TENANT, ArchiveSetup
from tests.compaction.compactor_setup import read
from tests.fakes import FakeTasks
from tests.features.memory.fake_memories import FakeMemories

ID = "s-1"
SYSTEM = "You are the agent of Contoso. The release train of Contoso leaves on Fridays at 16:00 from gate B7."


def entry(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def tool_call(name: str, number: int, arguments: str, result: str) -> list[dict[str, Any]]:
    """A call and its result."""
    call = {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": result},
    ]


def talk() -> list[dict[str, Any]]:
    """Somebody and an agent mend a payment service. Seventeen messages, the system prompt among them."""
    return [
        entry("system", SYSTEM),
        entry("user", "Our billing-api service depends on stripe-python and lives in services/billing/app.py."),
        entry("assistant", "I look at it."),
        *tool_call(
            "bash", 1, '{"command":"pytest"}', "E   TypeError: charge() got an unexpected keyword 'idempotency'\n"
        ),
        entry(
            "assistant",
            "The root cause is that `charge()` in services/billing/app.py passes idempotency as a keyword, "
            "which raises the TypeError. Let me fix that.",
        ),
        *tool_call("edit", 2, '{"path":"services/billing/app.py"}', "1 line changed"),
        entry("assistant", "Fixed the TypeError by passing `headers={'Idempotency-Key': key}` in services/billing."),
        entry("user", "I prefer httpx over requests in all of our services. Never commit to the main branch."),
        entry("assistant", "Noted."),
        entry("user", "We decided to keep PostgreSQL 16 for the ledger database instead of MongoDB."),
        entry(
            "assistant",
            "The ledger database uses PostgreSQL 16 on port 5433. It stores bookings in ledger_entries.",
        ),
        entry("user", "It does that. Do this too."),
        entry("assistant", "The retry policy of billing-api is still unclear and needs further investigation."),
        entry("assistant", "The release train of Contoso leaves on Fridays at 16:00 from gate B7."),
        entry("user", "Does the billing-api service retry a failed webhook?"),
    ]


def chat(messages: list[dict[str, Any]], tenant: TenantScope = TENANT) -> Conversation:
    return read({"model": "gpt-4o", "messages": messages}, "chat", tenant)


class CompactionSetup:
    """Recorded conversations and the memories made of them."""

    def __init__(self, narrator: Narrator | None = None) -> None:
        self.archive, self.memories = ArchiveSetup(), FakeMemories()
        self.clock = self.archive.clock
        conversations = RecordedConversations(self.archive.transcripts, PROTOCOLS, FakeTasks())
        self.compactions = MemoryExtractor(
            self.memories, conversations, FakeTasks(), self.clock, self.archive.erasures, narrator
        )

    async def record(self, messages: list[dict[str, Any]], session: str = ID, tenant: TenantScope = TENANT) -> None:
        await self.archive.say(session, chat(messages, tenant), tenant=tenant)

    async def compact(
        self,
        first: int,
        last: int,
        *focus: str,
        session: str = ID,
        tenant: TenantScope = TENANT,
        search: bool = True,
        caller: CompactionCaller | None = None,
    ) -> CompactionResponse:
        """Searches, then compacts."""
        if search:
            await self.compactions.find_completed(tenant, session)
        return await self.compactions.compact(tenant, session, first, last, focus, caller)

    def contents(self, tenant: TenantScope = TENANT) -> list[str]:
        return [memory.content for memory in self.memories.of(tenant).memories.values()]


async def build_setup(messages: list[dict[str, Any]] | None = None, **more: Any) -> CompactionSetup:
    """A setup with one recorded conversation."""
    setup = CompactionSetup(**more)
    await setup.record(talk() if messages is None else messages)
    return setup
