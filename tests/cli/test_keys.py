"""`accordion keys`: creates, lists and revokes keys in the store that proxies read."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from accordion.cli.main import app
from accordion.sessions.proxy_keys import CreatedKeys, hash_key
from accordion.stores.open import open_store
from tests.fakes import FakeClock

ADMIN = "admin_key: admin-key-of-this-proxy\n"


class Keys:
    """The command with a config of its own."""

    def __init__(self, folder: Path, config: str = ADMIN) -> None:
        self.url = f"sqlite:///{folder}/store.db"
        self._config = folder / "config.yaml"
        self._config.write_text(f"store: {{url: '{self.url}'}}\nproxy_keys: [{{id: one, key: key-one}}]\n{config}")

    def run(self, *args: str, answer: str | None = None) -> Result:
        return CliRunner().invoke(app, ["keys", *args, "--config", str(self._config)], input=answer)


async def match(keys: Keys, key: str) -> bool:
    store = open_store(keys.url, timeout=20.0)
    created = CreatedKeys(store, FakeClock())
    await created.poll()
    record = created.match(key.encode(), hash_key(key.encode()))
    await store.close()
    return record is not None


def is_valid(keys: Keys, key: str) -> bool:
    return asyncio.run(match(keys, key))


def test_a_key_is_created_listed_and_revoked(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    made = keys.run("create", "research")
    assert (made.exit_code, len(made.stdout.splitlines())) == (0, 1)
    key = made.stdout.strip()
    assert is_valid(keys, key)
    listed = keys.run("list")
    assert "research" in listed.stdout
    assert "in the config" in listed.stdout
    assert key.split("-", 2)[2] not in listed.output
    entries = [json.loads(line) for line in keys.run("list", "--json").stdout.splitlines()]
    assert [(entry["id"], entry["source"]) for entry in entries] == [("one", "config"), (key.split("-")[1], "store")]
    refused = keys.run("revoke", entries[1]["id"], answer="n\n")
    assert refused.exit_code == 1
    assert is_valid(keys, key)
    assert keys.run("revoke", entries[1]["id"], "--yes").exit_code == 0
    assert not is_valid(keys, key)
    again = keys.run("revoke", entries[1]["id"], "--yes")
    assert (again.exit_code, "no created key" in again.stderr) == (2, True)


def test_a_key_gets_limits_and_other_ones_later(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    made = json.loads(keys.run("create", "research", "--tokens-per-day", "5000", "--json").stdout)
    assert made["limits"]["tokens_per_day"] == 5_000
    changed = keys.run("limit", made["id"], "--tokens-per-day", "0", "--dollars-per-day", "2.5")
    assert (changed.exit_code, changed.stdout) == (0, f"{made['id']} has $2.50 a day\n")
    (entry,) = [json.loads(line) for line in keys.run("list", "--json").stdout.splitlines()][1:]
    assert entry["limits"] == {"tokens_per_day": None, "dollars_per_day": 2.5, "requests_per_minute": None}
    assert "$2.50 a day" in keys.run("list").stdout
    assert "no limits" in keys.run("list").stdout


def test_the_json_of_a_new_key_has_the_key(tmp_path: Path) -> None:
    made = json.loads(Keys(tmp_path).run("create", "research", "--json").stdout)
    assert made["key"].startswith(f"acc-{made['id']}-")


@pytest.mark.parametrize(
    ("config", "args", "words"),
    [
        ("", ("create", "research"), "$.admin_key"),
        ("", ("list",), "$.admin_key"),
        (ADMIN, ("create", "a b"), "letters"),
        (ADMIN, ("revoke", "one", "--yes"), "config file"),
        (ADMIN, ("revoke", "../x", "--yes"), "no created key"),
        (ADMIN, ("limit", "one", "--tokens-per-day", "5"), "config file"),
        (ADMIN, ("limit", "0123456789ab", "--tokens-per-day", "5"), "no created key"),
        (ADMIN, ("limit", "0123456789ab"), "Name a limit"),
        (ADMIN, ("create", "research", "--dollars-per-day", "nan"), "must be a number"),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path: Path, config: str, args: tuple[str, ...], words: str) -> None:
    answer = Keys(tmp_path, config).run(*args)
    assert (answer.exit_code, words in " ".join(answer.stderr.split())) == (2, True), answer.output


def test_a_store_in_memory_has_keys_only_in_its_proxy(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"store: {{url: 'memory://'}}\n{ADMIN}")
    answer = CliRunner().invoke(app, ["keys", "create", "research", "--config", str(config)])
    assert (answer.exit_code, "running proxy" in " ".join(answer.stderr.split())) == (2, True)
