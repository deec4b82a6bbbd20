"""Writing the messages of Chat Completions: one edited, one of our own.

Walks a message in the order in which chat.py reads it: reasoning, content, refusal, sound, calls.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from proxy.core.conversation import Message, Reasoning
from proxy.dialects import chat_parts
from proxy.dialects.keys import BREAKPOINTS, TEXT_TYPES, read
from proxy.dialects.shared import entries, mapping, role_of, string
from proxy.dialects.writing import (
    NULL,
    Asked,
    Change,
    arguments_of,
    encode,
    fields_of,
    is_list,
    is_text,
    items_of,
    list_of,
    object_of,
    without,
)

# The same thoughts in the words of several servers: they leave together.
_THOUGHTS = ("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks")


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

    Such a block, or several in a row, goes behind what the user's message before it says, and a user's message that
    follows goes behind it. Messages with more fields than role and content stay alone, and keep their bytes.
    """
    written, at, out = frozenset(ours), 0, list[bytes]()
    while at < len(wires):
        if at not in written:
            out.append(wires[at])
            at += 1
            continue
        contents: list[bytes] = []
        while at < len(wires) and at in written:
            contents.append(fields_of(wires[at])["content"])
            at += 1
        if out and (before := _said(out[-1])) is not None:
            contents.insert(0, before)
            out.pop()
        if at < len(wires) and (after := _said(wires[at])) is not None:
            contents.append(after)
            at += 1
        out.append(object_of({"role": b'"user"', "content": _together(contents)}))
    return out


def _said(wire: bytes) -> bytes | None:
    """The content of a user's message that is nothing else."""
    try:
        fields = fields_of(wire)
    except ValueError:
        return None
    content = fields.get("content", b"")
    plain = fields.keys() == {"role", "content"} and read(fields["role"]) == "user"
    return content if plain and (is_text(content) or is_list(content)) else None


def _together(contents: Sequence[bytes]) -> bytes:
    if all(map(is_text, contents)):
        return encode("\n\n".join(read(content) for content in contents))
    parts = (items_of(each) if is_list(each) else [encode({"type": "text", "text": read(each)})] for each in contents)
    return list_of([part for held in parts for part in held])


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
    kept, touched = [], False
    for raw in items_of(content):
        change = asked.take(len(tuple(chat_parts.part(read(raw)))))
        touched = touched or change is not None
        written = raw if change is None else _part(raw, change)
        if written is not None:
            kept.append(written)
    if touched:
        fields["content"] = list_of(kept) if kept else NULL


def _part(raw: bytes, change: Change) -> bytes | None:
    """An entry of a content list with its text replaced; one that held media becomes a text."""
    if isinstance(change.parts[0], Reasoning):
        change.removal("reasoning")
    if change.text is None:
        return None
    if is_text(raw):
        return encode(change.text)
    fields = fields_of(raw)
    kind = read(fields["type"])
    if kind in TEXT_TYPES:
        without(fields, "annotations", "logprobs")
        return object_of({**fields, "text": encode(change.text)})
    if kind == "refusal":
        return object_of({**fields, "refusal": encode(change.text)})
    return object_of({**_text(change.text), **{name: fields[name] for name in BREAKPOINTS if name in fields}})


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
    if is_list(content):
        fields["content"] = list_of([*items_of(content), object_of(_text(text))])
    elif is_text(content) and content != b'""':
        said = object_of({"type": b'"text"', "text": content})
        fields["content"] = list_of([said, object_of(_text(text))])
    else:
        fields["content"] = encode(text)


def _calls(entry: dict[str, object], fields: dict[str, bytes], asked: Asked) -> None:
    """Entries of `tool_calls`, each one part, then the legacy call. The field goes with its last call."""
    if entries(entry.get("tool_calls")):
        kept, touched = [], False
        for raw in items_of(fields["tool_calls"]):
            change = asked.take(1)
            touched = touched or change is not None
            written = raw if change is None else _call(raw, change)
            if written is not None:
                kept.append(written)
        if touched:
            fields["tool_calls"] = list_of(kept)
        if not kept:
            without(fields, "tool_calls")
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
    as_object = fields.get("arguments", NULL)[:1] == b"{"
    return object_of({**fields, "arguments": given if as_object else encode(text)})
