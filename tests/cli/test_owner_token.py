"""The file with the token of the proxy's owner."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from accordion.cli.serve import load_owner_token


def test_a_token_is_created_for_its_user_alone_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "state" / "token"
    token = load_owner_token(path)
    assert len(token) >= 32
    assert path.read_text() == f"{token}\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_owner_token(path) == token
    assert os.listdir(path.parent) == ["token"]


@pytest.mark.parametrize("content", ["", "short", "with space " * 9, "\xff" * 40, "a" * 5_000])
def test_a_file_without_a_token_is_replaced(tmp_path: Path, content: str) -> None:
    path = tmp_path / "token"
    path.write_bytes(content.encode("latin-1"))
    path.chmod(0o600)
    token = load_owner_token(path)
    assert token not in ("", content)
    assert load_owner_token(path) == token


def test_a_token_that_others_can_read_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = load_owner_token(path)
    path.chmod(0o640)
    assert load_owner_token(path) != token
    assert path.stat().st_mode & 0o777 == 0o600


def test_proxies_that_start_together_have_one_token(tmp_path: Path) -> None:
    path, tokens = tmp_path / "token", list[str]()
    barrier = threading.Barrier(8)

    def start() -> None:
        barrier.wait()
        tokens.append(load_owner_token(path))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(tokens) == {path.read_text().strip()}


def test_without_a_place_for_the_file_the_token_is_new_at_each_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "token"
    first, second = load_owner_token(path), load_owner_token(path)
    assert len(first) >= 32
    assert first != second
    assert "changes at each start" in caplog.text
