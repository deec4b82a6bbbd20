"""The effect of recall: far facts that the newest turn names, with it and without, what that costs, and how often
what came back was of use; and what it takes of the CPU.

As `quality` it needs the tool and the recordings that are not part of this repository.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Final

from msgspec.structs import replace

from accordion.archive.recall import ArtifactSearch, Excerpt
from accordion.archive.recall_index import build_index
from accordion.model.compaction import (
    CompactedConversation,
    Compaction,
    CompactionEntry,
    apply_compaction,
)
from accordion.model.conversation import Conversation, Message, Text
from accordion.providers.models.tokenizer import TiktokenCounter
from accordion.summaries.facts import WordClassifier
from bench import compaction_steps
from bench.connection_load import percentile
from bench.recall_quality import Quality, Replaying
from bench.report import Cell, Table
from bench.run_settings import RunSettings
from bench.scenarios.quality import RUNS, tool, windows
from bench.servers import Unavailable

COLUMNS: Final = (
    "recordings",
    "requests behind a fold",
    "named facts",
    "without",
    "with",
    "of the missing",
    "named code",
    "without",
    "with",
    "needed facts",
    "without",
    "with",
)
PRICE: Final = (
    "recordings",
    "recalls",
    "tokens each",
    "tokens a request",
    "rules",
    "their tokens a request",
    "cost",
    "sources",
    "precise",
    "used next",
    "new and used soon",
)
GOAL: Final = 66.7
SIZE: Final = 950_000
"""Bytes of a conversation of 200,000 tokens."""
TAIL: Final = 60
"""Messages behind the fold."""
ASKED: Final = {
    "look-up, nothing found": "Now go on with the rest of it, and mind src_of_nothing.py.",
    "excerpt of two sources": "Please compare src/part_9.py with src/part_33.py.",
}


def run(setting: RunSettings) -> list[Table]:
    script = tool("recall", setting)
    quality, data = Quality(script), setting.data or script.parents[1] / "data" / "trajectories"
    if not data.exists():
        raise Unavailable("recall: say where recorded runs are, by --data FOLDER or BENCH_DATA")
    tables = []
    for window in windows("recall", setting):
        far, sample, only = RUNS[window]
        chosen = quality.runs(data, window, setting.fewer(sample, 1), only)
        replaying = Replaying(quality, window, far)
        found: dict[str, Counter[str]] = {}
        try:
            for each in chosen:
                found.setdefault(each["_file"], Counter()).update(replaying.replay(each))
        finally:
            replaying.close()
        tables += [_table(window, far, found, len(chosen)), _price(window, found, replaying.ms)]
    return [*tables, _speed()]


# -- what it brings back -----------------------------------------------------------------------------------------------


def _table(window: int, far: int, found: Mapping[str, Counter[str]], runs: int) -> Table:
    size = f"{window // 1000}k"
    table = Table(f"Recall at a window of {size} tokens: what is in the prompt", COLUMNS, block=f"recall-{size}")
    for name, figures in _rows(found):
        row: list[Cell] = [name, figures["requests"]]
        for kind in ("named", "code", "needed"):
            there, held = figures[f"{kind} there"], figures[f"{kind} with"]
            row += [figures[kind], _percent(there, figures[kind]), _percent(held, figures[kind])]
            if kind == "named":
                row.append(_percent(held - there, figures[kind] - there))
        table.rows.append(row)
    table.notes.append(f"{runs} runs; far facts alone: last seen more than {far:,} tokens back; shares in per cent")
    whole = sum(found.values(), Counter[str]())
    if whole["named"]:
        there, held = whole["named there"], whole["named with"]
        share = 100 * held / whole["named"]
        table.goal("far facts that the newest turn names, in the prompt", share, GOAL, "%", at_least=True)
        if missing := whole["named"] - there:
            text = f"of the {missing:,} that would be missing, back unasked"
            table.goal(text, 100 * (held - there) / missing, GOAL, "%", at_least=True)
    return table


def _price(window: int, found: Mapping[str, Counter[str]], ms: Sequence[float]) -> Table:
    size = f"{window // 1000}k"
    table = Table(f"Recall at {size}: what it costs, and of what use it was", PRICE, block=f"recall-{size}")
    for name, figures in _rows(found):
        recalls, sources, cost = figures["recalls"], figures["sources"], figures["cost"]
        tokens = figures["tokens"]
        row: list[Cell] = [name, recalls, tokens / recalls if recalls else None, tokens / figures["requests"]]
        row += [figures["rules"], figures["rule tokens"] / figures["requests"]]
        row += [figures["cost with"] / cost if cost else None, sources]
        row += [_percent(figures[kind], sources) for kind in ("precise", "used", "fresh")]
        table.rows.append(row)
    table.notes.append(
        "rules: standing instructions without room in the summary that came back because the turn is about them"
    )
    table.notes.append(
        "cost: cache-weighted input behind folds, relative to the same without recall (folds stand where they stand"
        " without); precise: sources with a fact that the turn names or the next reply uses; new and used soon: with"
        " one that was in view nowhere and is used within five replies"
    )
    if ms:
        p50, p95 = percentile(ms, 0.5), percentile(ms, 0.95)
        table.notes.append(f"CPU of a look-up, indexes included: {p50:.2f} ms at p50, {p95:.2f} ms at p95")
    return table


def _rows(found: Mapping[str, Counter[str]]) -> list[tuple[str, Counter[str]]]:
    rows = [(name.removesuffix(".gz").removesuffix(".jsonl"), each) for name, each in found.items() if each["requests"]]
    return [*rows, ("*all*", sum(found.values(), Counter[str]()))] if rows else []


def _percent(part: int, whole: int) -> str | None:
    return f"{100 * part / whole:.1f}" if whole else None


# -- what it takes -----------------------------------------------------------------------------------------------------


def _speed() -> Table:
    """The CPU time of an index and of look-ups, behind a fold of 200,000 tokens."""
    case, client = asyncio.run(compaction_steps.captured(compaction_steps.conversation(1, SIZE).body(), 400_000))
    counter, folded = TiktokenCounter(), _folded(client)
    index = build_index(case.ref.tenant, folded, client.messages)
    taken = {"index of the fold": _timed(lambda: build_index(case.ref.tenant, folded, client.messages), 9)}
    newest = range(len(client.messages) - 1, len(client.messages))
    for label, text in ASKED.items():
        asked = _asking(client, text)
        shown, artifact_search = _folded(asked), ArtifactSearch(WordClassifier().find_all_words)

        def look(
            artifact_search: ArtifactSearch = artifact_search,
            shown: CompactedConversation = shown,
            asked: Conversation = asked,
        ) -> Excerpt | None:
            return artifact_search.find_excerpt(
                case.ref.tenant, shown, asked, newest, partial(counter.count, encoding="o200k_base")
            )

        if (look() is not None) != ("src/" in text):
            raise RuntimeError(f"{label}: not what was expected")
        taken[label] = _timed(look, 100)
    table = Table(f"CPU of recall behind a fold of {case.utilization.tokens:,} tokens", ("step", "CPU ms", "lowest"))
    for label, ms in taken.items():
        table.rows.append([label, median(ms), min(ms)])
    table.notes.append(f"the index tells of {len(index.passages):,} passages in about {index.size / 1e6:.1f} MB")
    table.goal("index", median(taken["index of the fold"]), 100.0, "ms")
    table.goal("look-up", median(taken[next(iter(ASKED))]), 1.0, "ms")
    return table


def _asking(client: Conversation, text: str) -> Conversation:
    """The same with another text as its last message."""
    last = replace(client.messages[-1], key=text.encode(), parts=(Text(text),))
    return replace(client, messages=(*client.messages[:-1], last))


def _folded(client: Conversation) -> CompactedConversation:
    """The conversation with all but its ends behind a block."""
    covered = len(client.messages) - TAIL
    block = CompactionEntry(1, covered - 1, b"block")
    compaction = Compaction(
        "f-bench",
        client.chain[covered - 1],
        covered,
        (CompactionEntry(0, 0), block),
        "conversation",
        "automatic",
        0.5,
        (),
        200_000,
        50_000,
        1,
        0.0,
    )
    return apply_compaction(
        client, compaction, lambda wire: Message(wire, "user", (Text("What was done so far."),), wire)
    )


def _timed(work: Callable[[], object], times: int) -> list[float]:
    taken = []
    for _ in range(times):
        began = time.process_time()
        work()
        taken.append(1_000 * (time.process_time() - began))
    return taken
