"""Reloads settings when their file changes. An invalid file changes nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from os.path import exists, isfile
from pathlib import Path
from typing import Any

import msgspec

from accordion.config.checks import find_hints
from accordion.config.load import find, parse, read
from accordion.config.settings import Settings
from accordion.model.errors import ConfigError

RESTART = (
    "server.host",
    "server.port",
    "server.workers",
    "server.idle_seconds",
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
    "limits.sessions_in_memory",
    "limits.fold_cache_bytes",
    "limits.reply_cache_bytes",
    "limits.cache_bytes",
    "summaries.max_concurrent",
    "memory.enabled",
)
"""Keys whose change takes effect at the next start, since the objects that they configure keep their state."""

_Stamp = tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """The result of a reload: the settings in force, the error that prevented a change, and the ignored keys."""

    settings: Settings
    problem: ConfigError | None = None
    ignored: tuple[str, ...] = ()
    """Keys of RESTART that have another value in the file; `settings` keeps the current one."""


class SettingsFile:
    """The settings of one process and their file. Not safe for several threads at once.

    It can be pickled: the copy has the current settings and detects further changes of the file. A path that is no
    regular file, such as a shell's `<(...)`, has its content only once and may block a reader, so it is read only once.
    """

    def __init__(
        self,
        path: Path | None,
        environ: Mapping[str, str],
        overrides: Mapping[str, object] | None = None,
        *,
        reads_folder: bool = True,
    ) -> None:
        """Reads the file as `load` does, with its ConfigError. `reads_folder`: see `find`."""
        self.path, self._required = find(path, environ, reads_folder=reads_folder)
        self._environ = dict(environ)
        self._overrides = dict(overrides or {})
        # These two functions never fail, unlike the methods of Path.
        self._is_read_once = exists(self.path) and not isfile(self.path)
        self._digest = b""
        self._had_content = False
        self._last_stamp = self._read_stamp = self._stamp()
        self._removed_keys: tuple[str, ...] = ()
        self.settings = self._read()

    def find_hints(self) -> tuple[str, ...]:
        """Returns the hints about the settings, and a sentence for each key of the file that is no longer a setting."""
        return (*self._removed_keys, *find_hints(self.settings))

    def has_changed(self) -> bool:
        """Whether the file has content that was not read yet; to be called about every second.

        A change counts when two calls see it, so that a file is not read while it is being written.
        """
        if self._is_read_once:
            return False
        now, before = self._stamp(), self._last_stamp
        self._last_stamp = now
        if now == self._read_stamp or now != before:
            return False
        try:
            same = _digest(read(self.path, self._required)) == self._digest
        except ConfigError:
            same = False
        if same:
            self._read_stamp = now
        return not same

    def reload(self) -> ReloadResult:
        """Reads the file again, even if it has not changed. Never raises."""
        if self._is_read_once:
            return ReloadResult(
                self.settings, ConfigError(f"{self.path} is not a regular file, so it is read only once, at the start")
            )
        self._last_stamp = self._read_stamp = self._stamp()
        try:
            changed = self._read()
        except ConfigError as problem:
            return ReloadResult(self.settings, problem)
        except Exception as error:
            # An unexpected error must not end the reloads. Its text might contain a value.
            return ReloadResult(self.settings, ConfigError(f"the file cannot be read ({type(error).__name__})"))
        ignored = tuple(key for key in RESTART if _get(changed, key) != _get(self.settings, key))
        for key in ignored:
            section, name = key.split(".")
            unchanged = msgspec.structs.replace(getattr(changed, section), **{name: _get(self.settings, key)})
            changed = msgspec.structs.replace(changed, **{section: unchanged})
        self.settings = changed
        return ReloadResult(changed, None, ignored)

    def _read(self) -> Settings:
        data = read(self.path, self._required)
        self._digest = _digest(data)
        if self._had_content and not data.strip():
            raise ConfigError("the file is empty; to use the defaults, keep a section such as `server:` in it")
        settings, self._removed_keys = parse(data, self._environ, self._overrides)
        # A file that existed must not disappear, and one with content must not become empty: the proxy keys would be
        # lost too.
        self._required, self._had_content = self._required or bool(data), bool(data.strip())
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
