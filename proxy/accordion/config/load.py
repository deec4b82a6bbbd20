"""Loads and checks settings from a file, the environment and the command line, and reloads them when the file changes.

An invalid file changes nothing while a process runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from os.path import exists, isfile
from pathlib import Path
from typing import Any, get_args

import msgspec

from accordion.config.checks import check, find_hints
from accordion.config.file_search import find_config_file, read
from accordion.config.litellm_file import apply_litellm_sections, variables_of
from accordion.config.pipelines import read_pipelines
from accordion.config.settings import LitellmParams, LoggingConfig, ModelConfig, ModelInfo, Settings
from accordion.config.value_types import Secret
from accordion.config.yaml_text import child_path, convert, read_tree
from accordion.model.errors import ConfigError
from accordion.model.suggestions import describe_choices, find_nearest
from accordion.providers.http.routes import ModelEntry, provider_of
from accordion.providers.trusted_certificates import find_certificate_problem

ENVIRONMENT: Mapping[str, str] = {
    "ACCORDION_HOST": "server.host",
    "ACCORDION_PORT": "server.port",
    "ACCORDION_STORE": "store.url",
    "ACCORDION_ARCHIVE_KEY": "archive.key",
    "ACCORDION_OPENAI_BASE_URL": "upstreams.openai.base_url",
    "ACCORDION_ANTHROPIC_BASE_URL": "upstreams.anthropic.base_url",
    "ACCORDION_GEMINI_BASE_URL": "upstreams.gemini.base_url",
    "ACCORDION_AZURE_BASE_URL": "upstreams.azure.base_url",
    "ACCORDION_VERTEX_BASE_URL": "upstreams.vertex.base_url",
    "ACCORDION_BEDROCK_BASE_URL": "upstreams.bedrock.base_url",
}
"""Variables that set one key each. ACCORDION_CONFIG names the file, ACCORDION_LOG sets `logging`."""

_LEVELS, _FORMATS = (get_args(kind.type) for kind in msgspec.structs.fields(LoggingConfig))
_INFO = frozenset(field.name for field in msgspec.structs.fields(ModelInfo)) - {"options"}
_LITELLMS = frozenset({"max_tokens", "db_model"})
"""Keys of LiteLLM's `model_info` that resemble Accordion's keys."""
_PARAMS = frozenset(field.name for field in msgspec.structs.fields(LitellmParams)) - {"options"}
RESTART = (
    "server.host",
    "server.port",
    "server.workers",
    "server.base_path",
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
    "limits.compaction_cache_bytes",
    "limits.response_cache_bytes",
    "limits.cache_bytes",
    "summaries.timeout_seconds",
    "summaries.max_concurrent",
    "memory.enabled",
)
"""Keys whose change takes effect at the next start, since the objects that they configure keep their state."""

_Stamp = tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class _ConfigOverride:
    """A value that overrides the file's: its dotted key, and its source in words."""

    key: str
    value: object
    source: str


class _OverrideError(ConfigError):
    """A value that overrides the file's is wrong."""


def load(path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, object] | None = None) -> Settings:
    """Loads settings from the file that `find_config_file` finds, if it exists.

    `overrides` come from the command line: dotted keys such as "server.port"; None means not set. An empty variable
    counts as not set. Raises ConfigError, whose `path` is that of the key (`$` for the whole file).
    """
    return SettingsFile(path, environ, overrides).settings


def build(data: bytes, environ: Mapping[str, str], overrides: Mapping[str, object]) -> Settings:
    """Builds and checks settings from a file's bytes, the environment and overrides. Raises ConfigError."""
    try:
        text = data.decode("utf-8-sig")
        tree = read_tree(text, {**variables_of(text), **environ})
    except UnicodeDecodeError:
        raise ConfigError("the file is not encoded in UTF-8") from None
    apply_litellm_sections(tree)
    layers = [*_from_environment(environ), *_from_command_line(overrides)]
    for layer in layers:
        _put(tree, layer)
    _gather_options(tree)
    try:
        read_pipelines(tree)
        settings = _without_keys_for_other_addresses(convert(tree, Settings), overrides)
        check(settings)
    except ConfigError as error:
        sources = [layer.source for layer in layers if f"$.{layer.key}" == error.path]
        if not sources:
            raise
        raise _OverrideError(f"{error.reason} (from {sources[-1]})", path=error.path) from None
    return settings


def _without_keys_for_other_addresses(settings: Settings, overrides: Mapping[str, object]) -> Settings:
    """Removes the keys of upstreams, and of models at them, whose address comes from the command line.

    `accordion run` sends an agent's requests to the address that the agent has, where the keys of the file are unknown.
    """
    for name in settings.upstreams.__struct_fields__:
        if not overrides.get(f"upstreams.{name}.base_url"):
            continue
        upstream = msgspec.structs.replace(getattr(settings.upstreams, name), api_key=Secret())
        upstreams = msgspec.structs.replace(settings.upstreams, **{name: upstream})
        models = tuple(_without_key_at(name, model) for model in settings.model_list)
        settings = msgspec.structs.replace(settings, upstreams=upstreams, model_list=models)
    return settings


def _without_key_at(upstream: str, model: ModelConfig) -> ModelConfig:
    """Returns an entry without its key if it is reached at this upstream's address."""
    params, entry = model.litellm_params, model.entry()
    if params.api_base is not None or _provider(entry) != upstream:
        return model
    return msgspec.structs.replace(model, litellm_params=msgspec.structs.replace(params, api_key=Secret()))


def _provider(entry: ModelEntry) -> str:
    try:
        return provider_of(entry)[0]
    except ValueError:
        return ""  # `check` reports it.


def _from_environment(environ: Mapping[str, str]) -> list[_ConfigOverride]:
    layers = [_ConfigOverride(key, environ[name], name) for name, key in ENVIRONMENT.items() if environ.get(name)]
    for word in filter(None, (w.strip().lower() for w in environ.get("ACCORDION_LOG", "").split(","))):
        if word not in (*_LEVELS, *_FORMATS):
            choices = describe_choices(word, (*_LEVELS, *_FORMATS))
            reason = f"expected words separated by commas, each {choices} (from ACCORDION_LOG)"
            raise _OverrideError(reason, path="$.logging")
        layers.append(_ConfigOverride("logging.level" if word in _LEVELS else "logging.format", word, "ACCORDION_LOG"))
    return layers


def _from_command_line(overrides: Mapping[str, object]) -> list[_ConfigOverride]:
    return [_ConfigOverride(key, value, "the command line") for key, value in overrides.items() if value is not None]


def _put(tree: dict[str, Any], layer: _ConfigOverride) -> None:
    *sections, last = layer.key.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            return  # The file is wrong here; the conversion reports it.
    tree[last] = layer.value


def _gather_options(tree: dict[str, Any]) -> None:
    """Moves LiteLLM's own keys of an entry to `options`. A key that resembles one of Accordion's is an error."""
    models = tree.get("model_list")
    for index, model in enumerate(models if isinstance(models, list) else ()):
        params = model.get("litellm_params") if isinstance(model, dict) else None
        if not isinstance(params, dict):
            continue
        _gather_section(params, _PARAMS, f"$.model_list[{index}].litellm_params", 0.85)
        if isinstance(info := model.get("model_info"), dict):
            _gather_section(info, _INFO, f"$.model_list[{index}].model_info", 0.7)


def _gather_section(section: dict[str, Any], known: Collection[str], path: str, cutoff: float) -> None:
    options = {name: section.pop(name) for name in list(section) if name not in known}
    for name in options:
        if name not in _LITELLMS and (nearest := find_nearest(name, known, cutoff)):
            raise ConfigError(f"unknown key; did you mean `{nearest}`?", path=child_path(path, name))
    if options:
        section["options"] = options


# -- reloading --------------------------------------------------------------------------------------------------------


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
        """Reads the file that `find_config_file` finds. Raises ConfigError, with the file's path."""
        self._file = find_config_file(path, environ, reads_folder=reads_folder)
        self.path, self.unused_file = self._file.path, self._file.unused_file
        self._environ = dict(environ)
        self._overrides = dict(overrides or {})
        # These two functions never fail, unlike the methods of Path.
        self._is_read_once = exists(self.path) and not isfile(self.path)
        self._digest = b""
        self._had_content = False
        self._last_stamp = self._read_stamp = self._stamp()
        self.settings = self._read()

    def find_hints(self) -> tuple[str, ...]:
        """Returns the hints about the settings, and a sentence about a file that is not used."""
        problems = self.unused_file, find_certificate_problem(self._environ)
        return (*filter(None, problems), *find_hints(self.settings))

    def locate(self, error: ConfigError) -> ConfigError:
        """Returns an error about a setting with the file's path, unless the setting comes from elsewhere."""
        layers = [*_from_environment(self._environ), *_from_command_line(self._overrides)]
        if not self._had_content or error.path in {f"$.{layer.key}" for layer in layers}:
            return error
        return error.in_file(self._name)

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
            same = _digest(read(self._file)) == self._digest
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
            reason = f"the file cannot be read ({type(error).__name__})"
            return ReloadResult(self.settings, ConfigError(reason, file=self._name))
        ignored = tuple(key for key in RESTART if _get(changed, key) != _get(self.settings, key))
        for key in ignored:
            section, name = key.split(".")
            unchanged = msgspec.structs.replace(getattr(changed, section), **{name: _get(self.settings, key)})
            changed = msgspec.structs.replace(changed, **{section: unchanged})
        self.settings = changed
        return ReloadResult(changed, None, ignored)

    def _read(self) -> Settings:
        data = read(self._file)
        self._digest = _digest(data)
        if self._had_content and not data.strip():
            reason = "the file is empty; to use the defaults, keep a section such as `server:` in it"
            raise ConfigError(reason, file=self._name)
        try:
            settings = build(data, self._environ, self._overrides)
        except _OverrideError:
            raise
        except ConfigError as error:
            raise error.in_file(self._name) if data else error from None
        # A file that existed must not disappear, and one with content must not become empty: the proxy keys would be
        # lost too.
        self._file = replace(self._file, is_required=self._file.is_required or bool(data))
        self._had_content = bool(data.strip())
        return settings

    @property
    def _name(self) -> str:
        """The file's path for messages, which the working directory does not change."""
        return str(self.path.absolute())

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
