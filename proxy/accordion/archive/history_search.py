"""Searches all that left a conversation for words, for a model that does not know in which artifact they are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import Final

import msgspec

from accordion.archive.artifacts import Artifact
from accordion.archive.passage_index import Passage, PassageIndexes, describe_source, read_passage
from accordion.archive.references import artifact_id
from accordion.model.conversation import Message
from accordion.model.hidden_fields import StructWithHiddenFields
from accordion.model.search import TermScores
from accordion.model.tenant import TenantScope
from accordion.model.words import search_terms

_MAX_TERMS: Final = 60
_MAX_PASSAGES: Final = 40
_MAX_RANGES: Final = 64
"""Ranges of messages whose records are read."""
_MAX_SHOWN: Final = 600
"""Characters of one passage that are shown."""


class RemovedHistory(StructWithHiddenFields, frozen=True):
    """The messages of a conversation that a compaction covers: the first `count` of `messages`, as the client sent
    them, with their chain keys."""

    hidden_fields = frozenset({"messages", "chain"})

    messages: Sequence[Message]
    chain: Sequence[bytes]
    count: int


class HistoryPassages(msgspec.Struct, frozen=True):
    """The answer to a search: its text, and how many passages have one of the words."""

    text: str
    count: int


def search_history(
    indexes: PassageIndexes,
    tenant: TenantScope,
    history: RemovedHistory,
    ids: Collection[str],
    ranges: Sequence[Artifact],
    words: str,
    count: Callable[[str], int],
    max_tokens: int,
) -> HistoryPassages:
    """Returns the passages with the most and the rarest of the words, the best first, in `max_tokens` of `count`.

    Each has the index of its message, and an artifact that contains it: of `ids`, that of its part, or the smallest of
    `ranges`.
    """
    index = indexes.index(history.messages, history.chain, history.count)
    terms = islice(dict.fromkeys(search_terms(words)), _MAX_TERMS)
    scores = TermScores(index, dict.fromkeys(terms, 1.0))
    lines, available = list[str](), max_tokens
    for passage in map(index.__getitem__, scores.best(_MAX_PASSAGES)):
        line = f"{_heading(tenant, history.messages, passage, ids, ranges)} {_text_of(history.messages, passage)}"
        available -= count(f"{line}\n")
        if available < 0:
            break
        lines.append(line)
    return HistoryPassages("\n".join(lines), len(scores.sums))


def _text_of(messages: Sequence[Message], passage: Passage) -> str:
    return " ".join(read_passage(messages, passage).split())[:_MAX_SHOWN]


def find_range_ids(tenant: TenantScope, history: RemovedHistory, ids: Collection[str]) -> list[str]:
    """Returns those of the artifacts that are no single parts of the messages, but ranges of them."""
    parts = {
        artifact_id(tenant, message.key, part)
        for message in history.messages[: history.count]
        for part in range(len(message.parts))
    }
    return sorted(frozenset(ids) - parts)[:_MAX_RANGES]


def _heading(
    tenant: TenantScope,
    messages: Sequence[Message],
    passage: Passage,
    ids: Collection[str],
    ranges: Sequence[Artifact],
) -> str:
    """Describes what a passage is of, with the number of its message and its artifact."""
    at, part = passage.position
    containing = sorted(
        (each for each in ranges if each.first <= at <= each.last), key=lambda each: each.last - each.first
    )
    own_id = artifact_id(tenant, messages[at].key, part)
    name = own_id if own_id in ids else next((each.id for each in containing), "")
    return f"[{at}] {describe_source(messages, passage.position)}{f', in {name}' if name else ''}:"
