"""`accordion demo`: a scripted agent works with a scripted model through a real proxy, and each step is printed.

All three run on this machine. The model is a server on a loopback port, and takes every provider's place: nothing
leaves the machine. The proxy's store is in its memory, and its home is a temporary folder: nothing stays behind. The
window is small, so that the conversation outgrows it within forty requests.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from itertools import takewhile
from pathlib import Path
from socketserver import ThreadingTCPServer
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, Final, NoReturn
from zlib import crc32

import httpx

from accordion.cli.agents import AgentError
from accordion.cli.installation import own_command
from accordion.cli.listing import count_with_noun
from accordion.cli.run import ProxyAccess, describe_savings, read_sums, start_proxy
from accordion.cli.running_proxy import QueryError
from accordion.config import SettingsFile
from accordion.providers.models.tokenizer import DEFAULT_ENCODING, TiktokenCounter

_MODEL: Final = "scripted-model"
_PRICED_AS: Final = "gpt-5.1"
_WINDOW: Final = 16_000
_PAUSE_SECONDS: Final = 0.5
"""The pause before each request, so that a person can follow on the page."""
_PATH: Final = "/v1/chat/completions"
_RULE: Final = "Never change a file below migrations/."
_DETAIL_FILE: Final = "config/payments.toml"
_DETAIL: Final = "bank_time_limit_seconds = 37"
_TOOLS: Final = {"list_files": 30, "read_file": 80, "run_tests": 48, "edit_file": 1}
"""The agent's tools, and the lines of their results."""
_TURNS: Final = (
    (
        f"{_RULE} The nightly payment job times out. Find out why.",
        f"list_files src, read_file {_DETAIL_FILE}, read_file src/payments/job.py, read_file src/payments/bank.py, "
        "run_tests tests/payments, read_file src/payments/retry.py",
        f"The job waits for the bank longer than the time limit in {_DETAIL_FILE} allows.",
    ),
    (
        "Then raise the time limit, and let the client of the bank try again.",
        f"edit_file {_DETAIL_FILE}, edit_file src/payments/retry.py, edit_file src/payments/bank.py, "
        "run_tests tests/payments, read_file tests/payments/test_bank.py, edit_file tests/payments/test_bank.py, "
        "run_tests tests/payments",
        "The limit is raised, the client tries again, and the tests pass.",
    ),
    (
        "The reports are slow as well. Look at how they read the ledger.",
        "list_files src/reports, read_file src/reports/monthly.py, read_file src/ledger/query.py, "
        "edit_file src/ledger/query.py, edit_file src/ledger/index.py, edit_file src/reports/monthly.py, "
        "run_tests tests/reports, edit_file src/ledger/query.py, run_tests tests/reports",
        "The reports read the ledger once for each account. Now they read it once.",
    ),
    (
        "Good. Do the same for the exports.",
        "list_files src/exports, read_file src/exports/csv.py, edit_file src/exports/csv.py, run_tests tests/exports, "
        "read_file tests/exports/test_csv.py, edit_file tests/exports/test_csv.py, edit_file src/exports/csv.py, "
        "edit_file src/exports/archive.py, run_tests tests/exports",
        "The exports read the ledger once, too.",
    ),
    (
        "Check the notifications before we end.",
        "read_file src/mail/queue.py, edit_file src/mail/queue.py, run_tests tests/mail",
        "The notifications are ready, too.",
    ),
    ("For the release notes: how long did we wait for the bank at first, before any change?", "", ""),
)
"""What the user says, the calls that follow, and the model's last words: empty where it needs the detail for them."""
_VERBS: Final = ("load", "sum", "check", "send", "merge", "parse", "round", "book", "match", "close")
_NOUNS: Final = ("account", "invoice", "ledger", "payment", "transfer", "currency", "customer", "batch", "fee", "entry")
_REMOVED: Final = {
    "superseded": "results that later ones replace",
    "compact_tool_results": "old tool results",
    "summarize": "old messages (a summary takes their place)",
}
"""What a strategy removes, in words."""


def demo(port: int, *, is_opening: bool, is_ending: bool) -> int:
    """Runs the demonstration. Returns the exit code. Raises AgentError and ConfigError.

    `port`: 0 for any. `is_opening`: the browser opens the page. `is_ending`: the proxy ends after the last request;
    always so, and without pauses, if the output is no terminal.
    """
    is_watched, code = sys.stdout.isatty(), 130
    for number in _SIGNALS:
        signal.signal(number, _stop)
    _print(
        f"A scripted agent works with a scripted model through Accordion, in a window of {_WINDOW:,} tokens.",
        "This needs no key, nothing leaves the machine, and nothing stays behind.",
    )
    try:
        with _start_model() as model, _start_proxy(model, port) as access:
            page = f"{access.proxy.url}/accordion/"
            _print(f"Follow it on this page: {page}")
            if is_opening:
                webbrowser.open(page)
            agent = ScriptedAgent(access.proxy.url, model, _PAUSE_SECONDS if is_watched else 0.0)
            agent.work()
            _print(*_summarize(access, agent))
            code = 0
            if is_watched and not is_ending and access.process is not None:
                _print("", f"The proxy goes on until Ctrl-C, so that you can look at {page}")
                access.process.join()
    except KeyboardInterrupt:
        _print("", "The demo has ended, and its store is gone.")
    except (httpx.HTTPError, QueryError) as error:
        raise AgentError(f"the proxy does not answer as expected: {error}", 1) from None
    return code


_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _stop(*_: object) -> NoReturn:
    """Ends the demonstration in order. Later signals do not disturb that."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _print(*lines: str) -> None:
    for line in lines:
        print(line, flush=True)


@contextmanager
def _start_proxy(model: ScriptedModel, port: int) -> Iterator[ProxyAccess]:
    """Starts a proxy that knows the scripted model only. Raises AgentError and ConfigError."""
    parameters = {"model": f"openai/{_PRICED_AS}", "api_base": f"{model.url}/v1"}
    overrides: dict[str, object] = {
        "server.host": "127.0.0.1",
        "server.port": port,
        "server.shutdown_seconds": 1,
        "store.url": "memory://",
        "archive.record": "all",
        "summaries.writer": "extractive",
        **dict.fromkeys((f"upstreams.{name}.base_url" for name in ("openai", "anthropic", "gemini")), model.url),
        "model_list": [
            {"model_name": _MODEL, "litellm_params": parameters, "model_info": {"max_input_tokens": _WINDOW}}
        ],
    }
    with TemporaryDirectory(prefix="accordion-demo-") as folder, ExitStack() as stack:
        # The proxy writes its log and its token to this home. The environment's HTTP proxy and traces do not count.
        with _change_environment(HOME=folder, NO_PROXY="*", no_proxy="*", OTEL_SDK_DISABLED="true"):
            file = SettingsFile(None, {}, overrides, reads_folder=False)
            try:
                access = stack.enter_context(start_proxy(file))
            except AgentError:
                log = "".join(path.read_text("utf-8") for path in Path(folder).rglob("*.log"))
                raise AgentError(f"Accordion did not start:\n{log}", 1) from None
        yield access


@contextmanager
def _change_environment(**variables: str) -> Iterator[None]:
    """Sets variables for the processes that start meanwhile."""
    former = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(former)


# -- the model ---------------------------------------------------------------------------------------------------------


@dataclass
class ScriptedModel:
    """Answers like a provider: with `reply` or, where that is empty, with the detail, which it looks up."""

    url: str = ""
    reply: dict[str, Any] = field(default_factory=dict)
    reads: list[str] = field(default_factory=list)
    """The artifacts that it asked for."""
    prompt: list[str] = field(default_factory=list)
    """The texts of the last request, as they count."""
    _counter: TiktokenCounter = field(default_factory=TiktokenCounter)

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """Returns the response to a request. What its prompt begins with as the one before comes from the cache."""
        former, self.prompt = self.prompt, [json.dumps(body["tools"]), *map(_prompt_text, body["messages"])]
        common = takewhile(lambda pair: pair[0] == pair[1], zip(self.prompt, former, strict=False))
        cached = self._count(*(text for text, _ in common))
        message = {"role": "assistant", "content": None, **(self.reply or self._look_up())}
        usage = {
            "prompt_tokens": self._count(*self.prompt),
            "completion_tokens": self._count(_prompt_text(message)),
            "prompt_tokens_details": {"cached_tokens": cached if cached >= 1_024 else 0},
        }
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
        head = {"id": "chatcmpl-demo", "object": "chat.completion", "created": int(time.time()), "model": _MODEL}
        return {**head, "choices": [choice], "usage": usage}

    def _count(self, *texts: str) -> int:
        return sum(self._counter.count(text, DEFAULT_ENCODING) for text in texts)

    def _look_up(self) -> dict[str, Any]:
        """Reads one artifact after the other until the prompt has the detail."""
        prompt = "\n".join(self.prompt)
        if _DETAIL in prompt:
            return {"content": f"37 seconds: {_DETAIL_FILE} had `{_DETAIL}`."}
        artifact = next((each for each in re.findall(r"art_[0-9a-f]{12}", prompt) if each not in self.reads), "")
        if not artifact:
            return {"content": "I do not find it."}
        self.reads.append(artifact)
        return _call(f"read_{len(self.reads)}", "read_artifact", id=artifact, pattern=_DETAIL.split()[0])


def _prompt_text(message: dict[str, Any]) -> str:
    """Returns the text of a message that a provider counts."""
    calls = (call["function"] for call in message.get("tool_calls") or ())
    return "\n".join([message["role"], message.get("content") or "", *(f"{c['name']} {c['arguments']}" for c in calls)])


def _call(name: str, tool: str, **arguments: str) -> dict[str, Any]:
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return {"tool_calls": [{"id": name, "type": "function", "function": function}]}


@contextmanager
def _start_model() -> Iterator[ScriptedModel]:
    """Serves a scripted model on a loopback port."""
    model = ScriptedModel()

    class _Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            if self.path != _PATH:
                self.send_error(404)
                return
            data = json.dumps(model.answer(json.loads(body))).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Prints nothing: the agent prints each step."""

    # HTTPServer would ask for the name of the address.
    with ThreadingTCPServer(("127.0.0.1", 0), _Handler) as server:
        server.daemon_threads = True
        model.url = f"http://127.0.0.1:{server.server_address[1]}"
        Thread(target=server.serve_forever, daemon=True).start()
        yield model
        server.shutdown()


# -- the agent ---------------------------------------------------------------------------------------------------------


@dataclass
class ScriptedAgent:
    """A coding agent that sends its whole history each time, and prints what comes of it."""

    url: str
    model: ScriptedModel
    pause: float
    session: str = ""
    count: int = 0
    """The number of its requests."""
    _history: list[dict[str, Any]] = field(default_factory=list)

    def work(self) -> None:
        """Plays all turns. Raises HTTPError."""
        for text, calls, conclusion in _TURNS:
            _print("", f"The user says: {text}")
            self._history.append({"role": "user", "content": text})
            for words in filter(None, calls.split(", ")):
                tool, path = words.split()
                name = f"call_{self.count + 1}"
                self._ask(_call(name, tool, path=path), f"calls {words}")
                result = _generate_result(tool, path, self.count)
                self._history.append({"role": "tool", "tool_call_id": name, "content": result})
            self._ask({"content": conclusion} if conclusion else {}, "answers: ")

    def _ask(self, reply: dict[str, Any], action: str) -> None:
        """Sends the history, adds the model's message to it, and prints what happened. Raises HTTPError."""
        time.sleep(self.pause)
        self.model.reply, self.count, reads = reply, self.count + 1, len(self.model.reads)
        parameters = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
        tools = [{"type": "function", "function": {"name": name, "parameters": parameters}} for name in _TOOLS]
        body = {"model": _MODEL, "tools": tools, "messages": self._history}
        names = {"user-agent": "accordion-demo"}
        response = httpx.post(f"{self.url}{_PATH}", json=body, headers=names, timeout=60, trust_env=False)
        message, head = response.raise_for_status().json()["choices"][0]["message"], response.headers
        self._history.append(message)
        self.session, sent = head["x-accordion-session"], int(head["x-accordion-tokens"])
        record = json.loads(head.get("x-accordion-compaction", "{}"))
        sizes = f"{sent + record.get('saved', 0):6,} tokens came, {sent:6,} were sent"
        _print(f"request {self.count:2}: {sizes}; the model {action}{message['content'] or ''}")
        if record.get("state") == "compacted":
            _print(*_describe_compaction(record, self.model.prompt))
        for artifact in self.model.reads[reads:]:
            _print(f"    read back: the model called read_artifact for {artifact}; the agent sees only the answer")


def _generate_result(tool: str, path: str, number: int) -> str:
    """Generates what a tool returns: always the same for the same call."""
    lines = []
    for at in range(_TOOLS[tool]):
        chance = crc32(f"{path} {number} {at}".encode())
        name, amount = f"{_VERBS[chance % 10]}_{_NOUNS[chance // 10 % 10]}", chance // 100 % 900
        forms = {
            "list_files": f"{path}/{name}_{amount}.py",
            "read_file": f"def {name}_{at}(value: Decimal) -> Decimal: return value * {amount} + {name}.total",
            "run_tests": f"{path}::test_{name}_{at} PASSED in {amount} ms",
            "edit_file": f"{path}: {amount % 20 + 2} lines changed",
        }
        lines.append(forms[tool])
    if (tool, path) == ("read_file", _DETAIL_FILE):
        lines = [_DETAIL if at == len(lines) // 2 else f"{_NOUNS[at % 10]}_{at} = {at * 7}" for at in range(len(lines))]
    return "\n".join(lines)


# -- what is printed ---------------------------------------------------------------------------------------------------


def _describe_compaction(record: dict[str, Any], prompt: list[str]) -> Iterator[str]:
    """Yields what a compaction removed, by its record (docs/figures.md)."""
    yield f"    compacted: {record['before']:,} tokens to {record['after']:,}; {record['reason']}"
    removed = [(step["before"] - step["after"], step["compactor"]) for step in record["steps"]]
    parts = [f"{tokens:,} tokens of {_REMOVED.get(name, name)}" for tokens, name in removed if tokens > 0]
    yield f"    moved to the archive: {', '.join(parts)}"
    if any(_RULE in text for text in prompt):
        yield f"    still in the prompt: the user's rule, {_RULE!r}"


def _summarize(access: ProxyAccess, agent: ScriptedAgent) -> Iterator[str]:
    """Yields the result of all requests. Raises QueryError."""
    for _ in range(100):
        session = access.proxy.find_session(agent.session, {})
        if session["totals"]["requests"] == agent.count:
            break
        # The last request is recorded just after its response.
        time.sleep(0.05)
    sums, costs = read_sums(session), session["costs"]
    dollars, sent = costs["dollars"], costs["tokens"]["sent"]["input"]
    over = f"{costs['requests_over_window']} of {count_with_noun(agent.count, 'request')}"
    yield ""
    yield f"{count_with_noun(agent.count, 'request')}, {count_with_noun(sums.totals.compactions, 'compaction')}."
    yield f"Without Accordion: {sent + sums.net_tokens:9,} tokens of input, ${dollars['without_accordion']:.4f}."
    yield f"With Accordion:    {sent:9,} tokens of input, ${dollars['spent']:.4f}."
    yield f"{describe_savings(sums)} Prices are those of {_PRICED_AS}."
    yield f"Without Accordion, {over} would not have fitted the window; the figures count them up to the window."
    run, savings = own_command("run claude"), own_command("savings --claude")
    yield f"Next: `{run}` (or codex, opencode); `{savings}` for your own sessions."
