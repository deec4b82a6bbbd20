"""`accordion memory …` and `accordion mcp`: use the memories in the configured store without a proxy.

A proxy may run at the same time. The operations are those of REST and MCP (memory_operations.py).
"""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from accordion import __version__
from accordion.cli.listing import print_table
from accordion.cli.tenant_store import TIMEOUT, caller_of, list_tenants, open_tenant, run_command
from accordion.composition.configured_store import TENANT_SECRET
from accordion.config import Settings
from accordion.config.extras import how_to_install, is_installed
from accordion.features.memory import memory_responses as responses
from accordion.features.memory.memory_operations import CALLS, MemoryServices
from accordion.features.memory.memory_parts import MemoryParts
from accordion.features.memory.memory_process import note_tenant
from accordion.features.memory.memory_transfer import erase_memories, export_memories, import_memories
from accordion.features.memory.session.session_memory import (
    ExportResponse,
    ImportResponse,
    ListedMemory,
    SaveOptions,
    render_box,
)
from accordion.features.memory.store.static_embedder import StaticEmbedder
from accordion.features.memory.store.stored_memories import StoredMemories
from accordion.model.errors import BadRequest, ConfigError
from accordion.providers.models.tokenizer import TiktokenCounter
from accordion.server.event_loop import LoopClock, LoopTasks
from accordion.sessions.tenants import Caller
from accordion.stores.encryption import open_sealer
from accordion.stores.open import open_store

_CALLS_BY_NAME = {call.name: call for call in CALLS}
_OPTIONS = {
    "conversation_id": "--session",
    "start_index": "FIRST",
    "end_index": "LAST",
    "focus_topics": "--topic",
    "topics": "--topic",
    "tags": "--tag",
    "type_filter": "--type",
    "replace_id": "--replace",
}
"""The command line's names for the arguments of the API, for error messages."""
_WITH_MISSING = responses.ReadMemoriesResponse | responses.DeleteResponse | responses.SetStatusResponse
_ARGUMENT = re.compile(rf"\b(?:{'|'.join(_OPTIONS)})\b")


@dataclass(frozen=True, slots=True)
class TenantMemories:
    """The memories of one tenant."""

    services: MemoryServices
    caller: Caller

    async def call(self, name: str, arguments: Mapping[str, object]) -> Any:
        """Runs an operation without its empty arguments. Raises AccordionError that names command line options."""
        filled_arguments = {key: value for key, value in arguments.items() if value not in (None, "", [])}
        try:
            return await _CALLS_BY_NAME[name](self.services, self.caller, filled_arguments)
        except BadRequest as error:
            text = _ARGUMENT.sub(lambda match: _OPTIONS[match[0]], error.message)
            raise BadRequest(text, code=error.code, param=error.param) from error


@dataclass(frozen=True, slots=True)
class MemoryCommand:
    """The options of every memory command: settings, tenant, and whether to print JSON."""

    settings: Settings
    tenant: str | None = None
    as_json: bool = False


def run_operation(command: MemoryCommand, name: str, arguments: Mapping[str, object], *, creates: bool = False) -> int:
    """Runs an operation and prints its response. Returns the exit code."""

    async def work(memories: TenantMemories) -> int:
        return _show(await memories.call(name, arguments), command)

    return _run(command, work, creates=creates)


def save(
    command: MemoryCommand, conversation: str, file: Path | None, options: SaveOptions, agrees: Callable[[str], bool]
) -> int:
    """Saves a session memory of a recorded session, a text or both, if `agrees` says yes.

    Prints the recovery id in a box. Returns the exit code.
    """

    async def confirm(content: str) -> bool:
        sys.stderr.write(f"{content}\n")
        return agrees("Save this?")

    async def work(memories: TenantMemories) -> int:
        project = memories.services.target_project(options.project or None)
        saved = await memories.services.core.import_session(
            memories.caller.tenant,
            text=_text(file) if file is not None else "",
            conversation=conversation,
            options=SaveOptions(options.description, options.tags, options.force, project, options.author),
            confirm=confirm,
        )
        _show(saved, command)
        return 0 if saved.id else 1

    return _run(command, work, creates=file is not None and not conversation)


def consolidate(command: MemoryCommand, arguments: Mapping[str, object], file: Path) -> int:
    """Saves the summary of a topic from a file. Returns the exit code."""

    async def work(memories: TenantMemories) -> int:
        return _show(await memories.call("memory_consolidate", {**arguments, "content": _text(file)}), command)

    return _run(command, work)


def export(command: MemoryCommand, session_memory: str) -> int:
    """Exports all memories as JSON Lines, or the text of one session memory. Returns the exit code."""

    async def work(memories: TenantMemories) -> int:
        if session_memory:
            response = await memories.call("core_memory", {"operation": "export", "id": session_memory})
            return _show(response, command)
        async for line in export_memories(memories.services, memories.caller):
            sys.stdout.write(line.decode())
        return 0

    return _run(command, work)


def import_file(command: MemoryCommand, file: Path) -> int:
    """Imports an export. Returns the exit code."""

    async def work(memories: TenantMemories) -> int:
        return _show(await import_memories(memories.services, memories.caller, _bytes(file).split(b"\n")), command)

    return _run(command, work, creates=True)


def erase(command: MemoryCommand, agrees: Callable[[str], bool]) -> int:
    """Erases all memories of a tenant if `agrees` says yes. Returns the exit code: 1 if any is left."""

    async def work(memories: TenantMemories) -> int:
        if not agrees(f"Erase all memories of tenant {memories.caller.tenant.name!r}? This cannot be undone."):
            return 1
        done = await erase_memories(memories.services, memories.caller)
        _show(done, command)
        return 0 if done.verified else 1

    return _run(command, work)


def seal(settings: Settings) -> int:
    """Encrypts the memories of every tenant with the first key in `archive.key`. Returns the exit code.

    They were written without a key, or with another one.
    """

    async def run() -> int:
        if not settings.archive.key.reveal():
            raise ConfigError("no key is set, so nothing can be encrypted", path="$.archive.key")
        store, done = open_store(settings.store.url.reveal(), timeout=TIMEOUT), list[str]()
        try:
            memories = StoredMemories(store, StaticEmbedder(), sealer=open_sealer(settings.archive.key.reveal()))
            for name in await list_tenants(settings, store):
                if await memories.seal((await caller_of(settings, store, name)).tenant):
                    done.append(name)
        finally:
            await store.close()
        sys.stdout.write(f"encrypted: the memories of {', '.join(done)}\n" if done else "nothing to encrypt\n")
        return 0

    return run_command(settings, run)


def mcp(command: MemoryCommand) -> int:
    """Serves MCP on standard input and output until the input ends. Returns the exit code."""

    async def work(memories: TenantMemories) -> int:
        from mcp.server.stdio import stdio_server  # noqa: PLC0415  # an extra

        from accordion.features.memory.mcp_server import create_server  # noqa: PLC0415

        server = create_server(lambda: memories.services, lambda context: memories.caller, __version__)
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
        return 0

    return _run(command, work, creates=True, extra="mcp")


# -- store -------------------------------------------------------------------------------------------------------------


def _run(
    command: MemoryCommand,
    operation: Callable[[TenantMemories], Awaitable[int]],
    *,
    creates: bool = False,
    extra: str = "memory",
) -> int:
    if not is_installed(extra):
        message = f"This command needs the extra `{extra}`, which is not installed: {how_to_install([extra])}"
        Console(stderr=True, highlight=False, soft_wrap=True).print(Text(message, style="red"))
        return 2

    async def run() -> int:
        async with _open_memories(command, creates=creates) as memories:
            return await operation(memories)

    return run_command(command.settings, run, creates=creates)


@asynccontextmanager
async def _open_memories(command: MemoryCommand, *, creates: bool) -> AsyncIterator[TenantMemories]:
    settings = command.settings
    if not settings.memory.enabled:
        raise ConfigError("memories are switched off", path="$.memory.enabled")
    if creates:
        await _prepare(settings)
    tasks = LoopTasks()
    async with open_tenant(settings, command.tenant) as tenant_store:
        archive = tenant_store.archive
        outbox = tenant_store.queries.outbox
        parts = MemoryParts(
            lambda: settings, tenant_store.store, archive, archive.transcripts, TiktokenCounter(), tasks, LoopClock(),
            on_write=lambda tenant: note_tenant(outbox, tenant),
        )  # fmt: skip
        try:
            yield TenantMemories(parts.services(), tenant_store.caller)
        finally:
            await parts.close()
            await outbox.flush()
            await tasks.close()


async def _prepare(settings: Settings) -> None:
    """Creates the store and its tenant secret unless a proxy has done so."""
    store = open_store(settings.store.url.reveal(), timeout=TIMEOUT)
    try:
        if not settings.server.tenant_key:
            await store.put_if_absent(TENANT_SECRET, secrets.token_bytes(32))
    finally:
        await store.close()


def _text(file: Path) -> str:
    try:
        return _bytes(file).decode()
    except UnicodeDecodeError as error:
        raise BadRequest(f"{file} is not encoded in UTF-8.") from error


def _bytes(file: Path) -> bytes:
    """Reads a file, or the standard input for `-`. Raises BadRequest."""
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise BadRequest(f"Cannot read {file}: {error.strerror}.") from error


# -- output ------------------------------------------------------------------------------------------------------------


def _show(response: Any, command: MemoryCommand) -> int:
    """Prints a response. Returns the exit code: 1 if an id is unknown."""
    if command.as_json:
        sys.stdout.write(msgspec.json.encode(response).decode() + "\n")
    else:
        _print(response)
    return 1 if isinstance(response, _WITH_MISSING) and response.missing else 0


def _print(response: Any) -> None:
    console = Console(highlight=False, soft_wrap=True)
    if isinstance(response, ImportResponse):
        sys.stdout.write((render_box(response.id) if response.id else response.message) + "\n")
    elif isinstance(response, ExportResponse):
        sys.stdout.write(response.text + "\n")
    elif isinstance(response, responses.ReadMemoriesResponse):
        for memory in response.memories:
            console.print(Text(_head(memory), style="bold"))
            sys.stdout.write(memory.content + "\n")
            _print_aside(memory.warning)
            for original in memory.originals or ():
                sys.stdout.write(f"{bytes(original).decode()}\n")
        _print_aside(f"not found: {', '.join(response.missing)}" if response.missing else "")
    elif rows := getattr(response, "results", getattr(response, "memories", None)):
        _table(rows if isinstance(rows, list) else [])
        _print_other_fields(response)
    else:
        _print_other_fields(response)


def _head(memory: responses.FullMemory) -> str:
    source = memory.source
    source_note = f", messages {source.start_index}-{source.end_index} of {source.conversation_id}" if source else ""
    topics = f" [{', '.join(memory.topics)}]" if memory.topics else ""
    return f"{memory.id}  {memory.type}{topics}  {memory.created_at}{source_note}"


def _table(rows: Sequence[Any]) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("id", no_wrap=True)
    table.add_column("type", no_wrap=True)
    table.add_column("content", overflow="fold")
    table.add_column("topics, tags", overflow="fold")
    for row in rows:
        kind, labels = ("session", row.tags) if isinstance(row, ListedMemory) else (row.type, [*row.topics, *row.tags])
        warning = f"\n{row.warning}" if getattr(row, "warning", "") else ""
        scores = f"\n{_scores(row.scores)}" if getattr(row, "scores", None) else ""
        table.add_row(Text(row.id), kind, Text(row.preview + warning + scores), Text(", ".join(labels)))
    print_table(table)


def _scores(scores: Mapping[str, float]) -> str:
    """Formats the parts of a score on one line."""
    return ", ".join(f"{name} {value:.3f}" for name, value in scores.items())


def _print_other_fields(response: Any) -> None:
    """Prints a response's other fields, one per line. `candidates` is for programs: see --json."""
    if isinstance(response, responses.SearchMemoriesResponse) and not response.results:
        _print_aside("no memories found", to=sys.stdout)
    for name, value in msgspec.to_builtins(response).items():
        if name not in _NOT_PRINTED or (isinstance(value, int) and name != "candidates"):
            text = msgspec.json.encode(value).decode() if isinstance(value, dict | list) else value
            _print_aside(f"{name}: {text}" if value not in (None, "") else "", to=sys.stdout)


_NOT_PRINTED = frozenset({"results", "memories", "operation", "candidates"})


def _print_aside(line: str, to: Any = None) -> None:
    if line:
        (to or sys.stderr).write(line + "\n")
