"""Without an extra, everything that needs it says which command installs it, and all else works."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from typer.testing import CliRunner

from accordion.cli.main import app
from accordion.composition.application import Application
from accordion.config import extras
from accordion.config.extras import EXTRAS, how_to_install, is_installed
from accordion.config.load import build
from accordion.features.translation.litellm_compat import load_litellm
from accordion.model.errors import ConfigError, UpstreamError
from tests.pipeline_setup import OWNER, OWNER_TOKEN

PACKAGES = {
    "litellm": ("litellm",),
    "redis": ("redis",),
    "memory": ("numpy", "tokenizers"),
    "mcp": ("mcp",),
    "otel": ("opentelemetry",),
}
IMPORTERS = {
    "accordion.features.memory.mcp_server",
    "accordion.features.telemetry.spans",
    "accordion.stores.redis",
}
"""The modules that import an extra at their top. The others import it where it is used, or not at all."""


def remove(monkeypatch: pytest.MonkeyPatch, extra: str) -> str:
    """Makes an extra's packages impossible to import. Returns the end of the command that installs them."""
    for package in PACKAGES[extra]:
        for name in [package, *(each for each in sys.modules if each.startswith(f"{package}."))]:
            monkeypatch.setitem(sys.modules, name, None)
    return how_to_install([extra])


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
        ("memory", "memory: {after_compaction: true}", "$.memory.after_compaction"),
        ("memory", "memory: {recall: {enabled: true}}", "$.memory.recall.enabled"),
        ("memory", "read_back: {recall: {embedding: true}}", "$.read_back.recall.embedding"),
        ("memory", 'memory: {rerank: {model: m, api_base: "http://127.0.0.1:1/v1"}}', "$.memory.rerank"),
    ],
)
def test_a_setting_that_needs_a_missing_extra_is_refused(
    extra: str, text: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(text.encode(), {}, {})
    command = remove(monkeypatch, extra)
    with pytest.raises(ConfigError, match=f"needs the extra `{extra}`, which is not installed: ") as refused:
        build(text.encode(), {}, {})
    assert refused.value.path == path
    assert command in refused.value.message


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A virtual environment with pip and all extras but memory and MCP."""
    remove(monkeypatch, "memory")
    remove(monkeypatch, "mcp")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/my env/bin/python")
    return tmp_path


def set_origin(monkeypatch: pytest.MonkeyPatch, origin: dict[str, object] | None) -> None:
    """Sets what the distribution was installed from."""
    text = None if origin is None else json.dumps(origin)
    monkeypatch.setattr(extras, "distribution", lambda name: SimpleNamespace(read_text=lambda file: text))


def test_the_command_installs_from_where_this_installation_came(
    installation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = installation.as_uri()
    python = "'/my env/bin/python' -m pip install"
    for origin, package in (
        ({"url": url, "dir_info": {}}, f"'{installation}[litellm,redis,memory,otel]'"),
        ({"url": url, "dir_info": {"editable": True}}, f"--editable '{installation}[litellm,redis,memory,otel]'"),
        ({"url": f"{url}/gone", "dir_info": {}}, "'accordion-proxy[litellm,redis,memory,otel]'"),
        (None, "'accordion-proxy[litellm,redis,memory,otel]'"),
    ):
        set_origin(monkeypatch, origin)
        assert how_to_install(["memory"]) == f"{python} {package}"


@pytest.mark.parametrize(
    ("mark", "command"),
    [("pipx_metadata.json", "pipx install --force"), ("uv-receipt.toml", "uv tool install --force")],
)
def test_the_command_is_that_of_the_tool_which_installed_accordion(
    installation: Path, monkeypatch: pytest.MonkeyPatch, mark: str, command: str
) -> None:
    set_origin(monkeypatch, None)
    (installation / mark).touch()
    assert how_to_install(["mcp"]) == f"{command} 'accordion-proxy[litellm,redis,mcp,otel]'"


def test_a_container_is_built_anew(installation: Path) -> None:
    (installation / "container-image").touch()
    command = "docker build -t accordion --build-arg EXTRAS=litellm,redis,mcp,otel ."
    assert how_to_install(["mcp"]) == command


def test_an_environment_without_pip_is_changed_by_uv(installation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_origin(monkeypatch, None)
    monkeypatch.setitem(sys.modules, "pip", None)
    assert how_to_install(["mcp"]).startswith("uv pip install --python '/my env/bin/python' ")


def test_the_extras_are_those_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(EXTRAS) == set(project["optional-dependencies"]) - {"all", "dev", "test"}


def test_the_default_settings_need_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for extra in PACKAGES:
        remove(monkeypatch, extra)
    build(b"model_list: [{model_name: a, litellm_params: {model: anthropic/claude-opus-4-5}}]", {}, {})


def test_mcp_needs_the_packages_of_memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_installed("mcp")
    remove(monkeypatch, "memory")
    assert not is_installed("mcp")


def test_a_translated_request_without_litellm_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    remove(monkeypatch, "litellm")
    with pytest.raises(UpstreamError) as refused:
        load_litellm()
    assert refused.value.code == "translation_unavailable"
    assert "the extra `litellm`, which is not installed" in refused.value.message


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
        assert f"needs the extra `{extra}`" in error["message"]
        assert "`accordion doctor` says there how to install it" in error["message"]
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
