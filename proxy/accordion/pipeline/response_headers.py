"""What a response says of its request: how full the window is, what was folded, which agent it is from and what that
was not shown."""

from __future__ import annotations

import json
from collections import Counter
from functools import lru_cache

import msgspec

from accordion.compaction.reporting import describe_outcome
from accordion.model.delegation import display_name
from accordion.model.ports import Headers
from accordion.model.records import AgentReport, CompactionOutcome
from accordion.pipeline.request import RequestState
from accordion.pipeline.response_rewriting import strip_proxy_headers
from accordion.pipeline.visibility import VisibleRequest

# Clients and proxies take 8 KB for all headers together; the record has a quarter of that.
_MAX_HEADER_LENGTH = 2_048
_MAX_REASON_LENGTH = 240
_MAX_NAME_LENGTH = 80
_MIN_STEPS = 2
_MAX_OWNERS = 16
_DEFAULT_WINDOW_HEADERS: dict[bool, Headers] = {True: (), False: ((b"x-accordion-window-source", b"default"),)}
"""The header of a request for a model whose window nobody knows: the default is assumed."""


def build_headers(request: RequestState, *, store_available: bool) -> Headers:
    """The headers that are added to every response."""
    store: Headers = () if store_available else ((b"x-accordion-store", b"unavailable"),)
    agent = (
        _delegation_headers(request.visible_request)
        if request.visible_request is not None and request.visible_request.position.node
        else ()
    )
    if request.session_match is None:
        return ((b"x-accordion-unread", request.unread.encode()), *agent, *store) if request.unread else agent + store
    used = request.utilization
    named: Headers = (
        () if request.is_token_count else ((b"x-accordion-session", request.session_match.session.id.encode()),)
    )
    if request.is_stored_locally_only:
        store = ((b"x-accordion-store", b"spooled"),)
    if request.compaction_outcome is not None:
        store += ((b"x-accordion-compaction", encode_compaction_header(request.compaction_outcome)),)
    if request.recall_usage is not None and request.recall_usage.memories:
        store += ((b"x-accordion-memory", ", ".join(request.recall_usage.memories).encode()),)
    return (
        *named,
        (b"x-accordion-window", b"%d" % used.window),
        *_DEFAULT_WINDOW_HEADERS[used.window_known],
        (b"x-accordion-tokens", b"%d" % used.tokens),
        (b"x-accordion-utilization", b"%.4f" % used.ratio),
        *agent,
        *store,
    )


def add_proxy_headers(headers: Headers, proxy_headers: Headers) -> Headers:
    """A reply's headers and ours, which stand in place of those of another proxy of this kind behind this one."""
    return strip_proxy_headers(headers) + proxy_headers


def _delegation_headers(visible_request: VisibleRequest) -> Headers:
    named = ((b"x-accordion-delegation", display_name(visible_request.position.node).encode()),)
    return (
        (*named, (b"x-accordion-filtered", b"%d" % len(visible_request.hidden_results)))
        if visible_request.hidden_results
        else named
    )


def build_agent_report(visible_request: VisibleRequest | None) -> AgentReport | None:
    """The agent that a request is from, and what it was not shown; None for the main agent where it says nothing of
    itself."""
    if visible_request is None:
        return None
    seat = visible_request.position
    if not (seat.node or seat.delegated or seat.agent or seat.candidates):
        return None
    owners = Counter(visible_request.owners.values())
    if len(visible_request.hidden_results) < len(visible_request.owners):
        # Some of them had to stay.
        owners = Counter(visible_request.owners.get(each.result, "") for each in visible_request.hidden_results)
    return AgentReport(
        delegated=seat.delegated,
        name=seat.agent,
        delegation=display_name(seat.node),
        parent=display_name(seat.parent),
        evidence=seat.evidence,
        candidates=seat.candidates,
        hidden=len(visible_request.hidden_results),
        owners=tuple((display_name(node), count) for node, count in owners.most_common(_MAX_OWNERS)),
    )


@lru_cache(256)  # a fold is told alike with every request that it is replayed for
def encode_compaction_header(outcome: CompactionOutcome) -> bytes:
    """What `x-accordion-compaction` says: the record of a fold (docs/figures.md) as one line of JSON, in ASCII, of at
    most 2,048 bytes. Words that are empty are left out, long ones cut; of very many steps those in the middle go."""
    said = {name: value for name, value in describe_outcome(outcome).items() if value != ""}
    for name, most in (
        ("reason", _MAX_REASON_LENGTH),
        ("writer", _MAX_NAME_LENGTH),
        ("id", _MAX_NAME_LENGTH),
        ("kind", _MAX_NAME_LENGTH),
        ("cause", _MAX_NAME_LENGTH),
    ):
        if len(said.get(name, "")) > most:
            said[name] = said[name][: most - 3] + "..."
    steps = said["steps"]
    while len(line := _encode_json_line(said)) > _MAX_HEADER_LENGTH and len(steps) > _MIN_STEPS:
        del steps[len(steps) // 2]
        said["steps_left_out"] = said.get("steps_left_out", 0) + 1
    if len(line) > _MAX_HEADER_LENGTH:
        # Only names that hardly a letter of ASCII is in take so much room.
        line = _encode_json_line({**said, "steps": [], "reason": "", "writer": ""})
    return line


def _encode_json_line(fields: dict[str, object]) -> bytes:
    line = msgspec.json.encode(fields)
    if not line.isascii():
        line = json.dumps(fields, separators=(",", ":")).encode()
    # The one control character that JSON leaves as it is; a header may not hold it (RFC 9110 5.5).
    return line.replace(b"\x7f", b"\\u007f")
