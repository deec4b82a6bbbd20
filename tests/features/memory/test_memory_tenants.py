"""`accordion tenants`, `erase` and `memory seal`, of what was remembered."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner, Result

from accordion.archive.feature_records import TENANTS_WITH_FEATURE_RECORDS, erase_feature_records
from accordion.cli.main import app
from accordion.composition.application import Application
from accordion.composition.configured_store import TENANT_SECRET
from accordion.config.load import build
from accordion.features.memory.memories import MemoryFilter
from accordion.sessions.tenants import Tenants
from accordion.stores.open import open_store
from tests.features.memory.memory_stores import memory, put
from tests.features.memory.running import running_memory

KEY, OTHER = "1" * 64, "2" * 64


@dataclass
class TenantStore:
    """A config with a store that nobody has used yet."""

    folder: Path
    keys: str = "[{id: one, key: k-one}, {id: two, key: k-two}]"

    def run(self, *args: str, key: str = "", given: str | None = None) -> Result:
        config = self.folder / "config.yaml"
        archive = f"archive: {{key: '${{NO_SUCH:-{key}}}'}}\n" if key else ""
        store = f"store: {{url: 'sqlite:///{self.folder}/kept.db'}}\n"
        config.write_text(f"{store}{archive}proxy_keys: {self.keys}\n")
        return CliRunner().invoke(app, [*args, "--config", str(config)], input=given)

    def add(self, tenant: str, *words: str, key: str = "") -> None:
        for each in words:
            done = self.run("memory", "add", each, "--tenant", tenant, key=key)
            assert done.exit_code == 0, done.output

    def tenants(self, key: str = "") -> dict[str, int | None]:
        told = self.run("tenants", "--json", key=key).stdout.splitlines()
        return {each["tenant"]: each["memories"] for each in map(json.loads, told)}


def stored_bytes(folder: Path) -> bytes:
    """Returns all bytes of the store's files."""
    return b"".join(path.read_bytes() for path in folder.glob("kept.db*"))


def test_a_tenant_with_only_memories_is_listed_without_its_key(tmp_path: Path) -> None:
    kept = TenantStore(tmp_path)
    kept.add("one", "The ledger runs on PostgreSQL 16.", "Nobody deploys on a Friday.")
    assert kept.tenants() == {"one": 2, "two": 0}
    kept.keys = "[]"
    assert kept.tenants() == {"one": 2}
    assert "memories" in kept.run("tenants").stdout
    found = kept.run("memory", "search", "ledger", "--tenant", "one", "--json")
    assert "ledger" in json.loads(found.stdout)["results"][0]["preview"]


async def test_a_proxy_lists_those_for_whom_something_was_remembered(tmp_path: Path) -> None:
    config = f"store: {{url: 'sqlite:///{tmp_path}/kept.db'}}\nserver: {{host: 0.0.0.0}}\n"
    application = Application(build(config.encode(), {}, {}), {})
    one, two = (application.tenants.identify({b"x-api-key": key}) for key in (b"one", b"two"))
    memories = running_memory(application).load().memories()
    await put(memories, memory("The ledger runs on PostgreSQL 16."), tenant=one.tenant)
    await memories.count(two.tenant, MemoryFilter())
    await application.outbox.flush()
    assert [name for name, _ in await application.store.scan(TENANTS_WITH_FEATURE_RECORDS)] == [one.tenant.name]
    await application.stop()


def test_to_erase_a_tenant_is_to_erase_its_memories_too(tmp_path: Path) -> None:
    kept = TenantStore(tmp_path)
    kept.add("one", "The ledger runs on PostgreSQL 16.", "Nobody deploys on a Friday.")
    kept.add("two", "The deploy key is with Ann.")
    refused = kept.run("erase", "--all", "--tenant", "one", given="n\n")
    assert refused.exit_code == 1
    assert "and all memories" in refused.stderr
    assert kept.tenants() == {"one": 2, "two": 1}
    done = kept.run("erase", "--all", "--tenant", "one", "--yes")
    assert done.exit_code == 0
    assert "memories: 2 before, 0 after" in done.stdout
    held = stored_bytes(tmp_path)
    assert b"Friday" not in held
    assert b"deploy key" in held
    kept.keys = "[]"
    assert kept.tenants() == {"two": 1}


async def erase_without_the_feature(folder: Path, tenant: str, other: str) -> None:
    """Erases what features keep for a tenant, as a program without the feature does; the other tenant's stays."""
    store = open_store(f"sqlite:///{folder}/kept.db", timeout=60)
    try:
        secret = await store.get(TENANT_SECRET)
        assert secret is not None
        mine, theirs = (Tenants(secret).scope(name) for name in (tenant, other))
        assert await erase_feature_records(store, mine, ()) == []
        assert await store.scan(mine.feature_collection) == []
        assert await store.scan(theirs.feature_collection)
        assert [name for name, _ in await store.scan(TENANTS_WITH_FEATURE_RECORDS)] == [other]
    finally:
        await store.close()


def test_the_core_erases_memories_without_the_feature(tmp_path: Path) -> None:
    kept = TenantStore(tmp_path)
    kept.add("one", "The ledger runs on PostgreSQL 16.", "Nobody deploys on a Friday.")
    kept.add("two", "The deploy key is with Ann.")
    asyncio.run(erase_without_the_feature(tmp_path, "one", "two"))
    assert kept.tenants() == {"one": 0, "two": 1}


def test_to_erase_a_session_leaves_memories_alone(tmp_path: Path) -> None:
    kept = TenantStore(tmp_path)
    kept.add("one", "The ledger runs on PostgreSQL 16.")
    done = kept.run("erase", "--session", "s-1", "--tenant", "one", "--yes")
    assert "memories" not in done.stdout
    assert kept.tenants()["one"] == 1


def test_all_tenants_memories_are_sealed_by_a_command(tmp_path: Path) -> None:
    kept = TenantStore(tmp_path)
    kept.add("one", "The ledger runs on PostgreSQL 16.")
    kept.add("two", "The deploy key is with Ann.")
    unkeyed = kept.run("memory", "seal")
    assert (unkeyed.exit_code, unkeyed.stdout) == (2, "")
    assert "no key" in unkeyed.stderr
    done = kept.run("memory", "seal", key=KEY)
    assert (done.exit_code, done.stdout) == (0, "encrypted: the memories of one, two\n")
    assert kept.run("memory", "seal", key=KEY).stdout == "nothing to encrypt\n"
    held = stored_bytes(tmp_path)
    assert not [word for word in (b"ledger", b"PostgreSQL", b"postgresql", b"deploy key") if word in held]
    assert kept.tenants(KEY) == {"one": 1, "two": 1}
    assert kept.run("memory", "seal", key=f"{OTHER},{KEY}").stdout == "encrypted: the memories of one, two\n"
    found = kept.run("memory", "search", "deploy", "--tenant", "two", "--json", key=OTHER)
    assert len(json.loads(found.stdout)["results"]) == 1


def test_memories_of_a_lost_key_can_be_listed_and_erased(tmp_path: Path) -> None:
    kept = TenantStore(tmp_path)
    kept.add("one", "The ledger runs on PostgreSQL 16.", key=KEY)
    assert kept.tenants() == {"one": 1, "two": 0}
    read = kept.run("memory", "list", "--tenant", "one")
    assert read.exit_code == 2
    assert "archive.key" in " ".join(read.stderr.split())
    assert "memories: 1 before, 0 after" in kept.run("erase", "--all", "--tenant", "one", "--yes").stdout
    assert kept.tenants()["one"] == 0
