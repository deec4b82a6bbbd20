"""`accordion doctor`: each finding, and what it says to do."""

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from accordion.cli.main import app
from tests.loopback import Loopback, replies_json
from tests.proxy_process import held_port

CONFIG = """
server: {port: PORT}
store: {url: "sqlite:///FOLDER/kept.db"}
upstreams:
  openai: {base_url: "URL/v1"}
  anthropic: {base_url: "URL"}
  gemini: {base_url: "URL"}
"""


Findings = dict[str, list[tuple[str, str, str]]]
"""Grade, text and advice of each finding, by its subject."""


def examine(folder: Path, config: str) -> tuple[int, Findings]:
    """Returns the exit code and the findings."""
    file = folder / "c.yaml"
    file.write_text(config)
    done = CliRunner().invoke(app, ["doctor", "--json", "--config", str(file)], catch_exceptions=False)
    found: Findings = {}
    for line in done.stdout.splitlines():
        finding = json.loads(line)
        found.setdefault(finding["subject"], []).append((finding["grade"], finding["text"], finding["advice"]))
    return done.exit_code, found


@pytest.fixture
def config(tmp_path: Path) -> str:
    with held_port() as port:
        text = CONFIG.replace("PORT", str(port))
    return text.replace("FOLDER", str(tmp_path))


async def test_a_machine_without_a_problem(tmp_path: Path, config: str) -> None:
    async with Loopback(replies_json({}, 404)) as provider:
        code, found = await run_beside(provider, tmp_path, config)
    assert code == 0
    assert {grade for findings in found.values() for grade, _, _ in findings} == {"ok"}
    assert found["store"][0][1].endswith("does not exist yet; the proxy creates it")
    assert found["upstream"][0][1] == f"{provider.url}/v1 answers (404 without a key)"
    assert [len(found[subject]) for subject in ("version", "extras", "agents", "port", "upstream")] == [1, 1, 1, 1, 2]
    assert not any(request.header("authorization") for request in provider.requests)
    assert not (tmp_path / "kept.db").exists()


async def run_beside(
    provider: Loopback, folder: Path, config: str
) -> tuple[int, dict[str, list[tuple[str, str, str]]]]:
    """Examines while the provider answers, on this loop."""
    return await asyncio.to_thread(examine, folder, config.replace("URL", provider.url))


def test_an_agent_that_leaves_something_out_is_a_note(
    tmp_path: Path, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "gemini"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", "http://127.0.0.1:8787")
    with held_port() as nobody:
        _, found = examine(tmp_path, config.replace("URL", f"http://127.0.0.1:{nobody}"))
    ((grade, text, advice),) = found["agent"]
    assert (grade, "needs a chosen login" in text, "run gemini" in advice) == ("note", True, True)


def test_each_problem_is_reported_with_its_remedy(tmp_path: Path, config: str) -> None:
    with held_port() as nobody:
        broken = config.replace("URL", f"http://127.0.0.1:{nobody}").replace("/kept.db", "/none.txt/kept.db")
        (tmp_path / "none.txt").write_text("")
        code, found = examine(tmp_path, broken)
    assert code == 1
    (grade, text, advice), *_ = found["store"]
    assert (grade, "is not a folder" in text, "correct store.url" in advice) == ("broken", True, True)
    (grade, text, advice), *_ = found["upstream"]
    assert (grade, text.startswith(f"http://127.0.0.1:{nobody}/v1: "), "HTTPS_PROXY" in advice) == (
        "broken",
        True,
        True,
    )


async def test_a_default_upstream_that_nobody_may_use_is_a_note_while_another_answers(
    tmp_path: Path, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    openai_only = config.partition("  anthropic:")[0]
    async with Loopback(replies_json({})) as provider:
        with held_port() as nobody:
            # The addresses of the providers themselves are the ones with TLS.
            monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{nobody}")
            code, found = await run_beside(provider, tmp_path, openai_only)
    assert code == 0
    assert [grade for grade, _, _ in found["upstream"]] == ["ok", "note", "note"]
    assert all(advice.startswith("only if you use this provider: ") for _, _, advice in found["upstream"][1:])


def test_default_upstreams_are_broken_if_none_answers(
    tmp_path: Path, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held_port() as nobody:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{nobody}")
        code, found = examine(tmp_path, config.partition("upstreams:")[0])
    assert code == 1
    assert [grade for grade, _, _ in found["upstream"]] == ["broken"] * 3


async def test_a_port_of_another_program_is_broken(tmp_path: Path, config: str) -> None:
    async with Loopback(replies_json({})) as provider:
        port = provider.url.rpartition(":")[2]
        text = config.replace("server: {port: ", f"server: {{port: {port}, max_body_bytes: ")
        code, found = await run_beside(provider, tmp_path, text)
    assert code == 1
    ((grade, text, advice),) = found["port"]
    assert (grade, text) == ("broken", f"{port} belongs to another program")
    assert "accordion run" in advice


async def test_a_port_of_an_accordion_is_named_with_its_version(tmp_path: Path, config: str) -> None:
    health = {"status": "ok", "name": "accordion", "version": "0.0.1", "responses_websocket": True}
    async with Loopback(replies_json(health)) as provider:
        text = config.replace("server: {port: ", f"server: {{port: {provider.url.rpartition(':')[2]}, max_body_bytes: ")
        code, found = await run_beside(provider, tmp_path, text)
    assert code == 0
    (ok, text, _), (note, _, advice) = found["port"]
    assert (ok, note, advice) == ("ok", "note", "restart it")
    assert text == f"Accordion 0.0.1 listens on {provider.url}"


async def test_windows_and_a_store_in_memory_are_notes(tmp_path: Path, config: str) -> None:
    models = "model_list: [{model_name: a, litellm_params: {model: openai/qwen-local}}]\n"
    async with Loopback(replies_json({})) as provider:
        text = config.replace(f"sqlite:///{tmp_path}/kept.db", "memory://") + models
        code, found = await run_beside(provider, tmp_path, text)
    assert code == 0
    ((grade, text, advice),) = found["window"]
    assert (grade, text) == ("note", "a: not known; 120,000 tokens are assumed")
    assert "max_input_tokens" in advice
    assert found["store"][0][0] == "note"
    assert not any("max_input_tokens" in text for _, text, _ in found["config"])


def test_an_invalid_config_is_a_finding(tmp_path: Path) -> None:
    code, found = examine(tmp_path, "sever: {}\n")
    assert code == 1
    ((grade, text, advice),) = found["config"]
    assert (grade, "sever" in text, bool(advice)) == ("broken", True, True)
    assert "version" in found


def test_people_get_lines(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("sever: {}\n")
    shown = CliRunner().invoke(app, ["doctor", "--config", str(tmp_path / "c.yaml")]).stdout
    assert shown.startswith("ok      version   Accordion ")
    assert "\nBROKEN  config    " in shown
