"""Reads transcript files, and reconstructs the requests of the recorded agents.

A transcript is a line of JSON: the fields of a last request, whose list has the last response, too. It has `messages`
as in Chat Completions or Messages, or `input` as in Responses, and optionally `tools`, `model`, `system` or
`instructions`, `id`, and `usage`: one entry for each response, in order, with the provider's `usage` object of that
response or null. Other fields are ignored. `messages` are those of Messages if the line has a `system`, a block or a
tool that Chat Completions does not know. A file may be gzipped. A file that begins like a session file of a coding
agent is read by `session_files`, a database or session of OpenCode by `opencode_sessions`, a document or
a line in ATIF by `trajectories`.
"""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from accordion.features.offline import opencode_sessions, session_files, trajectories
from accordion.features.offline.recordings import (
    AgentRequest,
    MalformedTranscript,
    PastConversation,
    decode_line,
    encode_json,
)
from accordion.features.offline.session_files import is_model_item
from accordion.model.records import Usage

Protocol = Literal["chat", "messages", "responses"]

STDIN = "-"
_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
_ANTHROPIC_BLOCKS = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document"})
_MAX_OUTPUT = 32_000
"""`max_tokens` of requests of Messages, which a transcript does not have."""


class TranscriptFile(msgspec.Struct, frozen=True):
    """One recorded conversation."""

    messages: list[dict[str, Any]] | None = None
    input: list[dict[str, Any]] | None = None
    system: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    model: str | None = None
    id: str | int | None = None
    usage: list[dict[str, Any] | None] | None = None

    @property
    def protocol(self) -> Protocol:
        """The protocol of the requests."""
        if self.input is not None:
            return "responses"
        is_messages = self.system is not None or any("input_schema" in tool for tool in self.tools or ())
        return "messages" if is_messages or any(map(_has_anthropic_block, self.entries)) else "chat"

    @property
    def entries(self) -> list[dict[str, Any]]:
        """The list."""
        return self.input if self.input is not None else self.messages or []

    def responses(self) -> Iterator[int]:
        """Yields the place in the list at which each response begins."""
        has_items = self.protocol == "responses"
        was_item = False
        for index, entry in enumerate(self.entries):
            is_item = has_items and is_model_item(entry)
            if (is_item and not was_item) or (not has_items and entry.get("role") == "assistant"):
                yield index
            was_item = is_item


def _has_anthropic_block(message: dict[str, Any]) -> bool:
    content = message.get("content")
    blocks = content if isinstance(content, list) else ()
    return any(isinstance(block, dict) and block.get("type") in _ANTHROPIC_BLOCKS for block in blocks)


@dataclass(frozen=True, slots=True)
class RecordedTranscript:
    """A transcript with its file and line. Lines are counted from 1."""

    file: str
    line: int
    transcript: TranscriptFile

    @property
    def name(self) -> str:
        """The name of the conversation: its id, or else its file and line."""
        return f"{self.file}:{self.line}" if self.transcript.id is None else str(self.transcript.id)

    @property
    def session(self) -> str:
        """The session: the conversation itself."""
        return self.name

    @property
    def path(self) -> str:
        """The path of the requests."""
        return _PATHS[self.transcript.protocol]

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """Headers of the requests."""
        return ()

    @property
    def has_preamble(self) -> bool:
        """Whether the system prompt and the tools are in the requests."""
        return True

    def requests(self, model: str | None = None, preamble_tokens: int = 0) -> Iterator[AgentRequest]:
        """Yields the requests; `model` replaces the recorded one."""
        return requests(self.transcript, model)

    def count_requests(self) -> int:
        """Counts the requests."""
        return count_requests(self.transcript)


class TranscriptSource:
    """A file of transcripts, the session file of a coding agent, or the standard input (`-`).

    Sources that share `known_responses` leave out the responses that an earlier one has, too.
    """

    def __init__(self, name: str, known_responses: set[str] | None = None) -> None:
        self.name = name
        self.size = Path(name).stat().st_size if name != STDIN and Path(name).is_file() else 0
        """Bytes on disk; 0 if unknown."""
        self._known_responses = set() if known_responses is None else known_responses
        self._raw: io.BufferedReader[Any] | None = None
        self._read_share = 0.0
        """The share of a database that was read so far."""
        self._number = 0

    @property
    def position(self) -> int:
        """The number of bytes that were read so far."""
        return self._raw.tell() if self._raw is not None and self.size else int(self.size * self._read_share)

    def __iter__(self) -> Iterator[PastConversation | MalformedTranscript]:
        """Yields every conversation, and every line that is malformed. Ends early after a read error."""
        try:
            yield from self._read_documents() or self._read_lines()
        except OSError as error:
            yield MalformedTranscript(self.name, 0, error.strerror or str(error))
        except (EOFError, zlib.error) as error:
            yield MalformedTranscript(
                self.name, self._number + 1, f"the compressed data is incomplete or damaged here ({error})"
            )

    def _read_documents(self) -> Iterator[PastConversation | MalformedTranscript] | None:
        """Returns the conversations of a file of an agent that has no lines; None for any other. Raises OSError."""
        path = Path(self.name)
        if self.name == STDIN or not path.is_file():
            return None
        with path.open("rb") as file:
            if file.read(len(opencode_sessions.SQLITE_MAGIC)) == opencode_sessions.SQLITE_MAGIC:
                return opencode_sessions.read_opencode_database(self.name, self._known_responses, self._set_share)
        if session_files.is_codex_document(path):
            return session_files.read_codex_document(self.name, self._known_responses)
        if opencode_sessions.is_opencode_session(path):
            return opencode_sessions.read_opencode_session(self.name, self._known_responses)
        if trajectories.is_trajectory_file(path):
            return trajectories.read_trajectory(self.name, 0, path.read_bytes())
        return None

    def _set_share(self, share: float) -> None:
        self._read_share = share

    def _read_lines(self) -> Iterator[PastConversation | MalformedTranscript]:
        with self._open() as lines:
            yield from self._read(self._number_lines(lines))

    def _number_lines(self, lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
        """Yields the lines that are not empty, with their numbers."""
        for self._number, line in enumerate(lines, 1):
            text = line.removeprefix(_BOM).strip() if self._number == 1 else line.strip()
            if text:
                yield self._number, text

    def _read(self, lines: Iterator[tuple[int, bytes]]) -> Iterator[PastConversation | MalformedTranscript]:
        first_lines: list[tuple[int, bytes]] = []
        form = None
        while form is None and (line := next(lines, None)) is not None:
            first_lines.append(line)
            form = session_files.recognize(line[1])
        lines = chain(first_lines, lines)
        reader = _READERS.get(form or "transcript")
        if reader is not None:
            yield from reader(self.name, lines, self._known_responses)
            return
        for number, text in lines:
            if trajectories.is_trajectory(text):
                yield from trajectories.read_trajectory(self.name, number, text)
            else:
                yield self._parse(number, text)

    @contextmanager
    def _open(self) -> Iterator[Iterable[bytes]]:
        with ExitStack() as stack:
            raw: io.BufferedReader[Any]
            if self.name == STDIN:
                raw = io.BufferedReader(cast(io.RawIOBase, sys.stdin.buffer))
                # The standard input stays open.
                stack.callback(raw.detach)
            else:
                raw = stack.enter_context(Path(self.name).open("rb"))
            self._raw = raw
            yield gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == _GZIP else raw

    def _parse(self, number: int, text: bytes) -> RecordedTranscript | MalformedTranscript:
        try:
            transcript = decode_line(text, TranscriptFile)
            _validate(transcript)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return MalformedTranscript(self.name, number, str(error))
        return RecordedTranscript(self.name, number, transcript)


_READERS = {"claude_code": session_files.read_claude_code, "codex": session_files.read_codex}
_FINDERS = {
    "Claude Code": session_files.find_claude_code_files,
    "Codex": session_files.find_codex_files,
    "OpenCode": opencode_sessions.find_opencode_files,
}
"""Functions that find the session files of an agent, by its name."""


def find_sources(files: Sequence[str], agents: Iterable[str], environ: Mapping[str, str]) -> list[TranscriptSource]:
    """Returns the files, and the session files of the agents. Raises FileNotFoundError if an agent has none."""
    found = list(files)
    for agent in agents:
        folder, session_paths = _FINDERS[agent](environ)
        if not session_paths:
            raise FileNotFoundError(f"there is no session file of {agent} in {folder}")
        found += map(str, session_paths)
    known_responses: set[str] = set()
    return [TranscriptSource(name, known_responses) for name in found]


def requests(transcript: TranscriptFile, model: str | None = None) -> Iterator[AgentRequest]:
    """Yields a request for every response but one at the beginning, with all entries before it.

    `model` replaces the recorded one.
    """
    protocol, entries = transcript.protocol, transcript.entries
    fields: dict[str, Any] = {"model": model or transcript.model, "tools": transcript.tools}
    if protocol == "messages":
        fields |= {"system": transcript.system, "max_tokens": _MAX_OUTPUT}
    elif protocol == "responses":
        fields |= {"instructions": transcript.instructions}
    end = b"".join(b',"%s":%s' % (name.encode(), encode_json(value)) for name, value in fields.items() if value)
    body, written = bytearray(b'{"%b":[' % (b"input" if protocol == "responses" else b"messages")), 0
    usage = iter(transcript.usage or ())
    for index in transcript.responses():
        body += b"".join((b"," if place else b"") + encode_json(entries[place]) for place in range(written, index))
        reported, written = next(usage, None), index
        if index:
            yield AgentRequest(index, b"%b]%b}" % (bytes(body), end), _convert_usage(reported, protocol))


def count_requests(transcript: TranscriptFile) -> int:
    """Counts the requests that `requests` yields."""
    return sum(index > 0 for index in transcript.responses())


def _convert_usage(usage: dict[str, Any] | None, protocol: Protocol) -> Usage | None:
    if usage is None:
        return None
    if protocol == "messages":
        return session_files.convert_messages_usage(usage)
    names = ("prompt", "completion") if protocol == "chat" else ("input", "output")
    details = usage.get(f"{names[0]}_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    counts = (*(usage.get(f"{name}_tokens") for name in names), cached)
    return Usage(*(count if type(count) is int else 0 for count in counts))


def _validate(transcript: TranscriptFile) -> None:
    """Checks the values that the types do not restrict. Raises ValueError."""
    if (transcript.messages is None) == (transcript.input is None):
        raise ValueError("a transcript needs `messages` (of Chat Completions or Messages), or `input` (of Responses)")
    for index, message in enumerate(transcript.messages or ()):
        if not isinstance(message.get("role"), str):
            raise ValueError(f"the message has no role - at `$.messages[{index}]`")
    if transcript.usage is None:
        return
    count = sum(1 for _ in transcript.responses())
    if len(transcript.usage) != count:
        raise ValueError(
            f"{len(transcript.usage)} entries for {count} responses (use null where no usage was reported)"
            " - at `$.usage`"
        )
    name = "prompt_tokens" if transcript.protocol == "chat" else "input_tokens"
    for index, usage in enumerate(transcript.usage):
        if usage is not None and type(usage.get(name)) is not int:
            raise ValueError(f"no whole number `{name}` - at `$.usage[{index}]`")
