"""Commands whose output cannot be shown or written."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.rest  # each test starts processes, or waits for real time


TRANSCRIPT = Path(__file__).parents[2] / "examples" / "transcript.jsonl"


@pytest.fixture
def request_file(tmp_path: Path) -> Path:
    """A request that is compacted when it is asked for."""
    with TRANSCRIPT.open(encoding="utf-8") as lines:
        messages = json.loads(next(lines))["messages"]
    file = tmp_path / "request.json"
    file.write_text(json.dumps({"model": "gpt-4o", "messages": messages}), "utf-8")
    return file


def run(
    folder: Path, *arguments: str, output: int = subprocess.PIPE, **environ: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "accordion", *arguments]
    kept = {"PATH": os.environ.get("PATH", ""), "HOME": str(folder), "PYTHONPATH": str(TRANSCRIPT.parents[1] / "proxy")}
    return subprocess.run(
        command, stdout=output, stderr=subprocess.PIPE, text=True, cwd=folder, env=kept | environ, check=False
    )


def test_a_compaction_is_explained_if_the_output_is_not_utf_8(request_file: Path):
    asked = ("explain", "-H", "x-accordion-compact: now", "--window", "24000", "--full", str(request_file))
    done = run(request_file.parent, *asked, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "utilization" in done.stdout


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
@pytest.mark.parametrize("command", ["explain", "replay --json"])
def test_output_that_cannot_be_written_is_one_line_and_a_failure(request_file: Path, command: str):
    file = request_file if "explain" in command else TRANSCRIPT
    with open("/dev/full", "w") as full:
        done = run(request_file.parent, *command.split(), str(file), output=full.fileno())
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "cannot write the output: No space left on device"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("closing", [">&-", ">&- 2>&-"])
def test_output_that_was_closed_before_the_start_is_no_failure(tmp_path: Path, closing: str):
    """And it does not get into the file that is opened first."""
    store = f"sqlite:///{tmp_path}/kept.db"
    closed = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" -m accordion memory add Something {closing}', sys.executable],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PYTHONPATH": str(TRANSCRIPT.parents[1] / "proxy"), "ACCORDION_STORE": store},
        check=False,
    )
    assert (closed.returncode, closed.stderr) == (0, "")
    kept = run(tmp_path, "memory", "list", "--json", ACCORDION_STORE=store)
    assert json.loads(kept.stdout)["total"] == 1
