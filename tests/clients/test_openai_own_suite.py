"""openai-python's own API tests end the same way through the proxy as direct, and put the same bytes on the wire."""

import json
import os
import re
import subprocess
import sys
import tarfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import pytest
import replies
from client_link import CI, NOWHERE, PROXY_PYTHON, ClientLink
from wire import Request

HERE = Path(__file__).resolve().parent
CACHE = HERE / ".cache"
# They send what the others send: by the client of asyncio, or without a validation of what comes back.
LEFT_OUT = ["-k", "not TestAsync and not loose"]


def pinned(package: str) -> str:
    """The lock's entry of a package, hashes and all."""
    lock = (HERE / "requirements.lock").read_text()
    entry = re.search(rf"^{package}==.*(?:\\\n.*--hash.*)+", lock, re.M)
    assert entry, f"{package} is not in the lock"
    return entry[0].rstrip("\\ \n") + "\n"


def pip() -> list[str]:
    """How to start pip: an environment made by uv has none, the proxy's or the machine's own will do."""
    for python in (sys.executable, str(PROXY_PYTHON), "python3"):
        command = [python, "-m", "pip"]
        if subprocess.run([*command, "--version"], capture_output=True, check=False).returncode == 0:
            return command
    raise FileNotFoundError("no pip")


def own_suite() -> Path:
    """The source of the installed SDK's version, fetched once into the cache, as the lock's hashes allow."""
    folder = CACHE / f"openai-{version('openai')}"
    if not (folder / "tests").is_dir():
        CACHE.mkdir(exist_ok=True)
        wanted = CACHE / "openai.txt"
        wanted.write_text(pinned("openai"))
        command = [*pip(), "download", "--quiet", "--no-deps", "--no-binary", "openai"]
        command += ["--require-hashes", "--dest", str(CACHE), "--requirement", str(wanted)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        with tarfile.open(CACHE / f"{folder.name}.tar.gz") as archive:
            archive.extractall(CACHE, filter="data")
    return folder


@pytest.fixture(scope="session")
def suite() -> Path:
    """The project's source; where it cannot be fetched a skip, in CI a failure."""
    try:
        return own_suite()
    except (subprocess.SubprocessError, OSError) as error:
        message = f"openai-python's source cannot be fetched: {getattr(error, 'stderr', None) or error}"
        (pytest.fail if CI else pytest.skip)(message[-500:])


def run_suite(link: ClientLink, suite: Path, folder: Path) -> dict[str, str]:
    """Run the tests against a link; return the outcome of each."""
    environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(folder), "PYTHONPATH": str(HERE)}
    environment |= {"TEST_API_BASE_URL": link.v1, "OWN_SUITE_FOLDER": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {"HTTPS_PROXY": NOWHERE, "NO_PROXY": "127.0.0.1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "tests/api_resources",
        "-p",
        "own_suite_plugin",
        "-p",
        "no:cacheprovider",
    ]
    command += ["-o", "addopts=", "-o", "filterwarnings=", "-q", "--tb=line", "--no-header", "--timeout=60", *LEFT_OUT]
    done = subprocess.run(command, cwd=suite, env=environment, capture_output=True, text=True, timeout=600, check=False)
    (folder / "output.txt").write_text(done.stdout + done.stderr)
    assert done.returncode in (0, 1), done.stdout[-3000:] + done.stderr[-3000:]
    outcomes: dict[str, str] = json.loads((folder / "outcomes.json").read_text())
    return outcomes


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_sdks_own_api_tests_end_the_same_way(link: ClientLink, suite: Path, tmp_path: Path) -> None:
    """Every endpoint of the SDK: outcomes, requests and responses are compared one by one."""
    kinds = {
        "json": "application/json",
        "events": "text/event-stream",
        "binary": "application/octet-stream",
        "text": "text/plain",
    }

    def answer(request: Request) -> replies.Reply | None:
        name = request.header("x-answer")
        if name is None:
            return None
        kind = name.split("-")[0]
        if kind == "nothing":
            return replies.Reply(204)
        return replies.Reply(200, (("Content-Type", kinds[kind]),), ((tmp_path / name).read_bytes(),))

    link.upstream.rule = answer
    outcomes = run_suite(link, suite, tmp_path)
    counts = Counter(outcomes.values())
    print(f"{link.mode}: {dict(counts)}, {len(link.upstream.received)} requests")
    link.note(outcomes=outcomes)
    assert len(link.upstream.received) > 1000
    assert not counts["failed"], (tmp_path / "output.txt").read_text()[-3000:]
