"""The sixth step: gives the client the provider's response, or one of our own errors.

The response is relayed while an observer reads a copy (relay.py). State that a later request needs is stored before the
response ends, and the exchange is recorded after it (record.py). Headers of the response describe the request: its
window, compaction, agent and hidden results.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache, partial

import msgspec
from msgspec.structs import replace

from accordion.compaction.reporting import describe_outcome
from accordion.model.delegation import display_name
from accordion.model.errors import AccordionError
from accordion.model.http import Outbound, stop_error
from accordion.model.ports import Clock, Headers, UpstreamResponse
from accordion.model.records import CLIENT_LEFT, CompactionOutcome, ObservedResponse
from accordion.pipeline.framed_streams import frame_headers, has_events, write_frames
from accordion.pipeline.record import ExchangeRecorder, RequestProgress
from accordion.pipeline.relay import content_length, relay, strip_proxy_headers
from accordion.pipeline.request import MeasuredRequest, PassthroughRequest, PreparedRequest
from accordion.pipeline.response_history import ResponseHistory
from accordion.pipeline.visibility import VisibleRequest
from accordion.protocols.registry import error_response

# In bytes. Clients and proxies accept 8 KB for all headers together; the compaction's record takes a quarter of that.
_MAX_HEADER_LENGTH = 2_048
# In characters.
_MAX_REASON_LENGTH = 240
_MAX_NAME_LENGTH = 80
_MIN_STEPS = 2
_DEFAULT_WINDOW_HEADERS: dict[bool, Headers] = {True: (), False: ((b"x-accordion-window-source", b"default"),)}
"""The header for a model with an unknown window, for which the default is assumed."""
_ESTIMATE_HEADERS: dict[bool, Headers] = {False: (), True: ((b"x-accordion-tokens-source", b"estimate"),)}
"""The header for a request that was forwarded before its tokens were counted."""


class Responder(msgspec.Struct, frozen=True):
    """Builds the responses to clients."""

    recorder: ExchangeRecorder
    response_history: ResponseHistory
    clock: Clock
    is_store_available: Callable[[], bool]

    async def respond(self, progress: RequestProgress, response: UpstreamResponse) -> Outbound:
        """Returns the provider's response with our headers; it is relayed as the client reads it."""
        request, progress.status = progress.request, response.status
        protocol = store = None
        keeps_copy = False
        # If the provider reports no usage, a limit of the day counts the text of the response.
        counts_text = request is not None and request.caller.has_day_limit
        if isinstance(request, PreparedRequest) and not (request.is_token_count or request.needs_no_model):
            protocol = request.protocol
            # The text may have to recognize the response in the next request.
            keeps_copy = request.may_omit_end or request.client_metadata.is_client_compaction
            if response.status < 400 and self.response_history.must_store_before_end(request):
                store = partial(self.recorder.store_response, progress)
        record = partial(self.recorder.record, progress)
        body = relay(
            response,
            protocol,
            progress,
            self.clock,
            progress.inbound.request_id,
            record,
            store,
            counts_text=counts_text,
            keeps_copy=keeps_copy,
        )
        headers = response.headers
        frames = request.frames if isinstance(request, MeasuredRequest) else None
        if frames is not None and has_events(headers):
            headers, body = frame_headers(headers), write_frames(body, frames)
        await anext(body)  # Closing the generator closes the response only once it has started.
        headers = add_proxy_headers(headers, self._build_headers(progress))
        return Outbound(response.status, forbid_buffering(headers), body)

    def refuse(self, progress: RequestProgress, error: AccordionError) -> Outbound:
        """Returns one of our errors in the client's own format, with a request id, and records it."""
        progress.status, progress.error = error.status, error.code or error.type
        inbound = progress.inbound
        outbound = error_response(inbound.path, inbound.headers_by_name, error, inbound.request_id)
        self.recorder.record(progress, ObservedResponse())
        return replace(outbound, headers=outbound.headers + self._build_headers(progress))

    def record_interruption(self, progress: RequestProgress, exception: BaseException) -> None:
        """Records why a request ended before the provider answered: see `stop_error`."""
        error = stop_error(exception)
        progress.is_interrupted = True
        progress.status = error.status if error else 499
        progress.error = error.code or error.type if error else CLIENT_LEFT
        self.recorder.record(progress, ObservedResponse())

    def _build_headers(self, progress: RequestProgress) -> Headers:
        if progress.request is None:
            return ()
        return _describe_request(progress.request, store_available=self.is_store_available())


# -- headers -----------------------------------------------------------------------------------------------------------


def _describe_request(request: PassthroughRequest | MeasuredRequest, *, store_available: bool) -> Headers:
    """Builds the headers that are added to every response."""
    store: Headers = () if store_available else ((b"x-accordion-store", b"unavailable"),)
    visible = request.visible_request
    agent = _delegation_headers(visible) if visible is not None and visible.position.node else ()
    if isinstance(request, PassthroughRequest):
        return (
            ((b"x-accordion-unread", request.unread_content.encode()), *agent, *store)
            if request.unread_content
            else agent + store
        )
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
        *_DEFAULT_WINDOW_HEADERS[used.is_window_known],
        (b"x-accordion-tokens", b"%d" % used.tokens),
        *_ESTIMATE_HEADERS[request.is_estimated],
        (b"x-accordion-utilization", b"%.4f" % used.ratio),
        *_warning_headers(request),
        *agent,
        *store,
        *prepared,
    )


def _warning_headers(request: MeasuredRequest) -> Headers:
    """Builds the header that says how near a compaction is."""
    if request.is_token_count or not request.allows_compaction or request.decision.action == "compact":
        return ()
    left = request.limits.tokens_left(request.utilization.occupied_tokens)
    return ((b"x-accordion-tokens-left", b"%d" % left),) if left is not None else ()


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


def forbid_buffering(headers: Headers) -> Headers:
    """Asks a reverse proxy (nginx, and those made from it) to pass each piece on at once, if the length is not known.

    By default nginx collects a response first. Other proxies do not, or heed no header. A provider's own header stays.
    """
    if content_length(headers) >= 0 or any(name.lower() == b"x-accel-buffering" for name, _ in headers):
        return headers
    return (*headers, (b"x-accel-buffering", b"no"))


def _delegation_headers(visible_request: VisibleRequest) -> Headers:
    headers = ((b"x-accordion-delegation", display_name(visible_request.position.node).encode()),)
    return (
        (*headers, (b"x-accordion-filtered", b"%d" % len(visible_request.hidden_results)))
        if visible_request.hidden_results
        else headers
    )


@lru_cache(256)  # a replayed compaction has the same header each time
def encode_compaction_header(outcome: CompactionOutcome) -> bytes:
    """Encodes `x-accordion-compaction`: a compaction's record (docs/figures.md) as one line of ASCII JSON.

    At most 2,048 bytes: empty texts are left out, long ones cut, and of very many steps those in the middle are
    removed.
    """
    fields = {name: value for name, value in describe_outcome(outcome).items() if value != ""}
    for name, max_length in (
        ("reason", _MAX_REASON_LENGTH),
        ("writer", _MAX_NAME_LENGTH),
        ("id", _MAX_NAME_LENGTH),
        ("kind", _MAX_NAME_LENGTH),
        ("cause", _MAX_NAME_LENGTH),
    ):
        if len(fields.get(name, "")) > max_length:
            fields[name] = fields[name][: max_length - 3] + "..."
    steps = fields["steps"]
    while len(line := _encode_json_line(fields)) > _MAX_HEADER_LENGTH and len(steps) > _MIN_STEPS:
        del steps[len(steps) // 2]
        fields["steps_left_out"] = fields.get("steps_left_out", 0) + 1
    if len(line) > _MAX_HEADER_LENGTH:
        # Only names with almost no ASCII letters need this much space.
        line = _encode_json_line({**fields, "steps": [], "reason": "", "writer": ""})
    return line


def _encode_json_line(fields: dict[str, object]) -> bytes:
    line = msgspec.json.encode(fields)
    if not line.isascii():
        line = json.dumps(fields, separators=(",", ":")).encode()
    # The only control character that JSON leaves unescaped; a header may not contain it (RFC 9110 5.5).
    return line.replace(b"\x7f", b"\\u007f")
