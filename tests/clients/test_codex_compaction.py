"""Codex asks its provider for a compaction; the provider speaks Chat Completions only, so the proxy does it."""

import json
from pathlib import Path

import pytest
import replies
from client_link import ClientLink, Proxy, run
from replies import Call
from test_agent_clis import node
from test_codex_websocket import codex
from test_compaction_agent_clis import FILES, SUMMARY, ReadingModel, notes, unanswered
from upstream import Upstream

__all__ = ["node"]

LIMIT = 16_000
"""The tokens from which on Codex has its history compacted."""
CALL = Call("exec_command", {"cmd": "cat notes.txt"})


def settings(port: int) -> str:
    way = {"model": "together_ai/some-model", "api_base": f"http://127.0.0.1:{port}/v1"}
    info = {"max_input_tokens": 200_000, "max_output_tokens": 20_000}
    entry = {"model_name": "gpt-test", "litellm_params": way, "model_info": info}
    return json.dumps({"model_list": [entry], "summaries": {"writer": "extractive"}})


@pytest.mark.parametrize("path", ["/v1", "/backend-api/codex"])
def test_codex_has_its_history_compacted_and_works_on(upstream: Upstream, tmp_path: Path, path: str) -> None:
    for number in range(FILES):
        (tmp_path / f"notes{number}.txt").write_text(notes(number))
    upstream.reset()
    proxy = Proxy(upstream.port, tmp_path, settings(upstream.port))
    link = ClientLink("through", upstream, upstream.record_connections(proxy.port))
    upstream.rule = reading = ReadingModel(CALL, [])
    command, environment = codex(tmp_path, f"{link.origin}{path}")
    config = tmp_path / ".codex" / "config.toml"
    config.write_text(f"model_auto_compact_token_limit = {LIMIT}\n{config.read_text()}")
    printed = run(command, link, environment, tmp_path)
    log = proxy.log.read_text()
    upstream.call(link.recorder.stop())
    proxy.stop()
    assert "Found it." in printed
    assert "swordfish" in printed
    assert "Traceback" not in log
    assert log.count("; the client asked for a compaction;") >= 2
    assert {request.path for request in reading.asked} == {"/v1/chat/completions"}
    assert len(reading.asked) == FILES + 1, "nothing was asked twice"
    assert max(len(request.body) for request in reading.asked) < 5 * LIMIT, "four bytes a token"
    last = reading.asked[-1]
    assert SUMMARY in last.body.decode()
    assert "read_artifact" in replies.tool_names(replies.body_of(last))
    for request in reading.asked:
        assert unanswered(replies.body_of(request)) == []
