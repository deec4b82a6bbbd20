"""The command line: serve, check, replay, explain."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxy import __version__
from proxy.core.errors import ConfigError

if TYPE_CHECKING:
    from proxy.settings import Settings

app = typer.Typer(
    name="accordion",
    help="A proxy that keeps long-running agents inside their model's context window.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Config = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help="The config file; else ACCORDION_CONFIG, else ./config.yaml.", show_default=False
    ),
]


@app.command()
def serve(
    config: Config = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (config: server.host).")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on (config: server.port).")] = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes (config: server.workers).")] = None,
) -> None:
    """Start the proxy."""
    from proxy.serving import serve as run  # noqa: PLC0415  # the server is not needed by the other commands

    overrides: dict[str, object] = {"server.host": host, "server.port": port, "server.workers": workers}
    try:
        run(config, overrides, typer.echo)
    except ConfigError as error:
        raise _failed(error) from None


@app.command()
def check(
    config: Annotated[
        Path | None, typer.Argument(help="The config file; else as for serve.", show_default=False)
    ] = None,
) -> None:
    """Check a config file: says what is wrong and where, or what it would do."""
    from proxy.settings import SettingsFile, hints  # noqa: PLC0415  # see above

    try:
        file = SettingsFile(config, os.environ)
    except ConfigError as error:
        raise _failed(error) from None
    settings = file.settings
    typer.echo(f"{file.path}: good" if file.path.exists() else "no config file; the defaults are good")
    typer.echo(f"  listens on   {settings.server.host}:{settings.server.port}, {settings.server.workers} worker(s)")
    typer.echo(f"  OpenAI       {settings.upstreams.openai.base_url}")
    typer.echo(f"  Anthropic    {settings.upstreams.anthropic.base_url}")
    typer.echo(f"  store        {settings.store.url!r}")
    names = ", ".join(model.model_name for model in settings.model_list)
    typer.echo(f"  models       {names or 'none configured: all are passed on as they are named'}")
    for model in ("", *settings.compaction.models):
        typer.echo(f"  folding      {f'{model}: ' if model else ''}{_folding(settings, model)}")
    typer.echo(f"  summaries    {_WRITERS.get(settings.summaries.writer, f'by the model {settings.summaries.writer}')}")
    for hint in hints(settings):
        typer.echo(f"  note         {hint}")


@app.command()
def replay(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Transcripts as JSON Lines, gzipped or not; - for the input.")
    ],
    model: Annotated[
        str | None, typer.Option(help="Replay for this model, in place of the recorded one.", show_default=False)
    ] = None,
    window: Annotated[
        int | None, typer.Option(min=1, help="Take this for the model's window, in tokens.", show_default=False)
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many conversations.", show_default=False)
    ] = None,
    fold: Annotated[bool, typer.Option("--fold", help="Fold as live: show what came, and what would be sent.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Show every request of long conversations.")] = False,
    against_usage: Annotated[
        bool, typer.Option("--against-usage", help="Learn from the recorded usage; show how far the estimate was off.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each request.")] = False,
    config: Config = None,
) -> None:
    """Show how full the window was at every request of recorded conversations, and what folding makes of them."""
    from proxy.offline.replaying import Options, run  # noqa: PLC0415  # see above

    if fold and against_usage:
        raise typer.BadParameter("--against-usage goes without --fold: the recorded usage is of what was sent then.")
    options = Options(model, window, limit, every, against_usage, as_json, fold)
    raise typer.Exit(run(files, _settings(config), options))


@app.command()
def explain(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The body of one request; - for the input.")],
    path: Annotated[
        str | None, typer.Option(help="Where it goes, such as /v1/messages; else guessed.", show_default=False)
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", help="A header that it has: 'name: value'; repeatable.", show_default=False),
    ] = None,
    window: Annotated[
        int | None, typer.Option(min=1, help="Take this for the model's window, in tokens.", show_default=False)
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Show the whole body that would leave.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    config: Config = None,
) -> None:
    """Say what is understood of one request, how it is counted, what would be folded of it, and why."""
    from proxy.offline.explaining import Options, run  # noqa: PLC0415  # see above

    raise typer.Exit(run(file, _settings(config), Options(path, header or [], window, full, as_json)))


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


_MODES = {"auto": "", "observe": "only reported, nothing is changed: ", "off": "off"}
_WRITERS = {
    "request": "by the request's own model, and without a model where that cannot be had",
    "extractive": "without a model: what matters is picked out of the text",
}


def _folding(settings: Settings, model: str) -> str:
    """What is folded of a model's requests, by which strategies."""
    mode = settings.compaction.mode_of(model)
    strategies = ", ".join(name for name, _ in settings.compaction.pipeline_of(model))
    return _MODES[mode] + (strategies if mode != "off" else "")


def _settings(config: Path | None) -> Settings:
    from proxy.settings import SettingsFile  # noqa: PLC0415  # see above

    try:
        return SettingsFile(config, os.environ).settings
    except ConfigError as error:
        raise _failed(error) from None


def _failed(error: ConfigError) -> typer.Exit:
    typer.secho(f"config: {error.message}", fg=typer.colors.RED, err=True)
    return typer.Exit(2)


def main() -> None:
    """Runs the command line."""
    app()
