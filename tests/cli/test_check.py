from pathlib import Path

import pytest
from typer.testing import CliRunner

from accordion.cli.main import app


def lines(tmp_path: Path, text: str) -> list[str]:
    """Returns the output of `accordion check` for a config."""
    (tmp_path / "c.yaml").write_text(text)
    result = CliRunner().invoke(app, ["check", str(tmp_path / "c.yaml")])
    assert result.exit_code == 0
    return [" ".join(line.split()) for line in result.output.splitlines()]


def test_the_default_names_its_strategies_and_its_writer(tmp_path: Path) -> None:
    said = lines(tmp_path, "server: {}\n")
    shipped = "stale_reasoning, superseded, compact_tool_results, delegated_digests, summarize, fixed_limits"
    assert f"compaction auto: {shipped}" in said
    assert not any("sub-agents" in line for line in said)
    assert "summaries by the request's own model; without a model if that fails" in said


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("compaction: {mode: 'off'}", "compaction off"),
        (
            "compaction: {mode: observe, pipeline: [stale_reasoning]}",
            "compaction observe, requests are not changed: stale_reasoning",
        ),
        ("compaction: {models: {small: {pipeline: [fixed_limits]}}}", "compaction small: auto: fixed_limits"),
        ("compaction: {models: {small: {mode: 'off'}}}", "compaction small: off"),
        ("compaction: {delegated: {pipeline: [fixed_limits]}}", "compaction sub-agents: auto: fixed_limits"),
        ("compaction: {models: {small: {delegated: {mode: 'off'}}}}", "compaction small: sub-agents: off"),
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
def test_the_configuration_is_summarized(tmp_path: Path, text: str, line: str) -> None:
    assert line in lines(tmp_path, text + "\n")


def test_each_configured_model_is_shown_with_its_window_and_triggers(tmp_path: Path) -> None:
    entries = [
        "{model_name: a, litellm_params: {model: openai/qwen-local}}",
        "{model_name: b, litellm_params: {model: openai/qwen-local}, model_info: {max_input_tokens: 32000}}",
        "{model_name: c, litellm_params: {model: openai/gpt-4.1}}",
    ]
    said = "\n".join(lines(tmp_path, f"model_list: [{', '.join(entries)}]\n"))
    assert "window a: 120,000 tokens (assumed: the model is unknown); triggers: conversation 60,000" in said
    assert "window b: 32,000 tokens (from the config); triggers: conversation 16,000, generation 24,000" in said
    assert "tokens (from LiteLLM's table)" in said
    assert "warning $.model_list[0].model_info.max_input_tokens" in said


def test_a_name_with_a_star_has_the_window_of_the_model_that_is_asked_for(tmp_path: Path) -> None:
    entries = [
        '{model_name: "openai/*", litellm_params: {model: "openai/*"}}',
        '{model_name: "local/*", litellm_params: {model: "openai/*"}, model_info: {max_input_tokens: 32000}}',
    ]
    said = "\n".join(lines(tmp_path, f"model_list: [{', '.join(entries)}]\n"))
    assert "window openai/*: that of the model that a client names" in said
    assert "window local/*: 32,000 tokens (from the config)" in said
    assert "120,000" not in said
