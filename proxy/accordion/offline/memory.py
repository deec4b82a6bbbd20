"""`accordion memory …` and `accordion mcp`: memories, from the configured store itself, without a proxy.

A proxy may be running beside it. The calls are those of REST and MCP.
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
from accordion.clockwork import LoopClock, LoopTasks
from accordion.core.errors import BadRequest, ConfigError
from accordion.faces import memory_told as answers
from accordion.faces.memory_moving import brought, erased, exported
from accordion.faces.memory_rooms import Rooms
from accordion.faces.memory_table import CALLS
from accordion.identity.tenants import Caller
from accordion.memory.core_answers import Exported, Imported, Shown, box
from accordion.memory.core_memory import Options
from accordion.models.tokens import TiktokenCounter
from accordion.offline.artifacts import TIMEOUT, opened, told
from accordion.offline.listing import counted, print_table
from accordion.settings import Settings
from accordion.storage.opening import open_store
from accordion.wiring.mark import TENANT_SECRET
from accordion.wiring.memory import Library, note

_CALLS = {call.name: call for call in CALLS}
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
"""What the command line calls the arguments of the API."""
_ARGUMENT = re.compile(rf"\b(?:{'|'.join(_OPTIONS)})\b")


@dataclass(frozen=True, slots=True)
class Desk:
    """The memories of one tenant."""

    rooms: Rooms
    caller: Caller

    async def ask(self, name: str, arguments: Mapping[str, object]) -> Any:
        """What a call answers; empty arguments are left out. Raises AccordionError, whose text names the options of the
        command line."""
        given = {key: value for key, value in arguments.items() if value not in (None, "", [])}
        try:
            return await _CALLS[name](self.rooms, self.caller, given)
        except BadRequest as error:
            text = _ARGUMENT.sub(lambda found: _OPTIONS[found[0]], error.message)
            raise BadRequest(text, code=error.code, param=error.param) from error


@dataclass(frozen=True, slots=True)
class Asking:
    """Whose memories of which config, and whether answers are printed as JSON."""

    settings: Settings
    tenant: str | None = None
    as_json: bool = False


def ask(asking: Asking, name: str, arguments: Mapping[str, object], *, creates: bool = False) -> int:
    """Makes one call and shows its answer; returns the exit code."""

    async def work(desk: Desk) -> int:
        return _show(await desk.ask(name, arguments), asking)

    return _run(asking, work, creates=creates)


def save(asking: Asking, conversation: str, file: Path | None, options: Options, sure: Callable[[str], bool]) -> int:
    """Saves a session memory, of a recorded session, of a text or of both, once `sure` has said so; shows its recovery
    id in a box. Returns the exit code."""

    async def confirm(content: str) -> bool:
        sys.stderr.write(f"{content}\n")
        return sure("Save this?")

    async def work(desk: Desk) -> int:
        project = desk.rooms.written_to(options.project or None)
        made = await desk.rooms.core.import_(
            desk.caller.space,
            text=_text(file) if file is not None else "",
            conversation=conversation,
            options=Options(options.description, options.tags, options.force, project, options.author),
            confirm=confirm,
        )
        _show(made, asking)
        return 0 if made.id else 1

    return _run(asking, work, creates=file is not None and not conversation)


def consolidate(asking: Asking, arguments: Mapping[str, object], file: Path) -> int:
    """Writes the summary of a topic that stands in a file; returns the exit code."""

    async def work(desk: Desk) -> int:
        return _show(await desk.ask("memory_consolidate", {**arguments, "content": _text(file)}), asking)

    return _run(asking, work)


def export(asking: Asking, session_memory: str) -> int:
    """Writes all memories as JSON Lines, or the text of one session memory; returns the exit code."""

    async def work(desk: Desk) -> int:
        if session_memory:
            found = await desk.ask("core_memory", {"operation": "export", "id": session_memory})
            return _show(found, asking)
        async for line in exported(desk.rooms, desk.caller):
            sys.stdout.write(line.decode())
        return 0

    return _run(asking, work)


def take_in(asking: Asking, file: Path) -> int:
    """Takes in what was exported; returns the exit code."""

    async def work(desk: Desk) -> int:
        return _show(await brought(desk.rooms, desk.caller, _bytes(file).split(b"\n")), asking)

    return _run(asking, work, creates=True)


def erase(asking: Asking, sure: Callable[[str], bool]) -> int:
    """Removes all memories of a tenant once `sure` says so; returns the exit code: 1 where something is left."""

    async def work(desk: Desk) -> int:
        if not sure(f"Erase all memories of tenant {desk.caller.tenant!r}? This cannot be undone."):
            return 1
        done = await erased(desk.rooms, desk.caller)
        _show(done, asking)
        return 0 if done.verified else 1

    return _run(asking, work)


def mcp(asking: Asking) -> int:
    """Serves MCP over standard input and output until that ends; returns the exit code."""
    try:
        from mcp.server.stdio import stdio_server  # noqa: PLC0415  # an extra

        from accordion.faces.mcp_server import server  # noqa: PLC0415
    except ImportError:
        Console(stderr=True, highlight=False).print(
            Text("`accordion mcp` needs an extra: pip install 'accordion-proxy[mcp]'", style="red")
        )
        return 2

    async def work(desk: Desk) -> int:
        made = server(lambda: desk.rooms, lambda context: desk.caller, __version__)
        async with stdio_server() as (incoming, outgoing):
            await made.run(incoming, outgoing, made.create_initialization_options())
        return 0

    return _run(asking, work, creates=True)


# -- opening -----------------------------------------------------------------------------------------------------------


def _run(asking: Asking, work: Callable[[Desk], Awaitable[int]], *, creates: bool = False) -> int:
    async def run() -> int:
        async with _desk(asking, creates=creates) as desk:
            return await work(desk)

    return told(asking.settings, run, creates=creates)


@asynccontextmanager
async def _desk(asking: Asking, *, creates: bool) -> AsyncIterator[Desk]:
    settings = asking.settings
    if not settings.memory.enabled:
        raise ConfigError("memories are switched off", path="$.memory.enabled")
    if creates:
        await _prepare(settings)
    tasks = LoopTasks()
    async with opened(settings, asking.tenant) as shelves:
        room = shelves.room
        outbox, tenant = shelves.observe.outbox, shelves.caller.tenant
        library = Library(
            lambda: settings, room, room.transcripts, TiktokenCounter(), tasks, LoopClock(),
            wrote=lambda _: note(outbox, tenant),
        )  # fmt: skip
        try:
            yield Desk(library.rooms(), shelves.caller)
        finally:
            await library.close()
            await outbox.flush()
            await tasks.close()


async def _prepare(settings: Settings) -> None:
    """Makes the store, and the key that tells tenants apart, where no proxy has yet."""
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
    """What a file holds, or the standard input for `-`. Raises BadRequest."""
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise BadRequest(f"Cannot read {file}: {error.strerror}.") from error


# -- showing -----------------------------------------------------------------------------------------------------------


def _show(answer: Any, asking: Asking) -> int:
    """Prints an answer; returns 1 where it is about nothing that is there."""
    if asking.as_json:
        sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    else:
        _print(answer)
    return 1 if isinstance(answer, answers.Reading | answers.Deleted) and answer.missing else 0


def _print(answer: Any) -> None:
    out = Console(highlight=False, soft_wrap=True)
    if isinstance(answer, Imported):
        sys.stdout.write((box(answer.id) if answer.id else answer.message) + "\n")
    elif isinstance(answer, Exported):
        sys.stdout.write(answer.text + "\n")
    elif isinstance(answer, answers.Reading):
        for memory in answer.memories:
            out.print(Text(_head(memory), style="bold"))
            sys.stdout.write(memory.content + "\n")
            _aside(memory.warning)
            for wire in memory.originals or ():
                sys.stdout.write(f"{bytes(wire).decode()}\n")
        _aside(f"not found: {', '.join(answer.missing)}" if answer.missing else "")
    elif isinstance(answer, answers.Drafted):
        sys.stdout.write(answer.text + "\n")
        _aside(f"{counted(answer.tokens, 'token')}, from {counted(answer.memories, 'memory', 'memories')}")
    elif rows := getattr(answer, "results", getattr(answer, "memories", None)):
        _table(rows if isinstance(rows, list) else [])
        _beside(answer)
    else:
        _beside(answer)


def _head(memory: answers.Whole) -> str:
    source = memory.source
    place = f", messages {source.start_index}-{source.end_index} of {source.conversation_id}" if source else ""
    topics = f" [{', '.join(memory.topics)}]" if memory.topics else ""
    return f"{memory.id}  {memory.type}{topics}  {memory.created_at}{place}"


def _table(rows: Sequence[Any]) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("id", no_wrap=True)
    table.add_column("type", no_wrap=True)
    table.add_column("content", overflow="fold")
    table.add_column("topics, tags", overflow="fold")
    for row in rows:
        kind, labels = ("session", row.tags) if isinstance(row, Shown) else (row.type, [*row.topics, *row.tags])
        warning = f"\n{row.warning}" if getattr(row, "warning", "") else ""
        scores = f"\n{_scores(row.scores)}" if getattr(row, "scores", None) else ""
        table.add_row(Text(row.id), kind, Text(row.preview + warning + scores), Text(", ".join(labels)))
    print_table(table)


def _scores(scores: Mapping[str, float]) -> str:
    """How a search came to a score, on one line."""
    return ", ".join(f"{name} {value:.3f}" for name, value in scores.items())


def _beside(answer: Any) -> None:
    """Prints the other fields of an answer, one per line. `proof` and `candidates` are for programs: see --json."""
    if isinstance(answer, answers.Results) and not answer.results:
        _aside("no memories found", to=sys.stdout)
    for name, value in msgspec.to_builtins(answer).items():
        if name not in _NOT_PRINTED or (isinstance(value, int) and name != "candidates"):
            shown = msgspec.json.encode(value).decode() if isinstance(value, dict | list) else value
            _aside(f"{name}: {shown}" if value not in (None, "") else "", to=sys.stdout)


_NOT_PRINTED = frozenset({"results", "memories", "operation", "candidates", "proof"})


def _aside(line: str, to: Any = None) -> None:
    if line:
        (to or sys.stderr).write(line + "\n")
