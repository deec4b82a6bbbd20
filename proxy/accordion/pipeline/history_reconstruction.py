"""Puts the history that the provider keeps in place of the id of the response that a request continues.

The Responses API lets a client send `previous_response_id` and only the new messages. Below the trigger such a request
passes unchanged. If a compaction is due, the whole request is reconstructed from the recorded items
(archive/response_links.py), and is then treated like any other: compacted, and given tool rounds and recalled excerpts.
From then on the provider keeps a compacted list under the response's id, so every later request of the conversation is
reconstructed too. A request passes unchanged if some of its history is not on record, or if the provider refuses the
reconstructed form.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from msgspec import structs

from accordion.accounting.overflow import WindowOverflow
from accordion.archive.response_links import ResponseLinks
from accordion.model.budget import Decision
from accordion.model.conversation import Conversation
from accordion.model.errors import StoreUnavailable
from accordion.model.http import Inbound
from accordion.model.records import CompactionOutcome
from accordion.model.summarizer import SummaryCaller
from accordion.model.values import replace
from accordion.pipeline.compact import CompactionStep
from accordion.pipeline.measure import Measurer
from accordion.pipeline.request import RequestState
from accordion.pipeline.response_history import client_conversation
from accordion.protocols.json_spans import fields_of, is_text, items_of, list_of, object_of

_log = logging.getLogger("accordion")

_PASSES_UNCHANGED = "so it passes unchanged"
_PROVIDER_KEEPS_HISTORY = f"the provider keeps the history, {_PASSES_UNCHANGED}"
SummaryCallerFactory = Callable[[RequestState], SummaryCaller | None]


@dataclass(frozen=True, slots=True)
class HistoryReconstruction:
    """Reconstructs requests that continue a response by its id.

    Each method takes the `CompactionStep` that compacts the result.
    """

    response_links: ResponseLinks

    async def compact(
        self,
        compaction_step: CompactionStep,
        inbound: Inbound,
        request: RequestState,
        summary_caller: SummaryCallerFactory,
    ) -> RequestState:
        """Returns the request as it is to be forwarded; see CompactionStep.compact.

        A request that continues a response by its id is either reconstructed and compacted, or unchanged.
        """
        if request.decision.action != "complete":
            return await compaction_step.compact(request, summary_caller)
        whole = await self._reconstruct(compaction_step.measurer, inbound, request)
        if isinstance(whole, str):
            return await compaction_step.compact(
                _pass_through(request, f"{request.decision.reason}; {whole}"), summary_caller
            )
        folded = await compaction_step.compact(whole, summary_caller)
        if folded.rewritten_body is None:
            # There was nothing to compact, or compaction failed; the outcome says which.
            return await compaction_step.compact(
                _pass_through(request, folded.decision.reason, folded.compaction_outcome), summary_caller
            )
        if folded.decision.action == "refuse":
            return await compaction_step.compact(_pass_through(request, folded.decision.reason), summary_caller)
        return folded

    async def retry(
        self,
        compaction_step: CompactionStep,
        inbound: Inbound,
        request: RequestState,
        summary_caller: SummaryCallerFactory,
        overflow: WindowOverflow | None,
    ) -> RequestState | None:
        """Returns the request to send after the provider refused one; None if there is nothing to send.

        After an overflow the request is compacted (see CompactionStep.compact_after_overflow). After any other refusal
        of a reconstructed history it is the request as it came.
        """
        if overflow is None:
            asked = request.original_request
            return _pass_through(asked, "the provider refused the reconstructed history") if asked else None
        whole = (
            await self._reconstruct(compaction_step.measurer, inbound, request)
            if request.is_reconstructable
            else request
        )
        return await compaction_step.compact_after_overflow(
            request if isinstance(whole, str) else whole, summary_caller, overflow
        )

    async def repair_missing_output(
        self,
        compaction_step: CompactionStep,
        inbound: Inbound,
        request: RequestState,
        summary_caller: SummaryCallerFactory,
        refusal: bytes,
        *,
        allow_full_history: bool = True,
    ) -> RequestState | None:
        """Returns the request to send after the provider reported a missing call or output behind a response id.

        This is the whole history if it is on record and `allow_full_history` is true, or else the same request with a
        placeholder for the missing entry. Returns None if something else is missing, or something of the client's own.
        Never fails.
        """
        missing = request.protocol.missing_entry(refusal)
        if not missing or not _may_miss_tool_output(request):
            return None
        try:
            can = allow_full_history and request.rewritten_body is None and request.is_reconstructable
            made = await self._reconstruct(compaction_step.measurer, inbound, request) if can else ""
            if not isinstance(made, str):
                folded = await compaction_step.compact(made, summary_caller)
                return (
                    folded
                    if folded.rewritten_body is not None
                    else structs.replace(folded, rewritten_body=folded.decoded_body)
                )
            fields, listing = fields_of(request.rewritten_body or request.decoded_body), request.protocol.messages_field
            given = fields[listing]
            entries = [b'{"role":"user","content":%s}' % given] if is_text(given) else items_of(given)
            fields[listing] = list_of([missing, *entries])
        except Exception:
            _log.exception("a refused request could not be mended", extra={"request_id": request.request_id})
            return None
        reason = (
            f"{request.decision.reason}; the provider missed a tool call or its output, and a placeholder was put in"
        )
        return structs.replace(
            request, rewritten_body=object_of(fields), decision=replace(request.decision, reason=reason)
        )

    async def _reconstruct(self, measurer: Measurer, inbound: Inbound, request: RequestState) -> RequestState | str:
        """Returns the measured request with the history in place of the id, or the reason why it passes unchanged.

        Never fails.
        """
        asked, caller = client_conversation(request), request.caller
        try:
            before = await self.response_links.history_up_to(caller.tenant_key, asked.previous or "")
            if before is None and not self.response_links.is_available:
                return f"the store is unavailable, {_PASSES_UNCHANGED}"
            if before is None:
                return f"the history that the provider keeps is not completely on record, {_PASSES_UNCHANGED}"
            fields = {name: value for name, value in inbound.fields.items() if name != b"content-encoding"}
            whole = replace(inbound, body=_render_body(request.protocol.messages_field, before, asked))
            made = await measurer.measure(whole, fields, caller, request.started_at)
            if made.session_match is None or request.protocol.find_problems(made.session_match.conversation.messages):
                return f"the provider keeps another history than the one on record, {_PASSES_UNCHANGED}"
            return structs.replace(_correct_tokens(measurer, made, request), original_request=request)
        except StoreUnavailable:
            return f"the store is unavailable, {_PASSES_UNCHANGED}"
        except Exception:
            _log.exception(
                "the history that the provider keeps could not be put into a request",
                extra={"request_id": request.request_id},
            )
            return f"the history could not be reconstructed, {_PASSES_UNCHANGED}"


def _may_miss_tool_output(request: RequestState) -> bool:
    """Returns whether the provider may lack entries that the client does not know of.

    True if the request continues a response by its id, and that response has tool rounds or is not on record. If the
    request may not be changed there are no tool rounds, and the fault is the client's own.
    """
    place = request.session_match
    if request.original_request is not None or place is None or place.conversation.kept != "reply":
        return False
    if (base := place.base_node) is None:
        return request.is_reconstructable
    return place.conversation.previous is not None and (bool(base.ids) or base.changed)


def _pass_through(request: RequestState, explanation: str, outcome: CompactionOutcome | None = None) -> RequestState:
    reason = explanation if explanation.endswith(_PASSES_UNCHANGED) else f"{explanation}; {_PROVIDER_KEEPS_HISTORY}"
    return structs.replace(request, decision=Decision("pass", reason), compaction_outcome=outcome)


def _correct_tokens(measurer: Measurer, reconstructed: RequestState, original: RequestState) -> RequestState:
    """Applies the provider's reported tokens to a reconstructed request, if the provider keeps that very list."""
    place, folded, window, limits = (
        reconstructed.session_match,
        reconstructed.history,
        reconstructed.window,
        reconstructed.limits,
    )
    if place is None or folded is None or window is None or limits is None:
        return reconstructed
    base = original.session_match.base_node if original.session_match is not None else None
    if base is None or base.changed or not original.utilization.carried or folded.compaction is not None:
        return reconstructed
    used = reconstructed.utilization.apply_correction(1.0, original.utilization.tokens, carried=True)
    reconstructed = structs.replace(reconstructed, utilization=used)
    return structs.replace(reconstructed, decision=measurer.decide(reconstructed, place, folded, window, limits))


def _render_body(listing: str, earlier_items: list[bytes], conversation: Conversation) -> bytes:
    """Renders a request that contains the history of the response itself.

    The list comes first, since its beginning stays the same.
    """
    own = (message.wire for message in (*conversation.lead, *conversation.messages))
    entries = [b'{"role":"user","content":%s}' % wire if is_text(wire) else wire for wire in (*earlier_items, *own)]
    rest = {name: value for name, value in conversation.envelope.items() if name != "previous_response_id"}
    return object_of({listing: list_of(entries), **rest})
