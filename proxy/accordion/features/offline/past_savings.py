"""`accordion savings --claude`: what Accordion would have saved in the recorded sessions of a coding agent.

Theory of operation. A replay with compaction gives what each recorded request would have been with Accordion. The
provider's report is of the client's own prompt, so the cost without Accordion is exact. The prompt with Accordion is
smaller by the share that the replay removed. Its part in the prompt cache follows from the report: while a compaction
is only applied again, the same share of the previous prompt is a cache read; a new compaction leaves only the beginning
that both prompts have. With that as the provider's report, `accounting/cost_model.py` computes the costs, as it does
for a running proxy.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from msgspec.structs import replace
from rich.console import Console
from rich.table import Table
from rich.text import Text

from accordion.accounting.cost_model import AUTOMATIC, ModelRequest, compute_cost
from accordion.cli.installation import find_page
from accordion.cli.listing import count_with_noun, format_amount, print_table
from accordion.cli.tenant_store import print_json
from accordion.composition.tables import build_prices
from accordion.config import Settings
from accordion.features.offline.offline_pipeline import OfflinePipeline
from accordion.features.offline.progress_bar import ProgressBar
from accordion.features.offline.recordings import MalformedTranscript, PastConversation
from accordion.features.offline.replay import CompactedRequest, replay_with_compaction
from accordion.features.offline.transcripts import TranscriptSource
from accordion.http.json_views import costs_json
from accordion.model.costs import CachedPrompt, Costs, PriceTable
from accordion.model.records import Usage

_SUMMARY_STEP = "summarize"
_SUMMARY_SHARE = 0.05
"""The tokens of a summary as a share of what it replaces; an estimate, as no model writes one in a replay."""
_EXTRACTIVE = "extractive"


@dataclass
class PastSession:
    """A session with the costs of its requests; `conversations` counts its parts, sub-agents included."""

    name: str
    file: str
    at: float = 0.0
    models: list[str] = field(default_factory=list)
    conversations: int = 0
    compactions: int = 0
    unreported: int = 0
    """Requests without a report of the provider."""
    costs: Costs = field(default_factory=Costs)
    """`sent` is with Accordion, `original` is what was recorded."""


def run(sources: Sequence[TranscriptSource], settings: Settings, as_json: bool) -> int:
    """Prints what would have been saved in the sources. Returns the exit code: 1 if something could not be read."""
    return asyncio.run(_run(sources, settings, as_json))


async def _run(sources: Sequence[TranscriptSource], settings: Settings, as_json: bool) -> int:
    sessions: dict[str, PastSession] = {}
    prices, problems = build_prices(settings), 0
    bar = ProgressBar(sources, hidden=False)
    bar.start()
    try:
        for source in sources:
            for item in source:
                if isinstance(item, MalformedTranscript):
                    problems += 1
                    bar.say(str(item))
                    continue
                bar.begin(source, item.name)
                # One pipeline for each conversation: it has the content in memory.
                pipeline = OfflinePipeline(settings)
                try:
                    rows = await _replay(item, pipeline, source, bar)
                finally:
                    await pipeline.close()
                _add(sessions, item, rows, prices, pipeline)
    finally:
        bar.stop()
    if as_json:
        print_json(_report_json(list(sessions.values())))
    else:
        _print_report(list(sessions.values()))
    return 1 if problems else 0


async def _replay(
    recorded: PastConversation, pipeline: OfflinePipeline, source: TranscriptSource, bar: ProgressBar
) -> list[CompactedRequest]:
    expected, rows = max(1, recorded.count_requests()), list[CompactedRequest]()
    async for row in replay_with_compaction(recorded, pipeline):
        rows.append(row)
        bar.advance(source, row.number / expected)
    return rows


def _add(
    sessions: dict[str, PastSession],
    recorded: PastConversation,
    rows: Sequence[CompactedRequest],
    prices: PriceTable,
    pipeline: OfflinePipeline,
) -> None:
    past_costs = list(compute_past_costs(rows, prices, lambda model: pipeline.writer(model) != _EXTRACTIVE))
    session = sessions.setdefault(recorded.session, PastSession(recorded.session, recorded.file))
    session.at = max(session.at, max((row.at for row in rows), default=0.0))
    session.models += [name for name in dict.fromkeys(each.model for each in past_costs) if name not in session.models]
    session.conversations += 1
    session.compactions += sum(row.state == "compacted" for row in rows)
    session.unreported += sum(not each.is_reported for each in past_costs)
    session.costs += sum((each.costs for each in past_costs), Costs())


def _add_up(sessions: Sequence[PastSession]) -> PastSession:
    return PastSession(
        name="total",
        file="",
        compactions=sum(session.compactions for session in sessions),
        unreported=sum(session.unreported for session in sessions),
        costs=sum((session.costs for session in sessions), Costs()),
    )


# -- JSON -----------------------------------------------------------------------------------------------------------


def _report_json(sessions: Sequence[PastSession]) -> dict[str, Any]:
    total = _add_up(sessions)
    return {
        "total": {"compactions": total.compactions, **_costs_json(total.costs, total.unreported)},
        "sessions": [
            {
                "session": session.name,
                "file": session.file,
                "last_request": session.at or None,
                "models": session.models,
                "conversations": session.conversations,
                "compactions": session.compactions,
                **_costs_json(session.costs, session.unreported),
            }
            for session in sessions
        ],
    }


def _costs_json(costs: Costs, unreported: int) -> dict[str, Any]:
    """Returns the costs as `accordion savings` has them; here the requests without Accordion are on record."""
    without = "estimate" if unreported == costs.requests else "both" if unreported else "reported"
    return costs_json(costs) | {"basis": {"sent": costs.sent_basis, "without_accordion": without}}


# -- Text -----------------------------------------------------------------------------------------------------------


def _print_report(sessions: Sequence[PastSession]) -> None:
    if not any(session.costs.requests for session in sessions):
        sys.stdout.write("there is no request in these files\n")
        return
    print_table(_build_table(sessions))
    total, console = _add_up(sessions), Console(highlight=False, soft_wrap=True)
    costs = total.costs
    requests = count_with_noun(costs.requests, "request")
    console.print()
    console.print(Text(f"{count_with_noun(len(sessions), 'session')}, {requests}", style="bold"))
    removed = costs.original_input - costs.input
    share = removed / costs.original_input if costs.original_input else 0.0
    console.print(f"input              {costs.original_input:,} tokens")
    console.print(f"with Accordion     ~{costs.input:,} tokens: ~{removed:,} less ({share:.1%})")
    if costs.unpriced < costs.requests:
        console.print(f"cost               {_format_cost(total, is_original=True)}")
        console.print(
            f"with Accordion     {_format_cost(total, is_original=False)}, its own cost {_own_cost(costs)} included"
        )
        console.print(Text(f"net                {format_amount(costs, costs.net, 'estimate')}", style="bold"))
    for note in _notes(total):
        console.print(Text(note, style="dim"))


def _own_cost(costs: Costs) -> str:
    return format_amount(costs, costs.own_cost, "estimate")


def _notes(total: PastSession) -> Iterator[str]:
    page = find_page("docs/savings.md")
    explained = f" {page} explains each figure." if page else ""
    yield f"~ is an estimate; the rest is what the provider reported.{explained}"
    yield (
        "System prompt and tools are not in session files: their size is what the first report of a conversation has "
        "beyond its messages."
    )
    yield "What the agent compacted by itself is a new beginning, and counts as nothing saved."
    if total.costs.unpriced:
        requests = count_with_noun(total.costs.unpriced, "request")
        yield f"{requests} of unknown price: in the tokens, not in the dollars. Set prices.models in the config."
    yield "Nothing was sent anywhere."


def _build_table(sessions: Sequence[PastSession]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("session", overflow="fold", min_width=12)
    table.add_column("last request (UTC)", no_wrap=True)
    table.add_column("model", overflow="fold")
    for name in ("requests", "compactions", "input", "with Accordion", "cost", "with Accordion", "net"):
        table.add_column(name, no_wrap=True, justify="right")
    for session in sorted(sessions, key=lambda session: session.at, reverse=True):
        costs = session.costs
        is_changed = costs.input != costs.original_input
        table.add_row(
            session.name,
            datetime.fromtimestamp(session.at, UTC).strftime("%Y-%m-%d %H:%M") if session.at else "",
            ", ".join(session.models),
            f"{costs.requests:,}",
            f"{session.compactions:,}",
            f"{'' if not session.unreported else '~'}{costs.original_input:,}",
            f"{'~' if costs.estimated else ''}{costs.input:,}",
            _format_cost(session, is_original=True),
            _format_cost(session, is_original=False),
            format_amount(costs, costs.net, "estimate" if is_changed else costs.sent_basis),
        )
    return table


def _format_cost(session: PastSession, *, is_original: bool) -> str:
    costs = session.costs
    if is_original:
        return format_amount(costs, costs.original_cost, "estimate" if session.unreported else "reported")
    return format_amount(costs, costs.spent, costs.sent_basis)


# -- the cost of a request --------------------------------------------------------------------------------------------


class PastCost(NamedTuple):
    """The costs of a recorded request; `sent` is with Accordion, `original` what was on record.

    Without `is_reported`, the recorded request is an estimate, too.
    """

    model: str
    costs: Costs
    is_reported: bool


def compute_past_costs(
    rows: Iterable[CompactedRequest], prices: PriceTable, has_model_summaries: Callable[[str], bool]
) -> Iterator[PastCost]:
    """Yields the cost of each request of one conversation, in order; none for requests that could not be parsed.

    `has_model_summaries` says whether a model would write the summaries of a model's requests.
    """
    cached: CachedPrompt | None = None
    model = ""
    for row in rows:
        if row.limits is None:
            cached = None
            continue
        if row.model != model:
            cached, model = None, row.model
        price = prices.price(model)
        original = compute_cost(_describe_original(row), cached and _original_part(cached), price)
        sent = original
        if row.state in ("compacted", "replayed"):
            is_summarized = has_model_summaries(model)
            sent = compute_cost(_describe_sent(row, original.costs, cached, is_summarized), cached, price)
        costs = _combine(sent.costs, original.costs, is_changed=sent is not original)
        yield PastCost(model, costs, row.reported is not None)
        cached = _combine_cached(sent.cached, original.cached)


def _describe_original(row: CompactedRequest) -> ModelRequest:
    """Describes the request as the client sent it."""
    # Nothing says what a client marked whose provider reported nothing.
    rules = AUTOMATIC if row.reported is None else row.cache_rules
    return ModelRequest(row.at, row.original.tokens, row.reported, rules=rules)


def _describe_sent(
    row: CompactedRequest, original: Costs, previous: CachedPrompt | None, is_summarized: bool
) -> ModelRequest:
    """Describes the request as it would have been sent, with the report that a provider would have given."""
    scale = original.input / max(1, row.original.tokens)
    tokens = min(original.input, round(row.forwarded.tokens * scale))
    is_new = row.state == "compacted"
    if is_new:
        cached = min(original.cached, round(row.forwarded.cached * scale))
    else:
        cached = min(tokens, _repeated_cached(original, previous, tokens))
    unmarked = original.input - original.cached - original.cache_write
    has_writes = original.cache_write or (not row.cache_rules.is_automatic and original.cached)
    written = max(0, tokens - cached - unmarked) if has_writes else 0
    summarized = sum(removed for name, removed in row.steps if name == _SUMMARY_STEP) if is_summarized else 0
    summary_tokens = round(summarized * _SUMMARY_SHARE)
    return ModelRequest(
        at=row.at,
        prompt=tokens,
        usage=Usage(tokens, original.output, cached, written),
        removed=original.input - tokens,
        added=round((row.tool_tokens + row.forwarded.utilization.insertions) * scale),
        is_new_compaction=is_new,
        rules=row.cache_rules,
        summary_input=round((summarized + summary_tokens) * scale),
        summary_output=summary_tokens,
    )


def _repeated_cached(original: Costs, previous: CachedPrompt | None, tokens: int) -> int:
    """Returns the cache reads of a prompt whose compaction is only applied again."""
    if previous is None or previous.original <= 0:
        return original.cached * tokens // max(1, original.input)
    if original.cached > previous.original:
        return previous.sent + original.cached - previous.original
    return original.cached * previous.sent // previous.original


def _combine(sent: Costs, original: Costs, *, is_changed: bool) -> Costs:
    """Returns the costs of what would have been sent, beside those of what was."""
    return replace(
        sent,
        estimated=max(original.estimated, int(is_changed)),
        original_input=original.input,
        original_cached=original.cached,
        original_output=original.output,
        original_cost=original.sent_cost,
    )


def _original_part(cached: CachedPrompt) -> CachedPrompt:
    return CachedPrompt(cached.original, cached.original, cached.at)


def _combine_cached(sent: CachedPrompt | None, original: CachedPrompt | None) -> CachedPrompt | None:
    if sent is None or original is None:
        return original and CachedPrompt(0, original.sent, original.at)
    return CachedPrompt(sent.sent, original.sent, original.at)
