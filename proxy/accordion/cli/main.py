"""The command line: one function for each command; the work is done in the other modules."""

from __future__ import annotations

import errno
import io
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from accordion import __version__
from accordion.cli.config import ask_confirmation, config_error, load_settings, write_template
from accordion.cli.installation import own_command
from accordion.cli.keys_commands import keys
from accordion.cli.listing import WINDOW_SOURCES, count_with_noun
from accordion.cli.options import Config, Tenant
from accordion.composition.features import load_features
from accordion.model.errors import ConfigError

if TYPE_CHECKING:
    from accordion.config import Settings

app = typer.Typer(
    name="accordion",
    help="A proxy that keeps long-running agents inside their model's context window.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

RunConfig = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="Config file. Default: the file in ACCORDION_CONFIG, then ~/.config/accordion/config.yaml. "
        "A ./config.yaml may belong to a project of others, and is not read.",
        show_default=False,
    ),
]


def _print_version(selection: bool) -> None:
    if selection:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Defines the options before a command; the help text is in `app`."""


@app.command()
def init(
    path: Annotated[Path, typer.Option(help="File or folder to write to.")] = Path("config.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that exists.")] = False,
) -> None:
    """Write a config.yaml with every setting, its default and its explanation."""
    try:
        file = write_template(path, overwrite=force)
    except FileExistsError as error:
        problem = "the file exists; name another with --path, or use --force to overwrite it"
        raise config_error(ConfigError(problem, path=error.filename)) from None
    except OSError as error:
        raise config_error(ConfigError(f"cannot write the file: {error.strerror}", path=str(path))) from None
    name = shlex.quote(str(file))
    typer.echo(
        f"{file} has every setting with its default. Change what you need; `{own_command(f'check {name}')}` checks it."
    )
    option = "" if file == Path("config.yaml") else f"--config {name}"
    typer.echo(f"Start the proxy: {own_command('serve', option)}")


@app.command()
def serve(
    config: Config = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (setting: server.host).")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on (setting: server.port).")] = None,
    workers: Annotated[int | None, typer.Option(help="Number of worker processes (setting: server.workers).")] = None,
) -> None:
    """Start the proxy."""
    if hasattr(signal, "SIGHUP"):
        # Without a handler a SIGHUP would end the process. Blocked, it waits for the handler.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    from accordion.cli.serve import serve as run  # noqa: PLC0415  # the server is not needed by the other commands

    overrides: dict[str, object] = {"server.host": host, "server.port": port, "server.workers": workers}
    try:
        run(config, overrides, typer.echo)
    except ConfigError as error:
        raise config_error(error) from None


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND [ARGUMENT...]", help="claude, codex, opencode, gemini, pi, qwen, or another command."
        ),
    ],
    observe: Annotated[
        bool, typer.Option("--observe", help="Change no request; say at the end what would have been compacted.")
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port of the proxy. Default: any free one.", show_default=False)
    ] = 0,
    config: RunConfig = None,
) -> None:
    """Run an agent through a proxy that already runs, or that starts and ends with it.

    Options come before the command; all that follows the command belongs to it.
    """
    from accordion.cli.run import RunOptions  # noqa: PLC0415  # see above
    from accordion.cli.run import run as run_agent  # noqa: PLC0415

    _exit_with("run", lambda: run_agent(command, RunOptions(config, port, observe)))


@app.command()
def demo(
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port of the proxy. Default: any free one.", show_default=False)
    ] = 0,
    opens: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    ends: Annotated[
        bool, typer.Option("--exit", help="End after the last request. So it does if the output is no terminal.")
    ] = False,
) -> None:
    """Show what Accordion does with a scripted agent, without a key: nothing leaves the machine or stays behind."""
    from accordion.cli.demo import demo as show  # noqa: PLC0415  # see above

    _exit_with("demo", lambda: show(port, is_opening=opens, is_ending=ends))


def _exit_with(command: str, run_it: Callable[[], int]) -> NoReturn:
    """Exits with the code that the function returns, or with that of its error, which is printed."""
    from accordion.cli.agents import AgentError  # noqa: PLC0415  # see above

    try:
        code = run_it()
    except AgentError as error:
        typer.secho(f"accordion {command}: {error}", fg=typer.colors.RED, err=True)
        raise typer.Exit(error.status) from None
    except ConfigError as error:
        raise config_error(error) from None
    raise typer.Exit(code)


@app.command()
def check(
    config: Annotated[
        Path | None, typer.Argument(help="Config file. Default: as for serve.", show_default=False)
    ] = None,
) -> None:
    """Check a config file: report errors, warnings and the settings in effect."""
    from accordion.config import SettingsFile  # noqa: PLC0415  # see above

    try:
        file = SettingsFile(config, os.environ)
    except ConfigError as error:
        raise config_error(error) from None
    settings = file.settings
    typer.echo(f"{file.path}: valid" if file.path.exists() else "no config file: the defaults apply")
    workers = count_with_noun(settings.server.workers, "worker")
    typer.echo(f"  listens on   {settings.server.host.with_port(settings.server.port)}, {workers}")
    for family, (base_url, _) in settings.upstreams.by_family().items():
        label = "OpenAI" if family == "openai" else family.capitalize()
        typer.echo(f"  {label:12} {base_url}")
    typer.echo(f"  store        {settings.store.url!r}")
    names = ", ".join(model.model_name for model in settings.model_list)
    typer.echo(f"  models       {names or 'none configured: every request goes to the upstream of its protocol'}")
    for line in _format_windows(settings):
        typer.echo(f"  window       {line}")
    for model in ("", *settings.compaction.models):
        prefix, main_agent = f"{model}: " if model else "", _format_compaction(settings, model)
        typer.echo(f"  compaction   {prefix}{main_agent}")
        if (sub_agents := _format_compaction(settings, model, delegated=True)) != main_agent:
            typer.echo(f"  compaction   {prefix}sub-agents: {sub_agents}")
    for model in ("", *settings.compaction.models):
        if not model or settings.compaction.writer_of(model) != settings.compaction.writer_of(""):
            typer.echo(f"  summaries    {f'{model}: ' if model else ''}{_format_summary_writer(settings, model)}")
    for hint in file.find_hints():
        typer.echo(f"  warning      {hint}")


@app.command()
def doctor(
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print one JSON object for each finding: grade (ok, note, broken), subject, text, advice."
        ),
    ] = False,
    config: Config = None,
) -> None:
    """Check store, windows, providers, versions and port; say what to do. Exit code 1: something is broken."""
    from accordion.cli.doctor import run as examine  # noqa: PLC0415  # see above

    raise typer.Exit(examine(config, as_json=as_json))


@app.command()
def artifacts(
    artifact: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="Artifact to show. Default: list all artifacts.", show_default=False),
    ] = None,
    session: Annotated[
        str | None, typer.Option(help="List only the artifacts of this session.", show_default=False)
    ] = None,
    offset: Annotated[
        int, typer.Option(help="First line to show; negative: counted from the end.", show_default=False)
    ] = 0,
    limit: Annotated[
        int, typer.Option(min=0, help="Maximum number of lines or matches to show.", show_default=False)
    ] = 0,
    pattern: Annotated[
        str, typer.Option(help="Show only lines that match this regular expression (RE2).", show_default=False)
    ] = "",
    path: Annotated[str, typer.Option(help="Show only the value at this JSON path.", show_default=False)] = "",
    tenant: Tenant = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    config: Config = None,
) -> None:
    """List the artifacts in the store (content removed from windows), or show one."""
    from accordion.cli.artifacts import ArtifactSelection, read  # noqa: PLC0415  # see above

    if artifact is None and (offset or limit or pattern or path):
        raise typer.BadParameter("--offset, --limit, --pattern and --path need the ID of an artifact.")
    if artifact is not None and session is not None:
        raise typer.BadParameter("--session lists artifacts; it cannot be combined with an ID.")
    selection = ArtifactSelection(artifact or "", session or "", offset, limit, pattern, path, as_json)
    raise typer.Exit(read(load_settings(config), tenant, selection))


@app.command()
def tenants(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    config: Config = None,
) -> None:
    """List the tenants in the store, with the amount of data of each."""
    from accordion.cli.artifacts import tenants as run  # noqa: PLC0415  # see above

    raise typer.Exit(run(load_settings(config), as_json))


@app.command()
def sessions(
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Maximum number of sessions to list.")] = 100,
    tenant: Tenant = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    config: Config = None,
) -> None:
    """List the sessions in the store, latest first, with what each cost and saved."""
    from accordion.cli.sessions import sessions as run  # noqa: PLC0415  # see above

    raise typer.Exit(run(load_settings(config), tenant, limit, as_json))


@app.command()
def compact(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The session, from `accordion sessions`.")],
    undo: Annotated[
        str | None,
        typer.Option(
            "--undo",
            metavar="ID",
            help="Undo this compaction of the session instead; `all`: all of them.",
            show_default=False,
        ),
    ] = None,
    tenant: Tenant = None,
    config: Config = None,
) -> None:
    """Compact a session at its next request, or undo one of its compactions. A running proxy follows at once."""
    from accordion.cli import compact as command  # noqa: PLC0415  # see above

    settings = load_settings(config)
    if undo is None:
        raise typer.Exit(command.demand_compaction(settings, tenant, session))
    raise typer.Exit(command.undo(settings, tenant, session, undo))


@app.command()
def pin(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The session, from `accordion sessions`.")],
    call_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[CALL_ID]...", help="Calls whose results stay.", show_default=False)
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove these pins instead.")] = False,
    tenant: Tenant = None,
    config: Config = None,
) -> None:
    """Pin results of a session, which no compaction then touches, and list them. A running proxy follows at once."""
    from accordion.cli import compact as command  # noqa: PLC0415  # see above

    raise typer.Exit(command.pin(load_settings(config), tenant, session, call_ids or (), is_removal=remove))


@app.command()
def export(
    session: Annotated[str | None, typer.Option(help="Export only this session.", show_default=False)] = None,
    tenant: Tenant = None,
    config: Config = None,
) -> None:
    """Export everything stored for a tenant, or one session, as JSON Lines."""
    from accordion.cli.artifacts import export as run  # noqa: PLC0415  # see above

    raise typer.Exit(run(load_settings(config), tenant, session))


@app.command()
def erase(
    session: Annotated[str | None, typer.Option(help="Erase this session.", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="Erase all sessions and memories of the tenant.")] = False,
    tenant: Tenant = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    config: Config = None,
) -> None:
    """Erase everything stored for a session, or for a whole tenant."""
    from accordion.cli.artifacts import erase as run  # noqa: PLC0415  # see above

    if (session is None) != everything:
        raise typer.BadParameter("Choose what to erase: --session S, or --all.")
    raise typer.Exit(run(load_settings(config), tenant, session, lambda question: yes or ask_confirmation(question)))


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


_MODES = {"auto": "auto: ", "observe": "observe, requests are not changed: ", "off": "off"}
_WRITERS = {
    "request": "by the request's own model; without a model if that fails",
    "extractive": "without a model, from sentences of the text",
}


def _format_compaction(settings: Settings, model: str, *, delegated: bool = False) -> str:
    """Formats the mode and the strategies for a model's requests, or for its sub-agents' requests."""
    mode = settings.compaction.mode_of(model, delegated=delegated)
    strategies = ", ".join(entry.name for entry in settings.compaction.pipeline_of(model, delegated=delegated))
    return _MODES[mode] + (strategies if mode != "off" else "")


def _format_windows(settings: Settings) -> Iterator[str]:
    """Formats the window of each configured model, its source, and its triggers."""
    from accordion.accounting.calibration import LearnedLimits  # noqa: PLC0415  # see above
    from accordion.composition.tables import build_windows  # noqa: PLC0415

    windows = build_windows(settings, LearnedLimits(lambda: 0.0))
    for name in dict.fromkeys(model.model_name for model in settings.model_list):
        window = windows.window(name)
        if "*" in name and window.source != "config":
            yield f"{name}: that of the model that a client names"
            continue
        limits = settings.thresholds.thresholds_for(name).limits(window.size)
        triggers = f"conversation {limits.conversation:,}, generation {limits.generation:,}"
        sizes = f"triggers: {triggers}; hard limit {limits.hard:,}"
        yield f"{name}: {window.size:,} tokens ({WINDOW_SOURCES[window.source]}); {sizes}"


def _format_summary_writer(settings: Settings, model: str) -> str:
    """Formats the summary writer for a model."""
    writer = settings.compaction.writer_of(model) or settings.summaries.writer
    return _WRITERS.get(writer, f"by the model {writer}")


app.add_typer(keys)
for _feature in load_features():
    _feature.add_commands(app)


def main() -> None:
    """Runs the command line."""
    # They are None if they were closed before the start.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # as long as the process
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal cannot show becomes a question mark.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO) or error.filename is not None:
            raise
        # Python would try to write the rest of the buffer at exit and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(f"cannot write the output: {error.strerror}")
