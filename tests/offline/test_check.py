from pathlib import Path

import pytest
from typer.testing import CliRunner

from accordion.cli import app


def lines(tmp_path: Path, text: str) -> list[str]:
    """What `accordion check` says of a config."""
    (tmp_path / "c.yaml").write_text(text)
    result = CliRunner().invoke(app, ["check", str(tmp_path / "c.yaml")])
    assert result.exit_code == 0
    return [" ".join(line.split()) for line in result.output.splitlines()]


def test_the_default_names_its_strategies_and_its_writer(tmp_path: Path) -> None:
    said = lines(tmp_path, "server: {}\n")
    shipped = "stale_reasoning, superseded, compact_tool_results, delegated_digests, summarize, fixed_limits"
    assert f"folding {shipped}" in said
    assert not any("sub-agents" in line for line in said)
    assert "summaries by the request's own model; without a model if that fails" in said


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("compaction: {mode: 'off'}", "folding off"),
        (
            "compaction: {mode: observe, pipeline: [stale_reasoning]}",
            "folding reported only, requests are not changed: stale_reasoning",
        ),
        ("compaction: {models: {small: {pipeline: [fixed_limits]}}}", "folding small: fixed_limits"),
        ("compaction: {models: {small: {mode: 'off'}}}", "folding small: off"),
        ("compaction: {delegated: {pipeline: [fixed_limits]}}", "folding sub-agents: fixed_limits"),
        ("compaction: {models: {small: {delegated: {mode: 'off'}}}}", "folding small: sub-agents: off"),
        ("summaries: {writer: extractive}", "summaries without a model, from sentences of the text"),
        ("summaries: {writer: gpt-4o-mini}", "summaries by the model gpt-4o-mini"),
        ("compaction: {pipeline: [{summarize: {model: gpt-4o-mini}}]}", "summaries by the model gpt-4o-mini"),
        (
            "compaction: {models: {small: {pipeline: [{summarize: {model: gpt-4o-mini}}]}}}",
            "summaries small: by the model gpt-4o-mini",
        ),
        (
            "compaction: {pipeline: [{summarize: {model: gpt-4o}}], models: {small: {pipeline: [summarize]}}}",
            "summaries small: by the request's own model; without a model if that fails",
        ),
    ],
)
def test_what_is_configured_is_said(tmp_path: Path, text: str, line: str) -> None:
    assert line in lines(tmp_path, text + "\n")
