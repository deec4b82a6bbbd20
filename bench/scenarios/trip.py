"""The path of one request: the modules and the functions of the proxy that run for it, its writes to SQLite included,
and how often one module calls another.

Each request runs in this process, from the pipeline to the record behind its response, with a provider that answers
from memory. An equal request ran before it, so that nothing is built or loaded for the first time.
"""

from __future__ import annotations

import asyncio
import dis
import json
import re
import sys
import tempfile
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import uvloop

import accordion
from accordion.composition.application import Application
from accordion.config.load import build
from accordion.model.http import Inbound
from accordion.model.ports import Headers, UpstreamRequest
from bench import stages
from bench.conversations import CHAT, PATHS, Conversation
from bench.report import Table
from bench.run_settings import RunSettings
from bench.texts import Texts

COLUMNS = ("request", "modules", "functions", "calls", "calls between modules")
PACKAGE: Final = str(Path(accordion.__file__).parent)
MODEL: Final = "trip"
WINDOW: Final = 16_384
SETTLE: Final = 1.0
"""Seconds in which the work behind a response ends."""
GOALS: Final = {"passed through": 160, "compacted": 900, "artifact read, streamed": 420}
"""Calls between modules, at most."""
_ARTIFACT: Final = re.compile(rb"art_[0-9a-f]{12}")
_JSON: Final[Headers] = ((b"content-type", b"application/json"),)
_EVENTS: Final[Headers] = ((b"content-type", b"text/event-stream"),)


def run(setting: RunSettings) -> list[Table]:
    return [uvloop.run(_measure())]


class Answer:
    """A provider's response in one piece."""

    status, is_delimited = 200, True

    def __init__(self, headers: Headers, body: bytes) -> None:
        self.headers, self._body = headers, body

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        yield self._body

    async def close(self) -> None:
        pass


class Provider:
    """Answers a plain request with a text, and a streamed one with a call of our tool first."""

    def __init__(self) -> None:
        self.last_body = b""

    async def send(self, request: UpstreamRequest) -> Answer:
        assert isinstance(request.body, bytes)
        self.last_body, body = request.body, json.loads(request.body)
        if not body.get("stream"):
            return Answer(_JSON, json.dumps(_document({"content": "Done."}, "stop")).encode())
        if any(each.get("tool_call_id") == "page" for each in body["messages"]):
            return Answer(_EVENTS, _events({"content": "Done."}, "stop"))
        return Answer(_EVENTS, _events({"tool_calls": [self._call()]}, "tool_calls"))

    def _call(self) -> dict[str, Any]:
        found = _ARTIFACT.search(self.last_body)
        assert found is not None
        arguments = json.dumps({"id": found[0].decode()})
        function = {"name": "read_artifact", "arguments": arguments}
        return {"index": 0, "id": "page", "type": "function", "function": function}

    async def close(self) -> None:
        pass


class Profiler:
    """Notes the proxy's code that runs, on all threads that start after it.

    `record` says whether it notes anything now.
    """

    def __init__(self) -> None:
        self.record = False
        self._codes: set[CodeType] = set()
        self._calls = self._calls_between = 0
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def stop(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def take(self) -> tuple[int, int, int, int]:
        """Returns the numbers of modules, functions, calls and calls between modules noted since it was last called."""
        functions = {(code.co_filename, code.co_qualname) for code in self._codes if not code.co_name.startswith("<")}
        modules = {code.co_filename for code in self._codes}
        taken = len(modules), len(functions), self._calls, self._calls_between
        self._codes.clear()
        self._calls = self._calls_between = 0
        return taken

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        """Notes a call. A coroutine or generator that goes on is no new one."""
        code = frame.f_code
        if not self.record or event != "call" or not code.co_filename.startswith(PACKAGE):
            return
        self._codes.add(code)
        if code.co_name.startswith("<") or frame.f_lasti > _find_beginning(code):
            return
        self._calls += 1
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(PACKAGE):
            caller = caller.f_back
        self._calls_between += caller is not None and caller.f_code.co_filename != code.co_filename


@cache
def _find_beginning(code: CodeType) -> int:
    """Returns the offset of the instruction at which a function begins to run; it goes on at later ones."""
    return next(each.offset for each in dis.get_instructions(code) if each.opname == "RESUME")


async def _measure() -> Table:
    table = Table("What one request enters", COLUMNS)
    profiler = Profiler()
    try:
        for name, request in REQUESTS.items():
            counts = await count(profiler, request)
            table.rows.append([name, *counts])
            table.goal(f"{name}: calls between modules", counts[-1], GOALS[name], "")
    finally:
        profiler.stop()
    return table


async def count(profiler: Profiler, request: Request) -> tuple[int, int, int, int]:
    """Sends a request twice, each time in a conversation of its own; returns what the second one entered."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        config = f"store: {{url: 'sqlite:///{Path(folder) / 'accordion.db'}'}}\nwindows: {{default: {WINDOW}}}\n"
        settings = build((config + "summaries: {writer: extractive}").encode(), {}, {})
        # The provider is the only part that is not the proxy's.
        application = Application(settings, {}, connect=lambda _: Provider())
        # Not started: the rounds that run in the background are no part of a request.
        application.spooled.recall(b"secret")
        await application.store.ping()
        try:
            await request(application, profiler, 1)
            profiler.take()
            await request(application, profiler, 2)
            return profiler.take()
        finally:
            await application.stop()


async def _send(application: Application, conversation: Conversation, **fields: Any) -> None:
    """Sends a conversation, reads the response, and lets the work behind it end."""
    body = json.dumps({**json.loads(conversation.body()), **fields}).encode()
    inbound = Inbound("POST", PATHS[CHAT], "", stages.HEADERS, body, "r")
    outbound = await application.forward(inbound)
    assert outbound.status == 200
    assert not isinstance(outbound.body, bytes)
    async for _ in outbound.body:
        pass
    await application.outbox.flush()
    await asyncio.sleep(SETTLE)


async def _pass_through(application: Application, profiler: Profiler, seed: int) -> None:
    conversation = Conversation(Texts(seed), CHAT, model=MODEL)
    conversation.ask(200)
    profiler.record = True
    await _send(application, conversation)
    profiler.record = False


async def _compact(application: Application, profiler: Profiler, seed: int) -> None:
    profiler.record = True
    await _send(application, _long_conversation(seed))
    profiler.record = False


async def _read_artifact(application: Application, profiler: Profiler, seed: int) -> None:
    conversation = _long_conversation(seed)
    await _send(application, conversation)
    profiler.record = True
    await _send(application, conversation, stream=True)
    profiler.record = False


def _long_conversation(seed: int) -> Conversation:
    """A conversation of two thirds of the window, in which the user spoke last."""
    conversation = Conversation(Texts(seed), CHAT, model=MODEL)
    conversation.reach(3 * WINDOW, 2_000)
    conversation.ask(200)
    return conversation


Request = Callable[[Application, Profiler, int], Awaitable[None]]
REQUESTS: dict[str, Request] = {
    "passed through": _pass_through,
    "compacted": _compact,
    "artifact read, streamed": _read_artifact,
}


def _document(message: dict[str, Any], finish: str) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}


def _events(delta: dict[str, Any], finish: str) -> bytes:
    choices = (
        {"index": 0, "delta": {"role": "assistant", **delta}},
        {"index": 0, "delta": {}, "finish_reason": finish},
    )
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    events = (f"data: {json.dumps({**head, 'choices': [choice]})}\n\n" for choice in choices)
    return "".join([*events, "data: [DONE]\n\n"]).encode()
