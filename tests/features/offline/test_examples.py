"""The files in examples/ run, and name nothing of the machine that made them."""

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from accordion.features.offline.replay import measure_accuracy
from accordion.features.offline.transcripts import RecordedTranscript, TranscriptSource
from bench.accuracy import measure_file
from examples.plan import TOOLS, TURNS
from examples.record import StandIn, Tools, conversation
from tests.loopback import Script, replies_json
from tests.proxy_process import Proxy

EXAMPLES = Path(__file__).parents[3] / "examples"
OWN = EXAMPLES / "transcript.jsonl"
ABSOLUTE = re.compile(r"(?<![\w.:/>-])/(?:home|root|tmp|usr|var|opt|work|Users|mnt|private)/")

COMPLETION = {
    "id": "c", "object": "chat.completion", "created": 1, "model": "gpt-4o-mini",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hello"}}],
    "usage": {"prompt_tokens": 12, "completion_tokens": 1, "total_tokens": 13},
}  # fmt: skip
MESSAGE = {
    "id": "m", "type": "message", "role": "assistant", "model": "claude-haiku-4-5", "stop_reason": "end_turn",
    "stop_sequence": None, "content": [{"type": "text", "text": "Hello"}],
    "usage": {"input_tokens": 12, "output_tokens": 1},
}  # fmt: skip


def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(OWN.read_text())
    return found


def test_the_transcript_is_small_and_names_no_place_of_the_machine_it_was_made_on() -> None:
    text = OWN.read_text()
    assert len(text.encode()) <= 200_000
    for place in (EXAMPLES.parent, Path.home(), Path(sys.prefix)):
        assert str(place) not in text
    assert not ABSOLUTE.search(text)


def test_the_transcript_is_one_whole_conversation() -> None:
    (item,) = TranscriptSource(str(OWN))
    assert isinstance(item, RecordedTranscript)
    calls, answers = set[str](), list[str]()
    for message in item.transcript.messages:
        calls |= {call["id"] for call in message.get("tool_calls") or ()}
        answers += [message["tool_call_id"]] if message["role"] == "tool" else []
    assert sorted(calls) == sorted(answers)
    assert {tool["function"]["name"] for tool in TOOLS} == {
        name for _, steps, _ in TURNS for _, c in steps for name, _ in c
    }


def test_its_usage_is_what_the_stand_in_counts() -> None:
    transcript = recorded()
    assert transcript["usage"] == StandIn().usages(transcript["messages"], transcript["tools"])


def test_every_tool_of_the_plan_still_finds_what_it_asks_for() -> None:
    class Unhurried(Tools):
        def run_tests(self, path: str) -> str:
            assert (EXAMPLES.parent / path).is_file()
            return "not run here"

        def check_imports(self) -> str:
            return "not run here"

    messages = list(conversation(Unhurried()))
    assert [message["role"] for message in messages] == [message["role"] for message in recorded()["messages"]]
    assert all(message["content"] for message in messages if message["role"] == "tool")


def test_the_tools_show_no_durations_and_no_absolute_paths() -> None:
    shown = Tools().run_tests("tests/model/test_budget.py")
    assert re.search(r"=+ \d+ passed =+", shown)
    assert str(EXAMPLES.parent) not in shown


async def test_correction_brings_another_tokenizers_count_close() -> None:
    found = measure_accuracy("own", await measure_file(str(OWN), StandIn()))
    assert found.plain.median > 0.03
    assert found.corrected.median < found.plain.median / 5
    assert found.later.p90 < found.plain.p90


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_every_script_parses_and_is_free_of_absolute_paths(script: Path) -> None:
    compile(script.read_text(), script.name, "exec")
    assert not ABSOLUTE.search(script.read_text())


@pytest.mark.parametrize(
    ("script", "answer", "path"),
    [
        ("openai_client.py", replies_json(COMPLETION), "/v1/chat/completions"),
        ("anthropic_client.py", replies_json(MESSAGE), "/v1/messages"),
    ],
)
async def test_a_client_prints_the_reply_and_the_proxys_headers(
    proxy: Proxy, script: str, answer: Script, path: str
) -> None:
    environ = {
        "PATH": os.environ.get("PATH", ""),
        "ACCORDION_URL": proxy.url,
        "OPENAI_API_KEY": "none",
        "ANTHROPIC_API_KEY": "none",
    }
    async with proxy.provider(answer) as provider:
        client = await asyncio.create_subprocess_exec(
            sys.executable, str(EXAMPLES / script), env=environ, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await client.communicate()
    assert client.returncode == 0
    said = dict(line.partition(": ")[::2] for line in out.decode().splitlines())
    assert "Hello" in said
    assert int(said["x-accordion-window"]) > 100_000
    assert int(said["x-accordion-tokens"]) > 0
    assert {"x-accordion-session", "x-accordion-utilization"} <= said.keys()
    assert [request.target for request in provider.requests] == [path]
