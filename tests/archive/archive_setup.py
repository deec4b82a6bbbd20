"""An archive with transcripts, retention and erasure around it, on any store."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accordion.archive.archive import Archive, CompactionWrite
from accordion.archive.artifacts import ArchivedMessage, Artifact
from accordion.archive.erasure import ExportAndErasure
from accordion.archive.erasure_notices import ErasureNotices
from accordion.archive.retention import Retention, SweepResult
from accordion.archive.transcripts import Record, TranscriptStore
from accordion.compaction.export_format import describe_value
from accordion.model.conversation import Conversation
from accordion.model.ports import Key, KeyValueStore, Sealer
from accordion.model.tenant import TenantScope
from accordion.protocols.registry import PROTOCOLS
from accordion.protocols.written_messages import WrittenMessageReader
from accordion.stores.encryption import AesSealer
from accordion.stores.memory_store import InMemoryStore
from accordion.stores.spool import SpooledStore
from tests.compaction.compactor_setup import LoopTasks, read
from tests.fakes import FakeClock
from tests.spools import with_spool

TENANT, OTHER = TenantScope("tenant", b"tenant key " * 3), TenantScope("other", b"another tenant")
KEY = bytes(range(32))
DAY = 86_400.0


@dataclass
class ArchiveSetup:
    """An archive, its retention, transcripts, export and erasure."""

    store: KeyValueStore = field(default_factory=InMemoryStore)
    sealer: Sealer | None = field(default_factory=lambda: AesSealer([KEY]))
    mode: Record = "compacted"
    max_bytes: int = 2**30
    retention: float = 30 * DAY
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.tasks = LoopTasks()
        self.swept: list[SweepResult] = []
        self.bounds = Retention(
            self.store, self.tasks, self.clock, max_bytes=self.max_bytes, retention=self.retention,
            on_sweep=self.swept.append,
        )  # fmt: skip
        self.archive = Archive(
            self.store, self.retention, sealer=self.sealer, clock=self.clock, on_write=self.bounds.note_write
        )
        self.transcripts = TranscriptStore(self.archive, self.tasks, self.clock, self.mode)
        self.erasures = ErasureNotices(self.store, self.clock, self.retention)
        self.erasures.listen(lambda tenant, session: self.archive.forget())
        self.erasures.listen(self.transcripts.forget)
        self.spool = self.waiting()
        reader = WrittenMessageReader()
        self.export_and_erasure = ExportAndErasure(
            self.archive,
            self.tasks,
            describe_value,
            lambda protocol_name, tenant: reader.reader_for(PROTOCOLS[protocol_name], tenant),
            self.erasures,
            self.spool.drop_erased,
        )

    def waiting(self, path: Path | None = None) -> SpooledStore:
        """The store with a spool, at `path` where that is given."""
        spooled = with_spool(self.store, path)
        spooled.find_erased = self.erasures.find_erased
        return spooled

    async def say(
        self, session: str, client: Conversation, *, compacted: bool = True, tenant: TenantScope = TENANT
    ) -> None:
        """Records a request of a session."""
        self.transcripts.record(tenant, session, client, compacted=compacted)
        await self.tasks.done()

    async def leave(
        self, name: str, session: str = "s-1", wires: Sequence[bytes] = (b'{"role":"user","content":"x"}',), **more: Any
    ) -> list[Artifact]:
        """Stores a compaction `f-name` whose removed messages are an artifact each."""
        rows = [ArchivedMessage(hashlib.sha256(wire).digest(), wire) for wire in wires]
        base, tenant = more.get("base", ""), more.get("tenant", TENANT)
        artifacts = [
            Artifact(f"art_{name}_{at}", "part", "chat", (row.key,), at, at, 0, session=session, scope=b"x")
            for at, row in enumerate(rows)
        ]
        keys = (Key("", f"compaction/{name}"),)
        leaving = CompactionWrite(f"f-{name}", session, self.clock.now(), f"f-{base}" if base else "", keys, 10)
        await self.archive.write(self.archive.build_puts(tenant, rows, artifacts, leaving))
        await self.store.put(keys[0], self.archive.sealed_put(tenant, keys[0], b"the compaction").value)
        return artifacts

    async def there(self, artifact: Artifact, tenant: TenantScope = TENANT) -> bool:
        """Whether an artifact can be read, whole."""
        found = (await self.archive.load_artifacts(tenant, [artifact.id]))[0]
        return found is not None and set(await self.archive.load_rows(tenant, found.keys)) == set(found.keys)


def chat(*texts: str, system: str | None = "You are an agent.", **fields: Any) -> Conversation:
    """A chat request in which user and assistant take turns."""
    listed = [{"role": "system", "content": system}] if system else []
    listed += [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]
    return read({"model": "gpt-5", "messages": listed, **fields}, "chat")


def wire(text: str) -> bytes:
    """A message's JSON."""
    return json.dumps({"role": "user", "content": text}).encode()
