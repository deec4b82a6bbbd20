"""What the API shows, as values that JSON has: models, sessions, exchanges."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from proxy.compaction.telling import record_of
from proxy.compaction.wishes import Wish
from proxy.core.budget import Limits, Utilization
from proxy.core.records import Exchange, Session
from proxy.observe import ModelView


def shown_limits(limits: Limits) -> dict[str, int]:
    """Window, triggers, targets and hard limit as separate figures, in tokens."""
    return {
        "window": limits.window,
        "conversation_trigger": limits.conversation,
        "conversation_target": limits.conversation_target,
        "generation_trigger": limits.generation,
        "generation_target": limits.generation_target,
        "hard_limit": limits.hard,
    }


def shown_utilization(used: Utilization) -> dict[str, Any]:
    """How full a window is, in tokens by kind, and as a share."""
    parts = ("preamble", "tools", "messages", "media", "reserved_output")
    return {
        "window": used.window,
        "window_known": used.window_known,
        "tokens": used.tokens,
        "utilization": round(used.ratio, 4),
        "carried": used.carried,
        "parts": {name: getattr(used, name) for name in parts},
    }


def shown_model(view: ModelView) -> dict[str, Any]:
    """One model as one tenant used it."""
    row = view.row
    return {
        "model": row.model,
        "upstream": row.upstream,
        "limits": shown_limits(view.limits),
        "usable_input": view.usable_input,
        "window_source": view.window_source,
        "last": shown_utilization(row.utilization),
        "peak_utilization": round(row.peak, 4),
        "totals": asdict(row.totals),
        "updated": row.updated,
    }


def shown_session(session: Session, wish: Wish) -> dict[str, Any]:
    """One session, and what is asked of it. Its totals hold what folds saved and what summaries took."""
    last = session.utilization
    return {
        "id": session.id,
        "label": session.label,
        "agent": session.agent,
        "client": session.client,
        "forked_from": session.forked_from,
        "model": session.model,
        "created": session.created,
        "updated": session.updated,
        "last": shown_utilization(last) if last else None,
        "totals": asdict(session.totals),
        "correction": session.correction,
        "pins": sorted(wish.pins),
        "compaction_wanted": wish.forced,
    }


def shown_exchange(exchange: Exchange) -> dict[str, Any]:
    """One request with its reply, and what was folded of it: the record that its response had in its header."""
    shown = asdict(exchange)
    del shown["session"]
    seen = exchange.compaction
    return {
        **shown,
        "utilization": shown_utilization(exchange.utilization),
        "compaction": record_of(seen) if seen is not None else None,
    }
