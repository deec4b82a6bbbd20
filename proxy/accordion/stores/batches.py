"""What the stores share: a batch taken apart, and the bounds of names in a collection."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from accordion.model.ports import Append, Key, Put


class LogAppend(msgspec.Struct):
    """Entries that go to the end of one log, one after the other, under the same terms."""

    key: Key
    keep: int | None
    ttl: float | None
    values: list[bytes] = []


def split_batch(batch: Sequence[Put | Append]) -> tuple[list[Put], list[LogAppend]]:
    """The writes that remain of a batch: the last put of each key, or the first where the others give way to it, and
    the entries of each log in runs.

    A value and a log under the same key do not know each other, so their order does not matter.
    """
    puts: dict[Key, Put] = {}
    runs: list[LogAppend] = []
    latest: dict[Key, LogAppend] = {}
    for write in batch:
        if isinstance(write, Put):
            if not (write.if_absent and write.key in puts):
                puts[write.key] = write
            continue
        run = latest.get(write.key)
        if run is None or run.keep != write.keep or run.ttl != write.ttl:
            run = latest[write.key] = LogAppend(write.key, write.keep, write.ttl)
            runs.append(run)
        run.values.append(write.value)
    return list(puts.values()), runs


def name_bytes(name: str) -> bytes:
    """A name as it is stored. UTF-8 sorts like code points; lone surrogates are written like any other."""
    return name.encode("utf-8", "surrogatepass")


def name_text(name: bytes) -> str:
    """The other way round."""
    return name.decode("utf-8", "surrogatepass")


def name_bounds(prefix: str, after: str) -> tuple[bytes, bool, bytes]:
    """Lowest name, whether it is itself left out, and the name that all are below. 0xff never occurs in UTF-8."""
    low, behind = name_bytes(prefix), name_bytes(after)
    return (behind, True, low + b"\xff") if behind >= low else (low, False, low + b"\xff")
