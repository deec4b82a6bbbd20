"""Message identity: the canonical form of a message, message keys, and the chain of keys of a history.

A client sends the same history with every request, and its library may write it a little differently each time. The
canonical form is the same for exactly these differences (the *equivalences*):

- the order of names in a JSON object, escapes, white space; 1 and 1.0 and 1e0; of two equal names the last counts;
- cache breakpoints (`cache_control`, `prompt_cache_breakpoint`): clients move them from turn to turn;
- a field that is absent, null, or empty where libraries add it empty (`_EMPTY_BY_DEFAULT`); content that is absent,
  null, an empty string, an empty list, or one empty text part;
- a string and one text part, under any of the names of such a part (`text`, `input_text`, `output_text`);
- tool arguments as JSON text or as an object, in any layout; an empty text and `{}`;
- fields that libraries derive from the others and some send back (`_DERIVED_FIELDS`), the `index` that a streamed call
  had and the missing type `function` of a call, the data beside the id of a response's `audio`, a `status` of
  `completed`, a `caller` of the kind `direct`.

Each protocol documents what it leaves out besides. Arguments, inputs, schemas and result texts of the user's tools are
data: nothing is left out of them.

Some clients send an earlier message in another form, which the model may read differently although it says the same:
they add a `name`, or leave out reasoning. `content_key` is the key of what a message says: its role, text, media, calls
and results. The chain of these keys identifies a session, and nothing else: all edits go by the message keys.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from operator import is_
from typing import Any

import msgspec

from accordion.model.conversation import Message
from accordion.model.tenant import TenantScope
from accordion.protocols.json_spans import exceeds_count

BREAKPOINTS = ("cache_control", "prompt_cache_breakpoint")
CACHE_POINT = "cachePoint"
"""The only field of a block that is nothing but a breakpoint (Bedrock)."""
_BREAKPOINT_FIELDS = tuple(b'"%s"' % name.encode() for name in (*BREAKPOINTS, CACHE_POINT))
_LARGE, _PIECE = 4 << 20, 1 << 20
TEXT_TYPES = frozenset({"text", "input_text", "output_text"})

# Written by the parse() helpers of the official SDKs, from the fields beside them.
_DERIVED_FIELDS = ("parsed", "parsed_arguments", "parsed_output")
_OMITTED_FIELDS = frozenset((*BREAKPOINTS, *_DERIVED_FIELDS))
_DATA = ("input", "parameters", "input_schema", "output_schema", "schema", "attributes", "metadata")
_EMPTY_BY_DEFAULT = (
    *("annotations", "logprobs", "citations", "summary", "refusal", "reasoning_content", "reasoning", "is_error"),
    *("pending_safety_checks", "acknowledged_safety_checks", "provider_specific_fields"),
)

# The form of a message: fields that clients add to earlier messages, or leave out. Copilot, LiteLLM and OpenRouter each
# have their own for reasoning; the signatures are Gemini's, in Chat.
_FORM_FIELDS = frozenset(
    (
        *("reasoning", "reasoning_content", "reasoning_details", "reasoning_text", "reasoning_opaque"),
        *(
            "thinking_blocks",
            "annotations",
            "citations",
            "logprobs",
            "phase",
            "provider_specific_fields",
            "extra_content",
        ),
        *("thought_signature", "copilot_cache_control"),
    )
)
# In an entry without a role, these are the name of a tool and the id of an item that the provider has.
_LABELS = frozenset({"name", "id"})
_REASONING_TYPES = frozenset({"thinking", "redacted_thinking", "reasoning"})

NO_CONTENT = b"-"
"""The content key of a message without content, such as one with reasoning only."""

# Limit of keys and values in the arguments of a call. No model has enough output tokens to write more.
_MAX_ARGUMENT_VALUES = 50_000
# Above this, the digits of a float differ from those of the integer that it stands for.
_EXACT = 1e22


class TooManyValues(ValueError):
    """The arguments of a call hold too many keys and values."""


def parse_number(text: str) -> float | int:
    """Parses a JSON number with a fraction or an exponent, as an int where it is whole. Raises ValueError where it is
    out of range."""
    value = float(text)
    if value - value != 0.0:
        raise ValueError("a number is out of range")
    return int(value) if value.is_integer() and abs(value) < _EXACT else value


_decode = msgspec.json.Decoder(float_hook=parse_number).decode
_encode = msgspec.json.Encoder(order="deterministic").encode
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def decode_json(raw: bytes | str) -> Any:
    """Decodes JSON so that equal numbers are equal. Raises ValueError, also where it is nested too deeply."""
    try:
        return _decode_large(raw) if len(raw) > _LARGE and isinstance(raw, bytes) else _decode(raw)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error


def _decode_large(raw: bytes) -> Any:
    """Decodes large JSON. The long texts of an object are decoded in pieces, so that other threads can go on."""
    try:
        fields = _FIELDS.decode(raw)
    except msgspec.ValidationError:  # It is no object.
        return _decode(raw)
    return {name: _decode_text(value) if len(value) > _LARGE else _decode(value) for name, value in fields.items()}


def _decode_text(raw: msgspec.Raw) -> Any:
    """Decodes JSON; a string in pieces that end before a space, which is never a part of an escape or a character."""
    view = memoryview(raw)
    if view[0] != ord('"'):
        return _decode(raw)
    pieces, start, end, size = list[str](), 1, len(view) - 1, _PIECE
    while start < end:
        piece = bytes(view[start : min(start + size, end)])
        if start + len(piece) < end:
            piece = piece[: max(0, piece.rfind(b" "))]
        if not piece:
            size *= 2  # There is no place to cut; a larger piece may have one.
            continue
        pieces.append(_decode(b'"%b"' % piece))
        start, size = start + len(piece), _PIECE
    return "".join(pieces)


def canonical_object(value: dict[str, Any]) -> dict[str, Any]:
    """Returns the canonical form of a message, an item or a part. Raises ValueError if it is nested too deeply."""
    try:
        return _object(value)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error


def canonical_text_message(role: str, text: str) -> dict[str, Any]:
    """Returns the canonical form of a message with a role and a text only, as `canonical_object` does."""
    return {"role": role, "content": [text]} if text else {"role": role}


def count_breakpoints(wire: bytes) -> int:
    """Counts the cache breakpoints in a piece of JSON. (Quotes within a text are escaped, so it cannot match there.)"""
    if len(wire) <= _PIECE:
        # Most messages do not have what all the names share, and one search takes a third of the time of three.
        return sum(map(wire.count, _BREAKPOINT_FIELDS)) if wire.find(b"cache") >= 0 else 0
    # Piece by piece, so that other threads can go on in between.
    return sum(
        wire.count(field, index, index + _PIECE + len(field) - 1)
        for index in range(0, len(wire), _PIECE)
        for field in _BREAKPOINT_FIELDS
    )


def message_key(canonical: Any, tenant: TenantScope, protocol_name: str) -> bytes:
    """Returns the key of a message, 32 bytes: SHA-256 of the tenant's key, the protocol's name and the content.

    The protocol is in it because the JSON of the message is stored under the key. Raises ValueError if the content is
    nested too deeply. A length extension attack is not possible, because keys are never shown; HMAC would cost five
    times as much.
    """
    try:
        digest = hashlib.sha256(tenant.key + protocol_name.encode())
        # Hashed in steps: joining the bytes would copy a large message once more.
        if _has_one_text(canonical) and len(canonical["content"][0]) > _LARGE:
            for piece in _encode_in_pieces(canonical["role"], canonical["content"][0]):
                digest.update(piece)
        else:
            digest.update(_encode(canonical))
        return digest.digest()
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error


def _has_one_text(canonical: Any) -> bool:
    """Whether a canonical form is that of a message with a role and one text only."""
    if type(canonical) is not dict or len(canonical) != 2 or "role" not in canonical:
        return False
    content = canonical.get("content")
    return type(content) is list and len(content) == 1 and type(content[0]) is str


def _encode_in_pieces(role: Any, text: str) -> Iterator[bytes]:
    """Yields the JSON of such a form in pieces: less memory at once, and other threads can go on in between."""
    yield b'{"content":["'
    for index in range(0, len(text), _PIECE):
        yield _encode(text[index : index + _PIECE])[1:-1]
    yield b'"],"role":%b}' % _encode(role)


def content_key(canonical: Any, tenant: TenantScope, protocol_name: str) -> bytes:
    """Returns the key of what a message says; empty where it is the message's key, NO_CONTENT where it has none.

    Raises ValueError if the content is nested too deeply.
    """
    if _has_one_text(canonical) or (content := _said_content(canonical)) is canonical:
        return b""
    return NO_CONTENT if content is None else message_key(content, tenant, protocol_name)


def identity_key(previous: bytes, message: Message, start: bytes) -> bytes:
    """Returns the identity key of a message: a hash of the previous identity key and what the message says.

    One that says nothing has the key of the message before, unless it is the first (`start` is that of an empty list).
    """
    if message.content_key != NO_CONTENT:
        return chain_key(previous, message.content_key or message.key)
    return chain_key(previous, message.key) if previous == start else previous


@lru_cache(1_024)
def chain_start(tenant: TenantScope, protocol_name: str) -> bytes:
    """Returns the chain key of an empty list, 32 bytes. The tenant's key is in it, and so in all that follow."""
    return hashlib.sha256(tenant.key + b"chain " + protocol_name.encode()).digest()


def chain_key(previous: bytes, key: bytes) -> bytes:
    """Returns the chain key of a message, 32 bytes: a hash of the previous chain key and the message's key."""
    return hashlib.sha256(previous + key).digest()


def _said_content(canonical: Any) -> Any:
    """Returns what a message says: `canonical` itself where nothing of it is form, None where nothing is left."""
    if type(canonical) is not dict:
        return canonical
    if canonical.get("type") == "reasoning":
        return None
    role, content, calls = canonical.get("role"), canonical.get("content"), canonical.get("tool_calls")
    fields = _without_form(canonical)
    if role is not None and not _LABELS.isdisjoint(fields) and (role != "tool" or "tool_call_id" in fields):
        # The name of a function is what pairs a legacy call with its result.
        labels = _LABELS if role != "function" else {"id"}
        fields = {name: field for name, field in fields.items() if name not in labels}
    for name, value, simplify in (("content", content, _said_parts), ("tool_calls", calls, _said_calls)):
        if type(value) is list and (said := simplify(value)) is not value:
            fields = {each: field for each, field in fields.items() if each != name} | ({name: said} if said else {})
    return None if role == "assistant" and len(fields) == 1 else fields


def _without_form(value: dict[str, Any]) -> dict[str, Any]:
    if _FORM_FIELDS.isdisjoint(value):
        return value
    return {name: field for name, field in value.items() if name not in _FORM_FIELDS}


def _said_parts(parts: list[Any]) -> list[Any]:
    """Returns the parts without reasoning and empty texts; the same list where there are none."""
    said = [simple for part in parts if (simple := _said_part(part)) != ""]
    return parts if len(said) == len(parts) and all(map(is_, said, parts)) else said


def _said_part(part: Any) -> Any:
    if type(part) is not dict:
        return part
    kind = part.get("type")
    if type(kind) is str and kind in _REASONING_TYPES:
        return ""
    bare = _without_form(part)
    return part if bare is part else _part(bare)


def _said_calls(calls: list[Any]) -> list[Any]:
    said = [_said_call(call) for call in calls]
    return calls if all(map(is_, said, calls)) else said


def _said_call(call: Any) -> Any:
    if type(call) is not dict:
        return call
    bare, function = _without_form(call), call.get("function")
    if type(function) is dict and (inner := _without_form(function)) is not function:
        bare = {**bare, "function": inner}
    return bare


def _object(value: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, field in value.items():
        if field is None or name in _OMITTED_FIELDS:
            continue
        rule = _RULES.get(name)
        if rule is not None:
            canonical = rule(field)
            if canonical is not None:
                out[name] = canonical
        elif type(field) is str:
            out[name] = field
        else:
            out[name] = _value(field)
    return out


def _value(value: Any) -> Any:
    if type(value) is dict:
        return _object(value)
    if type(value) is list:
        return [_object(entry) if type(entry) is dict else entry for entry in value]
    return value


def _content(value: Any) -> Any:
    """Returns content as a list of parts, with text parts as plain strings; None where it is empty."""
    if type(value) is str:
        return [value] if value else None
    if type(value) is list:
        parts = [_part(part) for part in value]
        return None if not parts or parts == [""] else parts
    return _value(value)


def _part(part: Any) -> Any:
    if type(part) is dict:
        kind = part.get("type")
        if type(kind) is str and kind in TEXT_TYPES:
            part_type = part if len(part) == 2 else _object(part)
            if len(part_type) == 2 and type(text := part_type.get("text")) is str:
                return text
        return _object(part)
    # Servers that accept a bare string in a list read it as a text part.
    return part


def _arguments(value: Any) -> Any:
    """Returns the parsed arguments in a list of one; a text that is no JSON stays as it is."""
    if type(value) is not str:
        return [value]
    if not value:
        return [{}]
    if len(value) > _MAX_ARGUMENT_VALUES and exceeds_count(value.encode(errors="replace"), 0, _MAX_ARGUMENT_VALUES):
        raise TooManyValues(f"more than {_MAX_ARGUMENT_VALUES:,} keys and values in the arguments of a call")
    try:
        return [_decode(value)]
    except (ValueError, RecursionError):
        return value


def _calls(value: Any) -> Any:
    if type(value) is not list:
        return _value(value) or None
    calls: list[Any] = []
    for call in value:
        if type(call) is not dict:
            calls.append([call])
            continue
        canonical = _object(call)
        canonical.pop("index", None)
        if "function" in canonical:
            canonical.setdefault("type", "function")
        calls.append(canonical)
    return calls or None


def _drop_empty(value: Any) -> Any:
    return (_value(value) or None) if value else None


def _status(value: Any) -> Any:
    return None if value == "completed" else _value(value)


def _caller(value: Any) -> Any:
    return None if value == {"type": "direct"} else _value(value)


def _audio(value: Any) -> Any:
    return {"id": value["id"]} if type(value) is dict and value.get("id") else _value(value)


def _verbatim(value: Any) -> Any:
    return value


_RULES: dict[str, Callable[[Any], Any]] = {
    "content": _content,
    "output": _content,
    "arguments": _arguments,
    "tool_calls": _calls,
    "status": _status,
    "caller": _caller,
    "audio": _audio,
    **dict.fromkeys(_EMPTY_BY_DEFAULT, _drop_empty),
    **dict.fromkeys(_DATA, _verbatim),
}
