"""The shared store: Redis (7.0 or later) or Valkey, one server or a cluster. Importing this module imports redis-py.

Theory of operation. Keys are named so that a cluster puts those of a collection on one shard:

    accordion:{collection}:name       a value
    accordion:{collection}#log:name   a log (a stream)
    accordion:{collection}#lock:name  a lock
    accordion:{collection}#index      the names of the collection's values (a sorted set, all scores 0)

The text between the braces, the hash tag, decides the shard. The hash tag of a key without a collection is its name
after a `=`: `accordion:{=name}:`. A value is a string, a log is a stream, and the names of a collection's values are in
a sorted set, its index. A Lua script changes a value and its index together (see redis_scripts.py). Keys of one
collection have the same hash tag, so that all keys of a script are on one shard. A batch is sent as one pipeline.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from redis.asyncio import ConnectionPool, Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisClusterException, RedisError

from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Append, Key, Put
from accordion.stores import redis_scripts as scripts
from accordion.stores.batches import LogAppend, name_bounds, name_bytes, name_text, split_batch

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


_FAILURES = (RedisError, RedisClusterException, OSError)
"""What redis-py raises if a server, or a whole cluster, cannot be reached; TimeoutError is an OSError."""

T = TypeVar("T")

CONNECTIONS = 32
"""Calls that a worker makes at the same time, each on its own connection; more calls wait, within their time-out."""

PUTS_AT_ONCE = 100
"""Values that one script writes at most, so that it does not block the server for long."""


class RedisStore:
    """A KeyValueStore in Redis or Valkey, by redis-py's asyncio client.

    Every call, including the connection, takes at most `timeout` seconds and is not repeated. `url` is a URL of
    redis-py (`redis://`, `rediss://`). Raises ValueError or TypeError for a malformed URL and for an option that
    redis-py does not have.
    """

    def __init__(self, url: str, *, timeout: float, cluster: bool = False) -> None:
        self._timeout = timeout
        self._closed = False
        self._available = True
        options: dict[str, Any] = {
            # `_with_timeout` limits the time. With a time-out of its own (by default five seconds) redis-py writes by
            # `asyncio.wait_for`, which on Python 3.11 may swallow a caller's time-out.
            "socket_timeout": None,
            "socket_connect_timeout": timeout,
            "protocol": 2,
            # A cluster's client reads the cluster's layout on a connection of its own.
            "max_connections": CONNECTIONS + 4,
            # The server may have done an append although the answer was lost: repeating it could add the entry twice.
            "retry": Retry(NoBackoff(), 0),
        }
        self._cluster = cluster
        self._call_limit = asyncio.Semaphore(CONNECTIONS)
        self._client: Any
        if cluster:
            # By default every fifth answer that a slot is on another server closes all connections, also those on which
            # others wait. The client remembers the slot's server without that.
            self._client = RedisCluster.from_url(url, **options, reinitialize_steps=0)
        else:
            pool = ConnectionPool.from_url(url, **options)
            # Only a connection checks all options. Creating it does not connect it.
            pool.connection_class(**pool.connection_kwargs)
            self._client = Redis.from_pool(pool)

    async def put(self, key: Key, value: bytes, *, ttl: float | None = None) -> None:
        """See KeyValueStore."""
        await self.write((Put(key, value, ttl),))

    async def put_if_absent(self, key: Key, value: bytes, *, ttl: float | None = None) -> bytes:
        """See KeyValueStore."""
        put = Put(key, value, ttl, if_absent=True)
        if key.collection:
            existing = await self._with_timeout(self._run, *_put_if_absent(put))
        else:
            existing = await self._with_timeout(self._client.set, value_key(key), value, **_set_options(put))
        return value if existing is None else bytes(existing)

    async def get(self, key: Key) -> bytes | None:
        """See KeyValueStore."""
        value: bytes | None = await self._with_timeout(self._client.get, value_key(key))
        return value

    async def get_many(self, keys: Sequence[Key]) -> list[bytes | None]:
        """See KeyValueStore."""
        if not keys:
            return []
        names = [value_key(key) for key in keys]
        mget = self._client.mget_nonatomic if self._cluster else self._client.mget
        values: list[bytes | None] = await self._with_timeout(mget, names)
        return values

    async def delete(self, keys: Sequence[Key]) -> int:
        """See KeyValueStore."""
        groups: dict[bytes, list[Key]] = {}
        for key in keys:
            groups.setdefault(index_key(key), []).append(key)
        calls = [_delete(index, group) for index, group in groups.items()]
        return sum(await self._with_timeout(self._run_pipelines, (), calls)) if calls else 0

    async def append(
        self, key: Key, values: Sequence[bytes], *, keep: int | None = None, ttl: float | None = None
    ) -> int:
        """See KeyValueStore. Without values it changes nothing, and returns -1 if there is no log."""
        if not values:
            return await self._with_timeout(self._last_position, key)
        return _position(await self._with_timeout(self._run, *_append(LogAppend(key, keep, ttl, list(values)))))

    async def read(self, key: Key, start: int = 0, limit: int | None = None) -> list[tuple[int, bytes]]:
        """See KeyValueStore."""
        if limit is not None and limit <= 0:
            return []
        if start < 0:
            newest = await self._with_timeout(self._client.xrevrange, log_key(key), count=-start)
            entries = newest[::-1][:limit]
        else:
            entries = await self._with_timeout(self._client.xrange, log_key(key), min=f"0-{start + 1}", count=limit)
        return [(_position(entry), fields[b"v"]) for entry, fields in entries]

    async def scan(
        self, collection: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        """See KeyValueStore."""
        return await self._with_timeout(self._scan, collection, prefix, after, limit)

    async def write(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
        """See KeyValueStore. One round trip; each server writes in the order of collections, keys without one last."""
        puts, log_appends = split_batch(batch)
        groups: dict[bytes, list[Put]] = {}
        uncollected: list[Put] = []
        conditional: list[Put] = []
        for put in puts:
            if not put.key.collection:
                uncollected.append(put)
            elif put.if_absent:
                conditional.append(put)
            else:
                groups.setdefault(index_key(put.key), []).append(put)
        calls = [
            _put(index, group[at : at + PUTS_AT_ONCE])
            for index, group in groups.items()
            for at in range(0, len(group), PUTS_AT_ONCE)
        ]
        put_call_count = len(calls)
        calls += [_put_if_absent(put) for put in conditional]
        calls += [_append(log_append) for log_append in log_appends]
        if not calls and not uncollected:
            return {}
        if len(calls) == 1 and not uncollected:
            results = [await self._with_timeout(self._run, *calls[0])]
        else:
            results = await self._with_timeout(self._run_pipelines, uncollected, calls)
        existing = [
            *zip(conditional, results[put_call_count:], strict=False),
            *zip(uncollected, results[len(calls) :], strict=True),
        ]
        return {put.key: bytes(value) for put, value in existing if put.if_absent and value is not None}

    @asynccontextmanager
    async def lock(self, key: Key, *, lease: float) -> AsyncIterator[bool]:
        """See KeyValueStore. If the release fails, the lock ends with its lease."""
        token, name = secrets.token_bytes(16), lock_key(key)
        is_acquired = bool(
            await self._with_timeout(self._client.set, name, token, nx=True, px=_whole_milliseconds(lease))
        )
        try:
            yield is_acquired
        finally:
            if is_acquired:
                with suppress(StoreUnavailable):
                    await self._with_timeout(self._run, scripts.UNLOCK, (name,), (token,))

    @property
    def is_available(self) -> bool:
        """See KeyValueStore."""
        return self._available

    async def ping(self) -> None:
        """See KeyValueStore."""
        await self._with_timeout(self._client.ping)

    async def close(self) -> None:
        """See KeyValueStore."""
        if not self._closed:
            self._closed, self._available = True, False
            with suppress(*_FAILURES):
                async with asyncio.timeout(self._timeout):
                    await self._client.aclose()

    async def _with_timeout(self, call: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        try:
            async with asyncio.timeout(self._timeout), self._call_limit:
                if self._cluster:
                    # A client that does not know the cluster's layout yet sends a command to any server.
                    await self._client.initialize()
                result = await call(*args, **options)
        except TimeoutError as error:
            self._available = False
            raise StoreUnavailable(f"Redis did not answer within {self._timeout:g} s") from error
        except _FAILURES as error:
            self._available = False
            raise StoreUnavailable(f"Redis: {str(error) or type(error).__name__}") from error
        self._available = True
        return result

    async def _run(self, script: scripts.Script, keys: Sequence[bytes], args: Sequence[bytes | str]) -> Any:
        try:
            return await self._client.execute_command("EVALSHA", script.sha, len(keys), *keys, *args)
        except NoScriptError:
            return await self._client.execute_command("EVAL", script.text, len(keys), *keys, *args)

    async def _run_pipelines(self, uncollected: Sequence[Put], calls: Sequence[_Call]) -> list[Any]:
        """Sends calls of scripts and puts without a collection; returns the results in this order."""
        pipeline = self._client.pipeline(transaction=False)
        # Puts without a collection come last: lists of their keys are written before, so that each can be found.
        for script, keys, args in calls:
            pipeline.execute_command("EVALSHA", script.sha, len(keys), *keys, *args)
        for put in uncollected:
            pipeline.set(value_key(put.key), put.value, **_set_options(put))
        results: list[Any] = await pipeline.execute(raise_on_error=False)
        for at, result in enumerate(results):
            if isinstance(result, NoScriptError) and at < len(calls):
                results[at] = await self._run(*calls[at])
            elif isinstance(result, Exception):
                raise result
        return results

    async def _last_position(self, key: Key) -> int:
        if not await self._client.exists(log_key(key)):
            return -1
        return _position((await self._client.xinfo_stream(log_key(key)))["last-generated-id"])

    async def _scan(self, collection: str, prefix: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        index = index_key(Key(collection, ""))
        start, is_excluded, end = name_bounds(prefix, after)
        low = (b"(" if is_excluded else b"[") + start
        rows: list[tuple[str, bytes]] = []
        while (remaining := limit - len(rows)) > 0:
            names = await self._client.zrangebylex(index, low, b"(" + end, 0, remaining)
            if not names:
                break
            keys = [value_key(Key(collection, name_text(name))) for name in names]
            values = await self._client.mget(keys)
            rows += [(name_text(name), value) for name, value in zip(names, values, strict=True) if value is not None]
            expired = [at for at, value in enumerate(values) if value is None]
            if expired:
                await self._run(scripts.FORGET, [index, *(keys[at] for at in expired)], [names[at] for at in expired])
            low = b"(" + names[-1]
        return rows


_Call = tuple[scripts.Script, Sequence[bytes], Sequence[bytes | str]]


def _whole_milliseconds(ttl: float | None) -> int | None:
    """Converts seconds to whole milliseconds, at least one, since Redis rejects less."""
    return None if ttl is None else max(1, math.ceil(ttl * 1000))


def _milliseconds(ttl: float | None) -> str:
    return "" if ttl is None else str(_whole_milliseconds(ttl))


def _set_options(put: Put) -> dict[str, Any]:
    """Returns the options of a SET command; a put with `if_absent` is answered with the existing value."""
    return {"px": _whole_milliseconds(put.ttl), "nx": put.if_absent, "get": put.if_absent}


def _put_if_absent(put: Put) -> _Call:
    args = (shard_tag(put.key) + b":", name_bytes(put.key.name), put.value, _milliseconds(put.ttl))
    return scripts.PUT_IF_ABSENT, (index_key(put.key), value_key(put.key)), args


def _put(index: bytes, group: Sequence[Put]) -> _Call:
    args: list[bytes | str] = [shard_tag(group[0].key) + b":"]
    for put in group:
        args += (name_bytes(put.key.name), put.value, _milliseconds(put.ttl))
    return scripts.PUT, [index, *(value_key(put.key) for put in group)], args


def _delete(index: bytes, group: Sequence[Key]) -> _Call:
    keys = [index, *(name for key in group for name in (value_key(key), log_key(key)))]
    return scripts.DELETE, keys, [name_bytes(key.name) for key in group]


def _append(log_append: LogAppend) -> _Call:
    keep = "" if log_append.keep is None else str(log_append.keep)
    return scripts.APPEND, (log_key(log_append.key),), (keep, _milliseconds(log_append.ttl), *log_append.values)


def _position(entry: bytes | str) -> int:
    """Returns the position of an entry with the id `0-N`, where N counts from 1."""
    text = entry.decode() if isinstance(entry, bytes) else entry
    return int(text.partition("-")[2]) - 1
