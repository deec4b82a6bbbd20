from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.features.memory.conversation.credentials import MASK, has_credential, mask_credentials

LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("The API key is {} for now.", "sk-proj-" + LETTERS[:16] + "1234"),
        ("Use {} to deploy.", "ghp_" + LETTERS[:16] + "1"),
        ("Call it with Authorization: Bearer {}.", "abc123def456"),
        ("psql postgres://bob:{}@db.internal:5432/app", "s3cret"),
        ("pip install --index-url https://build:{}@pypi.internal/simple ledger", "hunterhunter"),
        ("curl -u bob:{} https://api.internal/v1", "hunterhunter"),
        ("DB_PASSWORD={} make test", "hunterhunter"),
        ("export AWS_SECRET_ACCESS_KEY='{}'", "wJalrXUtnFEMI/K7MDENG"),
        ('{{"password": "{}"}}', "hunterhunter"),
        ("mysql --password {} ledger", "hunterhunter"),
        ("The database password is {} on staging.", "hunter2hunter2"),
        ("My password for the portal is `{}`.", "tr0ub4dor&3"),
        ("Log in with {}", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dozjgNryP4J3"),
        ("token: {}", "abcdefgh"),
        ("Its password is {}.", "hunter2"),
        ("Its password is {}, as always.", "swordfish"),
        ("The key:\n{}", "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----"),
        (
            '{{"private_key_id": 1, "key": "{}\\n"}}',
            r"-----BEGIN PRIVATE KEY-----\nMIIE\nabc=\n-----END PRIVATE KEY-----",
        ),
        ('KEY="{}', r"-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANB\nabcd"),
        ("{}", "-----BEGIN RSA PRIVATE KEY-----\nDEK-Info: AES-128-CBC,0A\n\nMIIE\n-----END RSA PRIVATE KEY-----"),
        ("{} is it.", "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nlQOY\n=ab\n-----END PGP PRIVATE KEY BLOCK-----"),
    ],
)
def test_a_credential_is_masked_and_what_is_said_about_it_stays(text: str, value: str) -> None:
    said = text.format(value)
    assert has_credential(said)
    assert mask_credentials(said) == text.format(MASK)
    assert mask_credentials(mask_credentials(said)) == mask_credentials(said)


@pytest.mark.parametrize(
    "text",
    [
        "The token is rotated daily, and the password is required at each login.",
        "A password is never shown, and the secret is that there is none.",
        "Read DB_PASSWORD=$DB_PASSWORD from the environment.",
        "api_key = os.environ['OPENAI_API_KEY']",
        "Set api_key: ${OPENAI_API_KEY} in config.yaml.",
        "skip_validation_errors and pkg_resources_extension are options of npm_config_registry_default.",
        "max_tokens=4096 and primary_key=ledger_id",
        "Secrets live in infra/vault.tf; see https://example.com:8443/path and git@github.com:acme/ledger.git",
        "Basic authentication remains possible.",
        "",
    ],
)
def test_text_about_credentials_stays_unchanged(text: str) -> None:
    assert mask_credentials(text) == text
    assert not has_credential(text)


PIECES = (
    "password",
    "=",
    ": ",
    " is ",
    "hunter2",
    MASK,
    "'",
    "Bearer ",
    "sk-",
    "abc123def456ghi7",
    "://a:",
    "@",
    "\n",
    "é",
)


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_masking_twice_is_masking_once(text: str) -> None:
    assert mask_credentials(mask_credentials(text)) == mask_credentials(text)


@pytest.mark.parametrize(
    "piece", ["_", "a_", "sk-", "://", "password ", "-u a:", "-----BEGIN ", "-----BEGIN PRIVATE KEY-----", "token is "]
)
def test_a_long_text_takes_no_longer_for_each_of_its_signs(piece: str) -> None:
    """A rule that looks back over all of the text would take hours here, and the run's time-out ends it."""
    assert len(mask_credentials(piece * 40_000)) >= 40_000
