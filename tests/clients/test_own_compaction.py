"""Codex, Claude Code and OpenCode compact their own history; the proxy has one session of it."""

import json
import re
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import replies
from client_link import ClientLink, Proxy, run
from replies import Call, speak, tool_names
from test_agent_clis import Start, claude_code, codex, node, opencode_compatible
from test_compaction_agent_clis import counted, notes
from upstream import Upstream
from wire import Request

__all__ = ["node"]

FILES = 3
SUMMARY = """<analysis>The user wants a password.</analysis>
<summary>
1. Primary request: the user asked for the password in the notes, and said that no file is to be changed.
2. Work: some of the notes were read, and no password was in them; the rest is still to be read.
</summary>"""
_TOTAL = re.compile(rb'("total_tokens": ?)\d+')
ASKING = (
    "create a detailed summary of the",
    "CONTEXT CHECKPOINT COMPACTION",
)
"""Words of the last message with which the agents ask for a summary. OpenCode asks without tools."""


def is_asking(body: dict[str, Any]) -> bool:
    """Whether the agent asks for a summary of its own."""
    entries = body.get("messages") or body.get("input") or body.get("contents") or [{}]
    lead = json.dumps(entries[0])
    return any(words in json.dumps(entries[-1]) for words in ASKING) or "context summarization agent" in lead


class Forgetful:
    """A model that reads the notes one after the other and writes a summary where the agent asks for one."""

    def __init__(self, call: Call) -> None:
        self.call, self.summaries, self.read, self.turns, self.later = call, 0, 0, 0, 0

    def __call__(self, request: Request) -> Any:
        if request.method != "POST" or not replies.is_generation(request):
            return None
        body = replies.body_of(request)
        if is_asking(body):
            self.summaries += 1
            return self.count(request, [SUMMARY])
        if self.call.name not in tool_names(body):
            return self.count(request, ["A short title"])
        self.turns += 1
        self.later += self.summaries > 0
        if self.read == FILES:
            return self.count(request, ["There is no password."])
        named = json.loads(json.dumps(self.call.arguments).replace("notes.txt", f"notes{self.read}.txt"))
        self.read += 1
        return self.count(request, [replace(self.call, arguments=named)])

    def count(self, request: Request, parts: list[Any]) -> replies.Reply:
        reply = counted(request, speak(request, parts))
        total = b"%d" % (len(request.body) // 4 + 20)
        pieces = (_TOTAL.sub(rb"\g<1>" + total, each) if isinstance(each, bytes) else each for each in reply.pieces)
        return replace(reply, pieces=tuple(pieces))


def limit_codex(home: Path) -> None:
    """Codex compacts early. With a provider of another name it asks the model for a summary itself."""
    config = home / ".codex" / "config.toml"
    config.write_text(f"model_auto_compact_token_limit = 8000\n{config.read_text()}")


def limit_opencode(home: Path) -> None:
    config = json.loads((home / "opencode.json").read_text())
    config["provider"]["loopback"]["models"]["any-model"]["limit"] = {"context": 10_000, "output": 1_000}
    (home / "opencode.json").write_text(json.dumps(config))


def limit_nothing(home: Path) -> None:
    """Claude Code is asked to compact: `further` has the command."""


def further(start: Start, command: list[str]) -> list[list[str]]:
    """What the user types afterwards."""
    if start is not claude_code:
        return []
    rest = [word for word in command[3:] if word != "What is the password in notes.txt?"]
    return [[command[0], "-p", words, "--continue", *rest] for words in ("/compact", "Please go on with the notes.")]


@pytest.mark.parametrize(
    ("start", "limit"),
    [(codex, limit_codex), (claude_code, limit_nothing), (opencode_compatible, limit_opencode)],
    ids=["codex", "claude_code", "opencode"],
)
def test_an_agents_own_compaction_stays_in_its_session(
    start: Start, limit: Callable[[Path], None], upstream: Upstream, tmp_path: Path
) -> None:
    for number in range(FILES):
        (tmp_path / f"notes{number}.txt").write_text(notes(number))
    upstream.reset()
    proxy = Proxy(upstream.port, tmp_path)
    recorder = upstream.record_connections(proxy.port)
    link = ClientLink("through", upstream, recorder)
    command, environment, call = start(link, tmp_path)
    limit(tmp_path)
    upstream.rule = model = Forgetful(call)
    run(command, link, environment, tmp_path)
    for each in further(start, command):
        run(each, link, environment, tmp_path)
    with urllib.request.urlopen(f"http://127.0.0.1:{proxy.port}/accordion/sessions") as answer:
        sessions = json.loads(answer.read())["sessions"]
    upstream.call(recorder.stop())
    proxy.stop()
    assert model.summaries > 0
    assert model.later > 0, "the agent went on after its compaction"
    # A title is asked for beside the conversation.
    assert max(each["totals"]["requests"] for each in sessions) == model.turns + model.summaries
    assert "Traceback" not in proxy.log.read_text()
