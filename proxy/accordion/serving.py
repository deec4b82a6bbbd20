"""Runs the server: one process, or several workers behind one socket."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import parent_process
from pathlib import Path
from socket import socket

import uvicorn
from prometheus_client.multiprocess import mark_process_dead
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.supervisors import multiprocess

from accordion import logs
from accordion.core.errors import ConfigError
from accordion.faces.connection import Connection, Patience
from accordion.settings import Settings, SettingsFile, hints
from accordion.storage.opening import open_store
from accordion.storage.others import Slots, shared_slots
from accordion.storage.spool import SPOOL
from accordion.storage.sqlite_file import refuse_foreign
from accordion.wiring import House

_log = logging.getLogger("accordion")
_METRICS = "PROMETHEUS_MULTIPROC_DIR"
"""Names the folder of the workers' metrics; read by prometheus-client when a worker imports it."""
_BETWEEN_STARTS = 3.0
"""Seconds between two tries to start a worker."""


@dataclass(frozen=True)
class Factory:
    """Makes the application of one worker process; uvicorn calls it there. Can be pickled."""

    file: SettingsFile
    """Read already, since a pipe gives what it holds only once, and what is in force need not be what stands there by
    now. The supervisor follows its file, so that a worker which takes another's place begins with what that one had."""
    slots: Slots | None = None
    """What several workers share; None where there is one process. Can be pickled only where a process is spawned."""

    def __call__(self) -> ASGIApp:
        """Builds the house. Raises ConfigError, in a worker SystemExit: another is started in its place."""
        file = self.file
        logs.configure(file.settings.logging.level, file.settings.logging.format)
        for hint in hints(file.settings):
            _log.warning("%s", hint)
        house = _house(file.settings, self.slots)
        app = house.app()

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            asked = _asked()
            await house.start()
            house.tasks.spawn(_follow(file, house, asked), "follow the config file")
            house.tasks.spawn(_load(house), "load an encoding")
            if self.slots is not None:
                house.tasks.spawn(_end_with_supervisor(), "end with the supervisor")
            yield
            await house.stop()
            if self.slots is not None and _orphaned():
                shutil.rmtree(os.environ[_METRICS], ignore_errors=True)

        life = Starlette(lifespan=lifespan)

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "lifespan":
                await life(scope, receive, send)
            else:
                await app(scope, receive, send)

        return serve


def _house(settings: Settings, slots: Slots | None) -> House:
    try:
        return House(settings, os.environ, slots)
    except ConfigError as error:
        if slots is None:
            raise
        # What holds was sound at the start: a store that changed since, under a newer version perhaps.
        _log.error("this worker cannot start; another one will try: %s", error)
        time.sleep(_BETWEEN_STARTS)
        raise SystemExit(1) from None


async def _load(house: House) -> None:
    """Loads the encoding that most models count with, so that the first request need not wait for it."""
    await house.tasks.offload(house.counter.warm)
    # The first thread to count is quicker at it than all others from then on: regex pools belong to it.
    house.counter.count("This thread counts most.", house.counter.encoding(""))


def _orphaned() -> bool:
    """Whether the supervisor of this worker is gone."""
    supervisor = parent_process()
    return supervisor is not None and not supervisor.is_alive()


async def _end_with_supervisor() -> None:
    """Ends this worker in order when its supervisor was killed: it would hold the port, and nobody would end it."""
    while not _orphaned():  # noqa: ASYNC110  # asyncio is not told of it on every system
        await asyncio.sleep(1.0)
    _log.error("the process that started this worker is gone; the worker stops")
    signal.raise_signal(signal.SIGTERM)


def _asked() -> asyncio.Event:
    """Is set by each SIGHUP from now on, and by one that was held back."""
    asked = asyncio.Event()
    # Windows has no SIGHUP; there the file is followed by its changes alone.
    if hasattr(signal, "SIGHUP"):
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, asked.set)
        _hold_hup_back(False)
    return asked


def _hold_hup_back(held: bool) -> None:
    """A SIGHUP waits while it is held back, and for processes that are spawned meanwhile as well."""
    if hasattr(signal, "SIGHUP"):
        signal.pthread_sigmask(signal.SIG_BLOCK if held else signal.SIG_UNBLOCK, {signal.SIGHUP})


async def _follow(file: SettingsFile, house: House, asked: asyncio.Event) -> None:
    """Puts a changed config file in force; a bad one changes nothing, and the log says why."""
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await asked.wait()
        if not asked.is_set() and not file.changed():
            continue
        asked.clear()
        result = file.reload()
        if result.problem is not None:
            _log.error(
                "the config file has an error and was not loaded; the settings stay as they are: %s", result.problem
            )
            continue
        try:
            house.swap(result.settings)
        except Exception:
            _log.exception("the new settings could not be applied; the old ones stay")
            continue
        logs.configure(result.settings.logging.level, result.settings.logging.format)
        _log.info("the config file was reloaded")
        for key in result.ignored:
            _log.warning("%s changes only at the next start", key)


class _Server(uvicorn.Server):
    """Uvicorn's server; after a second signal too it ends in order. Uvicorn's own would raise the signals again first,
    and what is not written by then is lost: SIGTERM ends the process."""

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        await super().shutdown(sockets)
        if self.force_exit and not self.lifespan.shutdown_event.is_set():
            if running := tuple(self.server_state.tasks):
                for task in running:
                    task.cancel()
                # What they say of their end is written too.
                await asyncio.wait(running, timeout=1.0)
            await self.lifespan.shutdown()


class _Worker(multiprocess.Process):
    """A worker process of uvicorn's, with our server in it."""

    @property
    def server(self) -> uvicorn.Server:
        if self._server is None:
            self._server = _Server(self.config)
        return self._server


class _Workers(multiprocess.Multiprocess):
    """Uvicorn's supervisor; a SIGHUP goes on to the workers, which read their settings again and keep serving. `file`
    is that of the config's Factory, which each new worker is given as it is by then."""

    def __init__(self, config: uvicorn.Config, sockets: list[socket], file: SettingsFile) -> None:
        super().__init__(config, sockets)
        self._file = file
        # It makes its workers by this name, and has no other way to give them a server.
        multiprocess.Process = _Worker  # type: ignore[misc]

    def init_processes(self) -> None:
        # The command holds it back, and so does each worker until it listens: to one that does not it is the end.
        super().init_processes()
        _hold_hup_back(False)

    def keep_subprocess_alive(self) -> None:
        # The workers say what came of it.
        if self._file.changed():
            self._file.reload()
        before = {process.pid for process in self.processes}
        _hold_hup_back(True)
        super().keep_subprocess_alive()
        _hold_hup_back(False)
        for pid in before - {process.pid for process in self.processes}:
            mark_process_dead(pid)  # type: ignore[no-untyped-call]  # the library has no hints here

    def handle_hup(self) -> None:
        self._file.reload()
        for process in self.processes:
            if process.pid is not None:
                os.kill(process.pid, signal.SIGHUP)


def serve(path: Path | None, overrides: Mapping[str, object], say: Callable[[str], object]) -> None:
    """Serves until it is told to stop; tells with `say` how to use it. Raises ConfigError before anything starts."""
    file = SettingsFile(path, os.environ, overrides)
    settings = file.settings
    logs.configure(settings.logging.level, settings.logging.format)
    server = settings.server
    # A store or a spool of another kind or from a newer version is said here, once, and not by each worker.
    open_store(settings.store.url.reveal(), timeout=settings.store.write_timeout_seconds)
    if spool := settings.store.spool_path():
        refuse_foreign(Path(spool), SPOOL)
    _raise_file_limit()
    patience = Patience(server.idle_seconds, server.head_seconds, server.body_seconds)
    config = uvicorn.Config(
        Factory(file, shared_slots() if server.workers > 1 else None),
        factory=True,
        host=server.host,
        port=server.port,
        workers=server.workers,
        loop="uvloop",
        http=partial(Connection, patience=patience),  # type: ignore[arg-type]  # it is only called
        ws="websockets-sansio",
        ws_max_size=server.max_body_bytes,
        ws_ping_interval=None,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=server.shutdown_seconds,
        timeout_keep_alive=75,
        backlog=2048,
    )
    try:
        sock = config.bind_socket()
    except SystemExit:  # Uvicorn has said what the system says.
        raise ConfigError(
            f"cannot listen on {server.host}:{server.port}. Stop the program that uses this port, or choose another "
            "address (--host, --port, or ACCORDION_HOST, ACCORDION_PORT)",
            path="$.server",
        ) from None
    say(_greeting(server.host, sock.getsockname()[1], str(settings.store.url)))
    if server.workers == 1:
        _Server(config).run(sockets=[sock])
        return
    with tempfile.TemporaryDirectory(prefix="accordion-metrics-") as folder:
        os.environ[_METRICS] = folder
        _Workers(config, [sock], file).run()


def _raise_file_limit() -> None:
    """Lets this process, and the workers that it spawns, have as many files open as the system allows at all, as Go's
    runtime does. The usual soft limit, 1,024, is there for who calls select(); a stream takes two files."""
    # Windows has no such limit, and macOS states a hard one that it does not accept.
    with suppress(ImportError, OSError, ValueError):
        import resource  # noqa: PLC0415  # not on every system

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _greeting(host: str, port: int, store: str) -> str:
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    base = f"http://{shown}:{port}"
    return f"""
  Accordion listens on {base}, its store is {store}

    OpenAI SDK       OpenAI(base_url="{base}/v1")         OPENAI_BASE_URL={base}/v1
    Anthropic SDK    Anthropic(base_url="{base}")         ANTHROPIC_BASE_URL={base}

    look             {base}/accordion/models   {base}/accordion/sessions   {base}/metrics
"""
