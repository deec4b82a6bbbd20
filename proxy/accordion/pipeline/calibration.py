"""Updates calibration, learned limits and call records from a response."""

from __future__ import annotations

from msgspec import structs

from accordion.accounting.calibration import is_credible
from accordion.accounting.overflow import read_overflow
from accordion.model.conversation import Conversation
from accordion.model.records import ObservedResponse, Session
from accordion.pipeline.measure import Measurer
from accordion.pipeline.request import RequestState
from accordion.sessions.prefix_nodes import PrefixNode
from accordion.sessions.sessions import SessionMatch


def learn_from_response(
    measurer: Measurer,
    request: RequestState,
    session_match: SessionMatch,
    status: int,
    observed_response: ObservedResponse,
) -> Session:
    """Takes the tokens, limits and calls that a response reported; returns the updated session."""
    sessions = measurer.sessions
    # A session that is no longer in memory may have been erased since: its exchange must not be written again.
    session = sessions.find_in_memory(session_match.session.id) or structs.replace(session_match.session, only=b"")
    if observed_response.error or status >= 400:
        overflow = read_overflow(status, observed_response.error)
        if overflow is not None:
            measurer.learn_limit(request, overflow)
        return session
    if request.visible_request is not None:
        measurer.visibility.record_calls(request.caller, request.visible_request, session.id, observed_response.calls)
    read = _filter_credible(
        request, observed_response.input_tokens, is_full_history=session_match.conversation.previous is None
    )
    if read and session_match.conversation.previous is None:
        model = session_match.conversation.model
        known = session.correction_of(model)
        correction = measurer.calibrations.learn(request.route.name, model, known, request.uncorrected_tokens, read)
        if correction != session.correction:
            session = structs.replace(session, correction=correction, model=model)
    return session


def response_nodes(
    request: RequestState, session_match: SessionMatch, observed_response: ObservedResponse, ids: tuple[str, ...] = ()
) -> dict[str, PrefixNode]:
    """Returns the prefix nodes of a response's ids, and of a conversation that the provider keeps.

    Each stands for this request and its response from now on. `ids` are the provider's own ids of the response's
    rounds, if it has tool rounds.
    """
    if not session_match.conversation.kept or not observed_response.response_id:
        return {}
    # The next response in the chain names this one by the provider's own id. A response that is made in the background
    # reports no usage yet.
    read = _filter_credible(
        request, observed_response.input_tokens, is_full_history=session_match.conversation.previous is None
    )
    held = (read or request.utilization.tokens) + (
        observed_response.usage.output if observed_response.usage is not None else 0
    )
    changed = request.rewritten_body is not None or (
        request.visible_request is not None and bool(request.visible_request.hidden_results)
    )
    # A request that continues a changed one by its id is changed, too.
    changed = changed or (
        session_match.base_index < 0 and session_match.base_node is not None and session_match.base_node.changed
    )
    point = PrefixNode(
        session_match.session.id,
        reported=held,
        chain=session_match.conversation.chain[-1] if session_match.conversation.chain else b"",
        ids=ids,
        label=session_match.label if ids else b"",
        changed=changed,
        folded=request.was_folded,
        tried=_thread_tokens_at_failure(request, session_match) if session_match.conversation.kept == "thread" else 0,
    )
    return dict.fromkeys(
        {observed_response.response_id, *ids[-1:], _conversation_object_id(session_match.conversation)} - {""}, point
    )


def _filter_credible(request: RequestState, reported_tokens: int, *, is_full_history: bool) -> int:
    """Returns the reported tokens, or 0 if the provider cannot have read that many.

    Only a request with the full history (`is_full_history`) has a count of ours to compare. What the provider keeps is
    known to fit the window.
    """
    window = request.window
    if window is None:
        return reported_tokens
    if is_full_history:
        return (
            reported_tokens
            if is_credible(reported_tokens, request.uncorrected_tokens, request.text_tokens, window)
            else 0
        )
    return 0 if window.is_known and reported_tokens > window.size else reported_tokens


def _conversation_object_id(conversation: Conversation) -> str:
    """Returns the id of a conversation object that the provider keeps; it stays the same over responses."""
    return (conversation.previous or "") if conversation.kept == "object" else ""


def _thread_tokens_at_failure(request: RequestState, session_match: SessionMatch) -> int:
    """Returns the tokens of a thread when a compaction of it was due and failed; 0 if none was."""
    trigger, used = request.decision.trigger, request.utilization
    if trigger and used.occupied_tokens >= trigger and request.rewritten_body is None:
        return used.tokens
    return session_match.base_node.tried if session_match.base_node is not None else 0
