"""The commands `accordion memory …`; what they do is in offline/memory.py, imported when one runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from accordion.offline.configured import confirmed, settings_of

if TYPE_CHECKING:
    from accordion.offline.memory import Asking

Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="The config file; else as for serve.", show_default=False),
]
Tenant = Annotated[
    str | None, typer.Option("--tenant", help="Whose: as `accordion tenants` lists them.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Project = Annotated[
    str | None, typer.Option(help="The project; * for all. Else as the config says.", show_default=False)
]
Topics = Annotated[list[str] | None, typer.Option("--topic", help="About this; may be repeated.", show_default=False)]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="With this tag; may be repeated.", show_default=False)]
Types = Annotated[
    list[str] | None,
    typer.Option("--type", help="Of this type, such as fact or summary_archived; may be repeated.", show_default=False),
]
Proof = Annotated[str, typer.Option(help="The proof of what was searched and read before.", show_default=False)]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="A file; - for the input.")]


memory = typer.Typer(
    name="memory", help="Write, search and read memories, in the configured store.", no_args_is_help=True
)


def _asking(config: Path | None, tenant: str | None, as_json: bool = False) -> Asking:
    from accordion.offline.memory import Asking  # noqa: PLC0415  # not needed by the other commands

    return Asking(settings_of(config), tenant, as_json)


def _ask(asking: Asking, name: str, *, creates: bool = False, **given: object) -> NoReturn:
    """Makes one call, shows its answer, and ends with its exit code."""
    from accordion.offline.memory import ask  # noqa: PLC0415

    raise typer.Exit(ask(asking, name, given, creates=creates))


@memory.command()
def search(
    query: Annotated[str, typer.Argument(help="What to look for.")] = "",
    deep: Annotated[bool, typer.Option("--deep", help="Of a larger pool, up to 100.")] = False,
    topic: Topics = None,
    tag: Tags = None,
    type_: Types = None,
    session: Annotated[
        str | None, typer.Option(help="Made of this session; says what of it is compacted.", show_default=False)
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say how each came to its score.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many.", show_default=False)] = None,
    proof: Proof = "",
    project: Project = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Search memories."""
    if deep and session is not None:
        raise typer.BadParameter("--deep searches all; with --session it means nothing.")
    _ask(
        _asking(config, tenant, as_json), "memory_deep_search" if deep else "memory_search",
        query=query, topics=topic, tags=tag, type_filter=type_, conversation_id=session, explain=explain, limit=limit,
        proof=proof, project=project,
    )  # fmt: skip


@memory.command()
def show(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The memories.")],
    originals: Annotated[bool, typer.Option("--originals", help="With the messages that each was made of.")] = False,
    proof: Proof = "",
    tenant: Tenant = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Show memories in full."""
    _ask(_asking(config, tenant, as_json), "memory_read", ids=ids, originals=originals, proof=proof)


@memory.command("list")
def list_(
    topic: Topics = None,
    tag: Tags = None,
    type_: Types = None,
    session: Annotated[str | None, typer.Option(help="Made of this session.", show_default=False)] = None,
    after: Annotated[str | None, typer.Option(help="What `next` of the page before says.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
    project: Project = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """List memories, newest first; sessions with --type session."""
    _ask(
        _asking(config, tenant, as_json), "memory_list", topics=topic, tags=tag, type_filter=type_,
        conversation_id=session, after=after, limit=limit, project=project,
    )  # fmt: skip


@memory.command()
def add(
    content: Annotated[str, typer.Argument(help="What is to be remembered.")],
    type_: Annotated[
        str | None,
        typer.Option(
            "--type",
            help="fact, decision, preference, solution or question; else a fact, or what it takes the place of.",
            show_default=False,
        ),
    ] = None,
    topic: Topics = None,
    tag: Tags = None,
    replace: Annotated[
        str | None, typer.Option(help="In place of the memory with this id.", show_default=False)
    ] = None,
    project: Project = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Remember one thing."""
    _ask(
        _asking(config, tenant, as_json), "memory_add", creates=True, content=content, type=type_, topics=topic,
        tags=tag, replace_id=replace, project=project,
    )  # fmt: skip


@memory.command()
def compact(
    session: Annotated[str, typer.Argument(help="A recorded session.")],
    first: Annotated[int, typer.Argument(help="Its first message, from 0.")],
    last: Annotated[int, typer.Argument(help="Its last message, inclusive.")],
    topic: Topics = None,
    project: Project = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Turn messages of a session into memories; search with --session first."""
    _ask(
        _asking(config, tenant, as_json), "memory_compact_conversation", conversation_id=session, start_index=first,
        end_index=last, focus_topics=topic, project=project,
    )  # fmt: skip


@memory.command()
def draft(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    project: Project = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Draft a topic's summary from all of its memories."""
    _ask(_asking(config, tenant, as_json), "memory_consolidate_draft", topic=topic, project=project)


@memory.command()
def consolidate(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    file: File,
    proof: Proof = "",
    project: Project = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Write a topic's summary; search --deep and show its memories first."""
    from accordion.offline.memory import consolidate as run  # noqa: PLC0415

    given = {"topic": topic, "proof": proof, "project": project}
    raise typer.Exit(run(_asking(config, tenant, as_json), given, file))


@memory.command()
def save(
    session: Annotated[str, typer.Argument(help="A recorded session.")] = "",
    text: Annotated[
        Path | None, typer.Option(help="A file with the text, in place of what is made.", show_default=False)
    ] = None,
    description: Annotated[str, typer.Option(help="What it is.", show_default=False)] = "",
    tag: Tags = None,
    force: Annotated[bool, typer.Option("--force", help="Do not show it and ask first.")] = False,
    project: Project = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Save what it takes to go on with a session; shows the recovery id."""
    from accordion.memory.core_memory import Options  # noqa: PLC0415
    from accordion.offline.memory import save as run  # noqa: PLC0415

    options = Options(description, tuple(tag or ()), force, project or "")
    raise typer.Exit(run(_asking(config, tenant, as_json), session, text, options, confirmed))


@memory.command()
def export(
    id_: Annotated[str, typer.Option("--id", help="Only the text of this session memory.", show_default=False)] = "",
    tenant: Tenant = None,
    config: Config = None,
) -> None:
    """Write all memories as JSON Lines, or one session memory as text."""
    from accordion.offline.memory import export as run  # noqa: PLC0415

    raise typer.Exit(run(_asking(config, tenant), id_))


@memory.command("import")
def import_(file: File, tenant: Tenant = None, as_json: AsJson = False, config: Config = None) -> None:
    """Take in exported memories; what is there already stays as it is."""
    from accordion.offline.memory import take_in  # noqa: PLC0415

    raise typer.Exit(take_in(_asking(config, tenant, as_json), file))


@memory.command()
def delete(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The memories.")],
    tenant: Tenant = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Delete memories for good."""
    _ask(_asking(config, tenant, as_json), "memory_delete", ids=ids)


@memory.command()
def erase(yes: Yes = False, tenant: Tenant = None, as_json: AsJson = False, config: Config = None) -> None:
    """Erase all memories, and count what is left."""
    from accordion.offline.memory import erase as run  # noqa: PLC0415

    raise typer.Exit(run(_asking(config, tenant, as_json), lambda question: yes or confirmed(question)))


@memory.command()
def seal(config: Config = None) -> None:
    """Seal all tenants' memories with the first key of archive.key."""
    from accordion.offline.sealing import seal as run  # noqa: PLC0415

    raise typer.Exit(run(settings_of(config)))
