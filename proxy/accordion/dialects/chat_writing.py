"""Writing the messages of Chat Completions: one edited, one of our own.

Walks a message in the order in which chat.py reads it: reasoning, content, refusal, sound, calls.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from accordion.core.conversation import Message
from accordion.dialects import chat_parts
from accordion.dialects.keys import read
from accordion.dialects.shared import encode, entries, mapping, role_of, string
from accordion.dialects.spans import NULL, fields_of, is_list, is_object, is_text, items_of, list_of, object_of, without
from accordion.dialects.writing import Asked, Change, arguments_of, beside, part_of

# The same thoughts in the words of several servers: they leave together.
_THOUGHTS = ("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks")
_RESULT = b'"[What follows is what the tool returned.]"'


def edited(message: Message, changes: Mapping[int, str | None]) -> bytes | None:
    """The message with parts changed; see Dialect.edit. Reasoning is never rewritten, only taken out."""
    if not changes:
        return message.wire
    asked = Asked(message, changes)
    entry = read(message.wire)
    if type(entry) is not dict:
        raise ValueError("what is not understood is not changed")
    fields = fields_of(message.wire)
    if role_of(entry.get("role")) == "tool":
        _answer(fields, asked)
    else:
        whole = not (len(entry) == 2 and type(entry.get("content")) is str)
        if whole:
            _reasoning(entry, fields, asked)
        _content(fields, asked)
        if whole:
            _spoken(entry, fields, asked)
            _calls(entry, fields, asked)
    asked.done()
    return object_of(fields) if asked.left else None


def joined(wires: Sequence[bytes], ours: Collection[int]) -> list[bytes]:
    """The list with blocks of ours made part of the user's messages beside them. OpenAI takes two messages of the user
    in a row; the chat templates of many models that people serve themselves do not.

    A block before a tool's result becomes a part of that: nothing may stand between a call and its result, and those
    templates, as some providers, refuse what the user says directly behind results. Messages with more fields than role
    and content stay alone.
    """
    return beside(wires, ours, _plain, lambda wire: _plain(wire) or _result(wire), _together)


def _plain(wire: bytes) -> bool:
    """Whether a message is the user's, and holds nothing but what the user says."""
    fields = fields_of(wire) if is_object(wire) else {}
    if fields.keys() != {"role", "content"} or read(fields["role"]) != "user":
        return False
    return is_text(fields["content"]) or is_list(fields["content"])


def _result(wire: bytes) -> bool:
    """Whether a message is what a tool returned, as text."""
    fields = fields_of(wire) if is_object(wire) else {}
    content = fields.get("content", NULL)
    return read(fields.get("role", NULL)) == "tool" and (is_text(content) or is_list(content))


def _together(wires: Sequence[bytes]) -> bytes:
    last, head = fields_of(wires[-1]), {"role": b'"user"'}
    contents = [fields_of(wire)["content"] for wire in wires]
    if read(last["role"]) == "tool":
        head = last
        contents.insert(-1, _RESULT)
    if all(map(is_text, contents)):
        content = encode("\n\n".join(read(text) for text in contents))
    else:
        content = list_of([part for each in contents for part in _listed(each)])
    return object_of({**head, "content": content})


def _listed(content: bytes) -> list[bytes]:
    return items_of(content) if is_list(content) else [object_of({"type": b'"text"', "text": content})]


def block(text: str) -> bytes:
    """A user's message that holds one text."""
    return encode({"role": "user", "content": text})


def _answer(fields: dict[str, bytes], asked: Asked) -> None:
    change = asked.take(1)
    if change is not None and change.text is not None:
        fields["content"] = encode(change.text)


def _reasoning(entry: dict[str, object], fields: dict[str, bytes], asked: Asked) -> None:
    change = asked.take(len(tuple(chat_parts.reasoning(entry))))
    if change is not None:
        change.removal("reasoning")
        without(fields, *_THOUGHTS)


def _content(fields: dict[str, bytes], asked: Asked) -> None:
    content = fields.get("content", NULL)
    if not is_list(content):
        change = asked.take(len(tuple(chat_parts.parts(read(content)))))
        if change is not None:
            fields["content"] = NULL if change.text is None else encode(change.text)
        return
    fields["content"] = asked.each(content, chat_parts.part, partial(part_of, spoken=b'"text"')) or NULL


def _text(text: str) -> dict[str, bytes]:
    return {"type": b'"text"', "text": encode(text)}


def _spoken(entry: dict[str, object], fields: dict[str, bytes], asked: Asked) -> None:
    refusal = string(entry.get("refusal"))
    change = asked.take(1 if refusal else 0)
    if change is not None:
        without(fields, "refusal")
        if change.text is not None:
            fields["refusal"] = encode(change.text)
    change = asked.take(1 if entry.get("audio") else 0)
    if change is not None:
        without(fields, "audio")
        if change.text is not None:
            _say(fields, change.text)


def _say(fields: dict[str, bytes], text: str) -> None:
    """Adds a text behind what the message says."""
    content = fields.get("content", NULL)
    if is_list(content) or (is_text(content) and content != b'""'):
        fields["content"] = list_of([*_listed(content), object_of(_text(text))])
    else:
        fields["content"] = encode(text)


def _calls(entry: dict[str, object], fields: dict[str, bytes], asked: Asked) -> None:
    """Entries of `tool_calls`, each one part, then the legacy call. The field goes with its last call."""
    if entries(entry.get("tool_calls")):
        kept = asked.each(fields["tool_calls"], lambda call: chat_parts.calls({"tool_calls": [call]}), _call)
        if kept is None:
            without(fields, "tool_calls")
        else:
            fields["tool_calls"] = kept
    if type(entry.get("function_call")) is dict:
        change = asked.take(1)
        if change is not None and change.text is None:
            without(fields, "function_call")
        elif change is not None and change.text is not None:
            fields["function_call"] = _given(fields["function_call"], change.text)
    if "content" not in fields and not any(name in fields for name in ("tool_calls", "function_call")):
        fields["content"] = NULL


def _call(raw: bytes, change: Change) -> bytes | None:
    if change.text is None:
        return None
    fields = fields_of(raw)
    if mapping(read(fields.get("custom", NULL))):
        custom = fields_of(fields["custom"])
        return object_of({**fields, "custom": object_of({**custom, "input": encode(change.text)})})
    return object_of({**fields, "function": _given(fields["function"], change.text)})


def _given(raw: bytes, text: str) -> bytes:
    """A function with other arguments, as text or as an object, as they were before."""
    fields = fields_of(raw)
    given = arguments_of(text)
    as_object = is_object(fields.get("arguments", NULL))
    return object_of({**fields, "arguments": given if as_object else encode(text)})
