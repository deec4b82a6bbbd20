"""What a response says of its request: how full the window is, what was folded, which agent it is from and what that
was not shown."""

from __future__ import annotations

import json
from collections import Counter
from functools import lru_cache

import msgspec

from accordion.compaction.telling import record_of
from accordion.core.delegation import name_of
from accordion.core.ports import Headers
from accordion.core.records import AgentSeen, CompactionSeen
from accordion.gauged import Gauge
from accordion.rewriting import without_ours
from accordion.seating import Seated

# Clients and proxies take 8 KB for all headers together; the record has a quarter of that.
_LONGEST = 2_048
_WORDS = 240
_NAME = 80
_LEAST_STEPS = 2
_OWNERS = 16
_ASSUMED: dict[bool, Headers] = {True: (), False: ((b"x-accordion-window-source", b"default"),)}
"""The header of a request for a model whose window nobody knows: the default is assumed."""


def headers_of(gauge: Gauge, *, store_available: bool) -> Headers:
    """The headers that are added to every response."""
    store: Headers = () if store_available else ((b"x-accordion-store", b"unavailable"),)
    agent = _delegation(gauge.seated) if gauge.seated is not None and gauge.seated.seat.node else ()
    if gauge.place is None:
        return ((b"x-accordion-unread", gauge.unread.encode()), *agent, *store) if gauge.unread else agent + store
    used = gauge.utilization
    named: Headers = () if gauge.counting else ((b"x-accordion-session", gauge.place.session.id.encode()),)
    if gauge.flagged:
        store = ((b"x-accordion-store", b"spooled"),)
    if gauge.seen is not None:
        store += ((b"x-accordion-compaction", told(gauge.seen)),)
    if gauge.recalled is not None and gauge.recalled.memories:
        store += ((b"x-accordion-memory", ", ".join(gauge.recalled.memories).encode()),)
    return (
        *named,
        (b"x-accordion-window", b"%d" % used.window),
        *_ASSUMED[used.window_known],
        (b"x-accordion-tokens", b"%d" % used.tokens),
        (b"x-accordion-utilization", b"%.4f" % used.ratio),
        *agent,
        *store,
    )


def with_ours(headers: Headers, ours: Headers) -> Headers:
    """A reply's headers and ours, which stand in place of those of another proxy of this kind behind this one."""
    return without_ours(headers) + ours


def _delegation(seated: Seated) -> Headers:
    named = ((b"x-accordion-delegation", name_of(seated.seat.node).encode()),)
    return (*named, (b"x-accordion-filtered", b"%d" % len(seated.taken))) if seated.taken else named


def agent_of(seated: Seated | None) -> AgentSeen | None:
    """The agent that a request is from, and what it was not shown; None for the main agent where it says nothing of
    itself."""
    if seated is None:
        return None
    seat = seated.seat
    if not (seat.node or seat.delegated or seat.agent or seat.candidates):
        return None
    owners = Counter(seated.owners.values())
    if len(seated.taken) < len(seated.owners):
        # Some of them had to stay.
        owners = Counter(seated.owners.get(each.result, "") for each in seated.taken)
    return AgentSeen(
        delegated=seat.delegated,
        name=seat.agent,
        delegation=name_of(seat.node),
        parent=name_of(seat.parent),
        evidence=seat.evidence,
        candidates=seat.candidates,
        hidden=len(seated.taken),
        owners=tuple((name_of(node), count) for node, count in owners.most_common(_OWNERS)),
    )


@lru_cache(256)  # a fold is told alike with every request that it is replayed for
def told(seen: CompactionSeen) -> bytes:
    """What `x-accordion-compaction` says: the record of a fold (docs/figures.md) as one line of JSON, in ASCII, of at
    most 2,048 bytes. Words that are empty are left out, long ones cut; of very many steps those in the middle go."""
    said = {name: value for name, value in record_of(seen).items() if value != ""}
    for name, most in (("reason", _WORDS), ("writer", _NAME), ("id", _NAME), ("kind", _NAME), ("cause", _NAME)):
        if len(said.get(name, "")) > most:
            said[name] = said[name][: most - 3] + "..."
    steps = said["steps"]
    while len(line := _line(said)) > _LONGEST and len(steps) > _LEAST_STEPS:
        del steps[len(steps) // 2]
        said["steps_left_out"] = said.get("steps_left_out", 0) + 1
    if len(line) > _LONGEST:
        # Only names that hardly a letter of ASCII is in take so much room.
        line = _line({**said, "steps": [], "reason": "", "writer": ""})
    return line


def _line(said: dict[str, object]) -> bytes:
    line = msgspec.json.encode(said)
    if not line.isascii():
        line = json.dumps(said, separators=(",", ":")).encode()
    # The one control character that JSON leaves as it is; a header may not hold it (RFC 9110 5.5).
    return line.replace(b"\x7f", b"\\u007f")
