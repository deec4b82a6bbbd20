"""Exports what is stored of a session or a tenant: names, the records of exchanges, then the archive."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import msgspec

from accordion.archive.erasure import ExportAndErasure
from accordion.http.json_views import exchange_json
from accordion.model.tenant import TenantScope
from accordion.pipeline.queries import Queries
from accordion.protocols.odd_json import replace_marks


async def export_records(
    queries: Queries, archive: ExportAndErasure, tenant: TenantScope, session: str | None = None
) -> AsyncIterator[bytes]:
    """Yields all that is stored of a session, or of a tenant if that is None, as lines of JSON.

    The last line counts them. Raises StoreUnavailable.
    """
    counts: Counter[str] = Counter()
    async for session_id, title in queries.scan_titles(tenant, session):
        counts["name"] += 1
        record = {"type": "name", **msgspec.structs.asdict(title), "session": session_id}
        yield replace_marks(msgspec.json.encode(record)) + b"\n"
    for each in [session] if session is not None else await queries.list_session_ids(tenant):
        async for exchanges in queries.scan_exchanges(tenant, each):
            counts["exchange"] += len(exchanges)
            for exchange in exchanges:
                record = {"type": "exchange", "exchange": exchange_json(exchange), "session": each}
                yield msgspec.json.encode(record) + b"\n"
    async for line in archive.export(tenant, session, counts):
        yield replace_marks(line)
