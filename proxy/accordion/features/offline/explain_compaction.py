"""Explains a request's compaction: the message list before and after, the summary blocks, and the artifacts.

`report_compaction` makes the values that `--json` prints; `compaction_rows` and `compaction_details` make the text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, Literal

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text as RichText

from accordion.archive.artifacts import Artifact
from accordion.cli.listing import count_with_noun
from accordion.features.offline.offline_pipeline import OfflinePipeline
from accordion.model.budget import SUMMARIZE_AHEAD, Decision
from accordion.model.compaction import CompactedConversation
from accordion.model.conversation import Conversation, Message, Part, Text, ToolResult
from accordion.model.plan import WRITTEN_BY_COMPACTION
from accordion.pipeline.request import MeasuredRequest, PreparedRequest
from accordion.pipeline.sent_history import SentRequest
from accordion.protocols.json_spans import FIELDS
from accordion.sessions.tenants import Caller

Became = Literal["kept", "edited", "block", "left out"]


@dataclass(frozen=True, slots=True)
class MessageReport:
    """One of the client's messages, and its form after the compaction.

    `index` counts in the client's list, `number` in the citations of blocks, which leave out the system prompt. `after`
    are its tokens after the compaction, `block` the number of the block that replaces it, from 1, and `text` the new
    text of an edited message.
    """

    index: int
    number: int
    role: str
    parts: dict[str, int]
    tokens: int
    became: Became
    after: int = 0
    block: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class BlockReport:
    """A summary block that replaces messages `first` to `last`. Those of them that stay follow it."""

    number: int
    first: int
    last: int
    tokens: int
    text: str


@dataclass(frozen=True, slots=True)
class ArchivedPart:
    """An artifact: a tool result, another part, or the range of messages `first` to `last`."""

    id: str
    kind: str
    tool: str
    first: int
    last: int
    tokens: int
    characters: int
    description: str


@dataclass(frozen=True, slots=True)
class StrategyReport:
    """The effect of one strategy, in tokens of the whole request."""

    strategy: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class ToolReport:
    """The proxy's own tool, offered from a conversation's first compaction on.

    `tokens` is its size in every request from then on; the first step of the compaction includes it.
    """

    name: str
    tokens: int


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """Whether and how a request is compacted.

    `state` is `none`, `compacted`, `observed` (only reported, because of the mode or a header) or `failed`; `why` is
    the reason. `before` and `after` are the tokens of the whole request (planned ones if only reported), `messages` the
    entries of its list, `bytes` its body. `offered` is the proxy's tool, counted in `after` only; None if it is not
    offered. `writer` wrote the summary here, `live_writer` is the configured one. `refused` is the reason of a refusal
    in spite of the compaction.
    """

    state: str
    why: str
    kind: str = ""
    trigger: int = 0
    target: int = 0
    must_succeed: bool = False
    forced: bool = False
    before: int = 0
    after: int = 0
    messages: tuple[int, int] = (0, 0)
    bytes: tuple[int, int] = (0, 0)
    generation: int = 0
    id: str = ""
    passes: int = 0
    steps: tuple[StrategyReport, ...] = ()
    offered: ToolReport | None = None
    writer: str = ""
    live_writer: str = ""
    listed: tuple[MessageReport, ...] = ()
    blocks: tuple[BlockReport, ...] = ()
    artifacts: tuple[ArchivedPart, ...] = ()
    body: str = ""
    refused: str = ""


async def report_compaction(
    request: MeasuredRequest, result: PreparedRequest, pipeline: OfflinePipeline, caller: Caller, full: bool
) -> CompactionReport:
    """Compares a measured request with the compacted one. `full` adds the whole forwarded body."""
    decision, outcome, tokens = result.decision, result.compaction_outcome, request.utilization.tokens
    refused = result.decision.reason if result.decision.action == "refuse" else ""
    full = full and not refused
    body = result.forwarded_body.decode(errors="replace") if full else ""
    if outcome is None:
        return CompactionReport("none", _why_not(decision), before=tokens, after=tokens, body=body, refused=refused)
    report = CompactionReport(
        state="failed" if outcome.failure else outcome.state,
        why=outcome.reason or decision.reason,
        kind=outcome.kind,
        trigger=decision.trigger,
        target=decision.target,
        must_succeed=decision.must_succeed,
        forced=decision.is_requested,
        before=tokens,
        after=outcome.after if outcome.state == "observed" else result.utilization.tokens,
        passes=outcome.strategy_runs,
        steps=tuple(StrategyReport(*step) for step in outcome.steps),
        offered=await _describe_tool(request, result, pipeline),
        live_writer=pipeline.writer(request.conversation.model),
        body=body,
        refused=refused,
    )
    if result.history.compaction is None:
        return report
    return await _compare(report, request.conversation, result, result.history, pipeline, caller)


def report_sent(
    sent: SentRequest, artifacts: Sequence[Artifact], count: Callable[[Message], int], *, full: bool
) -> CompactionReport:
    """Compares the last request of a session, as it was sent, with the client's. `full` adds the whole body."""
    client, exchange, compaction = sent.original.conversation, sent.exchange, sent.compaction
    tokens, body = exchange.utilization.tokens, sent.body.decode(errors="replace") if full else ""
    if compaction is None:
        return CompactionReport("none", exchange.decision, before=tokens, after=tokens, body=body)
    blocks, field = _blocks(sent.history, count), sent.original.protocol.messages_field
    return CompactionReport(
        state="compacted",
        why=exchange.decision,
        kind=compaction.kind,
        before=tokens + (exchange.compaction.saved if exchange.compaction is not None else 0),
        after=tokens,
        messages=(count_entries(sent.original.body, field), count_entries(sent.body, field)),
        bytes=(len(sent.original.body), len(sent.body)),
        generation=compaction.generation,
        id=compaction.id,
        steps=tuple(StrategyReport(step.strategy, step.before, step.after) for step in compaction.steps),
        writer=compaction.writer,
        listed=tuple(_describe_messages(client, sent.history, blocks, len(client.lead), count)),
        blocks=tuple(blocks),
        artifacts=tuple(map(_describe_artifact, artifacts)),
        body=body,
    )


def _describe_artifact(artifact: Artifact) -> ArchivedPart:
    names = ("id", "kind", "tool", "first", "last", "tokens", "characters", "description")
    return ArchivedPart(*(getattr(artifact, name) for name in names))


async def _describe_tool(
    request: MeasuredRequest, result: PreparedRequest, pipeline: OfflinePipeline
) -> ToolReport | None:
    """Returns the proxy's tool in the forwarded request, or in the planned one of a report."""
    if result.compaction_outcome is not None and result.compaction_outcome.state == "observed":
        list_meter = pipeline.forward.prepare.compaction_step.list_meter
        tokens = await list_meter.count_tool_tokens(request)
        if not tokens:
            return None
        conversation = list_meter.insertion_composer.offer_tool(request.protocol, request.history.conversation)
        return ToolReport(tool_name(conversation.tools[-1]), tokens)
    tokens = result.utilization.tools - request.utilization.tools
    return ToolReport(result.tool_name, tokens) if result.tool_name and tokens else None


def _why_not(decision: Decision) -> str:
    if decision.action == SUMMARIZE_AHEAD:
        return f"{decision.reason}; a summary is being prepared in the background"
    return decision.reason


async def _compare(
    report: CompactionReport,
    client: Conversation,
    result: PreparedRequest,
    compacted: CompactedConversation,
    pipeline: OfflinePipeline,
    caller: Caller,
) -> CompactionReport:
    """Adds the messages, blocks and artifacts of the compaction to a report."""
    compaction = compacted.compaction
    assert compaction is not None  # noqa: S101  # checked by the caller

    def count(message: Message) -> int:
        return pipeline.token_meter.count_message(message, client, result.actual_model).tokens

    blocks = _blocks(compacted, count)
    forwarded_body, lead = result.rewritten_body or b"", len(client.lead)
    return replace(
        report,
        messages=(
            count_entries(result.decoded_body, result.protocol.messages_field),
            count_entries(forwarded_body, result.protocol.messages_field),
        ),
        bytes=(len(result.decoded_body), len(forwarded_body)),
        generation=compaction.generation,
        id=compaction.id,
        writer=compaction.writer,
        listed=tuple(_describe_messages(client, compacted, blocks, lead, count)),
        blocks=tuple(blocks),
        artifacts=tuple(map(_describe_artifact, await pipeline.artifacts(compaction.artifacts, caller))),
    )


def _blocks(compacted: CompactedConversation, count: Callable[[Message], int]) -> list[BlockReport]:
    blocks: list[BlockReport] = []
    for message, origin, span in zip(compacted.conversation.messages, compacted.origins, compacted.spans, strict=True):
        if origin == WRITTEN_BY_COMPACTION:
            blocks.append(BlockReport(len(blocks) + 1, span[0], span[1], count(message), _text(message)))
    return blocks


def _describe_messages(
    client: Conversation,
    compacted: CompactedConversation,
    blocks: list[BlockReport],
    lead: int,
    count: Callable[[Message], int],
) -> Iterator[MessageReport]:
    positions = {
        origin: position for position, origin in enumerate(compacted.origins) if origin != WRITTEN_BY_COMPACTION
    }
    for number, message in enumerate(client.messages):
        parts = dict(count_kinds(message))
        make_report = partial(MessageReport, lead + number, number, message.role, parts, count(message))
        position = positions.get(number)
        if position is None:
            block = next((block.number for block in blocks if block.first <= number <= block.last), 0)
            yield make_report("block" if block else "left out", block=block)
            continue
        compacted_message = compacted.conversation.messages[position]
        if compacted.spans[position][2]:
            yield make_report("edited", count(compacted_message), text=_new_text(message, compacted_message))
        else:
            yield make_report("kept", count(compacted_message))


def count_entries(body: bytes, listing: str) -> int:
    """Counts the entries of a body's message list, with the system prompt."""
    entries = FIELDS.decode(body).get(listing)
    return len(msgspec.json.decode(entries, type=list[msgspec.Raw])) if entries and bytes(entries)[:1] == b"[" else 1


def tool_name(definition: str) -> str:
    """Returns a tool's name from its JSON definition."""
    try:
        tool: Any = msgspec.json.decode(definition)
    except (msgspec.MsgspecError, RecursionError):
        return "?"
    if not isinstance(tool, dict):
        return "?"
    fields = tool.get("function") or tool.get("custom")
    return str((fields if isinstance(fields, dict) else tool).get("name") or tool.get("type") or "?")


def count_kinds(message: Message) -> Counter[str]:
    """Counts a message's parts by kind."""
    return Counter(type(part).__name__ for part in message.parts)


def _new_text(before: Message, after: Message) -> str:
    """Returns the text of the new parts."""
    old_parts = set(before.parts)
    return "\n".join(_part(part) for part in after.parts if part not in old_parts)


def _text(message: Message) -> str:
    return "\n".join(map(_part, message.parts))


def _part(part: Part) -> str:
    if isinstance(part, ToolResult):
        return "\n".join(map(_part, part.parts))
    return part.text if isinstance(part, Text) else ""


_MAX_ARTIFACTS = 12
"""The number of artifacts to list without `--full`."""

_LEVELS = {
    "conversation": "conversation: the history is compacted",
    "generation": "generation: only what was produced since the task is compacted",
}
_WRITERS = {"request": "by the request's own model, if it can be called", "extractive": "the same way"}
_RESULT_NAMES = {"kept": "unchanged", "left out": "removed"}


def compaction_rows(report: CompactionReport) -> Iterator[tuple[str, str | RichText]]:
    """Yields the rows of the section about the compaction: name and value."""
    if report.refused:
        yield "refused", RichText(report.refused, style="bold red")
    if report.state == "none":
        yield "compacted", RichText("no", style="bold")
        yield "reason", report.why
        return
    if report.state == "failed":
        yield "compacted", RichText("no, the compaction failed", style="bold red")
        yield "reason", report.why
    else:
        yield "compacted", RichText("yes" if report.state == "compacted" else "no, it is only reported", style="bold")
        yield "reason", report.why
    if not report.kind:
        return
    yield "kind", _LEVELS.get(report.kind, report.kind)
    yield "trigger", "on request" if report.forced else f"{report.trigger:,} tokens"
    yield (
        "target",
        f"{report.target:,} tokens" + ("; the request does not fit without it" if report.must_succeed else ""),
    )
    if report.state == "failed":
        return
    planned = " (planned)" if report.state == "observed" else ""
    gain = 1 - report.after / report.before if report.before else 0.0
    yield "tokens", RichText(f"{report.before:,} to {report.after:,}, {gain:.1%} less{planned}", style="bold")
    for position, step in enumerate(report.steps):
        yield "" if position else "steps", f"{step.strategy}: {step.before:,} to {step.after:,}"
    if (tool := report.offered) is not None:
        period = "only reported" if report.state == "observed" else "in each request from now on"
        yield "tool added", f"{tool.name}, {period}, to read the archive: {tool.tokens:,} tokens"
    if report.state == "compacted":
        yield "messages", f"{report.messages[0]:,} to {report.messages[1]:,}"
        yield "body", f"{report.bytes[0]:,} to {report.bytes[1]:,} bytes"
        yield "id", f"{report.id}, number {report.generation} of this conversation"
    if report.writer:
        live_writer = _WRITERS.get(report.live_writer, f"by the model {report.live_writer}")
        yield "summary", f"written without a model ({report.writer}); in the running proxy, {live_writer}"


def compaction_details(report: CompactionReport, *, full: bool) -> Iterator[RenderableType]:
    """Yields the parts below the rows: both message lists side by side, the blocks, the artifacts, and a full body."""
    if report.listed:
        yield _section("before and after", _side_by_side(report))
        if any(message.index != message.number for message in report.listed):
            yield Padding(
                RichText("The numbers leave out the system prompt, as those in the block do.", style="dim"),
                (0, 0, 0, 2),
            )
    for block in report.blocks:
        yield _section(f"block {block.number}, {block.tokens:,} tokens", RichText(block.text, overflow="fold"))
    if report.artifacts:
        yield _section(
            f"archived: {count_with_noun(len(report.artifacts), 'artifact')}",
            _archive_table(report.artifacts, full=full),
        )
    if report.body:
        yield _section("forwarded body", RichText(report.body, overflow="fold"))


def _section(title: str, content: RenderableType) -> RenderableType:
    return Group("", RichText(title, style="bold"), Padding(content, (0, 0, 0, 2)))


def _side_by_side(report: CompactionReport) -> Table:
    """Makes a table of the message list before and after; a run of messages with the same result is one line."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("before", overflow="fold")
    table.add_column("tokens", justify="right", no_wrap=True)
    table.add_column("after", overflow="fold")
    table.add_column("tokens", justify="right", no_wrap=True)
    blocks, shown_blocks = {block.number: block for block in report.blocks}, set[int]()
    for (became, number, _), messages in groupby(report.listed, key=_group_key):
        group = list(messages)
        before = f"{sum(message.tokens for message in group):,}"
        if number:
            is_repeated = number in shown_blocks
            shown_blocks.add(number)
            block_label = RichText(f"block {number}", style="bold")
            table.add_row(_group_label(group), before, block_label, "" if is_repeated else f"{blocks[number].tokens:,}")
            continue
        text = RichText(
            _RESULT_NAMES.get(became, became), style={"kept": "green", "edited": "yellow"}.get(became, "red")
        )
        if group[0].text:
            text.append(f": {_short(group[0].text)}", style="default")
        after = sum(message.after for message in group)
        table.add_row(_group_label(group), before, text, f"{after:,}" if became != "left out" else "")
    return table


def _group_key(message: MessageReport) -> tuple[str, int, int]:
    return message.became, message.block, message.number if message.became == "edited" else -1


def _group_label(group: list[MessageReport]) -> str:
    first, last = group[0], group[-1]
    if first is last:
        return f"[{first.number}] {first.role}"
    roles = ", ".join(f"{count} {role}" for role, count in Counter(message.role for message in group).items())
    return f"[{first.number}-{last.number}] {roles}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 90 else line[:89] + "…"


def _archive_table(artifacts: Iterable[ArchivedPart], *, full: bool) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    # Ranges first.
    ordered = sorted(artifacts, key=lambda artifact: (artifact.kind != "range", artifact.first, artifact.last))
    for artifact in ordered if full else ordered[:_MAX_ARTIFACTS]:
        position = f"[{artifact.first}-{artifact.last}]" if artifact.first != artifact.last else f"[{artifact.last}]"
        content = {"range": "messages", "result": f"result of {artifact.tool or 'a tool'}"}.get(artifact.kind, "part")
        table.add_row(
            artifact.id, f"{content} {position}", f"{artifact.tokens:,} tokens", f"{artifact.characters:,} characters"
        )
    if not full and len(ordered) > _MAX_ARTIFACTS:
        table.add_row(f"and {len(ordered) - _MAX_ARTIFACTS:,} more", "--full lists all", "", "")
    return table
