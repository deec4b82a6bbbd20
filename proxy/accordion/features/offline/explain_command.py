"""`accordion explain`: prints the explanation of a request, or of a session's last request, as text or JSON.

A request is read from a file (explain.py makes the values). With `--session` it is what the model saw of a session at
its last request, from the configured store.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from accordion.accounting.token_meter import TokenMeter
from accordion.cli.listing import WINDOW_SOURCES, count_with_noun
from accordion.cli.tenant_store import TenantStore, print_error, print_json, report_missing, run_for_tenant
from accordion.config import Settings
from accordion.features.offline.explain import AgentDescription, ContentReport, Explanation, SizeReport, explain
from accordion.features.offline.explain_compaction import (
    CompactionReport,
    compaction_details,
    compaction_rows,
    report_sent,
)
from accordion.features.offline.offline_pipeline import OfflinePipeline, open_stored_state
from accordion.features.offline.plot import plot_levels, style_of
from accordion.http.json_views import exchange_json
from accordion.model.budget import END_THREAD
from accordion.model.conversation import Message
from accordion.model.errors import AccordionError, NotFound
from accordion.model.http import Inbound
from accordion.model.ports import Headers
from accordion.pipeline.queries import SessionView
from accordion.pipeline.sent_history import SentRequest
from accordion.protocols.json_spans import FIELDS
from accordion.protocols.registry import PROTOCOLS
from accordion.providers.models.tokenizer import TiktokenCounter

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
GEMINI = "/v1beta/models/unnamed:generateContent"
CONVERSE = "/model/unnamed/converse"
"""Paths of Gemini and of Bedrock, whose models only the paths name."""
_CONVERSE_FIELDS = frozenset({"toolConfig", "inferenceConfig", "guardrailConfig", "additionalModelRequestFields"})

# Top-level fields and content blocks of Anthropic Messages that Chat Completions does not have.
_MESSAGES_FIELDS = frozenset({"system", "stop_sequences", "thinking", "anthropic_version", "output_config"})
_BLOCKS = re.compile(rb'"type"\s*:\s*"(?:tool_use|tool_result|redacted_thinking|document|server_tool_use)"')
_SCHEMA = re.compile(rb'"input_schema"\s*:')
_CLAUDE = re.compile(rb'"claude')

_KINDS = {
    "Text": "text",
    "Reasoning": "reasoning",
    "ToolCall": "tool call",
    "ToolResult": "tool result",
    "Media": "media",
    "Opaque": "unknown type",
}
_MAX_HIDDEN = 12
"""The number of hidden results to list without `--full`."""

_EVIDENCE = {
    "header": "the header or metadata field says so",
    "mark": "metadata that the client sends",
    "handoff": "{call} hands over to it",
    "tool": "its task is the exact text that {call} passes to a delegating tool",
    "argument": "its task is the exact text of an argument of {call}",
}


@dataclass(frozen=True, slots=True)
class ExplainOptions:
    """The command's options; `window` in tokens, `full` for the whole forwarded body."""

    path: str | None = None
    headers: Sequence[str] = ()
    window: int | None = None
    full: bool = False
    as_json: bool = False


def run(file: str, settings: Settings, options: ExplainOptions) -> int:
    """Explains the request in `file` (`-`: the standard input).

    Returns the exit code: 2 for unreadable input or a malformed option, else 0.
    """
    err = Console(stderr=True, highlight=False)
    try:
        body = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        headers = _parse_headers(options.headers)
    except (OSError, ValueError) as error:
        err.print(Text(f"{file}: {error.strerror}" if isinstance(error, OSError) else str(error), style="red"))
        return 2
    fields = dict(headers)
    target, _, query = (options.path or guess_path(body, fields)).partition("?")
    inbound = Inbound("POST", target, query, headers, body, "explained")
    try:
        explanation = asyncio.run(_explain(inbound, settings, options))
    except AccordionError as error:
        err.print(Text(f"Accordion would answer with {error.status}: {error.message}", style="red"))
        return 0
    if options.as_json:
        sys.stdout.write(msgspec.json.encode(explanation).decode() + "\n")
    else:
        sections: list[RenderableType] = [_make_table(explanation, file, options)]
        if explanation.compaction is not None:
            sections += compaction_details(explanation.compaction, full=options.full)
        Console(highlight=False).print(Padding(Group(*sections), (1, 1)))
    return 0


async def _explain(inbound: Inbound, settings: Settings, options: ExplainOptions) -> Explanation:
    async with open_stored_state(settings) as state:
        pipeline = OfflinePipeline(settings, options.window, state)
        try:
            return await explain(inbound, pipeline, full=options.full)
        finally:
            await pipeline.close()


def _parse_headers(options: Sequence[str]) -> Headers:
    """Parses `--header` options. Raises ValueError if one is not `name: value`."""
    headers = []
    for header in options:
        name, colon, value = header.partition(":")
        if not colon or not name.strip():
            raise ValueError(f"--header {header.split(':')[0]!r}: write it as 'name: value'")
        headers.append((name.strip().lower().encode(), value.strip().encode()))
    if all(name != b"content-type" for name, _ in headers):
        headers.append((b"content-type", b"application/json"))
    return tuple(headers)


def _make_table(explanation: Explanation, file: str, options: ExplainOptions) -> Table:
    """Makes the table of all sections, with names on the left."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text("request", style="bold"), f"{file}, {explanation.bytes:,} bytes")
    path_note = " (guessed from the body; --path sets it)" if options.path is None else ""
    table.add_row("endpoint", f"POST {explanation.path}{path_note}")
    sections: list[tuple[str, Iterable[tuple[str, str | Text]]]] = [("caller", _caller_rows(explanation))]
    if explanation.agent is not None and explanation.agent.is_informative:
        sections.append(("agents", _agent_rows(explanation.agent, full=options.full)))
    if explanation.content is not None and explanation.size is not None:
        sections += [("content", _content_rows(explanation.content)), ("size", _size_rows(explanation.size))]
    else:
        result = "it is forwarded unchanged, and its tokens are not counted"
        sections.append(("not parsed", [("reason", explanation.unread), ("result", result)]))
    sections.append(("decision", _decision_rows(explanation)))
    if explanation.content is not None and explanation.compaction is not None:
        sections.append(("compaction", compaction_rows(explanation.compaction)))
    sections.append(("changes", _change_rows(explanation)))
    for title, rows in sections:
        table.add_row()
        table.add_row(Text(title, style="bold"), "")
        for name, value in rows:
            table.add_row(f"  {name}", value)
    return table


def _caller_rows(explanation: Explanation) -> Iterable[tuple[str, str]]:
    if explanation.caller.refused:
        yield "access", "refused; the rest of this report assumes that it is granted"
        return
    yield "tenant", explanation.caller.tenant + (", identified by a proxy key" if explanation.caller.proxy_key else "")
    yield "credential", "the caller sends its own" if explanation.caller.credential else "the caller sends none"


def _content_rows(content: ContentReport) -> Iterable[tuple[str, str]]:
    yield "protocol", PROTOCOLS[content.protocol_name].title
    yield "model", (content.model or "none named") + (", streamed" if content.stream else ", not streamed")
    yield "system prompt", count_with_noun(content.preamble_parts, "part") if content.preamble_parts else "none"
    yield "tools", f"{len(content.tools)}: {', '.join(content.tools)}" if content.tools else "none"
    yield (
        "messages",
        f"{content.messages}, " + ("at the start of a turn" if content.starts_turn else "in the middle of a turn"),
    )
    for role, counts in content.roles.items():
        yield f"  {role}", f"{counts['messages']}: {_parts({k: n for k, n in counts.items() if k != 'messages'})}"
    if content.previous is not None:
        yield "continues", f"{content.previous}, stored by the provider"
    yield "output limit", f"{content.max_output:,} tokens" if content.max_output else "none requested"
    yield "other fields", ", ".join(content.fields) or "none"
    labels = (
        ("client", content.client_metadata.client),
        ("session", content.client_metadata.session),
        ("agent", content.client_metadata.agent),
    )
    yield "labels", ", ".join(f"{name} {value}" for name, value in labels if value) or "none"
    yield "session", f"{content.session} (derived from the content and the tenant key)"


def _size_rows(size: SizeReport) -> Iterable[tuple[str, str | Text]]:
    parts, limits = size.parts, size.limits
    style = style_of(size.utilization, plot_levels(limits))
    yield "utilization", Text(f"{size.utilization:.1%} of the window", style=f"bold {style}")
    yield "tokens", f"{size.tokens:,}"
    for name in ("preamble", "tools", "messages", "media"):
        yield f"  {'system prompt' if name == 'preamble' else name}", f"{getattr(parts, name):,}"
    if size.passed_over:
        yield (
            "  not counted",
            f"{count_with_noun(size.passed_over, 'message')} that a compaction by the provider replaces",
        )
    if parts.insertions:
        yield "  read back", f"{parts.insertions:,}, with recalled excerpts"
    if parts.reserved_output:
        yield "reserved", f"{parts.reserved_output:,} for the output; {size.occupied:,} in use with it"
    yield "window", f"{size.window.size:,}, {WINDOW_SOURCES[size.window.source]}"
    yield "usable input", f"{size.window.usable_input:,}"
    yield "conversation trigger", f"{limits.conversation:,}, at the start of a turn"
    yield "generation trigger", f"{limits.generation:,}, between tool calls"
    yield "hard limit", f"{limits.hard:,}"
    for position, large in enumerate(size.largest):
        content = f"[{large.index}] {large.role}, {_parts(large.parts)}: {large.tokens:,}"
        yield "" if position else "largest messages", content


def _decision_rows(explanation: Explanation) -> Iterable[tuple[str, str | Text]]:
    yield (
        "action",
        Text(explanation.action, style="bold red" if explanation.action in ("refuse", END_THREAD) else "bold"),
    )
    yield "reason", explanation.reason
    way = "translated by LiteLLM" if explanation.route.family == "litellm" else "native API"
    yield "upstream", f"{explanation.route.upstream}, {way}"
    yield "URL", explanation.route.url


def _change_rows(explanation: Explanation) -> Iterable[tuple[str, str]]:
    changes = explanation.change
    if changes.refused:
        yield "refused", changes.refused
        return
    yield "body", changes.body
    yield "headers removed", ", ".join(changes.headers_removed) or "none"
    yield "headers set", ", ".join(changes.headers_set) or "none"


def _parts(counts: dict[str, int]) -> str:
    parts = ((_KINDS.get(kind, kind), number) for kind, number in counts.items())
    return ", ".join(f"{number} {kind}" if number > 1 else kind for kind, number in parts) or "empty"


def guess_path(body: bytes, fields: Mapping[bytes, bytes]) -> str:
    """Guesses the path of a body's protocol; Chat Completions if nothing decides. `fields` are the headers."""
    try:
        raw = {name: bytes(value) for name, value in FIELDS.decode(body).items()}
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        raw = {}
    if b"anthropic-version" in fields:
        return MESSAGES
    if "contents" in raw and "messages" not in raw:
        return GEMINI
    if _CONVERSE_FIELDS & raw.keys():
        return CONVERSE
    if "messages" not in raw and ({"input", "previous_response_id", "conversation"} & raw.keys()):
        return RESPONSES
    is_messages = _MESSAGES_FIELDS & raw.keys() or _SCHEMA.search(raw.get("tools", b""))
    if is_messages or _BLOCKS.search(raw.get("messages", b"")):
        return MESSAGES
    if _CLAUDE.match(raw.get("model", b"")) and "max_tokens" in raw:
        return MESSAGES
    return CHAT


def _agent_rows(agent: AgentDescription, *, full: bool) -> Iterator[tuple[str, str | Text]]:
    """Yields the rows of the section about the agent: name and value."""
    if not agent.delegation:
        yield (
            "agent",
            (f"{agent.agent}, " if agent.agent else "") + ("a sub-agent" if agent.delegated else "the main agent"),
        )
        yield "sees", "its complete message list"
    else:
        yield "delegation", agent.delegation + (f", agent {agent.agent}" if agent.agent else "")
        if ancestors := agent.path[:-1]:
            yield "works for", ", which works for ".join(reversed(ancestors))
        call = f"the call {agent.call_id}" if agent.call_id else "the call that started it"
        yield "evidence", _EVIDENCE.get(agent.evidence, "none").format(call=call)
        yield (
            "sees",
            "its message list without the hidden results" if agent.hidden else "its complete message list",
        )
    if agent.candidates > 1:
        yield (
            "ambiguous",
            f"{agent.candidates} open calls contain its exact task, so it is assigned to none of them",
        )
    if agent.hidden:
        owners = Counter(result.of for result in agent.hidden)
        counts = ", ".join(f"{count} of {name}" for name, count in owners.most_common(_MAX_HIDDEN))
        yield (
            "hidden",
            Text(f"{count_with_noun(len(agent.hidden), 'result')} with their calls: {counts}", style="bold"),
        )
        for result in agent.hidden if full else agent.hidden[:_MAX_HIDDEN]:
            yield "", f"[{result.index}] {result.tool or 'a result'} {result.call_id}: belongs to {result.of}"
        if not full and len(agent.hidden) > _MAX_HIDDEN:
            yield "", f"and {len(agent.hidden) - _MAX_HIDDEN:,} more; --full lists all"
    if not agent.on_record:
        yield "note", "delegations known to a running proxy are not included: there is no store to read, or it is empty"


# -- a session --------------------------------------------------------------------------------------------------------


def explain_session(settings: Settings, tenant: str | None, session: str, *, full: bool, as_json: bool) -> int:
    """Explains the last request of a session. Returns the exit code: 1 if it cannot be explained."""
    return run_for_tenant(
        settings, tenant, lambda store: _explain_last_request(store, session, full=full, as_json=as_json)
    )


async def _explain_last_request(store: TenantStore, session: str, *, full: bool, as_json: bool) -> int:
    view = await store.queries.find_session(store.caller.tenant, session)
    if view is None:
        return report_missing(store, session)
    try:
        sent = await store.sent.rebuild(store.caller, view.session, view.exchanges)
    except NotFound as error:
        print_error(f"{session}: {error.message}")
        return 1
    ids = sent.compaction.artifacts if sent.compaction is not None else ()
    artifacts = await store.archive.load_records(store.caller.tenant, ids)
    report = report_sent(sent, artifacts, _message_counter(sent), full=full)
    if as_json:
        content = {"session": session, "last": exchange_json(sent.exchange), "compaction": report}
        print_json(content)
        return 0
    sections: list[RenderableType] = [_make_session_table(view, sent, report), *compaction_details(report, full=full)]
    Console(highlight=False).print(Padding(Group(*sections), (1, 1)))
    return 0


def _message_counter(sent: SentRequest) -> Callable[[Message], int]:
    meter, conversation = TokenMeter(TiktokenCounter()), sent.original.conversation
    return lambda message: meter.count_message(message, conversation, conversation.model).tokens


def _make_session_table(view: SessionView, sent: SentRequest, report: CompactionReport) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _session_rows(view, sent, report):
        table.add_row(name, value)
    return table


def _session_rows(view: SessionView, sent: SentRequest, report: CompactionReport) -> Iterator[tuple[str, str | Text]]:
    exchange, compaction = sent.exchange, sent.compaction
    yield "session", Text(view.session.id, style="bold")
    yield "model", exchange.model
    yield "last request", f"{exchange.request_id}, {exchange.messages:,} messages"
    yield "utilization", f"{exchange.utilization.ratio:.1%} of a window of {exchange.utilization.window:,} tokens"
    yield "decision", exchange.decision
    if compaction is None:
        yield "compaction", "none: the request was sent as it came"
        return
    saved = exchange.compaction.saved if exchange.compaction is not None else 0
    yield "tokens", f"{exchange.utilization.tokens + saved:,} came, {exchange.utilization.tokens:,} were sent"
    yield "compaction", f"{compaction.id}, number {compaction.generation}, {compaction.kind}, {compaction.cause}"
    for step in report.steps:
        yield "", f"{step.strategy}: {step.before:,} to {step.after:,}"
    if report.writer:
        yield "summary", f"by {report.writer}"
