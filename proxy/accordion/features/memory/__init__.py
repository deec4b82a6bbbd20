"""Memories: written by agents and people, searched, and inserted into conversations; by REST, MCP and commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accordion.archive.feature_records import FeatureRecords
from accordion.composition.features import Core, Feature, RunningFeature

if TYPE_CHECKING:
    import typer

    from accordion.config import Settings
    from accordion.model.ports import KeyValueStore
    from accordion.model.tenant import TenantScope


def open_memory(core: Core) -> RunningFeature:
    """Opens the memories in a process. Little is imported before they are used."""
    from accordion.features.memory.memory_process import RunningMemory  # noqa: PLC0415  # not for the command line

    return RunningMemory(core)


def add_commands(app: typer.Typer) -> None:
    """Adds `accordion memory …` and `accordion mcp`."""
    from accordion.features.memory.memory_commands import mcp, memory  # noqa: PLC0415  # not for a running proxy

    app.command()(mcp)
    app.add_typer(memory)


def greet(settings: Settings, base: str, owner_token: str) -> str:
    """Returns a line about memory and MCP if they are enabled and not installed; else nothing."""
    from accordion.config.extras import how_to_install, is_installed  # noqa: PLC0415  # only when a proxy starts

    if not settings.memory.enabled or is_installed("mcp"):
        return ""
    names = "MCP" if is_installed("memory") else "memory and MCP"
    return f"    not installed    {names}: {how_to_install(['mcp'])}\n"


async def count_memories(store: KeyValueStore, tenant: TenantScope) -> int:
    """Counts the memories of a tenant, of all types."""
    from accordion.features.memory.store.stored_memories import count_records  # noqa: PLC0415  # rarely needed

    return await count_records(store, tenant)


async def erase_memories(store: KeyValueStore, tenant: TenantScope) -> None:
    """Erases all memories of a tenant."""
    from accordion.features.memory.store.stored_memories import erase_records  # noqa: PLC0415  # rarely needed

    await erase_records(store, tenant)


FEATURE = Feature(
    open=open_memory,
    add_commands=add_commands,
    greet=greet,
    records=FeatureRecords(
        noun="memories", prefixes=("change/", "memory/"), count=count_memories, erase=erase_memories
    ),
)
