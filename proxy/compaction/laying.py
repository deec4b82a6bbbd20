"""Where overlays stand in a folded list: the client's own messages with what was put in between."""

from __future__ import annotations

import hashlib
import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter

from proxy.core.conversation import Message
from proxy.core.edits import Folded
from proxy.core.plan import WOVEN
from proxy.core.values import dataclass, replace
from proxy.core.weaves import Overlay, Recall, Weave
from proxy.dialects.base import Dialect
from proxy.dialects.splice import Weaver

_log = logging.getLogger("accordion")

Read = Callable[[bytes], Message]

_Span = tuple[int, int, bool]
_Entry = tuple[Message, int, _Span, bytes]
_Columns = tuple[tuple[Message, ...], tuple[int, ...], tuple[_Span, ...], tuple[bytes, ...]]

_RESTLESS = 4
"""So many of the newest messages may look different a turn later: clients move cache breakpoints about there."""


@dataclass(frozen=True, slots=True)
class Laid:
    """How far a list was laid out for an earlier request: what became of its messages `client`, the first ones. It
    holds for lists of the same fold, with the same overlays, that begin with the very same messages."""

    client: tuple[Message, ...]
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
        self._anchor, self._salt = (made.anchor, len(made.id.encode())) if made is not None else (b"", 0)
        self._next = made.covered if made is not None else 0
        self._covered = bisect_left(folded.spans, self._next, key=itemgetter(0))
        """How many messages of the list are the fold's."""
        self.settled: Laid | None = None
        """What of the last list holds for the next request."""

    def legal(self, overlays: Sequence[Overlay], known: Laid | None = None) -> Folded:
        """The list with all of them that leave it legal, as far as the client's own is. `known` is what was `settled`
        for an earlier request with the same fold, where it still `holds`."""
        shown = self.laid(overlays, known)
        left = list(overlays)
        while shown is None:
            # The fewest from the beginning that do not go together end in the one that is at fault.
            fewest = bisect_left(range(1, len(left)), True, key=lambda count: self.laid(left[:count]) is None) + 1
            fault = left.pop(fewest - 1)
            _log.debug("an overlay of %s would break the list and is left out", fault.anchor.hex()[:12])
            shown = self.laid(left)
            self.settled = None
        return shown

    def holds(self, known: Laid, overlays: Sequence[Overlay]) -> bool:
        """Whether the list begins as the one that was laid out for an earlier request, with the same switches and
        overlays, and these overlays, which came in since, stand behind all of that."""
        if self._folded.conversation.messages[: len(known.client)] != known.client:
            return False
        if not overlays:
            return True
        keys = {self._key(at) for at in range(len(known.client) - 1, len(self._folded.conversation.chain))}
        return all(overlay.anchor in keys for overlay in overlays)

    def laid(self, overlays: Sequence[Overlay], known: Laid | None = None) -> Folded | None:
        """The list with these; None where a provider would refuse it, unless the bare one has the same fault."""
        folded, self.settled = self._folded, None
        try:
            out = self._list(_by_anchor(overlays), known)
        except ValueError:
            return None
        if not out.mark:
            return folded
        shown = out.folded()
        if known is not None and known.mark == out.mark:
            # What is new was not touched, and the rest is legal.
            return shown
        # What was laid out before is legal and ends where a reply begins, so that nothing reaches across.
        start, before = (len(known.messages), len(known.client)) if known is not None else (0, 0)
        found = Counter(self._dialect.problems(shown.conversation.messages[start:]))
        fault = found and found - Counter(self._dialect.problems(folded.conversation.messages[before:]))
        return None if fault else shown

    def _list(self, groups: Mapping[bytes, Sequence[Overlay]], known: Laid | None) -> _List:
        folded = self._folded
        client, keys = folded.conversation.messages, folded.conversation.chain
        start = self._covered if known is None else len(known.client)
        out, end = _List(self._dialect, self._read, folded, self._covered, known), self._settles()
        at = self._behind(out, groups, start)
        while at < len(client):
            out.keep(client[at], folded.origins[at], folded.spans[at], keys[at])
            at += 1
            if at == end:
                self.settled = out.laid(client[:at])
            at = self._behind(out, groups, at)
        return out

    def _settles(self) -> int:
        """Where the last reply but for the newest messages begins: which weaves fit what is before it is settled."""
        client = self._folded.conversation.messages
        for at in range(len(client) - _RESTLESS, self._covered, -1):
            if client[at].role == "assistant" and client[at - 1].role != "assistant":
                return at
        return 0

    def _behind(self, out: _List, groups: Mapping[bytes, Sequence[Overlay]], at: int) -> int:
        """Puts in what stands before the place `at`; gives the next one of the client's own. What a weave replaces may
        end in what the next one answers."""
        client = self._folded.conversation.messages
        while group := groups.get(self._key(at - 1)):
            for recall in group:
                if isinstance(recall, Recall):
                    out.recall(recall.wire, self._place(at))
            count, wires = self._woven(client[at:], group) if at < len(client) else (0, ())
            if not count:
                break
            out.weave(wires, (self._place(at), self._place(at) + count - 1, False))
            at += count
        return at

    def _key(self, at: int) -> bytes:
        """The client's own chain key of the message at a place; the anchor is that of the fold's part."""
        return self._anchor if at < self._covered else self._folded.conversation.chain[at][self._salt :]

    def _place(self, at: int) -> int:
        """The client's index of what stands at a place behind the fold's part."""
        return self._next + at - self._covered

    def _woven(self, behind: Sequence[Message], group: Sequence[Overlay]) -> tuple[int, tuple[bytes, ...]]:
        envelope = self._folded.conversation.envelope
        for weave in group:
            if isinstance(weave, Weave) and (found := self._weaver.woven(behind, weave, envelope)) is not None:
                return found
        return 0, ()


def _by_anchor(overlays: Sequence[Overlay]) -> dict[bytes, list[Overlay]]:
    groups: dict[bytes, list[Overlay]] = {}
    for overlay in overlays:
        groups.setdefault(overlay.anchor, []).append(overlay)
    return groups


class _List:
    """A list in the making; it begins with the fold's part."""

    def __init__(self, dialect: Dialect, read: Read, folded: Folded, covered: int, known: Laid | None) -> None:
        self._dialect, self._read, self._folded = dialect, read, folded
        self._begun = known or Laid(
            (), folded.conversation.messages[:covered], folded.origins[:covered], folded.spans[:covered],
            folded.conversation.chain[:covered], b"",
        )  # fmt: skip
        self._new: list[_Entry] = []
        """What stands behind that."""
        self.mark = self._begun.mark
        """Stands for all that was put in so far, in the chain keys of what is behind it."""
        self._loose = False
        """Whether the last of the list is a recall that stands by itself."""

    def keep(self, message: Message, origin: int, span: tuple[int, int, bool], key: bytes) -> None:
        """The client's own message. Where speakers must alternate, a recall in front of what the user says becomes a
        part of it."""
        if self._loose and len(joined := self._dialect.joined([self._new[-1][0].wire, message.wire], {0})) == 1:
            self._new.pop()
            message = self._read(joined[0])
        self._loose = False
        self._new.append((message, origin, span, key + self.mark))

    def recall(self, wire: bytes, place: int) -> None:
        """A user's entry, for the client's message before the place `place`. Where speakers must alternate it becomes a
        part of that message, which keeps its origin."""
        last = self._last()
        before = [last[0].wire] if last is not None else []
        joined = self._dialect.joined([*before, wire], {len(before)})
        if last is not None and len(joined) == 1:
            message = self._read(joined[0])
            self.mark = _digest(self.mark, message)
            self._new[-1] = message, last[1], last[2], last[3] + self.mark
        else:
            # It stands for none of the client's messages: its span ends before it begins.
            self.weave((wire,), (place, place - 1, False))
            self._loose = True

    def weave(self, wires: Sequence[bytes], span: tuple[int, int, bool]) -> None:
        """Entries that the client never sent, in place of those that the span names."""
        self._loose = False
        messages = [self._read(wire) for wire in wires]
        self.mark = _digest(self.mark, *messages)
        self._new += [(message, WOVEN, span, self.mark + b"/%d" % at) for at, message in enumerate(messages)]

    def laid(self, client: tuple[Message, ...]) -> Laid:
        """The list as it is now, which these messages became."""
        self._begun = Laid(client, *self._columns(), self.mark)
        self._new.clear()
        return self._begun

    def folded(self) -> Folded:
        """The list as it is now."""
        messages, origins, spans, chain = self._columns()
        conversation = replace(self._folded.conversation, messages=messages, chain=chain)
        return Folded(conversation, origins, self._folded.compaction, spans)

    def _columns(self) -> _Columns:
        begun = self._begun
        if not self._new:
            return begun.messages, begun.origins, begun.spans, begun.chain
        messages, origins, spans, chain = zip(*self._new, strict=True)
        return begun.messages + messages, begun.origins + origins, begun.spans + spans, begun.chain + chain

    def _last(self) -> _Entry | None:
        """The last of the list, which is new from now on; None where there is none."""
        begun = self._begun
        if not self._new and begun.messages:
            self._new.append((begun.messages[-1], begun.origins[-1], begun.spans[-1], begun.chain[-1]))
            self._begun = Laid(
                (), begun.messages[:-1], begun.origins[:-1], begun.spans[:-1], begun.chain[:-1], begun.mark
            )  # fmt: skip
        return self._new[-1] if self._new else None


def _digest(mark: bytes, *messages: Message) -> bytes:
    return hashlib.sha256(mark + b"".join(message.key for message in messages)).digest()
