"""Without an extra, everything that needs it says which command installs it, and all else works."""

import logging
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from accordion.cli.main import app
from accordion.composition import Application
from accordion.composition.tables import spans
from accordion.config.extras import is_installed
from accordion.config.load import build
from accordion.model.errors import ConfigError, UpstreamError
from accordion.providers.litellm.litellm_compat import load_litellm
from tests.pipeline_setup import OWNER, OWNER_TOKEN

PACKAGES = {
    "litellm": ("litellm",),
    "redis": ("redis",),
    "memory": ("numpy", "tokenizers"),
    "mcp": ("mcp",),
    "otel": ("opentelemetry",),
}
IMPORTERS = {
    "accordion.http.mcp_server",
    "accordion.http.telemetry",
    "accordion.stores.memories_redis",
    "accordion.stores.redis",
}
"""The modules that import an extra at their top. The others import it where it is used, or not at all."""


def remove(monkeypatch: pytest.MonkeyPatch, extra: str) -> str:
    """Makes an extra's packages impossible to import. Returns the command that installs them."""
    for package in PACKAGES[extra]:
        for name in [package, *(each for each in sys.modules if each.startswith(f"{package}."))]:
            monkeypatch.setitem(sys.modules, name, None)
    return f"pip install 'accordion-proxy[{extra}]'"


@pytest.mark.parametrize(
    ("extra", "text", "path"),
    [
        ("redis", 'store: {url: "redis://127.0.0.1:1/0"}', "$.store.url"),
        ("redis", 'store: {url: "valkeys+cluster://127.0.0.1:1"}', "$.store.url"),
        (
            "litellm",
            "model_list: [{model_name: a, litellm_params: {model: openai/gpt-5}}, "
            "{model_name: b, litellm_params: {model: gemini/gemini-3-pro}}]",
            "$.model_list[1].litellm_params.model",
        ),
        ("memory", "memory: {after_fold: true}", "$.memory.after_fold"),
        ("memory", "memory: {recall: {enabled: true}}", "$.memory.recall.enabled"),
        ("memory", 'memory: {rerank: {model: m, api_base: "http://127.0.0.1:1/v1"}}', "$.memory.rerank"),
    ],
)
def test_a_setting_that_needs_a_missing_extra_is_refused(
    extra: str, text: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(text.encode(), {}, {})
    command = remove(monkeypatch, extra)
    with pytest.raises(ConfigError, match="needs packages that are not installed") as refused:
        build(text.encode(), {}, {})
    assert refused.value.path == path
    assert command in refused.value.message


def test_the_default_settings_need_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for extra in PACKAGES:
        remove(monkeypatch, extra)
    build(b"model_list: [{model_name: a, litellm_params: {model: anthropic/claude-opus-4-5}}]", {}, {})


def test_mcp_needs_the_packages_of_memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_installed("mcp")
    remove(monkeypatch, "memory")
    assert not is_installed("mcp")


def test_a_translated_request_without_litellm_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    command = remove(monkeypatch, "litellm")
    with pytest.raises(UpstreamError) as refused:
        load_litellm()
    assert refused.value.code == "translation_unavailable"
    assert command in refused.value.message


def test_traces_without_opentelemetry_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    command = remove(monkeypatch, "otel")
    monkeypatch.delitem(sys.modules, "accordion.http.telemetry", raising=False)
    with caplog.at_level(logging.WARNING, logger="accordion"):
        assert spans({"OTEL_TRACES_EXPORTER": "console"}) is None
    assert command in caplog.text


async def test_the_routes_of_memory_without_its_packages_name_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(monkeypatch, "memory")
    application = Application(
        build(f'store: {{url: "sqlite:///{tmp_path}/a.db"}}'.encode(), {}, {}), {}, owner_token=OWNER_TOKEN
    )
    transport = httpx.ASGITransport(app=application.app())
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8787") as http:
        replies = {
            "memory": await http.post("/accordion/memory/search", json={"query": "x"}),
            "mcp": await http.post("/mcp", json={}),
        }
        assert (await http.get("/accordion/sessions")).status_code == 200
        erased = await http.delete("/accordion/archive", headers=OWNER)
    await application.stop()
    for extra, reply in replies.items():
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (501, "extra_not_installed")
        assert f"pip install 'accordion-proxy[{extra}]'" in error["message"]
    assert erased.json()["verified"]


@pytest.mark.parametrize(("command", "extra"), [(["memory", "list"], "memory"), (["mcp"], "mcp")])
def test_commands_without_their_extra_name_the_command(
    command: list[str], extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yaml").write_text(f'store: {{url: "sqlite:///{tmp_path}/a.db"}}\n')
    install = remove(monkeypatch, extra)
    result = CliRunner().invoke(app, [*command, "--config", str(tmp_path / "config.yaml")])
    assert result.exit_code == 2
    assert install in " ".join(result.output.split())


def test_extras_are_imported_in_few_modules_and_the_others_do_without() -> None:
    code = (
        "import importlib, pkgutil, sys\n"
        "import accordion\n"
        f"packages = {[package for each in PACKAGES.values() for package in each]!r}\n"
        "sys.modules.update(dict.fromkeys(packages))\n"
        "for found in pkgutil.walk_packages(accordion.__path__, 'accordion.'):\n"
        "    if found.name == 'accordion.__main__':\n"
        "        continue\n"
        "    try:\n"
        "        importlib.import_module(found.name)\n"
        "    except ImportError:\n"
        "        print(found.name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert set(done.stdout.split()) == IMPORTERS
