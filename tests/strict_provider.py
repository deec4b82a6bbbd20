"""A provider as strict as the real ones: it plays an agent's run, and takes a request only if every rule is kept.

A reply depends only on its number, and a tool's result only on the call id, so that a request can
be judged by itself, whoever sent it and whatever was compacted in it. `StrictProvider` is a script for `Loopback`.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests import frames, provider_rules
from tests.agent_replies import AgentReply, Json, streamed_error
from tests.loopback import Answer, Recorded, Script
from tests.reply_parts import reply_document, reply_events
from tests.writers import LISTS, WRITERS

SYSTEM = "You repair a build. Read what is needed, change little, and say what was done."
TASK = "Find out why the nightly build of the parser fails, and mend it. Keep notes of every file that was read."
PATHS = {name: writer.path("small") for name, writer in WRITERS.items()}
COUNTING = ("/v1/messages/count_tokens", "/v1/responses/input_tokens", "/v1beta/models/small:countTokens")
FIXED = ("tools", "toolConfig", "system", "instructions", "systemInstruction")
"""The fields with tools and system prompt."""

_WORDS = (
    *("parser", "build", "nightly", "cache", "module", "failed", "token", "stream", "buffer"),
    *("index", "lexer", "rule", "table", "state", "error", "path"),
)
_RAW = msgspec.json.Decoder(dict[str, msgspec.Raw])
_RAWS = msgspec.json.Decoder(list[msgspec.Raw])
_MARK = re.compile(rb',?"cache_control":\{[^{}]*\}')


def result_of(call_id: str, words: int = 110) -> str:
    """What the tool returns for this call: words of its own, a path and figures among them."""
    chance = random.Random(call_id)
    text = " ".join(chance.choice(_WORDS) for _ in range(words))
    return f"src/{call_id}/main_{chance.randrange(10_000)}.py:{chance.randrange(900)}: {text}"


def turn_text(turn: int, run: str = "") -> str:
    """What the user of a run says at the beginning of a turn; the first is the task. Runs of different names share no
    history."""
    return (
        f"{TASK} {run}".strip() if turn == 0 else f"Good. Now part {turn}: see whether module {turn * 37} is the same."
    )


def overflow_error(protocol_name: str, tokens: int, window: int) -> Json:
    """The provider's own error for an overflow."""
    code = None
    if protocol_name in ("converse", "messages"):
        said = f"prompt is too long: {tokens} tokens > {window} maximum"
        if protocol_name == "converse":
            said = f"The model returned the following errors: {said}"
    elif protocol_name == "gemini":
        said = f"The input token count ({tokens}) exceeds the maximum number of tokens allowed ({window})."
    else:
        code = "context_length_exceeded"
        said = f"This model's maximum context length is {window} tokens. However, your messages resulted in {tokens} tokens. Please reduce the length of the messages."  # noqa: E501
        if protocol_name == "responses":
            said = "Your input exceeds the context window of this model. Please adjust your input and try again."
    return request_error(protocol_name, said, code)


def request_error(protocol_name: str, message: str, code: str | None = None) -> Json:
    """A refusal in the provider's own form."""
    if protocol_name == "converse":
        return {"message": message}
    if protocol_name == "gemini":
        return {"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}
    if protocol_name == "messages":
        inner = {"type": "invalid_request_error", "message": message}
        return {"type": "error", "error": inner, "request_id": "req_strict"}
    return {"error": {"message": message, "type": "invalid_request_error", "param": LISTS[protocol_name], "code": code}}


def vllm_overflow_error(protocol_name: str, tokens: int, window: int) -> Json:
    said = (
        f"This model's maximum context length is {window} tokens. However, your request has {tokens} input tokens. "
        f"Please reduce the length of the input messages. (parameter=input_tokens, value={tokens})"
    )
    return {"error": {"message": said, "type": "BadRequestError", "param": "input_tokens", "code": 400}}


@dataclass(frozen=True)
class Forwarded:
    """An accepted request, and its tokens by the provider's count."""

    request: Recorded
    tokens: int

    @property
    def fixed(self) -> bytes:
        """Tools and system prompt as they stand in the body, without cache breakpoints."""
        fields = _RAW.decode(self.request.body)
        return b"".join(_MARK.sub(b"", bytes(fields.get(name, b""))) for name in FIXED)

    @property
    def entries(self) -> list[bytes]:
        """The list, each entry as it stands in the body, without cache breakpoints."""
        fields = _RAW.decode(self.request.body)
        listing = next(fields[name] for name in LISTS.values() if name in fields)
        return [_MARK.sub(b"", bytes(entry)) for entry in _RAWS.decode(listing)]

    @property
    def text(self) -> str:
        return self.request.body.decode()


@dataclass
class StrictProvider:
    """Turns of so many `rounds` of tools each, every reply with as many calls as `batch` says; `window` tokens are
    taken. `thinks`: replies reason. What breaks a rule is answered with 400 and kept in `problems`. `run` is the name
    of the run, as its client has it."""

    protocol_name: str
    window: int
    rounds: int = 30
    run: str = ""
    thinks: bool = False
    batch: Callable[[int], int] = lambda number: 1 + (number % 5 == 0)
    words: int = 110
    whole: bool = True
    """Whether the newest results must be verbatim."""
    overflow: Callable[[str, int, int], Json] = overflow_error
    streamed_errors: bool = False
    summary: Script | None = None
    """Answers the requests for summaries: those without tools."""
    given: int = 0
    taken: list[Forwarded] = field(default_factory=list)
    refusals: list[Recorded] = field(default_factory=list)
    counted: list[Forwarded] = field(default_factory=list)
    summaries: list[Recorded] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    thoughts: dict[str, Any] = field(default_factory=dict)
    """The reasoning, by signature."""
    binds: bool = False
    """Whether a thought is good only behind the very prefix that it was thought behind (Messages)."""
    bound: dict[str, str] = field(default_factory=dict)
    """That prefix, by signature."""
    tools: list[Json] | None = None
    """The client's tools where they are others than those of `spoken`; one of the proxy's may stand behind them."""

    async def __call__(self, request: Recorded, answer: Answer) -> None:
        if request.target.partition("?")[0] in COUNTING:
            found = Forwarded(request, self.count(request))
            self.counted.append(found)
            return await send_json(answer, 200, {"input_tokens": found.tokens, "totalTokens": found.tokens})
        body = request.json()
        if not (body.get("tools") or body.get("toolConfig")):
            self.summaries.append(request)
            assert self.summary is not None, "nobody was to write summaries here"
            return await self.summary(request, answer)
        return await self._asked(request, body, answer)

    def count(self, request: Recorded) -> int:
        """The provider's count: of letters, which is not the proxy's."""
        fields = _RAW.decode(request.body)
        named = (*FIXED, LISTS[self.protocol_name])
        return sum(len(bytes(fields.get(name, b""))) for name in named) // 4

    async def _asked(self, request: Recorded, body: Json, answer: Answer) -> None:
        tokens, stream = self.count(request), is_streamed(request, body)
        if tokens > self.window:
            self.refusals.append(request)
            said = self.overflow(self.protocol_name, tokens, self.window)
            if stream and self.streamed_errors:
                return await send_events(answer, streamed_error(self.protocol_name, said))
            return await send_json(answer, 400, said)
        if problems := provider_rules.problems(self.protocol_name, body, self):
            self.problems += problems
            return await send_json(answer, 400, request_error(self.protocol_name, problems[0]))
        self.taken.append(Forwarded(request, tokens))
        await self._replied(body, tokens, answer)

    async def _replied(self, body: Json, tokens: int, answer: Answer) -> None:
        """The reply to a request that was taken."""
        reply = self._next(tokens)
        said = reply.scripted(self.protocol_name)
        self.bound[reply.signature] = provider_rules.prefix(body, len(body[LISTS[self.protocol_name]]))
        if is_streamed(self.taken[-1].request, body):
            return await send_events(answer, b"".join(reply_events(self.protocol_name, said, body)))
        return await send_json(answer, 200, reply_document(self.protocol_name, said, body))

    def _next(self, tokens: int) -> AgentReply:
        self.given += 1
        number, thought = self.given, None
        if self.thinks:
            thought = f"Reply {number}: what was found so far does not explain it; look further. " * 3
        if number % (self.rounds + 1) == 0:
            calls: tuple[str, ...] = ()
        else:
            calls = tuple(f"call_{number}_{at}" for at in range(self.batch(number)))
        reply = AgentReply(
            number, calls, f"Step {number} is done." if not calls or number % 3 == 0 else "", thought, tokens
        )
        if thought is not None:
            self.thoughts[reply.signature] = thought
        return reply


def is_streamed(request: Recorded, body: Json) -> bool:
    """Whether the answer is to be a stream."""
    return bool(body.get("stream")) or "streamGenerateContent" in request.target or frames.is_framed(request.target)


async def send_json(answer: Answer, status: int, value: Json) -> None:
    body = json.dumps(value).encode()
    await answer.head(status, [("Content-Type", "application/json")], length=len(body))
    await answer.send(body)


async def send_events(answer: Answer, stream: bytes) -> None:
    kind = "text/event-stream"
    if frames.is_framed(answer.target):
        kind, stream = frames.KIND, b"".join(frames.frames_of(answer.target, stream))
    await answer.head(200, [("Content-Type", kind)], chunked=True)
    await answer.pieces(stream, (len(stream) // 3, len(stream) // 2))
    await answer.last_chunk()
