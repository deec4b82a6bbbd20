"""`accordion explain --session`: what the model saw of a session at its last request, from the configured store."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import msgspec
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from accordion.accounting.token_meter import TokenMeter
from accordion.cli.artifacts import TenantStore, print_error, report_missing, run_for_tenant
from accordion.cli.explain_compaction import CompactionReport, compaction_details, report_sent
from accordion.config import Settings
from accordion.http.json_views import exchange_json
from accordion.model.conversation import Message
from accordion.model.errors import NotFound
from accordion.pipeline.queries import SessionView
from accordion.pipeline.sent_history import SentRequest
from accordion.providers.models.tokenizer import TiktokenCounter


def explain_session(settings: Settings, tenant: str | None, session: str, *, full: bool, as_json: bool) -> int:
    """Explains the last request of a session. Returns the exit code: 1 if it cannot be explained."""
    return run_for_tenant(settings, tenant, lambda store: _explain(store, session, full=full, as_json=as_json))


async def _explain(store: TenantStore, session: str, *, full: bool, as_json: bool) -> int:
    view = await store.queries.find_session(store.caller.tenant, session)
    if view is None:
        return report_missing(store, session)
    try:
        sent = await store.sent.reconstruct(store.caller, view.session, view.exchanges)
    except NotFound as error:
        print_error(f"{session}: {error.message}")
        return 1
    ids = sent.compaction.artifacts if sent.compaction is not None else ()
    artifacts = await store.archive.load_records(store.caller.tenant, ids)
    report = report_sent(sent, artifacts, _counter(sent), full=full)
    if as_json:
        content = {"session": session, "last": exchange_json(sent.exchange), "folding": report}
        sys.stdout.write(msgspec.json.encode(content).decode() + "\n")
        return 0
    sections: list[RenderableType] = [_make_table(view, sent, report), *compaction_details(report, full=full)]
    Console(highlight=False).print(Padding(Group(*sections), (1, 1)))
    return 0


def _counter(sent: SentRequest) -> Callable[[Message], int]:
    meter, conversation = TokenMeter(TiktokenCounter()), sent.original.conversation
    return lambda message: meter.count_message(message, conversation, conversation.model).tokens


def _make_table(view: SessionView, sent: SentRequest, report: CompactionReport) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _rows(view, sent, report):
        table.add_row(name, value)
    return table


def _rows(view: SessionView, sent: SentRequest, report: CompactionReport) -> Iterator[tuple[str, str | Text]]:
    exchange, compaction = sent.exchange, sent.compaction
    yield "session", Text(view.session.id, style="bold")
    yield "model", exchange.model
    yield "last request", f"{exchange.request_id}, {exchange.messages:,} messages"
    yield "utilization", f"{exchange.utilization.ratio:.1%} of a window of {exchange.utilization.window:,} tokens"
    yield "decision", exchange.decision
    if compaction is None:
        yield "compaction", "none: the request was sent as it came"
        return
    saved = exchange.compaction.saved if exchange.compaction is not None else 0
    yield "tokens", f"{exchange.utilization.tokens + saved:,} came, {exchange.utilization.tokens:,} were sent"
    yield "compaction", f"{compaction.id}, generation {compaction.generation}, {compaction.kind}, {compaction.cause}"
    for step in report.steps:
        yield "", f"{step.strategy}: {step.before:,} to {step.after:,}"
    if report.writer:
        yield "summary", f"by {report.writer}"
