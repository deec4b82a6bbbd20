"""Builds the response headers that describe the request: window, compaction, agent and hidden results."""

from __future__ import annotations

import json
from collections import Counter
from functools import lru_cache

import msgspec

from accordion.compaction.reporting import describe_outcome
from accordion.model.delegation import display_name
from accordion.model.ports import Headers
from accordion.model.records import AgentReport, CompactionOutcome
from accordion.pipeline.request import MeasuredRequest, PassthroughRequest, PreparedRequest
from accordion.pipeline.response_rewriting import strip_proxy_headers
from accordion.pipeline.visibility import VisibleRequest

# Clients and proxies accept 8 KB for all headers together; the record takes a quarter of that.
_MAX_HEADER_LENGTH = 2_048
_MAX_REASON_LENGTH = 240
_MAX_NAME_LENGTH = 80
_MIN_STEPS = 2
_MAX_OWNERS = 16
_DEFAULT_WINDOW_HEADERS: dict[bool, Headers] = {True: (), False: ((b"x-accordion-window-source", b"default"),)}
"""The header for a model with an unknown window, for which the default is assumed."""


def build_headers(request: PassthroughRequest | MeasuredRequest, *, store_available: bool) -> Headers:
    """Builds the headers that are added to every response."""
    store: Headers = () if store_available else ((b"x-accordion-store", b"unavailable"),)
    visible = request.visible_request
    agent = _delegation_headers(visible) if visible is not None and visible.position.node else ()
    if isinstance(request, PassthroughRequest):
        return ((b"x-accordion-unread", request.unread.encode()), *agent, *store) if request.unread else agent + store
    used = request.utilization
    session: Headers = (
        () if request.is_token_count else ((b"x-accordion-session", request.session_match.session.id.encode()),)
    )
    prepared: Headers = ()
    if isinstance(request, PreparedRequest):
        store = ((b"x-accordion-store", b"spooled"),) if request.is_stored_locally_only else store
        prepared = _preparation_headers(request)
    return (
        *session,
        (b"x-accordion-window", b"%d" % used.window),
        *_DEFAULT_WINDOW_HEADERS[used.window_known],
        (b"x-accordion-tokens", b"%d" % used.tokens),
        (b"x-accordion-utilization", b"%.4f" % used.ratio),
        *agent,
        *store,
        *prepared,
    )


def _preparation_headers(request: PreparedRequest) -> Headers:
    """Builds the headers about the compaction and the recalled memories."""
    headers: Headers = ()
    if request.compaction_outcome is not None:
        headers = ((b"x-accordion-compaction", encode_compaction_header(request.compaction_outcome)),)
    if request.recall_usage is not None and request.recall_usage.memories:
        headers += ((b"x-accordion-memory", ", ".join(request.recall_usage.memories).encode()),)
    return headers


def add_proxy_headers(headers: Headers, proxy_headers: Headers) -> Headers:
    """Adds our headers to a response's, in place of those of another Accordion proxy behind this one."""
    return strip_proxy_headers(headers) + proxy_headers


def _delegation_headers(visible_request: VisibleRequest) -> Headers:
    named = ((b"x-accordion-delegation", display_name(visible_request.position.node).encode()),)
    return (
        (*named, (b"x-accordion-filtered", b"%d" % len(visible_request.hidden_results)))
        if visible_request.hidden_results
        else named
    )


def build_agent_report(visible_request: VisibleRequest | None) -> AgentReport | None:
    """Describes the agent that sent a request and the results hidden from it.

    Returns None for the main agent if it gives no information about itself.
    """
    if visible_request is None:
        return None
    seat = visible_request.position
    if not (seat.node or seat.delegated or seat.agent or seat.candidates):
        return None
    owners = Counter(visible_request.owners.values())
    if len(visible_request.hidden_results) < len(visible_request.owners):
        # Some results could not be hidden.
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


@lru_cache(256)  # a replayed compaction has the same header each time
def encode_compaction_header(outcome: CompactionOutcome) -> bytes:
    """Encodes `x-accordion-compaction`: a compaction's record (docs/figures.md) as one line of ASCII JSON.

    At most 2,048 bytes: empty texts are left out, long ones cut, and of very many steps those in the middle are
    removed.
    """
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
        # Only names with almost no ASCII letters need this much space.
        line = _encode_json_line({**said, "steps": [], "reason": "", "writer": ""})
    return line


def _encode_json_line(fields: dict[str, object]) -> bytes:
    line = msgspec.json.encode(fields)
    if not line.isascii():
        line = json.dumps(fields, separators=(",", ":")).encode()
    # The only control character that JSON leaves unescaped; a header may not contain it (RFC 9110 5.5).
    return line.replace(b"\x7f", b"\\u007f")
