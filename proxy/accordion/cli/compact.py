"""`accordion compact` and `accordion pin`: compact a session at its next request, undo a compaction, pin results."""

from __future__ import annotations

import time
from collections.abc import Sequence

import typer

from accordion.cli.tenant_store import TenantStore, print_error, report_missing, run_for_tenant
from accordion.compaction.session_overrides import MOST_PINS
from accordion.config import Settings
from accordion.model.errors import NotFound
from accordion.pipeline.undo import undo_compaction


def demand_compaction(settings: Settings, tenant: str | None, session: str) -> int:
    """Lets the next request of a session be compacted, whatever its size. Returns the exit code."""

    async def demand(store: TenantStore) -> int:
        view = await store.queries.find_session(store.caller.tenant, session)
        if view is None:
            return report_missing(store, session)
        await store.overrides.demand_compaction(store.caller.tenant, session)
        mode = settings.compaction.mode_of(view.session.model)
        note = "" if mode == "auto" else f" compaction.mode is {mode} for its model."
        typer.echo(f"{session}: the next request is compacted, whatever its size.{note}")
        return 0

    return run_for_tenant(settings, tenant, demand)


def pin(settings: Settings, tenant: str | None, session: str, call_ids: Sequence[str], *, is_removal: bool) -> int:
    """Pins results of a session by their call ids, or removes these pins; prints all. Returns the exit code."""

    async def pin_in(store: TenantStore) -> int:
        if await store.queries.find_session(store.caller.tenant, session) is None:
            return report_missing(store, session)
        pins = await store.overrides.find_pins(store.caller.tenant, session)
        changed = pins.difference(call_ids) if is_removal else pins.union(call_ids)
        if len(changed) > MOST_PINS:
            print_error(f"a session has {MOST_PINS} pins at most; these would be {len(changed)}")
            return 1
        if changed != pins:
            await store.overrides.set_pins(store.caller.tenant, session, changed)
        typer.echo("\n".join(sorted(changed)) if changed else f"{session}: no pins")
        return 0

    return run_for_tenant(settings, tenant, pin_in)


def undo(settings: Settings, tenant: str | None, session: str, compaction: str) -> int:
    """Undoes a compaction of a session, and those made from it, or `all`. Returns the exit code."""

    async def undo_in(store: TenantStore) -> int:
        view = await store.queries.find_session(store.caller.tenant, session)
        if view is None:
            return report_missing(store, session)
        try:
            ids = await undo_compaction(store.sent, store.overrides, store.caller, view, compaction, time.time())
        except NotFound as error:
            print_error(error.message)
            return 1
        typer.echo(f"{session}: undone: {', '.join(sorted(ids))}. The next request is sent as it would be without.")
        return 0

    return run_for_tenant(settings, tenant, undo_in)
