"""What a message is, whoever wrote it down: canonical content, message keys, the prefix chain.

A client sends the same history again and again, and its library may write it a little differently each time. The
canonical form is the same for all of these, and for nothing else (the *equivalences*):

- the order of a JSON object's names, escapes, white space; 1 and 1.0 and 1e0; of two equal names the last counts;
- cache breakpoints (`cache_control`, `prompt_cache_breakpoint`): clients move them from turn to turn;
- a field that is absent, null, or empty where libraries add it empty (`_IDLE`); content that is absent, null, an
  empty string, an empty list, or one empty text part;
- a string and one text part, whatever its protocol calls the part (`text`, `input_text`, `output_text`);
- tool arguments as JSON text or as an object, in any layout; no arguments at all as text and `{}`;
- what libraries derive from the rest and some send back (`_DERIVED`), the `index` that a streamed call had and the
  missing type `function` of a call, the data beside the id of a reply's `audio`, a `status` of `completed`, a `caller`
  of the kind `direct`.

What a dialect leaves out besides is said there. What a user's tool takes and gives (arguments, inputs, schemas, result
texts) is data: nothing is left out of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from accordion.dialects.spans import holds_more

BREAKPOINTS = ("cache_control", "prompt_cache_breakpoint")
TEXT_TYPES = frozenset({"text", "input_text", "output_text"})

# Written by the parse() helpers of the official SDKs, from what stands beside it.
_DERIVED = ("parsed", "parsed_arguments", "parsed_output")
_LEFT_OUT = frozenset((*BREAKPOINTS, *_DERIVED))
_DATA = ("input", "parameters", "input_schema", "output_schema", "schema", "attributes", "metadata")
_IDLE = (
    *("annotations", "logprobs", "citations", "summary", "refusal", "reasoning_content", "reasoning", "is_error"),
    *("pending_safety_checks", "acknowledged_safety_checks", "provider_specific_fields"),
)

# Keys and values in the arguments of a call. A model would need more tokens to write them than any may answer with.
_MOST = 50_000
# Above this, a float's digits are not those of the integer that it stands for.
_EXACT = 1e22


class TooMany(ValueError):
    """The arguments of a call hold more keys and values than are read."""


def number(text: str) -> float | int:
    """A number of JSON that has a fraction or an exponent; an int where that is what it is. Raises ValueError where it
    is out of range."""
    value = float(text)
    if value - value != 0.0:
        raise ValueError("a number is out of range")
    return int(value) if value.is_integer() and abs(value) < _EXACT else value


_decode = msgspec.json.Decoder(float_hook=number).decode
_encode = msgspec.json.Encoder(order="deterministic").encode


def read(raw: bytes | str) -> Any:
    """Decodes JSON so that equal numbers are equal. Raises ValueError, also where it is nested too deeply."""
    try:
        return _decode(raw)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error


def tidy(value: dict[str, Any]) -> dict[str, Any]:
    """The canonical form of one object of the protocol (a message, an item, a part). Raises ValueError if too deep."""
    try:
        return _object(value)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error


def plain(role: str, text: str) -> dict[str, Any]:
    """The canonical form of a message that is a role and a text and nothing else, as `tidy` makes it."""
    return {"role": role, "content": [text]} if text else {"role": role}


def breakpoints(wire: bytes) -> int:
    """How many cache breakpoints stand in a piece of JSON (names quoted within a text are escaped there)."""
    return wire.count(b'"cache_control"') + wire.count(b'"prompt_cache_breakpoint"')


def message_key(canonical: Any, secret: bytes, dialect: str) -> bytes:
    """The key of a message: SHA-256 of the tenant's `secret`, the `dialect` and the content, 32 bytes. Raises
    ValueError if too deep. The dialect is in it because what is kept under a key is the message's JSON.

    A key is never shown, so nobody could lengthen what was hashed; HMAC would cost five times as much.
    """
    try:
        hashed = hashlib.sha256(secret + dialect.encode())
        # Not one behind the other in new bytes: of a large message that would be a copy more.
        hashed.update(_encode(canonical))
        return hashed.digest()
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error


@lru_cache(1_024)
def chain_start(secret: bytes, dialect: str) -> bytes:
    """The chain key of an empty list, 32 bytes. It carries the tenant's `secret`; what follows inherits it."""
    return hashlib.sha256(secret + b"chain " + dialect.encode()).digest()


def chain_key(previous: bytes, key: bytes) -> bytes:
    """The chain key of a message: a hash of the chain so far with the message's key, 32 bytes."""
    return hashlib.sha256(previous + key).digest()


def _object(value: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, held in value.items():
        if held is None or name in _LEFT_OUT:
            continue
        rule = _RULES.get(name)
        if rule is not None:
            kept = rule(held)
            if kept is not None:
                out[name] = kept
        elif type(held) is str:
            out[name] = held
        else:
            out[name] = _value(held)
    return out


def _value(value: Any) -> Any:
    if type(value) is dict:
        return _object(value)
    if type(value) is list:
        return [_object(entry) if type(entry) is dict else entry for entry in value]
    return value


def _content(value: Any) -> Any:
    """Text as the list of its parts, plain strings where they are only text; None where there is nothing."""
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
            bare = part if len(part) == 2 else _object(part)
            if len(bare) == 2 and type(text := bare.get("text")) is str:
                return text
        return _object(part)
    # A bare string in a list is a text part to those who accept it.
    return part


def _arguments(value: Any) -> Any:
    """Parsed arguments in a list of one; a text that is no JSON as it stands."""
    if type(value) is not str:
        return [value]
    if not value:
        return [{}]
    if len(value) > _MOST and holds_more(value.encode(errors="replace"), 0, _MOST):
        raise TooMany(f"more than {_MOST:,} keys and values in the arguments of a call")
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
        kept = _object(call)
        kept.pop("index", None)
        if "function" in kept:
            kept.setdefault("type", "function")
        calls.append(kept)
    return calls or None


def _idle(value: Any) -> Any:
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
    **dict.fromkeys(_IDLE, _idle),
    **dict.fromkeys(_DATA, _verbatim),
}
