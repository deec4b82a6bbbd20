"""`accordion explain --session`: the last request of a session as it was sent, from the store itself."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from accordion.cli.main import app
from accordion.model.ports import Key
from accordion.stores.sqlite import SqliteStore
from tests.growing_conversation import COMPACTED_AT, GrowingConversation, small_window_setup
from tests.histories import ProtocolName
from tests.pipeline_setup import header
from tests.writers import LISTS


def run(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["explain", *arguments, "--config", str(folder / "config.yaml")])


def fill_store(folder: Path, turns: int, protocol_name: ProtocolName = "chat") -> tuple[str, dict[str, Any]]:
    """Fills a store with a session; returns it, and the body that the provider got last."""

    async def fill() -> tuple[str, dict[str, Any]]:
        store: Any = SqliteStore(folder / "store.db", timeout=30.0)
        await store.put_if_absent(Key("", "secret/tenants"), b"secret" * 6)
        talk = GrowingConversation(small_window_setup(store=store, config="archive: {record: all}"), protocol_name)
        out = await talk.until(turns)
        await talk.setup.archive.transcripts.flush()
        await talk.setup.outbox.flush()
        await store.close()
        return header(out, "x-accordion-session") or "", json.loads(talk.forwarded)

    (folder / "config.yaml").write_text(f"store: {{url: 'sqlite:///{folder}/store.db'}}\n")
    return asyncio.run(fill())


@pytest.mark.parametrize("protocol_name", ["chat", "responses", "messages"])
def test_the_last_request_is_explained_as_it_was_sent(tmp_path: Path, protocol_name: ProtocolName) -> None:
    session, got = fill_store(tmp_path, COMPACTED_AT + 1, protocol_name)
    result = run(tmp_path, "--session", session, "--full", "--json")
    assert result.exit_code == 0, result.output
    explained = json.loads(result.stdout)
    report = explained["compaction"]
    assert (explained["session"], report["state"]) == (session, "compacted")
    assert json.loads(report["body"])[LISTS[protocol_name]] == got[LISTS[protocol_name]]
    assert report["id"] == explained["last"]["compaction"]["id"]
    assert {each["became"] for each in report["listed"]} >= {"kept", "block"}
    assert report["artifacts"]
    text = run(tmp_path, "--session", session).stdout
    for words in (session, report["id"], "block 1", report["artifacts"][0]["id"], "number 1"):
        assert words in text


def test_a_request_without_a_compaction_was_sent_as_it_came(tmp_path: Path) -> None:
    session, _ = fill_store(tmp_path, 2)
    result = run(tmp_path, "--session", session)
    assert result.exit_code == 0
    assert "sent as it came" in result.stdout


def test_an_unknown_session_and_wrong_arguments_are_named(tmp_path: Path) -> None:
    fill_store(tmp_path, 1)
    unknown = run(tmp_path, "--session", "s-none")
    assert (unknown.exit_code, "has no such session" in unknown.stderr) == (1, True)
    assert run(tmp_path).exit_code == 2
    assert run(tmp_path, "request.json", "--session", "s-none").exit_code == 2
