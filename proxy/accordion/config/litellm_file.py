"""The sections of a LiteLLM proxy's config.yaml beside `model_list`: applies some of their keys and lists the others.

Source: "config_settings" in LiteLLM's documentation. If a file sets both, Accordion's own keys win.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from accordion.config.settings import Settings

MASTER = "litellm-master"
"""The tenant of callers with the `master_key`."""

_MOST_ATTEMPTS = 10
_USED = {
    "litellm_settings": ("drop_params", "request_timeout", "num_retries"),
    "router_settings": ("timeout", "num_retries", "model_group_alias"),
    "general_settings": ("master_key",),
}


def variables_of(text: str) -> dict[str, str]:
    """Returns the `environment_variables` of a file, for its references. The environment overrides them."""
    if "environment_variables" not in text:
        return {}
    try:
        tree = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        # Reading the file reports the error.
        return {}
    variables = _section(tree if isinstance(tree, dict) else {}, "environment_variables")
    return {str(name): str(value) for name, value in variables.items() if isinstance(value, str | int | float)}


def apply_litellm_sections(tree: dict[str, Any]) -> None:
    """Copies the settings of LiteLLM's sections to Accordion's keys.

    The time-out holds for every upstream. Retries are further attempts to connect (a sent request is never repeated).
    `drop_params` applies to translated requests. The master key becomes a proxy key, an alias a further model name.
    """
    library, router, general = (_section(tree, name) for name in _USED)
    timeout, retries = library.get("request_timeout", router.get("timeout")), library.get("num_retries")
    retries = retries if retries is not None else router.get("num_retries")
    if timeout is not None:
        _put(tree, "timeouts", "read_seconds", timeout)
    if isinstance(retries, int) and retries >= 0:
        _put(tree, "retries", "connect_attempts", min(retries + 1, _MOST_ATTEMPTS))
    if (key := general.get("master_key")) is not None:
        keys = tree.setdefault("proxy_keys", [])
        if isinstance(keys, list) and all(_section_of(entry).get("key") != key for entry in keys):
            keys.append({"id": MASTER, "key": key})
    models = tree.get("model_list")
    if isinstance(models, list):
        models += _aliases(models, router.get("model_group_alias"))
        if library.get("drop_params") is not None:
            for model in map(_section_of, models):
                if isinstance(params := model.get("litellm_params"), dict):
                    params.setdefault("drop_params", library["drop_params"])


def _aliases(models: list[Any], aliases: Any) -> list[Any]:
    """Returns copies of the entries that an alias stands for, under its name."""
    copies = []
    for alias, target in _section_of(aliases).items():
        name = target.get("model") if isinstance(target, dict) else target
        entries = [_section_of(entry) for entry in models]
        copies += [
            {**entry, "model_name": alias, "litellm_params": dict(_section_of(entry.get("litellm_params")))}
            for entry in entries
            if entry.get("model_name") == name
        ]
    return copies


def ignored_keys(settings: Settings) -> Iterator[str]:
    """Yields a sentence for each of LiteLLM's sections with keys that have no effect here."""
    for section, used in _USED.items():
        ignored = [name for name in getattr(settings, section) if name not in used]
        if ignored:
            yield f"$.{section}: ignored, as they mean nothing here: {', '.join(ignored)}"


def _put(tree: dict[str, Any], section: str, key: str, value: object) -> None:
    if isinstance(own := tree.setdefault(section, {}), dict):
        own.setdefault(key, value)


def _section(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return _section_of(tree.get(name))


def _section_of(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
