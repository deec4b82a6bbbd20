"""`accordion replay`: reads transcripts, and prints tables or JSON, with progress and errors on the standard error."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import msgspec
from rich.console import Console, RenderableType

from accordion.config import Settings
from accordion.features.offline import replay_tables
from accordion.features.offline.offline_pipeline import OfflinePipeline
from accordion.features.offline.progress_bar import ProgressBar
from accordion.features.offline.recordings import MalformedTranscript, PastConversation
from accordion.features.offline.replay import (
    Accuracy,
    CompactedRequest,
    ReplayMeasurement,
    ReplayTotals,
    RequestSize,
    add_up,
    measure_accuracy,
    replay,
    replay_with_compaction,
)
from accordion.features.offline.replay_tables import CompactedReplay, MeasuredConversation
from accordion.features.offline.transcripts import TranscriptSource
from accordion.http.json_views import token_parts_json
from accordion.model.budget import Decision, TokenLimits, Window
from accordion.pipeline.respond import encode_compaction_header

ConversationReplay = MeasuredConversation | CompactedReplay


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """The command's options; `window` in tokens, `limit` in conversations."""

    model: str | None = None
    window: int | None = None
    limit: int | None = None
    every: bool = False
    against_usage: bool = False
    as_json: bool = False
    compacts: bool = False


def run(sources: Sequence[TranscriptSource], settings: Settings, options: ReplayOptions) -> int:
    """Replays conversations. Returns the exit code: 1 if a line could not be read, else 0."""
    return asyncio.run(_replay(sources, settings, options))


async def _replay(sources: Sequence[TranscriptSource], settings: Settings, options: ReplayOptions) -> int:
    console = Console(highlight=False)
    # A bar and lines on one terminal would write over each other.
    bar = ProgressBar(sources, hidden=options.as_json and console.is_terminal)
    pipeline, replays, problems = OfflinePipeline(settings, options.window), list[ConversationReplay](), 0
    bar.start()
    try:
        for source, item in _items(sources, options.limit):
            if isinstance(item, MalformedTranscript):
                problems += 1
                bar.say(str(item))
                continue
            replays.append(await _replay_one(source, item, pipeline, options, bar))
            if not options.as_json:
                bar.stop()
                console.print(_render_one(replays[-1], options, console))
                bar.start()
    finally:
        bar.stop()
        await pipeline.close()
    if not (replays or problems):
        bar.say("No conversation found in the input.")
    if options.as_json:
        for value in _final_json(replays, options):
            _write(value)
    else:
        for section in _render_totals(replays, options, console):
            console.print(section)
    return 1 if problems else 0


def _items(
    sources: Sequence[TranscriptSource], limit: int | None
) -> Iterator[tuple[TranscriptSource, PastConversation | MalformedTranscript]]:
    remaining = limit
    for source in sources:
        for item in source:
            if remaining is not None and not isinstance(item, MalformedTranscript):
                if remaining <= 0:
                    return
                remaining -= 1
            yield source, item


async def _replay_one(
    source: TranscriptSource,
    recorded: PastConversation,
    pipeline: OfflinePipeline,
    options: ReplayOptions,
    bar: ProgressBar,
) -> ConversationReplay:
    bar.begin(source, recorded.name)
    expected = max(1, recorded.count_requests())
    if options.compacts:
        compacted_requests: list[CompactedRequest] = []
        async for compacted_request in replay_with_compaction(recorded, pipeline, model=options.model):
            compacted_requests.append(compacted_request)
            bar.advance(source, compacted_request.number / expected)
            if options.as_json:
                _write(compacted_json(recorded, compacted_request))
        return CompactedReplay(recorded.file, recorded.line, recorded.name, tuple(compacted_requests))
    rows: list[ReplayMeasurement] = []
    async for row in replay(recorded, pipeline, model=options.model, learn=options.against_usage):
        rows.append(row)
        bar.advance(source, row.number / expected)
        if options.as_json:
            _write(measured_json(recorded, row, usage=options.against_usage))
    return MeasuredConversation(recorded.file, recorded.line, recorded.name, tuple(rows))


def _write(value: dict[str, Any]) -> None:
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


def _final_json(replays: Sequence[ConversationReplay], options: ReplayOptions) -> Iterator[dict[str, Any]]:
    """Yields the JSON lines at the end."""
    if options.compacts:
        yield totals_json(
            add_up([row for replay in replays if isinstance(replay, CompactedReplay) for row in replay.rows])
        )


def _render_one(replay: ConversationReplay, options: ReplayOptions, console: Console) -> RenderableType:
    if not replay.rows:
        return replay_tables.without_requests(replay)
    if isinstance(replay, CompactedReplay):
        return replay_tables.render_compacted_conversation(replay, console, every=options.every)
    return replay_tables.render_conversation(replay, console, every=options.every)


def _render_totals(
    replays: Sequence[ConversationReplay], options: ReplayOptions, console: Console
) -> Iterator[RenderableType]:
    """Renders the tables at the end: an overview of all conversations, and the accuracy of the estimates."""
    compacted = [replay for replay in replays if isinstance(replay, CompactedReplay)]
    measured = [replay for replay in replays if isinstance(replay, MeasuredConversation)]
    if len(compacted) > 1:
        yield replay_tables.render_compacted_overview(compacted, console)
    if len(measured) > 1:
        yield replay_tables.render_overview(measured, console)
    if options.against_usage:
        accuracies = [_accuracy(file, group) for file, group in groupby(measured, key=lambda replay: replay.file)]
        if len(accuracies) > 1:
            accuracies.append(_accuracy("all", measured))
        yield replay_tables.accuracy_table(accuracies)


def _accuracy(name: str, replays: Iterable[MeasuredConversation]) -> Accuracy:
    return measure_accuracy(name, [row for replay in replays for row in replay.rows])


# -- JSON -----------------------------------------------------------------------------------------------------------


def measured_json(recorded: PastConversation, row: ReplayMeasurement, *, usage: bool) -> dict[str, Any]:
    """Returns a measured request; with `usage`, also the plain count and the provider's."""
    fields = _request_json(recorded, row) | {
        "messages": row.messages,
        "tokens": row.tokens,
        "new_tokens": row.new,
        "utilization": round(row.utilization.ratio, 6),
        "parts": token_parts_json(row.utilization),
        "unchanged_prefix": round(row.unchanged, 6),
        **_limits_json(row.window, row.limits, row.decision),
    }
    return fields | ({"counted": row.counted, "reported": row.reported or None} if usage else {})


def compacted_json(recorded: PastConversation, row: CompactedRequest) -> dict[str, Any]:
    """Returns a request of a replay with compaction.

    `compaction` has the content of the header x-accordion-compaction, `tool` is the proxy's own tool if offered.
    """
    return _request_json(recorded, row) | {
        "state": row.state,
        "before": _size_json(row.original),
        "after": _size_json(row.forwarded),
        "saved_tokens": 0 if row.refused else row.original.tokens - row.forwarded.tokens,
        "begins_with_the_one_before": row.extends_previous,
        "tool": {"name": row.tool_name, "tokens": row.tool_tokens, "new": bool(row.added_tool_tokens)}
        if row.tool_name
        else None,
        "compaction": msgspec.json.decode(encode_compaction_header(row.outcome)) if row.outcome is not None else None,
        "refused": row.refused,
        **_limits_json(row.window, row.limits, row.decision),
    }


def totals_json(totals: ReplayTotals) -> dict[str, Any]:
    """Returns the totals of a replay with compaction."""
    fields = asdict(totals)
    fields |= {name: round(fields[name], 1) for name in ("came_cost", "sent_cost")}
    return {"totals": fields | {"saved": totals.came - totals.sent, "cost": round(totals.cost, 4)}}


def _request_json(recorded: PastConversation, row: ReplayMeasurement | CompactedRequest) -> dict[str, Any]:
    return {
        "file": recorded.file,
        "line": recorded.line,
        "conversation": recorded.name,
        "request": row.number,
        "turn": row.turn,
        "kind": "turn_start" if row.starts_turn else "mid_generation",
        "read": row.limits is not None,
        "model": row.model,
        "session": row.session,
    }


def _size_json(size: RequestSize) -> dict[str, Any]:
    return {
        "messages": size.messages,
        "tokens": size.tokens,
        "utilization": round(size.utilization.ratio, 6),
        "parts": token_parts_json(size.utilization),
        "unchanged_prefix": round(size.cached / size.tokens, 6) if size.tokens else 0.0,
        "cost": round(size.cost, 1),
    }


def _limits_json(window: Window | None, limits: TokenLimits | None, decision: Decision) -> dict[str, Any]:
    return {
        "window": {"size": window.size, "usable_input": window.usable_input, "source": window.source}
        if window
        else None,
        "limits": {"conversation": limits.conversation, "generation": limits.generation, "hard": limits.hard}
        if limits
        else None,
        "decision": {"action": decision.action, "reason": decision.reason},
    }
