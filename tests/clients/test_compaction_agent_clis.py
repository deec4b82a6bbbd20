"""Codex, Claude Code, OpenCode and Gemini CLI read more than the window holds: the proxy compacts, they work on."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import replies
from client_link import CI, ClientLink, Proxy, proxy_missing, run
from replies import Call, speak, tool_names
from test_agent_clis import (
    QUESTION,
    Start,
    claude_code,
    codex,
    gemini_cli,
    node,
    opencode_anthropic,
    opencode_compatible,
    opencode_openai,
)
from upstream import Upstream
from wire import Request

__all__ = ["node"]

FILES = 14
LINES = 120
MODELS = ("gpt-test", "any-model", "claude-test", "claude-sonnet-4-5", "gemini-2.5-pro")
_REPORTED = re.compile(rb'("(?:input_tokens|prompt_tokens|promptTokenCount)": ?)\d+')
FAMILIES = {"claude": ("anthropic", ""), "gemini": ("gemini", "")}
SUMMARY = "[Record of messages"
STARTS: list[tuple[Start, int]] = [
    (codex, 20_000),
    (claude_code, 38_000),
    (opencode_compatible, 15_000),
    (opencode_openai, 15_000),
    (opencode_anthropic, 15_000),
    (gemini_cli, 30_000),
]
"""Clients, and windows that hold what each brings along in any case and half of what it reads."""


def notes(number: int) -> str:
    """A file that is long, and like no other; the last one holds the password."""
    text = "".join(f"{number:02}-{line:03} the valve of pump {number * 7 + line} was turned\n" for line in range(LINES))
    return text + ("The password is swordfish.\n" if number == FILES - 1 else "Nothing here.\n")


@pytest.fixture(scope="module")
def small(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Proxy]]:
    """Proxies by the window that they were told of."""
    missing = proxy_missing()
    if missing:
        (pytest.fail if CI else pytest.skip)(missing)
    started: dict[int, Proxy] = {}
    yield started
    for proxy in started.values():
        proxy.stop()


def settings(window: int, port: int) -> str:
    """A configuration in which every client's model has this window."""
    entries = []
    for model in MODELS:
        family, path = FAMILIES.get(model.partition("-")[0], ("openai", "/v1"))
        way = {"model": f"{family}/{model}", "api_base": f"http://127.0.0.1:{port}{path}"}
        info = {"max_input_tokens": window, "max_output_tokens": window}
        entries.append({"model_name": model, "litellm_params": way, "model_info": info})
    return json.dumps({"model_list": entries, "summaries": {"writer": "extractive"}})


@dataclass
class ReadingModel:
    """A model that reads one file after the other, whatever of them is still in sight, and then answers."""

    call: Call
    asked: list[Request]

    def __call__(self, request: Request) -> Any:
        if request.method != "POST" or not replies.is_generation(request):
            return None
        body = replies.body_of(request)
        if self.call.name not in tool_names(body):
            return speak(request, ["A short title"])
        self.asked.append(request)
        number = len(self.asked) - 1
        if number < FILES:
            named = json.loads(json.dumps(self.call.arguments).replace("notes.txt", f"notes{number}.txt"))
            return counted(request, speak(request, [replace(self.call, arguments=named)]))
        return counted(request, speak(request, ["Found it. " + replies.results_in(body)[-1]]))


def counted(request: Request, reply: replies.Reply) -> replies.Reply:
    """The reply with a usage that is true, about."""
    tokens = b"%d" % (len(request.body) // 4)
    pieces = (_REPORTED.sub(rb"\g<1>" + tokens, piece) if isinstance(piece, bytes) else piece for piece in reply.pieces)
    return replace(reply, pieces=tuple(pieces))


@pytest.mark.parametrize(("start", "window"), STARTS, ids=[start.__name__ for start, _ in STARTS])
def test_a_coding_agent_works_on_over_compactions(
    start: Start, window: int, upstream: Upstream, small: dict[int, Proxy], tmp_path: Path
) -> None:
    for number in range(FILES):
        (tmp_path / f"notes{number}.txt").write_text(notes(number))
    upstream.reset()
    if window not in small:
        small[window] = Proxy(upstream.port, tmp_path, settings(window, upstream.port))
    recorder = upstream.record_connections(small[window].port)
    link = ClientLink("through", upstream, recorder)
    command, environment, call = start(link, tmp_path)
    upstream.rule = reading = ReadingModel(call, [])
    printed = run(command, link, environment, tmp_path)
    heads = [dict(one.response.headers) for one in link.exchanges() if one.response is not None]
    upstream.call(recorder.stop())
    assert "Found it." in printed
    assert "swordfish" in printed
    assert len(reading.asked) == FILES + 1, "nothing was asked twice"
    told = [json.loads(head["x-accordion-compaction"]) for head in heads if "x-accordion-compaction" in head]
    assert [one["state"] for one in told].count("compacted") in range(1, 8)
    assert "failed" not in {one["state"] for one in told}
    assert max(int(head["x-accordion-tokens"]) for head in heads if "x-accordion-tokens" in head) < window
    assert_compacted(reading)


def assert_compacted(reading: ReadingModel) -> None:
    """Every list was legal, and the last one was compacted and still holds the question."""
    for request in reading.asked:
        assert unanswered(replies.body_of(request)) == []
    last = reading.asked[-1].body.decode()
    assert SUMMARY in last
    assert QUESTION in last
    assert len(replies.results_in(replies.body_of(reading.asked[-1]))) < FILES


def unanswered(body: dict[str, Any]) -> list[str]:
    """Calls without their result, and results without their call, in any protocol."""
    calls: list[str] = []
    results: list[str] = []
    for part in [part for content in body.get("contents") or () for part in content["parts"]]:
        calls += [part["functionCall"]["id"]] if "functionCall" in part else []
        results += [part["functionResponse"]["id"]] if "functionResponse" in part else []
    for entry in body.get("messages") or body.get("input") or ():
        if entry.get("type") in ("function_call", "custom_tool_call"):
            calls.append(entry["call_id"])
        elif entry.get("type") in ("function_call_output", "custom_tool_call_output"):
            results.append(entry["call_id"])
        elif entry["role"] == "tool":
            results.append(entry["tool_call_id"])
        calls += [call["id"] for call in entry.get("tool_calls") or ()]
        for block in entry.get("content") if isinstance(entry.get("content"), list) else ():
            calls += [block["id"]] if block.get("type") == "tool_use" else []
            results += [block["tool_use_id"]] if block.get("type") == "tool_result" else []
            calls += [block["toolUse"]["toolUseId"]] if "toolUse" in block else []
            results += [block["toolResult"]["toolUseId"]] if "toolResult" in block else []
    return [name for name in {*calls, *results} if calls.count(name) != results.count(name)]
