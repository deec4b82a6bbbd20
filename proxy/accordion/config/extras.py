"""Optional dependencies: which packages each extra of the distribution brings, and which settings need it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from accordion.config.settings import MemoryConfig, Settings
from accordion.model.errors import MissingExtra
from accordion.providers.http.routes import family_of

_MEMORY = ("numpy", "tokenizers")
_PACKAGES = {"litellm": ("litellm",), "mcp": ("mcp", *_MEMORY), "memory": _MEMORY, "redis": ("redis",)}


def is_installed(extra: str) -> bool:
    """Whether all packages of an extra are installed. Does not import them."""
    return all(find_spec(package) is not None for package in _PACKAGES[extra])


def missing_extras(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yields the path of each setting that needs an extra which is not installed, and a message."""
    for path, extra, purpose in _needs(settings):
        if not is_installed(extra):
            yield path, MissingExtra(purpose, extra).message


def _needs(settings: Settings) -> Iterator[tuple[str, str, str]]:
    if settings.store.url.reveal().startswith(("redis", "valkey")):
        yield "$.store.url", "redis", "a store in Redis or Valkey"
    for index, model in enumerate(settings.model_list):
        if family_of(model.entry())[0] == "litellm":
            yield f"$.model_list[{index}].litellm_params.model", "litellm", "translation for this provider"
    default = MemoryConfig()
    for name in ("after_fold", "writer", "embeddings", "rerank"):
        if getattr(settings.memory, name) != getattr(default, name):
            yield f"$.memory.{name}", "memory", "memory"
    if settings.memory.recall.enabled:
        yield "$.memory.recall.enabled", "memory", "memory"
