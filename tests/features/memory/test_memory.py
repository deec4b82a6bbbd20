"""`accordion memory …`: memories of a session that went through a running proxy, from its store."""

import asyncio
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from accordion.cli.main import app
from accordion.features.memory.session.session_text import render_sections
from tests.conftest import Start
from tests.e2e.memory_samples import PLAN, RECORDED, SUMMARY, memory_arguments, record_conversation

ID = re.compile(r"CMEM-\d{8}-\d{6}(?:-\d+)?")


@dataclass
class MemoryCommands:
    """A store with a recorded session in it."""

    config: Path
    session: str

    def run(self, *args: str, given: str | None = None) -> Result:
        return CliRunner().invoke(app, ["memory", *args, "--config", str(self.config)], input=given)

    def run_json(self, *args: str) -> Any:
        result = self.run(*args, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)


@pytest.fixture(scope="module")
def recorded_store(start: Start, tmp_path_factory: pytest.TempPathFactory) -> MemoryCommands:
    folder = tmp_path_factory.mktemp("kept")
    store = f"sqlite:///{folder}/kept.db"
    config = folder / "config.yaml"
    config.write_text(f"store: {{url: '{store}'}}\n")
    return MemoryCommands(config, asyncio.run(record_conversation(start(RECORDED, ACCORDION_STORE=store))))


def empty_store(folder: Path) -> MemoryCommands:
    config = folder / "config.yaml"
    config.write_text(f"store: {{url: 'sqlite:///{folder}/new.db'}}\n")
    return MemoryCommands(config, "")


def test_messages_become_memories_that_are_found_and_shown_with_their_sources(recorded_store: MemoryCommands):
    early = recorded_store.run("compact", recorded_store.session, "0", "7")
    assert (early.exit_code, early.stdout) == (2, "")
    assert "--session" in early.stderr
    assert "conversation_id" not in early.stderr
    assert recorded_store.run_json("search", "--session", recorded_store.session)["compactions"] == []
    made = recorded_store.run_json("compact", recorded_store.session, "0", "7")["memories_created"]
    about = next(each for each in made if "PostgreSQL 16" in each["content"])
    found = recorded_store.run_json("search", "why PostgreSQL for the ledger", "--explain")["results"]
    assert about["id"] in [each["id"] for each in found]
    assert "relevance" in found[0]["scores"]
    table = recorded_store.run("search", "why PostgreSQL for the ledger").stdout
    assert about["id"] in table
    assert "candidates" not in table
    assert "relevance" not in table
    assert "relevance 0." in recorded_store.run("search", "why PostgreSQL for the ledger", "--explain").stdout
    assert [line for line in table.splitlines() if about["id"] in line], "the id is complete"
    shown = recorded_store.run("show", about["id"], "--originals")
    assert shown.exit_code == 0
    assert about["content"] in shown.stdout
    assert f"of {recorded_store.session}" in shown.stdout
    assert '"role":"user"' in shown.stdout.replace(" ", "")
    assert about["id"] in recorded_store.run("list", "--session", recorded_store.session).stdout


def test_a_saved_session_is_shown_first_and_its_recovery_id_stands_in_a_box(recorded_store: MemoryCommands):
    declined = recorded_store.run("save", recorded_store.session, given="n\n")
    assert declined.exit_code == 1
    assert "## Execution Plan" in declined.stderr
    assert recorded_store.run_json("list", "--type", "session")["total"] == 0
    saved = recorded_store.run(
        "save", recorded_store.session, "--description", "the ledger moves", "--tag", "db", given="y\n"
    )
    assert saved.exit_code == 0
    found = ID.search(saved.stdout)
    assert found is not None
    assert "╔" in saved.stdout
    assert f'"Please import memory {found[0]}"' in saved.stdout
    text = recorded_store.run("export", "--id", found[0]).stdout
    assert all(todo["content"] in text for todo in PLAN)
    assert found[0] in recorded_store.run("list", "--type", "session", "--tag", "db").stdout
    unknown = recorded_store.run("export", "--id", "CMEM-20200101-000000")
    assert (unknown.exit_code, unknown.stdout) == (2, "")
    assert "There is no session memory CMEM-20200101-000000" in unknown.stderr


def test_saved_sessions_are_listed_by_what_they_were_for_with_their_tags(tmp_path: Path):
    kept, file = empty_store(tmp_path), tmp_path / "own.md"
    file.write_text(render_sections({"Objective": "Mend gate B7.", "Notes": "It rusts."}))
    assert kept.run("save", "--text", str(file), "--tag", "harbour,b7", "--force").exit_code == 0
    listed = kept.run("list", "--type", "session").stdout
    assert "Mend gate B7." in listed
    assert "harbour, b7" in listed
    (told,) = kept.run_json("list", "--type", "session", "--tag", "B7")["memories"]
    assert told["tags"] == ["harbour", "b7"]


def test_a_text_of_ones_own_is_saved_without_asking_where_that_is_forced(tmp_path: Path):
    kept, text = empty_store(tmp_path), tmp_path / "text.md"
    text.write_text(render_sections({"Objective": "Mend gate B7."}))
    saved = kept.run("save", "--text", str(text), "--force")
    found = ID.search(saved.stdout)
    assert found is not None, saved.output
    assert "Mend gate B7." in kept.run("export", "--id", found[0]).stdout
    assert kept.run("save", "--force").exit_code == 2


def test_an_id_with_brackets_is_shown_as_it_is(tmp_path: Path):
    kept, lines = empty_store(tmp_path), tmp_path / "all.jsonl"
    lines.write_text(json.dumps({"memory": {"id": "[b]mem[/x]", "type": "fact", "content": "The gate is green."}}))
    assert kept.run("import", str(lines)).exit_code == 0
    listed = kept.run("list")
    assert listed.exit_code == 0, listed.exception
    assert "[b]mem[/x]" in listed.stdout


def test_a_topics_summary_is_written_with_its_sources_and_restored(tmp_path: Path):
    kept, text = empty_store(tmp_path), tmp_path / "summary.md"
    ids = [
        kept.run_json("add", note["content"], "--topic", "ledger", "--type", "decision")["id"]
        for note in memory_arguments(12)
    ]
    text.write_text(SUMMARY)
    refused = kept.run("consolidate", "ledger", str(text))
    assert refused.exit_code == 2
    assert "names 0 memories" in refused.stderr
    text.write_text(f"{SUMMARY} [{', '.join(ids)}]")
    made = kept.run_json("consolidate", "ledger", str(text))
    assert (made["memories"], made["sources"]) == (12, 12)
    again = kept.run("consolidate", "ledger", "-", given=text.read_text())
    assert again.exit_code == 0, again.output
    assert kept.run_json("list", "--type", "summary_archived")["total"] == 1


def test_a_superseded_memory_is_found_on_request(tmp_path: Path):
    kept = empty_store(tmp_path)
    added = kept.run_json("add", "The ledger listens on port 5432.")
    assert kept.run("status", "superseded", added["id"]).exit_code == 0
    assert kept.run_json("search", "ledger port")["results"] == []
    (found,) = kept.run_json("search", "ledger port", "--inactive")["results"]
    assert found["status"] == "superseded"
    assert kept.run("status", "gone", added["id"]).exit_code == 2
    assert kept.run("status", "active", "mem-none").exit_code == 1
    assert kept.run_json("search", "violin strings")["results"] == []
    assert len(kept.run_json("search", "violin strings", "--everything", "--inactive")["results"]) == 1


def test_a_memory_is_reworded_and_deleted(tmp_path: Path):
    kept = empty_store(tmp_path)
    first = kept.run_json("add", "The ledger listens on port 5432.", "--tag", "db")
    other = kept.run_json("add", "The ledger listens on port 5433.", "--replace", first["id"])
    assert (other["id"], other["is_new"]) == (first["id"], False)
    (shown,) = kept.run_json("show", first["id"])["memories"]
    assert (shown["content"], shown["tags"]) == ("The ledger listens on port 5433.", ["db"])
    assert kept.run("delete", first["id"]).exit_code == 0
    assert kept.run("delete", first["id"]).exit_code == 1
    gone = kept.run("show", first["id"])
    assert gone.exit_code == 1
    assert f"not found: {first['id']}" in gone.stderr


def test_all_memories_are_exported_erased_with_proof_and_taken_in_again(tmp_path: Path):
    kept, lines = empty_store(tmp_path), tmp_path / "all.jsonl"
    for note in memory_arguments(5):
        kept.run_json("add", note["content"], "--topic", "ledger")
    lines.write_text(kept.run("export").stdout)
    assert len(lines.read_text().splitlines()) == 5
    assert kept.run("erase", given="n\n").exit_code == 1
    done = kept.run_json("erase", "--yes")
    assert (done["before"]["memories"], done["after"]["memories"], done["verified"]) == (5, 0, True)
    assert kept.run("export").stdout == ""
    assert kept.run_json("import", str(lines))["memories"] == 5
    assert kept.run_json("import", str(lines))["kept"] == 5
    assert sorted(kept.run("export").stdout.splitlines()) == sorted(lines.read_text().splitlines())
    assert kept.run_json("search", "audits of region 2")["results"]


def test_a_question_does_not_stand_in_the_json(recorded_store: MemoryCommands):
    for answer, code in (("n\n", 1), ("y\n", 0)):
        saved = recorded_store.run("save", recorded_store.session, "--json", given=answer)
        assert saved.exit_code == code
        assert (json.loads(saved.stdout)["id"] == "") is (code == 1)
        assert "Save this?" in saved.stderr
    erased = recorded_store.run("erase", "--json", given="y\n")
    assert erased.stdout.startswith("{")
    assert json.loads(erased.stdout)["verified"] is True
    assert "Erase all memories" in erased.stderr


def test_what_cannot_be_read_is_not_taken_in_at_all(tmp_path: Path):
    kept, lines = empty_store(tmp_path), tmp_path / "all.jsonl"
    kept.run_json("add", "Something.")
    good = kept.run("export").stdout
    lines.write_text(good.replace("Something", "Other").replace('"id":"mem-', '"id":"mem-9') + '{"nothing": 1}\n')
    refused = kept.run("import", str(lines))
    assert refused.exit_code == 2
    assert "Line 2" in refused.stderr
    assert kept.run_json("list")["total"] == 1
    assert kept.run("import", str(tmp_path / "none")).exit_code == 2


def test_where_no_proxy_was_a_command_that_reads_says_so_and_one_that_writes_begins(tmp_path: Path):
    kept = empty_store(tmp_path)
    assert "there is no file" in kept.run("list").stderr
    assert kept.run_json("add", "Something.")["is_new"]
    assert kept.run_json("list")["total"] == 1


def test_where_there_are_to_be_no_memories_the_commands_say_so(tmp_path: Path):
    kept = empty_store(tmp_path)
    kept.config.write_text(kept.config.read_text() + "memory: {enabled: false}\n")
    refused = kept.run("add", "Something.")
    assert refused.exit_code == 2
    assert "$.memory.enabled" in refused.stderr


def test_the_configured_project_is_meant_where_none_is_named(tmp_path: Path):
    kept = empty_store(tmp_path)
    kept.run_json("add", "The gate is green.", "--project", "house")
    kept.config.write_text(kept.config.read_text() + "memory: {project: barn}\n")
    kept.run_json("add", "The gate is red.")
    assert [each["project"] for each in kept.run_json("search", "gate")["results"]] == ["barn"]
    assert [each["project"] for each in kept.run_json("search", "gate", "--project", "house")["results"]] == ["house"]
    assert kept.run_json("list", "--project", "*")["total"] == 2
    assert kept.run("add", "x", "--project", "*").exit_code == 2
