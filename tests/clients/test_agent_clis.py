"""Codex, Claude Code, OpenCode and Gemini CLI work through the proxy as they do without it: a tool and an answer."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import replies
from client_link import CI, KEY, ClientLink, run
from node_clients import node_missing, program
from replies import Call, say, steps
from wire import Request

QUESTION = "What is the password in notes.txt?"
NOTES = "The password is swordfish.\n"
Start = Callable[[ClientLink, Path], tuple[list[str], dict[str, str], Call]]


@pytest.fixture(scope="session", autouse=True)
def node() -> None:
    """The packages, fetched once; without Node a skip, in CI a failure."""
    missing = node_missing()
    if missing:
        (pytest.fail if CI else pytest.skip)(missing)


def codex(link: ClientLink, home: Path) -> tuple[list[str], dict[str, str], Call]:
    """`codex exec` with a provider of its own in its configuration."""
    settings = f"""
        model = "gpt-test"
        model_provider = "loopback"
        approval_policy = "never"
        sandbox_mode = "danger-full-access"
        [analytics]
        enabled = false
        [model_providers.loopback]
        name = "loopback"
        base_url = "{link.v1}"
        env_key = "TEST_KEY"
        wire_api = "responses"
    """
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text(settings)
    command = [*program("@openai/codex/bin/codex.js"), "exec", "--skip-git-repo-check", "--json", QUESTION]
    return command, {}, Call("exec_command", {"cmd": "cat notes.txt"})


def claude_code(link: ClientLink, home: Path) -> tuple[list[str], dict[str, str], Call]:
    """`claude -p` with the environment that its documentation names."""
    environment = {
        "ANTHROPIC_BASE_URL": link.origin,
        "ANTHROPIC_API_KEY": KEY,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
    }
    command = [
        *program("@anthropic-ai/claude-code-*/claude"),
        "-p",
        QUESTION,
        "--output-format",
        "stream-json",
        "--verbose",
    ]
    command += ["--model", "claude-sonnet-4-5", "--allowedTools", "Read"]
    return command, environment, Call("Read", {"file_path": str(home / "notes.txt")})


def opencode(link: ClientLink, home: Path, kind: str) -> tuple[list[str], dict[str, str], Call]:
    """`opencode run` with one of its bundled providers."""
    names = {"openai-compatible": "any-model", "openai": "gpt-test", "anthropic": "claude-test"}
    provider = {
        "npm": f"@ai-sdk/{kind}",
        "name": "Loopback",
        "options": {"baseURL": link.v1, "apiKey": KEY},
        "models": {names[kind]: {"name": "Any"}},
    }
    settings = {"autoupdate": False, "share": "disabled", "provider": {"loopback": provider}}
    (home / "opencode.json").write_text(json.dumps(settings))
    off = ["AUTOUPDATE", "LSP_DOWNLOAD", "MODELS_FETCH", "DEFAULT_PLUGINS"]
    command = [*program("opencode-linux-*/bin/opencode"), "run", "--model", f"loopback/{names[kind]}", QUESTION]
    call = Call("read", {"filePath": str(home / "notes.txt")})
    return command, {f"OPENCODE_DISABLE_{name}": "1" for name in off}, call


def opencode_compatible(link: ClientLink, home: Path) -> tuple[list[str], dict[str, str], Call]:
    """OpenCode by Chat Completions."""
    return opencode(link, home, "openai-compatible")


def opencode_openai(link: ClientLink, home: Path) -> tuple[list[str], dict[str, str], Call]:
    """OpenCode by Responses."""
    return opencode(link, home, "openai")


def opencode_anthropic(link: ClientLink, home: Path) -> tuple[list[str], dict[str, str], Call]:
    """OpenCode by Messages."""
    return opencode(link, home, "anthropic")


def gemini_cli(link: ClientLink, home: Path) -> tuple[list[str], dict[str, str], Call]:
    """`gemini -p` with the environment that its documentation names."""
    (home / ".gemini").mkdir()
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "general": {"disableAutoUpdate": True, "enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
    }
    (home / ".gemini" / "settings.json").write_text(json.dumps(settings))
    environment = {"GOOGLE_GEMINI_BASE_URL": link.origin, "GEMINI_API_KEY": KEY, "GEMINI_CLI_TRUST_WORKSPACE": "true"}
    command = [*program("@google/gemini-cli/bundle/gemini.js"), "-p", QUESTION, "--model", "gemini-2.5-pro"]
    return [*command, "--approval-mode", "yolo"], environment, Call("read_file", {"file_path": "notes.txt"})


STARTS: list[Start] = [
    codex,
    claude_code,
    opencode_compatible,
    opencode_openai,
    opencode_anthropic,
    gemini_cli,
]


@pytest.mark.parametrize("start", STARTS, ids=lambda start: start.__name__)
def test_a_coding_agent_reads_a_file_and_answers(link: ClientLink, start: Start, tmp_path: Path) -> None:
    """The whole loop of one question; its bytes are compared at both ends of the wire."""
    link.repeatable = False  # sessions, times and folders in every request
    (tmp_path / "notes.txt").write_text(NOTES)
    command, environment, call = start(link, tmp_path)
    link.upstream.rule = steps([call], "Found it. {result}")
    printed = run(command, link, environment, tmp_path)
    assert "Found it." in printed
    assert "swordfish" in printed
    asked = [one for one in link.exchanges() if call.name in replies.tool_names(replies.body_of(one.request))]
    assert len(asked) == 2
    assert not any(seen.request.is_upgrade for seen in link.upstream.received)


@pytest.mark.parametrize("start", [codex, claude_code, opencode_compatible], ids=lambda start: start.__name__)
def test_a_coding_agent_that_is_ended_frees_the_provider(link: ClientLink, start: Start, tmp_path: Path) -> None:
    """Its user stops it in the middle of an answer."""
    link.repeatable = link.paths = False
    (tmp_path / "notes.txt").write_text(NOTES)
    command, environment, call = start(link, tmp_path)

    def hold_answer(request: Request) -> Any:
        if call.name in replies.tool_names(replies.body_of(request)):
            return replies.held_after(say(request, "one two three"), 4)
        return None

    link.upstream.rule = hold_answer

    def waiting() -> list[Any]:
        return [one for one in link.upstream.received if call.name in replies.tool_names(replies.body_of(one.request))]

    run(command, link, environment, tmp_path, leave=lambda: bool(waiting()))
    assert link.upstream.wait_for(lambda: all(one.left for one in waiting()))


@pytest.mark.parametrize("start", [codex, claude_code, opencode_compatible], ids=lambda start: start.__name__)
def test_a_coding_agent_recovers_from_a_cut_stream(link: ClientLink, start: Start, tmp_path: Path) -> None:
    """The provider hangs up once in the middle of an answer; the agent asks again."""
    link.repeatable = False
    (tmp_path / "notes.txt").write_text(NOTES)
    command, environment, call = start(link, tmp_path)
    whole = steps([call], "Found it. {result}")
    asked: list[Request] = []

    def first_cut(request: Request) -> Any:
        if call.name not in replies.tool_names(replies.body_of(request)):
            return whole(request)
        asked.append(request)
        return replies.cut_after(say(request, "one two three four"), 5) if len(asked) == 1 else whole(request)

    link.upstream.rule = first_cut
    printed = run(command, link, environment, tmp_path)
    assert "swordfish" in printed
    link.note(asked=len(asked))


CUT = (
    "Connection lost: api.test did not finish its answer (the connection was closed). It may have done the work; try "
    "again with care. (request id: req_1)"
)
CUT_EVENTS = {
    "/v1/chat/completions": f'data: {{"error":{{"message":"{CUT}","type":"server_error","param":null,'
    '"code":"upstream_disconnected"}}\n\n',
    "/v1/messages": f'event: error\ndata: {{"type":"error","error":{{"type":"api_error","message":"{CUT}"}},'
    '"request_id":"req_1"}\n\n',
}


@pytest.mark.parametrize("start", [claude_code, opencode_compatible, opencode_anthropic], ids=lambda s: s.__name__)
def test_a_coding_agent_recovers_from_the_error_event_that_a_cut_stream_ends_in(
    link: ClientLink, start: Start, tmp_path: Path
) -> None:
    """It reads the event that the proxy adds, well before the connection is closed, and asks again."""
    link.repeatable = False
    (tmp_path / "notes.txt").write_text(NOTES)
    command, environment, call = start(link, tmp_path)
    whole = steps([call], "Found it. {result}")
    asked: list[Request] = []

    def first_cut(request: Request) -> Any:
        if call.name not in replies.tool_names(replies.body_of(request)):
            return whole(request)
        asked.append(request)
        if len(asked) > 1:
            return whole(request)
        event = CUT_EVENTS[request.target.partition("?")[0]].encode()
        begun = say(request, "one two three four")
        return replace(begun, pieces=(*begun.pieces[:5], event, 0.7), cut=True)

    link.upstream.rule = first_cut
    assert "swordfish" in run(command, link, environment, tmp_path)
    assert len(asked) > 1
