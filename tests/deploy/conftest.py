"""Fixtures of the tests of deploy/: the folder, and the programs that check it."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"

Render = Callable[..., list[dict[str, Any]]]


def program(name: str) -> str:
    """Returns the path of a program, or skips the test: CI installs all of them."""
    path = shutil.which(name)
    if path is None:
        assert "CI" not in os.environ, f"{name} is not installed"
        pytest.skip(f"{name} is not installed")
    return path


def run(
    *command: str | Path, environ: dict[str, str] | None = None, text: str = "", seconds: float = 120
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end, whatever it returns. `text`: its input. `seconds`: how long it may take."""
    return subprocess.run(
        command,
        input=text,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env={**os.environ, **(environ or {})},
    )


@pytest.fixture(scope="session")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that renders a chart, built from its source with Debian's packages of Helm's template functions."""
    go = program("go")
    if not Path("/usr/share/gocode/src/github.com/Masterminds/sprig").exists():
        pytest.skip("golang-github-masterminds-sprig-dev is not installed")
    path = tmp_path_factory.mktemp("render") / "render"
    environ = {
        "GO111MODULE": "off",
        "GOPATH": "/usr/share/gocode",
        "GOFLAGS": "",
        "GOCACHE": str(path.parent / "cache"),
    }
    built = run(go, "build", "-o", path, Path(__file__).parent / "render" / "main.go", environ=environ)
    assert built.returncode == 0, built.stderr
    return path


@pytest.fixture
def render(renderer: Path) -> Render:
    """Renders the chart with values; returns the Kubernetes objects. Raises ValueError where the chart refuses them."""

    def rendered(**values: Any) -> list[dict[str, Any]]:
        done = run(renderer, DEPLOY / "helm" / "accordion", "accordion", text=json.dumps(values))
        if done.returncode:
            raise ValueError(done.stderr)
        files = json.loads(done.stdout)
        files.pop("NOTES.txt")
        return [each for text in files.values() for each in yaml.safe_load_all(text) if each]

    return rendered
