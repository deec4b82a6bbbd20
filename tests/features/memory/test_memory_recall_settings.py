"""`memory.recall`: what the file may say, and what is built of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accordion.composition.application import Application
from accordion.config import Settings
from accordion.config.load import build
from accordion.features.memory.memory_parts import MemoryParts
from accordion.features.memory.memory_recall import MemoryRecall, MemoryRecallLimits
from accordion.features.offline.offline_pipeline import OfflinePipeline
from accordion.model.errors import ConfigError
from accordion.model.http import Inbound
from accordion.pipeline.request import PreparedRequest
from accordion.sessions.client_metadata import ClientMetadata

STORE = "store: {url: 'memory://'}\n"


def read(text: str) -> Settings:
    return build(f"{STORE}{text}".encode(), {}, {})


def test_by_default_nothing_is_recalled() -> None:
    assert not read("").memory.recall.enabled


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("enabled: true}, enabled: false", "$.memory.recall.enabled"),
        ("enabled: perhaps}", "$.memory.recall.enabled"),
        ("tokens: 0}", "$.memory.recall.tokens"),
        ("memories: 21}", "$.memory.recall.memories"),
        ("relevance: 1.1}", "$.memory.recall.relevance"),
        ("wait_seconds: 0}", "$.memory.recall.wait_seconds"),
        ("wait_seconds: 31}", "$.memory.recall.wait_seconds"),
        ("all_project: true}", "$.memory.recall.all_project"),
    ],
)
def test_an_invalid_value_is_an_error_at_its_key(text: str, path: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(f"memory: {{recall: {{{text}}}")
    assert refused.value.path == path  # type: ignore[attr-defined]


async def test_settings_of_the_file_are_in_force_and_follow_it() -> None:
    application = Application(read(""), {})
    try:
        assert memory_recall(application) is None
        assert divided(application) == ""
        more = "tokens: 500, memories: 2, relevance: 0.5, wait_seconds: 0.25"
        application.apply_settings(read(f"memory: {{project: ledger, recall: {{enabled: true, {more}}}}}"))
        recall = memory_recall(application)
        assert recall is not None
        assert recall.recall_limits == MemoryRecallLimits(500, 2, 0.5, 0.25, "ledger")
        assert divided(application) == "ledger"
        assert divided(application, "audits") == "audits"
        application.apply_settings(read("memory: {project: ledger, recall: {enabled: true, all_projects: true}}"))
        recall = memory_recall(application)
        assert recall is not None
        assert recall.recall_limits.all_projects
        assert divided(application) == divided(application, "audits") != ""
        application.apply_settings(read("memory: {project: ledger}"))
        assert memory_recall(application) is None
        assert divided(application, "audits") == ""
    finally:
        await application.stop()


def memory_recall(application: Application) -> MemoryRecall | None:
    """The automatic recall of memories, if it is on."""
    sources = application.forward.prepare.compaction_step.recall_sources
    return next((each for each in sources if isinstance(each, MemoryRecall)), None)


def divided(application: Application, project: str | None = None) -> Any:
    mentions = application.forward.reader.measurer.mentions
    assert mentions is not None
    return mentions.separate_projects(ClientMetadata(), project).partition


async def test_explaining_and_replaying_open_no_memories(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[MemoryParts] = []
    monkeypatch.setattr(MemoryParts, "services", opened.append)
    pipeline = OfflinePipeline(read("memory: {recall: {enabled: true}}"))
    try:
        said = [{"role": "user", "content": "Which region does the ledger replicate to?"}]
        body = json.dumps({"model": "gpt-4o", "messages": said}).encode()
        measured = await pipeline.process(Inbound("POST", "/v1/chat/completions", "", (), body, "r"), pipeline.caller)
        assert isinstance(measured, PreparedRequest)
        assert measured.may_hold_insertions
        assert opened == []
    finally:
        await pipeline.close()
