"""Reads the sessions of OpenCode, and reconstructs the requests that it sent, as session_files.py does for others.

Since version 1.2, they are in SQLite databases, `~/.local/share/opencode/opencode*.db`; before, in JSON files in the
folder `storage` beside them. This reader follows what OpenCode 1.18.33 writes, the source of `anomalyco/opencode` on
GitHub (packages/opencode/src/session: session.sql.ts, message-v2.ts, compaction.ts), and a public description of the
files of version 1.1:

- `session` has an `id`, and the `parent_id` of the session that a sub-agent works for. Files:
  `session/PROJECT/SESSION.json`.
- `message` has in `data` the role, the model and, for a response, the provider's report. Files:
  `message/SESSION/MESSAGE.json`. Without the cached and written tokens, `tokens.input` is the input; `tokens.output`
  has no reasoning tokens where `tokens.total` says so.
- `part` has in `data` a piece of a message: a text, a file, a tool call with its result, or a mark. Files:
  `part/MESSAGE/PART.json`. A `step-start` begins a response; older messages have several.
- A user message with a part `compaction`, then a response with `summary`: OpenCode goes on with these two, the messages
  from `tail_start_id` on, and what follows. The time `compacted` of a result: OpenCode left it out from then on.

The protocol is not on record. The requests are those of Chat Completions, without reasoning and without the files of
results. Version 2 has other tables (`session_v2`); its sessions are counted and not read.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from accordion.cli.listing import count_with_noun
from accordion.features.offline.recordings import MalformedTranscript, decode_line, encode_json
from accordion.features.offline.session_files import ModelCall, SessionConversation, SessionItem
from accordion.model.records import Usage

SQLITE_MAGIC = b"SQLite format 3\0"
_BUSY_SECONDS = 5.0
_CLEARED = "[Old tool result content cleared]"
_INTERRUPTED = "[Tool execution was interrupted]"
_COMPACTION = "What did we do so far?"
_SUBTASK = "The following tool was executed by the user"
_TEXT_FILES = ("text/plain", "application/x-directory")
"""Kinds of files whose text is another part of the message."""


class _CacheTokens(msgspec.Struct, frozen=True):
    read: float = 0
    write: float = 0


class _Tokens(msgspec.Struct, frozen=True):
    input: float = 0
    output: float = 0
    reasoning: float = 0
    total: float | None = None
    cache: _CacheTokens = _CacheTokens()

    def convert(self) -> Usage | None:
        """Returns the report; None if it has no input, as in a response that failed."""
        cached, written = int(self.cache.read), int(self.cache.write)
        prompt = int(self.input) + cached + written
        output = int(self.output)
        if self.total is not None and int(self.total) == prompt + output + int(self.reasoning):
            output += int(self.reasoning)
        return Usage(prompt, output, cached, written) if prompt else None


class _Time(msgspec.Struct, frozen=True):
    """Times in milliseconds since the epoch."""

    created: float = 0
    compacted: float | None = None


class _ToolState(msgspec.Struct, frozen=True):
    status: str
    input: Any = None
    output: str = ""
    error: str = ""
    time: _Time = _Time()


class _Part(msgspec.Struct, frozen=True):
    type: str
    text: str = ""
    ignored: bool = False
    tool: str = ""
    call_id: str = msgspec.field(default="", name="callID")
    state: _ToolState | None = None
    mime: str = ""
    url: str = ""
    filename: str | None = None
    tail_start_id: str | None = None
    tokens: _Tokens | None = None


class _Message(msgspec.Struct, frozen=True):
    role: str
    time: _Time = _Time()
    model_id: str = msgspec.field(default="", name="modelID")
    tokens: _Tokens | None = None
    error: dict[str, Any] | None = None
    # A user message has a summary for people here, which the model does not see.
    summary: Any = None
    finish: str | None = None


class _StoredMessage(NamedTuple):
    """A message with its id and its parts, in order."""

    id: str
    content: _Message
    parts: Sequence[_Part]


class _Entry(NamedTuple):
    """The JSON of an entry of the list, and the state of the tool call if OpenCode left its result out later."""

    wire: bytes
    cleared_later: _Part | None = None


# -- Conversations ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Session:
    """A session as far as it was read: the list, and the requests since the last compaction."""

    file: str
    id: str
    root: str
    known_responses: set[str]
    part: int = 0
    history: list[_Entry] = field(default_factory=list)
    entries: dict[str, list[_Entry]] = field(default_factory=dict)
    """The entries of each message, in order."""
    tail_start: str | None = None
    """The first message that stays whole after the compaction that was asked for last."""
    request: str = ""
    """The message that asked for it."""
    calls: list[ModelCall] = field(default_factory=list)

    def add(self, message: _StoredMessage) -> Iterator[SessionConversation]:
        """Adds a message; yields the conversation that it ends."""
        if message.content.role == "user":
            for part in message.parts:
                if part.type == "compaction":
                    self.request, self.tail_start = message.id, part.tail_start_id
            self._extend(message.id, _encode_user(message.parts))
            return
        steps = _split_steps(message.parts)
        is_kept = _is_sent_again(message)
        for number, step in enumerate(steps):
            yield from self._clear_results(message.content.time.created)
            self._add_call(message, number, step, is_only=len(steps) == 1)
            if is_kept:
                self._extend(message.id, _encode_step(step))
        if message.content.summary is True and message.content.finish and is_kept and self.request:
            yield from self.end()
            self._begin_anew(message.id)

    def _extend(self, message_id: str, entries: Iterable[_Entry]) -> None:
        new = list(entries)
        self.entries.setdefault(message_id, []).extend(new)
        self.history += new

    def _add_call(self, message: _StoredMessage, number: int, step: Sequence[_Part], *, is_only: bool) -> None:
        identity = f"{message.id}:{number}"
        if not self.history or identity in self.known_responses:
            return
        self.known_responses.add(identity)
        content = message.content
        reports = [part.tokens for part in step if part.type == "step-finish" and part.tokens is not None]
        tokens = content.tokens if is_only else next(iter(reports), None)
        usage = tokens.convert() if tokens is not None else None
        entries = tuple(entry.wire for entry in self.history)
        self.calls.append(ModelCall(entries, content.model_id, usage, content.time.created / 1_000))

    def _clear_results(self, now: float) -> Iterator[SessionConversation]:
        """Leaves results out that OpenCode had left out by `now`; yields the conversation before that."""
        places = [
            place
            for place, entry in enumerate(self.history)
            if entry.cleared_later is not None and _cleared_at(entry.cleared_later) <= now
        ]
        if places:
            yield from self.end()
        for place in places:
            part = self.history[place].cleared_later
            assert part is not None  # noqa: S101
            self.history[place] = _Entry(_encode_result(part, _CLEARED))

    def _begin_anew(self, summary: str) -> None:
        """Begins the list that OpenCode goes on with after a compaction."""
        ids = list(self.entries)
        tail: list[str] = []
        if self.tail_start in self.entries:
            tail = ids[ids.index(self.tail_start) : ids.index(self.request)]
        self.history = [entry for name in (self.request, summary, *tail) for entry in self.entries[name]]
        self.request, self.tail_start = "", None

    def end(self) -> Iterator[SessionConversation]:
        """Yields the conversation since the last compaction, if it has a request."""
        calls, self.calls = self.calls, []
        if not calls:
            return
        self.part += 1
        yield SessionConversation(
            file=self.file,
            line=0,
            name=self.id if self.part == 1 else f"{self.id} ({self.part})",
            session=self.root,
            calls=calls,
            path="/v1/chat/completions",
            write_body=_write_chat_body,
        )


def _split_steps(parts: Sequence[_Part]) -> list[list[_Part]]:
    """Splits a message into responses."""
    steps: list[list[_Part]] = [[]]
    for part in parts:
        if part.type == "step-start" and any(each.type == "step-start" for each in steps[-1]):
            steps.append([])
        steps[-1].append(part)
    return steps


def _is_sent_again(message: _StoredMessage) -> bool:
    """Whether later requests have a response: it did not fail, or was interrupted in the middle."""
    error = message.content.error
    return error is None or (
        error.get("name") == "MessageAbortedError"
        and any(part.type not in ("step-start", "reasoning") for part in message.parts)
    )


def _cleared_at(part: _Part) -> float:
    """Returns the time in milliseconds at which OpenCode left a result out; infinity if it did not."""
    time = part.state.time.compacted if part.state is not None else None
    return float("inf") if time is None else time


def _encode_user(parts: Sequence[_Part]) -> Iterator[_Entry]:
    blocks: list[dict[str, Any]] = []
    for part in parts:
        if part.type == "text" and not part.ignored:
            blocks.append({"type": "text", "text": part.text})
        elif part.type == "file" and part.mime not in _TEXT_FILES:
            blocks.append(_encode_file(part))
        elif part.type in ("compaction", "subtask"):
            blocks.append({"type": "text", "text": _COMPACTION if part.type == "compaction" else _SUBTASK})
    if blocks:
        content = blocks[0]["text"] if len(blocks) == 1 and "text" in blocks[0] else blocks
        yield _Entry(encode_json({"role": "user", "content": content}))


def _encode_file(part: _Part) -> dict[str, Any]:
    if part.mime.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": part.url}}
    return {"type": "file", "file": {"filename": part.filename or "file", "file_data": part.url}}


def _encode_step(parts: Sequence[_Part]) -> Iterator[_Entry]:
    """Yields a response with the results of its calls."""
    text = "".join(part.text for part in parts if part.type == "text")
    calls = [part for part in parts if part.type == "tool" and part.state is not None]
    if not text and not calls:
        return
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = [
            {
                "id": part.call_id,
                "type": "function",
                "function": {"name": part.tool, "arguments": encode_json(part.state and part.state.input).decode()},
            }
            for part in calls
        ]
    yield _Entry(encode_json(message))
    for part in calls:
        yield _Entry(_encode_result(part, _result_text(part)), part if _cleared_at(part) < float("inf") else None)


def _result_text(part: _Part) -> str:
    state = part.state
    if state is None or state.status not in ("completed", "error"):
        return _INTERRUPTED
    return state.output if state.status == "completed" else state.error


def _encode_result(part: _Part, text: str) -> bytes:
    return encode_json({"role": "tool", "tool_call_id": part.call_id, "content": text})


def _write_chat_body(call: ModelCall, model: str, preamble: str) -> bytes:
    system = [encode_json({"role": "system", "content": preamble})] if preamble else []
    return b'{"model":%b,"messages":[%b]}' % (encode_json(model), b",".join([*system, *call.entries]))


# -- Databases -------------------------------------------------------------------------------------------------------


def find_opencode_files(environ: Mapping[str, str]) -> tuple[Path, list[Path]]:
    """Returns the folder of OpenCode's data, and the databases and session files in it, the oldest file first.

    The databases come first: a session file whose messages were moved into one has nothing new.
    """
    home = Path(environ.get("HOME") or Path.home())
    folder = Path(environ.get("XDG_DATA_HOME") or home / ".local" / "share") / "opencode"
    files = (folder / "storage" / "session").glob("*/*.json")
    return folder, [
        *sorted(folder.glob("opencode*.db")),
        *sorted(files, key=lambda file: (file.stat().st_mtime, str(file))),
    ]


def read_opencode_database(
    file: str, known_responses: set[str], on_progress: Callable[[float], object]
) -> Iterator[SessionItem]:
    """Yields the conversations of a database, and what cannot be read. Reads only.

    `on_progress` gets the share of the sessions that were read. `known_responses` is that of `read_claude_code`.
    """
    try:
        # A database that OpenCode is writing stays as it is, and is not kept waiting.
        uri = f"{Path(file).resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS)) as database:
            yield from _read_sessions(file, database, known_responses, on_progress)
    except sqlite3.Error as error:
        yield MalformedTranscript(file, 0, f"no database of OpenCode that is known here: {error}")


def _read_sessions(
    file: str, database: sqlite3.Connection, known_responses: set[str], on_progress: Callable[[float], object]
) -> Iterator[SessionItem]:
    rows = database.execute("SELECT id, parent_id FROM session ORDER BY time_created, id").fetchall()
    parents = dict(rows)
    for number, (name, _) in enumerate(rows):
        on_progress(number / len(rows))
        session = _Session(file, name, _find_root(name, parents.get), known_responses)
        for item in _read_messages(file, database, name):
            if isinstance(item, MalformedTranscript):
                yield item
            else:
                yield from session.add(item)
        yield from session.end()
    on_progress(1.0)
    yield from _count_unread(file, database)


def _read_messages(
    file: str, database: sqlite3.Connection, session: str
) -> Iterator[_StoredMessage | MalformedTranscript]:
    """Yields the messages of a session, in order."""
    parts: dict[str, list[tuple[str, bytes]]] = {}
    query = "SELECT message_id, id, CAST(data AS BLOB) FROM part WHERE session_id = ? ORDER BY id"
    for message, part, data in database.execute(query, (session,)):
        parts.setdefault(message, []).append((part, data))
    query = "SELECT id, CAST(data AS BLOB) FROM message WHERE session_id = ? ORDER BY time_created, id"
    for name, data in database.execute(query, (session,)).fetchall():
        yield from _decode_message(file, (name, data), parts.get(name, ()))


def _decode_message(
    file: str, message: tuple[str, bytes], parts: Iterable[tuple[str, bytes]]
) -> Iterator[_StoredMessage | MalformedTranscript]:
    """Yields a message of `(id, JSON)` pairs, and the pieces that cannot be read; without them if there are any."""
    decoded: list[_Part] = []
    for name, data in parts:
        try:
            decoded.append(decode_line(data, _Part))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            yield MalformedTranscript(file, 0, f"{name}: no part of OpenCode that is known here: {error}")
    name, data = message
    try:
        yield _StoredMessage(name, decode_line(data, _Message), decoded)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        yield MalformedTranscript(file, 0, f"{name}: no message of OpenCode that is known here: {error}")


def _find_root(session: str, parent_of: Callable[[str], str | None]) -> str:
    """Returns the session that the first of the sub-agents above this one works for, or the session itself."""
    visited = {session}
    while (parent := parent_of(session)) and parent not in visited:
        visited.add(parent)
        session = parent
    return session


def _count_unread(file: str, database: sqlite3.Connection) -> Iterator[MalformedTranscript]:
    """Yields a remark if there are sessions of version 2, which has other tables."""
    if database.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'session_v2'").fetchone():
        (count,) = database.execute("SELECT count(*) FROM session_v2").fetchone()
        if count:
            sessions = count_with_noun(count, "session")
            reason = f"{sessions} of OpenCode 2 (table session_v2) not read: their format is not known here"
            yield MalformedTranscript(file, 0, reason)


# -- Files -----------------------------------------------------------------------------------------------------------


def is_opencode_session(file: Path) -> bool:
    """Whether a file is a session of OpenCode before its databases, by its place."""
    return file.suffix == ".json" and file.parent.parent.name == "session" and (file.parents[2] / "message").is_dir()


def read_opencode_session(file: str, known_responses: set[str]) -> Iterator[SessionItem]:
    """Yields the conversations of a session file and the files that belong to it, and what cannot be read."""
    path = Path(file)
    session = _Session(file, path.stem, _find_root(path.stem, lambda name: _read_parent(path, name)), known_responses)
    messages: list[_StoredMessage] = []
    for message in sorted((path.parents[2] / "message" / path.stem).glob("*.json")):
        parts = sorted((path.parents[2] / "part" / message.stem).glob("*.json"))
        pieces = [(str(part), part.read_bytes()) for part in parts]
        for item in _decode_message(str(message), (message.stem, message.read_bytes()), pieces):
            if isinstance(item, MalformedTranscript):
                yield item
            else:
                messages.append(item)
    for stored in sorted(messages, key=lambda each: (each.content.time.created, each.id)):
        yield from session.add(stored)
    yield from session.end()


def _read_parent(path: Path, session: str) -> str | None:
    """Returns the session that a session of the same project works for; None if its file does not say."""
    try:
        parent = json.loads(path.with_name(f"{session}.json").read_bytes()).get("parentID")
    except (OSError, ValueError, RecursionError, AttributeError):
        return None
    return parent if isinstance(parent, str) else None
