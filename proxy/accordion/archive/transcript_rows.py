"""What is to be written of requests that are recorded, as rows of the archive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from accordion.archive import holdings
from accordion.archive.artifacts import packer, row_key
from accordion.archive.holdings import OVERHEAD
from accordion.archive.transcript_log import head_json
from accordion.archive.writing import Archive
from accordion.core.conversation import Conversation, Message
from accordion.core.ports import Key, Put
from accordion.core.values import dataclass


@dataclass(frozen=True, slots=True)
class Item:
    """A request of a session, as it is to be recorded; `at` is when its exchange ended, in seconds since the epoch,
    `after` the chain key of what the provider keeps before it, `size` the bytes that it takes while it waits."""

    space: bytes
    session: str
    conversation: Conversation
    at: float
    after: bytes = b""
    size: int = 0


Name = tuple[bytes, str]
"""A tenant's key and a session."""

_REQUEST, _MESSAGE = 2_000, 700
"""Bytes that a request takes beside its messages, and a message beside its text."""


class WaitingRequests:
    """The requests that wait to be recorded, in the order of their arrival, within `capacity` bytes; the newest one
    always finds room. A request whose session has a later one that begins with it is dropped: the later one holds all
    of it."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: dict[int, Item] = {}
        self._newest: dict[Name, int] = {}
        self._count = 0
        self.size = 0
        """The bytes that all requests take. Messages that several requests share count for each of them."""

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: Item) -> None:
        """Takes a request. Where there is no room the oldest ones go."""
        name = item.space, item.session
        before = self._items.get(self._newest.get(name, 0))
        if before is not None and _begins(before.conversation, item.conversation):
            self._remove(self._newest[name])
        self._count += 1
        self._items[self._count], self._newest[name] = item, self._count
        self.size += item.size
        while self.size > self._capacity and len(self._items) > 1:
            self._remove(next(iter(self._items)))

    def take(self, most: int) -> list[Item]:
        """Removes and gives the oldest ones."""
        return [self._remove(number) for number in list(islice(self._items, most))]

    def put_back(self, items: Sequence[Item]) -> None:
        """Takes requests again that were taken out before all others."""
        later = self.take(len(self))
        for item in (*items, *later):
            self.add(item)

    def drop(self, gone: Callable[[Name], bool]) -> None:
        """Removes the requests of these sessions."""
        for number, item in list(self._items.items()):
            if gone((item.space, item.session)):
                self._remove(number)

    def _remove(self, number: int) -> Item:
        item = self._items.pop(number)
        self.size -= item.size
        if self._newest.get((item.space, item.session)) == number:
            del self._newest[item.space, item.session]
        return item


def size_of(conversation: Conversation) -> int:
    """The bytes that a request takes, roughly: each message is there as it came, and once more as it was read."""
    messages = (*conversation.lead, *conversation.messages)
    text = sum([len(message.wire) for message in messages])
    return _REQUEST + 2 * text + _MESSAGE * len(messages) + sum(map(len, conversation.envelope.values()))


def _begins(one: Conversation, other: Conversation) -> bool:
    """Whether a request is the beginning of another, with the same offered beside it."""
    if one.previous is not None or other.previous is not None or one.overhead_key != other.overhead_key:
        return False
    return len(one.chain) <= len(other.chain) and other.chain[len(one.chain) - 1] == one.chain[-1]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be written of a request, from its message `start` on (see Recorded). `fresh`: all rows, those too that
    are known to be there; `size` is what the transcript counts before."""

    item: Item
    start: int
    messages: tuple[Message, ...]
    lead: tuple[Message, ...]
    head: bytes
    fresh: bool
    size: int

    @property
    def bulk(self) -> int:
        """Bytes that are compressed at most."""
        fields = sum(map(len, self.item.conversation.envelope.values())) if self.head else 0
        return fields + sum([len(message.wire) for message in (*self.lead, *self.messages)])


class Rows:
    """The rows of a batch, each packed once. Gives what each takes, 0 where another entry counts it."""

    def __init__(self, archive: Archive) -> None:
        self.puts: dict[Key, Put] = {}
        self._archive = archive
        self._pack: Callable[[bytes], bytes] = packer()
        self._variants: dict[tuple[bytes, bytes], bytes] = {}

    def variants(self, messages: Iterable[Message]) -> bytes:
        """What tells messages apart that say the same in other bytes (see Recorded)."""
        return b"".join([self._variant(message) for message in messages])

    def _variant(self, message: Message) -> bytes:
        exact = message.key, holdings.variant_of(message.wire)
        known = self._variants.get(exact)
        if known is None:
            # Asked once: the archive may forget meanwhile.
            known = self._variants[exact] = holdings.SHARED if self._archive.has(*exact) else exact[1]
        return known

    def row(self, plan: Plan, message: Message) -> int:
        """Takes a message."""
        variant = self._variant(message)
        key = row_key(message.key if variant == holdings.SHARED else message.key + variant)
        if not plan.fresh and self._archive.knows(key):
            return 0
        return self._put(plan, key, message.wire)

    def head(self, plan: Plan) -> int:
        """Takes what stands beside the list."""
        return self._put(plan, holdings.head_key(plan.head), head_json(plan.item.conversation.envelope))

    def _put(self, plan: Plan, key: Key, value: bytes) -> int:
        if key in self.puts:
            return 0
        put = self.puts[key] = self._archive.sealed(plan.item.space, key, self._pack(value))
        return len(put.value) + OVERHEAD
