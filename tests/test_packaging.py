"""What a stranger gets: locks, container and Makefile that agree, and nothing of the machine it was made on."""

import json
import re
import subprocess
import sys
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml

from accordion.cli.main import app

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
LOCKS = ("requirements.lock", "requirements-test.lock", "requirements-dev.lock", "tests/clients/requirements.lock")
DEVELOPERS = {"test", "dev"}
"""Extras for those who change this project."""


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def pinned(lock: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", read(lock), re.MULTILINE))


@pytest.mark.parametrize("lock", LOCKS)
def test_every_pin_of_a_lock_has_hashes_and_no_lock_names_an_index(lock: str) -> None:
    text = read(lock)
    entries = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert len(entries) > 30
    assert all("--hash=sha256:" in entry for entry in entries)
    assert "://" not in text


@pytest.mark.parametrize(("smaller", "larger"), [LOCKS[0:2], LOCKS[1:3]])
def test_each_larger_lock_has_the_pins_of_the_smaller_one(smaller: str, larger: str) -> None:
    pins, more = pinned(smaller), pinned(larger)
    assert {name: more.get(name) for name in pins} == pins
    assert len(more) > len(pins)


def test_every_dependency_of_the_project_and_of_each_extra_for_users_is_in_its_lock() -> None:
    extras = {
        name: entries for name, entries in PROJECT["optional-dependencies"].items() if name not in ("test", "dev")
    }
    entries = [*PROJECT["dependencies"], *(entry for each in extras.values() for entry in each)]
    names = {re.split(r"[\s<>=!;\[]", entry, maxsplit=1)[0].lower() for entry in entries} - {"accordion-proxy"}
    assert {"starlette", "litellm", "redis", "mcp", "tokenizers", "opentelemetry-sdk"} <= names
    assert names <= set(pinned("requirements.lock"))
    assert pinned("requirements.lock")["litellm"] not in ("1.82.7", "1.82.8")


def test_the_extra_all_has_every_extra_for_users() -> None:
    extras = PROJECT["optional-dependencies"]
    (all_extras,) = extras["all"]
    named = set(all_extras.partition("[")[2].rstrip("]").split(","))
    assert "accordion-proxy[memory]" in extras["mcp"]
    assert named | {"memory", "all"} | DEVELOPERS == set(extras)


def test_the_container_and_the_makefile_install_only_locked_packages() -> None:
    docker, make = read("Dockerfile"), read("Makefile")
    flags = re.search(r"^PIP_FLAGS := (.*)$", make, re.MULTILINE)
    assert flags is not None
    assert "--require-hashes" in flags[1]
    assert f"pip wheel {flags[1]} --no-deps -w wheels -r requirements.lock" in docker
    assert re.findall(r"pip install (\S+ \S+ \S+ \S+)", docker) == ["--quiet --no-index --find-links wheels"]
    assert re.search(r"pip install --quiet --disable-pip-version-check --no-deps --editable \.", make)


def test_make_serve_reads_a_copy_of_the_settings_that_git_ignores() -> None:
    assert "accordion serve --config $(CONFIG)" in read("Makefile")
    copy = re.search(r"^CONFIG \?= (\S+)$", read("Makefile"), re.MULTILINE)
    assert copy is not None
    assert f"/{copy[1]}" in read(".gitignore").splitlines()


def test_ci_runs_the_tests_of_the_readme_then_all_others_then_lint() -> None:
    steps = [line for line in read(".ci/run").splitlines() if line.startswith("make ") and ">" not in line]
    assert steps == ["make test", "make rest", "make lint"]
    assert re.search(r"^test-all: test rest", read("Makefile"), re.MULTILINE)


def test_packages_of_missing_programs_can_be_asked_for_before_anything_is_installed(tmp_path: Path) -> None:
    script = [sys.executable, "-I", str(ROOT / "scripts" / "test_programs.py")]
    environ = {"PATH": str(tmp_path)}
    packages = subprocess.run([*script, "--packages"], env=environ, capture_output=True, text=True, check=True).stdout
    assert {"chromium", "nodejs", "nginx-light", "golang-go"} <= set(packages.split())
    missing = subprocess.run(script, env=environ, capture_output=True, text=True, check=True).stdout
    assert "chromium is missing: the tests of the page in a browser are skipped" in missing
    assert packages.strip() in missing


def test_everything_that_the_container_copies_is_there_and_let_in() -> None:
    let_in = set(re.findall(r"^!(\S+)$", read(".dockerignore"), re.MULTILINE))
    copied = {
        name
        for line in re.findall(r"^COPY (?!--from)(.*) \S+$", read("Dockerfile"), re.MULTILINE)
        for name in line.split()
    }
    assert copied == let_in
    assert all((ROOT / name).exists() for name in copied)


def test_the_containers_health_check_asks_this_machine_whatever_http_proxy_is_set() -> None:
    found = re.search(r"^HEALTHCHECK .*\\\n +CMD (\[.*\])$", read("Dockerfile"), re.MULTILINE)
    assert found is not None
    interpreter, *options = json.loads(found[1])
    assert interpreter == "python"

    def healthy(port: int) -> bool:
        environ = {"ACCORDION_PORT": str(port), "http_proxy": "http://127.0.0.1:1", "HTTP_PROXY": "http://127.0.0.1:1"}
        done = subprocess.run([sys.executable, *options], env=environ, capture_output=True, check=False, timeout=60)
        return done.returncode == 0

    class Well(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/healthz" else 404)
            self.send_header("content-length", "0")
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Well) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        assert healthy(server.server_port)
        server.shutdown()
    assert not healthy(server.server_port)


def test_the_commands_in_the_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    assert re.findall(r"^make ([a-z-]+)", read("README.md"), re.MULTILINE) == ["serve", "test", "demo"]
    commands = {command.callback.__name__ for command in app.registered_commands if command.callback is not None}
    used = set(re.findall(r"(?:^|`|uvx )accordion(?:-proxy)? ([a-z]+)", read("README.md"), re.MULTILINE))
    assert {"run", "doctor", "savings"} <= used <= commands
    assert (
        set(re.findall(r"(?:^|`)make ([a-z-]+)", read("README.md") + read("CONTRIBUTING.md"), re.MULTILINE)) <= targets
    )


def test_links_of_the_documents_lead_somewhere() -> None:
    for document in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text("utf-8")):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_nothing_heavy_is_imported_to_serve() -> None:
    code = (
        "import sys, accordion.cli.serve; print([m for m in ('litellm', 'redis', 'mcp', 'openai') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_the_version_is_said_once_and_the_same() -> None:
    version = tomllib.loads(read("pyproject.toml"))["project"]["version"]
    assert f'__version__ = "{version}"' in read("proxy/accordion/__init__.py")


def test_the_release_workflow_publishes_the_tested_build_and_stores_no_credential() -> None:
    workflow = yaml.safe_load(read(".github/workflows/release.yml"))
    jobs = workflow["jobs"]
    assert workflow["permissions"] == {}
    assert set(jobs["publish"]["needs"]) == jobs.keys() - {"publish"}
    assert {name: job["permissions"] for name, job in jobs.items() if "id-token" in job["permissions"]} == {
        "publish": {"id-token": "write"}
    }
    assert "secrets." not in read(".github/workflows/release.yml")
    assert any(step.get("run") == "bash .ci/run" for step in jobs["test"]["steps"])
    # .ci/run calls apt-get, which needs root; the runner's own user is not root.
    assert jobs["test"]["container"].startswith("debian:")
    minors = {entry.rpartition(" ")[2] for entry in PROJECT["classifiers"] if ":: 3." in entry}
    assert set(jobs["install"]["strategy"]["matrix"]["python"]) == minors


def test_each_version_in_the_changelog_has_a_date_and_the_newest_is_this_one() -> None:
    headings = re.findall(r"^## (.*)$", read("CHANGELOG.md"), re.MULTILINE)
    assert headings[0] == "Unreleased"
    versions = [re.fullmatch(r"(\d+\.\d+\.\d+) - \d{4}-\d\d-\d\d", heading) for heading in headings[1:]]
    assert all(versions)
    assert versions[0] is not None
    assert versions[0][1] == PROJECT["version"]
