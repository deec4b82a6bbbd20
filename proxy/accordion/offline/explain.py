"""One request, explained: what was understood, how it is counted, what would be done with it, and what would change.

Plain values that serialise as they are. No credential is among them, and no content of a message but what a fold would
write, and the body that would leave where that is asked for.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from accordion.core.boundaries import passed_over
from accordion.core.budget import Limits, Utilization, Window
from accordion.core.conversation import Conversation, Message
from accordion.core.errors import AccordionError, Unreadable
from accordion.core.http import Inbound
from accordion.core.ports import Route, UpstreamRequest
from accordion.gauged import Gauge
from accordion.identity.marks import Marks, read_marks
from accordion.identity.tenants import Caller
from accordion.offline.explain_fold import Folding, entries, folding, kinds, tool_name
from accordion.offline.explain_seat import Sitting, sitting
from accordion.offline.listing import counted
from accordion.offline.rooms import Rooms
from accordion.upstream.headers import end_to_end

LARGEST = 8
"""How many of the largest messages are named."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Who asks. `refused` says why the proxy would not let the caller in; empty where it would."""

    tenant: str
    proxy_key: bool
    credential: bool
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Large:
    """A message by its tokens; `index` is its place in the client's list, of which what is hidden is left out."""

    index: int
    role: str
    parts: dict[str, int]
    tokens: int


@dataclass(frozen=True, slots=True)
class Understood:
    """What the body says. `roles` counts messages and kinds of parts by role, `fields` names all fields but
    that of the messages."""

    dialect: str
    model: str
    stream: bool
    messages: int
    roles: dict[str, dict[str, int]]
    preamble_parts: int
    tools: tuple[str, ...]
    starts_turn: bool
    max_output: int | None
    previous: str | None
    fields: tuple[str, ...]
    marks: Marks
    session: str


@dataclass(frozen=True, slots=True)
class Counted:
    """How full the window would be, in tokens; `utilization` as a share of it. `passed_over` messages are not counted,
    since the provider goes on from a compaction of its own behind them."""

    tokens: int
    occupied: int
    utilization: float
    parts: Utilization
    window: Window
    limits: Limits
    largest: tuple[Large, ...]
    passed_over: int = 0


@dataclass(frozen=True, slots=True)
class Going:
    """Where it goes. `family` tells how: `openai` or `anthropic` natively, `litellm` by translation."""

    upstream: str
    family: str
    url: str


@dataclass(frozen=True, slots=True)
class Changed:
    """What differs between what came and what leaves; of headers the names only. `refused` says why nothing leaves."""

    body: str = "unchanged, byte for byte"
    headers_removed: tuple[str, ...] = ()
    headers_set: tuple[str, ...] = ()
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """All of it. `unread` says why the body was not looked into; then nothing was understood or counted."""

    path: str
    bytes: int
    asked: Asked
    going: Going
    action: str
    reason: str
    changed: Changed = field(default_factory=Changed)
    understood: Understood | None = None
    counted: Counted | None = None
    sitting: Sitting | None = None
    folding: Folding | None = None
    unread: str = ""


async def explain(inbound: Inbound, rooms: Rooms, *, full: bool = False) -> Explanation:
    """Explains a request, whose body must be whole, as if it were the first of its conversation; `full` tells the whole
    body that leaves too. Raises AccordionError where not even a route can be found."""
    body = inbound.body if isinstance(inbound.body, bytes) else b""
    caller, asked = _asked(inbound, rooms)
    gauge = await rooms.gauging.gauge(inbound, inbound.fields, caller)
    done = await rooms.carried_out(inbound, gauge)
    if gauge.decision.action == "complete":
        # Of what the provider keeps nothing is on record here.
        gauge = done
    kept = done.decision.action in ("refuse", "resend")
    refused = asked.refused or (done.decision.reason if done.decision.action == "refuse" else "")
    return Explanation(
        path=inbound.path,
        bytes=len(body),
        asked=asked,
        going=_going(inbound, gauge.route, rooms),
        action="refuse" if refused else gauge.decision.action,
        reason=refused or gauge.decision.reason,
        changed=Changed("nothing is sent", refused=done.decision.reason) if kept else _changed(inbound, done, rooms),
        understood=_understood(inbound, gauge),
        counted=_counted(gauge, rooms),
        sitting=await sitting(gauge, dict(inbound.fields), rooms),
        folding=await folding(gauge, done, rooms, caller, full),
        unread=_why_unread(inbound, body, gauge, rooms, caller),
    )


def _asked(inbound: Inbound, rooms: Rooms) -> tuple[Caller, Asked]:
    try:
        caller = rooms.tenants.identify(inbound.fields)
    except AccordionError as error:
        return rooms.caller, Asked("", False, False, f"{error.status}: {error.message}")
    return caller, Asked(caller.tenant, caller.keyed, bool(caller.credential))


def _understood(inbound: Inbound, gauge: Gauge) -> Understood | None:
    if gauge.place is None:
        return None
    conversation = gauge.place.conversation
    roles: dict[str, Counter[str]] = {}
    for message in conversation.messages:
        counts = roles.setdefault(message.role, Counter())
        counts["messages"] += 1
        counts.update(kinds(message))
    return Understood(
        dialect=conversation.dialect,
        model=conversation.model,
        stream=conversation.stream,
        messages=len(conversation.messages),
        roles={role: dict(counts) for role, counts in roles.items()},
        preamble_parts=len(conversation.preamble),
        tools=tuple(map(tool_name, conversation.tools)),
        starts_turn=conversation.starts_turn,
        max_output=conversation.max_output,
        previous=conversation.previous,
        fields=tuple(conversation.envelope),
        marks=read_marks(inbound.fields, conversation.envelope),
        session=gauge.place.session.id,
    )


def _counted(gauge: Gauge, rooms: Rooms) -> Counted | None:
    if gauge.place is None or gauge.window is None or gauge.limits is None:
        return None
    conversation, used = gauge.place.conversation, gauge.utilization
    lead = entries(gauge.plain, gauge.dialect.listing) - len(conversation.messages)
    model, passed = gauge.model, passed_over(conversation.messages)
    large = [
        Large(lead + index, message.role, dict(kinds(message)), _tokens(rooms, message, conversation, model))
        for index, message in enumerate(conversation.messages)
        if index not in passed
    ]
    large.sort(key=lambda one: -one.tokens)
    return Counted(
        used.tokens, used.occupied, used.ratio, used, gauge.window, gauge.limits, tuple(large[:LARGEST]), len(passed)
    )  # fmt: skip


def _tokens(rooms: Rooms, message: Message, conversation: Conversation, model: str) -> int:
    return rooms.gauging.meter.message(message, conversation, model).tokens


def _going(inbound: Inbound, route: Route, rooms: Rooms) -> Going:
    if route.family == "litellm":
        return Going(route.name, route.family, f"{route.model}, translated by LiteLLM")
    return Going(route.name, route.family, rooms.gauging.router.url(route, inbound.target))


def _changed(inbound: Inbound, gauge: Gauge, rooms: Rooms) -> Changed:
    """Compares what came with what forward.py would send."""
    if gauge.route.family == "litellm":
        removed = tuple(sorted({name.decode("latin-1") for name, _ in inbound.headers}))
        compacted = "compacted, then " if gauge.sent is not None else ""
        return Changed(f"{compacted}translated by LiteLLM for {gauge.route.model}", headers_removed=removed)
    try:
        leaving = rooms.forward.sending.outgoing(inbound, gauge)
    except AccordionError as error:
        return Changed("nothing is sent", refused=f"{error.status}: {error.message}")
    came, goes = dict(inbound.headers), dict(end_to_end(leaving.headers))
    return Changed(
        _body_change(inbound, gauge, leaving),
        tuple(sorted(name.decode("latin-1") for name in came.keys() - goes.keys())),
        tuple(sorted(name.decode("latin-1") for name in goes if goes[name] != came.get(name))),
    )


def _body_change(inbound: Inbound, gauge: Gauge, leaving: UpstreamRequest) -> str:
    if leaving.body == inbound.body:
        return Changed().body
    changes = []
    if gauge.sent is not None:
        changes.append("the message list is compacted")
    if gauge.offered and gauge.sent is not None:
        changes.append(f"the tool {gauge.offered} is added as the last one")
    if gauge.route.model is not None:
        asked = gauge.place.conversation.model if gauge.place else ""
        changes.append(f"the model name {asked!r} becomes {gauge.route.model!r}")
    seated = gauge.seated
    if seated is not None and seated.changed:
        if seated.taken:
            changes.append(f"{counted(len(seated.taken), 'result')} and their calls are hidden from this agent")
        before, after = (each.envelope.get("metadata") for each in (seated.client, seated.conversation))
        if before != after:
            changes.append("Accordion's own fields are removed from its metadata")
    if b"content-encoding" in inbound.fields:
        changes.append("its content-encoding is removed")
    return "; ".join([*changes, "everything else is unchanged"])


def _why_unread(inbound: Inbound, body: bytes, gauge: Gauge, rooms: Rooms, caller: Caller) -> str:
    if gauge.place is not None:
        return ""
    if inbound.path not in rooms.gauging.dialects:
        return f"Accordion forwards {inbound.path} without parsing it"
    if b"content-encoding" in inbound.fields:
        return "its content-encoding cannot be decoded, or the decoded body cannot be parsed"
    try:
        rooms.gauging.reader.read(gauge.dialect, body, caller.space)
    except Unreadable as error:
        return error.message
    return "it was not parsed"
