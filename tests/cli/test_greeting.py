"""What `accordion serve` prints at its start about the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from accordion.cli.serve import _find_owner_token, _format_greeting
from accordion.config import SettingsFile

LINK = "/accordion/sign-in?token=secret"


def greeting(folder: Path, **environ: str) -> str:
    (folder / "empty.yaml").touch()
    return _format_greeting(SettingsFile(folder / "empty.yaml", environ), 8787, "secret")


def test_on_a_loopback_address_anybody_looks_and_the_link_is_for_erasing(tmp_path: Path) -> None:
    text = greeting(tmp_path)
    assert "look             http://127.0.0.1:8787/accordion/" in text
    assert f"erase, export    http://127.0.0.1:8787{LINK}" in text


@pytest.mark.parametrize(
    ("host", "own"), [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("[fd00::1]", "[fd00::1]"), ("192.0.2.7", "192.0.2.7")]
)
def test_on_another_address_the_link_with_the_owners_token_shows_the_page(tmp_path: Path, host: str, own: str) -> None:
    text = greeting(tmp_path, ACCORDION_HOST=host, ACCORDION_LOG="json")
    assert f"\n    look             http://{own}:8787{LINK}\n" in text
    assert "Keep this link for yourself" in text


def test_with_proxy_keys_no_token_is_printed_and_none_opens_the_page(tmp_path: Path) -> None:
    (tmp_path / "keyed.yaml").write_text("proxy_keys: [{id: one, key: key-one}]\nserver: {host: 0.0.0.0}\n")
    file = SettingsFile(tmp_path / "keyed.yaml", {})
    assert "secret" not in _format_greeting(file, 8787, "secret")
    assert _find_owner_token(file.settings) == ""


def test_without_a_home_on_another_address_there_is_a_token_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    (tmp_path / "empty.yaml").touch()
    file = SettingsFile(tmp_path / "empty.yaml", {"ACCORDION_HOST": "0.0.0.0"})
    assert len(_find_owner_token(file.settings)) >= 32
