"""Records to bytes and back: msgpack by msgspec, tolerant of what another version of the program wrote.

While a new version is rolled out, workers of two versions read each other's records. Fields that this version
does not know are passed over. Fields that it misses take their default, or the empty value of their type.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

T = TypeVar("T")

_ENCODER = msgspec.msgpack.Encoder()
_UNTYPED = msgspec.msgpack.Decoder()
_EMPTY: Mapping[type, object] = types.MappingProxyType(
    {str: "", bytes: b"", int: 0, float: 0.0, bool: False, tuple: (), list: [], dict: {}, frozenset: frozenset()}
)


def encode(record: object) -> bytes:
    """A dataclass (or any value that msgspec knows) as msgpack. Fields are written by name."""
    return _ENCODER.encode(record)


def decoder(kind: type[T]) -> Callable[[bytes], T]:
    """Returns the function that reads `kind` back. Make it once and keep it.

    The function raises ValueError where the bytes are not a record of this kind at all.
    """
    exact = msgspec.msgpack.Decoder(kind)

    def decode(data: bytes) -> T:
        try:
            return exact.decode(data)
        except msgspec.ValidationError:
            return _lenient(data, kind)
        except msgspec.MsgspecError as error:
            raise ValueError(f"not a {kind.__name__}: {error}") from error

    return decode


def _lenient(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.convert(_completed(_UNTYPED.decode(data), kind), kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ValueError(f"not a {kind.__name__}: {error}") from error


def _completed(value: Any, kind: Any) -> Any:
    """`value` with the required fields that it misses filled in, wherever `kind` has dataclasses in it."""
    if get_origin(kind) in (Union, types.UnionType):
        records = [option for option in get_args(kind) if dataclasses.is_dataclass(option)]
        return _completed(value, records[0]) if records and value is not None else value
    if get_origin(kind) is tuple and isinstance(value, list):
        return [_completed(entry, get_args(kind)[0]) for entry in value] if get_args(kind)[1:] == (...,) else value
    if not dataclasses.is_dataclass(kind) or not isinstance(value, dict):
        return value
    hints = get_type_hints(kind)
    whole = {name: _completed(held, hints[name]) for name, held in value.items() if name in hints}
    for field in dataclasses.fields(kind):
        optional = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if field.name not in whole and not optional:
            whole[field.name] = _empty(hints[field.name])
    return whole


def _empty(kind: Any) -> Any:
    """What stands for a value that nobody wrote. Raises ValueError where the type has nothing empty."""
    origin = get_origin(kind)
    if origin is Literal:
        return get_args(kind)[0]
    if origin in (Union, types.UnionType) and type(None) in get_args(kind):
        return None
    if dataclasses.is_dataclass(kind):
        return _completed({}, kind)
    if (origin or kind) in _EMPTY:
        return _EMPTY[origin or kind]
    raise ValueError(f"a required field of type {kind} is missing")
