"""`accordion run`: runs an agent through a proxy, and says at the end what happened.

The proxy is one that already runs and serves this agent as it needs, or a process of this command's own on a free
port of this machine, with the user's config and store. The agent has the terminal: input, output, keys and signals
reach it as if it ran alone, and its exit code becomes the command's.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import msgspec

from accordion.cli.agents import AGENTS, UPSTREAMS, Agent, AgentCommand, AgentError, find_agent, origin
from accordion.cli.installation import own_command, see
from accordion.cli.listing import count_with_noun, format_dollars
from accordion.cli.running_proxy import QueryError, RunningProxy, find_proxy, is_listening, loopback_url
from accordion.config import Settings, SettingsFile
from accordion.model.records import Totals

_START_SECONDS = 60.0
_STOP_SECONDS = 15.0
_MAX_LOGS = 20
_LOGS = Path("~/.local/state/accordion/runs")
_HOST = "127.0.0.1"
_FORWARDED = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
_FROM_KEYS = ("SIGINT", "SIGQUIT")
"""Signals that a terminal's keys send to the agent as well as to this command."""
_CREDENTIALS = ("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "CODEX_API_KEY", "GEMINI_API_KEY")
_MAX_OBSERVED = 100
"""Sessions whose exchanges are read for a report of an observed run."""


@dataclass(frozen=True)
class RunOptions:
    """The options of `accordion run`. `port`: 0 for any."""

    config: Path | None = None
    port: int = 0
    is_observing: bool = False


@dataclass(frozen=True)
class ProxyAccess:
    """The proxy of a run; `process` and `log` belong to this command's own proxy."""

    proxy: RunningProxy
    process: SpawnProcess | None = None
    log: Path | None = None


def run(words: Sequence[str], options: RunOptions) -> int:
    """Runs an agent's command line. Returns its exit code. Raises AgentError and ConfigError before it starts."""
    with TemporaryDirectory(prefix="accordion-") as files:
        command = AgentCommand((_find_program(words[0]), *words[1:]), dict(os.environ), Path.cwd(), Path(files))
        return _run(find_agent(command), options)


def _run(agent: Agent, options: RunOptions) -> int:
    with _open_proxy(agent, options) as access:
        command = agent.through(access.proxy)
        report = RunReport(access.proxy, agent.client, command.environ, is_observing=options.is_observing)
        _print(_describe_access(agent, access), *agent.notes)
        code = run_command(command)
        if access.process is None or access.process.is_alive():
            _print(*report.lines(access.log))
        else:
            _print(f"Accordion ended before {command.program} did; {access.log} says why")
    return code


def _find_program(name: str) -> str:
    """Returns the path of a program. Raises AgentError that says how to install it."""
    path = shutil.which(name)
    if path is not None:
        return path
    if os.path.exists(name) and os.sep in name:
        raise AgentError(f"{name} is no program that can be run", 126)
    known = AGENTS.get(name)
    advice = (
        f"install it: {known.install}" if known else f"known agents: {', '.join(AGENTS)}; or give any other command"
    )
    raise AgentError(f"{name} is not installed, or its folder is not in PATH; {advice}", 127)


# -- the proxy ---------------------------------------------------------------------------------------------------------


@contextmanager
def _open_proxy(agent: Agent, options: RunOptions) -> Iterator[ProxyAccess]:
    """Joins a proxy, or starts one and stops it at the end. Raises AgentError and ConfigError."""
    overrides: dict[str, object] = {"server.host": _HOST, "server.port": options.port, "server.workers": 1}
    joined = _find_running(agent, options)
    if joined is not None:
        yield ProxyAccess(joined)
        return
    if agent.opens_websockets and _load_settings(options).server.model_sockets == "relay":
        overrides["server.responses_websocket"] = "read"
    file = SettingsFile(options.config, os.environ, {**overrides, **agent.upstreams}, reads_folder=False)
    with start_proxy(file, is_observing=options.is_observing) as access:
        yield access


def _find_running(agent: Agent, options: RunOptions) -> RunningProxy | None:
    """Finds a proxy to join. Removes its address from the agent's upstreams: it is no provider.

    Raises AgentError if a port that the user names is in use, and cannot be joined.
    """
    settings = _load_settings(options)
    named = _find_named(agent)
    port = options.port or settings.server.port
    url = loopback_url(settings.server.host if not options.port else _HOST, port)
    proxy = named or find_proxy(url)
    problem = _why_not_to_join(agent, proxy, options)
    if proxy is not None and not problem:
        return proxy
    if options.port and is_listening(_HOST, options.port):
        user = f"is Accordion's, but cannot be joined: {problem}" if problem else "belongs to another program"
        raise AgentError(f"port {options.port} {user}. Choose another --port, or leave it out for a free one.")
    if proxy is not None:
        agent.notes.append(f"The Accordion at {proxy.url} is not used: {problem}.")
    return None


def _load_settings(options: RunOptions) -> Settings:
    """Loads the settings of the user's file. Raises ConfigError."""
    return SettingsFile(options.config, os.environ, reads_folder=False).settings


def _find_named(agent: Agent) -> RunningProxy | None:
    """Finds the proxy that the agent's own settings name. Removes its address from the upstreams."""
    found = None
    for key in UPSTREAMS:
        if key in agent.upstreams and (proxy := find_proxy(origin(agent.upstreams[key]))) is not None:
            del agent.upstreams[key]
            found = proxy
    return found


def _why_not_to_join(agent: Agent, proxy: RunningProxy | None, options: RunOptions) -> str:
    """Returns why this run needs a proxy of its own; empty if it may join this one."""
    if proxy is None:
        return ""
    if options.is_observing:
        return "it compacts, and --observe must not"
    if agent.upstreams:
        addresses = " and ".join(value for key, value in agent.upstreams.items() if key in UPSTREAMS)
        return f"the agent's requests belong to {addresses}"
    if agent.opens_websockets and proxy.relays_websockets:
        return f"it relays WebSockets unread (server.responses_websocket), and {agent.name} opens one"
    return ""


@contextmanager
def start_proxy(file: SettingsFile, *, is_observing: bool = False) -> Iterator[ProxyAccess]:
    """Starts a proxy, waits until it answers, and stops it at the end. Raises AgentError and ConfigError."""
    from accordion.cli.serve import bind, start_serving  # noqa: PLC0415  # a joined proxy needs no server here

    sock, log = bind(file), _create_log()
    with sock:
        url = loopback_url(_HOST, sock.getsockname()[1])
        process = start_serving(file, sock, log, is_observing=is_observing)
    try:
        yield ProxyAccess(_wait_for_proxy(url, process, log), process, log)
    finally:
        process.terminate()
        process.join(_STOP_SECONDS)
        process.kill()


def _wait_for_proxy(url: str, process: SpawnProcess, log: Path) -> RunningProxy:
    """Waits until a proxy that was started answers. Raises AgentError."""
    deadline = time.monotonic() + _START_SECONDS
    while (proxy := find_proxy(url)) is None:
        if not process.is_alive() or time.monotonic() > deadline:
            raise AgentError(f"Accordion did not start; {log} says why", 1)
        time.sleep(0.05)
    return proxy


def _create_log() -> Path:
    """Creates this run's log file, and removes the oldest ones."""
    folder = _LOGS.expanduser()
    name = f"{time.strftime('%Y-%m-%dT%H-%M-%S')}-{os.getpid()}.log"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in sorted(folder.glob("*.log"))[: 1 - _MAX_LOGS]:
            old.unlink()
        (folder / name).touch(mode=0o600)
    except OSError:
        return Path(os.devnull)
    return folder / name


def _describe_access(agent: Agent, access: ProxyAccess) -> str:
    name = agent.name or Path(agent.command.program).name
    if access.process is None:
        return f"Accordion: {name} uses the proxy that runs at {access.proxy.url}"
    return f"Accordion listens on {access.proxy.url} for {name}, and ends with it; log: {access.log}"


# -- the agent ---------------------------------------------------------------------------------------------------------


def run_command(command: AgentCommand) -> int:
    """Runs a command in the foreground and passes signals on. Returns its exit code, or 128 and its signal."""
    with _pass_signals_on() as receivers:
        try:
            process = subprocess.Popen(command.arguments, env=dict(command.environ), cwd=command.folder)  # noqa: S603
        except OSError as error:
            raise AgentError(f"{command.program} cannot be run: {error.strerror}", 126) from None
        receivers.append(process)
        code = process.wait()
    return 128 - code if code < 0 else code


@contextmanager
def _pass_signals_on() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Passes signals on to the processes of the list that it yields.

    A key's signal reaches the whole foreground group of a terminal, so that the agent has it already.
    """
    processes: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        if signal.Signals(number).name in _FROM_KEYS and _is_in_foreground():
            return
        for process in processes:
            with suppress(ProcessLookupError):
                process.send_signal(number)

    numbers = [getattr(signal, name) for name in (*_FORWARDED, *_FROM_KEYS) if hasattr(signal, name)]
    # Not ignored: an ignored signal would stay ignored in the agent.
    former = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        yield processes
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _is_in_foreground() -> bool:
    """Whether this process belongs to the foreground group of a terminal."""
    try:
        with open("/dev/tty", "rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def _print(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr, flush=True)


# -- the report -------------------------------------------------------------------------------------------------------


class RunSums(msgspec.Struct, frozen=True):
    """Sums over sessions: the totals, and the nanodollars that were saved net; None if a price is not known."""

    totals: Totals = Totals()
    net_cost: int | None = 0

    def __add__(self, other: RunSums) -> RunSums:
        return RunSums(self.totals + other.totals, _add(self.net_cost, other.net_cost))

    @property
    def own_tokens(self) -> int:
        """The tokens used for summaries and for reading the archive."""
        return self.totals.summary_input + self.totals.summary_output + self.totals.read_back_input

    @property
    def net_tokens(self) -> int:
        """The tokens that were not sent because of compactions, less the own ones."""
        return self.totals.saved - self.own_tokens

    def since(self, before: RunSums) -> RunSums:
        """Returns what was added since an earlier time."""
        names = Totals.__struct_fields__
        gain = Totals(*(getattr(self.totals, name) - getattr(before.totals, name) for name in names))
        return RunSums(gain, _add(self.net_cost, None if before.net_cost is None else -before.net_cost))


def _add(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


class RunReport:
    """Compares the records of a proxy's sessions before and after an agent's run.

    `client` selects the sessions of one client, since others may use the same proxy or store; empty for all. If the
    proxy has keys of its own, the agent's credential is one of them, and gives access to these records.
    """

    def __init__(
        self, proxy: RunningProxy, client: str, environ: Mapping[str, str], *, is_observing: bool = False
    ) -> None:
        """Reads the totals before the run."""
        self._proxy, self._client, self._is_observing = proxy, client, is_observing
        key = next(filter(None, map(environ.get, _CREDENTIALS)), "")
        self._credentials = {"authorization": f"Bearer {key}"} if key else {}
        self._started_at = time.time()
        self._before: dict[str, RunSums] = {}
        # Without the totals before, those of a session that goes on count as a whole.
        with suppress(QueryError):
            self._before = {session["id"]: read_sums(session) for session in proxy.list_sessions(self._credentials)}

    def lines(self, log: Path | None = None) -> Iterator[str]:
        """Yields the lines. `log` is the log of a proxy that ends with the run."""
        try:
            sessions = list(self._list_changed())
            gain = sum((gain for _, gain in sessions), RunSums())
            if not gain.totals.requests:
                page = see("docs/run-an-agent.md#no-request-came")
                yield f"Accordion: no request came from this command. It may use an address of its own.{page}"
                return
            yield self._describe_requests(sessions, gain.totals)
            yield self._describe_effect(sessions, gain)
        except QueryError as error:
            yield f"Accordion cannot say what happened: {error}"
            return
        session = sessions[0][0]["id"]
        place = f"log {log}" if log is not None else f"{self._proxy.url}/accordion/sessions/{session}"
        archive = f"{own_command(f'artifacts --session {session}')}; " if gain.totals.compactions else ""
        yield f"Look: {archive}{place}"

    def _list_changed(self) -> Iterator[tuple[dict[str, Any], RunSums]]:
        """Yields the sessions with requests of this run, and what the run added to their totals."""
        for session in self._proxy.list_sessions(self._credentials):
            if session["updated"] < self._started_at:
                return
            if not self._client or session["client"] == self._client:
                yield session, read_sums(session).since(self._before.get(session["id"], RunSums()))

    def _describe_requests(self, sessions: Sequence[tuple[dict[str, Any], RunSums]], gain: Totals) -> str:
        count = sum(1 for _, each in sessions if each.totals.requests)
        requests = f"{count_with_noun(gain.requests, 'request')} in {count_with_noun(count, 'session')}"
        failed = f", {gain.errors:,} of them failed" if gain.errors else ""
        if self._is_observing:
            return f"Accordion observed {requests}{failed}, and changed nothing."
        return f"Accordion: {requests}{failed}; {count_with_noun(gain.compactions, 'new compaction')}."

    def _describe_effect(self, sessions: Sequence[tuple[dict[str, Any], RunSums]], gain: RunSums) -> str:
        if self._is_observing:
            return self._describe_observed(sessions)
        if gain.totals.saved or gain.totals.compactions:
            return describe_savings(gain)
        fullest = max((each for each, _ in sessions if each["last"]), key=lambda each: each["last"]["utilization"])
        last = fullest["last"]
        # The size of an unknown window is a guess (windows.default).
        name = "window" if last["window_known"] else "assumed window"
        return (
            f"Nothing to save yet: {fullest['model']}'s {name} of {last['window']:,} tokens is "
            f"{last['utilization']:.0%} full."
        )

    def _describe_observed(self, sessions: Sequence[tuple[dict[str, Any], RunSums]]) -> str:
        """Describes what would have been compacted, by the last exchanges of each session."""
        due, largest = 0, (0, 0, "")
        for session, _ in sessions[:_MAX_OBSERVED]:
            for exchange in self._proxy.find_session(session["id"], self._credentials)["exchanges"]:
                outcome = exchange["compaction"] or {}
                is_due = outcome.get("state") == "observed" and outcome["triggered"] and not outcome["failure"]
                if exchange["at"] >= self._started_at and is_due:
                    due += 1
                    largest = max(largest, (outcome["before"], outcome["after"], exchange["model"]))
        if not due:
            return "No request was large enough for a compaction."
        before, after, model = largest
        return (
            f"{count_with_noun(due, 'request')} would have been compacted, the largest from {before:,} to {after:,} "
            f"tokens ({model})."
        )


def describe_savings(gain: RunSums) -> str:
    """Describes what compaction saved net, in tokens, and in dollars where the prices are known."""
    verb = "saved" if gain.net_tokens >= 0 else "added"
    dollars = "" if gain.net_cost is None else f" ({format_dollars(gain.net_cost)}, prompt caching counted)"
    return (
        f"{abs(gain.net_tokens):,} tokens {verb} net{dollars}: {gain.totals.saved:,} removed by compaction, "
        f"{gain.own_tokens:,} used for summaries and for reading the archive."
    )


def read_sums(session: Mapping[str, Any]) -> RunSums:
    """Returns the sums of one session, as the API describes it."""
    dollars = session["costs"]["dollars"]
    return RunSums(
        msgspec.convert(session["totals"], Totals), None if dollars is None else round(dollars["net"] * 10**9)
    )
