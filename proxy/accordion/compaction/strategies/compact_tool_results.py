"""Moves old tool results out of the window. What sub-agents returned is left to `delegated_digests`, where the pipeline
has that."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Annotated

import msgspec

from accordion.archive.references import artifact_id, describe, reference, shortened, size_of
from accordion.compaction.strategies.base import Archive, Draft, Section, estimated, media_of, slice_of, text_of
from accordion.compaction.strategies.replacements import writer_of
from accordion.core.boundaries import lone_reasoning
from accordion.core.conversation import Media, Message, Reasoning, Text, ToolCall, ToolResult
from accordion.core.plan import Drop, Replace, Step

_log = logging.getLogger("accordion")

REFERENCE, DROP = "reference", "drop"
_WORDS = 260
"""Characters of a reference beside arguments and digest, at most."""

_DESCRIBED = 400
"""Characters of a description, at most."""

_DIGESTED = 8
"""A digest is at most one part in so many of what it is made from."""


class CompactToolResultsOptions(Section, frozen=True):
    """The results of the newest `keep_last_n` batches stay (all calls of one reply are one batch), and nothing is done
    at or below `threshold` messages.

    `replacement` is `reference` (with a digest of at most `digest_characters`), `drop` or absent (results go with
    their calls), a template with {tool_name}, {call_id}, {result_length} and {artifact_id}, or `module:function`.
    Results of tools in `skip` (names, or patterns with *) stay as they are.
    """

    keep_last_n: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 2
    threshold: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0
    replacement: Annotated[str, msgspec.Meta(min_length=1, max_length=4_000)] | None = None
    digest_characters: Annotated[int, msgspec.Meta(ge=0, le=4_000)] = 400
    skip: tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=256)], ...] = ("transfer_to_*",)

    def __post_init__(self) -> None:
        """Raises ValueError for an unknown placeholder, and for a function that cannot be had; it names the key as
        msgspec names those that it finds fault with itself."""
        if self.replacement not in (None, REFERENCE, DROP):
            try:
                writer_of(str(self.replacement))
            except ValueError as error:
                raise ValueError(f"{error} - at `$.replacement`") from None


class CompactToolResults:
    """Replaces or drops results, the oldest first."""

    name = "compact_tool_results"

    def __init__(self, options: CompactToolResultsOptions) -> None:
        self._options = options
        word = options.replacement or DROP
        self._drops = word == DROP
        self.skip = options.skip
        """Tools whose results stay, and make no artifacts."""
        self.refers = word == REFERENCE
        """Whether a reference takes a result's place."""
        self._write = None if word in (REFERENCE, DROP) else writer_of(word)

    def propose(self, view: Draft) -> Sequence[Step | Archive]:
        """Steps for every result outside the newest batches."""
        if len(view.live) <= self._options.threshold:
            return ()
        old = old_batches(view, self._options.keep_last_n)
        if self._drops:
            return [step for group in old for step in self._dropped(view, group)]
        last = old[-1][1] if old else -1
        found = ((slot, part, result) for slot, part, result in view.results() if slot <= last)
        return list(filter(None, (self._replaced(view, *place) for place in found)))

    # -- replacing ----------------------------------------------------------------

    def _replaced(self, view: Draft, slot: int, part: int, result: ToolResult) -> Step | Archive | None:
        call = view.call_of(slot, part) or ToolCall(result.call_id, "", "")
        now = view.part_tokens(slot)[part]
        if now < estimated("") or self._skips(call.name) or result.call_id in view.begun:
            return None
        if self._write is None:
            return self._reference(view, (slot, part), result, call, now)
        kept = artifact_id(view.space, view.slots[slot].message.key, part)
        text = self._write(call.name, result.call_id, text_of(result), kept)
        if text is None or estimated(text) >= now or replaced_before(view, slot, result, 2 * len(text)):
            return None
        return Replace(slot, part, text, estimated(text))

    def _reference(
        self, view: Draft, place: tuple[int, int], result: ToolResult, call: ToolCall, now: int
    ) -> Archive | None:
        options, given = self._options, len(shortened(call.arguments))
        digest = min(options.digest_characters, len(text_of(result)) // _DIGESTED)
        tokens = (_WORDS + 3 * given // 2 + digest) // 3
        most = _WORDS + given + max(_DESCRIBED, options.digest_characters)
        if tokens >= now or replaced_before(view, place[0], result, most):
            return None
        return Archive(*place, tokens, partial(_reference, view, place, result, call, digest))

    def _skips(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self._options.skip)

    # -- dropping -----------------------------------------------------------------

    def _dropped(self, view: Draft, group: tuple[int, int]) -> Iterator[Step]:
        """The pairs of a batch; all of it where nothing else is said in it."""
        going: dict[int, set[int]] = {}
        for slot, part, result in view.results_in(group):
            call = view.call_of(slot, part)
            if call is not None and not self._skips(call.name) and result.call_id not in view.begun:
                called = view.calls[slot, part]
                going.setdefault(slot, set()).add(part)
                going.setdefault(called[0], set()).add(called[1])
        for slot in range(group[0], group[1] + 1):
            message, parts = view.slots[slot].message, going.get(slot, set())
            left = [part for at, part in enumerate(message.parts) if at not in parts]
            silent = all(isinstance(part, Reasoning) or part == Text("") for part in left)
            if silent and (parts or (lone_reasoning(message) and _unspoken(view, group, going))):
                yield Drop(slot)
            elif parts:
                yield Drop(slot, tuple(sorted(parts | _last_thoughts(message, parts))))


def old_batches(view: Draft, newest: int) -> list[tuple[int, int]]:
    """The groups with tool results without the newest so many of them."""
    batches = [group for group in view.groups if _is_batch(view, group)]
    return batches[: max(0, len(batches) - newest)]


def replaced_before(view: Draft, slot: int, result: ToolResult, most: int) -> bool:
    """Whether a result is what an earlier fold put in its place, of `most` characters at the most: what would be said
    of that anew (its size, its digest) would not be true of the result."""
    return view.slots[slot].edited and not media_of(result) and len(text_of(result)) <= most


def _last_thoughts(message: Message, going: set[int]) -> set[int]:
    """The reasoning that a message would end in without the parts that go: it led to them."""
    last = set[int]()
    for at in range(len(message.parts) - 1, -1, -1):
        if isinstance(message.parts[at], Reasoning):
            last.add(at)
        elif at not in going and message.parts[at] != Text(""):
            break
    return last


def _unspoken(view: Draft, group: tuple[int, int], going: dict[int, set[int]]) -> bool:
    """Whether nothing but reasoning would be left of a group."""
    return all(
        isinstance(part, Reasoning) or at in going.get(slot, ())
        for slot in range(group[0], group[1] + 1)
        for at, part in enumerate(view.slots[slot].message.parts)
    )


def _reference(view: Draft, place: tuple[int, int], result: ToolResult, call: ToolCall, digest: int) -> str:
    """The text of a reference; only made for results that stay in the list."""
    text = text_of(result)
    about = _digest(view, text, digest)
    media = sum(isinstance(part, Media) for part in result.parts)
    size = size_of(text) + (f" and {media} media" if media else "")
    kept = artifact_id(view.space, view.slots[place[0]].message.key, place[1])
    return reference(call.name, call.arguments, kept, size, about or describe(text))


def _digest(view: Draft, text: str, most: int) -> str:
    """A digest; nothing where there is no room for one, or where making it fails."""
    try:
        return view.digest(text, most)[:most] if most else ""
    except Exception as error:
        _log.error("a tool result could not be digested: %s", type(error).__name__)
        return ""


def _is_batch(view: Draft, group: tuple[int, int]) -> bool:
    return any(isinstance(part, ToolResult) for slot in view.slots[slice_of(group)] for part in slot.message.parts)
