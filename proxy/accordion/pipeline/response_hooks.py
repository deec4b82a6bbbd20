"""Hooks that act on an exchange after its response.

Each is a class with the method `record`. The composition root lists those that are switched on, and `ExchangeRecorder`
(record.py) calls them in order.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from accordion.archive.referenced_items import ReferencedItems
from accordion.archive.transcripts import TranscriptStore
from accordion.insertions.excerpts import ArchiveSearch
from accordion.model.ports import Tasks
from accordion.model.records import ObservedResponse
from accordion.pipeline.request import PreparedRequest
from accordion.pipeline.shared_artifacts import SharedArtifacts


class ResponseHook(Protocol):
    """Acts on exchanges after their responses."""

    def record(self, request: PreparedRequest, observed_response: ObservedResponse) -> None:
        """Acts on an exchange of a session that was not erased. Returns at once; slow work runs in the background."""


class HiddenResultHook(msgspec.Struct, frozen=True):
    """Archives results that were hidden from an agent, for the agents that may read them."""

    shared_artifacts: SharedArtifacts

    def record(self, request: PreparedRequest, observed_response: ObservedResponse) -> None:
        """Archives the hidden results of a request."""
        visible = request.visible_request
        if visible.hidden_results:
            self.shared_artifacts.archive_hidden_results(
                request.protocol.name,
                request.caller,
                visible.position,
                visible.client_conversation,
                visible.hidden_results,
                visible.owners,
            )


class TranscriptHook(msgspec.Struct, frozen=True):
    """Records the messages of requests in the transcript of their session."""

    transcripts: TranscriptStore

    def record(self, request: PreparedRequest, observed_response: ObservedResponse) -> None:
        """Records the new messages of a request, soon."""
        is_new_list = request.session_match.follows_client_compaction
        self.transcripts.record(
            request.caller.tenant,
            request.session_match.session.id,
            request.conversation,
            compacted=request.may_have_compaction or request.client_metadata.is_client_compaction or is_new_list,
            after=request.earlier_history,
            is_new_list=is_new_list,
        )


class RecallIndexHook(msgspec.Struct, frozen=True):
    """Indexes what a compaction removed, for the turns to come."""

    archive_search: ArchiveSearch
    tasks: Tasks

    def record(self, request: PreparedRequest, observed_response: ObservedResponse) -> None:
        """Indexes the compaction that was made for this request, in a thread."""
        outcome = request.compaction_outcome
        if outcome is not None and outcome.state == "compacted":
            self.tasks.spawn(self._index(request), "index a compaction")

    async def _index(self, request: PreparedRequest) -> None:
        covered_count = request.history.covered_count
        await self.tasks.offload(self.archive_search.prepare, request.conversation, covered_count)


class ReferencedItemHook(msgspec.Struct, frozen=True):
    """Records response items that clients may later reference by the provider's ids only."""

    referenced_items: ReferencedItems

    def record(self, request: PreparedRequest, observed_response: ObservedResponse) -> None:
        """Records the items of a response."""
        if (observed_response.items or self.referenced_items.waiting) and request.is_compactable:
            self.referenced_items.remember_items(
                request.caller.tenant,
                request.session_match.session.id,
                request.conversation,
                observed_response.items,
                request.started_at,
            )
