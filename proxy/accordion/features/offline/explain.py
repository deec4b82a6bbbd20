"""Explains one request: its caller, content, size, route, compaction, and the changes to the forwarded request.

The values serialise as JSON for `accordion explain --json`, so the field names are part of the interface. They contain
no credential, and no message text except the summary blocks, and the forwarded body with `--full`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from accordion.cli.listing import count_with_noun
from accordion.features.offline.explain_compaction import (
    CompactionReport,
    count_entries,
    count_kinds,
    report_compaction,
    tool_name,
)
from accordion.features.offline.offline_pipeline import OfflinePipeline
from accordion.model.boundaries import find_skipped_messages
from accordion.model.budget import END_THREAD, TokenLimits, Utilization, Window
from accordion.model.conversation import Conversation, Message
from accordion.model.delegation import TOP, AgentPosition, Evidence, display_name
from accordion.model.errors import AccordionError, Unreadable
from accordion.model.http import Inbound
from accordion.model.ports import Route, UpstreamRequest
from accordion.pipeline.request import MeasuredRequest, PassthroughRequest, PreparedRequest, SendableRequest
from accordion.pipeline.visibility import metadata_with_partition
from accordion.protocols.registry import find_protocol
from accordion.providers.http.client import end_to_end
from accordion.sessions.client_metadata import ClientMetadata, read_client_metadata
from accordion.sessions.tenants import Caller

_MAX_LARGEST = 8
"""The number of the largest messages to list."""


@dataclass(frozen=True, slots=True)
class CallerReport:
    """The caller. `refused` is the reason why the proxy would refuse it; empty if it would not."""

    tenant: str
    proxy_key: bool
    credential: bool
    refused: str = ""


@dataclass(frozen=True, slots=True)
class LargeMessage:
    """A message and its tokens; `index` counts in the client's list without hidden results."""

    index: int
    role: str
    parts: dict[str, int]
    tokens: int


class ContentReport(msgspec.Struct, frozen=True):
    """The content of the body. `roles` counts messages and parts by role; `fields` are all fields but the messages."""

    protocol_name: str = msgspec.field(name="protocol")
    model: str
    stream: bool
    messages: int
    roles: dict[str, dict[str, int]]
    preamble_parts: int
    tools: tuple[str, ...]
    starts_turn: bool
    max_output: int | None
    previous: str | None
    fields: tuple[str, ...]
    client_metadata: ClientMetadata = msgspec.field(name="marks")
    session: str


@dataclass(frozen=True, slots=True)
class SizeReport:
    """The window's occupancy in tokens, `utilization` as a share of it.

    `passed_over` messages are not counted, because a compaction of the provider's own replaces them.
    """

    tokens: int
    occupied: int
    utilization: float
    parts: Utilization
    window: Window
    limits: TokenLimits
    largest: tuple[LargeMessage, ...]
    passed_over: int = 0


@dataclass(frozen=True, slots=True)
class RouteReport:
    """The route. `family` is that of the native API (`openai`, `anthropic`, `gemini`), `litellm` for a translation."""

    upstream: str
    family: str
    url: str


@dataclass(frozen=True, slots=True)
class ChangeReport:
    """The differences of the forwarded request, of headers only the names. `refused` says why nothing is sent."""

    body: str = "unchanged, byte for byte"
    headers_removed: tuple[str, ...] = ()
    headers_set: tuple[str, ...] = ()
    refused: str = ""


class Explanation(msgspec.Struct, frozen=True):
    """The explanation of a request. `unread` says why the body was not parsed; content and size are missing then.

    In JSON, the parts have other names, which programs read.
    """

    path: str
    bytes: int
    caller: CallerReport = msgspec.field(name="asked")
    route: RouteReport = msgspec.field(name="going")
    action: str
    reason: str
    change: ChangeReport = msgspec.field(name="changed")
    content: ContentReport | None = msgspec.field(default=None, name="understood")
    size: SizeReport | None = msgspec.field(default=None, name="counted")
    agent: AgentDescription | None = msgspec.field(default=None, name="sitting")
    compaction: CompactionReport | None = None
    unread: str = ""


async def explain(inbound: Inbound, pipeline: OfflinePipeline, *, full: bool = False) -> Explanation:
    """Explains a request with a complete body, as the first of its conversation.

    `full` adds the whole forwarded body. Raises AccordionError if there is no route.
    """
    body = inbound.body if isinstance(inbound.body, bytes) else b""
    caller, caller_report = _identify(inbound, pipeline)
    request = await pipeline.forward.reader.read(inbound, caller)
    if isinstance(request, PassthroughRequest):
        return _describe_unread(inbound, body, request, pipeline, caller_report, full=full)
    result = await pipeline.forward.prepare(request)
    is_unsent = result.decision.action in ("refuse", END_THREAD)
    refused = caller_report.refused or (result.decision.reason if result.decision.action == "refuse" else "")
    if request.decision.action == "reconstruct":
        # The provider stores the history, and there is no record of it here, so the request passes unchanged.
        request = result
    return Explanation(
        path=inbound.path,
        bytes=len(body),
        caller=caller_report,
        route=_describe_route(inbound, request.route, pipeline),
        action="refuse" if refused else request.decision.action,
        reason=refused or request.decision.reason,
        change=ChangeReport("nothing is sent", refused=result.decision.reason)
        if is_unsent
        else _describe_changes(inbound, result, pipeline),
        content=_describe_content(request),
        size=_describe_size(request, pipeline),
        agent=await _describe_agent(request, dict(inbound.headers_by_name), pipeline),
        compaction=await report_compaction(request, result, pipeline, caller, full),
    )


def _describe_unread(
    inbound: Inbound,
    body: bytes,
    request: PassthroughRequest,
    pipeline: OfflinePipeline,
    caller_report: CallerReport,
    *,
    full: bool,
) -> Explanation:
    """Explains a request whose body is not parsed."""
    forwarded = request.decoded_body.decode(errors="replace") if full else ""
    return Explanation(
        path=inbound.path,
        bytes=len(body),
        caller=caller_report,
        route=_describe_route(inbound, request.route, pipeline),
        action="refuse" if caller_report.refused else "pass",
        reason=caller_report.refused or "not read",
        change=_describe_changes(inbound, request, pipeline),
        compaction=CompactionReport("none", "it was not parsed", body=forwarded),
        unread=_why_unread(inbound, body, request, pipeline),
    )


def _identify(inbound: Inbound, pipeline: OfflinePipeline) -> tuple[Caller, CallerReport]:
    try:
        caller = pipeline.tenants.identify(inbound.headers_by_name)
    except AccordionError as error:
        return pipeline.caller, CallerReport("", False, False, f"{error.status}: {error.message}")
    return caller, CallerReport(caller.tenant.name, caller.has_proxy_key, bool(caller.credential))


def _describe_content(request: MeasuredRequest) -> ContentReport:
    conversation = request.conversation
    roles: dict[str, Counter[str]] = {}
    for message in conversation.messages:
        counts = roles.setdefault(message.role, Counter())
        counts["messages"] += 1
        counts.update(count_kinds(message))
    return ContentReport(
        protocol_name=conversation.protocol_name,
        model=conversation.model,
        stream=conversation.stream,
        messages=len(conversation.messages),
        roles={role: dict(counts) for role, counts in roles.items()},
        preamble_parts=len(conversation.preamble),
        tools=tuple(map(tool_name, conversation.tools)),
        starts_turn=conversation.starts_turn,
        max_output=conversation.max_output,
        previous=conversation.continued_id or None,
        fields=tuple(conversation.envelope),
        client_metadata=read_client_metadata(request.inbound.headers_by_name, conversation.envelope),
        session=request.session_match.session.id,
    )


def _describe_size(request: MeasuredRequest, pipeline: OfflinePipeline) -> SizeReport:
    conversation, utilization = request.conversation, request.utilization
    lead = count_entries(request.decoded_body, request.protocol.messages_field) - len(conversation.messages)
    model, skipped = request.actual_model, find_skipped_messages(conversation.messages)
    large = [
        LargeMessage(
            lead + index,
            message.role,
            dict(count_kinds(message)),
            _count_tokens(pipeline, message, conversation, model),
        )
        for index, message in enumerate(conversation.messages)
        if index not in skipped
    ]
    large.sort(key=lambda each: -each.tokens)
    return SizeReport(
        utilization.tokens,
        utilization.occupied_tokens,
        utilization.ratio,
        utilization,
        request.window,
        request.limits,
        tuple(large[:_MAX_LARGEST]),
        len(skipped),
    )


def _count_tokens(pipeline: OfflinePipeline, message: Message, conversation: Conversation, model: str) -> int:
    return pipeline.token_meter.count_message(message, conversation, model).tokens


def _describe_route(inbound: Inbound, route: Route, pipeline: OfflinePipeline) -> RouteReport:
    if route.is_translated:
        return RouteReport(route.name, route.family, f"{route.model}, translated by LiteLLM")
    return RouteReport(route.name, route.family, pipeline.forward.reader.receiver.router.url(route, inbound.target))


def _describe_changes(inbound: Inbound, request: SendableRequest, pipeline: OfflinePipeline) -> ChangeReport:
    """Compares the client's request with the one that pipeline/forward.py would send."""
    if request.route.is_translated:
        removed = tuple(sorted({name.decode("latin-1") for name, _ in inbound.headers}))
        is_compacted = isinstance(request, PreparedRequest) and request.rewritten_body is not None
        compacted = "compacted, then " if is_compacted else ""
        return ChangeReport(f"{compacted}translated by LiteLLM for {request.route.model}", headers_removed=removed)
    try:
        upstream_request = pipeline.forward.sender.build_upstream_request(request)
    except AccordionError as error:
        return ChangeReport("nothing is sent", refused=f"{error.status}: {error.message}")
    received, forwarded = dict(inbound.headers), dict(end_to_end(upstream_request.headers))
    return ChangeReport(
        _body_change(inbound, request, upstream_request),
        tuple(sorted(name.decode("latin-1") for name in received.keys() - forwarded.keys())),
        tuple(sorted(name.decode("latin-1") for name in forwarded if forwarded[name] != received.get(name))),
    )


def _body_change(inbound: Inbound, request: SendableRequest, upstream_request: UpstreamRequest) -> str:
    if upstream_request.body == inbound.body:
        return ChangeReport().body
    changes, model = [], ""
    if isinstance(request, PreparedRequest):
        model = request.conversation.model
        if request.rewritten_body is not None:
            changes.append("the message list is compacted")
        if request.tool_name and request.rewritten_body is not None:
            changes.append(f"the tool {request.tool_name} is added as the last one")
    if request.route.model is not None:
        changes.append(f"the model name {model!r} becomes {request.route.model!r}")
    visible = request.visible_request
    if visible is not None and visible.is_changed:
        if visible.hidden_results:
            changes.append(
                f"{count_with_noun(len(visible.hidden_results), 'result')} and their calls are hidden from this agent"
            )
        before, after = (each.envelope.get("metadata") for each in (visible.client_conversation, visible.conversation))
        if before != after:
            changes.append("Accordion's own fields are removed from its metadata")
    if b"content-encoding" in inbound.headers_by_name:
        changes.append("its content-encoding is removed")
    return "; ".join([*changes, "everything else is unchanged"])


def _why_unread(inbound: Inbound, body: bytes, request: PassthroughRequest, pipeline: OfflinePipeline) -> str:
    receiver = pipeline.forward.reader.receiver
    if find_protocol(inbound.path) is None:
        return f"Accordion forwards {inbound.path} without parsing it"
    if b"content-encoding" in inbound.headers_by_name:
        return "its content-encoding cannot be decoded, or the decoded body cannot be parsed"
    try:
        receiver.body_reader.read(request.protocol, body, request.caller.tenant)
    except Unreadable as error:
        return error.message
    return "it was not parsed"


# -- the agent --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HiddenResult:
    """A hidden result and its call. `index` is its message's index in the client's list, `of` the owning delegation."""

    index: int
    tool: str
    call_id: str
    of: str


@dataclass(frozen=True, slots=True)
class AgentDescription:
    """The agent of a request.

    `delegation` and its ancestors (`path`, oldest first) have the clients' names for them; empty for the main agent.
    `candidates` counts the calls that could have started it; more than one is ambiguous. `on_record` says whether the
    records of proxies could be read.
    """

    delegated: bool
    delegation: str
    path: tuple[str, ...]
    agent: str
    evidence: Evidence
    call_id: str
    candidates: int
    hidden: tuple[HiddenResult, ...]
    on_record: bool

    @property
    def is_informative(self) -> bool:
        """Whether anything is known besides a main agent."""
        return bool(self.delegated or self.delegation or self.agent or self.candidates)


async def _describe_agent(
    request: MeasuredRequest | PassthroughRequest, fields: dict[bytes, bytes], pipeline: OfflinePipeline
) -> AgentDescription | None:
    """Describes the agent of a measured request; None if the body was not parsed."""
    visible = request.visible_request
    if visible is None:
        return None
    position, lead = visible.position, len(visible.client_conversation.lead)
    if not position.node:
        metadata = read_client_metadata(fields, visible.client_conversation.envelope)
        position = await _stored_position(request, metadata, position, pipeline)
    hidden = (
        HiddenResult(
            lead + result.result[0], result.name, result.call_id, display_name(visible.owners.get(result.result, TOP))
        )
        for result in visible.hidden_results
    )
    return AgentDescription(
        delegated=position.is_subagent,
        delegation=display_name(position.node),
        path=tuple(map(display_name, position.path)),
        agent=position.agent,
        evidence=position.evidence,
        call_id=position.call_id,
        candidates=position.candidates,
        hidden=tuple(hidden),
        on_record=pipeline.sessions is not None,
    )


async def _stored_position(
    request: MeasuredRequest | PassthroughRequest,
    metadata: ClientMetadata,
    position: AgentPosition,
    pipeline: OfflinePipeline,
) -> AgentPosition:
    """Returns the position of an unmarked request, from the proxies' record of the call that started its session."""
    if pipeline.sessions is None or isinstance(request, PassthroughRequest):
        return position
    tenant = request.caller.tenant
    tree = pipeline.forward.reader.identifier.visibility.delegation_tracker.delegation_tree
    match = await pipeline.sessions.resolve(
        request.caller, metadata_with_partition(metadata, position), request.conversation, "explained"
    )
    node = f"s:{match.session.id}"
    await tree.load(tenant, (node,))
    known_node = tree.get(tenant, node)
    if known_node is None or not known_node.parent:
        return replace(position, candidates=known_node.candidates) if known_node is not None else position
    return replace(
        position, node=node, path=tree.path(tenant, node), agent=known_node.agent or position.agent,
        evidence=known_node.evidence, is_subagent=True, parent=known_node.parent, call_id=known_node.call_id,
    )  # fmt: skip
