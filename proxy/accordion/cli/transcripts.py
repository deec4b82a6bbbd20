"""Reads transcript files, and reconstructs the requests of the recorded agents.

A transcript is a line of JSON: `messages` as in Chat Completions, and optionally `tools`, `model`, `id`, and `usage`:
one entry for each assistant message, in order, with the provider's `usage` object of that response
(`prompt_tokens`, ...) or null. Other fields are ignored. A file may be gzipped. A file that begins like a session file
of a coding agent is read by `session_files`.
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
from typing import Any, cast

import msgspec

from accordion.cli import opencode_sessions, session_files
from accordion.cli.recordings import (
    AgentRequest,
    MalformedTranscript,
    PastConversation,
    decode_line,
    encode_json,
)
from accordion.model.records import Usage

STDIN = "-"
_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"


class TranscriptFile(msgspec.Struct, frozen=True):
    """One recorded conversation."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    model: str | None = None
    id: str | int | None = None
    usage: list[dict[str, Any] | None] | None = None


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
        return "/v1/chat/completions"

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
            yield from self._read_opencode() or self._read_lines()
        except OSError as error:
            yield MalformedTranscript(self.name, 0, error.strerror or str(error))
        except (EOFError, zlib.error) as error:
            yield MalformedTranscript(
                self.name, self._number + 1, f"the compressed data is incomplete or damaged here ({error})"
            )

    def _read_opencode(self) -> Iterator[PastConversation | MalformedTranscript] | None:
        """Returns the conversations of a database or session of OpenCode; None for any other file. Raises OSError."""
        path = Path(self.name)
        if self.name == STDIN or not path.is_file():
            return None
        with path.open("rb") as file:
            if file.read(len(opencode_sessions.SQLITE_MAGIC)) == opencode_sessions.SQLITE_MAGIC:
                return opencode_sessions.read_opencode_database(self.name, self._known_responses, self._set_share)
        if opencode_sessions.is_opencode_session(path):
            return opencode_sessions.read_opencode_session(self.name, self._known_responses)
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
    """Yields a request for every assistant message but a first one, with all messages before it.

    `model` replaces the recorded one.
    """
    fields: dict[str, Any] = {"model": model or transcript.model, "tools": transcript.tools}
    end = b"".join(b',"%s":%s' % (name.encode(), encode_json(value)) for name, value in fields.items() if value)
    body, usage = bytearray(b'{"messages":['), iter(transcript.usage or ())
    for index, message in enumerate(transcript.messages):
        if message.get("role") == "assistant":
            reported = next(usage, None)
            if index:
                yield AgentRequest(index, b"%b]%b}" % (bytes(body), end), _convert_usage(reported))
        body += (b"," if index else b"") + encode_json(message)


def count_requests(transcript: TranscriptFile) -> int:
    """Counts the requests that `requests` yields."""
    return sum(message.get("role") == "assistant" for message in transcript.messages[1:])


def _convert_usage(usage: dict[str, Any] | None) -> Usage | None:
    if usage is None:
        return None
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    counts = (usage.get("prompt_tokens"), usage.get("completion_tokens"), cached)
    return Usage(*(count if type(count) is int else 0 for count in counts))


def _validate(transcript: TranscriptFile) -> None:
    """Checks the values that the types do not restrict. Raises ValueError."""
    for index, message in enumerate(transcript.messages):
        if not isinstance(message.get("role"), str):
            raise ValueError(f"the message has no role - at `$.messages[{index}]`")
    if transcript.usage is None:
        return
    replies = sum(message["role"] == "assistant" for message in transcript.messages)
    if len(transcript.usage) != replies:
        raise ValueError(
            f"{len(transcript.usage)} entries for {replies} assistant messages (use null where no usage was reported)"
            " - at `$.usage`"
        )
    for index, usage in enumerate(transcript.usage):
        if usage is not None and type(usage.get("prompt_tokens")) is not int:
            raise ValueError(f"no whole number `prompt_tokens` - at `$.usage[{index}]`")
