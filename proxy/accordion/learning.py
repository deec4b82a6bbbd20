"""What a reply teaches: the provider's own count, limits that it named, and whose the calls in it are."""

from __future__ import annotations

from msgspec import structs

from accordion.accounting.calibration import is_credible
from accordion.accounting.overflow import read_overflow
from accordion.core.conversation import Conversation
from accordion.core.records import ReplySeen, Session
from accordion.gauge import Gauging
from accordion.gauged import Gauge
from accordion.identity.points import Point
from accordion.identity.sessions import Place


def learnt(gauging: Gauging, gauge: Gauge, place: Place, status: int, seen: ReplySeen) -> Session:
    """Takes what a reply reported; returns the session as it is now."""
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
    return session


def states_of(gauge: Gauge, place: Place, seen: ReplySeen, ids: tuple[str, ...] = ()) -> dict[str, Point]:
    """What the ids of a response, or of the conversation that the provider keeps, stand for from now on: this request
    and its response. `ids` are the provider's own ids of its rounds, where something was read back in it."""
    if not place.conversation.kept or not seen.response_id:
        return {}
    # A response that goes on from this one tells of it by the provider's own id. One that is made in the background
    # says nothing of its usage yet.
    read = _credible(gauge, seen.read, whole=place.conversation.previous is None)
    held = (read or gauge.utilization.tokens) + (seen.usage.output if seen.usage is not None else 0)
    changed = gauge.sent is not None or (gauge.seated is not None and bool(gauge.seated.taken))
    # What goes on by the id of what was changed is behind that.
    changed = changed or (place.base_index < 0 and place.base is not None and place.base.changed)
    point = Point(
        place.session.id,
        reported=held,
        chain=place.conversation.chain[-1] if place.conversation.chain else b"",
        ids=ids,
        label=place.label if ids else b"",
        changed=changed,
        folded=gauge.was_folded,
        tried=_tried(gauge, place) if place.conversation.kept == "thread" else 0,
    )
    return dict.fromkeys({seen.response_id, *ids[-1:], _object_id(place.conversation)} - {""}, point)


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
