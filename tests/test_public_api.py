"""Accordion as a library: what docs/library.md says, and a package with the example of docs/write-a-strategy.md."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import accordion
from accordion import Drop, Strategy, StrategyOptions, build_strategy, compact_messages
from accordion.config.load import build
from accordion.features.offline.offline_pipeline import OfflinePipeline
from accordion.model.http import Inbound
from accordion.pipeline.request import PreparedRequest
from tests.compaction.compactor_setup import long_history
from tests.histories import PROTOCOL_NAMES, ProtocolName, body
from tests.strategy_packages import install, on_path
from tests.writers import LISTS

DOCS = Path(__file__).parents[1] / "docs"
MODEL = "gpt-5"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text("utf-8"), re.DOTALL | re.MULTILINE)


def rounds(first: int, last: int, lines: int = 100) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = []
    for number in range(first, last):
        call = {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": "read", "arguments": f'{{"n":{number}}}'},
        }
        text = "\n".join(f"line {line} of result {number}" for line in range(lines))
        listed.append({"role": "assistant", "content": None, "tool_calls": [call]})
        listed.append({"role": "tool", "tool_call_id": f"call_{number}", "content": text})
    return listed


def conversation(count: int) -> list[dict[str, Any]]:
    opening = [{"role": "system", "content": "You are an agent."}, {"role": "user", "content": "Find the error."}]
    return [
        *opening,
        *rounds(0, count),
        {"role": "assistant", "content": "Found."},
        {"role": "user", "content": "Next?"},
    ]


def test_the_first_example_has_five_lines_and_works_as_it_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    code = blocks("library.md", "python")[0]
    assert len([line for line in code.splitlines() if line]) <= 5
    long = conversation(90)
    names: dict[str, Any] = {"messages": long}
    exec(code, names)
    result = names["result"]
    assert names["to_send"] == result.messages != long
    assert 0 < result.tokens < 0.5 * result.tokens_before
    assert f"{result.tokens_before:,} tokens, now {result.tokens:,}" in capsys.readouterr().out
    assert result.messages[0] == long[0]
    assert result.messages[-1] == long[-1]
    assert any("line 99 of result 3" in text for text in result.artifacts.values())
    assert set(re.findall(r"art_[0-9a-f]{12}", json.dumps(result.messages))) <= result.artifacts.keys()


def test_with_the_previous_result_the_beginning_stays_the_same() -> None:
    names: dict[str, Any] = {}
    exec(blocks("library.md", "python")[1], names)
    sent: list[Any] = []

    def create(model: str, messages: list[Any]) -> str:
        sent.append(messages)
        return "answer"

    client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
    messages = conversation(90)
    _, first = names["answer"](client, messages)
    _, second = names["answer"](client, [*messages, *rounds(90, 92)], first)
    assert sent[1] == [*sent[0], *rounds(90, 92)]
    assert second.artifacts == first.artifacts
    _, third = names["answer"](client, [*messages, *rounds(90, 300)], second)
    assert third.tokens < third.tokens_before
    assert first.artifacts.items() <= third.artifacts.items()
    _, other = names["answer"](client, conversation(3), third)
    assert (other.messages, other.is_compacted, other.artifacts) == (conversation(3), False, {})


@pytest.mark.parametrize("protocol", PROTOCOL_NAMES)
def test_all_protocols_are_compacted(protocol: ProtocolName) -> None:
    request = body(long_history(12, rounds=2, words=150), protocol)
    messages = request[LISTS[protocol]]
    names = ("tools", "system", "systemInstruction")
    fields = {name: request[name] for name in names if name in request}
    result = compact_messages(messages, window=8_000, protocol=protocol, model=MODEL, **fields)
    assert result.is_compacted
    assert result.tokens < 4_000 < result.tokens_before
    assert result.messages[-1] == messages[-1]


def test_short_conversations_stay_as_they_are_unless_a_compaction_is_forced() -> None:
    short = conversation(4)
    result = compact_messages(short, window=128_000, model=MODEL)
    assert (result.messages, result.is_compacted, result.artifacts) == (short, False, {})
    assert result.tokens == result.tokens_before
    assert "under the conversation trigger" in result.reason
    assert compact_messages(short, window=128_000, model=MODEL, is_forced=True).is_compacted
    pinned = compact_messages(short, window=128_000, model=MODEL, is_forced=True, pinned_call_ids=["call_1"])
    assert rounds(1, 2)[1] in pinned.messages
    assert compact_messages([], window=128_000).messages == []


def test_the_strategies_may_be_ones_own() -> None:
    class DropOldest(Strategy):
        name = "drop_oldest"

        def propose(self, view: Any) -> Any:
            first, last = view.removable_groups()[0]
            return [Drop(slot) for slot in range(first, last + 1)]

    short = conversation(4)
    own = compact_messages(short, window=9_000, strategies=[DropOldest(StrategyOptions())], is_forced=True)
    assert own.messages == [*short[:2], *short[4:]]
    limits = build_strategy("keep_last_n_messages", {"n": 2})
    assert "8 earlier messages" in json.dumps(
        compact_messages(short, window=9_000, strategies=[limits], is_forced=True).messages
    )


@pytest.mark.parametrize(
    ("messages", "protocol", "words"),
    [([], "completions", "there is no protocol 'completions'"), ([{"role": object()}], "chat", "JSON")],
)
def test_an_unreadable_request_is_a_value_error(messages: list[Any], protocol: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        compact_messages(messages, window=9_000, protocol=protocol)


def test_the_package_is_imported_at_first_use_and_brings_no_server() -> None:
    code = (
        "import sys, accordion; print([m for m in sys.modules if m.startswith('accordion.')]);"
        "accordion.compact_messages([], window=1000);"
        "print([m for m in ('starlette', 'uvicorn', 'aiohttp', 'httpx', 'yaml', 'typer') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split("\n")[:2] == ["[]", "[]"]


def test_every_name_that_the_package_offers_is_there() -> None:
    assert [name for name in accordion.__all__ if getattr(accordion, name).__name__ != name] == []
    with pytest.raises(AttributeError, match="no attribute 'compact'"):
        accordion.compact  # noqa: B018


async def test_the_example_of_a_strategy_runs_in_the_pipeline_of_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,), (config,) = blocks("write-a-strategy.md", "python"), blocks("write-a-strategy.md", "yaml")
    (metadata,) = map(tomllib.loads, blocks("write-a-strategy.md", "toml"))
    assert len(code.splitlines()) < 40
    ((name, target),) = metadata["project"]["entry-points"]["accordion.strategies"].items()
    install(tmp_path, "head-and-tail", code, **{name: target.partition(":")[2]})
    request = json.dumps({"model": MODEL, "messages": conversation(12)}).encode()
    with on_path(tmp_path, monkeypatch):
        settings = build(config.encode(), {}, {})
        assert settings.compaction.pipeline[1].options.lines == 20
        pipeline = OfflinePipeline(settings, 14_000)
        try:
            inbound = Inbound(
                "POST", "/v1/chat/completions", "", ((b"content-type", b"application/json"),), request, "1"
            )
            prepared = await pipeline.process(inbound, pipeline.caller)
            assert isinstance(prepared, PreparedRequest)
            assert prepared.rewritten_body is not None
            sent = json.loads(prepared.rewritten_body)["messages"]
            cut = r"(line 19 of result \d+)\n\[60 lines left out; the whole is (\w+)\]\n(line 80 of result \d+)"
            before, artifact, after = re.findall(cut, sent[3]["content"])[0]
            assert before.replace("19", "80", 1) == after
            assert before.replace("19", "50", 1) in (await pipeline.text_of(artifact, pipeline.caller) or "")
            assert prepared.compaction_outcome is not None
            assert next(step[0] for step in prepared.compaction_outcome.steps) == "head_and_tail"
        finally:
            await pipeline.close()
