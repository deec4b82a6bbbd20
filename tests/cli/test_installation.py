import email.message
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import accordion
from accordion.cli import installation
from accordion.cli.installation import find_page, own_command, see

PAGE = "docs/run-an-agent.md#no-request-came"
ROOT = Path(accordion.__file__).parents[2]


def published(*urls: str) -> Callable[[str], email.message.Message]:
    """Metadata with these project URLs."""
    message = email.message.Message()
    for url in urls:
        message["Project-URL"] = url
    return lambda name: message


def test_a_release_names_a_page_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    files = "https://git.example/me/accordion/blob/v1.2.3"
    urls = ("Source, https://git.example/me/accordion", f"Documentation, {files}/README.md#documentation")
    monkeypatch.setattr(installation, "metadata", published(*urls))
    assert find_page(PAGE) == f"{files}/{PAGE}"


@pytest.mark.parametrize("urls", [(), ("Documentation, https://docs.example",)])
def test_a_checkout_names_a_page_by_its_path(monkeypatch: pytest.MonkeyPatch, urls: tuple[str, ...]) -> None:
    monkeypatch.setattr(installation, "metadata", published(*urls))
    assert find_page(PAGE) == str(ROOT / PAGE)
    assert see(PAGE) == f" See {ROOT / PAGE}."


def test_an_installed_package_names_no_page_that_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "metadata", published())
    monkeypatch.setattr(accordion, "__file__", str(tmp_path / "site-packages" / "accordion" / "__init__.py"))
    assert (find_page(PAGE), see(PAGE)) == ("", "")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program `accordion` in the folder `bin` of the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    for name in ("accordion", "python"):
        (tmp_path / "bin" / name).touch(0o755)
    return tmp_path / "bin" / "accordion"


def start_as(monkeypatch: pytest.MonkeyPatch, name: str, search_path: Path) -> str:
    monkeypatch.setattr(sys, "argv", [name])
    monkeypatch.setenv("PATH", str(search_path))
    return own_command("run claude")


def test_a_command_that_the_shell_finds_is_named_without_its_path(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert start_as(monkeypatch, str(program), program.parent) == "accordion run claude"


def test_a_command_that_the_shell_does_not_find_is_named_as_it_was_typed(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert start_as(monkeypatch, "bin/accordion", tmp_path) == "bin/accordion run claude"
    assert start_as(monkeypatch, str(program), tmp_path) == f"{program} run claude"
    assert start_as(monkeypatch, "my bin/accordion", tmp_path) == "'my bin/accordion' run claude"


def test_another_command_of_that_name_is_not_named(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "accordion").touch(0o755)
    assert start_as(monkeypatch, "bin/accordion", tmp_path) == "bin/accordion run claude"


def test_the_module_is_named_with_the_python_that_runs_it(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, python = "/lib/accordion/__main__.py", str(program.with_name("python"))
    monkeypatch.setattr(sys, "executable", python)
    assert start_as(monkeypatch, module, program.parent) == "python -m accordion run claude"
    assert start_as(monkeypatch, module, tmp_path) == f"{python} -m accordion run claude"


def test_another_program_that_imports_accordion_gets_the_plain_name(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert start_as(monkeypatch, "/usr/bin/pytest", program.parent) == "accordion run claude"
    monkeypatch.setattr(sys, "argv", ["/usr/bin/pytest"])
    assert own_command() == "accordion"
