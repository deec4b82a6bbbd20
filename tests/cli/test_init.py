"""`accordion init` writes the repository's config.yaml."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from accordion.cli.main import app
from accordion.config import Settings, load

CONFIG = Path(__file__).parents[2] / "config.yaml"


def init(*options: str) -> Result:
    return CliRunner().invoke(app, ["init", *options])


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_it_writes_all_settings_with_their_defaults_and_names_the_next_step() -> None:
    result = init()
    assert result.exit_code == 0
    assert Path("config.yaml").read_bytes() == CONFIG.read_bytes()
    assert load(None, {}) == Settings()
    checked, started = result.output.splitlines()
    assert "accordion check config.yaml" in checked
    assert started.endswith("accordion serve")


def test_it_overwrites_a_file_only_if_asked_to() -> None:
    Path("config.yaml").write_text("server: {port: 1}\n")
    result = init()
    assert result.exit_code == 2
    assert "config.yaml: the file exists; name another with --path, or use --force" in result.output
    assert Path("config.yaml").read_text() == "server: {port: 1}\n"
    assert init("--force").exit_code == 0
    assert Path("config.yaml").read_bytes() == CONFIG.read_bytes()


def test_it_writes_to_another_file_or_folder() -> None:
    Path("folder").mkdir()
    for path, file in (("other.yaml", "other.yaml"), ("folder", "folder/config.yaml")):
        assert init("--path", path).output.endswith(f"accordion serve --config {file}\n")
        assert Path(file).read_bytes() == CONFIG.read_bytes()


def test_a_folder_that_does_not_exist_is_an_error() -> None:
    result = init("--path", "no/config.yaml")
    assert result.exit_code == 2
    assert "cannot write the file: No such file or directory" in result.output
