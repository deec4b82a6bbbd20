"""Runs the server: one process, or several workers behind one socket."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import re
import secrets
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process
from multiprocessing.context import SpawnProcess
from pathlib import Path

from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from accordion.cli.installation import own_command
from accordion.cli.running_proxy import find_proxy, is_listening, loopback_url
from accordion.compaction.request_controls import CONTROL_HEADER
from accordion.composition.application import Application
from accordion.composition.configured_store import build_spool, propose_secret
from accordion.composition.features import load_features
from accordion.config import Settings, SettingsFile
from accordion.config.value_types import is_loopback
from accordion.model.errors import ConfigError
from accordion.server import logging_setup
from accordion.server.interpreter import set_up_interpreter
from accordion.server.uvicorn_compat import (
    ClientTimeouts,
    Server,
    ServerConfig,
    Supervisor,
    block_reload_signal,
    server_config,
)
from accordion.sessions.tenants import OWNER_TOKEN_FILE
from accordion.stores.open import open_store
from accordion.stores.worker_sync import Slots, shared_slots
from accordion.summaries.sentence_forms import compile_forms

_log = logging.getLogger("accordion")
_METRICS_DIRECTORY_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""The variable with the directory of the workers' metrics; prometheus-client reads it when a worker imports it."""
_RESTART_SECONDS = 3.0
"""Seconds between two tries to start a worker."""
_TOKEN = re.compile(r"[A-Za-z0-9_-]{20,200}")
_MAX_TOKEN = 1_000


@dataclass(frozen=True)
class ApplicationFactory:
    """Creates the application of one worker process. Uvicorn pickles it and calls it there."""

    file: SettingsFile
    """Already read: a pipe can be read only once, and the file may have changed since. The supervisor reloads its copy,
    so a worker that replaces another starts with the same settings."""
    slots: Slots | None = None
    """The workers' shared slots; None for one process. They can be pickled only while a process is spawned."""
    owner_token: str = field(default="", repr=False)
    """The token with which the proxy's owner opens the page, erases and exports."""
    is_observing: bool = False
    """Whether every request is only observed, whatever the settings and its own headers say."""

    def __call__(self) -> ASGIApp:
        """Builds the application. Raises ConfigError, or in a worker SystemExit, after which another one starts."""
        file = self.file
        logging_setup.configure(file.settings.logging.level, file.settings.logging.format)
        application = _build_application(file.settings, self.slots, self.owner_token)
        app = application.app()

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            set_up_interpreter()
            reload_requested = _listen_for_reload()
            await application.start()
            application.tasks.spawn(_reload_on_request(file, application, reload_requested), "follow the config file")
            application.tasks.spawn(_warm_up(application), "load what requests need")
            if parent_process() is not None:
                application.tasks.spawn(_end_with_supervisor(), "end with the supervisor")
            yield
            await application.stop()
            if self.slots is not None and _has_lost_supervisor():
                shutil.rmtree(os.environ[_METRICS_DIRECTORY_VARIABLE], ignore_errors=True)

        lifespan_app = Starlette(lifespan=lifespan)

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "lifespan":
                await lifespan_app(scope, receive, send)
            else:
                await app(_observe(scope) if self.is_observing else scope, receive, send)

        return serve


def _observe(scope: Scope) -> Scope:
    """Returns a request's scope with the header that forbids every change."""
    headers = [header for header in scope["headers"] if header[0] != CONTROL_HEADER]
    return {**scope, "headers": [*headers, (CONTROL_HEADER, b"observe")]}


def _build_application(settings: Settings, slots: Slots | None, owner_token: str) -> Application:
    try:
        return Application(settings, os.environ, slots, owner_token)
    except ConfigError as error:
        if slots is None:
            raise
        # The settings were valid at the start, so the store has changed, maybe by another version.
        _log.error("this worker cannot start; another one will try: %s", error)
        time.sleep(_RESTART_SECONDS)
        raise SystemExit(1) from None


async def _warm_up(application: Application) -> None:
    """Loads the most common encoding and the forms of sentences, so that no request need wait for them."""
    await application.tasks.offload(application.counter.load)
    # The first thread that counts stays the fastest (providers/models/tokenizer.py).
    application.counter.count("This thread counts most.", application.counter.encoding(""))
    await application.tasks.offload(compile_forms)


def _has_lost_supervisor() -> bool:
    """Whether this worker's supervisor has ended."""
    supervisor = parent_process()
    return supervisor is not None and not supervisor.is_alive()


async def _end_with_supervisor() -> None:
    """Stops this worker if its supervisor was killed: it would occupy the port, and nothing would stop it."""
    while not _has_lost_supervisor():  # noqa: ASYNC110  # not every system reports it
        await asyncio.sleep(1.0)
    _log.error("the process that started this worker is gone; the worker stops")
    signal.raise_signal(signal.SIGTERM)


def _listen_for_reload() -> asyncio.Event:
    """Returns an event that each SIGHUP sets from now on, also a blocked one."""
    reload_requested = asyncio.Event()
    # Windows has no SIGHUP; there only a change of the file counts.
    if hasattr(signal, "SIGHUP"):
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload_requested.set)
        block_reload_signal(False)
    return reload_requested


async def _reload_on_request(file: SettingsFile, application: Application, reload_requested: asyncio.Event) -> None:
    """Applies a changed config file. An invalid one changes nothing, and the log says why."""
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await reload_requested.wait()
        if not reload_requested.is_set() and not file.has_changed():
            continue
        reload_requested.clear()
        result = file.reload()
        if result.problem is not None:
            _log.error(
                "the config file has an error and was not loaded; the settings stay as they are: %s", result.problem
            )
            continue
        try:
            application.apply_settings(result.settings)
        except Exception:
            _log.exception("the new settings could not be applied; the old ones stay")
            continue
        logging_setup.configure(result.settings.logging.level, result.settings.logging.format)
        _log.info("the config file was reloaded")
        for key in result.ignored:
            _log.warning("%s changes only at the next start", key)


def serve(path: Path | None, overrides: Mapping[str, object], print_line: Callable[[str], object]) -> None:
    """Serves until a signal stops it, and prints how to use it. Raises ConfigError before anything starts."""
    file = SettingsFile(path, os.environ, overrides)
    settings = file.settings
    logging_setup.configure(settings.logging.level, settings.logging.format)
    for hint in file.find_hints():
        _log.warning("%s", hint)
    _check_stores(file)
    _raise_file_limit()
    workers = settings.server.workers
    token = _find_owner_token(settings)
    config = _server_config(ApplicationFactory(file, shared_slots() if workers > 1 else None, token))
    sock = bind(file)
    print_line(_format_greeting(file, sock.getsockname()[1], token))
    if workers == 1:
        Server(config).run(sockets=[sock])
        return
    with tempfile.TemporaryDirectory(prefix="accordion-metrics-") as folder:
        os.environ[_METRICS_DIRECTORY_VARIABLE] = folder
        Supervisor(config, [sock], file).run()


def start_serving(file: SettingsFile, sock: socket.socket, log: Path, *, is_observing: bool) -> SpawnProcess:
    """Starts a process that serves on `sock` and logs to a file. It ends with this process, or at SIGTERM.

    Raises ConfigError for a store that cannot be used.
    """
    _check_stores(file)
    serving = get_context("spawn").Process(target=_serve_apart, args=(file, sock, log, is_observing), daemon=True)
    # It inherits this, so that no key reaches it before it has a session of its own.
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        serving.start()
    finally:
        signal.signal(signal.SIGINT, former)
    return serving


def _serve_apart(file: SettingsFile, sock: socket.socket, log: Path, is_observing: bool) -> None:
    """Serves in a process of its own, which the keys and the output of this terminal do not reach."""
    os.setsid()
    with log.open("ab") as output, open(os.devnull, "rb") as nothing:
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source.fileno(), target)
    logging_setup.configure(file.settings.logging.level, file.settings.logging.format)
    for hint in file.find_hints():
        _log.warning("%s", hint)
    _raise_file_limit()
    factory = ApplicationFactory(file, owner_token=_find_owner_token(file.settings), is_observing=is_observing)
    Server(_server_config(factory)).run(sockets=[sock])


def _find_owner_token(settings: Settings) -> str:
    """Returns the owner's token; empty where other machines can connect and need a proxy key."""
    if settings.needs_proxy_key and not is_loopback(settings.server.host):
        return ""
    return load_owner_token(Path(OWNER_TOKEN_FILE))


def load_owner_token(path: Path) -> str:
    """Returns the token of the user that runs the proxy, from a file that it creates and only this user can read.

    If the file cannot be written, the token is valid until the proxy ends.
    """
    new = secrets.token_urlsafe(24)
    try:
        path = path.expanduser()
        path.parent.mkdir(parents=True, exist_ok=True)
        if (token := _read_private(path)) is None:
            with _lock(path.parent):
                # Another proxy that starts at the same time may have created it.
                if (token := _read_private(path)) is None:
                    _write_private(path, new)
    except (OSError, RuntimeError) as error:
        _log.warning("the token of the proxy's owner is not in a file, and changes at each start: %s", error)
        return new
    return token or new


def _read_private(path: Path) -> str | None:
    """Returns a token from a file; None if there is none, it has no token, or others can read it. Raises OSError."""
    with suppress(FileNotFoundError), path.open(encoding="ascii", errors="replace") as file:
        text, status = file.read(_MAX_TOKEN).strip(), os.fstat(file.fileno())
        is_private = os.name != "posix" or (status.st_uid == os.getuid() and not status.st_mode & 0o077)
        return text if is_private and _TOKEN.fullmatch(text) else None
    return None


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Waits until no other process holds the lock of a folder, and holds it meanwhile. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _write_private(path: Path, text: str) -> None:
    """Writes a file that only its user can read, whole or not at all. Raises OSError."""
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}-")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(f"{text}\n")
        Path(draft).replace(path)
    except BaseException:
        os.unlink(draft)
        raise


def _check_stores(file: SettingsFile) -> None:
    """Reports an unsuitable store or spool, such as one of another version, once and not in each worker."""
    try:
        _open_stores(file.settings)
    except ConfigError as error:
        raise file.locate(error) from None


def _open_stores(settings: Settings) -> None:
    store = open_store(settings.store.url.reveal(), timeout=settings.store.write_timeout_seconds)
    build_spool(settings, store).recall(propose_secret(store))


def bind(file: SettingsFile) -> socket.socket:
    """Binds the configured address. Raises ConfigError that says why that is impossible, and what uses the address."""
    server = file.settings.server
    try:
        return _bind(str(server.host), server.port)
    except OSError as error:
        proxy = find_proxy(loopback_url(server.host, server.port))
        if proxy is not None:
            advice = "An Accordion listens there already: use it"
        elif is_listening(server.host, server.port):
            advice = "Stop the program that uses this port"
        else:
            advice = f"{error.strerror}: correct the address"
        raise ConfigError(
            f"cannot listen on {server.host.with_port(server.port)}. {advice}, or choose another address (--host, "
            "--port, or ACCORDION_HOST, ACCORDION_PORT)",
            path="$.server",
        ) from None


def _bind(host: str, port: int) -> socket.socket:
    """Returns a bound socket that worker processes inherit. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.set_inheritable(True)
    except OSError:
        sock.close()
        raise
    return sock


def _server_config(factory: ApplicationFactory) -> ServerConfig:
    server = factory.file.settings.server
    return server_config(
        factory,
        (server.host, server.port),
        server.workers,
        ClientTimeouts(silent=server.idle_seconds),
        max_message=server.max_body_bytes,
        shutdown_seconds=server.shutdown_seconds,
    )


def _raise_file_limit() -> None:
    """Raises the limit of open files to the hard limit, for this process and its workers, as Go's runtime does.

    The usual soft limit, 1,024, exists for programs that call select(); a stream takes two files.
    """
    # Windows has no such limit, and macOS reports a hard limit that it does not accept.
    with suppress(ImportError, OSError, ValueError):
        import resource  # noqa: PLC0415  # not on every system

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _format_greeting(file: SettingsFile, port: int, owner_token: str) -> str:
    settings = file.settings
    source = (
        f"those of {file.path.absolute()}"
        if file.path.exists()
        else f"the defaults; `{own_command('init')}` writes them to a file"
    )
    base = loopback_url(settings.server.host, port)
    own_lines = "".join(feature.greet(settings, base, owner_token) for feature in load_features())
    return f"""
  Accordion listens on {base}, its store is {settings.store.url}
  Its settings are {source}

    OpenAI SDK       OpenAI(base_url="{base}/v1")         OPENAI_BASE_URL={base}/v1
    Anthropic SDK    Anthropic(base_url="{base}")         ANTHROPIC_BASE_URL={base}
    Gemini CLI, SDK                                             GOOGLE_GEMINI_BASE_URL={base}

{own_lines}"""
