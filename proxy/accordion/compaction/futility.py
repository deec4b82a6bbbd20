"""Folds that came to nothing are not tried again at once: planning costs, and the history has hardly changed."""

from __future__ import annotations

from accordion.compaction.background import Thread
from accordion.compaction.policy import WORTHWHILE
from accordion.core.cache import Cache, weigh
from accordion.core.conversation import Conversation
from accordion.core.values import dataclass


@dataclass(frozen=True, slots=True)
class _Try:
    tokens: int
    place: int
    key: bytes
    fold: str
    reason: str


class Futile:
    """The last tries of conversations, within `capacity` bytes."""

    def __init__(self, capacity: int = 4 * 2**20) -> None:
        self._tries = Cache[Thread, _Try](
            capacity, lambda thread, last: weigh(*thread, last.key, last.fold, last.reason)
        )

    def note(self, thread: Thread, client: Conversation, fold: str, tokens: int, reason: str) -> None:
        """A fold of this history, of `tokens` with the fold `fold` in force, came to nothing."""
        # Clients may change the newest messages; by the greater part of it a history is known again.
        place = (len(client.chain) - 1) * 3 // 4
        self._tries[thread] = _Try(tokens, place, client.chain[place], fold, reason)

    def reason(self, thread: Thread, client: Conversation, fold: str, tokens: int) -> str:
        """Why another try is not worth it yet; empty where it is. A history that was rewound is another one."""
        last, chain = self._tries.get(thread), client.chain
        if last is None or last.fold != fold or last.place >= len(chain) or chain[last.place] != last.key:
            return ""
        again = int(last.tokens * (1 + WORTHWHILE))
        return f"{last.reason}; not tried again under {again:,} tokens" if tokens < again else ""
