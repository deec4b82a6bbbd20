"""Undoes a compaction: from the next request on, the session is as it would be without it.

The compaction is not erased: its record and its artifacts stay readable. Its id is listed with the session's overrides
(compaction/session_overrides.py), and the repository passes over it. So the compaction before it applies again, if
there is one. Compactions that were made from its result are undone with it.
"""

from __future__ import annotations

from accordion.compaction.session_overrides import SessionOverrideStore, UndoneCompactions
from accordion.model.errors import NotFound
from accordion.pipeline.queries import SessionView
from accordion.pipeline.sent_history import SentHistory, StoredCompaction
from accordion.sessions.tenants import Caller


async def find_compaction(sent: SentHistory, caller: Caller, session_id: str, compaction_id: str) -> StoredCompaction:
    """Returns a compaction of a session. Raises NotFound, also for one of another session, and StoreUnavailable."""
    stored = await sent.find_compaction(caller, compaction_id)
    if stored is None or stored.session != session_id:
        raise NotFound(
            "This session has no such compaction. It may have expired or been erased.", code="compaction_not_found"
        )
    return stored


async def undo_compaction(
    sent: SentHistory,
    overrides: SessionOverrideStore,
    caller: Caller,
    view: SessionView,
    compaction_id: str,
    now: float,
) -> frozenset[str]:
    """Undoes a compaction, and those that were made from it; returns the ids of all. Raises NotFound and
    StoreUnavailable.

    No other compaction is made until the history has grown by a tenth, or reaches the hard limit.
    """
    stored = await find_compaction(sent, caller, view.session.id, compaction_id)
    base = await sent.find_compaction(caller, stored.base) if stored.base else None
    ids, last = await sent.list_continued(caller, stored), view.exchanges[-1] if view.exchanges else None
    tokens = stored.compaction.before
    if last is not None:
        tokens = last.utilization.tokens + (last.compaction.saved if last.compaction is not None else 0)
        tokens -= base.compaction.tokens_saved if base is not None else 0
    await overrides.undo_compactions(caller.tenant, view.session.id, UndoneCompactions(now, tokens, ids))
    return ids
