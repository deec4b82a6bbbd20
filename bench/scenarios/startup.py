"""What a start costs: importing `serve`, and from the command to the first healthy answer and to the first response."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from statistics import median

from bench import conversations, processes, servers
from bench.report import Table
from bench.run_settings import RunSettings
from bench.servers import ACCORDION, BARE, DIRECT, Pins, Server, Unavailable
from bench.texts import Texts

COLUMNS = ("proxy", "CPU s", "wall s", "RSS MB", "CPU s, first request", "modules", "litellm, redis, mcp imported")
UNWANTED = ("litellm", "redis", "mcp")
LINE = re.compile(r"^import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)$", re.MULTILINE)
IMPORTS = {
    "accordion.cli.serve": "accordion.cli.serve",
    "accordion.cli.main": "accordion.cli.main",
    "starlette and uvicorn": "starlette.applications, starlette.routing, uvicorn",
}
CLOCK = "import time; began = time.process_time(); import {}; print(time.process_time() - began)"


def run(setting: RunSettings) -> list[Table]:
    table = Table("Start-up, to the first answer of the health path", COLUMNS)
    with servers.upstream(Pins()) as upstream:
        for name in (*setting.names(), BARE):
            if name != DIRECT:
                _measure(setting, name, upstream, table)
    table.notes += [
        "CPU s, first request: what comes on top until the first chat request is answered",
        "imported: looked for in -X importtime of the server process, after one request has been answered",
        *setting.missing(),
    ]
    return [table, _measure_imports(setting)]


def _measure_imports(setting: RunSettings) -> Table:
    """Measures imports in fresh interpreters, one after the other, so that the machine treats all alike."""
    table = Table("Importing, in a fresh interpreter with its byte code written", ("import", "CPU s, least", "median"))
    figures: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for _ in range(setting.fewer(15, 2) + 1):
        for name, modules in IMPORTS.items():
            figures[name].append(_import_seconds(modules))
    for name, seconds in figures.items():
        # The first one may have written the byte code.
        table.rows.append([name, min(seconds[1:]), median(seconds[1:])])
    table.goal("importing accordion.cli.serve", min(figures["accordion.cli.serve"][1:]), 0.5, "s")
    return table


def _import_seconds(modules: str) -> float:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", CLOCK.format(modules)]
    return float(subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout)


def _measure(setting: RunSettings, name: str, upstream: int, table: Table) -> None:
    figures = []
    try:
        for _ in range(setting.fewer(1 if "LiteLLM" in name else 5, 1)):
            with servers.serving(name, upstream, store=setting.store) as server:
                memory = sum(map(processes.rss_mb, server.pids))
                _ask_once(server)
                more = processes.cpu_seconds(server.pids) - server.started_cpu
                figures.append((server.started_cpu, server.started_wall, memory, more))
        modules = _imported(setting, name, upstream)
    except Unavailable as reason:
        setting.skipped[name] = str(reason)
        return
    found = [top for top in UNWANTED if any(module.split(".")[0] == top for module in modules)]
    cpu, wall, rss, more = (median(column) for column in zip(*figures, strict=True))
    table.rows.append([name, cpu, wall, rss, more, len(modules), ", ".join(found) or "none"])
    if name == ACCORDION:
        table.goal("CPU until the first healthy answer", cpu, 1.0, "s")
        table.goals.append(f"litellm, redis and mcp not imported: {'met' if not found else 'NOT met'}")
        slowest = sorted(modules.items(), key=lambda pair: -pair[1])[:8]
        table.notes.append("slowest imports (ms): " + ", ".join(f"{key} {own / 1000:.0f}" for key, own in slowest))


def _imported(setting: RunSettings, name: str, upstream: int) -> dict[str, int]:
    """Every module the server imported, with its own microseconds."""
    with servers.serving(name, upstream, store=setting.store, variables={"PYTHONPROFILEIMPORTTIME": "1"}) as server:
        _ask_once(server)
        assert server.log is not None
        return {module: int(own) for own, module in LINE.findall(server.log.read_text(errors="replace"))}


def _ask_once(server: Server) -> None:
    body = conversations.small_body(Texts(1))
    servers.get(server.port, conversations.PATHS[conversations.CHAT], body, timeout=30)
