"""The example of docs/write-a-feature.md is a feature of the program."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest

import accordion.features
from accordion.cli.serve import _format_greeting
from accordion.composition import features
from accordion.composition.application import Application
from accordion.config import SettingsFile
from accordion.config.load import build
from tests.composition.test_core import CONFIG, send
from tests.fakes import FakeReply, FakeUpstream

DOCUMENT = Path(__file__).parents[2] / "docs/write-a-feature.md"


@pytest.fixture
def _example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    assert sum(len(block.splitlines()) for block in blocks) < 60
    package = tmp_path / "failures"
    package.mkdir()
    for name, block in zip(("__init__.py", "counts.py"), blocks, strict=True):
        (package / name).write_text(block)
    monkeypatch.setattr(accordion.features, "__path__", [*accordion.features.__path__, str(tmp_path)])
    monkeypatch.setattr(features, "FEATURES", (*features.FEATURES, "failures"))


@pytest.mark.usefixtures("_example")
async def test_the_example_counts_failed_requests_of_a_tenant() -> None:
    upstream = FakeUpstream([FakeReply(500), FakeReply()])
    application = Application(build(CONFIG, {}, {}), {}, connect=lambda _: upstream)
    await application.start()
    try:
        for _ in range(2):
            await send(
                application, json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}).encode()
            )
        transport = httpx.ASGITransport(app=application.app())
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8787") as http:
            counts = (await http.get("/accordion/failures")).json()
    finally:
        await application.stop()
    assert counts == {"m": 1}


@pytest.mark.usefixtures("_example")
def test_the_example_greets(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").touch()
    assert "failures         http://" in _format_greeting(SettingsFile(tmp_path / "empty.yaml", {}), 8787, "")
