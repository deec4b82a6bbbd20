"""The options of the commands `replay`, `explain`, `savings` and `trajectory`. Their work is imported when one runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from accordion.cli.config import load_settings
from accordion.cli.options import Config, Tenant

if TYPE_CHECKING:
    from accordion.features.offline.transcripts import TranscriptSource

PastFiles = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE...]",
        help="Sessions of Claude Code, Codex or OpenCode, trajectories (ATIF), or transcripts, plain or gzipped; "
        "- reads standard input.",
        show_default=False,
    ),
]

ClaudeSessions = Annotated[
    bool,
    typer.Option(
        "--claude", help="Read all sessions of Claude Code: ~/.claude/projects, or projects in CLAUDE_CONFIG_DIR."
    ),
]
CodexSessions = Annotated[
    bool, typer.Option("--codex", help="Read all sessions of Codex: ~/.codex/sessions, or sessions in CODEX_HOME.")
]
OpenCodeSessions = Annotated[
    bool,
    typer.Option(
        "--opencode", help="Read all sessions of OpenCode: ~/.local/share/opencode, or opencode in XDG_DATA_HOME."
    ),
]


def _find_sources(files: list[str] | None, claude: bool, codex: bool, opencode: bool) -> list[TranscriptSource]:
    """Returns the recorded conversations that a command names."""
    from accordion.features.offline.transcripts import find_sources  # noqa: PLC0415  # only when it runs

    try:
        selection = {"Claude Code": claude, "Codex": codex, "OpenCode": opencode}
        return find_sources(files or [], [name for name, is_named in selection.items() if is_named], os.environ)
    except FileNotFoundError as error:
        typer.secho(str(error), fg=typer.colors.RED, err=True)
        raise typer.Exit(1) from None


def replay(
    files: PastFiles = None,
    claude: ClaudeSessions = False,
    codex: CodexSessions = False,
    opencode: OpenCodeSessions = False,
    model: Annotated[
        str | None, typer.Option(help="Use this model instead of the recorded one.", show_default=False)
    ] = None,
    window: Annotated[
        int | None, typer.Option(min=1, help="Use this window size, in tokens.", show_default=False)
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many conversations.", show_default=False)
    ] = None,
    compacts: Annotated[
        bool,
        typer.Option(
            "--compact",
            help="Compact as a running proxy would, with the config's thresholds and strategies and the extractive "
            "writer, and compare.",
        ),
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Show every request of long conversations, not a selection.")
    ] = False,
    against_usage: Annotated[
        bool,
        typer.Option(
            "--against-usage",
            help="Compare the token estimates with the recorded usage, and learn from it. Not with --compact.",
        ),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print one JSON object for each request; with --compact, a last one with the totals."
        ),
    ] = False,
    config: Config = None,
) -> None:
    """Replay recorded conversations: show window use per request, and the effect of compaction."""
    from accordion.features.offline.replay_command import ReplayOptions, run  # noqa: PLC0415  # only when it runs

    if compacts and against_usage:
        raise typer.BadParameter("--against-usage cannot be combined with --compact: usage was recorded without it.")
    options = ReplayOptions(model, window, limit, every, against_usage, as_json, compacts)
    sources = _find_sources(files, claude, codex, opencode)
    if not sources:
        raise typer.BadParameter("name a FILE, or an agent whose sessions are to be replayed, such as --claude.")
    raise typer.Exit(run(sources, load_settings(config), options))


def explain(
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="Request body in JSON; - reads standard input.", show_default=False),
    ] = None,
    session: Annotated[
        str | None,
        typer.Option(help="Explain the last request of this session, from the store.", show_default=False),
    ] = None,
    tenant: Tenant = None,
    path: Annotated[
        str | None,
        typer.Option(
            help="Path of the request, such as /v1/messages. Default: guessed from the body.", show_default=False
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", help="Request header, as 'name: value'. May be repeated.", show_default=False),
    ] = None,
    window: Annotated[
        int | None, typer.Option(min=1, help="Use this window size, in tokens.", show_default=False)
    ] = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="Show all hidden results, all artifacts, and the complete body that would be forwarded."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    config: Config = None,
) -> None:
    """Explain one request: how it is parsed and counted, what would be compacted, and why."""
    from accordion.features.offline.explain_command import ExplainOptions, explain_session, run  # noqa: PLC0415  # only when it runs

    if session is not None and file is None:
        raise typer.Exit(explain_session(load_settings(config), tenant, session, full=full, as_json=as_json))
    if file is None or session is not None:
        raise typer.BadParameter("name either a FILE or a --session")
    raise typer.Exit(run(file, load_settings(config), ExplainOptions(path, header or [], window, full, as_json)))


def savings(
    files: PastFiles = None,
    claude: ClaudeSessions = False,
    codex: CodexSessions = False,
    opencode: OpenCodeSessions = False,
    days: Annotated[int, typer.Option(min=1, max=400, help="Number of days (UTC), today included.")] = 30,
    tenant: Tenant = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    config: Config = None,
) -> None:
    """Show what requests cost, what they would have cost without Accordion, and the difference, in dollars.

    With files or an agent's sessions: what Accordion would have saved in them.
    """
    from accordion.features.offline.past_savings import run as estimate_past_savings  # noqa: PLC0415  # only when it runs
    from accordion.features.offline.savings import savings as run  # noqa: PLC0415

    if sources := _find_sources(files, claude, codex, opencode):
        # It is offered before anything is set up, from any folder.
        raise typer.Exit(estimate_past_savings(sources, load_settings(config, reads_folder=False), as_json))
    raise typer.Exit(run(load_settings(config), tenant, days, as_json))


def trajectory(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The id of a session in the store.")],
    tenant: Tenant = None,
    config: Config = None,
) -> None:
    """Print a recorded session as a trajectory (ATIF), which other tools read."""
    from accordion.features.offline.trajectories import export_session  # noqa: PLC0415  # only when it runs

    raise typer.Exit(export_session(load_settings(config), tenant, session))


def add_commands(app: typer.Typer) -> None:
    """Adds the commands to those of the program."""
    for command in (replay, explain, savings, trajectory):
        app.command()(command)
