"""The first compaction of long conversations of several kinds: the CPU time of each step until the request leaves.

Each conversation is new to the proxy: its body is read, identified, counted, compacted and rendered in one request, in
this process, with a provider that answers from memory and a new SQLite file. Nothing of it is cached, nor are its
words; only the code ran before, for a small conversation.
"""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from accordion.accounting.token_meter import TokenMeter
from accordion.archive.archive import Archive
from accordion.compaction import assembly, repository
from accordion.compaction.apply import PlanExecutor
from accordion.compaction.planner import Planner
from accordion.compaction.removal import RemovalBuilder
from accordion.compaction.rendering import RequestRenderer
from accordion.compaction.strategies import STRATEGIES
from accordion.composition.application import Application
from accordion.config.load import build
from accordion.http.proxy_app import new_id
from accordion.insertions.excerpts import ArchiveSearch
from accordion.model.http import Inbound
from accordion.model.ports import UpstreamRequest
from accordion.protocols.body_reader import BodyReader
from accordion.sessions.sessions import Sessions
from accordion.stores import sqlite
from accordion.summaries.author import SummaryAuthor
from accordion.summaries.extractive import ExtractiveWriter
from bench.conversations import CHAT, MESSAGES, PATHS, TOOLS, Conversation, encode
from bench.stages import Ready
from bench.texts import Texts

SIZE: Final = 720_000
"""Bytes of a body."""
WINDOW: Final = 128_000
MODEL: Final = "bench"
"""Nobody knows it: its window is the configured one, and its tokens are counted as o200k_base has them."""
WARM: Final = 60_000
"""Bytes of the conversation that is compacted before, so that all code is loaded."""

OTHER: Final = "other"
STEPS: Final[Mapping[str, tuple[tuple[Any, str], ...]]] = {
    "read": ((BodyReader, "read"),),
    "identify": ((Sessions, "resolve"),),
    "count": ((TokenMeter, "measure"),),
    "plan": (
        (assembly, "build_view_for_request"),
        (Planner, "plan"),
        *((strategy, "propose") for strategy in STRATEGIES.values()),
    ),
    "lay out": ((assembly, "build_layout"),),
    "list what leaves": ((RemovalBuilder, "build"),),
    "facts": ((ExtractiveWriter, "_facts_of"), (ExtractiveWriter, "count_instruction_tokens")),
    "summary": ((SummaryAuthor, "write_extractive"),),
    "execute": ((PlanExecutor, "execute"),),
    "archive": ((Archive, "build_puts"),),
    "record": ((repository, "encode"),),
    "store": ((sqlite, "_write_in_steps"),),
    "recall": ((ArchiveSearch, "find_excerpt"),),
    "render": ((RequestRenderer, "render_body"),),
}
"""The functions of each step. What one of another step calls is that other step's."""


class Clock:
    """The CPU time of each step, in milliseconds. A step within another one does not count for that."""

    def __init__(self) -> None:
        self.ms = dict.fromkeys(STEPS, 0.0)
        self._local = threading.local()

    def timed(self, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*values: Any, **named: Any) -> Any:
            outer = getattr(self._local, "inner_ms", 0.0)
            self._local.inner_ms = 0.0
            began = time.thread_time()
            try:
                return function(*values, **named)
            finally:
                whole = 1000 * (time.thread_time() - began)
                self.ms[step] += whole - self._local.inner_ms
                self._local.inner_ms = outer + whole

        return call


@contextmanager
def clock_steps() -> Iterator[Clock]:
    """Measures each call of the functions of `STEPS` until the context ends."""
    clock, originals = Clock(), list[tuple[Any, str, Any]]()
    for step, functions in STEPS.items():
        for owner, name in functions:
            original = getattr(owner, name)
            originals.append((owner, name, original))
            setattr(owner, name, clock.timed(step, original))
    try:
        yield clock
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


class Provider:
    """Answers at once, and notes the process's CPU time at which a request arrives."""

    def __init__(self) -> None:
        self.arrived = 0.0

    async def send(self, _request: UpstreamRequest) -> Ready:
        self.arrived = time.process_time()
        return Ready(280)

    async def close(self) -> None:
        pass


async def compact_first(path: str, body: bytes) -> dict[str, float]:
    """Compacts one conversation that is new. Returns the CPU milliseconds until it is forwarded (`all`), behind it
    (`behind`), and of each step."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        config = (
            f"store: {{url: 'sqlite:///{Path(folder) / 'accordion.db'}'}}\n"
            f"windows: {{default: {WINDOW}}}\nsummaries: {{writer: extractive}}\n"
        )
        provider = Provider()
        application = Application(build(config.encode(), {}, {}), {}, connect=lambda _: provider)
        await application.start()
        try:
            application.counter.load()
            warm = Conversation(Texts(99), CHAT, model=MODEL)
            warm.reach(WARM, 2_000)
            warm.ask(2_000)
            await _forward(application, PATHS[CHAT], warm.body(), ((b"x-accordion-compact", b"now"),))
            await asyncio.sleep(0.5)
            gc.collect()
            with clock_steps() as clock:
                whole = await _measure(application, provider, path, body)
            clock.ms[OTHER] = whole["all"] - sum(clock.ms.values())
            return clock.ms | whole
        finally:
            await application.stop()


async def _measure(application: Application, provider: Provider, path: str, body: bytes) -> dict[str, float]:
    began = time.process_time()
    await _forward(application, path, body, ())
    forwarded = 1000 * (provider.arrived - began)
    await application.outbox.flush()
    await asyncio.sleep(0.7)
    return {"all": forwarded, "behind": 1000 * (time.process_time() - began) - forwarded}


async def _forward(application: Application, path: str, body: bytes, more: tuple[tuple[bytes, bytes], ...]) -> None:
    headers = ((b"content-type", b"application/json"), *more)
    async for _ in (await application.forward(Inbound("POST", path, "", headers, body, new_id()))).body:  # type: ignore[union-attr]
        pass


# -- conversations -----------------------------------------------------------------------------------------------------


def made_conversations(seed: int) -> dict[str, tuple[str, bytes]]:
    """Path and body of one conversation of each kind."""
    return {
        "agent at work, Chat Completions": _agent(seed, CHAT),
        "agent at work, Messages": _agent(seed, MESSAGES),
        "2,000 small results, Responses": _small_results(seed),
        "12 large results, Gemini": _large_results(seed),
        "prose, no tools, Chat Completions": _prose(seed),
        "JSON results, Messages": _json_results(seed),
    }


def _agent(seed: int, protocol_name: str) -> tuple[str, bytes]:
    talk = Conversation(Texts(seed), protocol_name, model=MODEL)
    talk.reach(SIZE, 4_096)
    talk.ask(4_096)
    return PATHS[protocol_name], talk.body()


def _small_results(seed: int) -> tuple[str, bytes]:
    texts, items = Texts(seed), [_user("Look at every part.")]
    while len(items) < 4_000:
        call, arguments = texts.unique_name(), json.dumps({"path": f"src/{texts.unique_name()}.py"})
        items += (
            {"type": "function_call", "call_id": call, "name": TOOLS[len(items) % 5], "arguments": arguments},
            {"type": "function_call_output", "call_id": call, "output": texts.code(110)},
        )
    return "/v1/responses", encode({"model": MODEL, "input": [*items, _user("What did you find?")]})


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _large_results(seed: int) -> tuple[str, bytes]:
    texts = Texts(seed)
    contents = [_gemini("user", {"text": texts.prose(400)})]
    for number in range(12):
        call = {"name": TOOLS[number % 5], "args": {"path": f"src/{texts.unique_name()}.py"}}
        response = {"name": call["name"], "response": {"output": texts.code(55_000)}}
        contents += (
            _gemini("model", {"text": texts.prose(200)}, {"functionCall": call}),
            _gemini("user", {"functionResponse": response}),
        )
    contents += (_gemini("model", {"text": texts.prose(2_000)}), _gemini("user", {"text": texts.prose(2_000)}))
    return f"/v1beta/models/{MODEL}:generateContent", encode({"contents": contents})


def _gemini(role: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "parts": list(parts)}


def _prose(seed: int) -> tuple[str, bytes]:
    texts, messages = Texts(seed), list[dict[str, Any]]()
    while len(messages) < 350:
        messages += (_user(texts.prose(1_200)), {"role": "assistant", "content": texts.prose(2_800)})
    return PATHS[CHAT], encode({"model": MODEL, "messages": [*messages, _user(texts.prose(1_200))]})


def _json_results(seed: int) -> tuple[str, bytes]:
    texts = Texts(seed)
    messages = [_user(texts.prose(400))]
    for number in range(100):
        call, name = f"toolu_{number}", TOOLS[number % 5]
        rows = [
            {"id": texts.unique_name(), "title": texts.prose(60), "state": "open", "count": row * number, "tags": ["a"]}
            for row in range(42)
        ]
        use = {"type": "tool_use", "id": call, "name": name, "input": {"query": texts.prose(60), "page": number}}
        result = {"type": "tool_result", "tool_use_id": call, "content": json.dumps({"items": rows})}
        messages += ({"role": "assistant", "content": [use]}, {"role": "user", "content": [result]})
    messages += ({"role": "assistant", "content": texts.prose(1_000)}, _user(texts.prose(1_000)))
    return PATHS[MESSAGES], encode({"model": MODEL, "max_tokens": 1024, "messages": messages})


RECORDED: Final = {
    "recorded: coding agent": "coding_claude_code_joined",
    "recorded: shell agent": "coding_mini_swe_agent",
    "recorded: installation logs": "repo_setup_super",
}


def recorded_conversations(data: Path | None) -> dict[str, tuple[str, bytes]]:
    """Path and body of one conversation of each kind of recording that is there, joined until it is long enough."""
    if data is None:
        return {}
    files = {kind: data / f"{name}.jsonl.gz" for kind, name in RECORDED.items()}
    return {kind: _joined(file) for kind, file in files.items() if file.exists()}


def _joined(file: Path) -> tuple[str, bytes]:
    messages, size = list[dict[str, Any]](), 0
    with gzip.open(file, "rt") as lines:
        for line in lines:
            for message in json.loads(line)["messages"]:
                # A system prompt in the middle would be no conversation.
                if message["role"] == "system" and messages:
                    continue
                size += len(encode(message))
                if size > SIZE and message["role"] != "tool":
                    return PATHS[CHAT], encode({"model": MODEL, "messages": [*messages, _user("Go on.")]})
                messages.append(message)
    return PATHS[CHAT], encode({"model": MODEL, "messages": [*messages, _user("Go on.")]})
