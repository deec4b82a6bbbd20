"""What would be folded of one request, and why: the list before and after, the blocks, what goes to the archive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import msgspec

from accordion.core.conversation import Conversation, Message, Part, Text, ToolResult
from accordion.core.edits import Folded
from accordion.core.plan import OURS
from accordion.core.values import replace
from accordion.dialects.spans import FIELDS
from accordion.gauged import Gauge
from accordion.identity.tenants import Caller
from accordion.offline.rooms import Rooms

Became = Literal["kept", "edited", "block", "left out"]


@dataclass(frozen=True, slots=True)
class Standing:
    """One of the client's messages, and what becomes of it. `index` is its place in the client's list, `number` the one
    that blocks cite it by (which leaves out a system prompt at the head). `after` is what it counts then, in tokens;
    `block` the number of the block that stands for it, from 1. `text` is what an edited one says in the changed parts.
    """

    index: int
    number: int
    role: str
    parts: dict[str, int]
    tokens: int
    became: Became
    after: int = 0
    block: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """What is written in place of messages `first` to `last`, by their numbers; what stays of these stands behind."""

    number: int
    first: int
    last: int
    tokens: int
    text: str


@dataclass(frozen=True, slots=True)
class Moved:
    """What is kept whole in the archive: a tool's result, another part, or a range of messages, `first` to `last`."""

    id: str
    kind: str
    tool: str
    first: int
    last: int
    tokens: int
    characters: int
    description: str


@dataclass(frozen=True, slots=True)
class Step:
    """What one strategy did, in tokens of the whole request."""

    strategy: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Offered:
    """Our own tool, which is offered from a conversation's first fold on: its name, and the tokens that it adds to
    every request from then on. The first step of the fold is told with them in what it came to."""

    name: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Folding:
    """Whether it is folded, and all about that. `state` is `none`, `folded`, `observed` (it would be, but the mode or a
    header says to report it only) or `failed`; `why` says why that is so.

    `before` and `after` count the whole request in tokens (`after` of one that is only reported as planned), `messages`
    the entries of its list, `bytes` its body. `offered` is our tool, which `after` counts and `before` does not; None
    where it is not offered. `writer` wrote the summary here, `live_writer` is the configured one. `refused` says why
    the request is refused all the same.
    """

    state: str
    why: str
    kind: str = ""
    trigger: int = 0
    target: int = 0
    must_succeed: bool = False
    forced: bool = False
    before: int = 0
    after: int = 0
    messages: tuple[int, int] = (0, 0)
    bytes: tuple[int, int] = (0, 0)
    generation: int = 0
    id: str = ""
    passes: int = 0
    steps: tuple[Step, ...] = ()
    offered: Offered | None = None
    writer: str = ""
    live_writer: str = ""
    listed: tuple[Standing, ...] = ()
    blocks: tuple[Block, ...] = ()
    artifacts: tuple[Moved, ...] = ()
    body: str = ""
    refused: str = ""


async def folding(gauge: Gauge, done: Gauge, rooms: Rooms, caller: Caller, full: bool) -> Folding:
    """Compares a request as it was gauged with what was made of it. `full` adds the whole body that leaves."""
    decision, seen, tokens = gauge.decision, done.seen, gauge.utilization.tokens
    refused = done.decision.reason if done.decision.action == "refuse" else ""
    full = full and not refused
    body = (done.plain if done.sent is None else done.sent).decode(errors="replace") if full else ""
    if gauge.place is None or seen is None:
        return Folding("none", _why_not(gauge), before=tokens, after=tokens, body=body, refused=refused)
    told = Folding(
        state=seen.state,
        why=seen.reason or decision.reason,
        kind=seen.kind,
        trigger=decision.trigger,
        target=decision.target,
        must_succeed=decision.must_succeed,
        forced=decision.forced,
        before=tokens,
        after=seen.after if seen.state == "observed" else done.utilization.tokens,
        passes=seen.passes,
        steps=tuple(Step(*step) for step in seen.steps),
        offered=await _offered(gauge, done, rooms),
        live_writer=rooms.writer(gauge.place.conversation.model),
        body=body,
        refused=refused,
    )
    if done.folded is None or done.folded.compaction is None:
        return told
    return await _compared(told, gauge.place.conversation, done, done.folded, rooms, caller)


async def _offered(gauge: Gauge, done: Gauge, rooms: Rooms) -> Offered | None:
    """Our tool as the request leaves with it; of a fold that is only reported, as it would."""
    if done.seen is not None and done.seen.state == "observed":
        gauging = rooms.gauging
        tokens = await gauging.brought(gauge)
        if not tokens or gauging.dresser is None or gauge.folded is None:
            return None
        shown = gauging.dresser.offered(gauge.dialect, gauge.folded.conversation)
        return Offered(tool_name(shown.tools[-1]), tokens)
    tokens = done.utilization.tools - gauge.utilization.tools
    return Offered(done.offered, tokens) if done.offered and tokens else None


def _why_not(gauge: Gauge) -> str:
    if gauge.place is None:
        return "it was not parsed"
    if gauge.decision.action == "prepare":
        return f"{gauge.decision.reason}; a summary is being prepared in the background"
    return gauge.decision.reason


async def _compared(
    told: Folding, client: Conversation, done: Gauge, folded: Folded, rooms: Rooms, caller: Caller
) -> Folding:
    """The same with what the fold made of the list."""
    compaction = folded.compaction
    assert compaction is not None  # noqa: S101  # asked before

    def count(message: Message) -> int:
        return rooms.gauging.meter.message(message, client, done.model).tokens

    blocks = _blocks(folded, count)
    sent, lead = done.sent or b"", len(client.lead)
    return replace(
        told,
        messages=(entries(done.plain, done.dialect.listing), entries(sent, done.dialect.listing)),
        bytes=(len(done.plain), len(sent)),
        generation=compaction.generation,
        id=compaction.id,
        writer=compaction.writer,
        listed=tuple(_standings(client, folded, blocks, lead, count)),
        blocks=tuple(blocks),
        artifacts=tuple(
            Moved(a.id, a.kind, a.tool, a.first, a.last, a.tokens, a.characters, a.description)
            for a in await rooms.artifacts(compaction.artifacts, caller)
        ),
    )


def _blocks(folded: Folded, count: Callable[[Message], int]) -> list[Block]:
    found: list[Block] = []
    for message, origin, span in zip(folded.conversation.messages, folded.origins, folded.spans, strict=True):
        if origin == OURS:
            found.append(Block(len(found) + 1, span[0], span[1], count(message), _text(message)))
    return found


def _standings(
    client: Conversation, folded: Folded, blocks: list[Block], lead: int, count: Callable[[Message], int]
) -> Iterator[Standing]:
    places = {origin: place for place, origin in enumerate(folded.origins) if origin != OURS}
    for number, message in enumerate(client.messages):
        parts = dict(kinds(message))
        stands = partial(Standing, lead + number, number, message.role, parts, count(message))
        place = places.get(number)
        if place is None:
            block = next((block.number for block in blocks if block.first <= number <= block.last), 0)
            yield stands("block" if block else "left out", block=block)
            continue
        now = folded.conversation.messages[place]
        if folded.spans[place][2]:
            yield stands("edited", count(now), text=_changed(message, now))
        else:
            yield stands("kept", count(now))


def entries(body: bytes, listing: str) -> int:
    """How many entries the list of a body has, those of the system prompt included."""
    raw = FIELDS.decode(body).get(listing)
    return len(msgspec.json.decode(raw, type=list[msgspec.Raw])) if raw and bytes(raw)[:1] == b"[" else 1


def tool_name(definition: str) -> str:
    """What a tool is called, by its definition as JSON."""
    try:
        tool: Any = msgspec.json.decode(definition)
    except (msgspec.MsgspecError, RecursionError):
        return "?"
    if not isinstance(tool, dict):
        return "?"
    inner = tool.get("function") or tool.get("custom")
    return str((inner if isinstance(inner, dict) else tool).get("name") or tool.get("type") or "?")


def kinds(message: Message) -> Counter[str]:
    """How many parts of each kind a message has."""
    return Counter(type(part).__name__ for part in message.parts)


def _changed(before: Message, after: Message) -> str:
    """What the parts say that were not there before."""
    stood = set(before.parts)
    return "\n".join(_part(part) for part in after.parts if part not in stood)


def _text(message: Message) -> str:
    return "\n".join(map(_part, message.parts))


def _part(part: Part) -> str:
    if isinstance(part, ToolResult):
        return "\n".join(map(_part, part.parts))
    return part.text if isinstance(part, Text) else ""
