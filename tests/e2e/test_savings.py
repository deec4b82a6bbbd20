"""Costs of a proxy with two workers and a store that lasts: sums, metrics, the command line, a restart, an erasure."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import httpx
import pytest

from tests.conftest import Start
from tests.e2e.proxy_api import get_page, sum_metric, wait_until
from tests.e2e.small_window import WINDOW, agent, compacted_requests, config, rounds
from tests.e2e.test_between_workers import one_of_each
from tests.proxy_process import PATIENT, Proxy
from tests.strict_provider import StrictProvider

PRICES = "prices: {models: {small: {input: 3, cached_input: 0.3, cache_write: 3.75, output: 15}}}\n"


async def savings(proxy: Proxy, requests: int) -> dict[str, Any]:
    """Returns the savings once so many requests are on record; other workers write theirs a moment later."""

    async def read_costs() -> dict[str, Any] | None:
        found: dict[str, Any] = (await get_page(proxy, "/accordion/savings")).json()
        return found if found["total"]["requests"] == requests else None

    return await wait_until(read_costs)


async def listed(proxy: Proxy) -> list[dict[str, Any]]:
    return list((await get_page(proxy, "/accordion/sessions")).json()["sessions"])


async def on_the_command_line(proxy: Proxy, command: str) -> list[dict[str, Any]]:
    arguments = ("-m", "accordion", command, "--json", "--config", str(proxy.config))
    environ = {"ACCORDION_STORE": "sqlite:///one.db", "HOME": str(proxy.folder), "PATH": ""}
    # The same source as the proxy's.
    environ |= {name: value for name, value in os.environ.items() if name == "PYTHONPATH"}
    run = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, cwd=proxy.folder, env=environ
    )
    out, _ = await run.communicate()
    assert run.returncode == 0
    return [json.loads(line) for line in out.splitlines()]


def added(rows: list[dict[str, Any]], name: str) -> float:
    return float(sum(row["dollars"][name] for row in rows))


async def test_costs_add_up_over_workers_outlast_a_restart_and_stay_after_an_erasure(start: Start):
    proxy = start(PATIENT + config("chat") + PRICES, "--workers", "2", ACCORDION_STORE="sqlite:///one.db")
    async with (
        proxy.provider(StrictProvider("chat", WINDOW, rounds=1_000, thinks=False)),
        one_of_each(proxy, "chat") as clients,
        agent(proxy, "chat") as run,
    ):
        while len(compacted_requests(run)) < 2:
            run.client = clients[len(run.answers) % 2]
            await rounds(run, 1)
        await rounds(run, 2)
        requests = len(run.answers)
        found = await savings(proxy, requests)
        sessions = [each["costs"] for each in await listed(proxy)]
        page = (await get_page(proxy, "/metrics")).text
    total = found["total"]
    assert total["tokens"]["without_accordion"]["input"] > total["tokens"]["sent"]["input"]
    assert total["dollars"]["own_cost"] > 0
    for name in ("spent", "without_accordion", "saved", "own_cost", "net"):
        for rows in (found["days"], found["models"], found["agents"], sessions):
            assert added(rows, name) == pytest.approx(total["dollars"][name])
    counted = {kind: sum_metric(page, "accordion_dollars_total", kind=kind) for kind in ("spent", "without_accordion")}
    assert counted == pytest.approx({kind: total["dollars"][kind] for kind in counted})
    assert (await on_the_command_line(proxy, "savings"))[0] == found
    assert len(await on_the_command_line(proxy, "sessions")) == len(sessions)

    assert proxy.stop() == 0
    proxy.start()
    assert await savings(proxy, requests) == found

    for session in await listed(proxy):
        async with httpx.AsyncClient(headers={"x-accordion-token": proxy.token}) as client:
            answer = await client.delete(f"{proxy.url}/accordion/sessions/{session['id']}", timeout=60)
            assert answer.status_code == 200
    assert await listed(proxy) == []
    assert await savings(proxy, requests) == found
