"""The strategy that archives old tool results, and leaves a reference, a configured text or nothing in their place.

Results of sub-agents are left to `delegated_digests`, if the pipeline contains it.
"""

from __future__ import annotations

import importlib
import logging
import re
import string
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Annotated

import msgspec

from accordion.archive.references import describe, describe_size, result_reference, shorten_arguments
from accordion.compaction.strategies.base import (
    HANDOFF_TOOLS,
    DeferredReplace,
    ProposedStep,
    Strategy,
    StrategyOptions,
    StrategyView,
    estimate_tokens,
    text_of,
)
from accordion.compaction.strategies.steps import find_old_batches, is_earlier_replacement
from accordion.model.boundaries import PartPosition, is_reasoning_only
from accordion.model.conversation import Media, Message, Reasoning, Text, ToolCall, ToolResult
from accordion.model.plan import Drop, PlanStep, Replace

_log = logging.getLogger("accordion")

REFERENCE, DROP = "reference", "drop"
_REFERENCE_CHARACTERS = 260
"""Maximum number of characters of a reference without arguments and digest."""

_MAX_DESCRIPTION = 400
"""Maximum number of characters of a description."""

_DIGEST_DIVISOR = 8
"""A digest has at most its source's characters divided by this number."""

FIELDS = ("tool_name", "call_id", "result_length", "artifact_id")

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")

ReplacementWriter = Callable[[str, str, str, str], str | None]
"""Maps tool name, call id, result text and artifact id to a text; None if the result stays."""


class CompactToolResultsOptions(StrategyOptions, frozen=True):
    """The results of the newest `keep_last_n` batches stay (all calls of one reply are one batch). The strategy does
    nothing at or below `threshold` messages.

    `replacement` is `reference` (with a digest of at most `digest_characters`), `drop` or absent (results are removed
    with their calls), a template with {tool_name}, {call_id}, {result_length} and {artifact_id}, or `module:function`.
    Results of tools in `skip` (names, or patterns with *) stay as they are.
    """

    keep_last_n: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 2
    threshold: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0
    replacement: Annotated[str, msgspec.Meta(min_length=1, max_length=4_000)] | None = None
    digest_characters: Annotated[int, msgspec.Meta(ge=0, le=4_000)] = 400
    skip: tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=256)], ...] = HANDOFF_TOOLS

    def __post_init__(self) -> None:
        """Raises ValueError for an unknown placeholder and for a function that cannot be imported. The message names
        the key in msgspec's style."""
        if self.replacement not in (None, REFERENCE, DROP):
            try:
                build_replacement_writer(str(self.replacement))
            except ValueError as error:
                raise ValueError(f"{error} - at `$.replacement`") from None

    def find_useless_options(self) -> Iterator[tuple[str, str]]:
        """Yields `digest_characters` if no reference is left that could have a digest."""
        if self.replacement != REFERENCE and self.digest_characters != CompactToolResultsOptions().digest_characters:
            yield "digest_characters", f"has an effect only with `replacement: {REFERENCE}`"


class CompactToolResults(Strategy):
    """Replaces or drops tool results, the oldest first."""

    name = "compact_tool_results"
    options_type = CompactToolResultsOptions

    def __init__(self, options: CompactToolResultsOptions) -> None:
        self._options = options
        replacement = options.replacement or DROP
        self._drops_pairs = replacement == DROP
        self.skipped_tools = options.skip
        self.is_restorable = replacement == REFERENCE
        self._write_replacement = None if replacement in (REFERENCE, DROP) else build_replacement_writer(replacement)

    def propose(self, view: StrategyView) -> Sequence[ProposedStep]:
        """Proposes a step for each result outside the newest batches."""
        if len(view.live_slots) <= self._options.threshold:
            return ()
        old_batches = find_old_batches(view, self._options.keep_last_n)
        if self._drops_pairs:
            return [step for group in old_batches for step in self._drop_pairs(view, group)]
        last = old_batches[-1][1] if old_batches else -1
        steps = (
            self._replace_result(view, slot, part, result) for slot, part, result in view.list_results() if slot <= last
        )
        return list(filter(None, steps))

    # -- replacing ----------------------------------------------------------------

    def _replace_result(self, view: StrategyView, slot: int, part: int, result: ToolResult) -> ProposedStep | None:
        call = view.find_call(slot, part) or ToolCall(result.call_id, "", "")
        tokens = view.count_part_tokens(slot)[part]
        if (
            tokens < estimate_tokens("")
            or self._is_skipped_tool(call.name)
            or result.call_id in view.delegations_by_call
        ):
            return None
        if self._write_replacement is None:
            return self._defer_reference(view, (slot, part), result, call, tokens)
        artifact = view.artifact_id_of(slot, part)
        text = self._write_replacement(call.name, result.call_id, text_of(result), artifact)
        if text is None or estimate_tokens(text) >= tokens or is_earlier_replacement(view, slot, result, 2 * len(text)):
            return None
        return Replace(slot, part, text, estimate_tokens(text))

    def _defer_reference(
        self, view: StrategyView, position: PartPosition, result: ToolResult, call: ToolCall, tokens: int
    ) -> DeferredReplace | None:
        """Returns a step that writes the reference later; None if the result of `tokens` is not larger."""
        options, argument_size = self._options, len(shorten_arguments(call.arguments))
        digest_size = min(options.digest_characters, len(text_of(result)) // _DIGEST_DIVISOR)
        reference_tokens = (_REFERENCE_CHARACTERS + 3 * argument_size // 2 + digest_size) // 3
        max_size = _REFERENCE_CHARACTERS + argument_size + max(_MAX_DESCRIPTION, options.digest_characters)
        if reference_tokens >= tokens or is_earlier_replacement(view, position[0], result, max_size):
            return None
        write = partial(_write_reference, view, position, result, call, digest_size)
        return DeferredReplace(*position, reference_tokens, write)

    def _is_skipped_tool(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self._options.skip)

    # -- dropping -----------------------------------------------------------------

    def _drop_pairs(self, view: StrategyView, group: tuple[int, int]) -> Iterator[PlanStep]:
        """Drops the pairs of call and result in a batch; all of the batch if nothing else is in it."""
        dropped: dict[int, set[int]] = {}
        for slot, part, result in view.list_results_in(group):
            call = view.find_call(slot, part)
            if (
                call is not None
                and not self._is_skipped_tool(call.name)
                and result.call_id not in view.delegations_by_call
            ):
                call_slot, call_part = view.calls[slot, part]
                dropped.setdefault(slot, set()).add(part)
                dropped.setdefault(call_slot, set()).add(call_part)
        for slot in range(group[0], group[1] + 1):
            message, parts = view.slots[slot].message, dropped.get(slot, set())
            remaining = [part for at, part in enumerate(message.parts) if at not in parts]
            is_empty = all(isinstance(part, Reasoning) or part == Text("") for part in remaining)
            if is_empty and (parts or (is_reasoning_only(message) and _leaves_only_reasoning(view, group, dropped))):
                yield Drop(slot)
            elif parts:
                yield Drop(slot, tuple(sorted(parts | _find_trailing_reasoning(message, parts))))


def _find_trailing_reasoning(message: Message, removed: set[int]) -> set[int]:
    """Returns the reasoning at the end of a message without its removed parts, to which that reasoning led."""
    trailing = set[int]()
    for at in range(len(message.parts) - 1, -1, -1):
        if isinstance(message.parts[at], Reasoning):
            trailing.add(at)
        elif at not in removed and message.parts[at] != Text(""):
            break
    return trailing


def _leaves_only_reasoning(view: StrategyView, group: tuple[int, int], removed: dict[int, set[int]]) -> bool:
    """Whether only reasoning would be left of a group."""
    return all(
        isinstance(part, Reasoning) or at in removed.get(slot, ())
        for slot in range(group[0], group[1] + 1)
        for at, part in enumerate(view.slots[slot].message.parts)
    )


def _write_reference(
    view: StrategyView, position: PartPosition, result: ToolResult, call: ToolCall, digest_size: int
) -> str:
    """Writes the text of a reference; called only for results that are still in the finished plan."""
    text = text_of(result)
    digest = _make_digest(view, text, digest_size)
    media = sum(isinstance(part, Media) for part in result.parts)
    size = describe_size(text) + (f" and {media} media" if media else "")
    artifact = view.artifact_id_of(*position)
    return result_reference(call.name, call.arguments, artifact, size, digest or describe(text))


def _make_digest(view: StrategyView, text: str, max_characters: int) -> str:
    """Returns a digest; an empty text if there is no room for one, or if making it fails."""
    try:
        return view.make_digest(text, max_characters)[:max_characters] if max_characters else ""
    except Exception as error:
        _log.error("a tool result could not be digested: %s", type(error).__name__)
        return ""


# -- configured replacements ----------------------------------------------------------------------------------------


def build_replacement_writer(replacement: str) -> ReplacementWriter:
    """Builds a writer from a template or a `module:function` name. Raises ValueError if it is wrong."""
    if _FUNCTION.fullmatch(replacement):
        return partial(_call_function, _import_function(replacement))
    try:
        for _, name, spec, conversion in string.Formatter().parse(replacement):
            if name is not None and (name not in FIELDS or spec or conversion):
                allowed = ", ".join(f"{{{field}}}" for field in FIELDS)
                raise ValueError(f"unknown placeholder {{{name}}}; there are {allowed}")
    except ValueError as error:
        raise ValueError(f"the template is wrong: {error}") from None
    return partial(_format_template, replacement)


def _format_template(template: str, tool_name: str, call_id: str, text: str, artifact: str) -> str:
    return template.format(tool_name=tool_name, call_id=call_id, result_length=len(text), artifact_id=artifact)


def _call_function(
    function: Callable[[str, str, str], object], name: str, call_id: str, text: str, _artifact: str
) -> str | None:
    """Calls a configured function. If it fails, only this one result stays as it is."""
    try:
        replacement = function(name, call_id, text)
    except Exception as error:
        # The error's message may quote the conversation.
        _log.error(
            "a replacement function failed; the result of %r stays in the request: %s", name, type(error).__name__
        )
        return None
    if isinstance(replacement, str):
        return replacement
    _log.error("a replacement function returned no text; the result of %r stays in the request", name)
    return None


def _import_function(reference: str) -> Callable[[str, str, str], object]:
    module, _, name = reference.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except Exception as error:
        raise ValueError(f"{reference} cannot be imported: {error}") from None
    if not callable(function):
        raise ValueError(f"{reference} is not a function")
    return function  # type: ignore[no-any-return]  # the caller checks what it returns
