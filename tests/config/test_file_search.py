from pathlib import Path

import pytest

from accordion.config import Settings, SettingsFile, load
from accordion.config.file_search import COMMON_SECTIONS
from accordion.model.errors import ConfigError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def find(text: str | bytes, environ: dict[str, str] | None = None) -> SettingsFile:
    Path("config.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    return SettingsFile(None, {"XDG_CONFIG_HOME": "no-folder", **(environ or {})})


FOREIGN = {
    "another program's sections": "database: {url: x}\nplugins: [a]",
    "sections of a common name beside others": "server: {port: 80}\nlogging: {level: INFO}\ndatabase: {url: x}",
    "a section that resembles one of ours": "services: {web: {image: x}}",
    "a list": "- name: x\n  run: y",
    "a text": "hello",
    "no YAML": "{% if x %}\nfoo: 1\n{% endif %}",
    "several documents": "apiVersion: v1\n---\nkind: Pod",
    "a tag of another program": "script: !include x.yaml",
    "not UTF-8": b"title: \xe9",
    "a date that does not exist": "date: 2024-99-99",
}


@pytest.mark.parametrize("text", FOREIGN.values(), ids=FOREIGN)
def test_a_file_of_another_program_is_not_used_and_a_line_says_so(folder: Path, text: str | bytes) -> None:
    file = find(text)
    assert file.settings == Settings()
    (hint,) = file.find_hints()
    assert hint.startswith(f"{folder / 'config.yaml'} is not used: ")
    assert hint.endswith("To use it, name it with --config or in ACCORDION_CONFIG")


def test_the_line_names_the_sections_that_are_unknown() -> None:
    assert "Accordion has no section `database`, `queue`, so the file" in find("database: 1\nqueue: 2").unused_file


def test_the_user_s_own_file_is_read_in_place_of_another_program_s(folder: Path) -> None:
    (folder / "home" / "accordion").mkdir(parents=True)
    (folder / "home" / "accordion" / "config.yaml").write_text("server: {port: 7}")
    file = find("database: {}", {"XDG_CONFIG_HOME": str(folder / "home")})
    assert file.settings.server.port == 7
    assert file.unused_file


def test_the_local_file_of_the_folder_is_read_before_config_yaml() -> None:
    Path("config.local.yaml").write_text("server: {port: 8}")
    assert find("server: {port: 7}").settings.server.port == 8


def test_config_yaml_is_read_if_the_local_file_is_another_program_s() -> None:
    Path("config.local.yaml").write_text("database: {}")
    assert find("server: {port: 7}").settings.server.port == 7


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sevrer: {port: 1}", "$.sevrer: unknown key; did you mean `server`?"),
        ("compaction: {mode: off}\nmetrics: {}", "$.metrics: unknown key"),
        ("proxy-keys: []\ndatabase: {}", "$.proxy-keys: unknown key; did you mean `proxy_keys`?"),
        ("server: {prot: 1}", "$.server.prot: unknown key"),
        ("compaction:\n\tmode: off", "line 2, column 1: this is a tab"),
        ("- server:\n    port: 1", "expected a mapping of sections"),
        ("server:8787", "write a space after the colon of `server`"),
    ],
)
def test_a_mistake_in_our_own_file_is_an_error_that_names_the_file(folder: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find(text)
    assert caught.value.message.startswith(f"{folder / 'config.yaml'}: ")
    assert words in caught.value.message


@pytest.mark.parametrize("by_variable", [False, True])
def test_a_file_that_is_named_is_used_whatever_is_in_it(folder: Path, by_variable: bool) -> None:
    (folder / "config.yaml").write_text("database: {url: x}")
    with pytest.raises(ConfigError, match="database: unknown key"):
        load(None if by_variable else Path("config.yaml"), {"ACCORDION_CONFIG": "config.yaml"} if by_variable else {})


@pytest.mark.parametrize("text", ["", "# nothing", "server: {port: 1}", "model_list: []\nlitellm_settings: {a: 1}"])
def test_our_own_file_is_used(text: str) -> None:
    file = find(text)
    assert (str(file.path), file.unused_file) == ("config.yaml", "")


def test_a_folder_of_that_name_is_no_file(folder: Path) -> None:
    (folder / "config.yaml").mkdir()
    assert load(None, {}) == Settings()


def test_common_sections_are_sections() -> None:
    assert set(Settings.__struct_fields__) > COMMON_SECTIONS
