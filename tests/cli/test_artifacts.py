"""`accordion artifacts`, `export`, `erase`: what is kept, from the store itself."""

import asyncio
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from accordion.archive.archive import Archive
from accordion.cli.main import app
from accordion.cli.tenant_store import print_json, print_text
from accordion.composition.configured_store import MARK, build_spool, identity_from_mark, new_mark
from accordion.config.load import build
from accordion.model.ports import Key
from accordion.server.event_loop import LoopClock
from accordion.sessions.proxy_keys import ProxyKey
from accordion.sessions.tenants import Tenants
from accordion.stores.spool import StoreRecord
from accordion.stores.sqlite import SqliteStore
from tests.growing_conversation import COMPACTED_AT, GrowingConversation, call_id, small_window_setup
from tests.pipeline_setup import header
from tests.spools import add_waiting

SECRET = "secret" * 6
KEYS = (ProxyKey("one", "key-one"), ProxyKey("two", "key-two"))


@dataclass
class FilledStore:
    """A store in which a session was compacted. `tenants` are their sessions."""

    config: Path
    tenants: dict[str, str]

    def run(self, *args: str, given: str | None = None) -> Result:
        return CliRunner().invoke(app, [*args, "--config", str(self.config)], input=given)

    def list_artifacts(self, *more: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run("artifacts", "--json", *more).stdout.splitlines()]


def fill_store(folder: Path, keys: tuple[ProxyKey, ...] = ()) -> FilledStore:
    """Fills a store as a proxy with these proxy keys does."""

    async def fill() -> dict[str, str]:
        store: Any = SqliteStore(folder / "kept.db", timeout=30.0)
        await store.put_if_absent(Key("", "secret/tenants"), SECRET.encode())
        setup, found = small_window_setup(store=store, keys=keys), {}
        for key in keys or (ProxyKey("default", ""),):
            headers = {"x_accordion_key": key.key} if key.key else {}
            out = await GrowingConversation(setup).until(COMPACTED_AT + 1, **headers)
            found[key.id] = header(out, "x-accordion-session") or ""
        await setup.outbox.flush()
        await store.close()
        return found

    config = folder / "config.yaml"
    listed = ", ".join(f'{{id: {key.id}, key: "${{NO_SUCH:-{key.key}}}"}}' for key in keys)
    config.write_text(f"store: {{url: 'sqlite:///{folder}/kept.db'}}\nproxy_keys: [{listed}]\n")
    return FilledStore(config, asyncio.run(fill()))


@pytest.fixture(scope="module")
def filled_store(tmp_path_factory: pytest.TempPathFactory) -> FilledStore:
    return fill_store(tmp_path_factory.mktemp("kept"))


def test_artifacts_are_listed_in_the_order_of_their_messages(filled_store: FilledStore) -> None:
    found = filled_store.list_artifacts()
    assert len(found) > 3
    assert [each["messages"] for each in found] == sorted(each["messages"] for each in found)
    assert {each["session"] for each in found} == {filled_store.tenants["default"]}
    assert filled_store.list_artifacts("--session", filled_store.tenants["default"]) == found
    table = filled_store.run("artifacts").stdout
    assert all(each["id"] in table for each in found)
    assert "read" in table


@pytest.mark.parametrize("columns", ["80", "30", ""])
def test_ids_are_complete_at_every_width(
    filled_store: FilledStore, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    table = filled_store.run("artifacts").stdout.splitlines()
    assert table[0] == filled_store.tenants["default"]
    assert [line.split()[0] for line in table[2:]] == [each["id"] for each in filled_store.list_artifacts()]
    if columns == "80":
        assert max(map(len, table)) <= 80
        assert table[1].split() == ["id", "messages", "content", "characters"]


def test_nothing_is_listed_of_a_session_that_there_is_not(filled_store: FilledStore) -> None:
    shown = filled_store.run("artifacts", "--session", "s-unknown")
    assert (shown.exit_code, shown.stdout.strip()) == (0, "there are no artifacts")


def test_an_artifact_is_shown_whole_and_in_parts(filled_store: FilledStore) -> None:
    [result] = [each for each in filled_store.list_artifacts() if each["call_id"] == call_id(2)]
    whole = filled_store.run("artifacts", result["id"])
    assert whole.exit_code == 0
    assert whole.stdout.startswith("word2_0_0 word2_0_1")
    assert len(whole.stdout) == result["characters"] + 1
    assert "result of read" in whole.stderr
    [stretch] = [each for each in filled_store.list_artifacts() if each["kind"] == "range"]
    page = filled_store.run("artifacts", stretch["id"], "--offset", "2", "--limit", "1")
    assert page.stdout.strip() == "## Tool: read"
    assert "--offset 3" in page.stderr
    assert "2:## Tool: read" in filled_store.run("artifacts", stretch["id"], "--pattern", "^## Tool").stdout
    assert filled_store.run("artifacts", result["id"], "--path", "$input.path").stdout.strip() == "src/file_2_0.py"
    told = json.loads(filled_store.run("artifacts", result["id"], "--json").stdout)
    assert told["artifact"] == result
    assert told["text"] == whole.stdout[:-1]


def test_half_a_character_is_printed_as_a_replacement_character(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"text": "half \U0010f83d"})
    print_text("half \U0010f83d")
    assert capsys.readouterr().out == '{"text":"half \ufffd"}\nhalf \ufffd\n'


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("artifacts", "art_000000000000"), 1, "no such artifact"),
        (("artifacts", "ID", "--path", "$.x"), 2, "JSON"),
        (("artifacts", "--offset", "3"), 2, "need the ID"),
        (("artifacts", "ID", "--session", "s"), 2, "lists artifacts"),
        (("export", "--session", "s-mistyped"), 1, "s-mistyped: tenant 'default' has no such session"),
        (("export", "--session", ""), 1, "has no such session"),
        (("erase", "--session", "s-mistyped", "--yes"), 1, "has no such session"),
        (("erase",), 2, "--session S, or --all"),
        (("erase", "--all", "--session", "s"), 2, "--session S, or --all"),
    ],
)
def test_what_cannot_be_done_is_said(filled_store: FilledStore, args: tuple[str, ...], code: int, words: str) -> None:
    some = filled_store.list_artifacts()[0]["id"]
    shown = filled_store.run(*[some if arg == "ID" else arg for arg in args])
    assert shown.exit_code == code
    assert words in " ".join(re.sub(r"[│╭╮╰╯─]", " ", shown.stderr).split())
    assert shown.stdout == ""


def test_an_export_is_all_of_it(filled_store: FilledStore) -> None:
    for more in ((), ("--session", filled_store.tenants["default"])):
        shown = filled_store.run("export", *more)
        lines = [json.loads(line) for line in shown.stdout.splitlines()]
        assert shown.exit_code == 0
        assert lines[-1]["type"] == "end"
        told = {line["artifact"]["id"] for line in lines if line["type"] == "artifact"}
        assert told == {each["id"] for each in filled_store.list_artifacts()}


def test_with_proxy_keys_it_must_be_said_whose(tmp_path: Path) -> None:
    kept = fill_store(tmp_path, KEYS)
    unsaid = kept.run("artifacts")
    assert unsaid.exit_code == 2
    assert "--tenant: choose one of one, two" in unsaid.stderr
    one, two = (kept.list_artifacts("--tenant", name) for name in ("one", "two"))
    assert {each["session"] for each in one} == {kept.tenants["one"]}
    assert {each["session"] for each in two} == {kept.tenants["two"]}
    # The same was said to both, and yet neither's id is of use to the other.
    assert not {each["id"] for each in one} & {each["id"] for each in two}
    assert kept.run("artifacts", one[0]["id"], "--tenant", "two").exit_code == 1
    assert kept.run("artifacts", one[0]["id"], "--tenant", "one").exit_code == 0


def test_the_tenants_are_listed_with_what_is_kept_of_each(tmp_path: Path) -> None:
    kept = fill_store(tmp_path, KEYS)
    told = [json.loads(line) for line in kept.run("tenants", "--json").stdout.splitlines()]
    assert [(each["tenant"], each["sessions"]) for each in told] == [("one", 1), ("two", 1)]
    assert all(each["held"] > 1_000 for each in told)
    table = kept.run("tenants").stdout
    assert "one" in table
    assert "two" in table


def test_a_tenant_is_named_as_its_owner_knows_it(tmp_path: Path, filled_store: FilledStore) -> None:
    assert (
        filled_store.list_artifacts("--tenant", "local")
        == filled_store.list_artifacts("--tenant", "default")
        == filled_store.list_artifacts()
    )
    keyed = fill_store(tmp_path, KEYS)
    # The proxy key is gone from the config, what was kept under it is not.
    keyed.config.write_text(f"store: {{url: 'sqlite:///{tmp_path}/kept.db'}}\n")
    one = keyed.list_artifacts("--tenant", "one")
    assert {each["session"] for each in one} == {keyed.tenants["one"]}
    assert keyed.list_artifacts("--tenant", "tw")
    unsaid = keyed.run("artifacts")
    assert unsaid.exit_code == 2
    assert "--tenant: choose one of one, two" in unsaid.stderr
    unknown = keyed.run("artifacts", "--tenant", "three")
    assert unknown.exit_code == 2
    assert "--tenant: there is no tenant 'three'; the tenants are one, two" in " ".join(unknown.stderr.split())


def test_nothing_is_erased_without_a_yes(tmp_path: Path) -> None:
    kept = fill_store(tmp_path, KEYS)
    asked = kept.run("erase", "--all", "--tenant", "one", given="n\n")
    assert asked.exit_code == 1
    assert "'one'" in asked.stderr
    assert asked.stdout == ""
    assert kept.list_artifacts("--tenant", "one")
    done = kept.run("erase", "--session", kept.tenants["one"], "--tenant", "one", given="y\n")
    assert done.exit_code == 0
    assert "erased: 1 session," in done.stdout
    assert kept.list_artifacts("--tenant", "one") == []
    assert kept.list_artifacts("--tenant", "two")
    assert kept.run("erase", "--all", "--tenant", "two", "--yes").exit_code == 0
    assert json.loads(kept.run("export", "--tenant", "two").stdout) == {"type": "end", "counts": {}}


def test_a_store_that_cannot_be_read_is_said_and_none_is_made(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    for url, words in (("memory://", "running proxy"), (f"sqlite:///{tmp_path}/none.db", "there is no file")):
        config.write_text(f"store: {{url: '{url}'}}\n")
        shown = CliRunner().invoke(app, ["artifacts", "--config", str(config)])
        assert shown.exit_code == 2
        assert words in " ".join(shown.stderr.split())
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_spooled_writes_are_erased_too(tmp_path: Path) -> None:
    kept = fill_store(tmp_path)

    async def hold() -> None:
        store = SqliteStore(tmp_path / "kept.db", timeout=30.0)
        caller = Tenants(SECRET.encode(), (), loopback=True).identify({})
        puts = Archive(store, 86_400.0, clock=LoopClock()).single_value_puts(
            caller.tenant, "s-spooled", "summary", Key("", "summary/x"), b"what was said"
        )
        config = build(f"store: {{url: 'sqlite:///{tmp_path}/kept.db'}}".encode(), {}, {})
        spooled = build_spool(config, store)
        spooled.identify(StoreRecord(identity_from_mark(await store.put_if_absent(MARK, new_mark())), SECRET.encode()))
        await add_waiting(spooled, puts)
        await store.close()

    asyncio.run(hold())
    erased = kept.run("erase", "--session", "s-spooled", "--yes")
    assert erased.exit_code == 0
    content = (tmp_path / "kept.db.spool").read_bytes()
    # What is left lists the tenant, and says nothing of the session.
    assert b"summary" not in content
    assert kept.run("export", "--session", "s-spooled").exit_code == 1
