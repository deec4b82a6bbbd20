"""`accordion sessions`: the sessions in the store, with what each cost and saved."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime

from rich.table import Table
from rich.text import Text

from accordion.cli.listing import format_cost, print_table
from accordion.cli.tenant_store import TenantStore, print_json, run_for_tenant
from accordion.config import Settings
from accordion.http.json_views import costs_json
from accordion.model.records import Session


def sessions(settings: Settings, tenant: str | None, limit: int, as_json: bool) -> int:
    """Lists the sessions with their costs, the latest first. Returns the exit code."""
    return run_for_tenant(settings, tenant, lambda store: _sessions(store, limit, as_json))


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
            format_cost(costs, costs.spent, is_original=False),
            format_cost(costs, costs.original_cost, is_original=True),
            format_cost(costs, costs.net, is_original=True),
        )
    return table
