from __future__ import annotations

import pytest

from accordion.config import Settings
from accordion.config.load import build
from accordion.model.errors import ConfigError

KEY = "0f" * 32


def read(text: str, **environ: str) -> Settings:
    return build(text.encode(), environ, {})


def test_defaults_are_two_gibibytes_thirty_days_and_compacted_sessions_transcripts():
    archive = Settings().archive
    assert (archive.max_bytes, archive.retention_days, archive.record_mode) == (2**31, 30, "compacted")
    assert not archive.key


@pytest.mark.parametrize(
    ("word", "expected"), [("off", "off"), ("compacted", "compacted"), ("all", "all"), ("false", "off")]
)
def test_a_bare_off_is_a_word_too(word, expected):
    assert read(f"archive: {{record: {word}}}").archive.record_mode == expected


@pytest.mark.parametrize("word", ["on", "some", "3"])
def test_any_other_word_is_refused(word):
    with pytest.raises(ConfigError, match="one of off, compacted, all") as caught:
        read(f"archive: {{record: {word}}}")
    assert caught.value.path == "$.archive.record"


def test_a_key_comes_from_the_file_or_the_environment_and_is_never_shown():
    assert read(f"archive: {{key: '{KEY}'}}").archive.key.reveal() == KEY
    archive = read("", ACCORDION_ARCHIVE_KEY=f"{KEY},{'1e' * 32}").archive
    assert archive.key.reveal().count(",") == 1
    assert KEY not in repr(archive)


@pytest.mark.parametrize("text", ["secret-that-is-short", KEY + "0", f"{KEY},", f"{KEY} {KEY}"])
def test_an_invalid_key_is_refused_without_being_shown(text):
    with pytest.raises(ConfigError, match="32 bytes") as caught:
        read("", ACCORDION_ARCHIVE_KEY=text)
    assert caught.value.path == "$.archive.key"
    assert text not in str(caught.value)
    with pytest.raises(ConfigError, match="32 bytes"):
        read(f"archive: {{key: '{text}'}}")
