"""The second step: finds the agent and the session of a request.

From here on a request is treated as if its client had sent only the messages that its agent may see (visibility.py).
The session is found by the prefix chain of the visible list, and a person may have set a mode for it. A request that is
only observed is forwarded as it came, so nothing is hidden in it. If the session cannot be found, the request is
forwarded unmeasured.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from accordion.compaction.policy import Mode
from accordion.compaction.session_overrides import SessionOverrideStore
from accordion.pipeline.mentions import Mentions
from accordion.pipeline.request import IdentifiedRequest, PassthroughRequest, ReceivedRequest, advance, pass_through
from accordion.pipeline.visibility import Visibility, VisibleRequest, metadata_with_partition
from accordion.sessions.client_metadata import ClientMetadata
from accordion.sessions.sessions import SessionMatch, Sessions

_log = logging.getLogger("accordion")


class Identifier(msgspec.Struct, frozen=True):
    """Finds agents and sessions."""

    visibility: Visibility
    sessions: Sessions
    mentions: Mentions | None
    """None if no feature inserts content that a list may name."""
    session_overrides: SessionOverrideStore
    configured_mode: Callable[..., Mode]
    """The mode by model, and by `delegated`: whether a sub-agent sent the request."""

    async def identify(self, request: ReceivedRequest, session_id: str = "") -> IdentifiedRequest | PassthroughRequest:
        """Finds the agent's position, the visible list and the session. `session_id`: see RequestReader.read.

        Raises BadRequest if the client declares an impossible position.
        """
        metadata = request.client_metadata
        if self.mentions is not None:
            metadata = self.mentions.separate_projects(metadata, request.controls.project)
        visible_request = await self.visibility.resolve(
            request.protocol,
            request.caller,
            metadata,
            request.client_conversation,
            request.decoded_body,
        )
        try:
            session_match = await self._find_session(request, metadata, visible_request, session_id)
            request = self._apply_session_mode(request, session_match)
            # Only now is the session's mode known. An observed request is forwarded as it came.
            if visible_request.hidden_results and self._is_observed(request, visible_request):
                visible_request = self.visibility.show_hidden_results(
                    request.protocol, request.caller, visible_request, request.decoded_body
                )
                session_match = self.sessions.replace_list(session_match, visible_request.conversation)
            if not (request.is_token_count or request.is_dry_run or metadata.is_client_compaction):
                visible_request = await self.visibility.attach_session(request.caller, visible_request, session_match)
        except Exception:
            # Measuring is optional, forwarding is not.
            _log.exception(
                "the session of a request could not be found; the request is forwarded unchanged",
                extra={"request_id": request.inbound.request_id},
            )
            return pass_through(request, visible_request)
        if visible_request.body is not request.decoded_body:
            request = replace(request, decoded_body=visible_request.body)
        return advance(IdentifiedRequest, request, visible_request=visible_request, session_match=session_match)

    def _apply_session_mode(self, request: ReceivedRequest, session_match: SessionMatch) -> ReceivedRequest:
        """Returns the request with the mode that a person set for its session, unless its own is stricter."""
        mode = self.session_overrides.find_mode(request.caller.tenant, session_match.session.id)
        if mode == "auto" or request.controls.mode == "off":
            return request
        return replace(request, controls=replace(request.controls, mode=mode))

    def _is_observed(self, request: ReceivedRequest, visible_request: VisibleRequest) -> bool:
        """Returns whether a compaction of the request would only be reported."""
        if request.is_dry_run:
            return False
        model, delegated = visible_request.conversation.model, visible_request.position.is_subagent
        return "observe" in (request.controls.mode, self.configured_mode(model, delegated=delegated))

    async def _find_session(
        self, request: ReceivedRequest, metadata: ClientMetadata, visible_request: VisibleRequest, session_id: str
    ) -> SessionMatch:
        scoped, conversation = metadata_with_partition(metadata, visible_request.position), visible_request.conversation
        if request.is_token_count or request.is_dry_run:
            return self.sessions.match_without_recording(request.caller, scoped, conversation, session_id)
        return await self.sessions.resolve(request.caller, scoped, conversation, request.inbound.request_id, session_id)
