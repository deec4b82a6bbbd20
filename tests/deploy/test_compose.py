"""The compose file, its settings, and the systemd unit."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.conftest import DEPLOY, program, run

COMPOSE = DEPLOY / "compose"
NAMES = (
    "ACCORDION_PROXY_KEY",
    "ACCORDION_ADMIN_KEY",
    "ACCORDION_ARCHIVE_KEY",
    "GRAFANA_PASSWORD",
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
)
ENVIRON = {name: f"value-of-{name}" for name in NAMES}


def compose(**environ: str) -> subprocess.CompletedProcess[str]:
    """Checks and renders the compose file."""
    return run(
        program("docker-compose"),
        "-f",
        COMPOSE / "compose.yaml",
        "config",
        environ={**dict.fromkeys(NAMES, ""), **environ},
    )


@pytest.fixture
def services() -> dict[str, Any]:
    rendered = compose(**ENVIRON)
    assert rendered.returncode == 0, rendered.stderr
    found: dict[str, Any] = yaml.safe_load(rendered.stdout)["services"]
    return found


def test_its_ports_are_open_to_this_machine_alone(services: dict[str, Any]):
    ports = [str(port) for service in services.values() for port in service.get("ports", ())]
    assert len(ports) == 2
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_mounted_files_exist(services: dict[str, Any]):
    mounts = [mount.split(":")[0] for service in services.values() for mount in service["volumes"] if mount[0] == "/"]
    assert len(mounts) == 4
    assert all(Path(mount).exists() for mount in mounts)


def test_the_store_keeps_what_it_has(services: dict[str, Any]):
    command = services["valkey"]["command"]
    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"
    assert services["accordion"]["environment"]["ACCORDION_STORE"].startswith("valkey://valkey:")


@pytest.mark.parametrize(
    "name", ["ACCORDION_PROXY_KEY", "ACCORDION_ADMIN_KEY", "ACCORDION_ARCHIVE_KEY", "GRAFANA_PASSWORD"]
)
def test_a_missing_secret_is_named(name: str):
    refused = compose(**{**ENVIRON, name: ""})
    assert refused.returncode
    assert name in refused.stderr


def test_the_example_names_every_variable():
    text = (COMPOSE / "compose.yaml").read_text()
    used = set(re.findall(r"(?<!\$)\$\{(\w+)", text))
    assert set(re.findall(r"^(\w+)=$", (COMPOSE / ".env.example").read_text(), re.MULTILINE)) == used == set(NAMES)


@pytest.mark.parametrize("path", [COMPOSE / "config.yaml"])
def test_accordion_accepts_its_settings(path: Path, tmp_path: Path):
    subprocess.run(
        [sys.executable, "-m", "accordion", "check", str(path)],
        env={**ENVIRON, "ACCORDION_ARCHIVE_KEY": "", "HOME": str(tmp_path)},
        check=True,
        timeout=60,
    )


def test_prometheus_gets_the_key_from_the_file_that_the_container_writes():
    command = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]["prometheus"]["entrypoint"][-1]
    prometheus = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    (job,) = prometheus["scrape_configs"]
    assert f"> {job['authorization']['credentials_file']} " in command
    assert job["static_configs"] == [{"targets": ["accordion:8787"]}]


# -- systemd -----------------------------------------------------------------------------------------------------------


def test_systemd_accepts_the_unit(tmp_path: Path):
    analyze = program("systemd-analyze")
    text = (DEPLOY / "systemd" / "accordion.service").read_text()
    unit = tmp_path / "accordion.service"
    unit.write_text(text.replace("/opt/accordion/bin/accordion", "/bin/true"))
    checked = run(analyze, "verify", "--man=no", unit)
    complaints = [line for line in (checked.stdout + checked.stderr).splitlines() if "accordion.service" in line]
    assert complaints == []
    score = run(analyze, "security", "--offline=true", "--threshold=20", unit)
    assert score.returncode == 0, score.stdout[-300:]


def test_the_unit_leaves_time_for_responses_to_end():
    text = (DEPLOY / "systemd" / "accordion.service").read_text()
    seconds = int(re.search(r"TimeoutStopSec=(\d+)", text)[1])  # type: ignore[index]
    shutdown = yaml.safe_load((DEPLOY.parent / "config.yaml").read_text())["server"]["shutdown_seconds"]
    assert seconds > shutdown


def test_all_names_of_the_environment_are_known():
    known = (DEPLOY.parent / "config.yaml").read_text() + (DEPLOY.parent / "docs" / "cli.md").read_text()
    for path in (
        COMPOSE / "compose.yaml",
        DEPLOY / "systemd" / "accordion.service",
        DEPLOY / "helm/accordion/values.yaml",
    ):
        for name in set(re.findall(r"ACCORDION_[A-Z_]+", path.read_text())) - {
            "ACCORDION_PROXY_KEY",
            "ACCORDION_ADMIN_KEY",
        }:
            assert name in known, f"{path.name} names {name}"
