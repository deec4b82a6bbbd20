"""`accordion savings`: what the requests of the last days cost and what compaction saved, from the store."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from accordion.accounting.holdout import HoldoutComparison
from accordion.accounting.holdout_text import (
    describe_comparison,
    describe_groups,
    describe_models,
    describe_stop,
    list_compared_rows,
)
from accordion.accounting.ledger import SavingsReport
from accordion.cli.installation import find_page
from accordion.cli.listing import count_with_noun, format_cost, format_dollars, print_table
from accordion.cli.tenant_store import TenantStore, print_json, run_for_tenant
from accordion.config import Settings
from accordion.http.json_views import savings_json
from accordion.model.costs import Costs

_COLUMNS = ("requests", "sent", "without", "spent", "without", "own cost", "net")


def savings(settings: Settings, tenant: str | None, days: int, as_json: bool) -> int:
    """Prints the costs of the last days. Returns the exit code."""
    return run_for_tenant(settings, tenant, lambda store: _savings(store, days, as_json))


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
    for stop in report.stops:
        sys.stdout.write(f"\n{describe_stop(stop)}\n")
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
        console.print(f"spent              {format_cost(costs, costs.spent, is_original=False)}")
        console.print(f"without Accordion  {format_cost(costs, costs.original_cost, is_original=True)}")
        console.print(f"saved              {format_cost(costs, costs.saved, is_original=True)} before its own cost")
        console.print(f"own cost           {format_cost(costs, costs.own_cost, is_original=True)}: {details}")
        console.print(Text(f"net                {format_cost(costs, costs.net, is_original=True)}", style="bold"))
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
    for line in describe_models(comparison):
        console.print(line, markup=False)


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
            format_cost(costs, costs.spent, is_original=False),
            format_cost(costs, costs.original_cost, is_original=True),
            format_cost(costs, costs.own_cost, is_original=True),
            format_cost(costs, costs.net, is_original=True),
        )
    return table
