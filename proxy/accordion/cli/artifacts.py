"""`accordion tenants`, `artifacts`, `export` and `erase`: read and erase the configured store without a proxy.

A proxy may run at the same time. It drops erased data from its caches within a second.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from accordion.archive.artifacts import Artifact
from accordion.archive.feature_records import erase_feature_records
from accordion.archive.reader import ReadRequest
from accordion.cli.listing import count_with_noun, print_table
from accordion.cli.tenant_store import (
    TIMEOUT,
    TenantStore,
    print_error,
    print_json,
    print_text,
    report_missing,
    run_command,
    run_for_tenant,
    tenant_rows,
)
from accordion.composition.features import feature_records
from accordion.config import Settings
from accordion.http.json_views import artifact_json, artifact_part_json
from accordion.http.session_export import export_records
from accordion.pipeline.queries import erase as erase_archive
from accordion.stores.open import open_store

_ALL = 10**9


@dataclass(frozen=True, slots=True)
class ArtifactSelection:
    """The artifact to show, and which part of it; without an id, the list of a session's artifacts or of all."""

    id: str = ""
    session: str = ""
    offset: int = 0
    limit: int = 0
    pattern: str = ""
    path: str = ""
    as_json: bool = False


def read(settings: Settings, tenant: str | None, selection: ArtifactSelection) -> int:
    """Shows an artifact, or lists artifacts. Returns the exit code: 1 for an unknown artifact."""
    return run_for_tenant(
        settings,
        tenant,
        lambda store: _read(store, selection) if selection.id else _list(store, selection),
    )


def export(settings: Settings, tenant: str | None, session: str | None) -> int:
    """Prints the export of a session, or of a whole tenant. Returns the exit code: 1 for an unknown session."""
    return run_for_tenant(settings, tenant, lambda store: _export(store, session))


def erase(settings: Settings, tenant: str | None, session: str | None, confirm: Callable[[str], bool]) -> int:
    """Erases a session, or all of a tenant with the records of features, if `confirm` agrees.

    Returns the exit code: 1 without agreement, for an unknown session, or if data is left.
    """

    return run_for_tenant(settings, tenant, lambda store: _erase(store, session, confirm))


def tenants(settings: Settings, as_json: bool) -> int:
    """Lists the tenants. Returns the exit code."""

    async def run() -> int:
        store = open_store(settings.store.url.reveal(), timeout=TIMEOUT)
        try:
            rows = await tenant_rows(settings, store)
        finally:
            await store.close()
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("tenant", no_wrap=True)
        for name in ("sessions", "bytes", *(records.noun for records in feature_records())):
            table.add_column(name, no_wrap=True, justify="right")
        for row in rows:
            numbers = (row.sessions, row.held, *row.feature_records.values())
            table.add_row(row.tenant, *(f"{number:,}" for number in numbers))
            if as_json:
                fields = {"tenant": row.tenant, "sessions": row.sessions, "held": row.held}
                print_json(fields | row.feature_records)
        if not as_json:
            if rows:
                print_table(table)
            else:
                sys.stdout.write("the store has no tenants\n")
        return 0

    return run_command(settings, run)


async def _read(store: TenantStore, selection: ArtifactSelection) -> int:
    read_request = ReadRequest(selection.id, selection.offset, selection.limit, selection.pattern, selection.path)
    excerpt = await store.archive.read(store.caller.tenant, read_request)
    if excerpt is None:
        print_error(f"{selection.id}: there is no such artifact; it may have expired or been erased")
        return 1
    if selection.as_json:
        print_json(artifact_part_json(excerpt))
        return 0
    print_error(f"{selection.id}: {excerpt.what}; {excerpt.part.shown}", "dim")
    print_text(excerpt.part.text)
    if excerpt.part.next:
        print_error(f"continue with --offset {excerpt.part.next}", "dim")
    return 0


async def _list(store: TenantStore, selection: ArtifactSelection) -> int:
    artifacts = await _all_artifacts(store, selection.session)
    if selection.as_json:
        for artifact in artifacts:
            print_json(artifact_json(artifact))
    elif not artifacts:
        sys.stdout.write("there are no artifacts\n")
    else:
        for session, group in groupby(artifacts, key=lambda artifact: artifact.session):
            Console(highlight=False, soft_wrap=True).print(Text(session, style="bold"))
            print_table(_table(group))
    return 0


def _table(artifacts: Iterable[Artifact]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("id", no_wrap=True)
    table.add_column("messages", no_wrap=True, justify="right")
    table.add_column("content")
    table.add_column("characters", no_wrap=True, justify="right")
    for artifact in artifacts:
        detail = " ".join((artifact.arguments or artifact.description).split())
        content = f"{artifact.tool}({detail})" if artifact.tool else f"{artifact.kind}: {detail}"
        messages = f"{artifact.first}-{artifact.last}" if artifact.last > artifact.first else str(artifact.last)
        table.add_row(
            artifact.id, messages, Text(content, no_wrap=True, overflow="ellipsis"), f"{artifact.characters:,}"
        )
    return table


async def _all_artifacts(store: TenantStore, session: str) -> list[Artifact]:
    """Lists the artifacts of a session, or of all: the session with the oldest artifact first, each in order."""
    tenant, archive, pages = store.caller.tenant, store.archive, list[tuple[Artifact, ...]]()
    for name in [session] if session else await archive.export_and_erasure.list_sessions(tenant):
        page = await archive.list_artifacts(tenant, name, limit=_ALL)
        if page.artifacts:
            pages.append(page.artifacts)
    pages.sort(key=lambda page: min(artifact.at for artifact in page))
    return [artifact for page in pages for artifact in page]


async def _export(store: TenantStore, session: str | None) -> int:
    archive, caller = store.archive, store.caller
    if session is not None and not (
        await archive.has_session(caller.tenant, session) or await store.queries.find_session(caller.tenant, session)
    ):
        return report_missing(store, session)
    async for line in export_records(store.queries, archive.export_and_erasure, caller.tenant, session):
        sys.stdout.write(line.decode())
    return 0


async def _erase(store: TenantStore, session: str | None, confirm: Callable[[str], bool]) -> int:
    caller = store.caller
    everything = " and ".join(f"all {noun}" for noun in ("sessions", *(each.noun for each in feature_records())))
    subject = f"session {session}" if session is not None else everything
    if not confirm(f"Erase {subject} of tenant {caller.tenant.name!r}? This cannot be undone."):
        return 1
    sessions, erased = await erase_archive(
        store.queries, store.archive.export_and_erasure, store.overrides, caller, session
    )
    if session is not None and erased.verified and not (sessions or erased.entries or erased.values):
        return report_missing(store, session)
    unverified_note = "; some data is new or could not be read: run the command again"
    repeat_note = "" if erased.verified else unverified_note
    shared_note = f"; {count_with_noun(erased.shared, 'value')} used by other sessions kept" if erased.shared else ""
    parts = (
        count_with_noun(sessions, "session"),
        count_with_noun(erased.entries, "entry", "entries"),
        count_with_noun(erased.values, "value"),
    )
    sys.stdout.write(f"erased: {', '.join(parts)}{shared_note}{repeat_note}\n")
    is_complete = erased.verified
    if session is None:
        for each in await erase_feature_records(store.queries.store, caller.tenant, feature_records()):
            sys.stdout.write(f"{each.noun}: {each.before:,} before, {each.after:,} after\n")
            is_complete = is_complete and not each.after
    return 0 if is_complete else 1
