"""The sections of a LiteLLM proxy's config.yaml beside `model_list`: what of them has a meaning here, and the rest.

Source: "config_settings" in LiteLLM's documentation. Accordion's own keys hold where a file states both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from accordion.settings.values import Settings

MASTER = "litellm-master"
"""The tenant of who presents the `master_key`."""

_MOST_ATTEMPTS = 10
_USED = {
    "litellm_settings": ("drop_params", "request_timeout", "num_retries"),
    "router_settings": ("timeout", "num_retries", "model_group_alias"),
    "general_settings": ("master_key",),
}


def variables_of(text: str) -> dict[str, str]:
    """The `environment_variables` of a file, for its own references to variables. The environment goes over them."""
    if "environment_variables" not in text:
        return {}
    try:
        tree = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        # Reading the file says what is wrong.
        return {}
    found = _section(tree if isinstance(tree, dict) else {}, "environment_variables")
    return {str(name): str(value) for name, value in found.items() if isinstance(value, str | int | float)}


def take_over(tree: dict[str, Any]) -> None:
    """Enters the settings of LiteLLM's sections at the keys that they have here.

    The time-out holds for every upstream, retries are further attempts to connect (what was sent is never sent again),
    `drop_params` goes with requests that are translated, the master key is a proxy key, an alias is a further name.
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
    """Copies of the entries that an alias stands for, under its name."""
    found = []
    for alias, meant in _section_of(aliases).items():
        name = meant.get("model") if isinstance(meant, dict) else meant
        entries = [_section_of(entry) for entry in models]
        found += [
            {**entry, "model_name": alias, "litellm_params": dict(_section_of(entry.get("litellm_params")))}
            for entry in entries
            if entry.get("model_name") == name
        ]
    return found


def ignored_keys(settings: Settings) -> Iterator[str]:
    """The keys of LiteLLM's sections that mean nothing here, a sentence for each section."""
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
