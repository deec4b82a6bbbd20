"""What a reply teaches: the provider's own count, limits that it named, and whose the calls in it are."""

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
    """Takes what a reply reported; returns the session as it is now."""
    sessions = measurer.sessions
    # One that is not at hand any more may have been erased meanwhile: its exchange must not be written again.
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
    """What the ids of a response, or of the conversation that the provider keeps, stand for from now on: this request
    and its response. `ids` are the provider's own ids of its rounds, where something was read back in it."""
    if not session_match.conversation.kept or not observed_response.response_id:
        return {}
    # A response that goes on from this one tells of it by the provider's own id. One that is made in the background
    # says nothing of its usage yet.
    read = _filter_credible(
        request, observed_response.input_tokens, is_full_history=session_match.conversation.previous is None
    )
    held = (read or request.utilization.tokens) + (
        observed_response.usage.output if observed_response.usage is not None else 0
    )
    changed = request.rewritten_body is not None or (
        request.visible_request is not None and bool(request.visible_request.hidden_results)
    )
    # What goes on by the id of what was changed is behind that.
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
    """What was reported, or 0 where the provider cannot have read that. Only where the request was the `whole` list is
    there a count of it; of what the provider keeps it is known that it fits the window."""
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
    """The id of a conversation object that the provider keeps; it stays the same over replies."""
    return (conversation.previous or "") if conversation.kept == "object" else ""


def _thread_tokens_at_failure(request: RequestState, session_match: SessionMatch) -> int:
    """The tokens of a thread when a fold of it was due and came to nothing; 0 where none was."""
    trigger, used = request.decision.trigger, request.utilization
    if trigger and used.occupied_tokens >= trigger and request.rewritten_body is None:
        return used.tokens
    return session_match.base_node.tried if session_match.base_node is not None else 0
