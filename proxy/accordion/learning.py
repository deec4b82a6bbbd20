"""What a reply teaches: the provider's own count, limits that it named, and whose the calls in it are."""

from __future__ import annotations

from msgspec import structs

from accordion.accounting.calibration import is_credible
from accordion.accounting.overflow import read_overflow
from accordion.core.conversation import Conversation
from accordion.core.records import ReplySeen, Session
from accordion.gauge import Gauging
from accordion.gauged import Gauge
from accordion.identity.sessions import Place


def learnt(
    gauging: Gauging, gauge: Gauge, place: Place, status: int, seen: ReplySeen, ids: tuple[str, ...] = ()
) -> Session:
    """Takes what a reply reported; returns the session as it is now. `ids` are the provider's own ids of the rounds of
    the reply, where something was read back in it."""
    sessions = gauging.sessions
    # One that is not at hand any more may have been erased meanwhile: its exchange must not be written again.
    session = sessions.current(place.session.id) or structs.replace(place.session, only=b"")
    if seen.error or status >= 400:
        overflow = read_overflow(status, seen.error)
        if overflow is not None:
            gauging.overflowed(gauge, overflow)
        return session
    if gauge.seated is not None:
        gauging.seating.answered(gauge.caller, gauge.seated, session.id, seen.calls)
    read = _credible(gauge, seen.read, whole=place.conversation.previous is None)
    if read and place.conversation.previous is None:
        model = place.conversation.model
        known = session.correction_of(model)
        correction = gauging.calibrations.learn(gauge.route.name, model, known, gauge.counted, read)
        if correction != session.correction:
            session = structs.replace(session, correction=correction, model=model)
    if place.conversation.kept and seen.response_id:
        # A reply that goes on from this one tells of it by the provider's own id. One that is made in the background
        # says nothing of its usage yet.
        held = (read or gauge.utilization.tokens) + (seen.usage.output if seen.usage is not None else 0)
        changed = gauge.sent is not None or (gauge.seated is not None and bool(gauge.seated.taken))
        # What goes on by the id of what was changed is behind that.
        changed = changed or (place.base_index < 0 and place.base is not None and place.base.changed)
        tried = _tried(gauge, place) if place.conversation.kept == "thread" else 0
        for state in {seen.response_id, *ids[-1:], _object_id(place.conversation)} - {""}:
            sessions.answered(gauge.caller, place, state, held, ids, changed=changed, tried=tried)
    return session


def _credible(gauge: Gauge, reported: int, *, whole: bool) -> int:
    """What was reported, or 0 where the provider cannot have read that. Only where the request was the `whole` list is
    there a count of it; of what the provider keeps it is known that it fits the window."""
    window = gauge.window
    if window is None:
        return reported
    if whole:
        return reported if is_credible(reported, gauge.counted, gauge.text, window) else 0
    return 0 if window.known and reported > window.size else reported


def _object_id(conversation: Conversation) -> str:
    """The id of a conversation object that the provider keeps; it stays the same over replies."""
    return (conversation.previous or "") if conversation.kept == "object" else ""


def _tried(gauge: Gauge, place: Place) -> int:
    """The tokens of a thread when a fold of it was due and came to nothing; 0 where none was."""
    trigger, used = gauge.decision.trigger, gauge.utilization
    if trigger and used.occupied >= trigger and gauge.sent is None:
        return used.tokens
    return place.base.tried if place.base is not None else 0
