"""Matches a client's copy of a response with the provider's items, and inserts the items that the client does not have.

Clients send a response back incomplete: without reasoning, ids or status, with texts joined, with each output after its
call or all after the last call. So items are matched by id or content, in any order. The rounds before the last were
sent to the provider once, when it was asked to continue: they are inserted as they were sent. The client's items of the
last round stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from accordion.model.boundaries import has_item_reference
from accordion.model.conversation import Message, Reasoning, Text
from accordion.model.insertions import ToolRound, ToolRoundInsertion
from accordion.protocols.artifact_placeholders import find_placeholders
from accordion.protocols.json_spans import fields_of, object_of, remove_fields
from accordion.protocols.json_values import as_string
from accordion.protocols.openai_responses.items import CALLS, read_item
from accordion.protocols.openai_responses.rounds import decode_object, with_arguments

RenderRound = Callable[[Sequence[bytes]], Sequence[bytes]]

# Fields that identify an item: the provider's ids, and content that only the provider can read.
_ID_FIELDS = ("id", "call_id", "encrypted_content")


class _ProviderItem(msgspec.Struct, frozen=True):
    """An item of the round `number`. An own call that was answered is `hidden`."""

    number: int
    wire: bytes
    kind: str
    ids: frozenset[tuple[str, str]]
    text: str
    arguments: str
    hidden: bool


def insert_rounds(
    messages: Sequence[Message], insertion: ToolRoundInsertion, render_round: RenderRound
) -> tuple[int, tuple[bytes, ...]] | None:
    """See ArtifactToolProtocol.insert_rounds. `render_round` prepares a round's items for sending."""
    items = [each for number in range(len(insertion.rounds)) for each in _list_items(insertion, number)]
    matches, run = _match_items(messages, items, answered=bool(insertion.calls))
    if not any(items[at].number == len(insertion.rounds) - 1 for at in matches):
        return None
    last = len(insertion.rounds) - 1
    last_matches = {at: place for at, place in matches.items() if items[at].number == last}
    dropped = _find_dropped(items, matches)
    replacements = _replace_client_items(messages, items, matches, last_matches, render_round)
    replacements |= {matches[at]: () for at in dropped if at in matches}
    unsupported = _find_unsupported(items, dropped)
    for at in unsupported & last_matches.keys():
        place = last_matches[at]
        is_reference = has_item_reference(messages[place])
        replacements[place] = tuple(map(_without_id, (items[at].wire,) if is_reference else replacements[place]))
    inserted: dict[int, list[bytes]] = {}
    for place, wires in _place_hidden_items(
        messages[:run], items, last_matches, last, render_round, insertion.rounds[last].answered
    ):
        inserted.setdefault(place, []).extend(wires)
    end = max(max(matches.values()) + 1, *inserted, 0)
    out: list[bytes] = []
    for number, each in enumerate(insertion.rounds[:last]):
        remaining = [at for at, one in enumerate(items) if one.number == number and at not in dropped]
        wires = [_without_id(items[at].wire) if at in unsupported else items[at].wire for at in remaining]
        out += (*render_round(wires), *each.answered)
    for place in range(end + 1):
        out += inserted.get(place, ())
        if place < end:
            out += replacements.get(place, (messages[place].wire,))
    return end, tuple(out)


def remove_own_calls(insertion: ToolRoundInsertion) -> ToolRoundInsertion | None:
    """See ArtifactToolProtocol.without_own_calls: without results, own calls are not `hidden` and are dropped."""
    if not any(each.answered for each in insertion.rounds):
        # It has no own calls.
        return insertion
    items = [each for number in range(len(insertion.rounds)) for each in _list_items(insertion, number)]
    has_stranded_reasoning = any(one.kind == "reasoning" and other.hidden for one, other in pairwise(items))
    rounds = tuple(ToolRound(each.said) for each in insertion.rounds)
    return (
        ToolRoundInsertion(insertion.anchor, rounds, insertion.calls, insertion.text, insertion.at)
        if has_stranded_reasoning
        else None
    )


def _find_dropped(items: Sequence[_ProviderItem], matches: Mapping[int, int]) -> set[int]:
    """Finds the items to drop: unanswered calls that the client does not have, and the reasoning that led to them,
    which the provider rejects without them. If that reasoning led to another item too, which stays, all reasoning
    before it is dropped: only then does the provider accept that item alone."""
    dropped = {
        at for at, each in enumerate(items) if each.kind == "function_call" and not each.hidden and at not in matches
    }
    reasoning: set[int] = set()
    for at in range(len(items) - 2, -1, -1):
        if (
            items[at].kind != "reasoning"
            or items[at + 1].number != items[at].number
            or at + 1 not in dropped | reasoning
        ):
            continue
        reasoning.add(at)
        followers = [back for back in range(at + 1, len(items)) if items[back].number == items[at].number]
        if any(back not in dropped for back in followers if items[back].kind != "reasoning"):
            reasoning |= {back for back in range(at) if items[back].kind == "reasoning"}
    return dropped | reasoning


def _find_unsupported(items: Sequence[_ProviderItem], dropped: set[int]) -> set[int]:
    """Finds the items that followed dropped reasoning: by an item's id the provider knows its reasoning, and rejects
    the item without it (`writing.join_messages`)."""
    unsupported, reasoning = set[int](), -1
    for at, each in enumerate(items):
        if each.kind == "reasoning":
            reasoning = at
        elif reasoning in dropped and items[reasoning].number == each.number:
            unsupported.add(at)
    return unsupported


def _without_id(wire: bytes) -> bytes:
    fields = fields_of(wire)
    remove_fields(fields, "id")
    return object_of(fields)


def _replace_client_items(
    messages: Sequence[Message],
    items: Sequence[_ProviderItem],
    matches: Mapping[int, int],
    last_matches: Mapping[int, int],
    render_round: RenderRound,
) -> dict[int, Sequence[bytes]]:
    """Returns the replacements of the client's items, by position: nothing for those of earlier rounds, which are
    inserted before them, and the last round's own items for a text that the client joined over rounds. `last_matches`
    are the matches of the last round."""
    replacements: dict[int, Sequence[bytes]] = dict.fromkeys(matches.values(), ())
    earlier = {place for at, place in matches.items() if at not in last_matches}
    for place in set(last_matches.values()):
        hits = [at for at, other in last_matches.items() if other == place]
        if place in earlier:
            replacements[place] = render_round(
                [items[at].wire for at in (*_find_reasoning_before(items, hits[0], matches), *hits)]
            )
        else:
            replacements[place] = (_with_model_arguments(items[hits[0]], messages[place]),)
    return replacements


def _list_items(insertion: ToolRoundInsertion, number: int) -> Iterable[_ProviderItem]:
    answered = {decode_object(wire).get("call_id") for wire in insertion.rounds[number].answered}
    for wire in insertion.rounds[number].said:
        entry = decode_object(wire)
        kind = _kind(entry)
        is_call = kind == "function_call"
        yield _ProviderItem(
            number,
            wire,
            kind,
            _identifiers(entry),
            _text(read_item(entry, len(wire))[1]),
            arguments=as_string(entry.get("arguments")) if is_call else "",
            hidden=is_call and entry.get("call_id") in answered,
        )


def _match_items(
    messages: Sequence[Message], items: Sequence[_ProviderItem], *, answered: bool
) -> tuple[dict[int, int], int]:
    """Matches the client's items: returns each item's position in `items` with its position in `messages`, and the end
    of the response in the client's list: the next turn, a call of another response, or any item after outputs of
    calls."""
    matches: dict[int, int] = {}
    after_output, reasoning_positions = False, set[int]()
    for place, message in enumerate(messages):
        if message.role == "user" or (message.role == "tool" and not answered):
            return matches, place
        if message.role == "tool":
            after_output = True
            continue
        free = [at for at in range(len(items)) if at not in matches and not items[at].hidden]
        # The next response may have the same text, so after outputs the text proves nothing. But the item directly
        # after the response's own reasoning belongs to it, since the provider accepts neither without the other.
        is_led = place - 1 in reasoning_positions
        by_content = () if after_output and not is_led else _match_by_content(message, free, items)
        by_id = _match_by_id(message, free, items)
        # An item with its own id may hold the texts of other items too.
        hits = by_content if set(by_id) <= set(by_content) else by_id
        if message.role == "assistant" and not hits and not is_led and (after_output or _is_client_call(message)):
            return matches, place
        matches |= dict.fromkeys(hits, place)
        if any(items[at].kind == "reasoning" for at in hits):
            reasoning_positions.add(place)
    return matches, len(messages)


def _match_by_id(message: Message, free: Sequence[int], items: Sequence[_ProviderItem]) -> Sequence[int]:
    """Returns the item that shares an id with a client's item."""
    ids = _identifiers(decode_object(message.wire))
    return next(((at,) for at in free if ids & items[at].ids), ())


def _match_by_content(message: Message, free: Sequence[int], items: Sequence[_ProviderItem]) -> Sequence[int]:
    """Returns the items with the content of a client's item: one, or several whose texts the client joined."""
    text, kind = _text(message.parts), _kind(decode_object(message.wire))
    candidates = [at for at in free if items[at].kind == kind and items[at].text] if text else []
    for first in range(len(candidates)):
        joined = ""
        for last in range(first, len(candidates)):
            joined += items[candidates[last]].text
            if joined == text:
                return candidates[first : last + 1]
            if not text.startswith(joined):
                break
    return ()


def _is_client_call(message: Message) -> bool:
    """Whether a message is a call that the client answers."""
    return decode_object(message.wire).get("type") in CALLS


def _kind(entry: Mapping[str, Any]) -> str:
    return as_string(entry.get("type")) or ("message" if "role" in entry else "item_reference")


def _identifiers(entry: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    return frozenset((name, entry[name]) for name in _ID_FIELDS if type(entry.get(name)) is str and entry[name])


def _text(parts: Iterable[Any]) -> str:
    """Returns texts and reasoning without white space: clients join texts with it or without."""
    return "".join("".join(part.text.split()) for part in parts if isinstance(part, Text | Reasoning))


def _with_model_arguments(item: _ProviderItem, message: Message) -> bytes:
    """Returns the client's item, with the model's own arguments if they have placeholders."""
    wire = message.wire
    if not find_placeholders(item.arguments):
        return wire
    fields = fields_of(wire)
    return wire if "arguments" not in fields else with_arguments(wire, item.arguments)


def _place_hidden_items(
    messages: Sequence[Message],
    items: Sequence[_ProviderItem],
    matches: Mapping[int, int],
    last: int,
    render_round: RenderRound,
    answered: Sequence[bytes],
) -> list[tuple[int, Sequence[bytes]]]:
    """Returns the hidden items of the last round, each with the position in the client's list before which it belongs.

    Own calls go before the item that followed them, their outputs before the first output of the client's calls.
    `matches` are those of the last round.
    """
    runs = _group_own_calls(items, matches, last)
    if not runs:
        return []
    end = max(matches.values(), default=len(messages) - 1) + 1
    places = [min([matches[at] for at in matches if at > run[-1]] or [end]) for run in runs]
    outputs = (at for at in range(max(places), len(messages)) if messages[at].role == "tool")
    output_position = next(outputs, max(end, *places))
    wires = [render_round([items[at].wire for at in run]) for run in runs]
    return [*zip(places, wires, strict=True), (output_position, answered)]


def _group_own_calls(items: Sequence[_ProviderItem], matches: Mapping[int, int], number: int) -> list[list[int]]:
    """Groups a round's own calls in runs, each with the reasoning directly before it that the client no longer has."""
    runs: list[list[int]] = []
    for at, each in enumerate(items):
        if each.number != number or not each.hidden:
            continue
        if runs and runs[-1][-1] == at - 1:
            runs[-1].append(at)
        else:
            runs.append([*_find_reasoning_before(items, at, matches), at])
    return runs


def _find_reasoning_before(items: Sequence[_ProviderItem], at: int, matches: Mapping[int, int]) -> list[int]:
    """Finds the reasoning directly before an item, in its round, that the client no longer has."""
    first = at
    while first > 0 and items[first - 1].number == items[at].number and items[first - 1].kind == "reasoning":
        first -= 1
    return [back for back in range(first, at) if back not in matches]
