"""`accordion savings` and `accordion sessions`: what requests cost and what compaction saved, from the store."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from accordion.accounting.holdout import HoldoutComparison
from accordion.accounting.ledger import SavingsReport
from accordion.cli.installation import find_page
from accordion.cli.listing import count_with_noun, format_dollars, print_table
from accordion.cli.tenant_store import TenantStore, print_json, run_for_tenant
from accordion.config import Settings
from accordion.http.holdout_text import describe_comparison, describe_groups, list_compared_rows
from accordion.http.json_views import costs_json, savings_json
from accordion.model.costs import Basis, Costs
from accordion.model.records import Session

_UNKNOWN = "unknown"
_COLUMNS = ("requests", "sent", "without", "spent", "without", "own cost", "net")


def savings(settings: Settings, tenant: str | None, days: int, as_json: bool) -> int:
    """Prints the costs of the last days. Returns the exit code."""
    return run_for_tenant(settings, tenant, lambda store: _savings(store, days, as_json))


def sessions(settings: Settings, tenant: str | None, limit: int, as_json: bool) -> int:
    """Lists the sessions with their costs, the latest first. Returns the exit code."""
    return run_for_tenant(settings, tenant, lambda store: _sessions(store, limit, as_json))


async def _savings(store: TenantStore, days: int, as_json: bool) -> int:
    tenant, now = store.caller.tenant, datetime.now(UTC).timestamp()
    report = await store.queries.read_savings(tenant, now, days)
    comparison = await store.queries.read_holdout([tenant], now, days)
    if as_json:
        print_json(savings_json(report, store.queries.prices, comparison))
        return 0
    if not report.total.requests:
        sys.stdout.write(f"no request is on record from {report.first} to {report.last} (UTC)\n")
        return 0
    _print_summary(report)
    if comparison is not None:
        _print_comparison(comparison)
    for title, rows in (
        ("day", [(each.day, each.costs) for each in report.days]),
        ("model", [(each.model or "not read", each.costs) for each in report.models]),
        ("agent", [(each.agent or "no name", each.costs) for each in report.agents]),
    ):
        sys.stdout.write("\n")
        print_table(_cost_table(title, rows))
    return 0


def _print_summary(report: SavingsReport) -> None:
    costs, console = report.total, Console(highlight=False, soft_wrap=True)
    requests = count_with_noun(costs.requests, "request")
    console.print(Text(f"{report.first} to {report.last} (UTC): {requests}", style="bold"))
    if costs.unpriced < costs.requests:
        own_costs = {
            "broken prefix": costs.prefix_cost,
            "summaries": costs.summary_cost,
            "insertions": costs.insertion_cost,
            "reads": costs.read_cost,
        }
        details = ", ".join(f"{name} {format_dollars(cost)}" for name, cost in own_costs.items())
        console.print(f"spent              {_format_amount(costs, costs.spent, is_original=False)}")
        console.print(f"without Accordion  {_format_amount(costs, costs.original_cost, is_original=True)}")
        console.print(f"saved              {_format_amount(costs, costs.saved, is_original=True)} before its own cost")
        console.print(f"own cost           {_format_amount(costs, costs.own_cost, is_original=True)}: {details}")
        console.print(Text(f"net                {_format_amount(costs, costs.net, is_original=True)}", style="bold"))
    for note in _notes(costs):
        console.print(Text(note, style="dim"))


def _print_comparison(comparison: HoldoutComparison) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print()
    console.print(Text(describe_comparison(comparison), style="bold"))
    console.print(Text(describe_groups(comparison), style="dim"))
    if comparison.figures:
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("for each session", no_wrap=True)
        for name in ("with compaction", "hold-out", "difference", "change"):
            table.add_column(name, no_wrap=True, justify="right")
        for row in list_compared_rows(comparison):
            table.add_row(*row)
        print_table(table)


def _notes(costs: Costs) -> Iterable[str]:
    """Yields the notes below the sums."""
    page = find_page("docs/savings.md")
    explained = f" {page} explains each figure." if page else ""
    yield f"~ is an estimate; the rest is what providers reported.{explained}"
    if costs.unpriced:
        requests = count_with_noun(costs.unpriced, "request")
        yield f"{requests} of unknown price: in the tokens, not in the dollars. Set prices.models in the config."
    if costs.over_window:
        requests = count_with_noun(costs.over_window, "request")
        yield f"{requests} would not have fitted the window; beyond it, nothing counts as saved."


async def _sessions(store: TenantStore, limit: int, as_json: bool) -> int:
    found = await store.queries.list_sessions(store.caller.tenant, limit=limit)
    if as_json:
        for session in found:
            print_json(_session_json(session))
    elif not found:
        sys.stdout.write("there are no sessions\n")
    else:
        print_table(_session_table(found))
    return 0


def _session_json(session: Session) -> dict[str, object]:
    agent = (session.newest_agent.name if session.newest_agent is not None else "") or session.agent
    return {
        "id": session.id,
        "name": session.name,
        "project": session.project,
        "label": session.label,
        "client": session.client,
        "agent": agent,
        "model": session.model,
        "created": session.created,
        "updated": session.updated,
        "compactions": session.totals.compactions,
        "costs": costs_json(session.costs),
    }


def _session_table(found: Iterable[Session]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("session", no_wrap=True)
    table.add_column("name", overflow="fold")
    table.add_column("last request (UTC)", no_wrap=True)
    table.add_column("model", overflow="fold")
    for name in ("requests", "compactions", "spent", "without", "net"):
        table.add_column(name, no_wrap=True, justify="right")
    for session in found:
        costs = session.costs
        updated = datetime.fromtimestamp(session.updated, UTC).strftime("%Y-%m-%d %H:%M")
        table.add_row(
            session.id,
            Text(session.name or session.label),
            updated,
            session.model,
            f"{session.totals.requests:,}",
            f"{session.totals.compactions:,}",
            _format_amount(costs, costs.spent, is_original=False),
            _format_amount(costs, costs.original_cost, is_original=True),
            _format_amount(costs, costs.net, is_original=True),
        )
    return table


def _cost_table(title: str, rows: Iterable[tuple[str, Costs]]) -> Table:
    """Returns a table of costs; tokens of input, then dollars."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(title, overflow="fold")
    for name in _COLUMNS:
        table.add_column(name, no_wrap=True, justify="right")
    for name, costs in rows:
        table.add_row(
            name,
            f"{costs.requests:,}",
            f"{costs.input:,}",
            f"{costs.original_input:,}",
            _format_amount(costs, costs.spent, is_original=False),
            _format_amount(costs, costs.original_cost, is_original=True),
            _format_amount(costs, costs.own_cost, is_original=True),
            _format_amount(costs, costs.net, is_original=True),
        )
    return table


def _format_amount(costs: Costs, amount: int, *, is_original: bool) -> str:
    return format_amount(costs, amount, costs.original_basis if is_original else costs.sent_basis)


def format_amount(costs: Costs, amount: int, basis: Basis) -> str:
    """Formats an amount of `costs`, with `~` before an estimate; `unknown` where no price is known."""
    if costs.requests and costs.unpriced == costs.requests:
        return _UNKNOWN
    return ("" if basis == "reported" else "~") + format_dollars(amount)
