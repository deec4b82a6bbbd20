"""Every command that the program prints exists, with its options."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

import accordion
from accordion.cli.main import app

PACKAGE = Path(accordion.__file__).parent
PROGRAM_COMMAND = typer.main.get_command(app)
PROGRAM = re.compile(r"(?<![\w./-])accordion ([a-z][^`|)<\n;.…]*)")
"""The arguments of a command in a text, up to a character that ends a command."""


def texts(path: Path) -> Iterator[str]:
    """Yields the texts of a file; a value within a text becomes `VALUE`."""
    if path.suffix == ".html":
        yield path.read_text("utf-8")
        return
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "VALUE" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "own_command":
            yield " ".join(["accordion", *(text for argument in node.args for text in texts_of(argument))])


def texts_of(node: ast.expr) -> Iterator[str]:
    """Yields the text of an argument."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "VALUE" for part in node.values)
    elif isinstance(node, ast.Constant):
        yield str(node.value)


def printed_commands() -> Iterator[tuple[str, str]]:
    """Yields the file and the arguments of each command in a text."""
    for path in sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.html")]):
        for text in texts(path):
            for match in PROGRAM.finditer(text):
                yield str(path.relative_to(PACKAGE)), match[1].strip()


def find_command(arguments: list[str]) -> Any:
    """Returns the command that the arguments name. Raises KeyError."""
    command: Any = PROGRAM_COMMAND
    for word in arguments:
        if not hasattr(command, "commands"):
            break
        command = command.commands[word]
    return command


@cache
def all_commands() -> list[tuple[str, str]]:
    return sorted(set(printed_commands()))


def test_each_printed_command_exists_with_its_options() -> None:
    for file, arguments in all_commands():
        words = [word.strip("'\",:") for word in arguments.split()]
        options = {option for parameter in find_command(words).params for option in parameter.opts}
        given = {word.partition("=")[0] for word in words if word.startswith("-") and len(word) > 1}
        assert given <= options, (file, arguments)


def test_commands_are_found_in_texts_and_in_calls() -> None:
    assert ("cli/demo.py", "run claude") in all_commands()
    assert ("cli/run.py", "artifacts --session VALUE") in all_commands()
    assert ("model/errors.py", "doctor") in all_commands()
    with pytest.raises(KeyError):
        find_command(["no-command"])
