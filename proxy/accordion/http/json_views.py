"""The JSON documents of the API: models, sessions, exchanges, artifacts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import structs

from accordion.accounting.holdout import HoldoutComparison
from accordion.accounting.holdout_text import comparison_json, stop_json
from accordion.accounting.ledger import SavingsReport
from accordion.archive.archive_reader import ArtifactPart
from accordion.archive.artifacts import Artifact
from accordion.compaction.reporting import describe_outcome
from accordion.compaction.session_overrides import SessionOverrides
from accordion.model.budget import TokenLimits, Utilization
from accordion.model.costs import Costs, ModelPrice, PriceTable, to_dollars
from accordion.model.delegation import TOP, display_name
from accordion.model.records import AgentReport, Exchange, Session
from accordion.pipeline.queries import AgentView, ModelView
from accordion.pipeline.sent_history import ComparedBlock


def limits_json(limits: TokenLimits) -> dict[str, int]:
    """Returns window, triggers, targets and hard limit, in tokens."""
    return {
        "window": limits.window,
        "conversation_trigger": limits.conversation,
        "conversation_target": limits.conversation_target,
        "generation_trigger": limits.generation,
        "generation_target": limits.generation_target,
        "hard_limit": limits.hard,
    }


def utilization_json(utilization: Utilization) -> dict[str, Any]:
    """Returns a window's occupancy: tokens by kind, and the share of the window."""
    return {
        "window": utilization.window,
        "window_known": utilization.is_window_known,
        "tokens": utilization.tokens,
        "utilization": round(utilization.ratio, 4),
        "carried": utilization.includes_report,
        "parts": token_parts_json(utilization),
    }


def token_parts_json(utilization: Utilization) -> dict[str, int]:
    """Returns the tokens by kind, and those reserved for the response."""
    return {
        "preamble": utilization.preamble,
        "tools": utilization.tools,
        "messages": utilization.messages,
        "media": utilization.media,
        "insertions": utilization.insertions,
        "reserved_output": utilization.reserved_output,
    }


def costs_json(costs: Costs) -> dict[str, Any]:
    """Returns tokens and US dollars, and whether they are reported or estimates (docs/savings.md).

    The dollars are null if the price of no request is known.
    """
    return {
        "requests": costs.requests,
        "requests_estimated": costs.estimated,
        "requests_unpriced": costs.unpriced,
        "requests_over_window": costs.over_window,
        "tokens": {
            "sent": {
                "input": costs.input,
                "cached": costs.cached,
                "cache_write": costs.cache_write,
                "output": costs.output,
            },
            "without_accordion": {
                "input": costs.original_input,
                "cached": costs.original_cached,
                "output": costs.original_output,
            },
            "summaries": {"input": costs.summary_input, "output": costs.summary_output},
            "net_input": costs.original_input - costs.input - costs.summary_input,
        },
        "dollars": _dollars_json(costs) if costs.unpriced < costs.requests or not costs.requests else None,
        "basis": {"sent": costs.sent_basis, "without_accordion": costs.original_basis},
    }


def _dollars_json(costs: Costs) -> dict[str, Any]:
    own_costs = {
        "prefix": costs.prefix_cost,
        "summaries": costs.summary_cost,
        "insertions": costs.insertion_cost,
        "reads": costs.read_cost,
    }
    return {
        "spent": to_dollars(costs.spent),
        "without_accordion": to_dollars(costs.original_cost),
        "saved": to_dollars(costs.saved),
        "own_cost": to_dollars(costs.own_cost),
        "own_costs": {name: to_dollars(cost) for name, cost in own_costs.items()},
        "net": to_dollars(costs.net),
    }


def savings_json(
    report: SavingsReport, prices: PriceTable | None, comparison: HoldoutComparison | None
) -> dict[str, Any]:
    """Returns a tenant's costs: in all, by day, by model with its present price, and by agent.

    `comparison` is that with a hold-out, if there is one.
    """
    return {
        "first": report.first,
        "last": report.last,
        "total": costs_json(report.total),
        "days": [{"day": each.day, **costs_json(each.costs)} for each in report.days],
        "models": [
            {
                "model": each.model,
                "upstream": each.upstream,
                "price": _price_json(prices.price(each.model) if prices is not None else None),
                **costs_json(each.costs),
            }
            for each in report.models
        ],
        "agents": [{"agent": each.agent, **costs_json(each.costs)} for each in report.agents],
        "holdout": comparison_json(comparison) if comparison is not None else None,
        "stops": [stop_json(stop) for stop in report.stops],
    }


def _price_json(price: ModelPrice | None) -> dict[str, Any] | None:
    """Returns a price in US dollars for a million tokens, and its source."""
    if price is None:
        return None
    names = {"input": "input", "cached_input": "cached", "cache_write": "cache_write", "output": "output"}
    million = 1_000_000
    return {"source": price.source} | {
        name: to_dollars(round(getattr(price.rates, rate) * million)) for name, rate in names.items()
    }


def model_json(view: ModelView) -> dict[str, Any]:
    """Returns a model with one tenant's usage."""
    row = view.row
    return {
        "model": row.model,
        "upstream": row.upstream,
        "limits": limits_json(view.limits),
        "usable_input": view.usable_input,
        "window_source": view.window_source,
        "window_known": view.window_source not in ("family", "default"),
        "last": utilization_json(row.utilization) if row.updated else None,
        "peak_utilization": round(row.peak, 4),
        "totals": structs.asdict(row.totals),
        "updated": row.updated or None,
    }


def session_json(session: Session, overrides: SessionOverrides) -> dict[str, Any]:
    """Returns a session with its overrides. The totals include saved tokens and the cost of summaries."""
    last, agent = session.utilization, session.newest_agent or AgentReport(delegated=False)
    return {
        "id": session.id,
        "name": session.name,
        "project": session.project,
        "label": session.label,
        "agent": agent.name or session.agent,
        "delegation": agent.delegation,
        "parent": agent.parent,
        "evidence": agent.evidence,
        "candidates": agent.candidates,
        "client": session.client,
        "forked_from": session.forked_from,
        "model": session.model,
        "created": session.created,
        "updated": session.updated,
        "last": utilization_json(last) if last else None,
        "totals": structs.asdict(session.totals),
        "costs": costs_json(session.costs),
        "correction": session.correction,
        "pins": sorted(overrides.pins),
        "compaction_wanted": overrides.wants_compaction,
        "mode": overrides.mode,
    }


def agent_json(view: AgentView) -> dict[str, Any]:
    """Returns an agent of a delegation tree: its parent with the evidence, its last utilization, and the number of
    results hidden from its last request, by owner. Unknown values are null."""
    node, session = view.node, view.session
    agent = session.newest_agent if session is not None else None
    last = session.utilization if session is not None else None
    return {
        "delegation": display_name(node.id),
        "parent": display_name(node.parent) if node.parent != TOP else None,
        "depth": view.depth,
        "agent": node.agent,
        "evidence": node.evidence,
        "call_id": node.call_id or None,
        "candidates": node.candidates,
        "placeholder": node.is_placeholder and session is None,
        "session": session.id if session is not None else None,
        "model": session.model if session is not None else None,
        "at": node.at or None,
        "last": utilization_json(last) if last else None,
        "filtered": {"results": agent.hidden, "of": dict(agent.owners)} if agent is not None else None,
    }


def artifact_json(artifact: Artifact) -> dict[str, Any]:
    """Returns an artifact's record. Messages are counted from 0, without the system prompt."""
    names = ("id", "kind", "tool", "arguments", "call_id", "characters", "tokens", "description", "findings")
    return {
        **{name: getattr(artifact, name) for name in names},
        "protocol": artifact.protocol_name,
        "messages": [artifact.first, artifact.last],
        "session": artifact.session,
        "child": artifact.child or None,
        "at": artifact.at,
        "time": datetime.fromtimestamp(artifact.at, UTC).isoformat(timespec="seconds"),
    }


def artifact_part_json(excerpt: ArtifactPart) -> dict[str, Any]:
    """Returns an artifact's record and a part of its text.

    `shown` says which part and of what, `next` is the offset of the next part.
    """
    return {
        "artifact": artifact_json(excerpt.artifact),
        "what": excerpt.what,
        "sessions": excerpt.sessions,
        "input": excerpt.input,
        "shown": excerpt.part.shown,
        "next": excerpt.part.next or None,
        "text": excerpt.part.text,
        "originals": [msgspec.Raw(wire) for wire in excerpt.wires],
    }


def compared_block_json(block: ComparedBlock, artifacts: Sequence[Artifact]) -> dict[str, Any]:
    """Returns a block of a comparison. Unchanged messages are not repeated."""
    is_changed = block.kind != "unchanged"
    return {
        "kind": block.kind,
        "messages": [block.first, block.last] if block.first >= 0 else None,
        "client": [msgspec.Raw(message.wire) for _, message in block.client] if is_changed else [],
        "sent": [msgspec.Raw(message.wire) for message in block.forwarded] if is_changed else [],
        "artifacts": [artifact.id for artifact in artifacts],
    }


def exchange_json(exchange: Exchange) -> dict[str, Any]:
    """Returns an exchange with its compaction as the response header had it."""
    fields = msgspec.to_builtins(exchange)
    del fields["session"]
    outcome = exchange.compaction
    return {
        **fields,
        "utilization": utilization_json(exchange.utilization),
        "compaction": describe_outcome(outcome) if outcome is not None else None,
        "agent": _agent_report_json(exchange.agent) if exchange.agent is not None else None,
        "costs": costs_json(exchange.costs) if exchange.costs is not None else None,
    }


def _agent_report_json(report: AgentReport) -> dict[str, Any]:
    return {**structs.asdict(report), "owners": dict(report.owners)}
