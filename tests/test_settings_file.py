import os
import pickle
import threading
from importlib import import_module

import msgspec
import pytest

from accordion.config import RESTART, SettingsFile
from accordion.model.errors import ConfigError


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("windows: {default: 1}")
    return file


def test_an_untouched_file_has_not_changed(path):
    file = SettingsFile(path, {})
    assert [file.has_changed() for _ in range(3)] == [False, False, False]


def test_a_change_counts_when_it_is_seen_for_the_second_time(path):
    file = SettingsFile(path, {})
    path.write_text("windows: {default: 22}")
    assert [file.has_changed(), file.has_changed()] == [False, True]
    path.write_text("windows: {default: 333}")
    assert [file.has_changed(), file.has_changed()] == [False, True]


def test_a_reload_takes_the_new_values_and_settles_the_change(path):
    file = SettingsFile(path, {})
    path.write_text("windows: {default: 22}")
    reloaded = file.reload()
    assert (reloaded.settings.windows.default, reloaded.problem, reloaded.ignored) == (22, None, ())
    assert file.settings is reloaded.settings
    assert [file.has_changed(), file.has_changed()] == [False, False]


def test_a_file_that_is_only_touched_has_not_changed(path):
    file = SettingsFile(path, {})
    os.utime(path, ns=(1, 1))
    assert [file.has_changed() for _ in range(3)] == [False, False, False]


def test_a_file_that_is_replaced_by_another_of_the_same_size_and_time_has_changed(path, tmp_path):
    file = SettingsFile(path, {})
    old = path.stat()
    other = tmp_path / "other.yaml"
    other.write_text("windows: {default: 2}")
    os.utime(other, ns=(old.st_atime_ns, old.st_mtime_ns))
    other.replace(path)
    assert [file.has_changed(), file.has_changed()] == [False, True]


def test_a_bad_file_keeps_the_old_settings_and_says_why_once(path):
    file = SettingsFile(path, {})
    before = file.settings
    path.write_text("windows: {default: none}")
    assert [file.has_changed(), file.has_changed()] == [False, True]
    reloaded = file.reload()
    assert reloaded.settings is before is file.settings
    assert reloaded.problem is not None
    assert reloaded.problem.path == "$.windows.default"
    assert [file.has_changed(), file.has_changed()] == [False, False]
    path.write_text("windows: {default: 4}")
    assert [file.has_changed(), file.has_changed()] == [False, True]
    assert file.reload().settings.windows.default == 4


def test_an_unexpected_error_keeps_the_settings_and_shows_no_value(path, monkeypatch):
    file = SettingsFile(path, {})

    def fails(*_: object) -> None:
        raise OverflowError("sk-secret")

    # By its name alone, `accordion.config.load` is the function that the package exports.
    monkeypatch.setattr(import_module("accordion.config.load"), "build", fails)
    reloaded = file.reload()
    assert reloaded.problem is not None
    assert "OverflowError" in reloaded.problem.message
    assert "secret" not in reloaded.problem.message
    assert reloaded.settings.windows.default == 1


@pytest.mark.parametrize("explicit", [True, False])
def test_a_file_that_goes_away_keeps_the_old_settings(path, explicit, monkeypatch):
    monkeypatch.chdir(path.parent)
    file = SettingsFile(path if explicit else None, {})
    path.unlink()
    assert [file.has_changed(), file.has_changed()] == [False, True]
    reloaded = file.reload()
    assert reloaded.problem is not None
    assert reloaded.settings.windows.default == 1
    assert [file.has_changed(), file.has_changed()] == [False, False]


@pytest.mark.parametrize("emptied", ["", " \n"])
def test_a_file_that_is_emptied_keeps_the_old_settings(path, emptied):
    """Who truncates a file and fails to write it must not open the proxy to everybody."""
    file = SettingsFile(path, {})
    path.write_text(emptied)
    assert [file.has_changed(), file.has_changed()] == [False, True]
    reloaded = file.reload()
    assert reloaded.problem is not None
    assert "empty" in reloaded.problem.message
    assert (file.settings.windows.default, file.has_changed(), file.has_changed()) == (1, False, False)
    path.write_text("server:\n")
    assert file.reload().problem is None
    assert file.settings.windows.default != 1


def test_a_file_that_appears_in_the_working_directory_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = SettingsFile(None, {})
    assert not file.has_changed()
    (tmp_path / "config.yaml").write_text("windows: {default: 5}")
    assert [file.has_changed(), file.has_changed()] == [False, True]
    assert file.reload().settings.windows.default == 5


def test_settings_that_need_a_restart_keep_their_value_and_are_named(path):
    path.write_text("server: {port: 1, max_body_bytes: 1}\nstore: {url: memory://}\nlimits: {sessions_in_memory: 1}")
    file = SettingsFile(path, {})
    path.write_text(
        """
        server: {host: h, port: 2, workers: 2, shutdown_seconds: 2, tenant_key: k, max_body_bytes: 2,
                 idle_seconds: 2, base_path: /p}
        store: {url: sqlite:///a.db, timeout_seconds: 2, write_timeout_seconds: 2, retention_days: 2, spool: s,
                spool_bytes: 2, session_bytes: 3}
        archive: {key: "%s", max_bytes: 2, retention_days: 2, record: all}
        limits: {body_cache_bytes: 2, messages_per_request: 2, sessions_in_memory: 2, compaction_cache_bytes: 2,
                 response_cache_bytes: 2, cache_bytes: 2}
        summaries: {max_concurrent: 3, timeout_seconds: 3, wait_seconds: 3, writer: extractive}
        memory: {enabled: false}
        """
        % ("0" * 64)
    )
    before, reloaded = file.settings, file.reload()
    assert reloaded.ignored == RESTART
    after = reloaded.settings
    assert after.server == msgspec.structs.replace(before.server, max_body_bytes=2)
    assert (after.store, after.archive, after.limits) == (before.store, before.archive, before.limits)
    assert after.summaries == msgspec.structs.replace(before.summaries, wait_seconds=3, writer="extractive")


def test_a_later_error_of_a_setting_names_the_file_that_has_the_setting(path):
    error = ConfigError("is of a newer version", path="$.store.url")
    assert SettingsFile(path, {}).locate(error).message == f"{path}: $.store.url: is of a newer version"
    assert SettingsFile(path, {"ACCORDION_STORE": "memory://"}).locate(error) is error
    assert SettingsFile(None, {"XDG_CONFIG_HOME": str(path.parent / "none")}, reads_folder=False).locate(error) is error


def test_environment_and_command_line_stay_above_the_file(path):
    file = SettingsFile(path, {"ACCORDION_PORT": "5"}, {"windows.default": 9})
    path.write_text("server: {port: 6}\nwindows: {default: 7}")
    reloaded = file.reload()
    assert (reloaded.settings.server.port, reloaded.settings.windows.default, reloaded.ignored) == (5, 9, ())


def test_a_bad_file_at_the_start_is_an_error(path):
    path.write_text("windows: 5")
    with pytest.raises(ConfigError):
        SettingsFile(path, {})


def test_a_file_that_is_not_regular_is_read_once(tmp_path):
    """A shell's `<(...)` gives what it holds only once; a pipe without a writer would be waited for."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("windows: {default: 5}",), daemon=True)
    writer.start()
    file = SettingsFile(pipe, {})
    writer.join()
    assert (file.settings.windows.default, file.has_changed(), file.has_changed()) == (5, False, False)
    reloaded = file.reload()
    assert reloaded.problem is not None
    assert "not a regular file" in reloaded.problem.message
    assert reloaded.settings.windows.default == 5


def test_what_takes_over_a_file_has_the_settings_in_force_and_follows_it_from_there(path):
    path.write_text("server: {port: 1}\nwindows: {default: 1}")
    file = SettingsFile(path, {})
    path.write_text("server: {port: 2}\nwindows: {default: 22}")
    file.reload()
    path.write_text("windows: {default: none}")
    file.reload()
    other = pickle.loads(pickle.dumps(file))
    assert other.settings == file.settings
    assert (other.settings.server.port, other.settings.windows.default) == (1, 22)
    assert [other.has_changed(), other.has_changed()] == [False, False]
    path.write_text("windows: {default: 333}")
    assert [other.has_changed(), other.has_changed()] == [False, True]
    assert other.reload().settings.windows.default == 333
    path.write_text("")
    assert other.reload().problem is not None


def test_a_file_that_cannot_even_be_asked_for_is_an_error_of_the_config(tmp_path):
    with pytest.raises(ConfigError):
        SettingsFile(tmp_path / ("x" * 5_000), {})
