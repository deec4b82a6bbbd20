"""What single messages count, remembered by what they say."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from accordion.accounting.meter import Meter
from accordion.core.conversation import Conversation, Message


class Weights:
    """Tokens by message, for the planner; the `at_most` most recently used stay. Safe to use from several threads."""

    def __init__(self, meter: Meter, at_most: int = 20_000) -> None:
        self._meter = meter
        self._at_most = at_most
        self._known: OrderedDict[tuple[bytes, str], int] = OrderedDict()
        self._lock = Lock()

    def of(self, message: Message, conversation: Conversation, model: str) -> int:
        """Tokens of one message, by the rules of the conversation's model."""
        key = message.key, self._meter.rules(conversation, model)
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                return known
        counted = self._meter.message(message, conversation, model).tokens
        with self._lock:
            self._known[key] = counted
            while len(self._known) > self._at_most:
                self._known.popitem(last=False)
        return counted

    def text(self, text: str, model: str) -> int:
        """Tokens of a plain text."""
        return self._meter.text(text, model)
