"""Where overlays stand in a folded list: the client's own messages with what was put in between."""

from __future__ import annotations

import hashlib
import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter

from accordion.core.conversation import Message
from accordion.core.edits import Folded
from accordion.core.plan import WOVEN
from accordion.core.values import dataclass, replace
from accordion.core.weaves import Overlay, Recall, Weave
from accordion.dialects.base import Dialect
from accordion.dialects.splice import Weaver

_log = logging.getLogger("accordion")

Read = Callable[[bytes], Message]

_RESTLESS = 4
"""So many of the newest messages may look different a turn later: clients move cache breakpoints about there."""


@dataclass(frozen=True, slots=True)
class Laid:
    """How far a list was laid out for an earlier request: what became of its messages `client`, the first ones, with
    `overlays` among them. It holds for lists of the same fold that begin with the very same messages and overlays."""

    client: tuple[Message, ...]
    overlays: tuple[Overlay, ...]
    messages: tuple[Message, ...]
    origins: tuple[int, ...]
    spans: tuple[tuple[int, int, bool], ...]
    chain: tuple[bytes, ...]
    mark: bytes


class Laying:
    """Puts overlays into one list."""

    def __init__(self, dialect: Dialect, weaver: Weaver, folded: Folded, read: Read) -> None:
        if not folded.spans:
            folded = replace(folded, spans=tuple((at, at, False) for at in folded.origins))
        made = folded.compaction
        self._dialect, self._weaver, self._folded, self._read = dialect, weaver, folded, read
        self._anchor, self._salt = (made.anchor, made.id.encode()) if made is not None else (b"", b"")
        self._next = made.covered if made is not None else 0
        self._covered = bisect_left(folded.spans, self._next, key=itemgetter(0))
        """How many messages of the list are the fold's."""
        self.settled: Laid | None = None
        """What of the last list holds for the next request."""

    def legal(self, overlays: tuple[Overlay, ...], known: Laid | None = None) -> Folded:
        """The list with all of them that leave it legal, as far as the client's own is. `known` is what was `settled`
        for an earlier request with the same fold, where it still `holds`."""
        shown = self.laid(overlays[len(known.overlays) :] if known is not None else overlays, known)
        left = list(overlays)
        while shown is None:
            # The fewest from the beginning that do not go together end in the one that is at fault.
            fewest = bisect_left(range(1, len(left)), True, key=lambda count: self.laid(left[:count]) is None) + 1
            fault = left.pop(fewest - 1)
            _log.debug(
                "an insertion at %s is left out: it would make the message list invalid", fault.anchor.hex()[:12]
            )
            shown = self.laid(left)
            self.settled = None
        return shown

    def holds(self, known: Laid, overlays: tuple[Overlay, ...]) -> bool:
        """Whether the list begins as the one that was laid out for an earlier request, with the same overlays, and the
        others of these stand behind all of that."""
        count, placed = len(known.client), len(known.overlays)
        if self._folded.conversation.messages[:count] != known.client or overlays[:placed] != known.overlays:
            return False
        behind = overlays[placed:]
        return not behind or sum(map(len, self._places(behind, count).values())) == len(behind)

    def laid(self, overlays: Sequence[Overlay], known: Laid | None = None) -> Folded | None:
        """The list with these behind what is `known`; None where a provider would refuse it, unless the bare one has
        the same fault."""
        folded, self.settled = self._folded, None
        begun = known if known is not None else self._begun()
        places = self._places(overlays, len(begun.client)) if overlays else {}
        try:
            out = self._list(places, begun)
        except ValueError:
            return None
        if not out.mark:
            return folded
        shown = out.folded()
        if begun.mark == out.mark:
            # What is new was not touched, and the rest is legal.
            return shown
        # What was laid out before is legal and ends where a reply begins, so that nothing reaches across; nor where one
        # begins in what is untouched behind that.
        start = self._reply(len(known.client) if known is not None else 0, min(places) - 1)
        longer = len(begun.messages) - len(begun.client)
        found = self._dialect.problems(shown.conversation.messages[start + longer :])
        bare = self._dialect.problems(folded.conversation.messages[start:]) if found else found
        return None if found != bare and Counter(found) - Counter(bare) else shown

    def _begun(self) -> Laid:
        """The fold's part."""
        folded, covered = self._folded, self._covered
        messages, chain = folded.conversation.messages[:covered], folded.conversation.chain[:covered]
        return Laid(messages, (), messages, folded.origins[:covered], folded.spans[:covered], chain, b"")

    def _list(self, places: Mapping[int, Sequence[Overlay]], begun: Laid) -> _List:
        client, at = self._folded.conversation.messages, len(begun.client)
        out = _List(self._dialect, self._read, self._folded, begun)
        # Which weaves fit what is before it is settled.
        end = self._reply(self._covered, len(client) - _RESTLESS)
        for place in sorted({*places, len(client)}):
            if place < at:
                # A weave stands for what is there.
                continue
            if at < end <= place:
                out.keep(at, end)
                self.settled, at = out.laid(client[:end]), end
            out.keep(at, place)
            at = place + self._put(out, places[place], place) if place in places else place
        return out

    def _places(self, overlays: Sequence[Overlay], start: int) -> dict[int, list[Overlay]]:
        """The overlays by the places of the list that they stand before, from the place `start` on."""
        chain, first = self._folded.conversation.chain, max(1, start)
        # Their anchors are the client's own chain keys; that of the fold's part is the fold's.
        behind = dict(zip(chain[first - 1 :], range(first, len(chain) + 1), strict=True))
        if start == self._covered:
            behind[self._salt + self._anchor] = start
        places: dict[int, list[Overlay]] = {}
        for overlay in overlays:
            if (place := behind.get(self._salt + overlay.anchor)) is not None:
                places.setdefault(place, []).append(overlay)
        return places

    def _reply(self, first: int, last: int) -> int:
        """Where the last reply to somebody begins that does so behind the place `first` and not behind `last`; `first`
        where none does. What is of no known role does not end a reply: calls before it may wait for their results."""
        client = self._folded.conversation.messages
        for at in range(last, first, -1):
            if client[at].role == "assistant" and client[at - 1].role not in ("assistant", "other"):
                return at
        return first

    def _put(self, out: _List, group: Sequence[Overlay], at: int) -> int:
        """Puts in what stands before the place `at`; gives how many of the client's own it stands for. What a weave
        replaces may end in what the next one answers."""
        out.overlays += tuple(group)
        client = self._folded.conversation.messages
        for recall in group:
            if isinstance(recall, Recall):
                out.recall(recall.wire, self._place(at))
        count, wires = self._woven(client[at:], group) if at < len(client) else (0, ())
        if count:
            out.weave(wires, (self._place(at), self._place(at) + count - 1, False))
        return count

    def _place(self, at: int) -> int:
        """The client's index of what stands at a place behind the fold's part."""
        return self._next + at - self._covered

    def _woven(self, behind: Sequence[Message], group: Sequence[Overlay]) -> tuple[int, tuple[bytes, ...]]:
        envelope = self._folded.conversation.envelope
        for weave in group:
            if isinstance(weave, Weave) and (found := self._weaver.woven(behind, weave, envelope)) is not None:
                return found
        return 0, ()


class _List:
    """A list in the making; it begins with what is `begun`, the fold's part or more."""

    def __init__(self, dialect: Dialect, read: Read, folded: Folded, begun: Laid) -> None:
        self._dialect, self._read, self._folded = dialect, read, folded
        self._messages, self._origins = [*begun.messages], [*begun.origins]
        self._spans, self._chain = [*begun.spans], [*begun.chain]
        self.overlays = begun.overlays
        """Those that it holds, or that stand for nothing in it."""
        self.mark = begun.mark
        """Stands for all that was put in so far, in the chain keys of what is behind it."""
        self._loose = False
        """Whether the last of the list is a recall that stands by itself."""

    def keep(self, start: int, end: int) -> None:
        """The client's own messages at the places from `start` up to `end`. Where speakers must alternate, a recall in
        front of what the user says becomes a part of it."""
        folded, mark = self._folded, self.mark
        messages = folded.conversation.messages[start:end]
        if self._loose and messages:
            self._loose = False
            if len(joined := self._dialect.joined([self._messages[-1].wire, messages[0].wire], {0})) == 1:
                del self._messages[-1], self._origins[-1], self._spans[-1], self._chain[-1]
                messages = (self._read(joined[0]), *messages[1:])
        self._messages += messages
        self._origins += folded.origins[start:end]
        self._spans += folded.spans[start:end]
        self._chain += [key + mark for key in folded.conversation.chain[start:end]]

    def recall(self, wire: bytes, place: int) -> None:
        """A user's entry, for the client's message before the place `place`. Where speakers must alternate it becomes a
        part of that message, which keeps its origin."""
        before = [message.wire for message in self._messages[-1:]]
        joined = self._dialect.joined([*before, wire], {len(before)})
        if before and len(joined) == 1:
            message = self._read(joined[0])
            self.mark = _digest(self.mark, message)
            self._messages[-1] = message
            self._chain[-1] += self.mark
        else:
            # It stands for none of the client's messages: its span ends before it begins.
            self.weave((wire,), (place, place - 1, False))
            self._loose = True

    def weave(self, wires: Sequence[bytes], span: tuple[int, int, bool]) -> None:
        """Entries that the client never sent, in place of those that the span names."""
        self._loose = False
        messages = tuple(map(self._read, wires))
        self.mark = _digest(self.mark, *messages)
        self._messages += messages
        self._origins += (WOVEN,) * len(messages)
        self._spans += (span,) * len(messages)
        self._chain += [self.mark + b"/%d" % at for at in range(len(messages))]

    def laid(self, client: tuple[Message, ...]) -> Laid:
        """The list as it is now, which these messages became."""
        origins, spans = tuple(self._origins), tuple(self._spans)
        return Laid(client, self.overlays, tuple(self._messages), origins, spans, tuple(self._chain), self.mark)

    def folded(self) -> Folded:
        """The list as it is now."""
        conversation = replace(self._folded.conversation, messages=tuple(self._messages), chain=tuple(self._chain))
        return Folded(conversation, tuple(self._origins), self._folded.compaction, tuple(self._spans))


def _digest(mark: bytes, *messages: Message) -> bytes:
    return hashlib.sha256(mark + b"".join(message.key for message in messages)).digest()
