"""Trajectories in ATIF: read as requests of the agent, and written from a recorded session."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from accordion.cli.main import app
from accordion.features.offline.recordings import MalformedTranscript
from accordion.features.offline.trajectories import write_trajectory
from accordion.features.offline.transcripts import TranscriptSource
from accordion.model.budget import Utilization
from accordion.model.records import Exchange, Usage
from accordion.model.tenant import TenantScope
from accordion.protocols.body_reader import BodyReader
from accordion.protocols.registry import PROTOCOLS
from tests.features.offline.test_explain_session import fill_store
from tests.histories import ProtocolName

TRAJECTORY: dict[str, Any] = {
    "schema_version": "ATIF-v1.6",
    "session_id": "run-1",
    "agent": {
        "name": "some-agent",
        "version": "1.0",
        "model_name": "gpt-4o",
        "tool_definitions": [{"type": "function"}],
    },
    "steps": [
        {"step_id": 1, "source": "system", "message": "Be brief."},
        {"step_id": 2, "source": "user", "message": [{"type": "text", "text": "Look."}, {"type": "image"}]},
        {
            "step_id": 3,
            "source": "agent",
            "timestamp": "2026-01-01T00:00:00Z",
            "message": "I look.",
            "reasoning_content": "Two calls.",
            "tool_calls": [
                {"tool_call_id": "a", "function_name": "look", "arguments": {"at": "x"}},
                {"tool_call_id": "b", "function_name": "run", "arguments": {}},
            ],
            "observation": {
                "results": [
                    {"source_call_id": "a", "content": "x is 1"},
                    {"source_call_id": "b", "content": None},
                    {"content": "the time is up"},
                ]
            },
            "metrics": {"prompt_tokens": 50, "completion_tokens": 8, "cached_tokens": 20, "cost_usd": 0.1},
        },
        {"step_id": 4, "source": "agent", "model_name": "gpt-5", "message": "It is 1."},
    ],
}


def read_requests(folder: Path, trajectory: object) -> list[Any]:
    file = folder / "trajectory.json"
    file.write_text(json.dumps(trajectory, indent=2))
    (conversation,) = TranscriptSource(str(file))
    if isinstance(conversation, MalformedTranscript):
        return [conversation]
    return list(conversation.requests())


def test_a_trajectory_is_read_as_the_requests_of_its_responses(tmp_path: Path) -> None:
    first, second = read_requests(tmp_path, TRAJECTORY)
    body = json.loads(first.body)
    assert body["model"] == "gpt-4o"
    assert body["tools"] == [{"type": "function"}]
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Look.\n[image]"},
    ]
    assert (first.usage, first.at) == (Usage(50, 8, 20), 1_767_225_600.0)
    assert json.loads(second.body)["model"] == "gpt-5"
    response, *results = json.loads(second.body)["messages"][2:]
    assert (response["content"], response["reasoning_content"]) == ("I look.", "Two calls.")
    assert [call["function"]["arguments"] for call in response["tool_calls"]] == ['{"at":"x"}', "{}"]
    assert results == [
        {"role": "tool", "tool_call_id": "a", "content": "x is 1"},
        {"role": "tool", "tool_call_id": "b", "content": ""},
        {"role": "user", "content": "the time is up"},
    ]


def test_a_response_that_is_copied_from_an_earlier_trajectory_is_no_request(tmp_path: Path) -> None:
    first, second = TRAJECTORY["steps"][2:]
    steps = [*TRAJECTORY["steps"][:2], {**first, "is_copied_context": True}, second]
    (only,) = read_requests(tmp_path, {**TRAJECTORY, "steps": steps})
    assert json.loads(only.body)["model"] == "gpt-5"


@pytest.mark.parametrize(
    "broken",
    [
        {**TRAJECTORY, "steps": [{"source": "nobody"}]},
        {**TRAJECTORY, "steps": 7},
        {**TRAJECTORY, "steps": [TRAJECTORY["steps"][1], {"source": "agent", "timestamp": "yesterday"}]},
    ],
)
def test_a_trajectory_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path, broken: object) -> None:
    (malformed,) = read_requests(tmp_path, broken)
    assert malformed.file.endswith("trajectory.json")
    assert malformed.reason


@pytest.mark.parametrize("protocol_name", ["chat", "responses", "messages"])
def test_a_recorded_session_is_written_as_a_trajectory(tmp_path: Path, protocol_name: ProtocolName) -> None:
    session, _ = fill_store(tmp_path, 3, protocol_name)
    arguments = ["trajectory", session, "--config", str(tmp_path / "config.yaml")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    trajectory = json.loads(result.stdout)
    steps = trajectory["steps"]
    assert (trajectory["schema_version"], trajectory["session_id"]) == ("ATIF-v1.4", session)
    assert [step["step_id"] for step in steps] == list(range(1, len(steps) + 1))
    calls = [call for step in steps for call in step.get("tool_calls", ())]
    results = [result for step in steps for result in step.get("observation", {"results": ()})["results"]]
    assert calls
    assert [call["tool_call_id"] for call in calls] == [each["source_call_id"] for each in results]
    assert any("timestamp" in step for step in steps)
    assert all(set(step) <= {"step_id", "source", "message"} for step in steps if step["source"] != "agent")
    # What was written is read again.
    requests = read_requests(tmp_path, trajectory)
    assert len(requests) == sum(step["source"] == "agent" for step in steps)


def test_an_exported_session_is_replayed_with_the_messages_that_its_client_sent(tmp_path: Path) -> None:
    session, sent = fill_store(tmp_path, 3)
    exported = CliRunner().invoke(app, ["trajectory", session, "--config", str(tmp_path / "config.yaml")])
    # Several sessions may be in one file, one a line.
    (tmp_path / "runs.jsonl").write_text(exported.stdout * 2)
    for conversation in TranscriptSource(str(tmp_path / "runs.jsonl")):
        assert not isinstance(conversation, MalformedTranscript)
        *_, last = conversation.requests()
        messages = json.loads(last.body)["messages"]
        assert chain_of(messages) == chain_of(sent["messages"][: len(messages)])
        assert len(messages) > 2
    replayed = CliRunner().invoke(app, ["replay", "-", "--json"], input=exported.stdout)
    assert replayed.exit_code == 0, replayed.output
    assert json.loads(replayed.stdout.splitlines()[0])["conversation"] == session


def chain_of(messages: list[dict[str, Any]]) -> tuple[bytes, ...]:
    """The identity of each message with those before it."""
    body = json.dumps({"model": "gpt-5", "messages": messages}).encode()
    return tuple(BodyReader().read(PROTOCOLS["chat"], body, TenantScope("", b"")).chain)


def write_chat(*exchanges: Exchange) -> Any:
    """The trajectory of a list of two questions, each with a response, and a third question."""
    turns = ("Look.", "It is 1.", "Thanks.", "Gladly.", "Bye.")
    messages = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(turns)]
    body = json.dumps({"model": "gpt-4o", "messages": messages}).encode()
    conversation = BodyReader().read(PROTOCOLS["chat"], body, TenantScope("", b""))
    return write_trajectory("s-1", "", conversation, exchanges)


def exchange(at: float, messages: int) -> Exchange:
    return Exchange(
        at, "r-1", "s-1", "gpt-5", "openai", "/v1/chat/completions", False, 200, messages, Utilization(1_000), "",
        Usage(50, 8, 20),
    )  # fmt: skip


def test_the_report_of_a_response_stands_in_its_step() -> None:
    trajectory = write_chat(exchange(1.0, 1))
    first, second = (step for step in trajectory["steps"] if step["source"] == "agent")
    assert first["metrics"] == {"prompt_tokens": 50, "completion_tokens": 8, "cached_tokens": 20}
    assert (first["model_name"], first["timestamp"]) == ("gpt-5", "1970-01-01T00:00:01+00:00")
    assert "metrics" not in second
    assert trajectory["final_metrics"]["total_prompt_tokens"] == 50


def test_reports_of_a_list_that_the_client_replaced_are_left_out() -> None:
    earlier = [exchange(float(messages), messages) for messages in (1, 2, 3, 4)]
    trajectory = write_chat(*earlier, exchange(5.0, 1))
    first, second = (step for step in trajectory["steps"] if step["source"] == "agent")
    assert first["timestamp"] == "1970-01-01T00:00:05+00:00"
    assert "metrics" not in second


def test_a_session_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    fill_store(tmp_path, 1)
    result = CliRunner().invoke(app, ["trajectory", "s-none", "--config", str(tmp_path / "config.yaml")])
    assert result.exit_code == 1
