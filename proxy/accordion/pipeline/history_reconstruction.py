"""Puts the history that the provider keeps in place of the id by which a request continues it.

The Responses API lets a client send `previous_response_id` or a `conversation`, and only the new messages. Below the
trigger such a request passes unchanged. If a compaction is due, the whole request is reconstructed, from the recorded
items of a response (archive/stored_responses.py) or, of a conversation object and where they are not on record, from
those that the provider lists (provider_items.py). It is then treated like any other: measured, compacted, and
given tool rounds and recalled excerpts. From then on the provider has another list than the client, so every later
request of the conversation is reconstructed too. A request passes unchanged if some of its history is not on record, or
if the provider refuses the reconstructed form.
"""

from __future__ import annotations

import logging

import msgspec
from msgspec.structs import replace

from accordion.archive.stored_responses import StoredResponses
from accordion.model.budget import Decision
from accordion.model.errors import AccordionError, StoreUnavailable
from accordion.model.http import Inbound
from accordion.pipeline.measure import Measurer
from accordion.pipeline.provider_items import NotReconstructed, ProviderItems
from accordion.pipeline.read import RequestReader
from accordion.pipeline.request import MeasuredRequest, PassthroughRequest, PreparedRequest
from accordion.protocols.json_spans import fields_of, is_text, items_of, list_of, object_of
from accordion.protocols.openai_responses.message_json import is_trigger

_log = logging.getLogger("accordion")

_PASSES_UNCHANGED = "so it passes unchanged"
_HISTORY_IDS = ("previous_response_id", "conversation")
_PROVIDER_KEEPS_HISTORY = f"the provider keeps the history, {_PASSES_UNCHANGED}"


class HistoryReconstruction(msgspec.Struct, frozen=True):
    """Reconstructs requests that continue a response or a conversation object by its id."""

    stored_responses: StoredResponses
    provider_items: ProviderItems
    reader: RequestReader
    measurer: Measurer

    async def reconstruct(self, request: MeasuredRequest) -> MeasuredRequest | NotReconstructed:
        """Returns the request with the history in place of the id, or the reason why it passes unchanged.

        The whole request is read and measured as if the client had sent it. Never fails.
        """
        try:
            earlier = await self._find_history(request)
            if isinstance(earlier, NotReconstructed):
                return _not_reconstructed(earlier.reason)
            session_id = request.session_match.session.id
            inbound = _build_inbound(request, earlier)
            reconstructed = await self.reader.read(
                inbound, request.caller, request.started_at, session_id, is_dry_run=request.is_dry_run
            )
            if isinstance(reconstructed, PassthroughRequest) or reconstructed.protocol.find_problems(
                reconstructed.conversation.messages
            ):
                return _not_reconstructed("the provider keeps another history than the one on record")
            reconstructed = await self.measurer.decide_again(reconstructed)
            return replace(self.measurer.apply_reported_tokens(reconstructed, request), request_with_id=request)
        except StoreUnavailable:
            return _not_reconstructed("the store is unavailable")
        except AccordionError as error:
            return _not_reconstructed(f"the history that the provider keeps could not be read ({error.message})")
        except Exception:
            _log.exception(
                "the history that the provider keeps could not be put into a request",
                extra={"request_id": request.inbound.request_id},
            )
            return _not_reconstructed("the history could not be reconstructed")

    async def _find_history(self, request: MeasuredRequest) -> list[bytes] | NotReconstructed:
        """Returns the history before a request, or the reason why it is not known. Raises AccordionError."""
        if request.conversation.provider_state == "object":
            if request.is_dry_run:
                return NotReconstructed("the items of the conversation are only read from the provider to compact them")
            return await self.provider_items.read_items(request)
        earlier = await self.stored_responses.history_up_to(
            request.caller.tenant, request.client_conversation.continued_id
        )
        if earlier is not None:
            return earlier
        if not self.stored_responses.is_available:
            return NotReconstructed("the store is unavailable")
        unrecorded = "the history that the provider keeps is not completely on record"
        if request.is_dry_run:
            return NotReconstructed(f"{unrecorded}, and is only read from the provider to compact it")
        chain = await self.provider_items.read_chain(request)
        return NotReconstructed(f"{unrecorded}, and {chain.reason}") if isinstance(chain, NotReconstructed) else chain

    def find_missing_entry(self, request: PreparedRequest, refusal: bytes) -> bytes:
        """Returns a placeholder for the call or output that a provider's error names as missing in the history of a
        response id.

        Returns empty bytes if the error names none, or one of the client's own.
        """
        if not refusal or not _may_miss_tool_output(request):
            return b""
        return request.protocol.missing_entry(refusal)

    def add_missing_entry(self, request: PreparedRequest, missing: bytes) -> PreparedRequest | None:
        """Returns the request with a missing entry put in before its list; None if that is not possible."""
        list_field = request.protocol.messages_field
        try:
            fields = fields_of(request.forwarded_body)
            value = fields[list_field]
            entries = [b'{"role":"user","content":%s}' % value] if is_text(value) else items_of(value)
            fields[list_field] = list_of([missing, *entries])
        except Exception:
            _log.exception(
                "the missing entry of a refused request could not be added",
                extra={"request_id": request.inbound.request_id},
            )
            return None
        reason = (
            f"{request.decision.reason}; the provider missed a tool call or its output, and a placeholder was put in"
        )
        return replace(request, rewritten_body=object_of(fields), decision=replace(request.decision, reason=reason))


def pass_unchanged(request: MeasuredRequest, explanation: str) -> MeasuredRequest:
    """Returns the request with the decision that it passes unchanged."""
    reason = explanation if explanation.endswith(_PASSES_UNCHANGED) else f"{explanation}; {_PROVIDER_KEEPS_HISTORY}"
    return replace(request, decision=Decision("pass", reason, group=request.decision.group))


def _not_reconstructed(reason: str) -> NotReconstructed:
    return NotReconstructed(f"{reason}, {_PASSES_UNCHANGED}")


def _may_miss_tool_output(request: MeasuredRequest) -> bool:
    """Returns whether the provider may lack entries that the client does not know of.

    True if the request continues a response by its id, and that response has tool rounds or is not on record. If the
    request may not be changed there are no tool rounds, and the fault is the client's own.
    """
    if request.request_with_id is not None or request.conversation.provider_state != "response":
        return False
    if (base_node := request.session_match.base_node) is None:
        return request.is_reconstructable
    return request.conversation.is_kept_by_provider and (bool(base_node.ids) or base_node.differs_from_client)


def _build_inbound(request: MeasuredRequest, earlier_items: list[bytes]) -> Inbound:
    """Returns the client's request with the history itself in place of its id.

    The list comes first, since its beginning stays the same. An earlier request for a compaction alone is left out.
    """
    conversation, list_field = request.client_conversation, request.protocol.messages_field
    own = (message.wire for message in (*conversation.lead, *conversation.messages))
    earlier_items = [wire for wire in earlier_items if not is_trigger(wire)]
    entries = [b'{"role":"user","content":%s}' % wire if is_text(wire) else wire for wire in (*earlier_items, *own)]
    rest = {name: value for name, value in conversation.envelope.items() if name not in _HISTORY_IDS}
    return request.inbound.with_body(object_of({list_field: list_of(entries), **rest}))
