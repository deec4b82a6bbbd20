"""What one reply of Chat Completions says: put together from deltas, or read from a message; in the request's form."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from accordion.dialects.arguments import Arguments
from accordion.dialects.chat_parts import BLOCKS, parts
from accordion.dialects.chat_reply import reported
from accordion.dialects.keys import read
from accordion.dialects.shared import arguments_text, encode, entries, mapping, string
from accordion.dialects.splice import OurCall, RoundSeen
from accordion.dialects.splicing import legible, to_json, usage_of_all, visible

# What a provider may want back of a message, beside content and calls. `reasoning` is not among it: some servers refuse
# it in a request.
_BACK = ("refusal", "reasoning_content", "reasoning_details", "thinking_blocks", "function_call", "extra_content")
# Reasons to end that leave a reply unfinished.
_UNFINISHED = frozenset({"length", "max_tokens", "content_filter", "error", "insufficient_system_resource"})
# What is put together where a block of thoughts comes in pieces.
_PIECES = frozenset({"text", "summary", "data", "thinking"})


class Sink:
    """A text in pieces, kept as the inside of a JSON string. `given` tells an empty text from none."""

    __slots__ = ("given", "raw")

    def __init__(self) -> None:
        self.raw, self.given = bytearray(), False

    def add(self, text: str) -> None:
        """Takes the next piece."""
        self.given = True
        try:
            self.raw += encode(text)[1:-1]
        except UnicodeError:
            self.raw += json.dumps(text)[1:-1].encode()

    @property
    def text(self) -> str:
        """The whole; halves of characters that found no other half become question marks."""
        quoted = b'"' + bytes(self.raw) + b'"'
        try:
            return str(read(quoted))
        except ValueError:
            return _whole(quoted)


def _whole(quoted: bytes) -> str:
    try:
        return str(json.loads(quoted.decode(errors="replace"), strict=False)).encode(errors="replace").decode()
    except ValueError:
        return ""


class Call:
    """One call as it comes. `ours` is None until its name is known."""

    __slots__ = ("arguments", "fields", "id", "index", "inner", "kind", "name", "ours", "sink", "visible", "waiting")

    def __init__(self, index: int, kind: str) -> None:
        self.index, self.kind = index, kind
        self.id = self.name = ""
        self.ours: bool | None = None
        self.waiting = False
        """Whether something of it was held because its name was not known."""
        self.visible: int | None = None
        """The index that the client sees."""
        self.sink, self.arguments = Sink(), Arguments()
        self.fields: dict[str, Any] = {}
        self.inner: dict[str, Any] = {}

    def add(self, entry: Mapping[str, Any]) -> None:
        """Takes the next piece of it."""
        inner = mapping(entry.get(self.kind))
        self.id, self.name = self.id or string(entry.get("id")), self.name or string(inner.get("name"))
        self.fields |= {key: held for key, held in entry.items() if held is not None and key not in _OWN}
        self.inner |= {key: held for key, held in inner.items() if held is not None and key not in _OWN}
        text = arguments_text(inner.get(_given(self.kind)))
        if text:
            self.sink.add(text)

    def another(self, entry: Mapping[str, Any]) -> bool:
        """Whether the entry begins another call at the same place: servers give parallel calls one index, or none."""
        call_id, inner = string(entry.get("id")), mapping(entry.get(self.kind))
        if call_id and self.id:
            return call_id != self.id
        name = string(inner.get("name"))
        if not name or not self.name:
            return False
        begins = arguments_text(inner.get(_given(self.kind))).lstrip().startswith("{")
        return name != self.name or (begins and _is_object(self.sink.text))

    def entry(self) -> dict[str, Any]:
        """The call as a message holds it, as far as it has come."""
        inner = {"name": self.name, _given(self.kind): self.sink.text, **self.inner}
        return {"id": self.id, "type": self.kind, **self.fields, self.kind: inner}


_OWN = frozenset({"index", "id", "function", "custom", "name", "arguments", "input"})


class Saying:
    """What a round says, delta by delta."""

    __slots__ = ("_fields", "_open", "_parts", "calls", "sinks")

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.sinks = {name: Sink() for name in ("content", "refusal", "reasoning_content", "reasoning")}
        self._open: dict[int, Call] = {}
        self._parts: list[Any] = []
        self._fields: dict[str, Any] = {}

    def add(self, delta: Mapping[str, Any]) -> None:
        """Takes a delta, its calls left aside."""
        for name, held in delta.items():
            if type(held) is str and name in self.sinks:
                if name == "content" and self._parts:
                    self._parts += [{"type": "text", "text": held}] if held else []
                else:
                    self.sinks[name].add(held)
            elif name == "content" and type(held) is list:
                self._parts += held
            elif held and name in _BACK:
                self._fields[name] = _merged(self._fields.get(name), held)

    def call(self, position: int, entry: Mapping[str, Any]) -> Call:
        """Takes an entry of a delta's `tool_calls`, `position` being its place there; returns the call it is of."""
        index = entry.get("index")
        place = index if type(index) is int else position
        known = self._open.get(place)
        if known is None or known.another(entry):
            known = self._open[place] = Call(place, "custom" if mapping(entry.get("custom")) else "function")
            self.calls.append(known)
        known.add(entry)
        return known

    def shown_at(self, call: Call) -> int:
        """The index at which the client sees a call of this round: ours before it do not count."""
        ours = {other.index for other in self.calls if other.ours}
        theirs = {other.index for other in self.calls if other.ours is False and other is not call}
        return call.index - sum(index < call.index for index in ours - theirs)

    def blocks(self) -> Counter[str]:
        """How many numbered blocks of thoughts were told, under each name."""
        told = {name: [mapping(block).get("index") for block in entries(self._fields.get(name))] for name in BLOCKS}
        return Counter({name: max([-1, *(at for at in held if type(at) is int)]) + 1 for name, held in told.items()})

    def ends(self) -> dict[str, str]:
        """The last character of each text that the round said, by its field."""
        texts = {name: sink.text[-1:] for name, sink in self.sinks.items() if sink.raw}
        if self._parts:
            texts["content"] = string(mapping(self._parts[-1]).get("text"))[-1:]
        return texts

    def message(self) -> dict[str, Any]:
        """The message that the deltas make."""
        said: dict[str, Any] = {name: sink.text for name, sink in self.sinks.items() if sink.given}
        if self._parts:
            before = said.get("content")
            said["content"] = [*([{"type": "text", "text": before}] if before else []), *self._parts]
        return {**said, **self._fields, "tool_calls": [call.entry() for call in self.calls]}


def said_of(
    message: Mapping[str, Any], tool: str, stem: str, usage: Mapping[str, Any] | None, *, whole: bool
) -> RoundSeen:
    """What a message says, as a round; `whole` tells whether the model was done.

    Those of our calls that were given no id get one made of `stem`, since their answers name it; arguments that are no
    JSON are sent back wrapped. Of a reply that is not whole our calls are left out: nobody will answer them.
    """
    calls, made = [], []
    for at, call in enumerate(entries(message.get("tool_calls"))):
        own = name_of(call) == tool
        if own and whole:
            inner = mapping(call.get("function"))
            text = arguments_text(inner.get("arguments"))
            made.append(OurCall(string(call.get("id")) or f"call_{stem}_{at}", tool, text))
            calls.append({**call, "id": made[-1].call_id, "function": {**inner, "arguments": legible(text)}})
        elif not own:
            calls.append(call)
    ids = (string(mapping(call).get("id")) for call in calls if name_of(call) != tool)
    said = {**message, "tool_calls": calls}
    used = reported({"usage": usage}, [])
    return RoundSeen(_request_form(said), tuple(made), tuple(filter(None, ids)), _text(said), whole, used)


def says(delta: Mapping[str, Any]) -> bool:
    """Whether a delta says something, its role aside."""
    return any(held for name, held in delta.items() if name != "role")


def behind(delta: dict[str, Any], blocks: Mapping[str, int]) -> dict[str, Any]:
    """The delta with its blocks of thoughts numbered behind so many; the very same where it has none."""
    moved = {name: [_later(block, count) for block in entries(delta.get(name))] for name, count in blocks.items()}
    moved = {name: held for name, held in moved.items() if held}
    return {**delta, **moved} if moved else delta


def _later(block: Any, count: int) -> Any:
    at = mapping(block).get("index")
    return {**block, "index": at + count} if type(at) is int else block


def name_of(call: Any) -> str:
    """The name of the tool that an entry of `tool_calls` calls."""
    call = mapping(call)
    return string(mapping(call.get("function") or call.get("custom")).get("name"))


def _request_form(message: Mapping[str, Any]) -> tuple[bytes, ...]:
    """The assistant's message as a request has it, with what providers want back; none where it says nothing."""
    said: dict[str, Any] = {"role": "assistant", "content": message.get("content")}
    said |= {name: message[name] for name in _BACK if message.get(name)}
    audio = mapping(message.get("audio"))
    if audio.get("id"):
        said["audio"] = {"id": audio["id"]}
    calls = entries(message.get("tool_calls"))
    if calls:
        said["tool_calls"] = [
            {name: held for name, held in call.items() if name != "index"} if type(call) is dict else call
            for call in calls
        ]
    if len(said) == 2 and not said["content"]:
        return ()
    if said["content"] is None and not calls and "function_call" not in said:
        said["content"] = ""
    return (to_json(said),)


def _text(message: Mapping[str, Any]) -> str:
    """The visible text of a message: its content, then a refusal."""
    return visible(parts(message.get("content"))) + string(message.get("refusal"))


def paragraph_break(before: str, after: str) -> str:
    """What stands between the texts of two rounds of one reply: an empty line, so that Markdown keeps them apart;
    nothing where one of them is empty or white space separates them already. Copies of a reply are compared without
    white space, so it does not matter whether a client keeps it."""
    if not before or not after or before[-1].isspace() or after[0].isspace():
        return ""
    return "\n\n"


def finished(reason: str) -> bool:
    """Whether a reply that ended for this reason says all that the model had to say."""
    return reason not in _UNFINISHED


def usage_places(data: dict[str, Any]) -> list[dict[str, Any]]:
    """The objects that hold the usage under `usage`, in a chunk or a completion: itself, Groq's field, a choice."""
    holders = [data, data.get("x_groq"), *entries(data.get("choices"))]
    return [holder for holder in holders if type(holder) is dict and holder.get("usage") and mapping(holder["usage"])]


def summed(usages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The usage objects of the rounds of one reply as one."""
    return usage_of_all(
        usages, "prompt_tokens", "completion_tokens", "completion_tokens_details", "total_tokens"
    )  # fmt: skip


def _given(kind: str) -> str:
    return "input" if kind == "custom" else "arguments"


def _is_object(text: str) -> bool:
    try:
        return type(read(text)) is dict
    except ValueError:
        return False


def _merged(old: Any, new: Any) -> Any:
    """A field of a delta behind what came of it before."""
    if type(old) is list and type(new) is list:
        out = list(old)
        for block in new:
            if out and _continues(out[-1], block):
                out[-1] = _joined(out[-1], block)
            else:
                out.append(block)
        return out
    if type(old) is dict and type(new) is dict:
        return {**old, **{name: _merged(old.get(name), held) for name, held in new.items() if held is not None}}
    return old + new if type(old) is str and type(new) is str else new


def _continues(block: Any, piece: Any) -> bool:
    if type(block) is not dict or type(piece) is not dict or "index" not in piece:
        return False
    return all(block.get(name) == piece.get(name) for name in ("index", "type"))


def _joined(block: dict[str, Any], piece: dict[str, Any]) -> dict[str, Any]:
    out = dict(block)
    for name, held in piece.items():
        if held is not None:
            before = block.get(name)
            whole = name in _PIECES and type(before) is str and type(held) is str
            out[name] = before + held if whole else held
    return out
