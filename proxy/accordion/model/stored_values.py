"""Decodes values of the store, one of which may be spoiled: by bit rot, or by a copy that was interrupted."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

_log = logging.getLogger("accordion")
_T = TypeVar("_T")
_logged: set[str] = set()


def decode_stored(decoder: msgspec.msgpack.Decoder[_T] | msgspec.json.Decoder[_T], value: bytes) -> _T | None:
    """Returns the value; None if it cannot be decoded, which the log says once for each type of value."""
    try:
        return decoder.decode(value)
    except (msgspec.MsgspecError, ValueError) as error:
        kind = getattr(decoder.type, "__name__", str(decoder.type))
        if kind not in _logged:
            _logged.add(kind)
            _log.warning("a value of the store (%s) cannot be decoded, and is left out: %s", kind, error)
        return None


def decode_all(decoder: msgspec.msgpack.Decoder[_T], values: Iterable[bytes]) -> Iterator[_T]:
    """Yields the values that can be decoded."""
    for value in values:
        if (decoded := decode_stored(decoder, value)) is not None:
            yield decoded
