"""Helpers that all stores share: splitting a batch, encoding names, and bounds for listing a collection."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from accordion.model.ports import Append, Key, Put


class LogAppend(msgspec.Struct):
    """Entries to add to the end of one log in order, with the same `keep` and `ttl`."""

    key: Key
    keep: int | None
    ttl: float | None
    values: list[bytes] = []


def split_batch(batch: Sequence[Put | Append]) -> tuple[list[Put], list[LogAppend]]:
    """Splits a batch into its effective puts and the runs of entries of each log.

    Of several puts of a key the last one stays, but a put with `if_absent` never replaces an earlier one. A value and a
    log under the same key are independent, so their order does not matter.
    """
    puts: dict[Key, Put] = {}
    log_appends: list[LogAppend] = []
    latest: dict[Key, LogAppend] = {}
    for write in batch:
        if isinstance(write, Put):
            if not (write.if_absent and write.key in puts):
                puts[write.key] = write
            continue
        log_append = latest.get(write.key)
        if log_append is None or log_append.keep != write.keep or log_append.ttl != write.ttl:
            log_append = latest[write.key] = LogAppend(write.key, write.keep, write.ttl)
            log_appends.append(log_append)
        log_append.values.append(write.value)
    return list(puts.values()), log_appends


def name_bytes(name: str) -> bytes:
    """Encodes a name for a store. UTF-8 sorts as code points do; lone surrogates are encoded like any code point."""
    return name.encode("utf-8", "surrogatepass")


def name_text(name: bytes) -> str:
    """Decodes a stored name."""
    return name.decode("utf-8", "surrogatepass")


def name_bounds(prefix: str, after: str) -> tuple[bytes, bool, bytes]:
    """Returns the lower bound of names, whether it is itself excluded, and the exclusive upper bound.

    The upper bound is the prefix and 0xff, a byte that never occurs in UTF-8.
    """
    low, after_bytes = name_bytes(prefix), name_bytes(after)
    return (after_bytes, True, low + b"\xff") if after_bytes >= low else (low, False, low + b"\xff")
