"""Each library whose internals this proxy touches is fenced: one module, and an upper bound for its version."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "proxy" / "accordion"
FENCES = {
    "uvicorn": "server/uvicorn_compat.py",
    "aiohttp": "providers/http/aiohttp_compat.py",
    "litellm": "features/translation/litellm_compat.py",
    "jsonpath_rfc9535": "archive/path_walk.py",
    "websockets": "providers/http/websockets.py",
}
UNDOCUMENTED = ("aiohttp", "uvicorn", "litellm", "jsonpath_rfc9535")
"""The libraries whose submodules are not documented."""
DISTRIBUTIONS = {"jsonpath_rfc9535": "jsonpath-rfc9535"}
MODULES = sorted(PACKAGE.rglob("*.py"))
DOCUMENTED = ("_replace",)
"""Names with an underscore that are no private ones: of named tuples."""


@cache
def modules() -> list[tuple[str, ast.Module]]:
    return [(path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text())) for path in MODULES]


def own_names(tree: ast.Module) -> set[str]:
    """Returns the private names that a module defines itself: functions, fields and attributes of `self`."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            names.add(node.attr)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def foreign_private_names(tree: ast.Module) -> Iterator[str]:
    """Yields the private attributes that a module reads of objects that are not its own."""
    own = own_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            if node.attr in DOCUMENTED:
                continue
            is_of_super = isinstance(node.value, ast.Call)
            is_of_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not is_of_super and not is_of_self and node.attr not in own:
                yield ast.unparse(node)


def imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yields the module and the name of each import; the name is empty where the module itself is imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((each.name, "") for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, each.name) for each in node.names)


def test_private_names_of_libraries_stand_in_fences_only() -> None:
    found = {name: [*foreign_private_names(tree)] for name, tree in modules()}
    assert {name for name, names in found.items() if names} <= set(FENCES.values())


def test_no_private_module_of_a_dependency_is_imported() -> None:
    private = [
        (name, module)
        for name, tree in modules()
        for module, each in imports(tree)
        if any(part.startswith("_") and part != "__future__" for part in (*module.split("."), each))
        and not module.startswith("accordion")
    ]
    assert private == []


def test_undocumented_modules_are_imported_by_their_fence_only() -> None:
    outside = [
        (name, module)
        for name, tree in modules()
        for module, _ in imports(tree)
        if (library := module.partition(".")[0]) in UNDOCUMENTED and "." in module and name != FENCES[library]
    ]
    assert outside == []


def test_classes_of_libraries_are_extended_in_fences_only() -> None:
    outside = []
    for name, tree in modules():
        origins = {each or module: module.partition(".")[0] for module, each in imports(tree)}
        for node in ast.walk(tree):
            for base in node.bases if isinstance(node, ast.ClassDef) else ():
                library = origins.get(ast.unparse(base).partition(".")[0], "")
                if library in FENCES and name != FENCES[library]:
                    outside.append((name, node.name, library))
    assert outside == []


def test_litellms_modules_are_named_in_its_fence_only() -> None:
    for name, tree in modules():
        texts = {
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        named = {text for text in texts if text.startswith("litellm.") and text.count(".") > 1}
        assert not named or name == FENCES["litellm"], (name, named)


@pytest.mark.parametrize("library", FENCES)
def test_a_fenced_dependency_has_an_upper_bound(library: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    name = DISTRIBUTIONS.get(library, library)
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    requirements = [each for group in groups for each in group]
    (requirement,) = [each for each in requirements if each.startswith((f"{name}>", f"{name}<"))]
    assert re.fullmatch(rf"{name}>=[\d.]+,<[\d.]+", requirement)


def test_fences_exist_and_have_contract_tests() -> None:
    contracts = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*_contract.py"))
    for library, module in FENCES.items():
        assert (PACKAGE / module).is_file()
        assert f'"{library}.' in contracts, library
