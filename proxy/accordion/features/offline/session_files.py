"""Reads the session files that coding agents write, and reconstructs the requests that the agents sent.

A session file has the conversation, and what the provider reported for each response. It has no system prompt and no
tools. `SessionConversation.build_request` puts a text of a given number of tokens in their place.

Claude Code. `~/.claude/projects/PROJECT/SESSION.jsonl`, and files of sub-agents below. Anthropic documents the place
and calls the lines internal; this reader follows what Claude Code 2.1.197 writes, and the public descriptions in
`microsoft/amplifier` (ai_working/claude_code_logging/session_format_specification.md) and
`ticpu/claude-conversation-search-mcp` (docs/jsonl-format.md) on GitHub:

- A line has a `type`. `user` and `assistant` have a `message` of the Messages API; others (`system`, `attachment`,
  `summary`, `file-history-snapshot`, …) have none.
- `parentUuid` names the line before by its `uuid`. A line without one begins a list: the session itself, a sub-agent in
  the same file (`isSidechain`), or what Claude Code goes on with after it compacted (`compact_boundary`, then a user
  message with `isCompactSummary`). A user who goes back makes a second branch.
- One response has a line for each of its blocks, with the same `message.id`. The results of parallel calls are children
  of the lines of their calls.
- A session that is resumed may begin with a copy of the lines of an earlier file.

Codex. `~/.codex/sessions/YEAR/MONTH/DAY/rollout-TIME-ID.jsonl`. This reader follows what Codex 0.169.0 writes, and the
types of `RolloutItem` in the source of `openai/codex` on GitHub. A line has a `type` and a `payload`:

- `session_meta` has the instructions, `turn_context` the model.
- `response_item` is an entry of the list, from the client or from the model.
- `event_msg` of the type `token_count` has the report of the last response (`last_token_usage`), and the sum of all
  (`total_token_usage`). An event that repeats the sum is no report of a new response.
- `compacted` has the list that Codex goes on with (`replacement_history`), or in older versions only the summary.
- Until September 2025 a line was the item itself, after a first line with `id`, `timestamp` and `instructions`; lines
  with a `record_type` are marks. The first versions wrote one document instead, `sessions/rollout-TIME-ID.json`, with
  `session` and `items`. Neither has the model or a report.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import structs

from accordion.features.offline.recordings import AgentRequest, MalformedTranscript, decode_line, encode_json
from accordion.model.records import Usage
from accordion.providers.models.windows import LONG_CONTEXT_BETA

Lines = Iterable[tuple[int, bytes]]
"""The lines of a file that are not empty, with their numbers from 1."""
Headers = tuple[tuple[bytes, bytes], ...]

_SHORT_CONTEXT = 200_000
"""The longest prompt without Anthropic's flag for a window of a million tokens."""
_MAX_OUTPUT = 32_000
"""`max_tokens` of Claude Code's requests; the session file does not have it."""


class ModelCall(msgspec.Struct, frozen=True):
    """A request that was sent: the JSON of each entry of its list, the model, the report, and its time.

    `at` is in seconds since the epoch; 0 if it is not known. `caches_for_an_hour`: the report has cache writes for an
    hour.
    """

    entries: Sequence[bytes]
    model: str
    usage: Usage | None
    at: float
    caches_for_an_hour: bool = False


@dataclass(frozen=True, slots=True)
class SessionConversation:
    """A part of a session file in which each request repeats the one before. `line` is the line of its first request.

    `session` is the id of the agent's session; a session has several conversations if the agent compacted by itself,
    or had sub-agents.
    """

    file: str
    line: int
    name: str
    session: str
    calls: Sequence[ModelCall]
    path: str
    write_body: Callable[[ModelCall, str, str], bytes]
    """Returns a request body from the call, the model and the text in place of the system prompt."""
    headers: Headers = ()
    has_preamble: bool = False

    def requests(self, model: str | None = None, preamble_tokens: int = 0) -> Iterator[AgentRequest]:
        """Yields the requests. `model` replaces the recorded ones; `preamble_tokens` stand for what the file lacks."""
        preamble = write_filler(preamble_tokens)
        for call in self.calls:
            body = self.write_body(call, model or call.model, preamble)
            yield AgentRequest(len(call.entries), body, call.usage, call.at)

    def count_requests(self) -> int:
        """Counts the requests."""
        return len(self.calls)


SessionItem = SessionConversation | MalformedTranscript


def write_filler(tokens: int) -> str:
    """Returns a text of so many tokens, in place of a text that is not known."""
    return " ".join("a" * max(0, tokens))


# -- Claude Code ----------------------------------------------------------------------------------------------------


def find_claude_code_files(environ: Mapping[str, str]) -> tuple[Path, list[Path]]:
    """Returns the folder of Claude Code's sessions, and the files in it, the oldest first."""
    root = environ.get("CLAUDE_CONFIG_DIR") or Path(environ.get("HOME") or Path.home()) / ".claude"
    folder = Path(root) / "projects"
    return folder, sorted(folder.rglob("*.jsonl"), key=lambda file: (file.stat().st_mtime, str(file)))


class _CacheCreation(msgspec.Struct, frozen=True):
    ephemeral_1h_input_tokens: int | None = 0


class _ClaudeUsage(msgspec.Struct, frozen=True):
    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_input_tokens: int | None = 0
    cache_read_input_tokens: int | None = 0
    cache_creation: _CacheCreation | None = None

    def convert(self) -> Usage | None:
        """Returns the report; None if it has no input, as in a response that failed."""
        written, cached = self.cache_creation_input_tokens or 0, self.cache_read_input_tokens or 0
        total = self.input_tokens + written + cached
        return Usage(total, self.output_tokens, cached, written) if total else None


def convert_messages_usage(usage: dict[str, Any]) -> Usage | None:
    """Returns a report of the Messages API; None if it has no input. A count that is no whole number is taken for 0."""
    counts: dict[str, Any] = {
        name: count for name in _ClaudeUsage.__struct_fields__ if type(count := usage.get(name)) is int
    }
    return _ClaudeUsage(**counts).convert()


class _ClaudeMessage(msgspec.Struct, frozen=True):
    role: str
    content: str | list[dict[str, Any]]
    id: str = ""
    model: str = ""
    usage: _ClaudeUsage | None = None

    @property
    def blocks(self) -> list[dict[str, Any]]:
        """The blocks of the content."""
        return [{"type": "text", "text": self.content}] if isinstance(self.content, str) else self.content


class _ClaudeLine(msgspec.Struct, frozen=True, rename="camel"):
    type: str
    uuid: str = ""
    parent_uuid: str | None = None
    session_id: str = ""
    timestamp: str = ""
    is_api_error_message: bool = False
    is_visible_in_transcript_only: bool = False
    message: _ClaudeMessage | None = None


class _Node(msgspec.Struct):
    """A line in the tree of a session; `role` is empty if the model does not see it."""

    line: int
    parent: str | None
    role: str = ""
    blocks: Sequence[dict[str, Any]] = ()
    message_id: str = ""


class _ClaudeResponse(msgspec.Struct):
    """A response: its lines, its parent, and what the last line says of it."""

    line: int
    parent: str | None
    session: str
    at: float
    nodes: list[str]
    model: str = ""
    usage: Usage | None = None
    caches_for_an_hour: bool = False
    is_recorded: bool = False
    """Whether another file has it too, and was read before."""


@dataclass(slots=True)
class _ClaudeTree:
    """The tree of a session file."""

    known_responses: set[str]
    nodes: dict[str, _Node] = field(default_factory=dict)
    responses: dict[str, _ClaudeResponse] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)
    """The lines with the results of calls, by the id of the call."""
    _encoded: dict[tuple[str, ...], bytes] = field(default_factory=dict)

    def add(self, number: int, line: _ClaudeLine) -> None:
        """Adds a line. Raises ValueError if it is none of Claude Code's."""
        if line.type not in ("user", "assistant"):
            if line.uuid:
                self.nodes[line.uuid] = _Node(number, line.parent_uuid)
            return
        message = line.message
        if message is None or message.role != line.type or not line.uuid:
            raise ValueError(f"a line of the type `{line.type}` without its message or `uuid`")
        node = self.nodes[line.uuid] = _Node(number, line.parent_uuid)
        if line.is_api_error_message or line.is_visible_in_transcript_only or message.model == "<synthetic>":
            return
        node.role, node.blocks, node.message_id = line.type, message.blocks, message.id or line.uuid
        if line.type == "assistant":
            self._add_response(number, line, message, node.message_id)
        for block in node.blocks:
            if block.get("type") == "tool_result":
                self.results[str(block.get("tool_use_id"))] = line.uuid

    def _add_response(self, number: int, line: _ClaudeLine, message: _ClaudeMessage, message_id: str) -> None:
        response = self.responses.get(message_id)
        if response is None:
            at = datetime.fromisoformat(line.timestamp).timestamp() if line.timestamp else 0.0
            response = _ClaudeResponse(number, line.parent_uuid, line.session_id, at, [])
            response.is_recorded = message_id in self.known_responses
            self.responses[message_id] = response
            self.known_responses.add(message_id)
        response.nodes.append(line.uuid)
        response.model = message.model
        if message.usage is not None:
            response.usage = message.usage.convert() or response.usage
            written = message.usage.cache_creation
            response.caches_for_an_hour = written is not None and bool(written.ephemeral_1h_input_tokens)

    def conversations(self, file: str) -> Iterator[SessionConversation]:
        """Yields a conversation for each line without a parent that has responses."""
        by_root: dict[str, list[_ClaudeResponse]] = {}
        paths: dict[str, list[str]] = {}
        for response in self.responses.values():
            path = self._find_path(response.parent)
            if path and not response.is_recorded:
                by_root.setdefault(path[0], []).append(response)
                paths[response.nodes[0]] = path
        stem = Path(file).stem
        for part, responses in enumerate(by_root.values(), 1):
            calls = [
                ModelCall(
                    self._list_entries(paths[each.nodes[0]]), each.model, each.usage, each.at, each.caches_for_an_hour
                )
                for each in responses
            ]
            is_long = any(call.usage is not None and call.usage.input > _SHORT_CONTEXT for call in calls)
            yield SessionConversation(
                file=file,
                line=responses[0].line,
                name=stem if part == 1 else f"{stem} ({part})",
                session=responses[0].session or stem,
                calls=calls,
                path="/v1/messages",
                write_body=_write_messages_body,
                headers=((b"anthropic-beta", LONG_CONTEXT_BETA.encode()),) if is_long else (),
            )

    def _find_path(self, uuid: str | None) -> list[str]:
        """Returns the lines from the first one to `uuid`."""
        path: list[str] = []
        visited: set[str] = set()
        while uuid is not None and uuid not in visited and (node := self.nodes.get(uuid)) is not None:
            path.append(uuid)
            visited.add(uuid)
            uuid = node.parent
        return path[::-1]

    def _list_entries(self, path: Sequence[str]) -> list[bytes]:
        """Returns the messages that the model read: responses whole, and the results of all their calls."""
        on_path, added = set(path), set[str]()
        messages: list[tuple[str, list[str]]] = []

        def add(role: str, lines: Sequence[str]) -> None:
            added.update(lines)
            if messages and messages[-1][0] == role:
                messages[-1][1].extend(lines)
            else:
                messages.append((role, list(lines)))

        for uuid in path:
            node = self.nodes[uuid]
            if not node.role or uuid in added:
                continue
            if node.role == "user":
                add("user", [uuid])
                continue
            add("assistant", self.responses[node.message_id].nodes)
            others = [result for result in self._results_of(node.message_id) if result not in on_path | added]
            if others:
                add("user", list(dict.fromkeys(others)))
        return [self._encode(role, tuple(lines)) for role, lines in messages]

    def _results_of(self, message_id: str) -> Iterator[str]:
        for uuid in self.responses[message_id].nodes:
            for block in self.nodes[uuid].blocks:
                if block.get("type") == "tool_use" and (result := self.results.get(str(block.get("id")))):
                    yield result

    def _encode(self, role: str, lines: tuple[str, ...]) -> bytes:
        encoded = self._encoded.get(lines)
        if encoded is None:
            blocks = [block for uuid in lines for block in self.nodes[uuid].blocks]
            encoded = self._encoded[lines] = encode_json({"role": role, "content": blocks})
        return encoded


def read_claude_code(file: str, lines: Lines, known_responses: set[str]) -> Iterator[SessionItem]:
    """Yields the conversations of a session file, and the lines that cannot be read.

    Responses in `known_responses` were read from another file and are left out; those of this file are added.
    """
    tree = _ClaudeTree(known_responses)
    for number, text in lines:
        try:
            tree.add(number, decode_line(text, _ClaudeLine))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            yield MalformedTranscript(
                file, number, f"no line of Claude Code that is known here: {error}{_version(text)}"
            )
    yield from tree.conversations(file)


def _version(text: bytes) -> str:
    """Returns the version of the agent that wrote a line, as a remark; empty if the line does not say it."""
    try:
        version = json.loads(text).get("version")
    except (ValueError, RecursionError, AttributeError):
        return ""
    return f" (version {version})" if isinstance(version, str) else ""


def _write_messages_body(call: ModelCall, model: str, preamble: str) -> bytes:
    system = b'"system":[{"type":"text","text":%b}],' % encode_json(preamble) if preamble else b""
    cache = b'"cache_control":{"type":"ephemeral","ttl":"1h"},' if call.caches_for_an_hour else b""
    return b'{"model":%b,"max_tokens":%d,%b%b"messages":[%b]}' % (
        encode_json(model),
        _MAX_OUTPUT,
        cache,
        system,
        b",".join(call.entries),
    )


# -- Codex ----------------------------------------------------------------------------------------------------------


def find_codex_files(environ: Mapping[str, str]) -> tuple[Path, list[Path]]:
    """Returns the folder of Codex's sessions, and the files in it, the oldest first."""
    root = environ.get("CODEX_HOME") or Path(environ.get("HOME") or Path.home()) / ".codex"
    folder = Path(root) / "sessions"
    return folder, [*sorted(folder.glob("rollout-*.json")), *sorted(folder.rglob("rollout-*.jsonl"))]


class _CodexLine(msgspec.Struct, frozen=True):
    type: str
    payload: dict[str, Any]
    timestamp: str = ""


class _CodexReport(msgspec.Struct, frozen=True):
    input_tokens: int
    output_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_input_tokens: int = 0


class _CodexTotals(msgspec.Struct, frozen=True):
    last_token_usage: _CodexReport
    total_token_usage: _CodexReport


_CODEX_LINES = frozenset({"session_meta", "turn_context", "response_item", "event_msg", "compacted"})
_OLD_CODEX_FIELDS = frozenset({"id", "timestamp", "instructions"})
"""The fields of the first line of an older file."""
_MODEL_ITEMS = ("reasoning", "_call")
"""Endings of the types of items that a model writes, besides messages of the assistant."""
_INTERNAL_FIELD = "internal_chat_message_metadata_passthrough"


def is_model_item(item: Mapping[str, Any]) -> bool:
    """Whether an entry of a list of Responses is the model's."""
    return item.get("role") == "assistant" or str(item.get("type", "")).endswith(_MODEL_ITEMS)


@dataclass(slots=True)
class _CodexSession:
    """A session file, as far as it was read: the list, and the requests since the last compaction."""

    file: str
    known_responses: set[str]
    session: str = ""
    instructions: str = ""
    model: str = ""
    part: int = 0
    line: int = 0
    history: list[bytes] = field(default_factory=list)
    user_messages: list[bytes] = field(default_factory=list)
    calls: list[ModelCall] = field(default_factory=list)
    is_response: bool = False
    """Whether the last item is the model's."""
    has_report: bool = True
    """Whether the last response was reported, or belongs to another file."""
    total: _CodexReport | None = None

    def add(self, number: int, line: _CodexLine) -> SessionConversation | None:
        """Adds a line; returns the conversation that it ends. Raises msgspec.ValidationError."""
        payload = line.payload
        if line.type == "session_meta":
            # A fork repeats the beginning of its origin, whose line comes second.
            self.session = self.session or str(payload.get("id", ""))
            base = payload.get("base_instructions")
            text = base.get("text") if isinstance(base, dict) else payload.get("instructions")
            self.instructions = text if isinstance(text, str) else ""
        elif line.type == "turn_context":
            self.model = str(payload.get("model", ""))
        elif line.type == "response_item":
            self._add_item(number, payload, line.timestamp)
        elif line.type == "event_msg" and payload.get("type") == "token_count" and payload.get("info"):
            self._add_report(msgspec.convert(payload["info"], _CodexTotals))
        elif line.type == "compacted":
            return self._compact(payload)
        return None

    def _add_item(self, number: int, item: dict[str, Any], timestamp: str) -> None:
        role, is_response = item.get("role"), is_model_item(item)
        if is_response and not self.is_response:
            identity = str(item.get("id") or "")
            self.has_report = bool(identity) and identity in self.known_responses
            if not self.has_report:
                self.known_responses.add(identity)
                self.line = self.line or number
                at = datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0
                self.calls.append(ModelCall(tuple(self.history), self.model, None, at))
        self.is_response = is_response
        entry = encode_json({name: value for name, value in item.items() if name != _INTERNAL_FIELD})
        self.history.append(entry)
        if role == "user":
            self.user_messages.append(entry)

    def _add_report(self, totals: _CodexTotals) -> None:
        is_new, self.total = totals.total_token_usage != self.total, totals.total_token_usage
        if not is_new or self.has_report or not self.calls:
            return
        last = totals.last_token_usage
        usage = Usage(last.input_tokens, last.output_tokens, last.cached_input_tokens, last.cache_write_input_tokens)
        self.calls[-1] = structs.replace(self.calls[-1], usage=usage)
        self.has_report = True

    def _compact(self, payload: dict[str, Any]) -> SessionConversation | None:
        conversation = self.end()
        items = payload.get("replacement_history")
        if isinstance(items, list):
            self.history = [encode_json(item) for item in items]
        else:
            content = [{"type": "input_text", "text": str(payload.get("message", ""))}]
            summary = encode_json({"type": "message", "role": "user", "content": content})
            self.history = [*self.user_messages, summary]
        self.is_response = False
        return conversation

    def end(self) -> SessionConversation | None:
        """Returns the conversation since the last compaction; None if it has no request."""
        calls, line, self.calls, self.line = self.calls, self.line, [], 0
        if not calls:
            return None
        self.part += 1
        stem = Path(self.file).stem
        return SessionConversation(
            file=self.file,
            line=line,
            name=stem if self.part == 1 else f"{stem} ({self.part})",
            session=self.session or stem,
            calls=calls,
            path="/v1/responses",
            write_body=partial(_write_responses_body, self.instructions),
        )


def read_codex(file: str, lines: Lines, known_responses: set[str]) -> Iterator[SessionItem]:
    """Yields the conversations of a session file, and the lines that cannot be read, as `read_claude_code` does."""
    session = _CodexSession(file, known_responses)
    for number, text in lines:
        try:
            line = _read_codex_line(decode_line(text, dict[str, Any]))
            conversation = session.add(number, line) if line is not None else None
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            yield MalformedTranscript(file, number, f"no line of Codex that is known here: {error}")
            continue
        if conversation is not None:
            yield conversation
    if (conversation := session.end()) is not None:
        yield conversation


def _read_codex_line(value: dict[str, Any]) -> _CodexLine | None:
    """Returns a line in the current format; None for an older one without content. Raises msgspec.ValidationError."""
    if "record_type" in value:
        return None
    if "payload" not in value and "type" in value:
        return _CodexLine("response_item", value)
    if "payload" not in value and value.keys() >= _OLD_CODEX_FIELDS:
        return _CodexLine("session_meta", value)
    return msgspec.convert(value, _CodexLine)


class _CodexDocument(msgspec.Struct, frozen=True):
    session: dict[str, Any]
    items: list[dict[str, Any]]


def is_codex_document(file: Path) -> bool:
    """Whether a file is a session of the first versions of Codex, by its name."""
    return file.suffix == ".json" and file.name.startswith("rollout-")


def read_codex_document(file: str, known_responses: set[str]) -> Iterator[SessionItem]:
    """Yields the conversation of a document of the first versions of Codex, or that it cannot be read."""
    session = _CodexSession(file, known_responses)
    try:
        document = decode_line(Path(file).read_bytes(), _CodexDocument)
        for line in (_CodexLine("session_meta", document.session), *map(_item_line, document.items)):
            session.add(1, line)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        yield MalformedTranscript(file, 0, f"no document of Codex that is known here: {error}")
        return
    if (conversation := session.end()) is not None:
        yield conversation


def _item_line(item: dict[str, Any]) -> _CodexLine:
    return _CodexLine("response_item", item)


def _write_responses_body(instructions: str, call: ModelCall, model: str, preamble: str) -> bytes:
    fields = encode_json({"model": model, "instructions": f"{instructions}\n{preamble}"})
    return b'%b,"input":[%b]}' % (fields[:-1], b",".join(call.entries))


# -- Recognition ----------------------------------------------------------------------------------------------------

_CLAUDE_CODE_FIELDS = frozenset({"sessionId", "leafUuid", "parentUuid", "messageId"})
"""Every line of Claude Code has one of these."""
_LISTS = ("messages", "input")
"""The fields of a list of a transcript, whose other fields may be those of an older Codex."""


Format = Literal["claude_code", "codex", "transcript"]


def recognize(text: bytes) -> Format | None:
    """Returns the format of the file that has this line; None if the line is broken, so that it does not say."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return "transcript"
    if "type" not in value:
        is_codex = "record_type" in value or value.keys() >= _OLD_CODEX_FIELDS
        return "codex" if is_codex and value.keys().isdisjoint(_LISTS) else "transcript"
    if "payload" in value and value["type"] in _CODEX_LINES:
        return "codex"
    return "transcript" if _CLAUDE_CODE_FIELDS.isdisjoint(value) else "claude_code"
