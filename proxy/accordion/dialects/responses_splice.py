"""One reply of Responses to the client, made of one or more of the provider's.

Source: the type files of the openai SDK (`openai/types/responses/*_event.py`). Numbers and places are told anew
behind the first one that is not shown; those that open and end a response tell its tools, the last all that was said.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from accordion.dialects.arguments import Arguments, given_in, wanted_in
from accordion.dialects.responses_events import (
    ARGUMENTS,
    DELTA,
    DONE,
    ENDS,
    OPENINGS,
    Event,
    Numbers,
    delta,
    is_one,
    piece_of,
    says_nothing,
)
from accordion.dialects.responses_round import (
    Told,
    as_one,
    is_ours,
    object_in,
    parsed,
    seen,
    text_in,
    with_arguments,
    without_ours,
)
from accordion.dialects.shared import encode, string
from accordion.dialects.spans import NULL, is_list, is_object, object_of
from accordion.dialects.splice import RoundSeen, Splice, Wanted
from accordion.dialects.splicing import cut, listed, to_json


class ResponsesStream(Splice):
    """A stream of events. As long as nothing is hidden, what says nothing of calls goes on unread."""

    def __init__(self, tool: str) -> None:
        self._tool, self._name = tool, encode(tool)[1:-1]
        # Events that wait: the first for an artifact, the others for the first.
        self._queue: deque[Event] = deque()
        self._texts: dict[Wanted, str | None] = {}
        self._wanted: tuple[Wanted, ...] = ()
        self._numbers = Numbers()
        self._ids: list[str] = []
        self._before: list[Told] = []
        self._begin_round()

    def _begin_round(self) -> None:
        self._items: list[tuple[dict[str, Any], bytes]] = []
        self._hidden: set[int | str] = set()
        self._calls: dict[int | str, _Call] = {}
        self._resolved = False
        self._end: Event | None = None
        self._told = Told({}, None)
        self._behind: list[bytes] = []

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the rounds, in order."""
        return tuple(self._ids)

    def feed(self, block: bytes) -> bytes:
        """Takes whole events; returns those that may go on, in the same bytes where nothing of them changes."""
        quiet = self._own and not block.startswith(ARGUMENTS) and says_nothing(block)
        self.telling = b"" if quiet and b"error" not in block else None
        if quiet:
            return block
        return self._feed(block) if is_one(block) else b"".join(map(self._feed, cut(block)))

    def _feed(self, raw: bytes) -> bytes:
        event, own = None, self._own
        piece = piece_of(raw) if own else None
        if piece is not None:
            # Mostly the very same goes on, and nothing else of the event has to be looked at.
            call = self._calls.get(piece.key) or self._calls.setdefault(piece.key, _Call())
            call.text = call.arguments.feed(piece.delta)
            if call.text == piece.delta and not call.arguments.wanted:
                return raw
            event = Event(raw)
            event.begun = True
        elif own and says_nothing(raw):
            return raw
        self._queue.append(event or Event(raw))
        return self._drain()

    @property
    def _own(self) -> bool:
        """Whether events go on as they came, so far."""
        return not (self._numbers.changed or self._queue)

    @property
    def wanted(self) -> tuple[Wanted, ...]:
        """The artifacts that the first of the waiting events names, each once."""
        return self._wanted

    def give(self, texts: Sequence[str | None]) -> bytes:
        """The texts of what is `wanted`. One that was given is not asked for again within the reply."""
        self._texts |= dict.fromkeys(self._wanted) | dict(zip(self._wanted, texts, strict=False))
        self._wanted = ()
        return self._drain()

    @property
    def held(self) -> bool:
        """Whether the response's last event is here."""
        return self._end is not None

    def round(self) -> RoundSeen:
        """What the round said, by the items that were done; by the last event where that tells of more."""
        items, output = self._items, listed(self._told.fields, "output")
        if len(output) > len(items):
            items = [(object_in(raw), raw) for raw in output]
        completed = self._end is not None and self._end.kind == "response.completed"
        finished = completed and text_in(self._told.fields, "status", "completed") == "completed"
        return seen(items, self._tool, self._told.fields, finished=finished, resolved=self._resolved)

    def next(self) -> None:
        """The next response continues this one."""
        self._before.append(self._told)
        self._numbers.next()
        self._begin_round()

    def close(self) -> bytes:
        """The last event, with the items and the usage of all rounds; nothing where it never came."""
        if self._end is None:
            return b""
        changes = {}
        if self._told.fields:
            whole = as_one([*self._before, self._told], self._tool)
            if whole != self._told.fields:
                changes["response"] = object_of(whole)
        return self._numbers.show(self._end, changes) + b"".join(self._behind)

    # -- event by event ------------------------------------------------------------------

    def _drain(self) -> bytes:
        out = []
        while self._queue and not self._wanted:
            shown = self._take(self._queue[0])
            if shown is None:
                break
            self._queue.popleft()
            out.append(shown)
        return b"".join(out)

    def _take(self, event: Event) -> bytes | None:
        """What goes on of an event; None where it waits for an artifact."""
        if self._end is not None:
            self._behind.append(event.raw)
            return b""
        if not event.fields:
            # Marks and comments. Of an event whose end never came nobody has a use, and it may tell of ours.
            return b"" if event.cut or self._name in event.raw else event.raw
        if event.kind in ENDS:
            return self._hold(event)
        if is_object(event.fields.get("response", NULL)):
            return self._opening(event)
        if is_object(event.fields.get("item", NULL)):
            return self._item(event)
        if event.key in self._hidden:
            return self._numbers.hide(event)
        if event.kind == DELTA:
            return self._delta(event)
        if event.kind == DONE:
            return self._done(event)
        return self._numbers.show(event)

    def _opening(self, event: Event) -> bytes:
        response = parsed(event.fields["response"])
        self._know(response)
        if self._before and event.kind in OPENINGS:
            return self._numbers.hide(event)
        return self._numbers.show(event, self._visible(response))

    def _visible(self, response: Mapping[str, bytes]) -> dict[str, bytes]:
        """The change of an event that tells of a response; none where it may be shown as it is."""
        shown = without_ours(response, self._tool)
        if "id" in shown and self._before:
            shown["id"] = to_json(self._ids[0])
        return {} if shown == response else {"response": object_of(shown)}

    def _know(self, response: Mapping[str, bytes]) -> None:
        name = text_in(response, "id")
        if name and name not in self._ids[-1:]:
            self._ids.append(name)

    def _item(self, event: Event) -> bytes | None:
        raw = event.fields["item"]
        entry = object_in(raw)
        key = string(entry.get("id")) if event.key == "" else event.key
        shown: bytes | None
        if is_ours(entry, self._tool) or key in self._hidden:
            self._hidden |= {key, string(entry.get("id")) or key}
            shown = self._numbers.hide(event)
        elif entry.get("type") == "function_call":
            shown = self._call(event, entry, key)
        else:
            shown = self._numbers.show(event)
        if shown is not None and event.kind.endswith(".done"):
            self._items.append((entry, raw))
            # Where items have neither place nor id, all that comes between the two ends of ours is ours.
            self._hidden.discard("")
        return shown

    def _call(self, event: Event, entry: Mapping[str, Any], key: int | str) -> bytes | None:
        """A client's call that begins or is done."""
        arguments = entry.get("arguments")
        text = self._whole(arguments) if type(arguments) is str else None
        if self._wanted:
            return None
        changes = {} if text is None else {"item": with_arguments(event.fields["item"], text)}
        if event.kind.endswith(".done"):
            return self._rest(event, key, string(entry.get("id"))) + self._numbers.show(event, changes)
        self._calls[key] = _Call()
        return self._numbers.show(event, changes)

    def _delta(self, event: Event) -> bytes | None:
        call = self._calls.setdefault(event.key, _Call())
        piece = event.text("delta")
        if not event.begun:
            event.begun = True
            call.text = call.arguments.feed(piece)
        if call.arguments.wanted:
            texts = self._known(call.arguments.wanted)
            if texts is None:
                return None
            call.text += call.arguments.give(texts)
        self._resolved = self._resolved or call.arguments.resolved
        # A piece of which nothing may go on stays as an empty one, so that the numbers need not change.
        return self._numbers.show(event, {} if call.text == piece else {"delta": to_json(call.text)})

    def _done(self, event: Event) -> bytes | None:
        text = self._whole(event.text("arguments"))
        if self._wanted:
            return None
        rest = self._rest(event, event.key, event.text("item_id"))
        return rest + self._numbers.show(event, {} if text is None else {"arguments": to_json(text)})

    def _rest(self, event: Event, key: int | str, item_id: str) -> bytes:
        """What was held back of a call's arguments as a name that it turned out not to be: one more delta."""
        call = self._calls.pop(key, None)
        text = call.arguments.end() if call is not None else ""
        if not text:
            return b""
        self._numbers.count_from(event)
        return self._numbers.show(delta(event, item_id, text))

    def _whole(self, text: str) -> str | None:
        """The whole arguments of a call with artifacts in the place of their names; None where none are named, or
        where some are `wanted` now."""
        wanted = wanted_in(text)
        texts = self._known(wanted) if wanted else None
        if texts is None:
            return None
        whole = given_in(text, texts)
        self._resolved = self._resolved or whole != text
        return None if whole == text else whole

    def _known(self, wanted: tuple[Wanted, ...]) -> list[str | None] | None:
        """The texts that were given for these; None where some have still to be asked for."""
        self._wanted = tuple(each for each in dict.fromkeys(wanted) if each not in self._texts)
        return None if self._wanted else [self._texts[each] for each in wanted]

    def _hold(self, event: Event) -> bytes | None:
        response = parsed(event.fields.get("response", NULL))
        output: list[bytes] = []
        for raw in listed(response, "output"):
            entry = object_in(raw)
            if is_ours(entry, self._tool):
                continue
            arguments = entry.get("arguments") if entry.get("type") == "function_call" else None
            whole = self._whole(arguments) if type(arguments) is str else None
            if self._wanted:
                return None
            output.append(raw if whole is None else with_arguments(raw, whole))
        self._know(response)
        self._numbers.count_from(event)
        told = Told(response, tuple(output) if is_list(response.get("output", NULL)) else None)
        self._end, self._told = event, told
        self._numbers.reached(sum(len(each.output or ()) for each in (*self._before, told)))
        return b""


class _Call:
    """The arguments of one of the client's calls as they come, and what of the newest piece may go on."""

    __slots__ = ("arguments", "text")

    def __init__(self) -> None:
        self.arguments = Arguments()
        self.text = ""
