"""The options of the commands `accordion memory …` and `accordion mcp`.

Their work is in memory_command.py, which is imported when one runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, get_args

import typer

from accordion.cli.config import ask_confirmation, load_settings
from accordion.cli.options import Config, Tenant
from accordion.features.memory.memories import FactType, MemoryStatus, MemoryType
from accordion.model.suggestions import describe_choices

if TYPE_CHECKING:
    from accordion.features.memory.memory_command import MemoryCommand

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Project = Annotated[
    str | None, typer.Option(help="Project; * for all. Default: the setting memory.project.", show_default=False)
]
Topics = Annotated[list[str] | None, typer.Option("--topic", help="Topic. May be repeated.", show_default=False)]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="Tag. May be repeated.", show_default=False)]


def _memory_type(name: str) -> str:
    """Checks a memory type. Raises BadParameter that lists the valid ones."""
    if name not in get_args(MemoryType):
        raise typer.BadParameter(f"expected {describe_choices(name, get_args(MemoryType))}")
    return name


Types = Annotated[
    list[str] | None,
    typer.Option(
        "--type",
        parser=_memory_type,
        metavar="TYPE",
        help=f"Type; may be repeated. One of: {', '.join(get_args(MemoryType))}.",
        show_default=False,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="File; - reads standard input.")]


memory = typer.Typer(name="memory", help="Add, search and read the memories in the store.", no_args_is_help=True)


def _make_command(config: Path | None, tenant: str | None, as_json: bool = False) -> MemoryCommand:
    from accordion.features.memory.memory_command import MemoryCommand  # noqa: PLC0415  # not needed by the other commands

    return MemoryCommand(load_settings(config), tenant, as_json)


def _run_and_exit(command: MemoryCommand, name: str, *, creates: bool = False, **arguments: object) -> NoReturn:
    """Runs an operation, prints its response, and exits."""
    from accordion.features.memory.memory_command import run_operation  # noqa: PLC0415

    raise typer.Exit(run_operation(command, name, arguments, creates=creates))


@memory.command()
def search(
    query: Annotated[str, typer.Argument(help="Text to search for.")] = "",
    deep: Annotated[bool, typer.Option("--deep", help="Search a larger pool and return up to 100 memories.")] = False,
    topic: Topics = None,
    tag: Tags = None,
    type_: Types = None,
    session: Annotated[
        str | None,
        typer.Option(
            help="Only memories of this session; also shows which of its messages are compacted.", show_default=False
        ),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show how each score was computed.")] = False,
    everything: Annotated[bool, typer.Option("--everything", help="Show the nearest even if nothing fits.")] = False,
    inactive: Annotated[bool, typer.Option("--inactive", help="Also what is superseded or resolved.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Maximum number of memories.", show_default=False)] = None,
    project: Project = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Search memories."""
    if deep and session is not None:
        raise typer.BadParameter("--deep searches all sessions; it cannot be combined with --session.")
    _run_and_exit(
        _make_command(config, tenant, as_json), "memory_deep_search" if deep else "memory_search",
        query=query, topics=topic, tags=tag, type_filter=type_, conversation_id=session, explain=explain,
        everything=everything, inactive=inactive, limit=limit,
        project=project,
    )  # fmt: skip


@memory.command()
def show(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of memories.")],
    originals: Annotated[
        bool, typer.Option("--originals", help="Also show the messages each memory was made from.")
    ] = False,
    tenant: Tenant = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Show memories in full."""
    _run_and_exit(_make_command(config, tenant, as_json), "memory_read", ids=ids, originals=originals)


@memory.command("list")
def list_(
    topic: Topics = None,
    tag: Tags = None,
    type_: Types = None,
    session: Annotated[str | None, typer.Option(help="Only memories of this session.", show_default=False)] = None,
    after: Annotated[
        str | None, typer.Option(help="Continue after this page: its `next` value.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of memories.")] = 100,
    project: Project = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """List memories, newest first. For session memories, use --type session."""
    _run_and_exit(
        _make_command(config, tenant, as_json), "memory_list", topics=topic, tags=tag, type_filter=type_,
        conversation_id=session, after=after, limit=limit, project=project,
    )  # fmt: skip


@memory.command()
def add(
    content: Annotated[str, typer.Argument(help="Text to remember.")],
    type_: Annotated[
        FactType | None,
        typer.Option(
            "--type",
            help="Type. Default: fact, or the type of the memory that it replaces.",
            show_default=False,
        ),
    ] = None,
    topic: Topics = None,
    tag: Tags = None,
    replace: Annotated[str | None, typer.Option(help="Replace the memory with this id.", show_default=False)] = None,
    project: Project = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Add one memory."""
    _run_and_exit(
        _make_command(config, tenant, as_json), "memory_add", creates=True, content=content, type=type_, topics=topic,
        tags=tag, replace_id=replace, project=project,
    )  # fmt: skip


@memory.command("status")
def set_status(
    status: Annotated[MemoryStatus, typer.Argument(help="superseded, resolved, or active again.", show_default=False)],
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of memories.")],
    tenant: Tenant = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Set the status of memories. Searches leave out what is superseded or resolved."""
    _run_and_exit(_make_command(config, tenant, as_json), "memory_set_status", ids=ids, status=status)


@memory.command()
def compact(
    session: Annotated[str, typer.Argument(help="Id of a recorded session.")],
    first: Annotated[int, typer.Argument(help="First message, counted from 0.")],
    last: Annotated[int, typer.Argument(help="Last message, inclusive.")],
    topic: Topics = None,
    project: Project = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Turn messages of a session into memories. First run `memory search --session SESSION`, which numbers them."""
    _run_and_exit(
        _make_command(config, tenant, as_json),
        "memory_compact_conversation",
        conversation_id=session,
        start_index=first,
        end_index=last,
        focus_topics=topic,
        project=project,
    )


@memory.command()
def consolidate(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    file: File,
    project: Project = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Save the summary of a topic, which names the memories that it was written from by their ids."""
    from accordion.features.memory.memory_command import consolidate as run  # noqa: PLC0415

    arguments = {"topic": topic, "project": project}
    raise typer.Exit(run(_make_command(config, tenant, as_json), arguments, file))


@memory.command()
def save(
    session: Annotated[str, typer.Argument(help="Id of a recorded session.")] = "",
    text: Annotated[
        Path | None, typer.Option(help="File with the text to save, instead of a generated one.", show_default=False)
    ] = None,
    description: Annotated[str, typer.Option(help="Description of the session.", show_default=False)] = "",
    tag: Tags = None,
    force: Annotated[bool, typer.Option("--force", help="Save without showing the text and asking.")] = False,
    project: Project = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Save a session so that it can be continued elsewhere; prints its recovery id."""
    from accordion.features.memory.memory_command import save as run  # noqa: PLC0415
    from accordion.features.memory.session.session_memory import SaveOptions  # noqa: PLC0415

    options = SaveOptions(description, tuple(tag or ()), force, project or "")
    raise typer.Exit(run(_make_command(config, tenant, as_json), session, text, options, ask_confirmation))


@memory.command()
def export(
    id_: Annotated[
        str, typer.Option("--id", help="Export only the text of this session memory.", show_default=False)
    ] = "",
    tenant: Tenant = None,
    config: Config = None,
) -> None:
    """Export all memories as JSON Lines, or one session memory as text."""
    from accordion.features.memory.memory_command import export as run  # noqa: PLC0415

    raise typer.Exit(run(_make_command(config, tenant), id_))


@memory.command("import")
def import_(file: File, tenant: Tenant = None, as_json: AsJson = False, config: Config = None) -> None:
    """Import exported memories. Existing memories are not changed."""
    from accordion.features.memory.memory_command import import_file  # noqa: PLC0415

    raise typer.Exit(import_file(_make_command(config, tenant, as_json), file))


@memory.command()
def delete(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of memories.")],
    tenant: Tenant = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Delete memories permanently."""
    _run_and_exit(_make_command(config, tenant, as_json), "memory_delete", ids=ids)


@memory.command()
def erase(yes: Yes = False, tenant: Tenant = None, as_json: AsJson = False, config: Config = None) -> None:
    """Erase all memories of a tenant."""
    from accordion.features.memory.memory_command import erase as run  # noqa: PLC0415

    raise typer.Exit(run(_make_command(config, tenant, as_json), lambda question: yes or ask_confirmation(question)))


@memory.command()
def seal(config: Config = None) -> None:
    """Encrypt the memories of all tenants with the first key in archive.key."""
    from accordion.features.memory.memory_command import seal as run  # noqa: PLC0415

    raise typer.Exit(run(load_settings(config)))


def mcp(tenant: Tenant = None, config: Config = None) -> None:
    """Serve the memories in the store as an MCP server on standard input and output."""
    from accordion.features.memory.memory_command import MemoryCommand  # noqa: PLC0415  # only when it runs
    from accordion.features.memory.memory_command import mcp as run  # noqa: PLC0415

    raise typer.Exit(run(MemoryCommand(load_settings(config), tenant)))
