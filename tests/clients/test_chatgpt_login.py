"""OpenCode with a ChatGPT login: it sends what looks like `/v1/responses` to ChatGPT, whatever its address is."""

from __future__ import annotations

import json
import time
from pathlib import Path

import replies
from client_link import ClientLink, Proxy, run
from node_clients import program
from replies import Call, steps
from test_agent_clis import NOTES, QUESTION, node
from upstream import Upstream

__all__ = ["node"]


def write(file: Path, value: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value))


def test_opencode_with_a_chatgpt_login_goes_through_the_proxy(upstream: Upstream, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text(NOTES)
    upstream.reset()
    proxy = Proxy(upstream.port, tmp_path, "{}\n")
    link = ClientLink("through", upstream, upstream.record_connections(proxy.port))
    login = {"type": "oauth", "access": "t", "refresh": "r", "expires": int(time.time() + 86_400) * 1_000}
    write(tmp_path / ".local/share/opencode/auth.json", {"openai": login})
    provider = {
        "options": {"baseURL": f"{link.origin}/backend-api/codex"},
        "models": {"gpt-5-codex": {"name": "Any"}},
    }
    write(tmp_path / "opencode.json", {"autoupdate": False, "share": "disabled", "provider": {"openai": provider}})
    call = Call("read", {"filePath": str(tmp_path / "notes.txt")})
    upstream.rule = steps([call], "Found it. {result}")
    command = [*program("opencode-linux-*/bin/opencode"), "run", "--model", "openai/gpt-5-codex", QUESTION]
    environment = {f"OPENCODE_DISABLE_{name}": "1" for name in ("AUTOUPDATE", "LSP_DOWNLOAD", "MODELS_FETCH")}
    printed = run(command, link, environment, tmp_path)
    upstream.call(link.recorder.stop())
    proxy.stop()
    asked = [seen for seen in upstream.received if call.name in replies.tool_names(replies.body_of(seen.request))]
    assert "swordfish" in printed
    assert len(asked) == 2
    assert {seen.request.header("authorization") for seen in asked} == {"Bearer t"}
