"""From a URL to a store."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from proxy.core.errors import ConfigError
from proxy.core.ports import Store
from proxy.storage.ephemeral import EphemeralStore
from proxy.storage.sqlite import SqliteStore

_REDIS = {"redis": "redis", "valkey": "redis", "rediss": "rediss", "valkeys": "rediss"}
"""Schemes, and what redis-py calls them."""


def open_store(url: str, *, timeout: float) -> Store:
    """The store that `url` names; connects at its first call. Every call takes at most `timeout` seconds.

    `sqlite:///relative/path`, `sqlite:////absolute/path`, `memory://`, `redis://host:port/db`, `rediss://` (TLS),
    `valkey://`, `valkeys://`, and for a cluster `redis+cluster://host:port` and the like. Raises ConfigError;
    the message never repeats the URL, which may hold a password.
    """
    scheme, _, rest = url.partition("://")
    if scheme == "memory":
        return EphemeralStore()
    if scheme == "sqlite":
        return _sqlite(rest, timeout)
    name, _, kind = scheme.partition("+")
    if name in _REDIS and kind in ("", "cluster"):
        return _redis(f"{_REDIS[name]}://{rest}", timeout, cluster=bool(kind))
    raise ConfigError(
        "unknown kind of store: write sqlite:///path, redis://host:port, valkey://host:port or memory://",
        path="$.store",
    )


def _sqlite(rest: str, timeout: float) -> Store:
    if not rest.startswith("/") or rest == "/":
        raise ConfigError(
            "write sqlite:///relative/path or sqlite:////absolute/path (three or four slashes)", path="$.store"
        )
    return SqliteStore(Path(unquote(rest[1:])), timeout=timeout)


def _redis(url: str, timeout: float, *, cluster: bool) -> Store:
    # redis-py takes some tenths of a second to import, which only those pay who use it.
    from proxy.storage.redis import RedisStore  # noqa: PLC0415

    try:
        return RedisStore(url, timeout=timeout, cluster=cluster)
    except (ValueError, TypeError) as error:
        raise ConfigError("not a URL that redis-py understands", path="$.store") from error
