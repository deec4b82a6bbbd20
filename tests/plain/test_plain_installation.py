"""The package as `pip install accordion-proxy` installs it, without extras, in `.venv-plain` (`make plain`)."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest

from tests.loopback import replies_json
from tests.proxy_process import Proxy, held_port

ROOT = Path(__file__).parents[2]
PLAIN = Path(os.environ.get("PLAIN") or ROOT / ".venv-plain")
PYTHON = str(PLAIN / "bin" / "python")
MAX_BYTES = 120 * 2**20
BLOCK = 4_096
"""Files take whole blocks on the disk, as `du` counts them."""
REPLY = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 0,
    "model": "gpt-4o",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hello."}}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
}
WATCH_NETWORK = """
import sys

def watch(event, values):
    host = values[0] if event == "socket.getaddrinfo" else None
    if host not in (None, "127.0.0.1", "localhost", b"127.0.0.1"):
        with open("looked-up", "a") as file:
            print(host, file=file)

sys.addaudithook(watch)
"""
"""A sitecustomize.py that notes each host whose address Python looks up."""


@contextmanager
def serving(folder: Path, config: str = "", **environ: str) -> Iterator[Proxy]:
    """A proxy of the plain installation with a store in SQLite. `{upstream}` in the config is its provider's URL."""
    (folder / "sitecustomize.py").write_text(WATCH_NETWORK)
    environ = {"ACCORDION_STORE": "sqlite:///a.db", "PYTHONPATH": str(folder), **environ}
    with held_port() as upstream_port:
        proxy = Proxy(folder, upstream_port, environ=environ, python=PYTHON)
        proxy.config.write_text(config.replace("{upstream}", f"http://127.0.0.1:{upstream_port}"))
        try:
            proxy.start()
            yield proxy
        finally:
            proxy.stop()


def run(folder: Path, *arguments: str, **more: str) -> tuple[int, str]:
    """Runs the plain installation's `accordion`. Returns its exit code, and its output on one line.

    `more`: variables of its environment.
    """
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "NO_COLOR": "1", "COLUMNS": "200", **more}
    command = [str(PLAIN / "bin" / "accordion"), *arguments]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def install_command(extra: str) -> str:
    return f"uv pip install --python {PYTHON} '{ROOT}[{extra}]'"


def test_it_takes_less_than_120_megabytes() -> None:
    (packages,) = PLAIN.glob("lib/python3*/site-packages")
    files = [file.stat() for file in packages.rglob("*")]
    size = sum(-(-file.st_size // BLOCK) * BLOCK for file in files)
    assert size < MAX_BYTES, f"{size / 2**20:.0f} MiB in {len(files)} files"


def test_no_extra_is_installed() -> None:
    packages = ("litellm", "redis", "mcp", "opentelemetry", "numpy", "tokenizers", "openai", "pydantic")
    code = f"from importlib.util import find_spec; print([name for name in {packages!r} if find_spec(name)])"
    assert subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_init_writes_the_repositorys_config_and_check_accepts_it(tmp_path: Path) -> None:
    assert run(tmp_path, "init")[0] == 0
    assert (tmp_path / "config.yaml").read_bytes() == (ROOT / "config.yaml").read_bytes()
    code, output = run(tmp_path, "check")
    assert code == 0
    assert "config.yaml: valid" in output
    assert "warning" not in output


def test_the_demo_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WATCH_NETWORK)
    code, output = run(tmp_path, "demo", PYTHONPATH=str(tmp_path))
    assert code == 0, output
    assert "40 requests, 3 compactions." in output
    assert "read back: the model called read_artifact for art_" in output
    assert not (tmp_path / "looked-up").exists()


async def test_a_request_of_the_openai_sdk_is_measured_forwarded_and_answered(tmp_path: Path) -> None:
    with serving(tmp_path, ACCORDION_ARCHIVE_KEY="A" * 43 + "=") as proxy:
        async with (
            proxy.provider(replies_json(REPLY)) as provider,
            openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="sk-test") as client,
        ):
            reply = await client.chat.completions.with_raw_response.create(
                model="gpt-4o", messages=[{"role": "user", "content": "Hello, tokenizer!"}]
            )
            assert reply.parse().choices[0].message.content == "Hello."
            assert json.loads(provider.requests[0].body)["model"] == "gpt-4o"
            assert int(reply.headers["x-accordion-window"]) > 100_000
            assert 0 < int(reply.headers["x-accordion-tokens"]) < 20
        assert "WARNING" not in proxy.log
        assert f"memory and MCP: {install_command('mcp')}" in proxy.log
    assert (tmp_path / "a.db").exists()
    assert not (tmp_path / "looked-up").exists()


async def test_a_conversation_that_fills_its_window_is_compacted(tmp_path: Path) -> None:
    config = """
summaries: {writer: extractive}
model_list:
  - {model_name: small, litellm_params: {model: openai/gpt-4o}, model_info: {max_input_tokens: 4000}}
"""
    history = [
        {"role": role, "content": f"Step {number}: the ledger {number} of contoso has {number * 17} entries. " * 8}
        for number in range(40)
        for role in ("user", "assistant")
    ]
    with serving(tmp_path, config) as proxy:
        async with proxy.provider(replies_json(REPLY)) as provider, httpx.AsyncClient() as http:
            body = {"model": "small", "messages": [*history, {"role": "user", "content": "How many are there?"}]}
            reply = await http.post(
                f"{proxy.url}/v1/chat/completions", json=body, headers={"authorization": "Bearer x"}
            )
            assert reply.status_code == 200, reply.text
            assert json.loads(reply.headers["x-accordion-compaction"])["before"] > 4_000
            assert len(provider.requests[-1].body) < len(json.dumps(body)) / 4
            session = reply.headers["x-accordion-session"]
            listed = await http.get(f"{proxy.url}/accordion/artifacts", params={"session": session})
            assert listed.json()["artifacts"]


@pytest.mark.parametrize(
    ("config", "extra"),
    [
        ('store: {url: "redis://127.0.0.1:1"}', "redis"),
        ("model_list: [{model_name: a, litellm_params: {model: gemini/gemini-3-pro}}]", "litellm"),
        ("memory: {after_compaction: true}", "memory"),
    ],
)
def test_a_setting_that_needs_an_extra_is_refused_at_the_start(tmp_path: Path, config: str, extra: str) -> None:
    (tmp_path / "config.yaml").write_text(config)
    code, output = run(tmp_path, "serve")
    assert code == 2
    assert install_command(extra) in output


@pytest.mark.parametrize(("command", "extra"), [(("memory", "list"), "memory"), (("mcp",), "mcp")])
def test_a_command_that_needs_an_extra_names_it(tmp_path: Path, command: tuple[str, ...], extra: str) -> None:
    code, output = run(tmp_path, *command)
    assert code == 2
    assert install_command(extra) in output


async def test_a_request_that_needs_an_extra_is_answered_with_its_name(tmp_path: Path) -> None:
    config = "model_list: [{model_name: a, litellm_params: {model: openai/gpt-4o, api_base: '{upstream}/v1'}}]"
    message = {"model": "a", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello."}]}
    with serving(tmp_path, config, OTEL_TRACES_EXPORTER="console") as proxy:
        async with httpx.AsyncClient(base_url=proxy.url, headers={"x-api-key": "sk-test"}) as http:
            translated = await http.post("/v1/messages", json=message)
            assert (translated.status_code, translated.json()["type"]) == (502, "error")
            assert "the extra `litellm`, which is not installed" in translated.text
            for path, extra in (("/mcp", "mcp"), ("/accordion/memory/list", "memory")):
                refused = await http.post(path, json={})
                assert refused.status_code == 501
                assert f"the extra `{extra}`, which is not installed" in refused.json()["error"]["message"]
            assert (await http.delete("/accordion/archive", headers={"x-accordion-token": proxy.token})).json()[
                "verified"
            ]
        assert "the extra `otel`, which is not installed" in proxy.log


def test_replay_needs_no_extra(tmp_path: Path) -> None:
    code, output = run(
        tmp_path, "replay", str(ROOT / "examples" / "transcript.jsonl"), "--compact", "--window", "24000"
    )
    assert code == 0
    assert "Without compaction, 9 requests would not have fitted" in output
