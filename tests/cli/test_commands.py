"""All commands: version, completion, and errors that name the options."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from accordion import __version__
from accordion.cli.main import app


def test_the_version_is_an_option_too() -> None:
    assert CliRunner().invoke(app, ["--version"]).output == f"{__version__}\n"


def test_shell_completion_can_be_installed() -> None:
    assert "--install-completion" in CliRunner().invoke(app, ["--help"]).output


@pytest.mark.parametrize(
    ("command", "types"),
    [(("search", "--type"), "summary_archived"), (("list", "--type"), "session"), (("add", "x", "--type"), "question")],
)
def test_an_unknown_type_is_answered_with_the_valid_ones(tmp_path: Path, command: tuple[str, ...], types: str) -> None:
    done = CliRunner().invoke(app, ["memory", *command, "foo", "--config", str(tmp_path / "none.yaml")])
    assert done.exit_code == 2
    assert types in done.stderr
