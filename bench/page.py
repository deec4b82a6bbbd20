"""Measures the page with many sessions: milliseconds of CPU for each view, all threads of the process.

python -m bench.page --sessions 10000
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import httpx

from accordion.composition.application import Application
from accordion.config.load import build
from accordion.model.budget import Utilization
from accordion.model.records import CompactionOutcome, Exchange, Session, Usage

REPEATS = 20
LONG = 50
"""Requests of each of the newest sessions, which are on the first page; the others have three."""
VIEWS = {
    "overview": "/accordion/",
    "first page of sessions": "/accordion/pages/sessions",
    "one label": "/accordion/pages/sessions?label=label-005000",
    "one session": "/accordion/pages/sessions/s-0",
    "savings": "/accordion/pages/savings",
}


def make_exchange(session: str, at: float, number: int) -> Exchange:
    """Makes an exchange of a long conversation that was compacted."""
    outcome = CompactionOutcome("replayed", "f-0123456789abcdef01234567", before=100_000, after=40_000, saved=30_000)
    return Exchange(
        at, f"req-{session}-{number}", session, "claude-opus-5", "anthropic", "/v1/messages", True, 200,
        2 * number + 1, Utilization(200_000, 1_000, 2_000, 60_000),
        "30.0% of the window, under the generation trigger of 174,000 tokens",
        Usage(63_000, 500, 60_000), compaction=outcome,
    )  # fmt: skip


async def fill(application: Application, count: int) -> None:
    """Records the exchanges of so many sessions."""
    now, tenant = time.time(), application.tenants.identify({}).tenant
    for index in range(count):
        session = Session(f"s-{index:x}", "default", now - index, label=f"label-{index:06d}", client="claude-code/2.1")
        for number in range(LONG if index < 100 else 3):
            exchange = make_exchange(session.id, now - index, number)
            session = application._ledger.record(tenant, session, f"worker.{index}", exchange) or session
        if index % 200 == 0:
            await application.outbox.flush()
    await application.outbox.flush()


async def measure(count: int) -> None:
    """Fills a store in SQLite, asks for each view, and prints the figures."""
    with tempfile.TemporaryDirectory() as folder:
        store = (
            f"store: {{url: 'sqlite:///{Path(folder) / 'store.db'}', timeout_seconds: 60, write_timeout_seconds: 60}}"
        )
        application = Application(build(store.encode(), {}, {}), {})
        await application.start()
        await fill(application, count)
        transport = httpx.ASGITransport(application.app())
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8787") as client:
            for name, path in VIEWS.items():
                times = []
                for _ in range(REPEATS):
                    started_at = time.process_time()
                    answer = await client.get(path)
                    times.append(time.process_time() - started_at)
                    answer.raise_for_status()
                median = sorted(times)[REPEATS // 2]
                size = len(answer.content) / 1_000
                print(f"{name:24} {1_000 * median:7.1f} ms of CPU, at least {1_000 * min(times):.1f}; {size:.0f} kB")
        await application.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=10_000)
    asyncio.run(measure(parser.parse_args().sessions))
