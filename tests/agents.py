"""Agents on the official SDKs: a question, tools until the model has no more calls, the next question.

    run = await Run(client, "chat", stream=True).turns(3)   # run.history, run.headers, run.sent

The history is the client's own and never compacted; every answer of the SDK goes into it as the SDK gives it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anthropic
import httpx
import openai

from tests import frames
from tests.agent_replies import TOOL, TOOLS, Json
from tests.response_recorder import ResponseRecorder
from tests.strict_provider import SYSTEM, result_of, turn_text
from tests.writers import WRITERS, MadeCall

MODEL = "small"
Client = openai.AsyncOpenAI | anthropic.AsyncAnthropic | httpx.AsyncClient


@dataclass
class Run:
    """An agent: its history, and for each request the response's headers and the bytes of JSON sent."""

    client: Any
    protocol_name: str
    stream: bool = False
    words: int = 110
    name: str = ""
    model: str = MODEL
    marks: bool = False
    """Whether cache breakpoints are set, and moved to the end of the list with every request (Messages)."""
    headers: dict[str, str] = field(default_factory=dict)
    more: Json = field(default_factory=dict)
    history: list[Any] = field(default_factory=list)
    answers: list[Mapping[str, str]] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    keeps: Callable[[list[Json]], list[Json]] | None = None
    """Changes the entries of a response before they enter the history, as some clients do."""
    chained: bool = False
    """Whether only new entries are sent, with the id of the last response (Responses)."""
    object_id: str = ""
    """The conversation object that the provider keeps and to which what is new is sent (Responses); empty: none."""
    reply: str = ""
    """The id of the last reply."""
    turn: int = 0
    _told: int = 0
    _size: int = 0
    _measured: int = 0

    @property
    def compactions(self) -> list[Json | None]:
        """The compaction header of each response."""
        return [
            json.loads(head["x-accordion-compaction"]) if "x-accordion-compaction" in head else None
            for head in self.answers
        ]

    async def turns(self, count: int) -> Run:
        """Runs `count` whole turns."""
        for _ in range(count):
            self.begin()
            while await self.step():
                pass
        return self

    def begin(self) -> None:
        """The user begins the next turn."""
        self.ask(turn_text(self.turn, self.name))
        self.turn += 1

    def ask(self, text: str) -> None:
        """The user says something."""
        self.history.append(WRITERS[self.protocol_name].user(text))

    def say(self, text: str) -> None:
        """The user says something beside the results that stand last, as where an agent is interrupted."""
        last = WRITERS[self.protocol_name].add_text(self.history[-1], text) if self.history else None
        if last is not None:
            self.history[-1] = last
            return
        self.ask(text)

    @property
    def open(self) -> bool:
        """Whether calls at the end of the history have no results."""
        last = self.history[-1]
        if self.protocol_name == "responses":
            asked = {e["call_id"] for e in self.history if e.get("type") == "function_call"}
            return asked != {e["call_id"] for e in self.history if e.get("type") == "function_call_output"} or (
                last.get("type") == "reasoning"
            )
        if self.protocol_name in ("messages", "gemini", "converse"):
            return bool(last["role"] in ("assistant", "model"))
        asked = {c["id"] for e in self.history for c in e.get("tool_calls") or ()}
        return asked != {e["tool_call_id"] for e in self.history if e["role"] == "tool"}

    async def step(self) -> list[str]:
        """One request, and the tools that it asks for; gives their call ids."""
        self._size += sum(len(json.dumps(entry, default=_plain)) for entry in self.history[self._measured :])
        self._measured = len(self.history)
        self.sent.append(self._size)
        calls = await _STEPS[self.protocol_name](self)
        if self.keeps is not None:
            self.history[self._measured :] = self.keeps(
                json.loads(json.dumps(self.history[self._measured :], default=_plain))
            )
        self._answer(calls)
        return calls

    def _answer(self, calls: list[str]) -> None:
        if not calls:
            return
        made = [MadeCall(call, TOOL, {}, result_of(call, self.words)) for call in calls]
        self.history += WRITERS[self.protocol_name].results(*made)


async def _chat(run: Run) -> list[str]:
    messages = [{"role": "system", "content": SYSTEM}, *run.history]
    more = {"stream": True, "stream_options": {"include_usage": True}} if run.stream else {}
    raw = await run.client.chat.completions.with_raw_response.create(
        model=run.model, messages=messages, extra_headers=run.headers, **{"tools": TOOLS["chat"], **more, **run.more}
    )
    run.answers.append(dict(raw.headers))
    if not run.stream:
        message = raw.parse().choices[0].message
        run.history.append(message.model_dump(exclude_none=True))
        return [call.id for call in message.tool_calls or ()]
    text, calls = "", dict[int, Json]()
    async for chunk in raw.parse():
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for piece in choice.delta.tool_calls or ():
                call = calls.setdefault(
                    piece.index, {"id": piece.id, "type": "function", "function": {"arguments": ""}}
                )
                call["function"]["name"] = piece.function.name or call["function"]["name"]
                call["function"]["arguments"] += piece.function.arguments or ""
    said: Json = {"role": "assistant", "content": text or None}
    run.history.append(said | ({"tool_calls": list(calls.values())} if calls else {}))
    return [call["id"] for call in calls.values()]


async def _responses(run: Run) -> list[str]:
    # The SDK would look at each item as every one of the thirty kinds that it might be, a fifth of a second each time.
    more = {"input": run.history, **run.more.get("extra_body", {})}
    if run.chained and run.reply:
        more |= {"input": run.history[run._told :], "previous_response_id": run.reply}
    if run.object_id:
        more |= {"input": run.history[run._told :], "conversation": run.object_id}
    raw = await run.client.responses.with_raw_response.create(
        model=run.model, instructions=SYSTEM, stream=run.stream, include=["reasoning.encrypted_content"],
        extra_headers=run.headers,
        **{"tools": TOOLS["responses"], "store": False, **run.more, "extra_body": more},
    )  # fmt: skip
    run.answers.append(dict(raw.headers))
    if run.stream:
        events = [event async for event in raw.parse()]
        assert events[-1].type == "response.completed", events[-1]
        done = events[-1].response
    else:
        done = raw.parse()
    run.history += [item.model_dump(mode="json", exclude_unset=True) for item in done.output]
    run.reply, run._told = done.id, len(run.history)
    return [item.call_id for item in done.output if item.type == "function_call"]


async def _messages(run: Run) -> list[str]:
    system = [{"type": "text", "text": SYSTEM, **_MARK}] if run.marks else SYSTEM
    listed = _marked(run.history) if run.marks else run.history
    asked = {
        "model": run.model, "max_tokens": 500, "system": system, "messages": listed, "tools": TOOLS["messages"],
        "extra_headers": run.headers, **run.more,
    }  # fmt: skip
    if run.stream:
        async with run.client.messages.stream(**asked) as stream:
            message = await stream.get_final_message()
            run.answers.append(dict(stream.response.headers))
    else:
        raw = await run.client.messages.with_raw_response.create(**asked)
        run.answers.append(dict(raw.headers))
        message = await raw.parse()
    run.history.append({"role": "assistant", "content": message.content})
    return [block.id for block in message.content if block.type == "tool_use"]


_MARK = {"cache_control": {"type": "ephemeral"}}


def _marked(history: list[Any]) -> list[Any]:
    """The list with a breakpoint at the end of the last two messages of the user's."""
    out, left = list(history), 2
    for at in range(len(out) - 1, -1, -1):
        if out[at]["role"] == "user":
            content = out[at]["content"]
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            out[at] = {"role": "user", "content": [*blocks[:-1], {**blocks[-1], **(_MARK if left else {})}]}
            left = max(0, left - 1)
    return out


class GeminiError(Exception):
    """What Google's SDK raises, too: an error is answered, stands in a stream, or nothing whole is answered."""

    def __init__(self, told: str, response: httpx.Response | None = None) -> None:
        super().__init__(told)
        self.response = response


class GeminiConnectionError(GeminiError):
    """The connection broke off."""


async def _gemini(run: Run) -> list[str]:
    """Google's SDK needs another version of a library that the other SDKs share; it is in tests/clients."""
    writer, more = WRITERS["gemini"], dict(run.more)
    tools = more.pop("tools", TOOLS["gemini"])
    asked = writer.with_tools(writer.with_system(writer.request(run.model, run.history, **more), SYSTEM), tools)
    path = writer.path(run.model, stream=run.stream)
    try:
        reply = await run.client.post(path, json=asked, headers=run.headers)
        told = [json.loads(line[6:]) for line in reply.text.splitlines() if line] if run.stream else [reply.json()]
    except httpx.TransportError as error:
        raise GeminiConnectionError(str(error)) from error
    except ValueError as error:
        raise GeminiError(str(error)) from error
    if reply.status_code != 200 or not told or any("error" in each for each in told):
        raise GeminiError(reply.text, reply)
    run.answers.append(dict(reply.headers))
    contents = [each["candidates"][0].get("content", {}) for each in told]
    parts = [part for content in contents for part in content.get("parts", ()) if part != {"text": ""}]
    run.history.append({"role": "model", "parts": parts})
    return [part["functionCall"]["id"] for part in parts if "functionCall" in part]


async def _converse(run: Run) -> list[str]:
    """AWS's own client sends a key over TLS only; it is in tests/e2e/test_bedrock.py."""
    asked = {
        "system": [{"text": SYSTEM}], "messages": run.history, "toolConfig": {"tools": TOOLS["converse"]},
        "inferenceConfig": {"maxTokens": 500}, **run.more,
    }  # fmt: skip
    method = "converse-stream" if run.stream else "converse"
    reply = await run.client.post(f"/model/{run.model}/{method}", json=asked, headers=run.headers)
    run.answers.append(dict(reply.headers))
    assert reply.status_code == 200, reply.text
    content = frames.converse_blocks(reply.content) if run.stream else reply.json()["output"]["message"]["content"]
    run.history.append({"role": "assistant", "content": content})
    return [block["toolUse"]["toolUseId"] for block in content if "toolUse" in block]


_STEPS: dict[str, Callable[[Run], Any]] = {
    "chat": _chat, "responses": _responses, "messages": _messages, "gemini": _gemini,
    "converse": _converse,
}  # fmt: skip


def _plain(value: Any) -> Any:
    return value.model_dump(exclude_none=True)


def connected(
    url: str,
    protocol_name: str,
    witness: ResponseRecorder | None = None,
    *,
    key: str = "sk-test-agents",
    headers: Mapping[str, str] | None = None,
) -> Client:
    """The protocol's official client, with no retries of its own; `witness` hears all that comes."""
    more: Any = {"api_key": key, "max_retries": 0, "timeout": 60, "default_headers": headers}
    if protocol_name == "gemini":
        plain = witness.openai() if witness is not None else httpx.AsyncClient(timeout=60, trust_env=False)
        plain.base_url = httpx.URL(url)
        plain.headers.update({"x-goog-api-key": key, **(headers or {})})
        return plain
    if protocol_name == "messages":
        http = witness.anthropic() if witness is not None else None
        return anthropic.AsyncAnthropic(base_url=url, http_client=http, **more)
    http1 = witness.openai() if witness is not None else None
    return openai.AsyncOpenAI(base_url=f"{url}/v1", http_client=http1, **more)
