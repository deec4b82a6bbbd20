"""A reply of several rounds that the provider keeps, as the client was shown it.

What the provider has under the id of the last round tells of that round alone: a response object, or the events of its
stream (`GET /responses/{id}`, with `stream=true`). Source: the type files of the openai SDK.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accordion.core.weaves import Weave
from accordion.dialects.responses_events import Event
from accordion.dialects.responses_round import is_ours, object_in, parsed, without_ours
from accordion.dialects.shared import string
from accordion.dialects.spans import NULL, is_list, is_object, list_of, object_of
from accordion.dialects.splicing import cut, listed, to_json


def document_shown(raw: bytes, shown: str, weaves: Sequence[Weave]) -> bytes:
    """The response object under the id `shown`, with what was said in the rounds before, and without our calls. Of the
    `weaves` that is looked for which ends as it does; without one only its own items are there. The very same bytes
    where it is no response object."""
    fields = parsed(raw)
    return object_of(_shown(fields, shown, weaves)) if "id" in fields else raw


def events_shown(block: bytes, shown: str, weaves: Sequence[Weave]) -> bytes:
    """The same for whole events of its stream: what they tell of the response, not their numbers."""
    return b"".join(_event(piece, shown, weaves) if b'"response"' in piece else piece for piece in cut(block))


def _event(raw: bytes, shown: str, weaves: Sequence[Weave]) -> bytes:
    event = Event(raw)
    response = event.fields.get("response", NULL)
    if not is_object(response):
        return raw
    return event.with_fields({"response": object_of(_shown(parsed(response), shown, weaves))})


def _shown(fields: dict[str, bytes], shown: str, weaves: Sequence[Weave]) -> dict[str, bytes]:
    fields = {**fields, "id": to_json(shown)}
    output = listed(fields, "output")
    weave = next((each for each in weaves if _ends(each, output)), None)
    if weave is None or not is_list(fields.get("output", NULL)):
        return fields
    answered = {object_in(wire).get("call_id") for each in weave.rounds for wire in each.answered}
    before = [wire for each in weave.rounds[:-1] for wire in each.said]
    items = [(object_in(wire), wire) for wire in (*before, *output)]
    names = {string(entry.get("name")) for entry, _ in items if entry.get("call_id") in answered}
    for name in names:
        fields = without_ours(fields, name)
        items = [(entry, wire) for entry, wire in items if not is_ours(entry, name)]
    return {**fields, "output": list_of(wire for _, wire in items)}


def _ends(weave: Weave, output: Sequence[bytes]) -> bool:
    """Whether the last round of a reply said this."""
    said = weave.rounds[-1].said if weave.rounds else ()
    return bool(said) and list(map(_name, map(object_in, said))) == list(map(_name, map(object_in, output)))


def _name(entry: dict[str, Any]) -> str:
    return string(entry.get("id")) or string(entry.get("call_id"))
