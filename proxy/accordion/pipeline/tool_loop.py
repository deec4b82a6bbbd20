"""Answers the model's calls of our own tool within the same response.

The provider's response is rewritten round by round (protocols/tool_loop.py). Everything but calls of our tool goes on
as it comes. If a response calls only our tool, the calls are answered from the archive, the request is sent again with
the answers at the end of the list, and the next response continues the one before it. Each such pair of calls and
answers is a tool round. The rounds that the client does not know of are recorded before the response ends, and every
later request gets them back (insertions/store.py).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing

import msgspec
from msgspec.structs import replace

from accordion.archive.history_search import RemovedHistory
from accordion.archive.tool_calls import ArtifactTool, ReadContext
from accordion.delegation.branch_access import BranchViewer
from accordion.insertions.store import InsertionStore
from accordion.model.conversation import ToolResult
from accordion.model.errors import UpstreamDisconnected
from accordion.model.http import CompleteResponse
from accordion.model.insertions import ToolRound, ToolRoundInsertion
from accordion.model.ports import Clock, Headers, UpstreamResponse
from accordion.model.records import ToolLoopUsage, Usage
from accordion.pipeline.relay import (
    ExchangeProgress,
    RewrittenResponse,
    content_type_and_encoding,
    read_body,
    strip_body_headers,
)
from accordion.pipeline.request import PreparedRequest
from accordion.pipeline.shared_artifacts import SharedArtifacts, VisibleArtifacts
from accordion.pipeline.tool_refusals import ToolRefusals
from accordion.protocols.content_encoding import Decoder
from accordion.protocols.json_spans import fields_of, items_of, list_of, object_of
from accordion.protocols.json_values import to_json
from accordion.protocols.response_parser import BOUND
from accordion.protocols.sse import SseBuffer
from accordion.protocols.tool_loop import (
    ArtifactToolCall,
    ArtifactToolProtocol,
    ArtifactToolResult,
    ObservedRound,
    repair_utf8,
)

_log = logging.getLogger("accordion")

SendRequest = Callable[[PreparedRequest], Awaitable[UpstreamResponse]]

_NO_ROOM_ANSWER = (
    "There is not enough free space in the context window for this result. Read a smaller part, or continue without it."
)
_TOO_MANY_ROUNDS_ANSWER = "No more artifacts can be read in this response. Continue with what you have."
_TOO_LONG_STATUSES = (400, 413)
_REFUSAL_STATUSES = (400, 413, 422)


class ToolLoop(msgspec.Struct, frozen=True):
    """Runs the tool loop. `max_rounds` is the maximum number of further requests within one response."""

    tool_protocols: Mapping[str, ArtifactToolProtocol]
    artifact_tool: ArtifactTool
    insertion_store: InsertionStore
    count_tokens: Callable[[str, str], int]
    """Counts the tokens of a text for a model."""
    clock: Clock
    tool_refusals: ToolRefusals
    max_rounds: int = 8
    shared_artifacts: SharedArtifacts | None = None
    """None if artifacts of other agents cannot be read."""

    async def run(
        self, response: UpstreamResponse, request: PreparedRequest, send: SendRequest, progress: ExchangeProgress
    ) -> UpstreamResponse:
        """Returns the response to the client, made of this response and the rounds after it.

        Returns `response` itself if our tool was not offered or the body cannot be read. `send` sends a request that
        continues the response. `progress` gets the usage and the insertion at the end.
        """
        if not request.tool_name or response.status != 200:
            return response
        kind, encoding = content_type_and_encoding(response.headers)
        streamed = kind == "text/event-stream"
        if not (streamed or kind.endswith("json")):
            return response
        if streamed:
            run = _LoopRun(self, request, send, progress, stream=True)
            run.rewritten_response = RewrittenResponse(response, run.stream_response(response, encoding))
            return run.rewritten_response
        # The client gets nothing of a document before its end, so that an error on the way can still be the response.
        body = await read_body(response, encoding)
        if not _may_use_tool(body, request.tool_name):
            return CompleteResponse(body, strip_body_headers(response.headers))
        return await _LoopRun(self, request, send, progress, stream=False).complete_document(body, response.headers)

    async def add_earlier_rounds(self, request: PreparedRequest) -> PreparedRequest:
        """Adds earlier tool rounds to a request that continues a response by its id.

        Replaces the id with the provider's own id of the last round, and adds the answers to our calls, which the
        client does not know of. Never fails.
        """
        match = request.session_match
        if match.base_node is None or not match.base_node.ids or not request.decoded_body:
            return request
        try:
            fields = fields_of(request.decoded_body)
            if "previous_response_id" not in fields:
                return request
            fields["previous_response_id"] = to_json(match.base_node.ids[-1])
            parts = (part for message in match.conversation.messages for part in message.parts)
            answered_ids = {part.call_id for part in parts if isinstance(part, ToolResult)}
            insertions = await self.insertion_store.find_at(request.ref, match.base_node.chain, check_store=True)
            rounds = [
                each
                for each in insertions
                if isinstance(each, ToolRoundInsertion) and answered_ids.intersection(each.calls)
            ]
            if missing := rounds[0].rounds[-1].results if rounds else ():
                list_field = request.protocol.messages_field
                fields[list_field] = list_of([*missing, *items_of(fields[list_field])])
            return replace(request, rewritten_body=object_of(fields))
        except Exception:
            _log.exception(
                "earlier tool rounds could not be added to a request", extra={"request_id": request.inbound.request_id}
            )
            return request

    def build_read_context(self, request: PreparedRequest, added_tokens: int) -> ReadContext:
        """Describes the reader, and the tokens left for answers after `added_tokens` were added to the list."""
        compaction, count = request.history.compaction, request.history.covered_count
        messages, chain = request.conversation.messages, request.conversation.chain
        available_tokens = request.window.usable_input - request.utilization.occupied_tokens - added_tokens
        return ReadContext(
            request.caller.tenant,
            frozenset((*(compaction.artifacts if compaction is not None else ()), *request.named_artifacts)),
            max(0, available_tokens),
            lambda text: self.count_tokens(text, request.actual_model),
            request.window.size,
            request.session_match.session.id,
            self._visible_artifacts(request),
            RemovedHistory(messages, chain, count) if compaction is not None and count else None,
        )

    def _visible_artifacts(self, request: PreparedRequest) -> VisibleArtifacts | None:
        """Returns the artifacts of other agents whose ids are in the visible list or in the text of a compaction."""
        if self.shared_artifacts is None:
            return None
        position, session = request.visible_request.position, request.session_match.session.id
        viewer = BranchViewer(request.caller, position, session, request.client_conversation)
        written = [message.wire for message in request.history.conversation.messages] if request.compaction_id else []
        return VisibleArtifacts(self.shared_artifacts, viewer, (request.decoded_body, *written))


class _LoopRun:
    """One response to the client, and the rounds that it is made of."""

    def __init__(
        self,
        tool_loop: ToolLoop,
        request: PreparedRequest,
        send: SendRequest,
        progress: ExchangeProgress,
        *,
        stream: bool,
    ) -> None:
        self._tool_loop, self._request, self._send, self._progress = tool_loop, request, send, progress
        self._tool_protocol = tool_loop.tool_protocols[request.protocol.name]
        self._response = self._tool_protocol.open_response(request.tool_name, stream)
        self._rounds: list[ToolRound] = []
        self._texts: list[str] = []
        self._added_tokens = 0
        self._calls = 0
        self._is_continued = True
        """Whether the provider takes rounds of our tool, as far as is known."""
        self._usages: list[Usage | None] = []
        self._container = ""
        self.rewritten_response: RewrittenResponse | None = None
        """The stream that the client receives."""

    async def stream_response(self, response: UpstreamResponse, encoding: str) -> AsyncGenerator[bytes, None]:
        """Yields the stream that the client receives, up to an error of the provider's if there is one.

        Raises UpstreamDisconnected and similar errors if a round ends too early.
        """
        while True:
            async with aclosing(self._stream_round(response, encoding)) as blocks:
                async for block in blocks:
                    yield block
            next_response = await self._request_next_round()
            if next_response is None:
                break
            response = next_response
            kind, encoding = content_type_and_encoding(response.headers)
            self._response.continue_response()
            if response.status != 200 or kind != "text/event-stream":
                if not (refusal := self._request.protocol.stream_provider_error(await read_body(response, encoding))):
                    raise UpstreamDisconnected(
                        f"Connection lost: the provider answered {response.status} after a read-back. "
                        "Send the request again."
                    )
                yield self._response.feed(refusal)
                return
            if self.rewritten_response is not None:
                # The protocol's events tell whether the stream is complete: this round may end in nothing.
                self.rewritten_response.is_delimited = False
        self._report_to_progress()
        if rest := self._response.close():
            yield rest

    async def complete_document(self, body: bytes, headers: Headers) -> UpstreamResponse:
        """Returns the document that the client receives, or the provider's error if it refuses to continue.

        `body` is the document of the first round, which may call our tool. Raises UpstreamDisconnected if a later round
        ends too early.
        """
        while True:
            document = self._response.feed(repair_utf8(body))
            next_response = await self._request_next_round()
            if next_response is None:
                break
            if next_response.status != 200:
                return next_response
            self._response.continue_response()
            body = await read_body(next_response, content_type_and_encoding(next_response.headers)[1])
        if self._rounds and not self._response.is_round_over:
            raise UpstreamDisconnected(
                "Connection lost: the provider's answer ended early after a read-back. Send the request again."
            )
        self._report_to_progress()
        return CompleteResponse(document + self._response.close(), strip_body_headers(headers))

    async def _stream_round(self, response: UpstreamResponse, encoding: str) -> AsyncGenerator[bytes, None]:
        """Yields the parts of one round that may be passed on at once."""
        tool_response, events = self._response, SseBuffer(BOUND)
        decoder = Decoder(encoding) if encoding else None
        try:
            async with aclosing(response.chunks()) as pieces:
                async for piece in pieces:
                    block = repair_utf8(events.feed(piece if decoder is None else decoder.feed(piece)))
                    if block and (out := tool_response.feed(block)):
                        # If the relay passes on just these bytes, its observer need not parse them again.
                        self._progress.last_output = out
                        self._progress.non_text_events = tool_response.non_text_events
                        yield out
            rest = repair_utf8(events.flush())
            if rest and (out := tool_response.feed(rest)):
                yield out
        finally:
            await response.close()

    # -- from one round to the next -----------------------------------------------

    async def _request_next_round(self) -> UpstreamResponse | None:
        """Requests the next round, if the last one called our tool; returns None at the end."""
        if not self._response.is_round_over:
            return None
        last_round = self._response.read_round()
        self._usages.append(last_round.usage)
        self._texts.append(last_round.text)
        self._container = last_round.container or self._container
        if not (last_round.own_calls and last_round.finished and self._is_continued):
            self._rounds.append(ToolRound(last_round.entries))
            return None
        self._calls += len(last_round.own_calls)
        answers = await self._answer_calls(last_round.own_calls)
        self._add_round(last_round, answers)
        # The client answers its own calls, and ours wait for its next request. A model may also go on calling after the
        # last round, in which the tool is no longer offered.
        if last_round.client_call_ids or len(self._rounds) > self._tool_loop.max_rounds:
            return None
        response = await self._continue_request()
        # The answers may be what makes the request too long: then refusals take their place, once.
        if response.status in _TOO_LONG_STATUSES and any(answer.text != _NO_ROOM_ANSWER for answer in answers):
            await response.close()
            self._rounds.pop()
            refusals = [ArtifactToolResult(call.call_id, _NO_ROOM_ANSWER, error=True) for call in last_round.own_calls]
            self._add_round(last_round, refusals)
            response = await self._continue_request()
        return await self._repeat_without_tool(response) if response.status in _REFUSAL_STATUSES else response

    async def _repeat_without_tool(self, refusal: UpstreamResponse) -> UpstreamResponse:
        """Returns the response to the first request without our tool, after the provider refused to continue it; the
        refusal if this is refused, too.

        The provider has rules that we do not know. If the model went on calling our tool, each response would fail.
        """
        self._rounds.clear()
        self._is_continued = False
        response = await self._continue_request()
        if response.status != 200:
            await response.close()
            return refusal
        await refusal.close()
        self._tool_loop.tool_refusals.add(self._request, "had the results of read_artifact refused")
        return response

    async def _answer_calls(self, calls: Sequence[ArtifactToolCall]) -> list[ArtifactToolResult]:
        if len(self._rounds) >= self._tool_loop.max_rounds:
            return [ArtifactToolResult(call.call_id, _TOO_MANY_ROUNDS_ANSWER, error=True) for call in calls]
        return await self._tool_loop.artifact_tool.answer_calls(
            self._tool_loop.build_read_context(self._request, self._added_tokens), calls
        )

    def _add_round(self, observed_round: ObservedRound, answers: Sequence[ArtifactToolResult]) -> None:
        self._rounds.append(
            ToolRound(observed_round.entries, self._tool_protocol.render_results(answers, self._request.tool_name))
        )
        self._added_tokens += sum(
            self._tool_loop.count_tokens(answer.text, self._request.actual_model) for answer in answers
        )
        self._added_tokens += observed_round.usage.output if observed_round.usage is not None else 0

    async def _continue_request(self) -> UpstreamResponse:
        """Asks the provider to continue the request that it answered, after all rounds so far."""
        tool_protocol, request = self._tool_protocol, self._request
        list_field, sent = request.protocol.messages_field, fields_of(request.forwarded_body)
        entries = items_of(sent.pop(list_field))
        fields = tool_protocol.continuation_fields(sent, self._container)
        is_last = not self._is_continued or len(self._rounds) >= self._tool_loop.max_rounds
        last = tool_protocol.final_fields(fields) if is_last else {}
        for each in self._rounds:
            entries += (*tool_protocol.render_round(each.response, fields), *each.results)
        body = object_of({**fields, **last, list_field: list_of(entries)})
        return await self._send(replace(request, rewritten_body=body))

    def _report_to_progress(self) -> None:
        """Reports the usage and the hidden rounds, which are stored before the response ends."""
        rounds, chain = self._rounds, self._request.conversation.chain
        if self._calls:
            self._progress.tool_loop_usage = _sum_usage(self._usages, self._calls)
            self._progress.round_ids = self._response.response_ids
        if not any(each.results for each in rounds) or not chain:
            return
        text, now = " ".join(" ".join(self._texts).split()), self._tool_loop.clock.now()
        client_call_ids = self._response.read_round().client_call_ids
        self._progress.insertion = ToolRoundInsertion(chain[-1], tuple(rounds), client_call_ids, text, now)


def _may_use_tool(document: bytes, tool: str) -> bool:
    """Whether a document may call our tool, without parsing it. JSON may write the tool's name with escapes."""
    return tool.encode() in document or b"\\u" in document


def _sum_usage(round_usages: Sequence[Usage | None], calls: int) -> ToolLoopUsage:
    known = [usage for usage in round_usages if usage is not None]
    return ToolLoopUsage(
        rounds=len(round_usages) - 1,
        calls=calls,
        input=sum(usage.input for usage in known[:-1]),
        first=round_usages[0],
        earlier=sum(known[:-1], Usage()) if len(round_usages) > 1 else None,
    )
