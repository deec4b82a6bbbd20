"""The values that the page's templates show, besides the records themselves: rows of lists, and compared messages.

A comparison has the client's messages beside the forwarded ones, with links between them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from markupsafe import Markup

from accordion.accounting.calibration import LearnedLimit, LimitOwner
from accordion.archive.artifacts import Artifact
from accordion.compaction.session_overrides import SessionOverrides
from accordion.features.page.charts import curve_points, draw_meter, draw_small_curve
from accordion.features.page.recent_log import LogLine
from accordion.features.page.rendering import capitalize
from accordion.features.page.request_health import TenantHealth
from accordion.model.budget import TokenLimits
from accordion.model.conversation import Media, Message, Opaque, Reasoning, Text, ToolCall, ToolResult
from accordion.model.delegation import TOP, display_name
from accordion.model.records import Exchange, Session, Totals
from accordion.pipeline.queries import AgentView, ModelView
from accordion.pipeline.sent_history import BlockKind, ComparedBlock, find_artifacts

_MOST, _LEAST = 6_000, 200
"""Characters of a part that are shown: fewer in a conversation of many messages."""
_MOST_IN_ALL = 2_000_000
_MOST_FORWARDED = 60_000
_MOST_UNCHANGED = 400
_SHORT = 500
"""A longer text is shown up to its first line."""
_LONG_LINE = 240
"""A longer line of a summary is shown up to its first words."""
_LINK = re.compile(r"\bart_[0-9a-f]{12}\b|\[\d{1,7}(?:\s*[-–,]\s*\d{1,7})*\]")
_NUMBER = re.compile(r"\d+")


class Health(msgspec.Struct, frozen=True):
    """The state of this worker: its store, the writes that wait for it, what went wrong lately, and learned limits.

    `warnings` are lines of the log, the latest first: about all tenants, so only the owner of a proxy without proxy
    keys and the administrator see them.
    """

    store: str
    is_available: bool
    problem: str
    waiting_writes: int
    spool: dict[str, object]
    limits: Sequence[tuple[LimitOwner, LearnedLimit]]
    requests: TenantHealth = msgspec.field(default_factory=TenantHealth)
    warnings: Sequence[LogLine] = ()


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


def model_rows(views: Sequence[ModelView]) -> list[ModelRow]:
    """Returns the rows of models."""
    rows = []
    for view in views:
        used = view.row.utilization.occupied_tokens if view.row.updated else 0
        assumed = "an assumed " if view.window_source in ("family", "default") else ""
        label = f"{used:,} of {assumed}{view.limits.window:,} tokens"
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
            assumed = "" if session.utilization.is_window_known else "an assumed "
            meter = draw_meter(used, limits(session), f"{used:,} tokens of {assumed}{session.utilization.window:,}")
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


# -- a comparison -----------------------------------------------------------------------------------------------------


class LinkedText(msgspec.Struct, frozen=True):
    """A piece of a text; `target` is the id of an artifact, `message` the index of a message that it refers to."""

    text: str
    artifact: str = ""
    message: int = -1


class PartView(msgspec.Struct, frozen=True):
    """A part of a message. `lines` have the text; `left_out` characters behind it are not shown."""

    title: str
    lines: tuple[tuple[LinkedText, ...], ...]
    characters: int
    left_out: int = 0
    call_id: str = ""
    """The id of a tool result's call, by which it can be pinned."""

    @property
    def is_long(self) -> bool:
        """Whether the text is cut."""
        return self.characters > _SHORT

    @property
    def beginning(self) -> str:
        """The first words: the first line that has any."""
        lines = ("".join(piece.text for piece in line).strip() for line in self.lines)
        return next(filter(None, lines), "")[:120]


class MessageView(msgspec.Struct, frozen=True):
    """A message; `index` is the client's, -1 for a message that the proxy wrote."""

    role: str
    parts: tuple[PartView, ...]
    index: int = -1

    @property
    def title(self) -> str:
        """The title of its first part, such as the call of a tool."""
        return self.parts[0].title if self.parts else ""

    @property
    def beginning(self) -> str:
        """Its first words."""
        return self.parts[0].beginning if self.parts else ""

    @property
    def is_one_line(self) -> bool:
        """Whether its first words are all that it says."""
        return not self.parts or (len(self.parts) == 1 and self.parts[0].characters <= len(self.beginning))


class CitedLine(msgspec.Struct, frozen=True):
    """A line of a summary, with the messages that it was made of.

    `sources` are shown beside it, each where it is first cited. `earlier` are the indexes of messages that an earlier
    line has beside it.
    """

    pieces: tuple[LinkedText, ...]
    is_heading: bool = False
    sources: tuple[MessageView, ...] = ()
    earlier: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """The whole line."""
        return "".join(piece.text for piece in self.pieces).strip()

    @property
    def is_long(self) -> bool:
        """Whether the line is shown up to its first words."""
        return len(self.text) > _LONG_LINE


class BlockView(msgspec.Struct, frozen=True):
    """A block of a comparison."""

    kind: BlockKind
    title: str
    client: tuple[MessageView, ...]
    forwarded: tuple[MessageView, ...]
    artifacts: tuple[Artifact, ...]
    """The artifacts that hold its messages: whole ranges, or single results where there is no range."""
    parts: int = 0
    """The number of single results that are artifacts besides the ranges."""
    lines: tuple[CitedLine, ...] = ()
    """The lines of a summary."""
    uncited: tuple[MessageView, ...] = ()
    """The messages that no line of the summary cites."""

    @property
    def is_unchanged(self) -> bool:
        """Whether it is forwarded as it came."""
        return self.kind == "unchanged"


_TITLES: Mapping[BlockKind, str] = {
    "unchanged": "unchanged",
    "edited": "edited",
    "summary": "replaced by one message",
    "removed": "removed",
    "inserted": "inserted by Accordion",
}


def view_blocks(blocks: Sequence[ComparedBlock], artifacts: Sequence[Artifact]) -> list[BlockView]:
    """Returns the views of compared blocks."""
    views, count = [], sum(len(block.client) for block in blocks)
    most_changed = max(_LEAST, min(_MOST, _MOST_IN_ALL // max(1, count)))
    for block in blocks:
        most = min(_MOST_UNCHANGED, most_changed) if block.kind == "unchanged" else most_changed
        client = tuple(_view_message(message, most, index=index) for index, message in block.client)
        # Only what the proxy wrote cites messages; in other texts a number in brackets is something else.
        written = () if block.kind == "unchanged" else block.forwarded
        cited = count if block.kind in ("summary", "inserted") else 0
        forwarded = tuple(_view_message(each, _MOST_FORWARDED, cited) for each in written)
        found = find_artifacts(block, artifacts)
        ranges = [artifact for artifact in found if artifact.kind == "range"]
        parts = len(found) - len(ranges) if ranges else 0
        view = BlockView(block.kind, _title(block), client, forwarded, tuple(ranges or found), parts)
        views.append(_with_lines(view) if block.kind == "summary" else view)
    return views


def _with_lines(block: BlockView) -> BlockView:
    """Returns a summary's block with its lines, each beside the messages that it cites."""
    messages, shown, lines = {view.index: view for view in block.client}, set[int](), list[CitedLine]()
    for pieces in (line for view in block.forwarded for part in view.parts for line in part.lines):
        if not (text := "".join(piece.text for piece in pieces).strip()):
            continue
        cited = [index for index in _list_cited(pieces) if index in messages]
        sources = tuple(messages[index] for index in cited if index not in shown)
        earlier = tuple(index for index in cited if index in shown)
        shown.update(cited)
        lines.append(CitedLine(pieces, text.startswith("## "), sources, earlier))
    uncited = tuple(view for view in block.client if view.index not in shown)
    return msgspec.structs.replace(block, lines=tuple(lines), uncited=uncited)


def _list_cited(pieces: Sequence[LinkedText]) -> list[int]:
    """Returns the indexes of the messages that a line cites, in order. `3-5` cites three."""
    cited, before = dict[int, None](), ""
    last = -1
    for piece in pieces:
        if piece.message >= 0:
            is_range = last >= 0 and before.strip() in ("-", "–")
            cited.update(dict.fromkeys(range(last + 1 if is_range else piece.message, piece.message + 1)))
            last = piece.message
        before = piece.text
    return list(cited)


def _title(block: ComparedBlock) -> str:
    if block.first < 0:
        return capitalize(_TITLES[block.kind])
    name = f"Message {block.first}" if block.first == block.last else f"Messages {block.first} to {block.last}"
    return f"{name}: {_TITLES[block.kind]}"


def _view_message(message: Message, most: int, cited: int = 0, index: int = -1) -> MessageView:
    """Returns the view of a message, with at most `most` characters of each part. Citations of the first `cited`
    messages become links."""
    views = (_view_part(part, most, cited) for part in message.parts)
    return MessageView(message.role, tuple(view for view in views if view is not None), index)


def _view_part(part: object, most: int, cited: int) -> PartView | None:
    if isinstance(part, Text):
        return _view_text("", part.text, most, cited) if part.text else None
    if isinstance(part, Reasoning):
        return _view_text("reasoning", part.text or f"(sealed, {part.encrypted_size:,} bytes)", most, cited)
    if isinstance(part, ToolCall):
        return _view_text(f"calls {part.name}", part.arguments, most, cited)
    if isinstance(part, ToolResult):
        text = "\n".join(_plain(each) for each in part.parts)
        view = _view_text("error" if part.error else "result", text, most, cited)
        return msgspec.structs.replace(view, call_id=part.call_id)
    return _view_text("", _plain(part), most, cited)


def _plain(part: object) -> str:
    if isinstance(part, Text | Reasoning):
        return part.text
    if isinstance(part, Media):
        size = f" {part.width}×{part.height}" if part.width else f" {part.size:,} bytes" if part.size else ""
        return f"({part.media_type or part.kind}{size})"
    return f"({part.kind}, {part.size:,} bytes)" if isinstance(part, Opaque) else ""


def _view_text(title: str, text: str, most: int, cited: int) -> PartView:
    lines = tuple(tuple(link_text(line, cited)) for line in text[:most].split("\n"))
    return PartView(title, lines, len(text), max(0, len(text) - most))


def link_text(line: str, cited: int = 0) -> Iterator[LinkedText]:
    """Yields the pieces of a line. The ids of artifacts are links, and the numbers of the first `cited` messages."""
    end = 0
    for match in _LINK.finditer(line):
        if match.start() > end:
            yield LinkedText(line[end : match.start()])
        end = match.end()
        if match[0].startswith("art_"):
            yield LinkedText(match[0], artifact=match[0])
        else:
            yield from _link_citation(match[0], cited)
    if end < len(line) or not line:
        yield LinkedText(line[end:])


def _link_citation(text: str, cited: int) -> Iterator[LinkedText]:
    end = 0
    for number in _NUMBER.finditer(text):
        yield LinkedText(text[end : number.start()])
        index = int(number[0])
        yield LinkedText(number[0], message=index if index < cited else -1)
        end = number.end()
    yield LinkedText(text[end:])
