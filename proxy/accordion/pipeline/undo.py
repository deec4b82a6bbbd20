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

ALL = "all"
"""Stands for all compactions of a session."""


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
    """Undoes a compaction, and those that were made from it, or all of the session (`ALL`); returns the ids of all.
    Raises NotFound and StoreUnavailable.

    No other compaction is made until the history has grown by a tenth, or reaches the hard limit.
    """
    session, tokens, remaining = view.session.id, 0, 0
    if compaction_id == ALL:
        ids = frozenset(await sent.list_compactions(caller, session))
        if not ids:
            raise NotFound("This session has no compaction.", code="compaction_not_found")
    else:
        stored = await find_compaction(sent, caller, session, compaction_id)
        base = await sent.find_compaction(caller, stored.base) if stored.base else None
        ids, tokens = await sent.list_continued(caller, stored), stored.compaction.before
        remaining = base.compaction.tokens_saved if base is not None else 0
    if view.exchanges:
        last = view.exchanges[-1]
        saved = last.compaction.saved if last.compaction is not None else 0
        tokens = last.utilization.tokens + saved - remaining
    await overrides.undo_compactions(caller.tenant, session, UndoneCompactions(now, tokens, ids))
    return ids
