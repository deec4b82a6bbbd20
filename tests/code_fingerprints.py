"""Fingerprints of libraries' code that this proxy overrides or reads. No library is imported for them."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path


def fingerprints(module: str, names: Iterable[str]) -> Mapping[str, str]:
    """Returns the first 12 digits of the SHA-256 of each named function, class or method (`Class.method`) of a module.

    The code counts without comments' places and indentation of its own. An unknown name has an empty fingerprint.
    """
    package, _, rest = module.partition(".")
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    path = Path(spec.submodule_search_locations[0], *rest.split("."))
    source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
    tree = ast.parse(source)
    return {name: _digest(source, _find(tree, name.split("."))) for name in names}


def _find(node: ast.AST, path: list[str]) -> ast.AST | None:
    for name in path:
        node = next((each for each in ast.walk(node) if getattr(each, "name", None) == name), None)  # type: ignore[assignment]
        if node is None:
            return None
    return node


def _digest(source: str, node: ast.AST | None) -> str:
    if node is None:
        return ""
    lines = (ast.get_source_segment(source, node) or "").splitlines()
    return hashlib.sha256("\n".join(line.strip() for line in lines).encode()).hexdigest()[:12]


def find_changes(known: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Returns the new fingerprints of code that is not as it was when its override was written, by module and name.

    Read the library's difference, check the override and its reason, then enter the new fingerprint.
    """
    return {
        f"{module}:{name}": value
        for module, codes in known.items()
        for name, value in fingerprints(module, codes).items()
        if value != codes[name]
    }
