"""Packages with strategies, installed into a folder on the path."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def install(folder: Path, package: str, code: str, **entry_points: str) -> None:
    """Installs a package with one module; `entry_points` are names of strategies, and classes of the module."""
    module = package.replace("-", "_")
    (folder / f"{module}.py").write_text(code, "utf-8")
    metadata = folder / f"{module}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", "utf-8")
    lines = [f"{name} = {module}:{attribute}" for name, attribute in entry_points.items()]
    (metadata / "entry_points.txt").write_text("\n".join(["[accordion.strategies]", *lines, ""]), "utf-8")


@contextmanager
def on_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Has the packages of this folder found. Forgets their modules at the end."""
    with monkeypatch.context() as patch:
        patch.syspath_prepend(folder)
        try:
            yield
        finally:
            for module in (path.stem for path in folder.glob("*.py")):
                sys.modules.pop(module, None)
