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
from dataclasses import dataclass

from msgspec import structs

from accordion.archive.tool_calls import ArtifactTool, ReadContext
from accordion.compaction.rendering import RequestRenderer
from accordion.delegation.branch_access import BranchViewer
from accordion.insertions.store import InsertionStore
from accordion.model.artifact_tool import ArtifactToolCall, ArtifactToolResult
from accordion.model.conversation import ToolResult
from accordion.model.errors import UpstreamDisconnected
from accordion.model.http import CompleteResponse
from accordion.model.insertions import ToolRound, ToolRoundInsertion
from accordion.model.ports import Clock, Headers, UpstreamResponse
from accordion.model.records import ToolLoopUsage, Usage
from accordion.model.values import replace
from accordion.pipeline.relay import ExchangeProgress, content_type_and_encoding
from accordion.pipeline.request import RequestState
from accordion.pipeline.response_rewriting import RewrittenResponse, read_body, strip_body_headers
from accordion.pipeline.shared_artifacts import SharedArtifacts, VisibleArtifacts
from accordion.protocols.content_encoding import Decoder
from accordion.protocols.json_spans import fields_of, items_of, list_of, object_of
from accordion.protocols.response_observer import BOUND
from accordion.protocols.sse import SseBuffer
from accordion.protocols.tool_loop import ArtifactToolProtocol, ObservedRound
from accordion.protocols.tool_loop_shared import repair_utf8, to_json

_log = logging.getLogger("accordion")

SendRequest = Callable[[RequestState], Awaitable[UpstreamResponse]]

_NO_ROOM_ANSWER = "There is no room left in the window for this answer. Ask for less, or go on without it."
_TOO_MANY_ROUNDS_ANSWER = "No more artifacts can be read within this response. Go on with what you have."
_TOO_LONG_STATUSES = (400, 413)


@dataclass(frozen=True, slots=True)
class ToolLoop:
    """Runs the tool loop. `max_rounds` is the maximum number of further requests within one response."""

    tool_protocols: Mapping[str, ArtifactToolProtocol]
    artifact_tool: ArtifactTool
    insertion_store: InsertionStore
    renderer: RequestRenderer
    count_tokens: Callable[[str, str], int]
    """Counts the tokens of a text for a model."""
    clock: Clock
    max_rounds: int = 8
    shared_artifacts: SharedArtifacts | None = None
    """None if artifacts of other agents cannot be read."""

    async def run(
        self, response: UpstreamResponse, request: RequestState, send: SendRequest, progress: ExchangeProgress
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
            talk = _LoopRun(self, request, send, progress, stream=True)
            talk.shown = RewrittenResponse(response, talk.stream_response(response, encoding))
            return talk.shown
        # The client gets nothing of a document before its end, so that an error on the way can still be the response.
        body = await read_body(response, encoding)
        if not _may_use_tool(body, request.tool_name):
            return CompleteResponse(body, strip_body_headers(response.headers))
        return await _LoopRun(self, request, send, progress, stream=False).complete_document(body, response.headers)

    async def restore_rounds(self, request: RequestState) -> RequestState:
        """Adds earlier tool rounds to a request that continues a response by its id.

        Replaces the id with the provider's own id of the last round, and adds the answers to our calls, which the
        client does not know of. Never fails.
        """
        place = request.session_match
        if place is None or place.base_node is None or not place.base_node.ids or not request.decoded_body:
            return request
        try:
            fields = fields_of(request.decoded_body)
            if "previous_response_id" not in fields:
                return request
            fields["previous_response_id"] = to_json(place.base_node.ids[-1])
            said = place.conversation.messages
            given = {part.call_id for each in said for part in each.parts if isinstance(part, ToolResult)}
            found = await self.insertion_store.find(
                request.caller.tenant_key, place.label, (place.base_node.chain,), 1, check_store=True
            )
            weaves = [each for each in found if isinstance(each, ToolRoundInsertion) and given.intersection(each.calls)]
            if owed := weaves[0].rounds[-1].answered if weaves else ():
                fields[request.protocol.messages_field] = list_of(
                    [*owed, *items_of(fields[request.protocol.messages_field])]
                )
            return structs.replace(request, rewritten_body=object_of(fields))
        except Exception:
            _log.exception(
                "an earlier read-back could not be put into a request", extra={"request_id": request.request_id}
            )
            return request

    def build_read_context(self, request: RequestState, added_tokens: int) -> ReadContext:
        """Describes the reader, and the tokens left for answers after `added_tokens` were added to the list."""
        compaction = request.history.compaction if request.history is not None else None
        room = (
            request.window.usable_input - request.utilization.occupied_tokens - added_tokens
            if request.window is not None
            else 0
        )
        return ReadContext(
            request.caller.tenant_key,
            frozenset(compaction.artifacts if compaction is not None else ()),
            max(0, room),
            lambda text: self.count_tokens(text, request.actual_model),
            request.window.size if request.window is not None else 0,
            request.session_match.session.id if request.session_match is not None else "",
            self._visible_artifacts(request),
        )

    def _visible_artifacts(self, request: RequestState) -> VisibleArtifacts | None:
        """Returns the artifacts of other agents whose ids are in the visible list or in the text of a compaction."""
        if self.shared_artifacts is None or request.visible_request is None or request.session_match is None:
            return None
        seated, folded = request.visible_request, request.history
        viewer = BranchViewer(
            request.caller, seated.position, request.session_match.session.id, seated.client_conversation
        )
        written = [message.wire for message in folded.conversation.messages] if request.compaction_id and folded else []
        return VisibleArtifacts(self.shared_artifacts, viewer, (request.decoded_body, *written))


class _LoopRun:
    """One response to the client, and the rounds that it is made of."""

    def __init__(
        self, tool_loop: ToolLoop, request: RequestState, send: SendRequest, progress: ExchangeProgress, *, stream: bool
    ) -> None:
        self._house, self._gauge, self._ask, self._course = tool_loop, request, send, progress
        self._weaver = tool_loop.tool_protocols[request.protocol.name]
        self._splice = self._weaver.open_response(request.tool_name, stream)
        self._rounds: list[ToolRound] = []
        self._texts: list[str] = []
        self._behind = 0
        self._calls = 0
        self._usages: list[Usage | None] = []
        self._resolved = False
        self._container = ""
        self.shown: RewrittenResponse | None = None
        """The stream that the client receives."""

    async def stream_response(self, response: UpstreamResponse, encoding: str) -> AsyncGenerator[bytes, None]:
        """Yields the stream that the client receives, up to an error of the provider's if there is one.

        Raises UpstreamDisconnected and similar errors if a round ends too early.
        """
        while True:
            async with aclosing(self._stream_round(response, encoding)) as blocks:
                async for block in blocks:
                    yield block
            following = await self._request_next_round()
            if following is None:
                break
            response = following
            kind, encoding = content_type_and_encoding(response.headers)
            self._splice.continue_response()
            if response.status != 200 or kind != "text/event-stream":
                if not (refusal := self._gauge.protocol.stream_provider_error(await read_body(response, encoding))):
                    raise UpstreamDisconnected(
                        f"Connection lost: the provider answered {response.status} after a read-back. "
                        "Send the request again."
                    )
                yield self._splice.feed(refusal)
                return
            if self.shown is not None:
                # The protocol's events tell whether the stream is complete: this round may end in nothing.
                self.shown.delimited = False
        self._record_usage()
        if rest := self._splice.close():
            yield rest

    async def complete_document(self, body: bytes, headers: Headers) -> UpstreamResponse:
        """Returns the document that the client receives, or the provider's error if it refuses to continue.

        `body` is the document of the first round, which may call our tool. Raises UpstreamDisconnected if a later round
        ends too early.
        """
        while True:
            told = await self._fill_placeholders(self._splice.feed(repair_utf8(body)))
            following = await self._request_next_round()
            if following is None:
                break
            reply = following
            if reply.status != 200:
                return reply
            self._splice.continue_response()
            body = await read_body(reply, content_type_and_encoding(reply.headers)[1])
        if self._rounds and not self._splice.is_round_over:
            raise UpstreamDisconnected(
                "Connection lost: the provider's answer ended early after a read-back. Send the request again."
            )
        self._record_usage()
        return CompleteResponse(told + self._splice.close(), strip_body_headers(headers))

    async def _stream_round(self, response: UpstreamResponse, encoding: str) -> AsyncGenerator[bytes, None]:
        """Yields the parts of one round that may be passed on at once."""
        splice, events = self._splice, SseBuffer(BOUND)
        decoder = Decoder(encoding) if encoding else None
        try:
            async with aclosing(response.chunks()) as pieces:
                async for piece in pieces:
                    block = repair_utf8(events.feed(piece if decoder is None else decoder.feed(piece)))
                    out = splice.feed(block) if block else b""
                    if splice.pending_placeholders:
                        out = await self._fill_placeholders(out)
                    else:
                        self._course.last_output, self._course.observable_output = out, splice.observable_output
                    if out:
                        yield out
            if (rest := events.flush()) and (out := await self._fill_placeholders(splice.feed(repair_utf8(rest)))):
                yield out
        finally:
            await response.close()

    async def _fill_placeholders(self, out: bytes) -> bytes:
        while wanted := self._splice.pending_placeholders:
            texts = await self._house.artifact_tool.load_texts(
                self._house.build_read_context(self._gauge, self._behind), wanted
            )
            out += self._splice.resolve(texts)
        return out

    # -- from one round to the next -----------------------------------------------

    async def _request_next_round(self) -> UpstreamResponse | None:
        """Requests the next round, if the last one called our tool; returns None at the end."""
        if not self._splice.is_round_over:
            return None
        seen = self._splice.read_round()
        self._usages.append(seen.usage)
        self._texts.append(seen.text)
        self._resolved = self._resolved or seen.resolved
        self._container = seen.container or self._container
        if not (seen.own_calls and seen.finished):
            self._rounds.append(ToolRound(seen.entries))
            return None
        self._calls += len(seen.own_calls)
        answers = await self._answer_calls(seen.own_calls)
        self._add_round(seen, answers)
        if seen.client_call_ids or len(self._rounds) > self._house.max_rounds:
            # Some models call tools that are no longer offered.
            return None
        reply = await self._continue_request()
        if reply.status in _TOO_LONG_STATUSES and any(answer.text != _NO_ROOM_ANSWER for answer in answers):
            await reply.close()
            self._rounds.pop()
            self._add_round(
                seen, [ArtifactToolResult(call.call_id, _NO_ROOM_ANSWER, error=True) for call in seen.own_calls]
            )
            reply = await self._continue_request()
        return reply

    async def _answer_calls(self, calls: Sequence[ArtifactToolCall]) -> list[ArtifactToolResult]:
        if len(self._rounds) >= self._house.max_rounds:
            return [ArtifactToolResult(call.call_id, _TOO_MANY_ROUNDS_ANSWER, error=True) for call in calls]
        return await self._house.artifact_tool.answer_calls(
            self._house.build_read_context(self._gauge, self._behind), calls
        )

    def _add_round(self, observed_round: ObservedRound, answers: Sequence[ArtifactToolResult]) -> None:
        self._rounds.append(ToolRound(observed_round.entries, self._weaver.render_results(answers)))
        told = sum(self._house.count_tokens(answer.text, self._gauge.actual_model) for answer in answers)
        self._behind += told + (observed_round.usage.output if observed_round.usage is not None else 0)

    async def _continue_request(self) -> UpstreamResponse:
        """Asks the provider to continue after all rounds so far."""
        gauge = self._gauge
        dressed = gauge.history_with_insertions
        if dressed is None:
            raise UpstreamDisconnected(
                "Connection lost: the response could not be continued after a read-back. Send the request again."
            )
        fields = self._weaver.continuation_fields(dressed.conversation.envelope, self._container)
        last = self._weaver.final_fields(fields) if len(self._rounds) >= self._house.max_rounds else {}
        dressed = replace(dressed, conversation=replace(dressed.conversation, envelope={**fields, **last}))
        behind = [w for each in self._rounds for w in (*self._weaver.render_round(each.said, fields), *each.answered)]
        body = self._house.renderer.render_body(gauge.protocol, dressed, behind)
        return await self._ask(structs.replace(gauge, rewritten_body=body))

    def _record_usage(self) -> None:
        """Records the usage and the hidden rounds, which are stored before the response ends."""
        rounds, place = self._rounds, self._gauge.session_match
        if self._calls:
            self._course.tool_loop_usage, self._course.round_ids = (
                _sum_usage(self._usages, self._calls),
                self._splice.response_ids,
            )
        hidden = len(rounds) > 1 or any(each.answered for each in rounds) or self._resolved
        if not hidden or place is None or not place.conversation.chain:
            return
        text, at = " ".join(" ".join(self._texts).split()), self._house.clock.now()
        weave = ToolRoundInsertion(
            place.conversation.chain[-1], tuple(rounds), self._splice.read_round().client_call_ids, text, at
        )
        self._course.insertion = weave


def _may_use_tool(document: bytes, tool: str) -> bool:
    """Returns whether a document may call our tool or name an artifact, without parsing it.

    JSON may write both with escapes.
    """
    return tool.encode() in document or b"$artifact" in document or b"\\u" in document


def _sum_usage(round_usages: Sequence[Usage | None], calls: int) -> ToolLoopUsage:
    known = [usage for usage in round_usages if usage is not None]
    return ToolLoopUsage(
        rounds=len(round_usages) - 1,
        calls=calls,
        input=sum(usage.input for usage in known[:-1]),
        first=round_usages[0],
    )
