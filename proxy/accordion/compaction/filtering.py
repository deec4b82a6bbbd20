"""The list as one viewer may see it: without the results of unrelated delegations, and without their calls.

What was made of a shorter list is extended: a list that grows by a round costs that round.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence, Set

from accordion.compaction.hiding import Hiding, hide, stretches
from accordion.compaction.reading import WrittenReader
from accordion.core.boundaries import Place, refers
from accordion.core.conversation import Conversation, Message, ToolCall, ToolResult
from accordion.core.values import dataclass, replace
from accordion.dialects.base import Dialect
from accordion.dialects.keys import chain_key, chain_start


@dataclass(frozen=True, slots=True)
class Taken:
    """A result that is not seen, and the call that left with it; both by their places in the client's list. `name` is
    empty and `call` None where no call was in the list."""

    name: str
    call_id: str
    result: Place
    call: Place | None


@dataclass(frozen=True, slots=True)
class Filtered:
    """What a viewer sees: the conversation with fewer messages, its chain that of the visible list.

    `origins[i]` is the client's index of message i. `kept` are results that should not be seen and had to stay, since a
    provider would refuse the list without them. They were shown: the next request's decisions have to know.
    """

    conversation: Conversation
    origins: Sequence[int]
    taken: tuple[Taken, ...] = ()
    kept: frozenset[Place] = frozenset()


@dataclass(frozen=True, slots=True)
class _Edited:
    """A message of which something left: as it came, the parts that left, as it is sent."""

    source: Message
    gone: frozenset[int]
    made: Message


@dataclass(frozen=True, slots=True)
class _Known:
    """What was made of the first `count` messages of a list; holds for every list with the same chain key there."""

    count: int
    wanted: frozenset[Place]
    origins: tuple[int, ...]
    chain: tuple[bytes, ...]
    edited: dict[int, _Edited]
    taken: tuple[Taken, ...]
    kept: frozenset[Place]
    referred: bool
    weight: int = 0
    """What the edited messages take, in bytes."""
    key: tuple[bytes, bool] = (b"", False)
    size: int = 0


_NOTHING = _Known(0, frozenset(), (), (), {}, (), frozenset(), referred=False)


class Filter:
    """Filters lists; remembers what it made within `capacity` bytes, the least recently used goes first.

    `written` reads edited messages.
    """

    def __init__(self, written: WrittenReader, capacity: int = 16 * 2**20) -> None:
        self._written = written
        self._capacity = capacity
        self._at: dict[tuple[bytes, bool], list[_Known]] = {}
        self._used: OrderedDict[int, _Known] = OrderedDict()
        self._size = 0

    def filtered(self, dialect: Dialect, space: bytes, conversation: Conversation, hidden: Set[Place]) -> Filtered:
        """The conversation without the results at the places `hidden`, for the tenant whose key is `space`; the very
        same where there are none. Places of anything but results mean nothing.

        Each leaves with its call, matched by order; so do messages of which nothing is left, and reasoning that led
        only there. All that others said, and the other half of a parallel batch, stays; but words of the assistant
        behind which all is hidden wait until something follows them. The list is legal where the client's was. A longer
        list with the same decisions begins with what this one gives up to the last message of a user or a tool behind
        which no call waits, if nothing is `kept`.
        """
        wanted, shown = frozenset(hidden), frozenset[Place]()
        while wanted:
            made = _spoken_to(conversation.messages, self._made(dialect, space, conversation, wanted))
            needed = _needed(conversation.messages, made)
            if needed is None:
                return replace(made, kept=made.kept | shown) if shown else made
            shown |= {needed}
            wanted -= {needed}
        return Filtered(conversation, range(len(conversation.messages)), kept=shown)

    def _made(self, dialect: Dialect, space: bytes, conversation: Conversation, wanted: frozenset[Place]) -> Filtered:
        known, new = self._known(conversation, wanted)
        read = self._written.of(dialect, space)
        try:
            work = _Work(read, dialect, space, conversation, known)
        except ValueError:
            # The same content in a shape that is not edited.
            known, new = _NOTHING, wanted
            work = _Work(read, dialect, space, conversation, known)
        behind: dict[int, list[int]] = {}
        for index, part in new:
            behind.setdefault(index, []).append(part)
        for first, end, cut in stretches(conversation.messages, known.count):
            places = [(index - first, part) for index in range(first, end) for part in behind.get(index, ())]
            work.add(first, end, places, cut)
        if work.settled != known.count:
            if known.count:
                # It has been outgrown, and is the first to go.
                self._used.move_to_end(id(known), last=False)
            early = all(index < work.settled for index, _ in new)
            before = wanted if early else frozenset(place for place in wanted if place[0] < work.settled)
            self._keep(conversation, work.known(before))
        return work.done()

    # -- what is remembered ------------------------------------------------------

    def _known(self, conversation: Conversation, wanted: frozenset[Place]) -> tuple[_Known, frozenset[Place]]:
        """What was made of the longest beginning of the list with the same decisions, and the decisions behind it."""
        held = conversation.previous is not None
        for count in range(len(conversation.chain), 0, -1):
            for known in self._at.get((conversation.chain[count - 1], held), ()):
                rest = wanted - known.wanted
                if len(rest) == len(wanted) - len(known.wanted) and all(place[0] >= count for place in rest):
                    self._used.move_to_end(id(known))
                    return known, rest
        return _NOTHING, wanted

    def _keep(self, conversation: Conversation, known: _Known) -> None:
        key = (conversation.chain[known.count - 1], conversation.previous is not None)
        size = 1_000 + 120 * len(known.origins) + 400 * len(known.taken) + known.weight
        known = replace(known, key=key, size=size)
        self._at.setdefault(key, []).append(known)
        self._used[id(known)] = known
        self._size += size
        while self._size > self._capacity:
            _, old = self._used.popitem(last=False)
            self._size -= old.size
            others = [each for each in self._at[old.key] if each is not old]
            if others:
                self._at[old.key] = others
            else:
                del self._at[old.key]


class _Work:
    """One list on its way through the filter, from what is known of its beginning on."""

    def __init__(
        self,
        read: Callable[[bytes], Message],
        dialect: Dialect,
        space: bytes,
        conversation: Conversation,
        known: _Known,
    ) -> None:
        self._read, self._dialect, self._conversation = read, dialect, conversation
        self._chain = list(known.chain)
        self._start = chain_start(space, dialect.name)
        self._origins = list(known.origins)
        self._edited = dict(known.edited)
        self._taken = list(known.taken)
        self._kept = set(known.kept)
        self._referred = known.referred
        # How far nothing waits, and how much there was of everything then.
        self.settled = known.count
        self._weight = known.weight
        self._mark = self._now()
        for index, each in known.edited.items():
            if conversation.messages[index] is not each.source:
                self._renew(index, each)

    def add(self, first: int, end: int, places: Sequence[Place], settled: bool) -> None:
        """Adds a stretch of the client's list, without the results at `places`, which count from its beginning."""
        conversation = self._conversation
        messages = conversation.messages[first:end]
        gone: Mapping[int, frozenset[int]] = {}
        if places:
            hiding = hide(self._dialect, messages, places, self._referred or conversation.previous is not None)
            gone = self._note(messages, hiding, first)
        same = len(self._origins) == first and not self._edited and not gone
        for index, message in enumerate(messages, first):
            each = self._edited.get(index)
            if each is None and index in gone:
                continue
            self._origins.append(index)
            if same:
                self._chain.append(conversation.chain[index])
            else:
                before = self._chain[-1] if self._chain else self._start
                self._chain.append(chain_key(before, (each.made if each is not None else message).key))
        self._referred = self._referred or any(map(refers, messages))
        if settled:
            self.settled, self._mark = end, self._now()

    def _now(self) -> tuple[int, int, bool, int]:
        return len(self._origins), len(self._taken), self._referred, self._weight

    def known(self, wanted: frozenset[Place]) -> _Known:
        """What may be remembered: all up to where nothing waits. `wanted` are the decisions up to there."""
        count, (length, taken, referred, weight) = self.settled, self._mark
        whole = count == len(self._conversation.messages)
        return _Known(
            count,
            wanted,
            tuple(self._origins[:length]),
            tuple(self._chain[:length]),
            self._edited if whole else {index: each for index, each in self._edited.items() if index < count},
            tuple(self._taken[:taken]),
            frozenset(place for place in self._kept if place[0] < count),
            referred,
            weight,
        )

    def done(self) -> Filtered:
        """The list as it is seen."""
        conversation, kept = self._conversation, frozenset(self._kept)
        if not self._taken:
            return Filtered(conversation, range(len(conversation.messages)), kept=kept)
        messages = list(conversation.messages)
        for index, each in self._edited.items():
            messages[index] = each.made
        seen = tuple(map(messages.__getitem__, self._origins))
        visible = replace(conversation, messages=seen, chain=tuple(self._chain))
        return Filtered(visible, tuple(self._origins), tuple(self._taken), kept)

    def _note(self, messages: Sequence[Message], hiding: Hiding, first: int) -> Mapping[int, frozenset[int]]:
        """Notes what is done to a stretch that begins at `first`; gives the parts that leave by the client's index."""
        for index, wire in hiding.wires.items():
            each = _Edited(messages[index], hiding.gone[index], self._read(wire))
            self._edited[first + index] = each
            self._weight += 2 * (len(each.source.wire) + len(wire)) + 1_000
        for (index, part), call in hiding.taken.items():
            result, name = messages[index].parts[part], ""
            if call is not None:
                made = messages[call[0]].parts[call[1]]
                name = made.name if isinstance(made, ToolCall) else ""
            call_id = result.call_id if isinstance(result, ToolResult) else ""
            self._taken.append(Taken(name, call_id, (first + index, part), _moved(call, first)))
        self._kept.update((first + index, part) for index, part in hiding.kept)
        return {first + index: parts for index, parts in hiding.gone.items()}

    def _renew(self, index: int, each: _Edited) -> None:
        """A client writes the same message in other bytes (it moves its cache breakpoints): then it is edited anew."""
        now = self._conversation.messages[index]
        if now.wire != each.source.wire:
            wire = self._dialect.edit(now, dict.fromkeys(each.gone))
            if wire is not None:
                self._edited[index] = _Edited(now, each.gone, self._read(wire))


def _moved(place: Place | None, by: int) -> Place | None:
    return None if place is None else (place[0] + by, place[1])


def _spoken_to(messages: Sequence[Message], made: Filtered) -> Filtered:
    """The list without the assistant's words at its end, if something hidden followed them: providers take the last
    word of the assistant for a reply to go on with, or refuse it. They are seen as soon as anything stands behind."""
    seen, end = made.conversation.messages, len(made.conversation.messages)
    while made.taken and messages[-1].role != "assistant" and end and seen[end - 1].role == "assistant":
        end -= 1
    if end == len(seen):
        return made
    cut = replace(made.conversation, messages=seen[:end], chain=made.conversation.chain[:end])
    return replace(made, conversation=cut, origins=made.origins[:end])


def _needed(messages: Sequence[Message], made: Filtered) -> Place | None:
    """A result that has to stay for the list's ends' sake: nothing would be left, or the assistant would be the first
    to speak."""
    seen, taken = made.conversation.messages, [each.result for each in made.taken]
    if taken and not seen:
        return max(taken)
    return min(taken) if taken and _opens(messages) and not _opens(seen) else None


def _opens(messages: Sequence[Message]) -> bool:
    """Whether the user is the first to speak."""
    roles = (message.role for message in messages)
    return next((role for role in roles if role not in ("system", "developer", "other")), "user") == "user"
