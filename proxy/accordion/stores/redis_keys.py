"""The names of keys in Redis or Valkey, by which a cluster puts the keys of a collection on one shard.

    accordion:{collection}:name       a value
    accordion:{collection}#log:name   a log (a stream)
    accordion:{collection}#lock:name  a lock
    accordion:{collection}#index      the names of the collection's values (a sorted set, all scores 0)

The text between the braces, the hash tag, decides the shard. The hash tag of a key without a collection is its name
after a `=`: `accordion:{=name}:`.
"""

from __future__ import annotations

from accordion.model.ports import Key
from accordion.stores.batches import name_bytes

_ESCAPED = str.maketrans({"%": "%25", "{": "%7B", "}": "%7D", "=": "%3D"})


def shard_tag(key: Key) -> bytes:
    """Returns the common start of all keys of a collection, with the hash tag."""
    has_no_collection = not key.collection
    escaped = (key.name if has_no_collection else key.collection).translate(_ESCAPED)
    return b"accordion:{%s%s}" % (b"=" if has_no_collection else b"", name_bytes(escaped))


def value_key(key: Key) -> bytes:
    """Returns the name of the key's value."""
    return shard_tag(key) + b":" + _tail(key)


def log_key(key: Key) -> bytes:
    """Returns the name of the key's log."""
    return shard_tag(key) + b"#log:" + _tail(key)


def lock_key(key: Key) -> bytes:
    """Returns the name of the key's lock."""
    return shard_tag(key) + b"#lock:" + _tail(key)


def index_key(key: Key) -> bytes:
    """Returns the name of the index of the key's collection."""
    return shard_tag(key) + b"#index"


def _tail(key: Key) -> bytes:
    return name_bytes(key.name) if key.collection else b""
