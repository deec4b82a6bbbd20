"""Names the files that were worked on: a record of Accordion beside a client's own summary of the same length.

Recordings of Claude Code have the summaries that its model wrote. Each stands for the messages since the one before.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from accordion.model.tenant import TenantScope
from accordion.protocols.registry import PROTOCOLS
from accordion.protocols.written_messages import read_written_message
from accordion.providers.models.tokenizer import TiktokenCounter
from accordion.server.event_loop import LoopTasks
from accordion.summaries.author import SummaryAuthor, SummaryTask
from accordion.summaries.extractive import ExtractiveWriter, SourceMessage
from accordion.summaries.prompts import load_prompts
from bench.report import Table
from bench.run_settings import RunSettings
from bench.servers import Unavailable

RECORDINGS: Final = ("coding_claude_code", "coding_claude_code_joined")
_OPENING: Final = "This session is being continued"
"""How a summary of Claude Code begins."""
_EDITORS: Final = frozenset({"Edit", "Write", "MultiEdit", "NotebookEdit"})
_READERS: Final = frozenset({"Read"})
_MIN_FILES: Final = 5

Entry = dict[str, Any]


class Span(NamedTuple):
    """Messages of a recording, and the client's summary of them."""

    name: str
    messages: list[Entry]
    summary: str


def run(setting: RunSettings) -> list[Table]:
    folder = setting.data or (setting.tools.resolve().parent / "data" / "trajectories" if setting.tools else None)
    if folder is None or not all((folder / f"{name}.jsonl.gz").is_file() for name in RECORDINGS):
        raise Unavailable(f"files: say where {' and '.join(RECORDINGS)} are, by --data FOLDER or BENCH_DATA")
    columns = (
        "summary",
        "tokens",
        "files",
        "named by it, %",
        "by the record, %",
        "edited",
        "by it, %",
        "by the record, %",
    )
    table = Table("Files that were worked on, named by a summary of the same length", columns)
    spans = list(_spans(folder))
    totals = [0] * 6
    for span in spans[: setting.fewer(len(spans), 2)]:
        tokens, record = _write_record(span)
        counts = [
            count
            for tools in (_EDITORS | _READERS, _EDITORS)
            for count in _count_named(_files(span.messages, tools), span.summary, record)
        ]
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        table.rows.append([span.name, tokens, *_shares(counts)])
    table.rows.append(["all", None, *_shares(totals)])
    table.notes.append(
        "a file is named where its name stands in the text; the record is the extractive writer's, without references"
    )
    table.notes.append("recordings without a client's summary, or with fewer than five files before it, are left out")
    table.goal(
        "files named by the record", 100 * totals[2] / totals[0], 100 * totals[1] / totals[0], "%", at_least=True
    )
    return [table]


def _shares(counts: list[int]) -> Iterable[int | float]:
    for files, by_summary, by_record in (counts[:3], counts[3:]):
        yield from (files, 100 * by_summary / max(1, files), 100 * by_record / max(1, files))


def _spans(folder: Path) -> Iterator[Span]:
    """Yields the summaries of the recordings with their messages. A recording may be cut at each summary."""
    for name in RECORDINGS:
        before: dict[str, list[Entry]] = {}
        with gzip.open(folder / f"{name}.jsonl.gz", "rt", encoding="utf-8") as rows:
            for row in map(json.loads, rows):
                recording, _, piece = row["id"].partition("#")
                starts = [at for at, entry in enumerate(row["messages"]) if str(entry["content"]).startswith(_OPENING)]
                start = 0
                for at in starts:
                    messages = row["messages"][start:at] or before.get(f"{recording}#{_number(piece) - 1}", [])
                    if len(_files(messages, _EDITORS | _READERS)) >= _MIN_FILES:
                        yield Span(f"{row['id']}, {at}", messages, row["messages"][at]["content"])
                    start = at
                before[row["id"]] = row["messages"]


def _number(piece: str) -> int:
    """Returns the number of a recording's piece; 0 for a whole recording."""
    return int(piece) if piece.isdecimal() else 0


def _files(messages: list[Entry], tools: frozenset[str]) -> set[str]:
    """Returns the names of the files that were arguments of these tools."""
    calls = [call["function"] for entry in messages for call in entry.get("tool_calls") or ()]
    arguments = [json.loads(call["arguments"]) for call in calls if call["name"] in tools]
    paths = (value for each in arguments for key, value in each.items() if key in ("file_path", "notebook_path"))
    return {path.rpartition("/")[2] for path in paths if isinstance(path, str)}


def _count_named(files: set[str], *texts: str) -> tuple[int, ...]:
    return len(files), *(sum(file in text for file in files) for text in texts)


def _write_record(span: Span) -> tuple[int, str]:
    """Returns the tokens of the client's summary, and a record of the same length."""
    count = partial(TiktokenCounter().count, encoding="o200k_base")
    protocol, tenant = PROTOCOLS["chat"], TenantScope("bench", b"bench")
    sources = tuple(
        SourceMessage(at, read_written_message(protocol, tenant, json.dumps(entry).encode()))
        for at, entry in enumerate(span.messages)
    )
    tokens = count(span.summary)
    author = SummaryAuthor(None, ExtractiveWriter(), LoopTasks(), load_prompts())
    task = SummaryTask("conversation", sources, (), tokens, count)
    return tokens, author.write_extractive(task).text
