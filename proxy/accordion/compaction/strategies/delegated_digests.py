"""Puts a digest in place of what a sub-agent returned."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import msgspec

from accordion.archive.references import artifact_id, returned, shortened, size_of
from accordion.compaction.strategies.base import Archive, Draft, Section, text_of
from accordion.compaction.strategies.compact_tool_results import old_batches, replaced_before
from accordion.core.conversation import ToolCall, ToolResult
from accordion.core.delegation import Delegation
from accordion.core.plan import Step
from accordion.summaries.digest_returns import digest_of_return

_log = logging.getLogger("accordion")

_WORDS = 400
"""Characters of what is said beside arguments and digest, at most."""
_SHARE = 3
"""A digest is at most one part in so many of what it is made from."""


class DelegatedDigestsOptions(Section, frozen=True):
    """Returns in the newest `keep_last_n` batches stay. A digest has at most `digest_characters`."""

    keep_last_n: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 2
    digest_characters: Annotated[int, msgspec.Meta(ge=200, le=20_000)] = 1_600


class DelegatedDigests:
    """Replaces what sub-agents returned whose conversations are known, the oldest first: by who it was, where the whole
    of it is kept, and a digest with its findings. All other results are none of its business."""

    name = "delegated_digests"

    def __init__(self, options: DelegatedDigestsOptions) -> None:
        self._options = options

    def propose(self, view: Draft) -> Sequence[Step | Archive]:
        """A step for each that is larger than what would take its place."""
        if not view.begun:
            return ()
        old = old_batches(view, self._options.keep_last_n)
        last = old[-1][1] if old else -1
        found = [self._step(view, *place) for place in view.results() if place[0] <= last]
        return [step for step in found if step is not None]

    def _step(self, view: Draft, slot: int, part: int, result: ToolResult) -> Archive | None:
        child = view.begun.get(result.call_id)
        if child is None:
            return None
        call = view.call_of(slot, part) or ToolCall(result.call_id, "", "")
        most, given = self._options.digest_characters, len(shortened(call.arguments))
        digest = min(most, len(text_of(result)) // _SHARE)
        tokens = (_WORDS + 3 * given // 2 + digest) // 3
        if tokens >= view.part_tokens(slot)[part] or replaced_before(view, slot, result, _WORDS + given + most):
            return None
        return Archive(slot, part, tokens, partial(_told, view, (slot, part), result, call, child, digest))


def _told(
    view: Draft, place: tuple[int, int], result: ToolResult, call: ToolCall, child: Delegation, digest: int
) -> str:
    """The text; only made for results that stay in the list."""
    text, about = text_of(result), ""
    try:
        about = digest_of_return(text, digest)[:digest]
    except Exception as error:
        _log.error("a tool result could not be digested: %s", type(error).__name__)
    kept = artifact_id(view.space, view.slots[place[0]].message.key, place[1])
    return returned(child.agent, child.session, call.name, call.arguments, kept, size_of(text), about)
