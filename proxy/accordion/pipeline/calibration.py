"""Updates calibration, learned limits and call records from a response."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from accordion.accounting.calibration import Calibrations, is_credible
from accordion.accounting.overflow import WindowOverflow, read_overflow
from accordion.model.ports import WindowTable
from accordion.model.records import ObservedResponse, Session
from accordion.pipeline.request import MeasuredRequest
from accordion.pipeline.visibility import Visibility
from accordion.sessions.sessions import Sessions


class Calibrator(msgspec.Struct, frozen=True):
    """Learns from responses: the ratio of the provider's counts to ours, the limits in its errors, and calls."""

    sessions: Sessions
    visibility: Visibility
    calibrations: Calibrations
    window_table: WindowTable

    def learn(self, request: MeasuredRequest, status: int, observed_response: ObservedResponse) -> Session:
        """Takes the tokens, limits and calls that a response reported; returns the updated session."""
        known_session = request.session_match.session
        # A session that is no longer in memory may have been erased since: its exchange must not be written again.
        session = self.sessions.find_in_memory(known_session.id) or replace(known_session, only_exchange=b"")
        if observed_response.error or status >= 400:
            overflow = read_overflow(status, observed_response.error)
            if overflow is not None:
                self.learn_limit(request, overflow)
            return session
        self.visibility.record_calls(request.caller, request.visible_request, session.id, observed_response.calls)
        session = self._learn_output(request, session, observed_response)
        return self._learn_correction(request, session, observed_response)

    def learn_limit(self, request: MeasuredRequest, overflow: WindowOverflow) -> None:
        """Records the window's limit from an overflow error, unless the error only quotes the request."""
        counts_output = _counts_output(request, overflow)
        if (overflow.limit or counts_output) and not overflow.is_quoted_from(request.decoded_body):
            model, tenant, limit = request.conversation.model, request.caller.tenant.name, overflow.limit or 0
            self.window_table.learn(model, request.route.name, request.beta, tenant, limit, counts_output=counts_output)

    def _learn_output(self, request: MeasuredRequest, session: Session, observed_response: ObservedResponse) -> Session:
        """Learns how long the response was."""
        output = observed_response.usage.output if observed_response.usage is not None else 0
        self.calibrations.learn_output(request.route.name, request.conversation.model, output)
        return replace(session, longest_output=output) if output > session.longest_output else session

    def _learn_correction(
        self, request: MeasuredRequest, session: Session, observed_response: ObservedResponse
    ) -> Session:
        """Compares our count of a full history with the provider's."""
        if request.conversation.is_kept_by_provider:
            return session
        reported = credible_tokens(request, observed_response.input_tokens)
        if not reported:
            return session
        model = request.conversation.model
        correction = self.calibrations.learn(
            request.route.name, model, session.correction_of(model), request.uncorrected_tokens, reported
        )
        if correction == session.correction:
            return session
        return replace(session, correction=correction, model=model)


def _counts_output(request: MeasuredRequest, overflow: WindowOverflow) -> bool:
    """Whether an overflow shows that the provider counts the requested output: the input alone would have fit."""
    asked, limit = request.conversation.max_output or 0, overflow.limit or request.window.size
    if not asked or overflow.output:
        return bool(asked)
    tokens = overflow.requested or request.utilization.tokens
    return tokens <= limit < tokens + asked


def credible_tokens(request: MeasuredRequest, reported_tokens: int) -> int:
    """Returns the reported tokens, or 0 if the provider cannot have read that many.

    Only for a request with the full history there is a count of our own to compare with. For any other, only a report
    above the size of the window is rejected.
    """
    window = request.window
    if request.conversation.is_kept_by_provider:
        return 0 if window.is_known and reported_tokens > window.size else reported_tokens
    is_possible = is_credible(reported_tokens, request.uncorrected_tokens, request.text_tokens, window)
    return reported_tokens if is_possible else 0
