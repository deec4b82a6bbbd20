"""Reads and writes trajectories in ATIF, the Agent Trajectory Interchange Format of the Harbor project.

A trajectory is a JSON document: an agent, and its steps in order. A step is a system prompt, a message of the user, or
a response of the model with its tool calls and their results (`observation`). The specification is
`docs/rfcs/0001-trajectory-format.md` of `laude-institute/harbor` on GitHub. Versions 1.0 to 1.7 are read, as requests
of Chat Completions; 1.4 is written, which all readers take.

- A step with `is_copied_context` repeats an earlier trajectory, so that it is no request of its own.
- A result that names no call of its step is a message of the user: agents without tool calls send results so.
- Images are named, not included: the format refers to files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from accordion import __version__
from accordion.cli.tenant_store import TenantStore, print_error, print_json, report_missing, run_for_tenant
from accordion.config import Settings
from accordion.features.offline.recordings import MalformedTranscript, decode_line, encode_json
from accordion.features.offline.session_files import ModelCall, SessionConversation, SessionItem
from accordion.model.conversation import (
    Conversation,
    Media,
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    decode_arguments,
)
from accordion.model.records import Exchange, Usage

WRITTEN_VERSION = "ATIF-v1.4"
_HEAD = 4_096
"""Bytes at the beginning of a file that must name the format."""

Content = str | list[dict[str, Any]] | None
"""A text, or since version 1.6 a list of parts."""


class _Call(msgspec.Struct, frozen=True):
    tool_call_id: str
    function_name: str
    arguments: dict[str, Any] = {}


class _Result(msgspec.Struct, frozen=True):
    source_call_id: str | None = None
    content: Content = None


class _Observation(msgspec.Struct, frozen=True):
    results: tuple[_Result, ...] = ()


class _Metrics(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None

    def convert(self) -> Usage | None:
        """Returns the report; None if it has no input."""
        if not self.prompt_tokens:
            return None
        return Usage(self.prompt_tokens, self.completion_tokens or 0, self.cached_tokens or 0)


class _Step(msgspec.Struct, frozen=True):
    source: Literal["system", "user", "agent"]
    message: Content = ""
    timestamp: str | None = None
    model_name: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[_Call, ...] | None = None
    observation: _Observation | None = None
    metrics: _Metrics | None = None
    is_copied_context: bool | None = None

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yields the messages of Chat Completions that the step stands for."""
        role = "assistant" if self.source == "agent" else self.source
        message: dict[str, Any] = {"role": role, "content": _read_content(self.message)}
        if self.reasoning_content:
            message["reasoning_content"] = self.reasoning_content
        calls = self.tool_calls or ()
        if calls:
            message["tool_calls"] = [
                {
                    "id": call.tool_call_id,
                    "type": "function",
                    "function": {"name": call.function_name, "arguments": encode_json(call.arguments).decode()},
                }
                for call in calls
            ]
        yield message
        call_ids = {call.tool_call_id for call in calls}
        for result in self.observation.results if self.observation is not None else ():
            content = _read_content(result.content)
            if result.source_call_id in call_ids:
                yield {"role": "tool", "tool_call_id": result.source_call_id, "content": content}
            elif content:
                yield {"role": "user", "content": content}


class _Agent(msgspec.Struct, frozen=True):
    name: str = ""
    model_name: str | None = None
    tool_definitions: list[dict[str, Any]] | None = None


class _Trajectory(msgspec.Struct, frozen=True):
    schema_version: str
    agent: _Agent
    steps: tuple[_Step, ...]
    session_id: str | None = None


# -- reading -----------------------------------------------------------------------------------------------------------


def is_trajectory_file(file: Path) -> bool:
    """Whether a file is one trajectory, by its name and its beginning. Raises OSError."""
    if file.suffix != ".json":
        return False
    with file.open("rb") as opened:
        return is_trajectory(opened.read(_HEAD))


def is_trajectory(text: bytes) -> bool:
    """Whether a document is a trajectory, by its beginning."""
    return b'"schema_version"' in text[:_HEAD] and b'"ATIF-v' in text[:_HEAD]


def read_trajectory(file: str, line: int, text: bytes) -> Iterator[SessionItem]:
    """Yields the conversation of the trajectory in a line, or that it cannot be read. Line 0: it is the whole file."""
    try:
        trajectory = decode_line(text, _Trajectory)
        calls = list(_list_calls(trajectory))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        yield MalformedTranscript(file, line, f"no trajectory that is known here: {error}")
        return
    if calls:
        yield SessionConversation(
            file=file,
            line=max(line, 1),
            name=trajectory.session_id or Path(file).stem,
            session=trajectory.session_id or Path(file).stem,
            calls=calls,
            path="/v1/chat/completions",
            write_body=partial(_write_body, trajectory.agent.tool_definitions),
            has_preamble=any(step.source == "system" for step in trajectory.steps),
        )


def _list_calls(trajectory: _Trajectory) -> Iterator[ModelCall]:
    """Yields a call for each response that has a message before it. Raises ValueError."""
    entries: list[bytes] = []
    for step in trajectory.steps:
        if step.source == "agent" and entries and not step.is_copied_context:
            at = datetime.fromisoformat(step.timestamp).timestamp() if step.timestamp else 0.0
            usage = step.metrics.convert() if step.metrics is not None else None
            yield ModelCall(tuple(entries), step.model_name or trajectory.agent.model_name or "", usage, at)
        entries += map(encode_json, step.messages())


def _read_content(content: Content) -> str:
    if not isinstance(content, list):
        return content or ""
    return "\n".join(str(part.get("text") or f"[{part.get('type')}]") for part in content)


def _write_body(tools: list[dict[str, Any]] | None, call: ModelCall, model: str, preamble: str) -> bytes:
    fields: dict[str, Any] = {"model": model, **({"tools": tools} if tools else {})}
    system = [encode_json({"role": "system", "content": preamble})] if preamble else []
    return b'%b,"messages":[%b]}' % (encode_json(fields)[:-1], b",".join([*system, *call.entries]))


# -- writing -----------------------------------------------------------------------------------------------------------


def export_session(settings: Settings, tenant: str | None, session: str) -> int:
    """Prints the trajectory of a session in the store. Returns the exit code: 1 if the session is not recorded."""
    return run_for_tenant(settings, tenant, lambda store: _export(store, session))


async def _export(store: TenantStore, session: str) -> int:
    view = await store.queries.find_session(store.caller.tenant, session)
    if view is None:
        return report_missing(store, session)
    recorded = await store.sent.load_conversation(store.caller, session)
    if recorded is None:
        print_error(f"{session}: no transcript; the setting `archive.record` chooses the sessions that are recorded")
        return 1
    exchanges: list[Exchange] = []
    async for page in store.queries.scan_exchanges(store.caller.tenant, session):
        exchanges += page
    print_json(write_trajectory(session, view.session.client, recorded.conversation, exchanges))
    return 0


def write_trajectory(
    session: str, agent: str, conversation: Conversation, exchanges: Iterable[Exchange]
) -> dict[str, Any]:
    """Returns a session as a trajectory. `agent` is the client's name; exchanges are matched by their messages."""
    by_length = _find_last_exchanges(exchanges)
    steps: list[dict[str, Any]] = []
    if preamble := _join_texts(conversation.preamble):
        steps.append({"source": "system", "message": preamble})
    for index, message in enumerate(conversation.messages):
        if message.role == "assistant":
            _add_response(steps, message, by_length.get(index))
        else:
            _add_input(steps, message)
    return {
        "schema_version": WRITTEN_VERSION,
        "session_id": session,
        "agent": {"name": agent or "unknown", "version": "unknown", "model_name": conversation.model},
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, 1)],
        "notes": "The steps are the messages of the last request; its response is not recorded.",
        "final_metrics": _sum_metrics(steps),
        "extra": {"written_by": f"accordion {__version__}"},
    }


def _find_last_exchanges(exchanges: Iterable[Exchange]) -> dict[int, Exchange]:
    """Returns the exchanges of a session's last list, by their messages. One with no more messages than the one before
    it begins another list there: the user went back, or the client compacted its list."""
    last = list[Exchange]()
    for exchange in sorted(exchanges, key=lambda each: each.at):
        while last and last[-1].messages >= exchange.messages:
            last.pop()
        last.append(exchange)
    return {exchange.messages: exchange for exchange in last}


def _add_response(steps: list[dict[str, Any]], message: Message, exchange: Exchange | None) -> None:
    """Adds a response. Items of one response, which some protocols have apart, are one step."""
    is_same = bool(steps) and steps[-1]["source"] == "agent" and "observation" not in steps[-1] and exchange is None
    step: dict[str, Any] = steps[-1] if is_same else {"source": "agent", "message": ""}
    if not is_same:
        steps.append(step)
    for name, text in (
        ("message", _join_texts(part for part in message.parts if not isinstance(part, Reasoning))),
        ("reasoning_content", _join_texts(part for part in message.parts if isinstance(part, Reasoning))),
    ):
        if text:
            step[name] = "\n\n".join(filter(None, (step.get(name, ""), text)))
    calls = [part for part in message.parts if isinstance(part, ToolCall)]
    if calls:
        step.setdefault("tool_calls", []).extend(map(_describe_call, calls))
    _add_results(steps, message)
    if exchange is not None:
        step["timestamp"] = datetime.fromtimestamp(exchange.at, UTC).isoformat()
        step["model_name"] = exchange.model
        if exchange.usage is not None:
            usage = exchange.usage
            step["metrics"] = {
                "prompt_tokens": usage.input,
                "completion_tokens": usage.output,
                "cached_tokens": usage.cached,
            }


def _add_input(steps: list[dict[str, Any]], message: Message) -> None:
    _add_results(steps, message)
    text = _join_texts(message.parts)
    if text:
        steps.append({"source": "user" if message.role == "user" else "system", "message": text})


def _add_results(steps: list[dict[str, Any]], message: Message) -> None:
    """Adds results to the step with their call; to the last response if no step has it."""
    for part in message.parts:
        if isinstance(part, ToolResult) and (step := _find_call(steps, part.call_id)) is not None:
            results = step.setdefault("observation", {"results": []})["results"]
            results.append({"source_call_id": part.call_id, "content": _join_texts(part.parts)})


def _find_call(steps: Sequence[dict[str, Any]], call_id: str) -> dict[str, Any] | None:
    responses = [step for step in reversed(steps) if step["source"] == "agent"]
    named = (step for step in responses if any(call["tool_call_id"] == call_id for call in step.get("tool_calls", ())))
    return next(named, next(iter(responses), None))


def _describe_call(call: ToolCall) -> dict[str, Any]:
    arguments = decode_arguments(call.arguments)
    return {
        "tool_call_id": call.call_id,
        "function_name": call.name,
        # A call's arguments may be no JSON object, as those of tools that take a text.
        "arguments": arguments if isinstance(arguments, dict) else {"input": call.arguments},
    }


def _join_texts(parts: Iterable[Part]) -> str:
    texts = (
        part.text if isinstance(part, Text | Reasoning) else f"[{part.kind}]" if isinstance(part, Media) else ""
        for part in parts
    )
    return "\n".join(filter(None, texts))


def _sum_metrics(steps: Sequence[dict[str, Any]]) -> dict[str, int]:
    metrics = [step["metrics"] for step in steps if "metrics" in step]
    names = ("prompt_tokens", "completion_tokens", "cached_tokens")
    return {f"total_{name}": sum(each[name] for each in metrics) for name in names} | {"total_steps": len(steps)}
