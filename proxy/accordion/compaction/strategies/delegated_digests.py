"""The strategy that replaces the results of sub-agents by digests."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import msgspec

from accordion.archive.references import delegated_reference, describe_size, shorten_arguments
from accordion.compaction.strategies.base import (
    DeferredReplace,
    ProposedStep,
    Strategy,
    StrategyOptions,
    StrategyView,
    text_of,
)
from accordion.compaction.strategies.steps import find_old_batches, is_earlier_replacement
from accordion.model.boundaries import PartPosition
from accordion.model.conversation import ToolCall, ToolResult
from accordion.model.delegation import DelegationNode
from accordion.summaries.digest import digest_return

_log = logging.getLogger("accordion")

_REFERENCE_CHARACTERS = 400
"""Maximum number of characters of a reference without arguments and digest."""
_DIGEST_DIVISOR = 3
"""A digest has at most its source's characters divided by this number."""


class DelegatedDigestsOptions(StrategyOptions, frozen=True):
    """Sub-agents' results in the newest `keep_last_n` batches stay. A digest has at most `digest_characters`."""

    keep_last_n: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 2
    digest_characters: Annotated[int, msgspec.Meta(ge=200, le=20_000)] = 1_600


class DelegatedDigests(Strategy):
    """Replaces results of sub-agents whose conversations are known, the oldest first.

    The replacement names the agent and the artifact with the full text, and contains a digest with the findings. All
    other results stay.
    """

    name = "delegated_digests"
    options_type = DelegatedDigestsOptions
    handles_delegations = True
    is_restorable = True

    def __init__(self, options: DelegatedDigestsOptions) -> None:
        self._options = options

    def propose(self, view: StrategyView) -> Sequence[ProposedStep]:
        """Proposes a step for each result that is larger than its replacement."""
        if not view.delegations_by_call:
            return ()
        old_batches = find_old_batches(view, self._options.keep_last_n)
        last = old_batches[-1][1] if old_batches else -1
        steps = [
            self._replace_return(view, slot, part, result) for slot, part, result in view.list_results() if slot <= last
        ]
        return [step for step in steps if step is not None]

    def _replace_return(self, view: StrategyView, slot: int, part: int, result: ToolResult) -> DeferredReplace | None:
        delegation = view.delegations_by_call.get(result.call_id)
        if delegation is None:
            return None
        call = view.find_call(slot, part) or ToolCall(result.call_id, "", "")
        max_digest, argument_size = self._options.digest_characters, len(shorten_arguments(call.arguments))
        digest_size = min(max_digest, len(text_of(result)) // _DIGEST_DIVISOR)
        tokens = (_REFERENCE_CHARACTERS + 3 * argument_size // 2 + digest_size) // 3
        if tokens >= view.count_part_tokens(slot)[part] or is_earlier_replacement(
            view, slot, result, _REFERENCE_CHARACTERS + argument_size + max_digest
        ):
            return None
        write = partial(_write_reference, view, (slot, part), result, call, delegation, digest_size)
        return DeferredReplace(slot, part, tokens, write)


def _write_reference(
    view: StrategyView,
    position: PartPosition,
    result: ToolResult,
    call: ToolCall,
    delegation: DelegationNode,
    digest_size: int,
) -> str:
    """Writes the text of a reference; called only for results that are still in the finished plan."""
    text, digest = text_of(result), ""
    try:
        digest = digest_return(text, digest_size)[:digest_size]
    except Exception as error:
        _log.error("a tool result could not be digested: %s", type(error).__name__)
    artifact = view.artifact_id_of(*position)
    return delegated_reference(
        delegation.agent, delegation.session, call.name, call.arguments, artifact, describe_size(text), digest
    )
