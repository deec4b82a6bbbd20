"""Opens the store that a URL names."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from accordion.model.errors import ConfigError
from accordion.model.ports import KeyValueStore
from accordion.stores.disk_reserve import DiskReserve
from accordion.stores.memory_store import InMemoryStore
from accordion.stores.sqlite import SqliteStore

_REDIS = {"redis": "redis", "valkey": "redis", "rediss": "rediss", "valkeys": "rediss"}
"""Schemes of URLs, with redis-py's names for them."""

_OPTIONS = frozenset({"client_name", "db", "health_check_interval", "password", "socket_keepalive", "username"})
"""Options that are allowed in a URL's query, in addition to those that start with `ssl_`.

redis-py's other options would break the store: answers as text, writes sent twice, time-outs without effect.
"""


def open_store(url: str, *, timeout: float) -> KeyValueStore:
    """Returns the store that `url` names; it connects at its first call. Each call takes at most `timeout` seconds.

    `sqlite:///relative/path`, `sqlite:////absolute/path`, `memory://`, `redis://host:port/db`, `rediss://` (TLS),
    `valkey://`, `valkeys://`, and for a cluster `redis+cluster://host:port` and the like. Raises ConfigError;
    the message never repeats the URL, which may hold a password.
    """
    scheme, _, rest = url.partition("://")
    if scheme == "memory":
        return InMemoryStore()
    if scheme == "sqlite":
        return _open_sqlite(rest, timeout)
    if (server := _redis_server(url)) is not None:
        return _open_redis(*server, timeout)
    raise ConfigError(
        "unknown kind of store: write sqlite:///path, redis://host:port, valkey://host:port or memory://",
        path="$.store.url",
    )


def _redis_server(url: str) -> tuple[str, bool] | None:
    """Returns redis-py's URL of a server and whether it is a cluster; None for another kind of store."""
    scheme, _, rest = url.partition("://")
    name, _, kind = scheme.partition("+")
    return (f"{_REDIS[name]}://{rest}", bool(kind)) if name in _REDIS and kind in ("", "cluster") else None


def _open_sqlite(rest: str, timeout: float) -> KeyValueStore:
    path = unquote(rest[1:])
    if not rest.startswith("/") or not path or "\0" in path:
        raise ConfigError(
            "write sqlite:///relative/path or sqlite:////absolute/path (three or four slashes)", path="$.store.url"
        )
    return SqliteStore(Path(path), timeout=timeout, reserve=DiskReserve(Path(path)))


def _open_redis(url: str, cluster: bool, timeout: float) -> KeyValueStore:
    # Importing redis-py takes some tenths of a second; only users of Redis should wait for it.
    from redis.exceptions import RedisClusterException, RedisError  # noqa: PLC0415

    from accordion.stores.redis import RedisStore  # noqa: PLC0415

    try:
        _refuse_harmful_options(url)
        return RedisStore(url, timeout=timeout, cluster=cluster)
    except (ValueError, TypeError, RedisError, RedisClusterException) as error:
        raise ConfigError(
            "not a URL of Redis or Valkey: write redis://user:password@host:port/number (a cluster has no number). "
            "Behind `?` there may be "
            f"{', '.join(sorted(_OPTIONS))}, and with rediss:// or valkeys:// redis-py's `ssl_…`",
            path="$.store.url",
        ) from error


def _refuse_harmful_options(url: str) -> None:
    """Raises ValueError for a malformed database number, which redis-py reads as 0, and for harmful options."""
    parts = urlsplit(url)
    if not re.fullmatch("/?[0-9]*/?", parts.path):
        raise ValueError(parts.path)
    for name, _ in parse_qsl(parts.query, keep_blank_values=True):
        if name not in _OPTIONS and not name.startswith("ssl_"):
            raise ValueError(name)
