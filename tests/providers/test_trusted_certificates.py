"""The file of trusted certificates that the environment names, and what is said if it cannot be used."""

import ssl
from pathlib import Path

import pytest

from accordion.config import SettingsFile
from accordion.providers.http.transport import describe_connect_error
from accordion.providers.trusted_certificates import find_certificate_problem


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none.pem", "none.pem, which cannot be read: no such file"),
        ("", ", which cannot be read: is a directory"),
        ("empty.pem", "empty.pem, which has no certificate"),
        ("x\0y", "which cannot be read: embedded null byte"),
    ],
)
def test_a_file_of_certificates_that_cannot_be_used_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    (tmp_path / "empty.pem").touch()
    environ = {"SSL_CERT_FILE": f"{tmp_path}/{name}"}
    assert words in find_certificate_problem(environ)
    (tmp_path / "empty.yaml").touch()
    (hint,) = SettingsFile(tmp_path / "empty.yaml", environ).find_hints()
    assert words in hint
    if "\0" not in name:
        monkeypatch.setenv("SSL_CERT_FILE", environ["SSL_CERT_FILE"])
        error = ssl.SSLCertVerificationError(1, "certificate verify failed")
        error.verify_message = "unable to get local issuer certificate"
        assert words in describe_connect_error(error)


def test_a_file_with_a_certificate_and_none_at_all_are_no_problem(tmp_path: Path) -> None:
    (tmp_path / "one.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    assert find_certificate_problem({"SSL_CERT_FILE": str(tmp_path / "one.pem")}) == ""
    assert find_certificate_problem({"SSL_CERT_FILE": ""}) == find_certificate_problem({}) == ""
