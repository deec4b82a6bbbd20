"""How keys are called in Redis or Valkey, so that a cluster keeps together what belongs together.

    accordion:{collection}:name       a value
    accordion:{collection}#log:name   a log (a stream)
    accordion:{collection}#lock:name  a lock
    accordion:{collection}#index      the names of the collection's values (a sorted set, all scores 0)

What stands between the braces decides the shard. A key without a collection has a hash tag of its own name, led by
`=`: `accordion:{=name}:`.
"""

from __future__ import annotations

from accordion.model.ports import Key
from accordion.stores.batches import name_bytes

_ESCAPED = str.maketrans({"%": "%25", "{": "%7B", "}": "%7D", "=": "%3D"})


def shard_tag(key: Key) -> bytes:
    """The part that all keys of one shard share."""
    alone = not key.collection
    quoted = (key.name if alone else key.collection).translate(_ESCAPED)
    return b"accordion:{%s%s}" % (b"=" if alone else b"", name_bytes(quoted))


def value_key(key: Key) -> bytes:
    """Where the value is."""
    return shard_tag(key) + b":" + _tail(key)


def log_key(key: Key) -> bytes:
    """Where the log is."""
    return shard_tag(key) + b"#log:" + _tail(key)


def lock_key(key: Key) -> bytes:
    """Where the lock is."""
    return shard_tag(key) + b"#lock:" + _tail(key)


def index_key(key: Key) -> bytes:
    """Where the names of the key's collection are."""
    return shard_tag(key) + b"#index"


def _tail(key: Key) -> bytes:
    return name_bytes(key.name) if key.collection else b""
