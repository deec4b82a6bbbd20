"""The scripted agent of `examples/record.py` reads files, folders and definitions that exist."""

import ast
from pathlib import Path

from examples.plan import TURNS

ROOT = Path(__file__).resolve().parent.parent


def test_the_plan_of_the_example_names_files_and_definitions_that_exist() -> None:
    missing: list[str] = []
    for _, steps, _ in TURNS:
        for _, calls in steps:
            for _, arguments in calls:
                path = ROOT / arguments.get("path", arguments.get("folder", ""))
                if not path.exists():
                    missing.append(str(path.relative_to(ROOT)))
                elif name := arguments.get("name"):
                    missing += [] if has_definition(path, name) else [f"{path.relative_to(ROOT)}: {name}"]
    assert not missing


def has_definition(path: Path, name: str) -> bool:
    """Whether a module defines a function or class; a dot separates a class from what it contains."""
    nodes: list[ast.stmt] = ast.parse(path.read_text()).body
    for part in name.split("."):
        found = next((node for node in nodes if getattr(node, "name", "") == part), None)
        if found is None:
            return False
        nodes = getattr(found, "body", [])
    return True
