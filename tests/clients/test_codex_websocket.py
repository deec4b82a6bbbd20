"""Codex in its default settings opens a WebSocket: through the proxy it is read, compacted and answered."""

import json
import re
from pathlib import Path

import pytest
import replies
from client_link import ClientLink, Proxy, run
from node_clients import program
from replies import Call, steps
from test_agent_clis import NOTES, QUESTION, node
from test_compaction_agent_clis import FILES, ReadingModel, assert_compacted, notes
from upstream import Upstream

__all__ = ["node"]

WINDOW = 20_000
CALL = Call("exec_command", {"cmd": "cat notes.txt"})


def codex(home: Path, v1: str) -> tuple[list[str], dict[str, str]]:
    """`codex exec` with its built-in provider; only the address is another one."""
    settings = f"""
        model = "gpt-test"
        openai_base_url = "{v1}"
        approval_policy = "never"
        sandbox_mode = "danger-full-access"
        [analytics]
        enabled = false
    """
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text(settings)
    command = [*program("@openai/codex/bin/codex.js"), "exec", "--skip-git-repo-check", "--json", QUESTION]
    return command, {"CODEX_API_KEY": "sk-test-not-a-key"}


def start(upstream: Upstream, folder: Path, settings: str) -> tuple[Proxy, ClientLink]:
    """A proxy of its own in front of the provider, and the client's way to it."""
    upstream.reset()
    proxy = Proxy(upstream.port, folder, settings)
    return proxy, ClientLink("through", upstream, upstream.record_connections(proxy.port))


@pytest.mark.parametrize("path", ["/v1", "/backend-api/codex"])
@pytest.mark.parametrize("sockets", ["responses", ""], ids=["socket", "http"])
def test_codex_reads_a_file_over_a_websocket_and_answers(
    upstream: Upstream, tmp_path: Path, sockets: str, path: str
) -> None:
    (tmp_path / "notes.txt").write_text(NOTES)
    proxy, link = start(upstream, tmp_path, "{}\n")
    upstream.sockets, upstream.rule = sockets, steps([CALL], "Found it. {result}")
    command, environment = codex(tmp_path, f"{link.v1.removesuffix('/v1')}{path}")
    printed = run(command, link, environment, tmp_path)
    asked = [seen for seen in upstream.received if "exec_command" in replies.tool_names(replies.body_of(seen.request))]
    upgrades = [
        one for one in link.recorder.recordings if b"Upgrade: websocket" in one.up or b"upgrade: websocket" in one.up
    ]
    log = proxy.log.read_text()
    upstream.call(link.recorder.stop())
    proxy.stop()
    assert "Found it." in printed
    assert "swordfish" in printed
    assert len(asked) == 2
    assert upgrades
    requested = b"".join(one.up for one in link.recorder.recordings)
    assert b"POST %b/responses" % path.encode() not in requested, "it went on over HTTP"
    assert b"GET %b/responses" % path.encode() in requested
    assert "Traceback" not in log
    assert "not read" not in log
    if sockets:
        assert any(json.loads(message).get("previous_response_id") for message in upstream.messages)


@pytest.mark.parametrize("sockets", ["responses", ""], ids=["socket", "http"])
def test_codex_works_on_over_compactions_on_a_websocket(upstream: Upstream, tmp_path: Path, sockets: str) -> None:
    for number in range(FILES):
        (tmp_path / f"notes{number}.txt").write_text(notes(number))
    settings = {"summaries": {"writer": "extractive"}, "windows": {"default": WINDOW}}
    proxy, link = start(upstream, tmp_path, json.dumps(settings))
    upstream.sockets, upstream.rule = sockets, ReadingModel(CALL, [])
    reading = upstream.rule
    command, environment = codex(tmp_path, link.v1)
    printed = run(command, link, environment, tmp_path)
    log = proxy.log.read_text()
    upstream.call(link.recorder.stop())
    proxy.stop()
    assert "Found it." in printed
    assert "swordfish" in printed
    assert len(reading.asked) == FILES + 1, "nothing was asked twice"
    assert re.search(r"compact", log)
    assert not any(b"POST /v1/responses" in one.up for one in link.recorder.recordings), "it went on over HTTP"
    assert_compacted(reading)
