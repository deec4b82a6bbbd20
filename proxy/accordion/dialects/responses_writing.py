"""Writing the items of a Responses list: one edited, one of our own, the list as it is sent.

Source: the type files of the openai SDK. Each kind of output has a shape of its own; where a text has no place in it
(a screenshot, a list of tools), or where the provider checks what stands there (actions, hosted calls), the item is
left as it is or taken out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from accordion.core.conversation import Message
from accordion.dialects import items
from accordion.dialects.keys import read
from accordion.dialects.shared import encode, string
from accordion.dialects.spans import NULL, fields_of, is_list, is_object, is_text, items_of, list_of, object_of, without
from accordion.dialects.writing import Asked, arguments_of, part_of

_OUTPUTS = frozenset(
    {"function_call_output", "custom_tool_call_output", "local_shell_call_output", "apply_patch_call_output"}
)
# Items whose id may be left out: they say themselves what they are.
_TOLD = frozenset({"message", "function_call", "custom_tool_call", "shell_call", "apply_patch_call"})
_MODELS = frozenset(
    {*items.CALLS, *items.HOSTED, "reasoning", "item_reference", "mcp_list_tools", "compaction", "message"}
)


def edited(message: Message, changes: Mapping[int, str | None]) -> bytes | None:
    """The item with parts changed; see Dialect.edit. Reasoning and items that hold a call with its result leave as a
    whole or not at all."""
    if not changes:
        return message.wire
    asked = Asked(message, changes)
    if is_text(message.wire):
        change = asked.take(len(message.parts))
        return encode(change.text) if change is not None and change.text is not None else None
    fields = fields_of(message.wire)
    kind = _kind(fields)
    if kind == "message":
        _content(fields, asked)
    else:
        change = asked.take(len(message.parts))
        if change is None or change.text is None:
            return None
        _item(fields, kind, change.text)
    asked.done()
    return object_of(fields) if asked.left else None


def block(text: str) -> bytes:
    """A user's message that holds one text."""
    return encode({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})


def _kind(fields: Mapping[str, bytes]) -> str:
    return string(read(fields.get("type", NULL))) or ("message" if "role" in fields else "item_reference")


def _item(fields: dict[str, bytes], kind: str, text: str) -> None:
    """Puts a text where an item has what it gave or was given."""
    if kind in _OUTPUTS:
        fields["output"] = encode(text)
    elif kind == "shell_call_output":
        fields["output"] = _shell(fields.get("output", NULL), text)
    elif kind == "program_output":
        fields["result"] = encode(text)
    elif kind == "function_call":
        given = arguments_of(text)
        as_object = is_object(fields.get("arguments", NULL))
        fields["arguments"] = given if as_object else encode(text)
    elif kind == "custom_tool_call":
        fields["input"] = encode(text)
    else:
        raise ValueError(f"an item of the type {kind} is left as it is or taken out")


def _shell(output: bytes, text: str) -> bytes:
    """The output of a shell as one chunk, which ended as the last one did."""
    if not is_list(output):
        return encode(text)
    chunks = items_of(output)
    if not chunks:
        raise ValueError("an output without chunks has no place for a text")
    return list_of([object_of({**fields_of(chunks[-1]), "stdout": encode(text), "stderr": b'""'})])


def _content(fields: dict[str, bytes], asked: Asked) -> None:
    content = fields.get("content", NULL)
    if is_text(content) or content == NULL:
        change = asked.take(len(tuple(items.content(read(content)))))
        if change is not None and change.text is not None:
            fields["content"] = encode(change.text)
        return
    spoken = b'"output_text"' if read(fields.get("role", NULL)) == "assistant" else b'"input_text"'
    listed = content if is_list(content) else list_of([content])
    written = asked.each(listed, lambda part: items.content([part]), partial(part_of, spoken=spoken))
    fields["content"] = written or b"[]"


def sent(wires: Sequence[bytes]) -> list[bytes]:
    """The items as they are sent. A plain string becomes a message.

    What the model said or called right after reasoning that is gone loses its id: by the id the provider knows the
    reasoning, and refuses the item without it ("Item 'fc_…' of type 'function_call' was provided without its required
    'reasoning' item"). Whether it is gone is seen from what comes before in the same reply, so an item is always sent
    the same way. Every other item keeps its bytes.
    """
    out = [block(read(wire)) if is_text(wire) else wire for wire in wires]
    known: dict[int, bool] = {}
    for at, wire in enumerate(out):
        if b'"id"' not in wire:
            continue
        fields = fields_of(wire)
        if "id" in fields and _kind(fields) in _TOLD and _is_models(fields):
            known[at] = _reasoned(out, at, known)
            if not known[at]:
                without(fields, "id")
                out[at] = object_of(fields)
    return out


def _is_models(fields: Mapping[str, bytes]) -> bool:
    """Whether the model made this item in a reply, as against the user or a tool."""
    kind = _kind(fields)
    return kind in _MODELS and (kind != "message" or read(fields.get("role", NULL)) == "assistant")


def _reasoned(wires: Sequence[bytes], at: int, known: Mapping[int, bool]) -> bool:
    """Whether reasoning comes before the item `at` in the same reply. `known` is what was found of earlier items."""
    for back in range(at - 1, -1, -1):
        if back in known:
            return known[back]
        fields = fields_of(wires[back])
        if not _is_models(fields):
            return False
        if _kind(fields) in {"reasoning", "item_reference"}:
            return True
    return False
