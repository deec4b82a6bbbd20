"""The cheapest load there is at hand: wrk and nginx where Debian has them, else this folder's own."""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import load, replies, servers
from bench.servers import HERE, Pins, Server

CONNECTIONS = 64
NGINX = """
daemon off; master_process off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off; keepalive_requests 100000000; keepalive_timeout 600s;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{ listen 127.0.0.1:{port} backlog=512; default_type application/json; return 200 '{reply}'; }}
}}
"""


@dataclass(frozen=True)
class Load:
    """Throughput, and the CPU seconds that the generator itself took a request."""

    rps: float
    requests: int
    failed: int
    own_ms: float


def installed() -> bool:
    return bool(shutil.which("wrk") and shutil.which("nginx"))


@contextmanager
def upstream(pins: Pins) -> Iterator[tuple[int, list[int]]]:
    """nginx with a fixed reply, or the Python upstream; gives the port and the processes."""
    if not installed():
        with servers.upstream(pins) as port:
            yield port, []
        return
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        port = servers.free_port()
        config = Path(folder) / "nginx.conf"
        reply = replies.CHAT_JSON % (70, 86)
        config.write_text(NGINX.format(folder=folder, port=port, reply=reply))
        process = subprocess.Popen([*pins.prefix(), "nginx", "-c", str(config), "-e", f"{folder}/error.log"])
        try:
            time.sleep(0.3)
            yield port, [process.pid]
        finally:
            process.terminate()
            process.wait(timeout=5)


def drive(server: Server, seconds: int, pins: Pins) -> Load:
    """Sixty-four connections, unique small requests, for that long."""
    if not installed():
        job = load.Job("closed", server.port, concurrency=CONNECTIONS, count=60_000, seconds=seconds)
        before = _children_cpu()
        outcome = load.run(job, pins.prefix())
        own = 1000 * (_children_cpu() - before) / outcome["requests"]
        return Load(outcome["rps"], outcome["requests"], outcome["failed"], own)
    url = f"http://127.0.0.1:{server.port}/v1/chat/completions"
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "-s", str(HERE / "small.lua"), url]
    before = _children_cpu()
    done = subprocess.run([*pins.prefix(), *command], capture_output=True, text=True, timeout=seconds + 30, check=True)
    cpu = _children_cpu() - before
    requests = int(_number(r"(\d+) requests in", done.stdout))
    failed = int(_number(r"Non-2xx or 3xx responses: (\d+)", done.stdout))
    return Load(_number(r"Requests/sec:\s+([\d.]+)", done.stdout), requests, failed, 1000 * cpu / max(1, requests))


def _number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    return float(found[1]) if found else 0.0


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
