"""The Grafana dashboard and the alerts, asked of a real Prometheus that collects the metrics of a real proxy."""

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.conftest import Start
from tests.deploy.conftest import DEPLOY, program, run
from tests.e2e.proxy_api import get_page, wait_until
from tests.e2e.small_window import WINDOW, agent, compacted_requests, config, rounds
from tests.proxy_process import PATIENT, held_port
from tests.strict_provider import StrictProvider

PROMETHEUS = DEPLOY / "prometheus"
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboards" / "accordion.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
ALERTS = [
    rule["expr"]
    for group in yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
VARIABLES = {"$__rate_interval": "1m", "$__range": "5m", "$model": ".*", "$upstream": ".*"}
"""What Grafana puts in the place of its variables."""
WITHOUT_SAMPLES = re.compile(
    "accordion_(errors|dollars|estimated|unpriced|compaction_failures|delegations|hidden|recall|read_back|summary|store_w|tenant|limited)"
)
"""Metrics that have no sample for these requests."""


def plain(query: str) -> str:
    """Returns a query of the dashboard as Grafana sends it."""
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    return query


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """Starts Prometheus on the folder with a target that it asks every second; returns its URL."""
    settings = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    shutil.copy(PROMETHEUS / "alerts.yml", folder)
    settings["global"] = {"scrape_interval": "1s"}
    (job,) = settings["scrape_configs"]
    del job["authorization"]
    job["static_configs"] = [{"targets": [target]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    with held_port() as port:
        pass
    options = ("--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address=127.0.0.1:{port}")
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([program("prometheus"), *options], cwd=folder, stdout=log, stderr=log)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(10)


async def ask(client: httpx.AsyncClient, query: str) -> list[Any]:
    """Returns the result of a query; fails where Prometheus refuses it."""
    response = await client.get("/api/v1/query", params={"query": query})
    assert response.status_code == 200, (query, response.text)
    result: list[Any] = response.json()["data"]["result"]
    return result


async def test_each_query_of_the_dashboard_and_the_alerts_has_an_answer(start: Start, tmp_path: Path):
    program("prometheus")
    proxy = start(config("chat") + PATIENT)
    with prometheus(tmp_path, proxy.url.removeprefix("http://")) as url:
        async with (
            httpx.AsyncClient(base_url=url, trust_env=False) as client,
            proxy.provider(StrictProvider("chat", WINDOW, rounds=1_000)),
            agent(proxy, "chat") as one,
        ):

            async def is_up() -> bool:
                try:
                    is_ready = (await client.get("/-/ready")).status_code == 200
                    return is_ready and bool(await ask(client, 'up{job="accordion"} == 1'))
                except httpx.TransportError:
                    return False

            await wait_until(is_up)
            while len(compacted_requests(one)) < 2:
                await rounds(one, 1)
                await asyncio.sleep(0.2)

            async def is_collected() -> bool:
                return bool(await ask(client, 'increase(accordion_compactions_total{state="compacted"}[1m]) > 0'))

            await wait_until(is_collected)
            # What the last requests left, too.
            await asyncio.sleep(2)
            page = (await get_page(proxy, "/metrics")).text
            known = set(re.findall(r"^# TYPE (\S+)", page, re.MULTILINE))
            for query in [*map(plain, QUERIES), *ALERTS]:
                answer = await ask(client, query)
                for name in re.findall(r"accordion_\w+", query):
                    assert name in known or name.removesuffix("_bucket") in known, name
                if query not in ALERTS and not WITHOUT_SAMPLES.search(query):
                    assert answer, f"nothing for {query}"
            labels = {
                name
                for query in QUERIES
                for group in re.findall(r"by \(([^)]+)\)", query)
                for name in group.split(", ")
            }
            assert {name for name in labels - {"le"} if f'{name}="' not in page} <= {
                "direction",
                "error",
                "evidence",
                "limit",
                "reason",
                "tenant",
            }


def test_promtool_accepts_the_files_and_each_alert_fires(tmp_path: Path):
    promtool = program("promtool")
    for name in ("prometheus.yml", "alerts.yml"):
        shutil.copy(PROMETHEUS / name, tmp_path)
    shutil.copy(Path(__file__).parent / "alerts_test.yml", tmp_path)
    checked = run(promtool, "check", "config", "--syntax-only", tmp_path / "prometheus.yml")
    assert checked.returncode == 0, checked.stderr
    tested = run(promtool, "test", "rules", tmp_path / "alerts_test.yml")
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_the_panels_have_a_place_of_their_own():
    places = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for at in [panel["gridPos"]]
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(places) == len(set(places))
    assert max(x for x, _ in places) == 23
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


def test_the_dashboard_asks_the_data_source_that_the_reader_chooses():
    assert {panel["datasource"]["uid"] for panel in PANELS} == {"${datasource}"}
    assert [each["name"] for each in DASHBOARD["templating"]["list"]] == ["datasource", "upstream", "model"]
    sources = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())
    assert [each["type"] for each in sources["datasources"]] == ["prometheus"]


def test_every_metric_of_the_reference_is_on_the_dashboard():
    reference = set(re.findall(r"^\| `(accordion_\w+)`", (DEPLOY.parent / "docs/figures.md").read_text(), re.MULTILINE))
    shown = " ".join(QUERIES)
    left_out = {name for name in reference if name not in shown}
    assert left_out == {"accordion_archive_evicted_total", "accordion_memory_tokens_total"}
