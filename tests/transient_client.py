"""An agent that adds a text of the moment to each request and leaves it out of the next one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tests import frames
from tests.fakes import FakeReply
from tests.histories import ProtocolName
from tests.pipeline_setup import PipelineSetup, header
from tests.reply_parts import Piece, ReplyCall, ReplyText, ReplyThought, ScriptedReply, reply_document, reply_events
from tests.writers import WRITERS, MadeCall

Json = dict[str, Any]
EndKind = Literal["message", "system message", "text"]
"""Where the text of the moment is: in a message of its own, or at the end of the last message of the user."""


@dataclass
class TransientClient:
    """One conversation; `workers` get its requests by turns. `words` is the length of its results."""

    workers: Sequence[PipelineSetup]
    protocol_name: ProtocolName = "chat"
    end: EndKind = "message"
    stream: bool = False
    name: str = "one"
    words: int = 12
    history: list[Json] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    requests: int = 0

    async def run(self, turns: int, calls: int = 2) -> set[str]:
        """Plays turns of a question, tool calls and an answer; returns the sessions of the requests."""
        for _ in range(turns):
            await self.turn(calls)
        return set(self.sessions)

    async def turn(self, calls: int = 2) -> None:
        """Plays one turn."""
        self.history.append(WRITERS[self.protocol_name].user(f"question {self.requests} of {self.name}"))
        for _ in range(calls):
            call = MadeCall(f"call_{self.name}_{self.requests}", "read", {"path": f"{self.requests}.py"})
            await self.request(
                ReplyThought("hm", "c2VhbA=="), ReplyCall(call.id, call.name, json.dumps(call.arguments))
            )
            self.history += WRITERS[self.protocol_name].results(
                MadeCall(call.id, call.name, {}, " ".join(f"r{self.requests}_{at}" for at in range(self.words)))
            )
        await self.request(
            ReplyText(f"The answer to the question {self.requests} of {self.name} has all of these words.")
        )

    async def request(self, *pieces: Piece) -> str:
        """Sends the history with a text of the moment and adds the response to it; returns the session."""
        writer, setup = WRITERS[self.protocol_name], self.workers[self.requests % len(self.workers)]
        self.requests += 1
        body = writer.request(
            "gpt-5", self.with_end(f"It is {self.requests} o'clock at {self.name}."), stream=self.stream
        )
        path, reply = writer.path("gpt-5", stream=self.stream), ScriptedReply(self.requests, pieces, 100, 20)
        setup.upstream.answers = [self._answer(path, reply, body)]
        out, _ = await setup.ask(path.partition("?")[0], body)
        await setup.outbox.flush()
        self.history += writer.replied(reply_document(self.protocol_name, reply, body))
        session = header(out, "x-accordion-session")
        assert out.status == 200
        assert session
        self.sessions.append(session)
        return self.sessions[-1]

    def _answer(self, path: str, reply: ScriptedReply, body: Json) -> FakeReply:
        if not self.stream:
            return FakeReply(pieces=(json.dumps(reply_document(self.protocol_name, reply, body)).encode(),))
        events, kind = reply_events(self.protocol_name, reply, body), "text/event-stream"
        if frames.is_framed(path):
            events, kind = frames.frames_of(path, b"".join(events)), frames.KIND
        return FakeReply(headers=((b"content-type", kind.encode()),), pieces=tuple(events))

    def with_end(self, text: str) -> list[Json]:
        """The history with a text of the moment."""
        writer = WRITERS[self.protocol_name]
        if self.end == "system message":
            return [*self.history, {"role": "system", "content": text}]
        if self.end == "message":
            return [*self.history, writer.user(text)]
        last = self.history[-1]
        if self.protocol_name in ("chat", "responses"):
            kind = "text" if self.protocol_name == "chat" else "input_text"
            assert isinstance(last["content"], str)
            parts = [{"type": kind, "text": each} for each in (last["content"], text)]
            return [*self.history[:-1], {**last, "content": parts}]
        added = writer.add_text(last, text)
        assert added is not None
        return [*self.history[:-1], added]
