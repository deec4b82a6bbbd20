"""Stores the state that a later request needs of a response, before the response ends.

A client continues from a response as soon as it has the last byte: by the response's id, or with its own copy in the
list. State that the client does not know of or will not send again must be on record by then, for any worker and after
a crash: the tool rounds, the prefix nodes of the response id and of the request's list, the items that the provider
keeps under that id, and the request's additions to the transcript. All of them are written in one batch.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from accordion.archive.archive import Archive
from accordion.archive.erasure_notices import ErasureNotices
from accordion.archive.stored_responses import StoredResponse, StoredResponses
from accordion.archive.transcripts import TranscriptStore
from accordion.insertions.store import InsertionStore
from accordion.model.conversation import Conversation
from accordion.model.errors import StoreUnavailable
from accordion.model.insertions import ToolRoundInsertion
from accordion.model.ports import Put
from accordion.model.records import ObservedResponse
from accordion.pipeline.calibration import credible_tokens
from accordion.pipeline.request import MeasuredRequest, PreparedRequest
from accordion.protocols.json_spans import NULL
from accordion.sessions.prefix_nodes import PrefixNode, count_responses
from accordion.sessions.sessions import Sessions

_log = logging.getLogger("accordion")


class ResponseHistory(msgspec.Struct, frozen=True):
    """Stores responses. While the store is unavailable they are queued and written later."""

    sessions: Sessions
    stored_responses: StoredResponses
    insertion_store: InsertionStore
    archive: Archive
    erasures: ErasureNotices
    transcripts: TranscriptStore

    def must_store_before_end(self, request: PreparedRequest) -> bool:
        """Returns whether the response must be stored before it ends.

        It must if it may have tool rounds, or if its client may continue it by its id. A client that has sent its whole
        history so far will send it again, and need not wait.
        """
        if request.tool_name:
            return True
        if request.is_token_count or not _is_sent_once(request):
            return False
        return request.client_provider_state != "response" or _is_continuable(request.client_conversation)

    async def store(
        self,
        request: PreparedRequest,
        observed_response: ObservedResponse,
        reported_response: ObservedResponse,
        ids: tuple[str, ...],
        insertion: ToolRoundInsertion | None,
    ) -> None:
        """Stores a response.

        `observed_response` is the response as the client has it, `reported_response` the same with the usage of its
        first round, `ids` the provider's own ids of its rounds. Never fails.
        """
        tenant, session = request.caller.tenant, request.session_match.session.id
        try:
            puts = list[Put]()
            if insertion is not None:
                puts += await self.insertion_store.add_and_build_writes(request.ref, insertion)
            puts += await self._build_link_writes(request, observed_response)
            # Last, since the other records are found by these.
            puts += self._build_node_writes(request, observed_response, reported_response, ids)
            if puts and not self.erasures.was_erased_since(tenant, session, request.started_at):
                await self._write(request, puts)
        except Exception:
            # The response itself is complete, and must not fail because of this.
            _log.exception("a response could not be stored", extra={"request_id": request.inbound.request_id})

    def store_later(
        self,
        request: PreparedRequest,
        observed_response: ObservedResponse,
        reported_response: ObservedResponse,
        ids: tuple[str, ...],
    ) -> None:
        """Stores a response without delaying it, for a client that sends the history itself.

        The nodes of its ids are stored soon; the items that the provider keeps are held in memory.
        """
        if not observed_response.error:
            self.sessions.record_states(request.caller, _build_response_nodes(request, reported_response, ids))
        self._build_link(request, observed_response)

    def _build_node_writes(
        self,
        request: PreparedRequest,
        observed_response: ObservedResponse,
        reported_response: ObservedResponse,
        ids: tuple[str, ...],
    ) -> list[Put]:
        """Builds the writes of the nodes by which later requests find the session.

        A request that continues by the response's id has the node of that id. Once its history is reconstructed, it
        has the node of the list with which the conversation began.
        """
        nodes = {} if observed_response.error else _build_response_nodes(request, reported_response, ids)
        puts = self.sessions.build_state_writes(request.caller, nodes)
        if nodes and not request.conversation.is_kept_by_provider:
            puts += self.sessions.build_end_writes(request.session_match)
        return puts

    async def _build_link_writes(self, request: PreparedRequest, observed_response: ObservedResponse) -> list[Put]:
        """Builds the writes that store the items that the provider keeps."""
        link = self._build_link(request, observed_response)
        if link is None:
            return []
        return await self.stored_responses.build_puts(
            request.caller.tenant, request.session_match.session.id, observed_response.response_id, link
        )

    def _build_link(self, request: PreparedRequest, observed_response: ObservedResponse) -> StoredResponse | None:
        """Returns the items that the provider keeps of the exchange, if they are to be stored.

        Whether this request was to be compacted does not matter: a later one may be.
        """
        if (
            request.client_provider_state != "response"
            or request.is_token_count
            or observed_response.output is None
            or not observed_response.response_id
        ):
            return None
        client_conversation = (request.request_with_id or request).client_conversation
        if request.rules.mode != "auto" or request.route.is_translated or not _is_continuable(client_conversation):
            return None
        return self.stored_responses.add(
            request.caller.tenant,
            request.session_match.session.id,
            client_conversation,
            observed_response.response_id,
            observed_response.output,
            has_last_response=not _is_sent_once(request),
        )

    async def _write(self, request: PreparedRequest, puts: list[Put]) -> None:
        try:
            if _is_sent_once(request):
                await self.transcripts.record_at_once(
                    request.caller.tenant,
                    request.session_match.session.id,
                    request.conversation,
                    puts,
                    compacted=request.may_have_compaction,
                    after=request.earlier_history,
                )
            else:
                await self.archive.write(puts)
        except StoreUnavailable:
            self.insertion_store.write_later(request.caller.tenant, puts)


def _is_sent_once(request: MeasuredRequest) -> bool:
    """Returns whether the next request will not contain this request's messages.

    True if the client leaves its history to the provider. The list of a client that sends its history itself has
    exactly one response more than the recorded prefix. If it has more, they were made elsewhere, or continued by their
    ids.
    """
    match = (request.request_with_id or request).session_match
    conversation, index = match.conversation, match.base_index
    if not conversation.provider_state:
        return False
    return conversation.is_kept_by_provider or index < 0 or count_responses(conversation, index) != 1


def _is_continuable(conversation: Conversation) -> bool:
    """Returns whether a later request can continue the response, and all its history can be on record.

    A prompt template kept by the provider cannot be on record.
    """
    envelope: Mapping[str, bytes] = conversation.envelope
    return envelope.get("store") != b"false" and envelope.get("prompt", NULL) == NULL


def _build_response_nodes(
    request: PreparedRequest, observed_response: ObservedResponse, ids: tuple[str, ...] = ()
) -> dict[str, PrefixNode]:
    """Builds the prefix nodes by which later requests find this one: by a response's id, or a conversation object's.

    `ids` are the provider's own ids of the response's rounds, if it has tool rounds.
    """
    session_match, conversation = request.session_match, request.conversation
    if not conversation.provider_state or not observed_response.response_id:
        return {}
    # The next response in the chain names this one by the provider's own id. A response that is made in the background
    # reports no usage yet.
    reported = credible_tokens(request, observed_response.input_tokens)
    kept_tokens = (reported or request.utilization.tokens) + (
        observed_response.usage.output if observed_response.usage is not None else 0
    )
    changed = request.rewritten_body is not None or bool(request.visible_request.hidden_results)
    # A request that continues a changed one by its id is changed, too.
    base_node = session_match.base_node
    changed = changed or (session_match.continues_by_id and base_node is not None and base_node.differs_from_client)
    node = PrefixNode(
        session_match.session.id,
        reported=kept_tokens,
        chain=conversation.chain[-1] if conversation.chain else b"",
        ids=ids,
        scope=session_match.scope if ids else b"",
        differs_from_client=changed,
        was_compacted=request.may_have_compaction,
        failed_tokens=_thread_tokens_at_failure(request) if conversation.provider_state == "thread" else 0,
    )
    object_id = _conversation_object_id((request.request_with_id or request).conversation)
    return dict.fromkeys({observed_response.response_id, *ids[-1:], object_id} - {""}, node)


def _conversation_object_id(conversation: Conversation) -> str:
    """Returns the id of a conversation object that the provider keeps; it stays the same over responses."""
    return conversation.continued_id if conversation.provider_state == "object" else ""


def _thread_tokens_at_failure(request: PreparedRequest) -> int:
    """Returns the tokens of a thread when a compaction of it was due and failed; 0 if none was."""
    trigger, used = request.decision.trigger, request.utilization
    if trigger and used.occupied_tokens >= trigger and request.rewritten_body is None:
        return used.tokens
    base_node = request.session_match.base_node
    return base_node.failed_tokens if base_node is not None else 0
