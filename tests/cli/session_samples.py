"""Small session files in the formats of coding agents, made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class ClaudeSession:
    """Lines of a session file of Claude Code; each line follows the last one, unless it names a parent."""

    def __init__(self, name: str = "s-1") -> None:
        self.name = name
        self.lines: list[dict[str, Any]] = []
        self.last: str | None = None
        self.second = 0

    def add(self, kind: str, *, parent: str | None = "last", **fields: Any) -> str:
        """Adds a line, and returns its id."""
        uuid = f"{self.name}-{len(self.lines)}"
        self.second += 1
        self.lines.append(
            {
                "type": kind,
                "uuid": uuid,
                "parentUuid": self.last if parent == "last" else parent,
                "sessionId": self.name,
                "isSidechain": False,
                "version": "2.1.197",
                "timestamp": f"2026-11-26T00:{self.second // 60:02}:{self.second % 60:02}.000Z",
                **fields,
            }
        )
        self.last = uuid
        return uuid

    def say(self, content: Any, **fields: Any) -> str:
        """Adds a user message."""
        return self.add("user", message={"role": "user", "content": content}, **fields)

    def answer(self, response: str, *blocks: dict[str, Any], usage: dict[str, int] | None = None, **fields: Any) -> str:
        """Adds the lines of a response: one for each block. Returns the id of the last line."""
        for block in blocks:
            message = {
                "id": response,
                "type": "message",
                "role": "assistant",
                "model": "claude-sonnet-4-5",
                "content": [block],
                "usage": usage or report(100),
            }
            self.add("assistant", message=message, requestId=f"req-{response}", **fields)
        assert self.last is not None
        return self.last

    def compact(self, summary: str) -> None:
        """Adds what Claude Code writes when it compacts."""
        boundary = self.add("system", parent=None, subtype="compact_boundary", logicalParentUuid=self.last)
        self.say(summary, parent=boundary, isCompactSummary=True)

    def write(self, folder: Path) -> Path:
        """Writes the file."""
        file = folder / f"{self.name}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(line) + "\n" for line in self.lines))
        return file


def report(tokens: int, cached: int = 0, written: int = 0) -> dict[str, int]:
    """The usage of a response to a prompt of so many tokens."""
    return {
        "input_tokens": tokens - cached - written,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": written,
        "output_tokens": 7,
    }


def text(words: str) -> dict[str, Any]:
    """A block of text."""
    return {"type": "text", "text": words}


def call(identity: str, name: str = "Read") -> dict[str, Any]:
    """A block with a tool call."""
    return {"type": "tool_use", "id": identity, "name": name, "input": {"file": identity}}


def result(identity: str, content: str = "read") -> dict[str, Any]:
    """A block with the result of a tool call."""
    return {"type": "tool_result", "tool_use_id": identity, "content": content}


def long_session(name: str = "s-long", requests: int = 40, preamble: int = 15_000) -> ClaudeSession:
    """A session that reads file after file, with true reports: what was in the prompt before is a cache read."""
    session, total, cached = ClaudeSession(name), preamble, 0
    for number in range(requests):
        words = " ".join(f"{number:02}-{line:03} the valve was turned" for line in range(120))
        question = f"Read file {number}, please. {words}"
        session.say(question)
        total += 1_100
        session.answer(f"{name}-m{number}", text("I read it."), usage=report(total, cached, total - cached - 3))
        cached = total - 3
    return session


class CodexSession:
    """Lines of a session file of Codex."""

    def __init__(self, name: str = "t-1") -> None:
        self.name = name
        self.lines: list[dict[str, Any]] = []
        self.total = 0
        self.add("session_meta", id=name, cli_version="0.169.0", base_instructions={"text": "You are Codex."})
        self.add("turn_context", model="gpt-5")

    def add(self, kind: str, **payload: Any) -> None:
        """Adds a line."""
        time = f"2026-11-26T00:00:{len(self.lines):02}.000Z"
        self.lines.append({"timestamp": time, "type": kind, "payload": payload})

    def say(self, words: str) -> None:
        """Adds a user message."""
        content = [{"type": "input_text", "text": words}]
        self.add("response_item", type="message", role="user", content=content)

    def answer(self, identity: str, words: str) -> None:
        """Adds a message of the model."""
        content = [{"type": "output_text", "text": words}]
        self.add("response_item", type="message", id=identity, role="assistant", content=content)

    def call(self, identity: str) -> None:
        """Adds a tool call of the model."""
        self.add("response_item", type="function_call", id=identity, name="run", arguments="{}", call_id=identity)

    def result(self, identity: str) -> None:
        """Adds the result of a tool call."""
        self.add("response_item", type="function_call_output", call_id=identity, output="done")

    def report(self, tokens: int, cached: int = 0) -> None:
        """Adds the report of a response; of 0 tokens: repeats the last one."""
        self.total += tokens
        usage = {"input_tokens": tokens, "cached_input_tokens": cached, "output_tokens": 5}
        info = {"last_token_usage": usage, "total_token_usage": {"input_tokens": self.total}}
        self.add("event_msg", type="token_count", info=info)

    def write(self, folder: Path) -> Path:
        """Writes the file."""
        file = folder / f"rollout-2026-11-26T00-00-00-{self.name}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(line) + "\n" for line in self.lines))
        return file
