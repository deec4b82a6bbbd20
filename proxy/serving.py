"""Runs the server: one process, or several workers behind one socket."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import uvicorn
from uvicorn.supervisors import Multiprocess

from proxy import logs
from proxy.settings import SettingsFile
from proxy.wiring import Factory


class _Workers(Multiprocess):
    """Uvicorn's supervisor; a SIGHUP goes on to the workers, which read their settings again and keep serving."""

    def handle_hup(self) -> None:
        for process in self.processes:
            if process.pid is not None:
                os.kill(process.pid, signal.SIGHUP)


def serve(path: Path | None, overrides: Mapping[str, object], say: Callable[[str], object]) -> None:
    """Serves until it is told to stop; tells with `say` how to use it. Raises ConfigError before anything starts."""
    settings = SettingsFile(path, os.environ, overrides).settings
    logs.configure(settings.logging.level, settings.logging.format)
    server = settings.server
    config = uvicorn.Config(
        Factory(path, dict(overrides)),
        factory=True,
        host=server.host,
        port=server.port,
        workers=server.workers,
        loop="uvloop",
        http="httptools",
        ws="websockets-sansio",
        ws_max_size=2**40,
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
    sock = config.bind_socket()
    say(_greeting(server.host, sock.getsockname()[1], str(settings.store.url)))
    if server.workers == 1:
        uvicorn.Server(config).run(sockets=[sock])
        return
    with tempfile.TemporaryDirectory(prefix="accordion-metrics-") as folder:
        # Read by prometheus-client when a worker imports it.
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        _Workers(config, sockets=[sock]).run()


def _greeting(host: str, port: int, store: str) -> str:
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    base = f"http://{shown}:{port}"
    return f"""
  Accordion listens on {base}, its store is {store}

    OpenAI SDK       OpenAI(base_url="{base}/v1")         OPENAI_BASE_URL={base}/v1
    Anthropic SDK    Anthropic(base_url="{base}")         ANTHROPIC_BASE_URL={base}

    look             {base}/accordion/models   {base}/accordion/sessions   {base}/metrics
"""
