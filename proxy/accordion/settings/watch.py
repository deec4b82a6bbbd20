"""Settings that follow their file: look, read again, check, swap; a bad file changes nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from os.path import exists, isfile
from pathlib import Path
from typing import Any

import msgspec

from accordion.core.errors import ConfigError
from accordion.settings.load import build, find, read
from accordion.settings.values import Settings

RESTART = (
    "server.host",
    "server.port",
    "server.workers",
    "server.idle_seconds",
    "server.head_seconds",
    "server.body_seconds",
    "server.shutdown_seconds",
    "server.tenant_key",
    "store.url",
    "store.timeout_seconds",
    "store.write_timeout_seconds",
    "store.retention_days",
    "store.spool",
    "store.spool_bytes",
    "store.session_bytes",
    "archive.key",
    "archive.max_bytes",
    "archive.retention_days",
    "archive.record",
    "limits.body_cache_bytes",
    "limits.messages_per_request",
    "limits.count_cache_entries",
    "limits.sessions_in_memory",
    "limits.exchanges_per_session",
    "limits.fold_cache_bytes",
    "limits.reply_cache_bytes",
    "limits.cache_bytes",
    "summaries.max_concurrent",
    "memory.enabled",
)
"""Keys whose change has its effect at the next start: what they shape keeps what it knows while the proxy serves."""

_Stamp = tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What came of reading the file again: the settings in force, why the file was not taken, what in it was not."""

    settings: Settings
    problem: ConfigError | None = None
    ignored: tuple[str, ...] = ()
    """Keys of RESTART that the file now gives another value; `settings` keeps the one in use."""


class SettingsFile:
    """The settings of one process and the file behind them. Not for several threads at once.

    Can be pickled: who gets it has the settings in force, and goes on following the file where this one is. What is no
    regular file, such as a shell's `<(...)`, gives what it holds only once, and may keep a reader waiting: it is not
    read again.
    """

    def __init__(
        self, path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, object] | None = None
    ) -> None:
        """Reads the file as `load` does, with its ConfigError."""
        self.path, self._required = find(path, environ)
        self._environ = dict(environ)
        self._overrides = dict(overrides or {})
        # These two never fail, as the methods of Path may.
        self._once = exists(self.path) and not isfile(self.path)
        self._digest = b""
        self._filled = False
        self._seen = self._settled = self._stamp()
        self.settings = self._read()

    def changed(self) -> bool:
        """Whether the file holds something that has not been read; for asking about every second.

        A change counts when it is seen for the second time, so that a file is not read while it is being written.
        """
        if self._once:
            return False
        now, before = self._stamp(), self._seen
        self._seen = now
        if now == self._settled or now != before:
            return False
        try:
            same = _digest(read(self.path, self._required)) == self._digest
        except ConfigError:
            same = False
        if same:
            self._settled = now
        return not same

    def reload(self) -> Reloaded:
        """Reads the file again, whether it has changed or not. Never raises."""
        if self._once:
            return Reloaded(
                self.settings, ConfigError(f"{self.path} is not a regular file, so it is read only once, at the start")
            )
        self._seen = self._settled = self._stamp()
        try:
            fresh = self._read()
        except ConfigError as problem:
            return Reloaded(self.settings, problem)
        except Exception as error:
            # What nobody thought of must not end the following. Its words might show a value.
            return Reloaded(self.settings, ConfigError(f"the file cannot be read ({type(error).__name__})"))
        ignored = tuple(key for key in RESTART if _get(fresh, key) != _get(self.settings, key))
        for key in ignored:
            section, name = key.split(".")
            kept = msgspec.structs.replace(getattr(fresh, section), **{name: _get(self.settings, key)})
            fresh = msgspec.structs.replace(fresh, **{section: kept})
        self.settings = fresh
        return Reloaded(fresh, None, ignored)

    def _read(self) -> Settings:
        data = read(self.path, self._required)
        self._digest = _digest(data)
        if self._filled and not data.strip():
            raise ConfigError("the file is empty; to use the defaults, keep a section such as `server:` in it")
        settings = build(data, self._environ, self._overrides)
        # A file that was there once is missed when it goes, and what it held when that goes: without it, proxy keys
        # would be gone too.
        self._required, self._filled = self._required or bool(data), bool(data.strip())
        return settings

    def _stamp(self) -> _Stamp:
        try:
            stat = self.path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_ino, stat.st_size


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _get(settings: Settings, key: str) -> Any:
    return reduce(getattr, key.split("."), settings)
