"""Does the context edits that a client asks for and the provider lacks (edit_hook.py).

The decision comes before the compaction step, and the report after the response:

1. Old tool uses and thinking are cleared by the client's rules, as a compaction of the request: archived, with
   references, and the same at every later request. If our own compaction is due anyway, it is made instead.
2. A compaction that the client asks for is one of ours (pipeline/compact.py), whatever the size. Its list is sealed
   into a block for the client, which sends the block back in place of its history.
3. A request for nothing but a block is answered here. The report of the edits is written into any other response.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from msgspec.structs import replace

from accordion.compaction.rendering import RequestRenderer
from accordion.composition.features import CountMessage
from accordion.features.client_compaction.clearing import build_clearing, can_clear, find_cleared_content
from accordion.features.client_compaction.context_edits import (
    ClearedContent,
    CompactionBlock,
    ContextEditProtocol,
    ContextEdits,
    ContextReport,
    ListCompactionProtocol,
    OpenedBlock,
    ReportWriter,
    RequestedSummary,
)
from accordion.features.client_compaction.sealed_blocks import seal_block
from accordion.model.budget import Decision
from accordion.model.conversation import Message
from accordion.model.errors import BadRequest
from accordion.model.http import CompleteResponse
from accordion.model.ports import Clock, Sealer, Tasks, UpstreamResponse
from accordion.pipeline.relay import RewrittenResponse, content_type_and_encoding, read_body, strip_body_headers
from accordion.pipeline.request import Compact, MeasuredRequest, PreparedRequest, RequestHandler
from accordion.protocols.content_encoding import Decoder
from accordion.protocols.json_writing import without_breakpoints
from accordion.protocols.openai_responses.protocol import OpenAIResponses
from accordion.protocols.response_parser import BOUND
from accordion.protocols.sse import SseBuffer
from accordion.summaries.extractive import SourceMessage
from accordion.summaries.prompts import render_messages

COMPACT_PATH = OpenAIResponses.compaction_paths[0]
_log = logging.getLogger("accordion")

_TARGET_DIVISOR = 4
"""A compaction that the client asks for aims at the messages' tokens divided by this number."""
_STREAM_HEADERS = ((b"content-type", b"text/event-stream; charset=utf-8"),)


class EditServices(msgspec.Struct, frozen=True):
    """What the handlers of all requests need."""

    renderer: RequestRenderer
    sealer: Sealer
    count_message: CountMessage
    clock: Clock
    tasks: Tasks


class ContextEditHandler(RequestHandler, frozen=True, kw_only=True):
    """Carries out the context edits of one request, and reports them. `artifacts` are those of opened blocks."""

    services: EditServices
    editing: ContextEditProtocol
    edits: ContextEdits | None
    """The edits that the client asks for and that Accordion does; None if there are none, or the provider does them."""
    client_entries: tuple[bytes, ...] = ()
    """The entries of a list to compact by its path, before blocks were opened; empty for any other request."""
    edit_report: ContextReport | None = None
    """The report on the edits that the response contains; None before they are done."""

    @property
    def is_client_compaction(self) -> bool:
        """Whether the request asks for nothing but a compaction, whatever its size."""
        summary = self.edits.summary if self.edits is not None else None
        return summary is not None and summary.is_block_only and not summary.threshold

    @property
    def needs_count(self) -> bool:
        """Whether edits depend on the tokens."""
        return self.edits is not None

    @property
    def summary_instructions(self) -> str:
        """The client's own instructions for a summary."""
        summary = self.edits.summary if self.edits is not None else None
        return summary.instructions if summary is not None else ""

    @property
    def is_answering(self) -> bool:
        """Whether the response is a compaction block alone."""
        report = self.edit_report
        summary = report.edits.summary if report is not None and report.block is not None else None
        return summary is not None and summary.is_block_only

    async def prepare(self, request: MeasuredRequest, compact: Compact) -> PreparedRequest:
        """Compacts a request, by the client's edits if there are some.

        Raises BadRequest if the client asks for nothing but a block, and the provider keeps the history.
        """
        edits = self.edits
        if edits is None:
            return await compact(request)
        summary, is_kept_by_provider = edits.summary, request.conversation.is_kept_by_provider
        if summary is not None and _is_due(request, summary):
            if is_kept_by_provider and summary.is_block_only:
                raise BadRequest(
                    "The proxy cannot compact a history that the provider keeps. Leave out `previous_response_id` and "
                    "`conversation`, and send all items in `input`."
                )
            if not is_kept_by_provider and (request.allows_compaction or summary.is_block_only):
                return await self._summarize(request, edits, summary, compact)
        if request.is_compactable and _can_clear(request, edits):
            request = replace(request, decision=_decide_clearing(request, edits))
            prepared = await compact(request, strategies=build_clearing(edits))
        else:
            prepared = await compact(request)
        return self._add_report(prepared, ContextReport(edits, self._find_cleared(prepared)))

    def answer(self, request: PreparedRequest) -> UpstreamResponse | None:
        """Returns the response to a request for nothing but a block; None for any other request."""
        editing, report = self.editing, self.edit_report
        if not self.is_answering or report is None:
            return None
        conversation, at = request.client_conversation, int(self.services.clock.now())
        if request.inbound.path == COMPACT_PATH and isinstance(editing, ListCompactionProtocol):
            return CompleteResponse(editing.write_compact_response(report, self.client_entries, at))
        is_stream = conversation.stream
        document = editing.write_block_response(report, conversation.model, at, stream=is_stream)
        return CompleteResponse(document, _STREAM_HEADERS) if is_stream else CompleteResponse(document)

    async def report(self, request: PreparedRequest, response: UpstreamResponse) -> UpstreamResponse:
        """Returns the response with the report of the edits; the same response if there is nothing to report."""
        editing, report = self.editing, self.edit_report
        if report is None or response.status != 200 or self.is_answering:
            return response
        kind, encoding = content_type_and_encoding(response.headers)
        is_stream = kind == "text/event-stream"
        if not (is_stream or kind.endswith("json")):
            return response
        if is_stream:
            writer = editing.report_writer(report, stream=True)
            return RewrittenResponse(response, _rewrite_events(response, encoding, writer))
        body = await read_body(response, encoding)
        try:
            if request.is_token_count:
                body = editing.write_token_count(body, _count_unedited(request))
            else:
                body = editing.report_writer(report, stream=False).feed(body)
        except (ValueError, RecursionError):
            _log.warning("a response is no JSON object, so that context edits are not reported in it")
        return CompleteResponse(body, strip_body_headers(response.headers))

    def without_list(self) -> ContextEditHandler:
        """Returns the handler without what it reports of a compacted list.

        The list in its place has no edits that the client asked for, and a block would contain the refused list.
        """
        report = self.edit_report
        return self if report is None else replace(self, edit_report=ContextReport(report.edits))

    def _add_report(self, request: PreparedRequest, report: ContextReport) -> PreparedRequest:
        return replace(request, handler=replace(self, edit_report=report))

    # -- compaction blocks ----------------------------------------------------------

    async def _summarize(
        self, request: MeasuredRequest, edits: ContextEdits, summary: RequestedSummary, compact: Compact
    ) -> PreparedRequest:
        """Compacts a request, and builds the block of its list.

        If there is no compaction, the response gets no block, unless the client asks for nothing but a block. If an
        earlier compaction already makes the list short enough, because the client sends its whole history again, the
        block has the list of that one.
        """
        is_short = request.history.compaction is not None and request.utilization.tokens < _threshold(request, summary)
        if not is_short:
            request = replace(request, decision=_decide_summary(request))
        prepared = await compact(request)
        outcome = prepared.compaction_outcome
        is_made = outcome is not None and outcome.state in ("compacted", "replayed") and outcome.id
        block = None
        if is_made or summary.is_block_only:
            block = await self.services.tasks.offload(self._build_block, prepared)
        if summary.is_block_only:
            # No model answers, so none calls our tool.
            prepared = replace(prepared, tool_name="")
        return self._add_report(prepared, ContextReport(edits, self._find_cleared(prepared), block))

    def _build_block(self, request: PreparedRequest) -> CompactionBlock:
        history, outcome = request.history, request.compaction_outcome
        archived = history.compaction.artifacts if history.compaction is not None else ()
        entries = map(without_breakpoints, self.services.renderer.render_entries(request.protocol, history))
        content = OpenedBlock(tuple(entries), tuple(dict.fromkeys((*self.artifacts, *archived))))
        sealed = seal_block(self.services.sealer, request.protocol.name, request.caller.tenant, content)
        is_new = outcome is not None and outcome.state == "compacted"
        return CompactionBlock(
            _render_text(history.conversation.messages),
            sealed,
            input=outcome.input if is_new and outcome is not None else 0,
            output=outcome.output if is_new and outcome is not None else 0,
        )

    def _find_cleared(self, request: PreparedRequest) -> ClearedContent:
        count, scale = self.services.count_message, request.utilization.tokens / max(1, request.uncorrected_tokens)
        conversation, model = request.conversation, request.actual_model
        return find_cleared_content(
            request.history,
            conversation.messages,
            lambda message: round(count(message, conversation, model) * scale),
        )


def _is_due(request: MeasuredRequest, summary: RequestedSummary) -> bool:
    """Returns whether the client's own list, without earlier compactions, has the tokens for the asked compaction."""
    return not request.is_token_count and _count_unedited(request) >= _threshold(request, summary)


def _can_clear(request: MeasuredRequest, edits: ContextEdits) -> bool:
    """Returns whether there is something to clear, no compaction of ours is due, and the provider refused none."""
    is_refused = request.compaction_form == "whole"
    if is_refused or request.decision.action == "compact":
        return False
    return can_clear(request.history, edits, request.utilization.tokens)


def _threshold(request: MeasuredRequest, summary: RequestedSummary) -> int:
    return summary.threshold if summary.threshold is not None else request.limits.conversation


def _decide_clearing(request: MeasuredRequest, edits: ContextEdits) -> Decision:
    return Decision(
        "compact",
        f"{request.decision.reason}; the client asked for {edits.feature}",
        target=0,
        kind="conversation",
        trigger=request.limits.conversation,
        is_requested=True,
        group=request.decision.group,
    )


def _decide_summary(request: MeasuredRequest) -> Decision:
    used, limits = request.utilization, request.limits
    fixed = used.preamble + used.tools
    return Decision(
        "compact",
        "the client asked for a compaction",
        target=min(limits.conversation_target, fixed + max(0, used.tokens - fixed) // _TARGET_DIVISOR),
        must_succeed=used.occupied_tokens >= limits.hard,
        kind="conversation",
        trigger=limits.conversation,
        is_requested=True,
    )


def _count_unedited(request: MeasuredRequest) -> int:
    """Counts the tokens of a request before any edit."""
    compaction = request.history.compaction
    return request.utilization.tokens + (compaction.tokens_saved if compaction is not None else 0)


def _render_text(messages: tuple[Message, ...]) -> str:
    """Renders a list as one text, for a client that shows the block's content."""
    rendered = render_messages([SourceMessage(index, message) for index, message in enumerate(messages)])
    return "\n\n".join(f"[{message.speaker}]\n{message.text}" for message in rendered if message.text)


async def _rewrite_events(
    response: UpstreamResponse, encoding: str, writer: ReportWriter
) -> AsyncGenerator[bytes, None]:
    events, decoder = SseBuffer(BOUND), Decoder(encoding) if encoding else None
    async with aclosing(response.chunks()) as pieces:
        async for piece in pieces:
            if block := events.feed(piece if decoder is None else decoder.feed(piece)):
                yield writer.feed(block)
    if rest := events.flush():
        yield writer.feed(rest)
