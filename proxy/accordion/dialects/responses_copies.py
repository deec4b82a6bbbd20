"""A client's copy of a reply, item by item, and what it does not know of put between.

Clients send back of a reply what they like: without reasoning, ids or status, with texts joined, with the outputs of
calls behind all of them or each behind its own. So items are known by what they are, in any order. The rounds before
the last were sent once already, when the provider was asked to go on: they stand as they stood then. What the client
has of the last one stays its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from accordion.core.boundaries import refers
from accordion.core.conversation import Message, Reasoning, Text
from accordion.core.values import dataclass
from accordion.core.weaves import Round, Weave
from accordion.dialects.arguments import wanted_in
from accordion.dialects.items import CALLS, item
from accordion.dialects.responses_round import object_in, with_arguments
from accordion.dialects.shared import string
from accordion.dialects.spans import fields_of, object_of, without

Again = Callable[[Sequence[bytes]], Sequence[bytes]]

# What an item is known by: as the provider named it, or by what only the provider can read of it.
_NAMES = ("id", "call_id", "encrypted_content")


@dataclass(frozen=True, slots=True)
class _Said:
    """An item of the provider's. `hidden` are calls of ours that were answered."""

    number: int
    wire: bytes
    kind: str
    names: frozenset[tuple[str, str]]
    text: str
    arguments: str
    hidden: bool


def woven(messages: Sequence[Message], weave: Weave, again: Again) -> tuple[int, tuple[bytes, ...]] | None:
    """See Weaver.woven. `again` makes of a round's items what may be sent back."""
    said = [each for number in range(len(weave.rounds)) for each in _said(weave, number)]
    found, run = _found(messages, said, answered=bool(weave.calls))
    if not any(said[at].number == len(weave.rounds) - 1 for at in found):
        return None
    last = len(weave.rounds) - 1
    mine = {at: place for at, place in found.items() if said[at].number == last}
    gone = _gone(said, found)
    own = _own(messages, said, found, mine, again)
    own |= {found[at]: () for at in gone if at in found}
    unled = _unled(said, gone)
    for at in unled & mine.keys():
        named = refers(messages[mine[at]])
        own[mine[at]] = tuple(map(_unnamed, (said[at].wire,) if named else own[mine[at]]))
    inserted: dict[int, list[bytes]] = {}
    for place, wires in _between(messages[:run], said, mine, last, again, weave.rounds[last].answered):
        inserted.setdefault(place, []).extend(wires)
    until = max(max(found.values()) + 1, *inserted, 0)
    out: list[bytes] = []
    for number, each in enumerate(weave.rounds[:last]):
        stays = [at for at, one in enumerate(said) if one.number == number and at not in gone]
        kept = [_unnamed(said[at].wire) if at in unled else said[at].wire for at in stays]
        out += (*again(kept), *each.answered)
    for place in range(until + 1):
        out += inserted.get(place, ())
        if place < until:
            out += own.get(place, (messages[place].wire,))
    return until, tuple(out)


def unwoven(weave: Weave) -> Weave | None:
    """See Weaver.without: no call of ours is answered, so that none is told."""
    if not any(each.answered for each in weave.rounds):
        # It is without already.
        return weave
    said = [each for number in range(len(weave.rounds)) for each in _said(weave, number)]
    alone = any(one.kind == "reasoning" and other.hidden for one, other in pairwise(said))
    rounds = tuple(Round(each.said) for each in weave.rounds)
    return Weave(weave.anchor, rounds, weave.calls, weave.text, weave.at) if alone else None


def _gone(said: Sequence[_Said], found: Mapping[int, int]) -> set[int]:
    """Calls that were not answered and that the client does not have, and the reasoning that led to them: the provider
    refuses it without what followed it. Where it led to something else as well, which stays, all reasoning before that
    goes: only so is what stays taken for an item by itself."""
    gone = {at for at, each in enumerate(said) if each.kind == "function_call" and not each.hidden and at not in found}
    thoughts: set[int] = set()
    for at in range(len(said) - 2, -1, -1):
        if said[at].kind != "reasoning" or said[at + 1].number != said[at].number or at + 1 not in gone | thoughts:
            continue
        thoughts.add(at)
        led = [back for back in range(at + 1, len(said)) if said[back].number == said[at].number]
        if any(back not in gone for back in led if said[back].kind != "reasoning"):
            thoughts |= {back for back in range(at) if said[back].kind == "reasoning"}
    return gone | thoughts


def _unled(said: Sequence[_Said], gone: set[int]) -> set[int]:
    """What followed reasoning that is gone: by its id the provider knows the reasoning, and refuses the item without it
    (`responses_writing.sent`)."""
    found, thought = set[int](), -1
    for at, each in enumerate(said):
        if each.kind == "reasoning":
            thought = at
        elif thought in gone and said[thought].number == each.number:
            found.add(at)
    return found


def _unnamed(wire: bytes) -> bytes:
    fields = fields_of(wire)
    without(fields, "id")
    return object_of(fields)


def _own(
    messages: Sequence[Message],
    said: Sequence[_Said],
    found: Mapping[int, int],
    mine: Mapping[int, int],
    again: Again,
) -> dict[int, Sequence[bytes]]:
    """What becomes of the client's items: nothing of those of earlier rounds, which stand before them; a text that it
    joined over rounds is the last one's again. `mine` are those `found` that are of the last round."""
    own: dict[int, Sequence[bytes]] = dict.fromkeys(found.values(), ())
    earlier = {place for at, place in found.items() if at not in mine}
    for place in set(mine.values()):
        hits = [at for at, other in mine.items() if other == place]
        if place in earlier:
            own[place] = again([said[at].wire for at in (*_thoughts(said, hits[0], found), *hits)])
        else:
            own[place] = (_own_words(said[hits[0]], messages[place]),)
    return own


def _said(weave: Weave, number: int) -> Iterable[_Said]:
    answered = {object_in(wire).get("call_id") for wire in weave.rounds[number].answered}
    for wire in weave.rounds[number].said:
        entry = object_in(wire)
        kind = _kind(entry)
        call = kind == "function_call"
        yield _Said(
            number, wire, kind, _names(entry), _text(item(entry, len(wire))[1]),
            arguments=string(entry.get("arguments")) if call else "", hidden=call and entry.get("call_id") in answered,
        )  # fmt: skip


def _found(messages: Sequence[Message], said: Sequence[_Said], *, answered: bool) -> tuple[dict[int, int], int]:
    """Where the client has the items that were said (their place in `said`, and in `messages`), and where the reply
    ends in its list: at the next turn, at a call that is not of it, or at anything else behind the outputs of calls."""
    found: dict[int, int] = {}
    heard, reasons = False, set[int]()
    for place, message in enumerate(messages):
        if message.role == "user" or (message.role == "tool" and not answered):
            return found, place
        if message.role == "tool":
            heard = True
            continue
        free = [at for at in range(len(said)) if at not in found and not said[at].hidden]
        # The next reply may use the same words, so that behind outputs words prove nothing; but the item directly
        # behind the reply's own reasoning belongs to the reply, since the provider takes neither without the other.
        led = place - 1 in reasons
        told = () if heard and not led else _told(message, free, said)
        hits = _named(message, free, said)
        # An item may have kept its id and hold the texts of others beside its own.
        hits = told if set(hits) <= set(told) else hits
        if message.role == "assistant" and not hits and not led and (heard or _calls(message)):
            return found, place
        found |= dict.fromkeys(hits, place)
        if any(said[at].kind == "reasoning" for at in hits):
            reasons.add(place)
    return found, len(messages)


def _named(message: Message, free: Sequence[int], said: Sequence[_Said]) -> Sequence[int]:
    """The item that bears a name that a client's item bears."""
    names = _names(object_in(message.wire))
    return next(((at,) for at in free if names & said[at].names), ())


def _told(message: Message, free: Sequence[int], said: Sequence[_Said]) -> Sequence[int]:
    """The items that say what a client's item says: one, or several texts that it joined."""
    text, kind = _text(message.parts), _kind(object_in(message.wire))
    told = [at for at in free if said[at].kind == kind and said[at].text] if text else []
    for first in range(len(told)):
        joined = ""
        for behind in range(first, len(told)):
            joined += said[told[behind]].text
            if joined == text:
                return told[first : behind + 1]
            if not text.startswith(joined):
                break
    return ()


def _calls(message: Message) -> bool:
    """Whether the client answers it."""
    return object_in(message.wire).get("type") in CALLS


def _kind(entry: Mapping[str, Any]) -> str:
    return string(entry.get("type")) or ("message" if "role" in entry else "item_reference")


def _names(entry: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    return frozenset((name, entry[name]) for name in _NAMES if type(entry.get(name)) is str and entry[name])


def _text(parts: Iterable[Any]) -> str:
    """What is said or thought, without white space: clients join texts with it or without."""
    return "".join("".join(part.text.split()) for part in parts if isinstance(part, Text | Reasoning))


def _own_words(said: _Said, message: Message) -> bytes:
    """The client's item, with the arguments as the model wrote them where it named artifacts in them."""
    wire = message.wire
    if not wanted_in(said.arguments):
        return wire
    fields = fields_of(wire)
    return wire if "arguments" not in fields else with_arguments(wire, said.arguments)


def _between(
    messages: Sequence[Message],
    said: Sequence[_Said],
    found: Mapping[int, int],
    last: int,
    again: Again,
    answered: Sequence[bytes],
) -> list[tuple[int, Sequence[bytes]]]:
    """What of the last round the client does not know of, and before which of its items each belongs: calls of ours
    before the item that followed them, their outputs before the first output of the client's own calls. `found` is of
    that round."""
    runs = _runs(said, found, last)
    if not runs:
        return []
    before = max(found.values(), default=len(messages) - 1) + 1
    places = [min([found[at] for at in found if at > run[-1]] or [before]) for run in runs]
    heard = (at for at in range(max(places), len(messages)) if messages[at].role == "tool")
    end = next(heard, max(before, *places))
    wires = [again([said[at].wire for at in run]) for run in runs]
    return [*zip(places, wires, strict=True), (end, answered)]


def _runs(said: Sequence[_Said], found: Mapping[int, int], number: int) -> list[list[int]]:
    """The calls of ours in a round, those in a row together, each run with the reasoning directly before it that the
    client has no more."""
    runs: list[list[int]] = []
    for at, each in enumerate(said):
        if each.number != number or not each.hidden:
            continue
        if runs and runs[-1][-1] == at - 1:
            runs[-1].append(at)
        else:
            runs.append([*_thoughts(said, at, found), at])
    return runs


def _thoughts(said: Sequence[_Said], at: int, found: Mapping[int, int]) -> list[int]:
    """The reasoning directly before an item, in its round, that the client has no more."""
    first = at
    while first > 0 and said[first - 1].number == said[at].number and said[first - 1].kind == "reasoning":
        first -= 1
    return [back for back in range(first, at) if back not in found]
