"""Which files a client's own summary names, and which ours of the same length, at the same place of the same session.

Recorded sessions of Claude Code hold its own summaries, written by a model, as messages. The files that count are those
that the session's calls named since the summary before; "needed" are those of them that calls name again afterwards.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accordion.model.tenant import NO_TENANT
from accordion.protocols.body_reader import BodyReader
from accordion.protocols.openai_chat.protocol import OpenAIChat
from accordion.server.event_loop import LoopTasks
from accordion.summaries.author import SummaryAuthor, SummaryTask
from accordion.summaries.extractive import ExtractiveWriter, SourceMessage
from accordion.summaries.prompts import load_prompts

RECORDINGS = "coding_claude_code_joined.jsonl.gz"
_OPENING = "This session is being continued from a previous conversation"
_PATHS = ("file_path", "notebook_path", "path")

Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class Part:
    """What led to one summary of the client's, and which files calls named before it and after it."""

    messages: Messages
    summary: str
    touched: frozenset[str]
    needed: frozenset[str]

    def ours(self, author: SummaryAuthor) -> str:
        """Our extractive summary of the same messages, at most as long."""
        body = json.dumps({"model": "m", "messages": self.messages}).encode()
        found = BodyReader().read(OpenAIChat(), body, NO_TENANT).messages
        covered = tuple(SourceMessage(index, message) for index, message in enumerate(found))
        return author.write_extractive(SummaryTask("conversation", covered, (), len(self.summary), len)).text


def measure(folder: Path) -> dict[str, float]:
    """How many per cent of the files each names, over all summaries, and how many summaries and files there are."""
    parts = list(_parts(folder / RECORDINGS))
    author = SummaryAuthor(None, ExtractiveWriter(), LoopTasks(), load_prompts())
    ours = [part.ours(author) for part in parts]
    theirs = [part.summary for part in parts]
    figures = {"summaries": float(len(parts)), "files": float(sum(len(part.touched) for part in parts))}
    for name, texts in (("ours", ours), ("theirs", theirs)):
        figures[f"{name}, touched"] = _share([part.touched for part in parts], texts)
        figures[f"{name}, needed"] = _share([part.needed for part in parts], texts)
        figures[f"{name}, characters"] = sum(map(len, texts)) / max(1, len(texts))
    return figures


def _share(files: Sequence[frozenset[str]], texts: Sequence[str]) -> float:
    named = [file.rsplit("/", 1)[-1] in text for each, text in zip(files, texts, strict=True) for file in each]
    return 100 * sum(named) / max(1, len(named))


def _parts(recordings: Path) -> Iterator[Part]:
    with gzip.open(recordings, "rt") as lines:
        for line in lines:
            messages: Messages = json.loads(line)["messages"]
            places = [at for at, message in enumerate(messages) if _is_summary(message)]
            for before, at, after in zip([0, *places], places, [*places[1:], len(messages)], strict=False):
                touched = frozenset(_files(messages[before:at]))
                needed = touched & frozenset(_files(messages[at:after]))
                yield Part(messages[before:at], str(messages[at]["content"]), touched, needed)


def _is_summary(message: dict[str, Any]) -> bool:
    return message["role"] == "user" and str(message.get("content") or "").startswith(_OPENING)


def _files(messages: Messages) -> Iterator[str]:
    for message in messages:
        for call in message.get("tool_calls") or ():
            try:
                arguments = json.loads(call["function"]["arguments"])
            except ValueError:
                continue
            if isinstance(arguments, dict):
                yield from (str(arguments[key]) for key in _PATHS if "." in str(arguments.get(key, "")))
