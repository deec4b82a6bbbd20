"""From the command to the first healthy answer: CPU seconds, and what had to be imported for it."""

from __future__ import annotations

import re
from statistics import median

from bench import conversations, processes, servers
from bench.report import Table
from bench.run_settings import RunSettings
from bench.servers import ACCORDION, DIRECT, Pins, Server, Unavailable
from bench.texts import Texts

COLUMNS = ("proxy", "CPU s", "wall s", "RSS MB", "modules", "litellm, redis, mcp imported")
UNWANTED = ("litellm", "redis", "mcp")
LINE = re.compile(r"^import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)$", re.MULTILINE)


def run(setting: RunSettings) -> list[Table]:
    table = Table("Start-up, to the first answer of the health path", COLUMNS)
    with servers.upstream(Pins()) as upstream:
        for name in setting.names():
            if name != DIRECT:
                _measure(setting, name, upstream, table)
    table.notes += [
        "imported: looked for in -X importtime of the server process, after one request has been answered",
        *setting.missing(),
    ]
    return [table]


def _measure(setting: RunSettings, name: str, upstream: int, table: Table) -> None:
    figures = []
    try:
        for _ in range(setting.fewer(1 if "LiteLLM" in name else 5, 1)):
            with servers.serving(name, upstream, store=setting.store) as server:
                memory = sum(map(processes.rss_mb, server.pids))
                figures.append((server.started_cpu, server.started_wall, memory))
        modules = _imported(setting, name, upstream)
    except Unavailable as reason:
        setting.skipped[name] = str(reason)
        return
    found = [top for top in UNWANTED if any(module.split(".")[0] == top for module in modules)]
    cpu, wall, rss = (median(column) for column in zip(*figures, strict=True))
    table.rows.append([name, cpu, wall, rss, len(modules), ", ".join(found) or "none"])
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
