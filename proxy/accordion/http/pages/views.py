"""The values that the page's templates show, besides the records themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
from markupsafe import Markup

from accordion.accounting.calibration import LearnedLimit, LimitOwner
from accordion.compaction.session_overrides import SessionOverrides
from accordion.http.pages.charts import curve_points, draw_meter, draw_small_curve
from accordion.model.budget import TokenLimits
from accordion.model.delegation import TOP, display_name
from accordion.model.records import Exchange, Session, Totals
from accordion.pipeline.queries import AgentView, ModelView


class Health(msgspec.Struct, frozen=True):
    """The state of this worker: its store, the writes that wait for it, and the limits that providers named."""

    store: str
    is_available: bool
    problem: str
    waiting_writes: int
    spool: dict[str, object]
    limits: Sequence[tuple[LimitOwner, LearnedLimit]]


class ModelRow(msgspec.Struct, frozen=True):
    """A model with its window's meter."""

    view: ModelView
    used: int
    meter: Markup


class SessionRow(msgspec.Struct, frozen=True):
    """A session of a list, with the curve of its window."""

    session: Session
    overrides: SessionOverrides
    limits: TokenLimits
    curve: Markup


class AgentRow(msgspec.Struct, frozen=True):
    """An agent of a tree. `hidden` results were not shown to it in its last request."""

    view: AgentView
    name: str
    parent: str
    hidden: int
    owners: Sequence[tuple[str, int]]
    meter: Markup | None


class MemoryRow(msgspec.Struct, frozen=True):
    """A memory of a list or a search; `score` is None in a list."""

    id: str
    type: str
    text: str
    created: str
    topics: Sequence[str]
    project: str
    score: float | None = None


def model_rows(views: Sequence[ModelView]) -> list[ModelRow]:
    """Returns the rows of models."""
    rows = []
    for view in views:
        used = view.row.utilization.occupied_tokens if view.row.updated else 0
        label = f"{used:,} of {view.limits.window:,} tokens"
        rows.append(ModelRow(view, used, draw_meter(used, view.limits, label)))
    return rows


def session_row(
    session: Session, overrides: SessionOverrides, exchanges: Sequence[Exchange], limits: TokenLimits
) -> SessionRow:
    """Returns the row of a session."""
    points = curve_points(exchanges)
    label = f"The last {len(points)} requests; {points[-1].title}" if points else "No measured request"
    return SessionRow(session, overrides, limits, draw_small_curve(points, limits, label))


def agent_rows(views: Sequence[AgentView], limits: Callable[[Session], TokenLimits]) -> Iterator[AgentRow]:
    """Yields the rows of a tree's agents, parents first."""
    for view in views:
        node, session = view.node, view.session
        report = session.newest_agent if session is not None else None
        meter = None
        if session is not None and session.utilization is not None:
            used = session.utilization.occupied_tokens
            meter = draw_meter(used, limits(session), f"{used:,} tokens of {session.utilization.window:,}")
        is_main = node.id == TOP or (report is None and node.evidence == "none")
        name = node.agent or ("main agent" if is_main else display_name(node.id))
        yield AgentRow(
            view,
            name,
            display_name(node.parent) if node.parent != TOP else "",
            report.hidden if report is not None else 0,
            report.owners if report is not None else (),
            meter,
        )


def sum_totals(views: Sequence[ModelView]) -> Totals:
    """Returns the totals over all models."""
    return sum((view.row.totals for view in views), Totals())
