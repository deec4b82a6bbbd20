"""Optional dependencies: which packages each extra of the distribution brings, which settings need it, and the command
that installs it here."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Collection, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from accordion.config.settings import MemoryConfig, Settings
from accordion.providers.http.routes import family_of

_DISTRIBUTION = "accordion-proxy"
_MEMORY = ("numpy", "tokenizers")
_PACKAGES = {
    "litellm": ("litellm",),
    "redis": ("redis",),
    "memory": _MEMORY,
    "mcp": ("mcp", *_MEMORY),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
}
EXTRAS = tuple(_PACKAGES)


def is_installed(extra: str) -> bool:
    """Whether all packages of an extra are installed. Does not import them."""
    return all(map(_has_package, _PACKAGES[extra]))


def _has_package(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ImportError:
        # A package above it is missing.
        return False


def how_to_install(extras: Collection[str]) -> str:
    """Returns the command that adds extras to this installation, whose other extras stay.

    It uses what installed Accordion here (pipx, uv or pip), and the folder or file that it was installed from. If that
    is gone, the package's name takes its place. A container is built anew.
    """
    wanted = [extra for extra in EXTRAS if extra in extras or is_installed(extra)]
    # The Dockerfile creates this file.
    if Path(sys.prefix, "container-image").exists():
        return f"docker build -t accordion --build-arg EXTRAS={','.join(wanted)} ."
    source, is_editable = _find_source()
    package = shlex.quote(f"{source}[{','.join(wanted)}]")
    editable = "--editable " if is_editable else ""
    if Path(sys.prefix, "pipx_metadata.json").exists():
        return f"pipx install --force {editable}{package}"
    if Path(sys.prefix, "uv-receipt.toml").exists():
        return f"uv tool install --force {editable}{package}"
    python = shlex.quote(sys.executable)
    pip = f"{python} -m pip install" if _has_package("pip") else f"uv pip install --python {python}"
    return f"{pip} {editable}{package}"


def _find_source() -> tuple[str, bool]:
    """Returns what Accordion was installed from, and whether it is an editable installation (PEP 610)."""
    try:
        origin: dict[str, Any] = json.loads(distribution(_DISTRIBUTION).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {}
    path = unquote(urlsplit(str(origin.get("url", ""))).path)
    if not path or not Path(path).exists():
        return _DISTRIBUTION, False
    return path, bool(origin.get("dir_info", {}).get("editable"))


def missing_extras(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yields the path of each setting that needs an extra which is not installed, and a message."""
    for path, extra, purpose in _needs(settings):
        if not is_installed(extra):
            yield path, f"{purpose} needs the extra `{extra}`, which is not installed: {how_to_install([extra])}"


def _needs(settings: Settings) -> Iterator[tuple[str, str, str]]:
    if settings.store.url.reveal().startswith(("redis", "valkey")):
        yield "$.store.url", "redis", "a store in Redis or Valkey"
    for index, model in enumerate(settings.model_list):
        if family_of(model.entry())[0] == "litellm":
            yield f"$.model_list[{index}].litellm_params.model", "litellm", "translation for this provider"
    default = MemoryConfig()
    for name in ("after_compaction", "writer", "embeddings", "rerank"):
        if getattr(settings.memory, name) != getattr(default, name):
            yield f"$.memory.{name}", "memory", "memory"
    if settings.memory.recall.enabled:
        yield "$.memory.recall.enabled", "memory", "memory"
    if settings.read_back.recall.embedding:
        yield "$.read_back.recall.embedding", "memory", "the embedding"
