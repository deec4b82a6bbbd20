"""Reads transcript files, and reconstructs the requests of the recorded agents.

A transcript is a line of JSON: `messages` as in Chat Completions, and optionally `tools`, `model`, `id`, and `usage`:
one entry for each assistant message, in order, with the provider's `usage` object of that response
(`prompt_tokens`, ...) or null. Other fields are ignored. A file may be gzipped.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec

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


@dataclass(frozen=True, slots=True)
class MalformedTranscript:
    """An unreadable line and the reason; line 0 means the whole file."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}" if self.line else f"{self.file}: {self.reason}"


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """A request of the agent, whose response was `messages[index]`. `body` is the request body."""

    index: int
    body: bytes
    usage: dict[str, Any] | None


class TranscriptSource:
    """A file of transcripts, or the standard input (`-`)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.size = Path(name).stat().st_size if name != STDIN and Path(name).is_file() else 0
        """Bytes on disk; 0 if unknown."""
        self._raw: io.BufferedReader[Any] | None = None

    @property
    def position(self) -> int:
        """The number of bytes that were read so far."""
        return self._raw.tell() if self._raw is not None and self.size else 0

    def __iter__(self) -> Iterator[RecordedTranscript | MalformedTranscript]:
        """Yields every line except empty ones, also malformed ones. Ends early after a read error."""
        number = 0
        try:
            with self._open() as lines:
                for number, line in enumerate(lines, 1):
                    text = line.removeprefix(_BOM).strip() if number == 1 else line.strip()
                    if text:
                        yield self._parse(number, text)
        except OSError as error:
            yield MalformedTranscript(self.name, 0, error.strerror or str(error))
        except (EOFError, zlib.error) as error:
            yield MalformedTranscript(
                self.name, number + 1, f"the compressed data is incomplete or damaged here ({error})"
            )

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
            transcript = _decode(text)
            _validate(transcript)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return MalformedTranscript(self.name, number, str(error))
        return RecordedTranscript(self.name, number, transcript)


def requests(transcript: TranscriptFile, model: str | None = None) -> Iterator[AgentRequest]:
    """Yields a request for every assistant message but a first one, with all messages before it.

    `model` replaces the recorded one.
    """
    fields: dict[str, Any] = {"model": model or transcript.model, "tools": transcript.tools}
    end = b"".join(b',"%s":%s' % (name.encode(), _json(value)) for name, value in fields.items() if value)
    body, usage = bytearray(b'{"messages":['), iter(transcript.usage or ())
    for index, message in enumerate(transcript.messages):
        if message.get("role") == "assistant":
            reported = next(usage, None)
            if index:
                yield AgentRequest(index, b"%b]%b}" % (bytes(body), end), reported)
        body += (b"," if index else b"") + _json(message)


def count_requests(transcript: TranscriptFile) -> int:
    """Counts the requests that `requests` yields."""
    return sum(message.get("role") == "assistant" for message in transcript.messages[1:])


def _json(value: Any) -> bytes:
    """Encodes JSON as OpenAI's Python SDK does, but a lone surrogate, which the SDK cannot send, as its escape."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def _decode(text: bytes) -> TranscriptFile:
    try:
        return msgspec.json.decode(text, type=TranscriptFile)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        # msgspec cannot decode lone surrogates, which occur in recorded tool results.
        return msgspec.convert(json.loads(text), TranscriptFile)


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
