"""What a replay says to machines: plain values, a line of JSON each. Counts in tokens, shares of 1."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec

from accordion.core.budget import Decision, Limits, Utilization, Window
from accordion.offline.refolding import Carried, Load, Sums
from accordion.offline.replay import Measured
from accordion.offline.transcripts import Recorded
from accordion.telling import told


def measured(recorded: Recorded, row: Measured, *, usage: bool) -> dict[str, Any]:
    """One request that was gauged; with its count and the provider's where `usage` is wanted."""
    found = _request(recorded, row) | {
        "messages": row.messages,
        "tokens": row.tokens,
        "new_tokens": row.new,
        "utilization": round(row.utilization.ratio, 6),
        "parts": _parts(row.utilization),
        "unchanged_prefix": round(row.unchanged, 6),
        **_limits(row.window, row.limits, row.decision),
    }
    return found | ({"counted": row.counted, "reported": row.reported or None} if usage else {})


def carried(recorded: Recorded, row: Carried) -> dict[str, Any]:
    """One request with folding on; `compaction` is what the header x-accordion-compaction would say, `tool` our own
    where it went along."""
    return _request(recorded, row) | {
        "state": row.state,
        "before": _load(row.came),
        "after": _load(row.sent),
        "saved_tokens": 0 if row.refused else row.came.tokens - row.sent.tokens,
        "begins_with_the_one_before": row.grown,
        "tool": {"name": row.offered, "tokens": row.tool, "new": bool(row.brought)} if row.offered else None,
        "compaction": msgspec.json.decode(told(row.seen)) if row.seen is not None else None,
        "refused": row.refused,
        **_limits(row.window, row.limits, row.decision),
    }


def totals(found: Sums) -> dict[str, Any]:
    """The sums of a replay with folding on."""
    said = asdict(found)
    said |= {name: round(said[name], 1) for name in ("came_cost", "sent_cost")}
    return {"totals": said | {"saved": found.came - found.sent, "cost": round(found.cost, 4)}}


def _request(recorded: Recorded, row: Measured | Carried) -> dict[str, Any]:
    return {
        "file": recorded.file,
        "line": recorded.line,
        "conversation": recorded.name,
        "request": row.number,
        "turn": row.turn,
        "kind": "turn_start" if row.starts_turn else "mid_generation",
        "read": row.limits is not None,
        "model": row.model,
        "session": row.session,
    }


def _load(load: Load) -> dict[str, Any]:
    return {
        "messages": load.messages,
        "tokens": load.tokens,
        "utilization": round(load.used.ratio, 6),
        "parts": _parts(load.used),
        "unchanged_prefix": round(load.cached / load.tokens, 6) if load.tokens else 0.0,
        "cost": round(load.cost, 1),
    }


def _parts(used: Utilization) -> dict[str, int]:
    names = ("preamble", "tools", "messages", "media", "unfolded", "reserved_output")
    return {name: getattr(used, name) for name in names}


def _limits(window: Window | None, limits: Limits | None, decision: Decision) -> dict[str, Any]:
    return {
        "window": {"size": window.size, "usable_input": window.usable_input, "source": window.source}
        if window
        else None,
        "limits": {"conversation": limits.conversation, "generation": limits.generation, "hard": limits.hard}
        if limits
        else None,
        "decision": {"action": decision.action, "reason": decision.reason},
    }
