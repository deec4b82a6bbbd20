"""Small session files in the formats of coding agents, made by hand."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
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

    def answer(self, response: str, *blocks: dict[str, Any], usage: dict[str, Any] | None = None, **fields: Any) -> str:
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


def words_of_file(number: int) -> str:
    """A text of about 1,100 tokens."""
    return " ".join(f"{number:02}-{line:03} the valve was turned" for line in range(120))


def long_session(name: str = "s-long", requests: int = 40, preamble: int = 15_000) -> ClaudeSession:
    """A session that reads file after file, with true reports: what was in the prompt before is a cache read."""
    session, total, cached = ClaudeSession(name), preamble, 0
    for number in range(requests):
        session.say(f"Read file {number}, please. {words_of_file(number)}")
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


class OpenCodeSessions:
    """Sessions of OpenCode, for a database or for files. Each message has an id and a time of its own."""

    def __init__(self) -> None:
        self.sessions: list[tuple[str, str | None]] = []
        self.messages: list[tuple[str, str, dict[str, Any]]] = []
        self.parts: list[tuple[str, str, str, dict[str, Any]]] = []

    def begin(self, name: str = "ses_1", parent: str | None = None) -> None:
        """Begins a session, that of a sub-agent if it has a parent."""
        self.sessions.append((name, parent))

    def add(self, role: str, *parts: dict[str, Any], **fields: Any) -> str:
        """Adds a message to the last session, and returns its id."""
        name = f"msg_{len(self.messages):04}"
        data = {"role": role, "time": {"created": 1_000 * (len(self.messages) + 1)}, **fields}
        self.messages.append((name, self.sessions[-1][0], data))
        for part in parts:
            self.parts.append((f"prt_{len(self.parts):04}", name, self.sessions[-1][0], part))
        return name

    def say(self, words: str, **fields: Any) -> str:
        """Adds a user message."""
        return self.add("user", {"type": "text", "text": words}, **fields)

    def answer(self, *parts: dict[str, Any], tokens: dict[str, Any] | None = None, **fields: Any) -> str:
        """Adds a response."""
        usage = tokens or {"input": 100, "output": 7, "reasoning": 0, "cache": {"read": 0, "write": 0}}
        marks = {"type": "step-start"}, {"type": "step-finish", "tokens": usage}
        told = {"modelID": "gpt-5", "providerID": "openai", "tokens": usage, "finish": "stop"}
        return self.add("assistant", marks[0], *parts, marks[1], **(told | fields))

    def write_database(self, file: Path) -> Path:
        """Writes a database with the tables of OpenCode 1.2 and later, as far as they are read."""
        file.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(file)) as database, database:
            database.execute("CREATE TABLE session (id TEXT PRIMARY KEY, parent_id TEXT, time_created INTEGER)")
            database.execute(
                "CREATE TABLE message (id TEXT PRIMARY KEY, session_id TEXT, time_created INTEGER, data TEXT)"
            )
            database.execute("CREATE TABLE part (id TEXT PRIMARY KEY, message_id TEXT, session_id TEXT, data TEXT)")
            for number, session in enumerate(self.sessions):
                database.execute("INSERT INTO session VALUES (?, ?, ?)", (*session, number))
            for name, session_id, data in self.messages:
                row = (name, session_id, data["time"]["created"], json.dumps(data))
                database.execute("INSERT INTO message VALUES (?, ?, ?, ?)", row)
            for part, message, session_id, data in self.parts:
                database.execute("INSERT INTO part VALUES (?, ?, ?, ?)", (part, message, session_id, json.dumps(data)))
        return file

    def write_files(self, storage: Path) -> list[Path]:
        """Writes the files of OpenCode 1.1, and returns those of the sessions."""
        for name, session_id, data in self.messages:
            write_json(storage / "message" / session_id / f"{name}.json", {"id": name, **data})
        for part, message, _, data in self.parts:
            write_json(storage / "part" / message / f"{part}.json", {"id": part, **data})
        files = []
        for name, parent in self.sessions:
            files.append(storage / "session" / "global" / f"{name}.json")
            write_json(files[-1], {"id": name, **({"parentID": parent} if parent else {})})
        return files


def write_json(file: Path, value: dict[str, Any]) -> None:
    """Writes a file of JSON as OpenCode does."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value, indent=2))


def opencode_text(words: str) -> dict[str, Any]:
    """A part with text."""
    return {"type": "text", "text": words}


def opencode_call(identity: str, output: str = "read", **state: Any) -> dict[str, Any]:
    """A part with a tool call and its result."""
    told = {"status": "completed", "input": {"filePath": "a"}, "output": output, "time": {"start": 1, "end": 2}}
    return {"type": "tool", "tool": "read", "callID": identity, "state": told | state}
