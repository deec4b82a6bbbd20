"""What agents send direct, and through `accordion run`: each feature of a request that is lost there is listed here.

Both times an agent believes that it talks to its provider: `ProviderHosts` answers for the provider's own host. What a
request has is written down as a set of features: its path, headers, betas, fields, tools and marks for the cache.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import replies
from client_link import KEY, PROXY_PYTHON, ROOT
from node_clients import program
from provider_hosts import ProviderHosts
from replies import Call, Reply, steps, tool_names
from test_agent_clis import NOTES, QUESTION, node
from test_run_agents import CONFIGS, OFF, PROGRAMS
from wire import Request

__all__ = ["node"]

CONNECTION = ("content-length", "host", "user-agent", "connection", "accept-encoding")
ACCOUNT = "account-1"
DAY = 86_400


def token() -> str:
    """A token in the shape of a ChatGPT login's; nobody has signed it."""
    claims = {"chatgpt_account_id": ACCOUNT, "chatgpt_plan_type": "pro", "chatgpt_user_id": "user-1"}
    parts = {"alg": "none"}, {"exp": int(time.time()) + DAY, "https://api.openai.com/auth": claims}
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*encoded, "c2ln"])


def codex_login() -> str:
    """Codex's file of a ChatGPT login."""
    tokens = dict.fromkeys(("id_token", "access_token"), token()) | {"refresh_token": "r", "account_id": ACCOUNT}
    day = time.strftime("%Y-%m-%dT00:00:00Z", time.gmtime())
    return json.dumps({"auth_mode": "chatgpt", "OPENAI_API_KEY": None, "tokens": tokens, "last_refresh": day})


def other_login(provider: str) -> str:
    """The file of a ChatGPT login of OpenCode or pi."""
    login = {"type": "oauth", "access": token(), "refresh": "r", "accountId": ACCOUNT}
    return json.dumps({provider: login | {"expires": int(time.time() + DAY) * 1_000}})


@dataclass(frozen=True)
class AgentRun:
    """One agent with one login: its words, variables and files, and how it reads notes.txt.

    `lost` are the features that it does not have through Accordion, as docs/clients.md says.
    """

    agent: str
    words: tuple[str, ...]
    call: Call
    environ: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()


CLAUDE = ("-p", QUESTION, "--model", "claude-sonnet-4-5", "--allowedTools", "Read")
CLAUDE_CALL = Call("Read", {"file_path": "HOME/notes.txt"})
CODEX = ("exec", "--skip-git-repo-check", "--json", "--model", "gpt-5.1-codex", QUESTION)
CODEX_CALL = Call("exec_command", {"cmd": "cat notes.txt"})
OPENCODE_MODELS = {"provider": {"openai": {"models": {"gpt-5-codex": {"name": "Any"}}}}}
OPENCODE_CALL, PI_CALL = Call("read", {"filePath": "notes.txt"}), Call("read", {"path": "notes.txt"})
QWEN_CALL = Call("read_file", {"file_path": "HOME/notes.txt"})
RUNS = {
    "claude": AgentRun("claude", CLAUDE, CLAUDE_CALL, {"ANTHROPIC_API_KEY": KEY}),
    "claude with a login": AgentRun("claude", CLAUDE, CLAUDE_CALL, {"CLAUDE_CODE_OAUTH_TOKEN": KEY}),
    "codex": AgentRun(
        "codex",
        CODEX,
        CODEX_CALL,
        {"CODEX_API_KEY": KEY},
        dict([CONFIGS["codex"]]),
        lost=frozenset({"GET /backend-api/codex/models"}),
    ),
    "codex with a login": AgentRun(
        "codex", CODEX, CODEX_CALL, files=dict([CONFIGS["codex"], (".codex/auth.json", codex_login())])
    ),
    "opencode": AgentRun(
        "opencode",
        ("run", "--model", "anthropic/claude-sonnet-4-5", QUESTION),
        OPENCODE_CALL,
        {"ANTHROPIC_API_KEY": KEY},
        dict([CONFIGS["opencode"]]),
    ),
    "opencode with a login": AgentRun(
        "opencode",
        ("run", "--model", "openai/gpt-5-codex", QUESTION),
        OPENCODE_CALL,
        {"OPENCODE_DISABLE_DEFAULT_PLUGINS": "false"},
        {
            "opencode.json": json.dumps(json.loads(CONFIGS["opencode"][1]) | OPENCODE_MODELS),
            ".local/share/opencode/auth.json": other_login("openai"),
        },
    ),
    "gemini": AgentRun(
        "gemini",
        ("-p", QUESTION, "--model", "gemini-2.5-pro", "--approval-mode", "yolo"),
        Call("read_file", {"file_path": "notes.txt"}),
        {"GEMINI_API_KEY": KEY, "GEMINI_CLI_TRUST_WORKSPACE": "true"},
        dict([CONFIGS["gemini"]]),
    ),
    "pi": AgentRun(
        "pi", ("-p", "--provider", "openai", "--model", "gpt-5.1-codex", QUESTION), PI_CALL, {"OPENAI_API_KEY": KEY}
    ),
    "pi with a login": AgentRun(
        "pi",
        ("-p", "--provider", "openai-codex", "--model", "gpt-5.5", QUESTION),
        PI_CALL,
        files={".pi/agent/auth.json": other_login("openai-codex")},
    ),
    "qwen at Alibaba": AgentRun(
        "qwen",
        ("-y", QUESTION),
        QWEN_CALL,
        {
            "OPENAI_API_KEY": KEY,
            "OPENAI_BASE_URL": "https://dashscope.aliyuncs.com/compatible-mode/v1",
            "OPENAI_MODEL": "qwen3-coder-plus",
        },
    ),
    "qwen at OpenAI": AgentRun(
        "qwen",
        ("-y", QUESTION),
        QWEN_CALL,
        {"KEY": KEY},
        {
            ".qwen/settings.json": json.dumps(
                {
                    "security": {"auth": {"selectedType": "openai"}},
                    "model": {"name": "gpt-5.1"},
                    "modelProviders": {
                        "openai": [{"id": "gpt-5.1", "envKey": "KEY", "baseUrl": "https://api.openai.com/v1"}]
                    },
                }
            )
        },
        lost=frozenset({"field prompt_cache_key"}),
    ),
}


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProviderHosts]:
    """The providers' hosts, for all runs."""
    found = ProviderHosts(tmp_path_factory.mktemp("hosts"))
    found.start()
    yield found
    found.stop()


def answer(request: Request, call: Call) -> Reply | None:
    """The provider's answer; with a ChatGPT login Codex asks first where its account is, and for its models."""
    if request.path.endswith("/wham/accounts/check"):
        place = {"workspace_backend_origin": "https://chatgpt.com", "account_routing_override": "NO_CONSTRAINT"}
        accounts = [{"id": ACCOUNT, "structure": "personal", **place}]
        return replies.as_json({"accounts": accounts, "account_ordering": [ACCOUNT], "default_account_id": ACCOUNT})
    if "client_version=" in request.target:
        return replies.as_json({"models": []})
    return steps([call], "Found it. {result}")(request)


def start(run: AgentRun, hosts: ProviderHosts, home: Path, command: list[str]) -> str:
    """Starts the agent by a command in a home of its own; returns what it printed."""
    for name, text in {"notes.txt": NOTES, **run.files}.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    starter = home / "bin" / run.agent
    starter.parent.mkdir()
    starter.write_text(f'#!/bin/sh\nexec {shlex.join(program(PROGRAMS[run.agent]))} "$@"\n')
    starter.chmod(0o755)
    arguments = json.loads(json.dumps(run.call.arguments).replace("HOME", str(home)))
    hosts.reset()
    hosts.sockets = "responses"
    hosts.rule = lambda request: answer(request, Call(run.call.name, arguments))
    environ = {
        "PATH": f"{starter.parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "NO_COLOR": "1",
        # Nothing listens there: a proxy that somebody runs on this machine is not joined.
        "ACCORDION_PORT": "1",
        "ACCORDION_STORE": "memory://",
        "PYTHONPATH": str(ROOT / "proxy"),
        **OFF,
        **hosts.environment(),
        **run.environ,
    }
    done = subprocess.run(
        [*command, run.agent, *run.words],
        cwd=home,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert "swordfish" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stderr


def list_features(hosts: ProviderHosts) -> set[str]:
    """Returns what the requests of a run have, without what is of the connection or of the moment."""
    found: set[str] = set()
    for received in hosts.received:
        request = received.request
        kind = "WebSocket" if request.is_upgrade else request.method
        found.add(f"{kind} {request.path}")
        if request.method == "POST" and replies.is_generation(request):
            found |= {f"header {name}" for name, _ in request.headers if name not in CONNECTION}
            found |= {f"beta {each.strip()}" for each in (request.header("anthropic-beta") or "").split(",")}
            found |= set(list_body_features(replies.body_of(request)))
    return found


def list_body_features(body: dict[str, Any]) -> Iterator[str]:
    """Yields the fields of a body down to the second level, its tools, and its marks for the cache."""
    for name, value in body.items():
        yield f"field {name}"
        yield from (f"field {name}.{inner}" for inner in (value if isinstance(value, dict) else ()))
    yield from (f"tool {name}" for name in tool_names(body))
    for tool in body.get("tools") or []:
        yield f"kind of tool {tool.get('type')}, deferred: {tool.get('defer_loading')}"
    yield f"marks for the cache: {json.dumps(body).count('cache_control')}"


@pytest.mark.parametrize("name", list(RUNS))
def test_an_agent_loses_no_feature_but_those_that_are_listed(name: str, hosts: ProviderHosts, tmp_path: Path) -> None:
    run, accordion = RUNS[name], [str(PROXY_PYTHON), "-m", "accordion", "run"]
    start(run, hosts, tmp_path / "direct", [])
    direct = list_features(hosts)
    said = start(run, hosts, tmp_path / "through", accordion)
    assert "Accordion listens on" in said
    assert "no request came" not in said
    assert direct - list_features(hosts) == run.lost
