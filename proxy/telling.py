"""What a response says of its request: how full the window is, and what was folded."""

from __future__ import annotations

import json

from proxy.compaction.telling import record_of
from proxy.core.ports import Headers
from proxy.core.records import CompactionSeen
from proxy.gauged import Gauge

# Clients and proxies take 8 KB for all headers together; the record has a quarter of that.
_LONGEST = 2_048
_WORDS = 240
_NAME = 80
_LEAST_STEPS = 2


def headers_of(gauge: Gauge, *, store_available: bool) -> Headers:
    """The headers that are added to every response."""
    store: Headers = () if store_available else ((b"x-accordion-store", b"unavailable"),)
    if gauge.place is None:
        return store
    used = gauge.utilization
    named: Headers = () if gauge.counting else ((b"x-accordion-session", gauge.place.session.id.encode()),)
    if gauge.flagged:
        store = ((b"x-accordion-store", b"spooled"),)
    if gauge.seen is not None:
        store += ((b"x-accordion-compaction", told(gauge.seen)),)
    return (
        *named,
        (b"x-accordion-window", b"%d" % used.window),
        (b"x-accordion-tokens", b"%d" % used.tokens),
        (b"x-accordion-utilization", b"%.4f" % used.ratio),
        *store,
    )


def told(seen: CompactionSeen) -> bytes:
    """What `x-accordion-compaction` says: the record of systems/README B8 as one line of JSON, in ASCII, of at most
    2,048 bytes. Words that are empty are left out, long ones cut; of very many steps those in the middle go."""
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
    return json.dumps(said, separators=(",", ":")).encode()
