"""A folded list as it is forwarded: our tool offered, and what was read back or recalled behind the fold in its place.

Only for measuring and writing: plans are made of the list without it, since a fold drops what stands behind messages
that it covers. What was put in is sent the same way every time, so that a list begins with the one sent before it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from accordion.compaction.laying import Laid, Laying, Read
from accordion.core.cache import Cache
from accordion.core.conversation import Conversation, Message
from accordion.core.edits import Folded
from accordion.core.values import dataclass, replace
from accordion.core.weaves import Overlay, Recall, Weave
from accordion.dialects.base import Dialect
from accordion.dialects.splice import ToolOffer, Weaver

_MESSAGE = 400
"""Bytes that a message takes beside its text."""


@dataclass(frozen=True, slots=True)
class _Offered:
    """What offering our tool made of an envelope: the fields that change, the tool as it is counted, and the key of
    both. No fields where it cannot be offered."""

    envelope: Mapping[str, bytes]
    offer: ToolOffer
    fields: Mapping[str, bytes]
    tools: tuple[str, ...]
    key: bytes


@dataclass(frozen=True, slots=True)
class _Worn:
    switches: Mapping[str, bytes]
    laid: Laid
    size: int


class Wardrobe:
    """Dresses lists. Remembers within `capacity` bytes what it made of each fold's list, so that a request costs what
    is new of it; the list is the same as without."""

    def __init__(self, capacity: int = 16 * 2**20) -> None:
        self._offers = Cache[tuple[str, str, bytes], _Offered](capacity // 4)
        self._worn = Cache[str, _Worn](capacity * 3 // 4)

    @property
    def size(self) -> int:
        """Bytes that the lists in memory are reckoned to take."""
        return self._worn.size

    def dressed(
        self,
        dialect: Dialect,
        weaver: Weaver,
        folded: Folded,
        overlays: Sequence[Overlay],
        offer: ToolOffer | None,
        read: Read,
    ) -> Folded:
        """The list with the tool `offer` offered, where that is one and can be, and with those of `overlays` in place
        that stand behind the fold, if one is in force. `read` makes a Message of written JSON.

        `overlays` come as Overlays.find gives them. One that does not fit the client's list, or by which it would no
        longer be legal, is left out. Weaves hold calls, so without any tool in the request they are left out too. The
        result has chain keys of its own; messages of weaves and recalls have the origin WOVEN.
        """
        bare = folded.conversation
        made = self._made(dialect, weaver, bare, offer) if offer is not None else None
        if made is None and any(isinstance(each, Weave) for each in overlays) and not weaver.names(bare.envelope):
            overlays = [each for each in overlays if isinstance(each, Recall)] + unread(weaver, overlays)
        shown = self._laid(Laying(dialect, weaver, folded, read), folded, tuple(overlays)) if overlays else folded
        if made is None:
            return shown
        return Folded(_with(shown.conversation, made), shown.origins, shown.compaction, shown.spans)

    def offered(self, dialect: Dialect, weaver: Weaver, conversation: Conversation, offer: ToolOffer) -> Conversation:
        """The conversation with the tool among its own; the very same where it cannot be offered."""
        made = self._made(dialect, weaver, conversation, offer)
        return _with(conversation, made) if made is not None else conversation

    def _made(self, dialect: Dialect, weaver: Weaver, conversation: Conversation, offer: ToolOffer) -> _Offered | None:
        place = dialect.name, offer.name, conversation.overhead_key
        made = self._offers.get(place)
        if made is None or made.envelope != conversation.envelope or made.offer != offer:
            made = _offered(dialect, weaver, conversation, offer)
            held = (*made.envelope.values(), *made.fields.values(), *made.tools)
            self._offers.put(place, made, _MESSAGE + sum(map(len, held)))
        return made if made.fields else None

    def _laid(self, laying: Laying, folded: Folded, overlays: tuple[Overlay, ...]) -> Folded:
        name = folded.compaction.id if folded.compaction is not None else folded.conversation.chain[0].hex()
        known, switches = self._worn.get(name), _switches(folded.conversation.envelope)
        laid = None
        if known is not None and known.switches == switches and laying.holds(known.laid, overlays):
            laid = known.laid
        shown = laying.legal(overlays, laid)
        if (settled := laying.settled) is not None:
            if known is not None and laid is not None:
                # What came in behind the last message of it may have become a part of that.
                last = max(0, len(laid.messages) - 1)
                size = known.size - _size(laid.messages[last:]) + _size(settled.messages[last:])
            else:
                size = _size(settled.messages)
            self._worn.put(name, _Worn(switches, settled, size), size)
        return shown


def dressed(
    dialect: Dialect, weaver: Weaver, folded: Folded, overlays: Sequence[Overlay], offer: ToolOffer | None, read: Read
) -> Folded:
    """A list as a new Wardrobe dresses it."""
    return Wardrobe().dressed(dialect, weaver, folded, overlays, offer, read)


def unread(weaver: Weaver, overlays: Sequence[Overlay]) -> list[Overlay]:
    """Those that are needed where nothing that was read or recalled is put in: what the client has of such replies may
    not be legal by itself."""
    found = (weaver.without(each) for each in overlays if isinstance(each, Weave))
    return [each for each in found if each is not None]


def _offered(dialect: Dialect, weaver: Weaver, conversation: Conversation, offer: ToolOffer) -> _Offered:
    fields = weaver.offer(conversation.envelope, offer)
    if fields is None:
        return _Offered(conversation.envelope, offer, {}, (), b"")
    key = conversation.overhead_key
    if key:
        key = hashlib.sha256(key + repr(offer).encode()).digest()
    return _Offered(conversation.envelope, offer, fields, dialect.tools(weaver.offer({}, offer) or fields), key)


def _with(conversation: Conversation, made: _Offered) -> Conversation:
    return replace(
        conversation,
        envelope={**conversation.envelope, **made.fields},
        # The client's own tools were read already.
        tools=conversation.tools + made.tools,
        overhead_key=made.key,
    )


def _size(messages: Sequence[Message]) -> int:
    """What they take in memory, in bytes, roughly."""
    return sum(message.size for message in messages)


def _switches(envelope: Mapping[str, bytes]) -> dict[str, bytes]:
    """The fields of a request that are no text, list or object: how a reply is written back may depend on them."""
    return {name: value for name, value in envelope.items() if value[:1] not in (b'"', b"[", b"{")}
