"""A key that is no longer a setting leaves a file valid, has no effect, and is named once."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from accordion.cli.main import app
from accordion.config import ENVIRONMENT, Settings, SettingsFile
from accordion.config.load import REMOVED_KEYS, build
from accordion.model.errors import ConfigError
from tests.conftest import Start
from tests.test_config_documentation import keys_of


def file_with(key: str, value: object) -> str:
    tree: Any = value
    for name in reversed(key.split(".")):
        tree = {name: tree}
    return yaml.safe_dump(tree)


def test_a_removed_key_is_no_setting_and_its_section_is_one() -> None:
    known = keys_of(Settings)
    assert not known & set(REMOVED_KEYS)
    assert set(ENVIRONMENT.values()) <= known
    assert {key.rpartition(".")[0] for key in REMOVED_KEYS} <= known


@pytest.mark.parametrize("key", REMOVED_KEYS)
@pytest.mark.parametrize("value", [7, "not a number"])
def test_a_removed_key_has_no_effect_and_is_named_with_the_reason(tmp_path: Path, key: str, value: object) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(file_with(key, value))
    file = SettingsFile(path, {})
    assert file.settings == Settings()
    (hint,) = pickle.loads(pickle.dumps(file)).find_hints()
    assert hint == f"$.{key}: no longer a setting, and ignored; {REMOVED_KEYS[key]}"


def test_a_file_without_removed_keys_names_none_and_a_reload_looks_again(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("limits: {exchanges_per_session: 1, sessions_in_memory: 5}")
    file = SettingsFile(path, {})
    assert len(file.find_hints()) == 1
    path.write_text("limits: {sessions_in_memory: 5}")
    assert file.reload().problem is None
    assert file.find_hints() == ()


@pytest.mark.parametrize("text", ["windows: {learnt_hour: 1}", "windows: [learnt_hours]", "learnt_hours: 1"])
def test_a_key_that_resembles_a_removed_one_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError):
        build(text.encode(), {}, {})


def test_check_names_a_removed_key_once(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("windows: {learnt_hours: 5}\n")
    result = CliRunner().invoke(app, ["check", str(path)])
    assert result.exit_code == 0
    (line,) = (line for line in result.output.splitlines() if "learnt_hours" in line)
    assert " ".join(line.split()).startswith(
        "warning $.windows.learnt_hours: no longer a setting, and ignored; 24 hours"
    )


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_log_names_a_removed_key_once_at_the_start(start: Start, workers: str) -> None:
    proxy = start("server: {shutdown_seconds: 1}\nwindows: {learnt_hours: 5}\n", "--workers", workers)
    assert proxy.log.count("$.windows.learnt_hours: no longer a setting, and ignored; 24 hours") == 1
