"""What this installation has: its command, as the user can type it, and the pages of its documentation."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import accordion

_NAMES = ("accordion", "accordion-proxy")
_MODULE = "__main__.py"
_DOCUMENTATION = "Documentation, "
_README = "/README.md#documentation"


def own_command(*arguments: str) -> str:
    """Returns a command line of this program that works in the user's shell, such as `.venv/bin/accordion run claude`.

    It begins with the name alone if the shell finds this program by it, else with the path by which it was started, or
    with `python -m accordion`.
    """
    return " ".join(filter(None, (_find_program(sys.argv[0]), *arguments)))


def _find_program(started_as: str) -> str:
    path = Path(started_as)
    if path.name == _MODULE and path.parent.name == "accordion":
        python = "python" if _is_found("python", sys.executable) else sys.executable
        return f"{shlex.quote(python)} -m accordion"
    # A program that uses Accordion as a library has another name.
    if path.name not in _NAMES or _is_found(path.name, started_as):
        return path.name if path.name in _NAMES else _NAMES[0]
    return shlex.quote(started_as)


def _is_found(name: str, program: str) -> bool:
    """Whether the shell finds this very program by a name."""
    found = shutil.which(name)
    # Links are not followed: the Python of a virtual environment is a link to another one.
    return found is not None and os.path.abspath(found) == os.path.abspath(program)


def find_page(page: str) -> str:
    """Returns where a page such as `docs/savings.md#a-hold-out` can be read: its address, or its path in a checkout.

    The metadata of a release have the address (hatch_build.py). Empty if this installation has neither.
    """
    try:
        urls = metadata("accordion-proxy").get_all("Project-URL") or []
    except PackageNotFoundError:
        urls = []
    address = next((url.removeprefix(_DOCUMENTATION) for url in urls if url.startswith(_DOCUMENTATION)), "")
    if address.endswith(_README):
        return f"{address.removesuffix(_README)}/{page}"
    path = Path(accordion.__file__).parents[2] / page
    return str(path) if Path(str(path).partition("#")[0]).is_file() else ""


def see(page: str) -> str:
    """Returns " See PAGE." for the end of a text; empty if this installation does not have the page."""
    place = find_page(page)
    return f" See {place}." if place else ""
