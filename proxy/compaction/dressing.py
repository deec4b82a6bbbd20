"""A folded list as it is forwarded: our tool offered, and what was read back or recalled behind the fold in its place.

Only for measuring and writing: plans are made of the list without it, since a fold drops what stands behind messages
that it covers. What was put in is sent the same way every time, so that a list begins with the one sent before it.
"""

from __future__ import annotations

import hashlib
import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

from proxy.core.conversation import Conversation, Message
from proxy.core.edits import Folded
from proxy.core.plan import WOVEN
from proxy.core.weaves import Overlay, Recall, Weave
from proxy.dialects.base import Dialect
from proxy.dialects.splice import ToolOffer, Weaver

_log = logging.getLogger("accordion")

_Read = Callable[[bytes], Message]


def dressed(
    dialect: Dialect, weaver: Weaver, folded: Folded, overlays: Sequence[Overlay], offer: ToolOffer | None, read: _Read
) -> Folded:
    """The list with the tool `offer` offered, where that is one and can be, and with those of `overlays` in place that
    stand behind the fold; the same where no fold is in force. `read` makes a Message of written JSON.

    `overlays` come as Overlays.find gives them. One that does not fit the client's list, or by which it would no longer
    be legal, is left out. Weaves hold calls, so without any tool in the request they are left out too. The result has
    chain keys of its own; messages of weaves and recalls have the origin WOVEN.
    """
    if folded.compaction is None:
        return folded
    bare, envelope = folded.conversation, folded.conversation.envelope
    conversation = offered(dialect, weaver, bare, offer) if offer is not None else bare
    if conversation is bare and any(isinstance(each, Weave) for each in overlays) and not weaver.names(envelope):
        overlays = [each for each in overlays if isinstance(each, Recall)] + unread(weaver, overlays)
    shown = _Laying(dialect, weaver, folded, read).legal(overlays) if overlays else folded
    if conversation is bare:
        return shown
    messages, chain = shown.conversation.messages, shown.conversation.chain
    return replace(shown, conversation=replace(conversation, messages=messages, chain=chain))


def unread(weaver: Weaver, overlays: Sequence[Overlay]) -> list[Overlay]:
    """Those that are needed where nothing that was read or recalled is put in: what the client has of such replies may
    not be legal by itself."""
    found = (weaver.without(each) for each in overlays if isinstance(each, Weave))
    return [each for each in found if each is not None]


def offered(dialect: Dialect, weaver: Weaver, conversation: Conversation, offer: ToolOffer) -> Conversation:
    """The conversation with the tool among its own; the very same where it cannot be offered."""
    fields = weaver.offer(conversation.envelope, offer)
    if fields is None:
        return conversation
    # The client's own tools were read already.
    tools = conversation.tools + dialect.tools(weaver.offer({}, offer) or fields)
    key = conversation.overhead_key
    if key:
        key = hashlib.sha256(key + repr(offer).encode()).digest()
    return replace(conversation, envelope={**conversation.envelope, **fields}, tools=tools, overhead_key=key)


class _Laying:
    """Puts overlays into one list."""

    def __init__(self, dialect: Dialect, weaver: Weaver, folded: Folded, read: _Read) -> None:
        if folded.compaction is None:
            raise ValueError("nothing is put in where no fold is in force")
        self._dialect, self._weaver, self._folded, self._read = dialect, weaver, folded, read
        self._anchor, self._salt = folded.compaction.anchor, len(folded.compaction.id.encode())
        self._covered = bisect_left(folded.spans, folded.compaction.covered, key=itemgetter(0))
        """How many messages of the list are the fold's."""
        self._next = folded.compaction.covered

    def legal(self, overlays: Sequence[Overlay]) -> Folded:
        """The list with all of them that leave it legal, as far as the client's own is."""
        left = list(overlays)
        while left:
            shown = self.laid(left)
            if shown is not None:
                return shown
            # The fewest from the beginning that do not go together end in the one that is at fault.
            fewest = bisect_left(range(1, len(left)), True, key=lambda count: self.laid(left[:count]) is None) + 1
            fault = left.pop(fewest - 1)
            _log.debug("an overlay of %s would break the list and is left out", fault.anchor.hex()[:12])
        return self._folded

    def laid(self, overlays: Sequence[Overlay]) -> Folded | None:
        """The list with these; None where a provider would refuse it, unless the bare one has the same fault."""
        try:
            shown = self._laid(_by_anchor(overlays))
        except ValueError:
            return None
        if shown is self._folded:
            return shown
        found = Counter(self._dialect.problems(shown.conversation.messages))
        fault = found and found - Counter(self._dialect.problems(self._folded.conversation.messages))
        return None if fault else shown

    def _laid(self, groups: Mapping[bytes, Sequence[Overlay]]) -> Folded:
        folded, covered = self._folded, self._covered
        client, keys = folded.conversation.messages, folded.conversation.chain
        out = _List(self._dialect, self._read, folded, covered)
        at = self._behind(out, groups, covered)
        while at < len(client):
            out.keep(client[at], folded.origins[at], folded.spans[at], keys[at])
            at = self._behind(out, groups, at + 1)
        return out.folded() if out.changed else folded

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

    def __init__(self, dialect: Dialect, read: _Read, folded: Folded, covered: int) -> None:
        self._dialect, self._read, self._folded = dialect, read, folded
        self._messages = list(folded.conversation.messages[:covered])
        self._origins = list(folded.origins[:covered])
        self._spans = list(folded.spans[:covered])
        self._chain = list(folded.conversation.chain[:covered])
        self._mark = b""
        """Stands for all that was put in so far, in the chain keys of what is behind it."""
        self._loose = False
        """Whether the last of the list is a recall that stands by itself."""

    @property
    def changed(self) -> bool:
        return bool(self._mark)

    def keep(self, message: Message, origin: int, span: tuple[int, int, bool], key: bytes) -> None:
        """The client's own message. Where speakers must alternate, a recall in front of what the user says becomes a
        part of it."""
        if self._loose and len(joined := self._dialect.joined([self._messages[-1].wire, message.wire], {0})) == 1:
            for of in (self._messages, self._origins, self._spans, self._chain):
                of.pop()
            message = self._read(joined[0])
        self._loose = False
        self._messages.append(message)
        self._origins.append(origin)
        self._spans.append(span)
        self._chain.append(key + self._mark)

    def recall(self, wire: bytes, place: int) -> None:
        """A user's entry, for the client's message before the place `place`. Where speakers must alternate it becomes a
        part of that message, which keeps its origin."""
        before = [self._messages[-1].wire] if self._messages else []
        joined = self._dialect.joined([*before, wire], {len(before)})
        if before and len(joined) == 1:
            message = self._read(joined[0])
            self._mark = _digest(self._mark, message)
            self._messages[-1] = message
            self._chain[-1] += self._mark
        else:
            # It stands for none of the client's messages: its span ends before it begins.
            self.weave((wire,), (place, place - 1, False))
            self._loose = True

    def weave(self, wires: Sequence[bytes], span: tuple[int, int, bool]) -> None:
        """Entries that the client never sent, in place of those that the span names."""
        self._loose = False
        messages = [self._read(wire) for wire in wires]
        self._mark = _digest(self._mark, *messages)
        self._messages += messages
        self._origins += [WOVEN] * len(messages)
        self._spans += [span] * len(messages)
        self._chain += [self._mark + b"/%d" % index for index in range(len(messages))]

    def folded(self) -> Folded:
        """The list as it is now."""
        conversation = replace(self._folded.conversation, messages=tuple(self._messages), chain=tuple(self._chain))
        return replace(self._folded, conversation=conversation, origins=tuple(self._origins), spans=tuple(self._spans))


def _digest(mark: bytes, *messages: Message) -> bytes:
    return hashlib.sha256(mark + b"".join(message.key for message in messages)).digest()
