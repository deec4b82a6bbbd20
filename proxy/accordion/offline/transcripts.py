"""Recorded conversations: what a transcript file holds, and the requests that its agent made.

A transcript is a line of JSON: `messages` as in Chat Completions, and optionally `tools`, `model`, `id`, and `usage`:
one entry for each assistant message, in order, the provider's own `usage` object of that reply (`prompt_tokens`, ...)
or null where none was reported. Other fields are of no concern. A file may be gzipped.
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


class Transcript(msgspec.Struct, frozen=True):
    """One recorded conversation."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    model: str | None = None
    id: str | int | None = None
    usage: list[dict[str, Any] | None] | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """A transcript and where it stands. Lines are counted from 1."""

    file: str
    line: int
    transcript: Transcript

    @property
    def name(self) -> str:
        """What the conversation is called: its own id, else its place."""
        return f"{self.file}:{self.line}" if self.transcript.id is None else str(self.transcript.id)


@dataclass(frozen=True, slots=True)
class Malformed:
    """What could not be read, where, and why; line 0 stands for the file as a whole."""

    file: str
    line: int
    why: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.why}" if self.line else f"{self.file}: {self.why}"


@dataclass(frozen=True, slots=True)
class Request:
    """A request that the agent made: the answer to it was `messages[index]`. `body` is what its client sent."""

    index: int
    body: bytes
    usage: dict[str, Any] | None


class Source:
    """A file of transcripts, or the standard input (`-`)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.size = Path(name).stat().st_size if name != STDIN and Path(name).is_file() else 0
        """Bytes on disk; 0 where unknown."""
        self._raw: io.BufferedReader[Any] | None = None

    @property
    def position(self) -> int:
        """How many of these bytes were read so far."""
        return self._raw.tell() if self._raw is not None and self.size else 0

    def __iter__(self) -> Iterator[Recorded | Malformed]:
        """Every line, understood or not; empty ones are left out. Ends early where the file cannot be read on."""
        number = 0
        try:
            with self._open() as lines:
                for number, line in enumerate(lines, 1):
                    text = line.removeprefix(_BOM).strip() if number == 1 else line.strip()
                    if text:
                        yield self._understand(number, text)
        except OSError as error:
            yield Malformed(self.name, 0, error.strerror or str(error))
        except (EOFError, zlib.error) as error:
            yield Malformed(self.name, number + 1, f"the compressed data is incomplete or damaged here ({error})")

    @contextmanager
    def _open(self) -> Iterator[Iterable[bytes]]:
        with ExitStack() as stack:
            raw: io.BufferedReader[Any]
            if self.name == STDIN:
                raw = io.BufferedReader(cast(io.RawIOBase, sys.stdin.buffer))
                # Left open when we are done with it: it is not ours.
                stack.callback(raw.detach)
            else:
                raw = stack.enter_context(Path(self.name).open("rb"))
            self._raw = raw
            yield gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == _GZIP else raw

    def _understand(self, number: int, text: bytes) -> Recorded | Malformed:
        try:
            transcript = _decode(text)
            _check(transcript)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return Malformed(self.name, number, str(error))
        return Recorded(self.name, number, transcript)


def requests(transcript: Transcript, model: str | None = None) -> Iterator[Request]:
    """Every request that led to an assistant message, each with all messages before it; `model` replaces the recorded
    one. An assistant message that opens the list was not asked for."""
    fields: dict[str, Any] = {"model": model or transcript.model, "tools": transcript.tools}
    end = b"".join(b',"%s":%s' % (name.encode(), _json(value)) for name, value in fields.items() if value)
    body, usage = bytearray(b'{"messages":['), iter(transcript.usage or ())
    for index, message in enumerate(transcript.messages):
        if message.get("role") == "assistant":
            reported = next(usage, None)
            if index:
                yield Request(index, b"%b]%b}" % (bytes(body), end), reported)
        body += (b"," if index else b"") + _json(message)


def count_requests(transcript: Transcript) -> int:
    """How many requests `requests` gives."""
    return sum(message.get("role") == "assistant" for message in transcript.messages[1:])


def _json(value: Any) -> bytes:
    """JSON as OpenAI's SDK for Python writes it; a lone surrogate, which that cannot send, as its escape."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def _decode(text: bytes) -> Transcript:
    try:
        return msgspec.json.decode(text, type=Transcript)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        # Lone surrogates, which recorded tool results do hold, are beyond msgspec.
        return msgspec.convert(json.loads(text), Transcript)


def _check(transcript: Transcript) -> None:
    """Raises ValueError for what the types leave open."""
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
