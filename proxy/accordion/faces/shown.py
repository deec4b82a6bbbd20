"""What the API shows, as values that JSON has: models, sessions, exchanges, artifacts."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import structs

from accordion.archive.artifacts import Artifact
from accordion.archive.reading_room import Lent
from accordion.compaction.telling import record_of
from accordion.compaction.wishes import Wish
from accordion.core.budget import Limits, Utilization
from accordion.core.delegation import TOP, name_of
from accordion.core.records import AgentSeen, Exchange, Session
from accordion.observe import AgentView, ModelView


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
    parts = ("preamble", "tools", "messages", "media", "unfolded", "reserved_output")
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
        "window_known": view.window_source != "default",
        "last": shown_utilization(row.utilization) if row.updated else None,
        "peak_utilization": round(row.peak, 4),
        "totals": structs.asdict(row.totals),
        "updated": row.updated or None,
    }


def shown_session(session: Session, wish: Wish) -> dict[str, Any]:
    """One session, and what is asked of it. Its totals hold what folds saved and what summaries took."""
    last, seen = session.utilization, session.seen or AgentSeen(delegated=False)
    return {
        "id": session.id,
        "label": session.label,
        "agent": seen.name or session.agent,
        "delegation": seen.delegation,
        "parent": seen.parent,
        "evidence": seen.evidence,
        "candidates": seen.candidates,
        "client": session.client,
        "forked_from": session.forked_from,
        "model": session.model,
        "created": session.created,
        "updated": session.updated,
        "last": shown_utilization(last) if last else None,
        "totals": structs.asdict(session.totals),
        "correction": session.correction,
        "pins": sorted(wish.pins),
        "compaction_wanted": wish.forced,
    }


def shown_agent(view: AgentView) -> dict[str, Any]:
    """One agent of a tree: its delegation with the edge to its parent and how that is known; how full its window is;
    what its last request was not shown, by whose it is. What is not known is null."""
    node, session = view.node, view.session
    seen = session.seen if session is not None else None
    last = session.utilization if session is not None else None
    return {
        "delegation": name_of(node.id),
        "parent": name_of(node.parent) if node.parent != TOP else None,
        "depth": view.depth,
        "agent": node.agent,
        "evidence": node.evidence,
        "call_id": node.call_id or None,
        "candidates": node.candidates,
        "placeholder": node.placeholder and session is None,
        "session": session.id if session is not None else None,
        "model": session.model if session is not None else None,
        "at": node.at or None,
        "last": shown_utilization(last) if last else None,
        "filtered": {"results": seen.hidden, "of": dict(seen.owners)} if seen is not None else None,
    }


def shown_artifact(artifact: Artifact) -> dict[str, Any]:
    """What is on record of something that left a window. Messages are counted from 0, without the system prompt."""
    names = ("id", "kind", "tool", "arguments", "call_id", "characters", "tokens", "description", "findings", "dialect")
    return {
        **{name: getattr(artifact, name) for name in names},
        "messages": [artifact.first, artifact.last],
        "session": artifact.session,
        "child": artifact.child or None,
        "at": artifact.at,
        "time": datetime.fromtimestamp(artifact.at, UTC).isoformat(timespec="seconds"),
    }


def shown_lent(lent: Lent) -> dict[str, Any]:
    """An artifact as it was asked for: its record, and of its text the part that `shown` says. `next` is the offset at
    which the next part begins."""
    return {
        "artifact": shown_artifact(lent.artifact),
        "what": lent.what,
        "sessions": lent.sessions,
        "input": lent.input,
        "shown": lent.part.shown,
        "next": lent.part.next or None,
        "text": lent.part.text,
        "originals": [msgspec.Raw(wire) for wire in lent.wires],
    }


def shown_exchange(exchange: Exchange) -> dict[str, Any]:
    """One request with its reply, and what was folded of it: the record that its response had in its header."""
    shown = msgspec.to_builtins(exchange)
    del shown["session"]
    seen = exchange.compaction
    return {
        **shown,
        "utilization": shown_utilization(exchange.utilization),
        "compaction": record_of(seen) if seen is not None else None,
        "agent": _shown_seen(exchange.agent) if exchange.agent is not None else None,
    }


def _shown_seen(seen: AgentSeen) -> dict[str, Any]:
    return {**asdict(seen), "owners": dict(seen.owners)}
