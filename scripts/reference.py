"""Writes the tables of the reference from the code, into the documents that have them.

    python scripts/reference.py

A document marks the place of a table with two comments, `<!-- reference: NAME -->` and `<!-- end of reference -->`;
what stands between them is replaced. `make docs` runs this, and a test compares.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
import typer
from prometheus_client import CollectorRegistry

from accordion.cli.main import app
from accordion.compaction.session_overrides import SessionOverrideStore
from accordion.config import ENVIRONMENT, RESTART, Settings
from accordion.config.value_types import Keys, Secret, Size, StoreUrl
from accordion.features.memory.memory_api import MemoryApi
from accordion.features.page.routes import Pages
from accordion.http.admin_api import AdminApi
from accordion.http.api import RestApi
from accordion.http.archive_api import ArchiveApi
from accordion.http.metrics import Metrics
from accordion.stores.memory_store import InMemoryStore

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"(<!-- reference: ([a-z ]+) -->\n).*?(<!-- end of reference -->)", re.DOTALL)


def write_tables(text: str) -> str:
    """Returns a document with the tables that its marks name. Raises KeyError for a name that is not known."""
    return _BLOCK.sub(lambda found: f"{found[1]}\n{_make_table(found[2])}\n{found[3]}", text)


def documents() -> Iterator[Path]:
    """Yields the documents with tables."""
    for path in sorted((ROOT / "docs").glob("*.md")):
        if _BLOCK.search(path.read_text("utf-8")):
            yield path


def _make_table(name: str) -> str:
    kind, _, subject = name.partition(" ")
    lines = {"options": _list_options, "metrics": _list_metrics, "paths": _list_paths, "settings": _list_settings}
    return "".join(f"{line}\n" for line in lines[kind](subject))


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


# -- Commands --------------------------------------------------------------------------------------------------------


def _list_options(command: str) -> Iterator[str]:
    """Lists the options of a command, such as `serve`."""
    group: Any = typer.main.get_command(app)
    yield "| option | meaning |"
    yield "|---|---|"
    for param in group.commands[command].params:
        if param.param_type_name == "option":
            yield _row(", ".join(f"`{name}`" for name in _option_names(param)), _describe_option(param))


def _option_names(param: Any) -> Iterator[str]:
    value = "" if param.is_flag else f" {_VALUES[param.type.name]}"
    for name in param.opts:
        yield f"{name}{value}" if name.startswith("--") else name


_VALUES = {"int": "N", "int range": "N", "str": "TEXT", "path": "PATH"}


def _describe_option(param: Any) -> str:
    shows_default = param.show_default and not param.is_flag and param.default not in (None, "")
    return f"{param.help}{f' Default: {param.default}.' if shows_default else ''}"


# -- Metrics ---------------------------------------------------------------------------------------------------------


def _list_metrics(_: str) -> Iterator[str]:
    """Lists the metrics, with their labels."""
    registry: CollectorRegistry = Metrics().registry
    yield "| metric | labels | meaning |"
    yield "|---|---|---|"
    # prometheus-client has no public list of the collectors.
    for metric in registry._collector_to_names:
        kind, name = metric._type, metric._name
        ending = "_total" if kind == "counter" else ""
        labels = ", ".join(metric._labelnames)
        yield _row(
            f"`{name}{ending}`", labels, f"{metric._documentation}{' (histogram)' if kind == 'histogram' else ''}"
        )


# -- Paths -----------------------------------------------------------------------------------------------------------

_MORE = {
    "/accordion/": "page.md",
    "/accordion/savings": "savings.md",
    "/accordion/sessions/{id}/tree": "delegation.md#looking-at-the-tree",
    "/accordion/sessions/{id}/compact": "figures.md#asking-for-a-compaction",
    "/accordion/sessions/{id}/name": "page.md#names-of-sessions",
    "/accordion/sessions/{id}/original": "archive.md#transcripts",
    "/accordion/sessions/{id}/sent": "archive.md#what-the-model-sees",
    "/accordion/artifacts": "archive.md#artifacts",
    "/accordion/artifacts/{id}": "archive.md#artifacts",
    "/accordion/sessions/{id}/compactions/{compaction}/undo": "archive.md#undo-a-compaction",
    "/accordion/export": "archive.md#export",
    "/accordion/archive": "archive.md#erasing",
    "/accordion/keys": "teams.md",
    "/accordion/tenants": "teams.md",
    "/accordion/memory/openapi.json": "memory.md#programs-rest",
    "/metrics": "figures.md#metrics",
    "/healthz": "deployment.md#health-checks",
    "/readyz": "deployment.md#health-checks",
}
"""The documents that say more about a path."""


def _list_paths(_: str) -> Iterator[str]:
    """Lists the proxy's own paths, but for those of single memories, by the docstrings of their endpoints."""
    yield "| path | what it does |"
    yield "|---|---|"
    for route in own_routes():
        if route.path.startswith("/accordion/memory") and route.path not in _MORE:
            continue
        methods = ", ".join(f"`{method}`" for method in sorted(route.methods - {"HEAD"}, key=_METHODS.index))
        more = f" ([more]({_MORE[route.path]}))" if route.path in _MORE else ""
        yield _row(f"{methods[:-1]} {route.path}`", f"{_describe_endpoint(route.endpoint)}{more}")


_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


def own_routes() -> list[Any]:
    """Returns the routes of the proxy's own paths; of the page, only its beginning."""
    store: Any = SessionOverrideStore(InMemoryStore())
    nothing: Any = None
    more: list[Any] = [*ArchiveApi(nothing, nothing, nothing, store, nothing, nothing, nothing).routes()]
    more += [route for route in Pages(SimpleNamespace(more_views=())).routes() if route.path == "/accordion/"]
    more += AdminApi(nothing, SimpleNamespace(created_keys=None), nothing).routes()  # type: ignore[arg-type]
    more += MemoryApi(nothing, nothing, "").routes()
    api = RestApi(nothing, nothing, Metrics(), nothing, "", store, more)
    return list(api.app().routes)


def _describe_endpoint(endpoint: Any) -> str:
    view = endpoint.args[0] if hasattr(endpoint, "args") else endpoint
    return " ".join(view.__doc__.split()).removesuffix(".")


# -- Settings --------------------------------------------------------------------------------------------------------


def _list_settings(_: str) -> Iterator[str]:
    """Lists the settings with their types and defaults."""
    variables = {key: name for name, key in ENVIRONMENT.items()}
    yield "| setting | values | default | remarks |"
    yield "|---|---|---|---|"
    for key, kind, default in _list_fields(Settings, ""):
        remarks = [f"`{variables[key]}`"] if key in variables else []
        remarks += ["restart"] if key in RESTART else []
        yield _row(f"`{key}`", _describe_type(kind), _describe_default(key, default), ", ".join(remarks))


def _list_fields(section: Any, prefix: str) -> Iterator[tuple[str, Any, Any]]:
    """Yields the dotted key, type and default of each setting below a section."""
    for field in msgspec.structs.fields(section):
        key = f"{prefix}{field.encode_name}"
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _list_fields(field.type, f"{key}.")
        else:
            yield key, field.type, field.default


_NO_BOUND = 10**9
_TYPES = {
    "BaseUrl": "URL",
    "Host": "name or address",
    "PositiveShare": "share above 0, up to 1",
    "Share": "share, 0 to 1",
    "Keys": "keys, 32 bytes each in base64 or hexadecimal, separated by commas",
    "Secret": "text",
    "SecretMapping": "keys of LiteLLM",
    "Size": "bytes, also with a unit",
    "StoreUrl": "`sqlite:///path`, `redis://…` or `memory://`",
    "str": "text",
    "bool": "`true` or `false`",
}


def _describe_type(kind: Any) -> str:
    """Describes the values of a setting."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _describe_number(kind) if parts[0] in (int, float) else _TYPES["str"]
    if origin is Literal:
        return ", ".join(f"`{word}`" for word in parts)
    if origin in (Union, UnionType):
        return _describe_type(parts[0])
    if origin is tuple:
        return "list"
    if origin is dict:
        return "a section for each model"
    if hasattr(kind, "words"):
        return ", ".join(f"`{word}`" for word in kind.words)
    return "section" if issubclass(kind, msgspec.Struct) else _TYPES[kind.__name__]


def _describe_number(kind: Any) -> str:
    number, bounds = get_args(kind)[0], get_args(kind)[1]
    least = bounds.ge if bounds.ge is not None else bounds.gt
    above = "above " if bounds.ge is None else ""
    if bounds.le >= _NO_BOUND:
        return f"whole number, {least:,} or more"
    return f"{'whole number' if number is int else 'number'}, {above}{least:,} to {bounds.le:,}"


def _describe_default(key: str, default: Any) -> str:
    """Describes a default; empty if there is none, and where a whole list stands in config.yaml."""
    if isinstance(default, Size):
        unit = next(unit for unit in ("GiB", "MiB", "KiB") if default % _UNITS[unit] == 0)
        return f"`{default // _UNITS[unit]}{unit}`"
    if isinstance(default, StoreUrl):
        return f"`{default}`"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if key.endswith("pipeline"):
        return "`[" + ", ".join(entry.name for entry in default or ()) + "]`" if default else ""
    if isinstance(default, tuple):
        return f"`[{', '.join(default)}]`" if default else ""
    if isinstance(default, (Secret, Keys)) or default in (None, "", {}) or default is msgspec.NODEFAULT:
        return ""
    return f"`{int(default) if isinstance(default, float) and default.is_integer() else default}`"


_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def main(paths: Iterable[Path]) -> None:
    """Writes the tables into the documents."""
    for path in paths:
        path.write_text(write_tables(path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main(documents())
