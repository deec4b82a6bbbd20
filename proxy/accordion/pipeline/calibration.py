"""Updates calibration, learned limits and call records from a response."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from accordion.accounting.calibration import Calibrations, is_credible
from accordion.accounting.overflow import WindowOverflow, read_overflow
from accordion.model.conversation import Conversation
from accordion.model.ports import WindowTable
from accordion.model.records import ObservedResponse, Session
from accordion.pipeline.request import MeasuredRequest, PreparedRequest
from accordion.pipeline.visibility import Visibility
from accordion.sessions.prefix_nodes import PrefixNode
from accordion.sessions.sessions import Sessions


class Calibrator(msgspec.Struct, frozen=True):
    """Learns from responses: the ratio of the provider's counts to ours, the limits in its errors, and calls."""

    sessions: Sessions
    visibility: Visibility
    calibrations: Calibrations
    window_table: WindowTable

    def learn(self, request: MeasuredRequest, status: int, observed_response: ObservedResponse) -> Session:
        """Takes the tokens, limits and calls that a response reported; returns the updated session."""
        known_session = request.session_match.session
        # A session that is no longer in memory may have been erased since: its exchange must not be written again.
        session = self.sessions.find_in_memory(known_session.id) or replace(known_session, only_exchange=b"")
        if observed_response.error or status >= 400:
            overflow = read_overflow(status, observed_response.error)
            if overflow is not None:
                self.learn_limit(request, overflow)
            return session
        self.visibility.record_calls(request.caller, request.visible_request, session.id, observed_response.calls)
        session = self._learn_output(request, session, observed_response)
        return self._learn_correction(request, session, observed_response)

    def learn_limit(self, request: MeasuredRequest, overflow: WindowOverflow) -> None:
        """Records the window's limit from an overflow error, unless the error only quotes the request."""
        counts_output = _counts_output(request, overflow)
        if (overflow.limit or counts_output) and not overflow.is_quoted_from(request.decoded_body):
            model, tenant, limit = request.conversation.model, request.caller.tenant.name, overflow.limit or 0
            self.window_table.learn(model, request.route.name, request.beta, tenant, limit, counts_output=counts_output)

    def _learn_output(self, request: MeasuredRequest, session: Session, observed_response: ObservedResponse) -> Session:
        """Learns how long the response was."""
        output = observed_response.usage.output if observed_response.usage is not None else 0
        self.calibrations.learn_output(request.route.name, request.conversation.model, output)
        return replace(session, longest_output=output) if output > session.longest_output else session

    def _learn_correction(
        self, request: MeasuredRequest, session: Session, observed_response: ObservedResponse
    ) -> Session:
        """Compares our count of a full history with the provider's."""
        if request.conversation.is_kept_by_provider:
            return session
        reported = _filter_credible(request, observed_response.input_tokens)
        if not reported:
            return session
        model = request.conversation.model
        correction = self.calibrations.learn(
            request.route.name, model, session.correction_of(model), request.uncorrected_tokens, reported
        )
        if correction == session.correction:
            return session
        return replace(session, correction=correction, model=model)


def _counts_output(request: MeasuredRequest, overflow: WindowOverflow) -> bool:
    """Whether an overflow shows that the provider counts the requested output: the input alone would have fit."""
    asked, limit = request.conversation.max_output or 0, overflow.limit or request.window.size
    if not asked or overflow.output:
        return bool(asked)
    tokens = overflow.requested or request.utilization.tokens
    return tokens <= limit < tokens + asked


def build_response_nodes(
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
    reported = _filter_credible(request, observed_response.input_tokens)
    kept_tokens = (reported or request.utilization.tokens) + (
        observed_response.usage.output if observed_response.usage is not None else 0
    )
    changed = request.rewritten_body is not None or bool(request.visible_request.hidden_results)
    # A request that continues a changed one by its id is changed, too.
    changed = changed or (
        session_match.base_index < 0
        and session_match.base_node is not None
        and session_match.base_node.differs_from_client
    )
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
    object_id = _conversation_object_id((request.request_by_id or request).conversation)
    return dict.fromkeys({observed_response.response_id, *ids[-1:], object_id} - {""}, node)


def _filter_credible(request: MeasuredRequest, reported_tokens: int) -> int:
    """Returns the reported tokens, or 0 if the provider cannot have read that many.

    Only for a request with the full history there is a count of our own to compare with. For any other, only a report
    above the size of the window is rejected.
    """
    window = request.window
    if request.conversation.is_kept_by_provider:
        return 0 if window.is_known and reported_tokens > window.size else reported_tokens
    is_possible = is_credible(reported_tokens, request.uncorrected_tokens, request.text_tokens, window)
    return reported_tokens if is_possible else 0


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
