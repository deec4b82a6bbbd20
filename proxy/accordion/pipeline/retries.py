"""Builds the next request after the provider refused one.

- After an overflow the request is compacted, by the provider's figures, and sent once more.
- If the provider misses an entry in the history of a response id, the whole history or a placeholder for the entry is
sent.
- If the provider refuses reasoning whose read-backs could not be looked up, the list is sent without it.
- If the provider refuses a history that was put in place of a response id, the request is sent as it came.
- If the provider lacks or ignores what the client asks for, and a feature does it in its place, the request is read
again.
- If the provider refuses a compacted list, other lists are sent (list_refusals.py).
- If the model takes no tools and the client sent none, the request is sent without our tool.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from accordion.accounting.overflow import WindowOverflow
from accordion.model.errors import ThreadNotFound
from accordion.model.http import CompleteResponse
from accordion.model.ports import UpstreamResponse
from accordion.pipeline.calibration import Calibrator
from accordion.pipeline.compact import CompactionStep
from accordion.pipeline.history_reconstruction import HistoryReconstruction, pass_unchanged
from accordion.pipeline.list_refusals import ListAttempts, ListRefusals
from accordion.pipeline.measure import Measurer
from accordion.pipeline.overflow_probe import ProbedResponse, hold_until
from accordion.pipeline.prepare import prepare_by_handler
from accordion.pipeline.provider_items import NotReconstructed
from accordion.pipeline.read import RequestReader
from accordion.pipeline.relay import content_type_and_encoding, read_body, strip_body_headers
from accordion.pipeline.request import MeasuredRequest, PassthroughRequest, PreparedRequest, advance
from accordion.pipeline.request_hooks import RequestHook
from accordion.pipeline.tool_loop import ToolLoop
from accordion.protocols.json_spans import NULL, fields_of, is_list, items_of, list_of, object_of

_log = logging.getLogger("accordion")

_MAX_REPAIRS = 8
"""Maximum number of repairs of a request. Each error of the provider names one missing entry."""


class Attempts(msgspec.Struct):
    """The attempts to send one request."""

    repairs: int = 0
    may_reconstruct: bool = True
    """Whether the history may still take the place of a response id: False once the provider refused it."""
    is_final: bool = False
    """Whether the next response goes to the client, unless it refuses our tool or the list: after a compaction that an
    overflow required."""
    lists: ListAttempts = msgspec.field(default_factory=ListAttempts)


class RetryStep(msgspec.Struct, frozen=True):
    """Builds the request that is sent in place of a refused one."""

    hooks: Sequence[RequestHook]
    reader: RequestReader
    measurer: Measurer
    history_reconstruction: HistoryReconstruction
    compaction_step: CompactionStep
    tool_loop: ToolLoop
    calibrator: Calibrator
    list_refusals: ListRefusals
    is_store_available: Callable[[], bool]

    async def read_after_refusal(
        self, request: PassthroughRequest, response: UpstreamResponse
    ) -> tuple[UpstreamResponse, PassthroughRequest | MeasuredRequest]:
        """Reads an unread request after all, if a feature learns from its refusal what to do in the provider's place.

        Returns the response, and the request to go on with. If that is a MeasuredRequest, the response is closed.
        """
        for hook in self.hooks:
            if hook.may_learn(request, response.status):
                refusal = await read_body(response, content_type_and_encoding(response.headers)[1])
                response = CompleteResponse(refusal, strip_body_headers(response.headers), response.status)
                if hook.learn_unread(request, response.status, refusal):
                    return response, await self.reader.read(request.inbound, request.caller, request.started_at)
        return response, request

    async def revise(
        self, request: PreparedRequest, probed: ProbedResponse, attempts: Attempts
    ) -> PreparedRequest | None:
        """Returns the request to send in place of a refused one; None if the response is final.

        Raises ThreadNotFound if the client has to send its history again.
        """
        if (bare := await self._withdraw_tool(request, probed)) is not None:
            return bare
        if probed.overflow is not None:
            return None if attempts.is_final else await self._compact(request, probed.overflow, attempts)
        if not attempts.is_final and (repaired := await self._repair_request(request, probed, attempts)) is not None:
            return repaired
        return await self._replace_list(request, probed, attempts)

    async def read_if_ignored(
        self, request: PreparedRequest, response: UpstreamResponse
    ) -> tuple[UpstreamResponse, PreparedRequest | None]:
        """Returns the response, and the request as a feature reads it if the provider ignored what the client asks for.

        Such a response is held until it has what was asked for, or ends.
        """
        for hook in self.hooks:
            if response.status == 200 and (word := hook.find_response_type(request)):
                response, body = await hold_until(response, word)
                if body and hook.learn_from_body(request, body):
                    return response, await self._read_by_hooks(request)
        return response, None

    async def accept(self, request: PreparedRequest, attempts: Attempts) -> None:
        """Learns from the lists that the provider refused before it took this request."""
        await self.list_refusals.accept(request, attempts.lists)

    async def _repair_request(
        self, request: PreparedRequest, probed: ProbedResponse, attempts: Attempts
    ) -> PreparedRequest | None:
        """Returns the request without what the provider lacks or refuses; None if the refusal names no such thing."""
        if (read_again := await self._read_again(request, probed)) is not None:
            return read_again
        if not self.list_refusals.may_refuse(probed.response.status, probed.refusal):
            return None
        missing = self.history_reconstruction.find_missing_entry(request, probed.refusal)
        if missing and attempts.repairs < _MAX_REPAIRS:
            attempts.repairs += 1
            repaired = await self._repair(request, missing, attempts)
            if repaired is not None:
                return repaired
        reduced = self._without_reasoning(request, probed.refusal) if attempts.repairs < _MAX_REPAIRS else None
        if reduced is not None:
            attempts.repairs += 1
            return reduced
        if request.request_with_id is None:
            return None
        if self.list_refusals.may_concern(request, probed.response.status, probed.refusal):
            self.list_refusals.add(request, probed.response.status, probed.refusal, attempts.lists)
        attempts.may_reconstruct = False
        by_id = pass_unchanged(request.request_with_id, "the provider refused the reconstructed history")
        return await self.tool_loop.add_earlier_rounds(advance(PreparedRequest, by_id))

    async def _replace_list(
        self, request: PreparedRequest, probed: ProbedResponse, attempts: Attempts
    ) -> PreparedRequest | None:
        """Returns the request with another list, if the provider may have refused what a compaction made of it."""
        status, refusal = probed.response.status, probed.refusal
        if request.request_with_id is not None or not self.list_refusals.may_concern(request, status, refusal):
            return None
        if not attempts.lists.is_repeated and self.list_refusals.may_be_transient(status, refusal):
            attempts.lists.is_repeated = True
            return request
        self.list_refusals.add(request, status, refusal, attempts.lists)
        replaced = await self.list_refusals.find_replacement(request, attempts.lists, is_too_long=attempts.is_final)
        if replaced is None:
            return None
        if replaced.handler is not None:
            replaced = replace(replaced, handler=replaced.handler.without_list())
        return await self.tool_loop.add_earlier_rounds(replaced)

    async def _withdraw_tool(self, request: PreparedRequest, probed: ProbedResponse) -> PreparedRequest | None:
        """Returns the request without our tool if its model takes no tools; else None."""
        if not request.tool_name:
            return None
        tool_protocol = self.tool_loop.tool_protocols[request.protocol.name]
        if tool_protocol.tool_names(request.conversation.envelope):
            return None
        refusals = self.compaction_step.list_meter.tool_refusals
        if not refusals.learn(request, probed.response.status, probed.refusal):
            return None
        return await self.tool_loop.add_earlier_rounds(await self.compaction_step.withdraw_tool(request))

    async def _read_again(self, request: PreparedRequest, probed: ProbedResponse) -> PreparedRequest | None:
        """Returns the request as a feature reads it after this refusal; None if the refusal concerns none."""
        status, refusal = probed.response.status, probed.refusal
        if not any(hook.learn(request, status, refusal) for hook in self.hooks):
            return None
        return await self._read_by_hooks(request)

    async def _read_by_hooks(self, request: PreparedRequest) -> PreparedRequest | None:
        measured = await self.reader.read(request.inbound, request.caller, request.started_at)
        if isinstance(measured, PassthroughRequest):
            return None
        return await self.tool_loop.add_earlier_rounds(await prepare_by_handler(measured, self.compaction_step))

    async def _compact(
        self, request: PreparedRequest, overflow: WindowOverflow, attempts: Attempts
    ) -> PreparedRequest | None:
        """Compacts a request that the provider found too long; returns None if it cannot become smaller."""
        counted = await self.measurer.decide_again(request)
        reconstructed: MeasuredRequest | NotReconstructed = counted
        if request.is_reconstructable and attempts.may_reconstruct:
            reconstructed = await self.history_reconstruction.reconstruct(counted)
        measured = counted if isinstance(reconstructed, NotReconstructed) else reconstructed
        self.calibrator.learn_limit(measured, overflow)
        if measured.is_compactable:
            measured = await self.measurer.hide_foreign_results(measured)
        compacted = await self.compaction_step.compact_after_overflow(measured, overflow)
        if compacted is not None:
            attempts.is_final = True
            return await self.tool_loop.add_earlier_rounds(compacted)
        if request.droppable_thread_id and not overflow.is_guessed:
            raise ThreadNotFound(request.droppable_thread_id, "the provider said that it does not fit its window")
        return None

    async def _repair(self, request: PreparedRequest, missing: bytes, attempts: Attempts) -> PreparedRequest | None:
        """Puts the whole history into a request that misses an entry of it, or else a placeholder for the entry."""
        if attempts.may_reconstruct and request.rewritten_body is None and request.is_reconstructable:
            reconstructed = await self.history_reconstruction.reconstruct(request)
            if not isinstance(reconstructed, NotReconstructed):
                prepared = await self.compaction_step.compact(reconstructed)
                return replace(prepared, rewritten_body=prepared.forwarded_body)
        return self.history_reconstruction.add_missing_entry(request, missing)

    def _without_reasoning(self, request: PreparedRequest, refusal: bytes) -> PreparedRequest | None:
        """Returns the request without reasoning that the provider refuses.

        Reasoning that led only to calls of our tool may be with the client, and these calls are on record. They may not
        be found if the store is down, or was so when they were looked up, or was emptied. None if our tool was never
        offered to this conversation as far as is known: then the fault is the client's own.
        """
        is_known = request.session_match.base_node is not None and self.is_store_available()
        was_offered = request.history.compaction is not None or bool(request.tool_name)
        if (is_known and not was_offered) or request.conversation.is_kept_by_provider or not refusal:
            return None
        try:
            fields = fields_of(request.forwarded_body)
            list_value = fields.get(request.protocol.messages_field, NULL)
            if not is_list(list_value):
                return None
            entries = request.protocol.without_refused_reasoning(items_of(list_value), refusal)
        except Exception:
            _log.exception(
                "the reasoning that the provider refused could not be removed",
                extra={"request_id": request.inbound.request_id},
            )
            return None
        if entries is None:
            return None
        fields[request.protocol.messages_field] = list_of(entries)
        reason = f"{request.decision.reason}; the provider refused reasoning without its next item, and it was left out"
        return replace(request, rewritten_body=object_of(fields), decision=replace(request.decision, reason=reason))
