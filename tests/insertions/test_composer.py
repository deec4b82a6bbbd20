"""What else goes out with requests that a compaction is in force for: our tool, and what was read back, in one
process."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from accordion.insertions.composer import InsertionComposer
from accordion.insertions.store import InsertionStore
from accordion.model.insertions import Insertion, RecallInsertion, ToolRound, ToolRoundInsertion
from accordion.protocols.anthropic_messages.protocol import MessagesArtifactTool
from accordion.protocols.openai_chat.protocol import ChatArtifactTool
from accordion.protocols.tool_loop import ArtifactToolProtocol, ArtifactToolResult, ToolDefinition
from accordion.sessions.tenants import Caller
from tests.fakes import FakeReply, FakeWindows, FickleStore
from tests.pipeline.test_compact import sent
from tests.pipeline_setup import CHAT, MESSAGES, PipelineSetup, header
from tests.writers import words

Json = dict[str, Any]
COUNT = "/v1/messages/count_tokens"
WEAVERS: dict[str, ArtifactToolProtocol] = {"chat": ChatArtifactTool(), "messages": MessagesArtifactTool()}


def tool(taken: frozenset[str]) -> ToolDefinition:
    name = "accordion_read_artifact" if "read_artifact" in taken else "read_artifact"
    return ToolDefinition(name, "Reads what was archived.", b'{"type":"object","properties":{}}')


class InsertionSetup(PipelineSetup):
    """The setup with somebody who dresses."""

    def with_composer(self, *, offers: bool = True) -> InsertionSetup:
        self.insertions = InsertionStore(self.builder.archive, self.outbox, self.clock, self.archive.erasures)
        composer = InsertionComposer(self.insertions, WEAVERS, self.builder.reader, tool if offers else None)
        self.replace_list_meter(insertion_composer=composer)
        return self

    def caller(self, fields: Any) -> Caller:
        return self.forward.tenants.identify(fields)

    async def add(self, path: str, body: Json, made: Any, headers: dict[str, str] | None = None) -> None:
        """Puts an insertion at the end of a request."""
        measured = await self.measure(path, body, headers)
        insertion: Insertion = made(measured.conversation.chain[-1])
        await self.insertions.add(measured.ref, insertion, 0.0)


def build_setup(window: int = 3_000, **given: Any) -> InsertionSetup:
    return InsertionSetup(windows=FakeWindows(window), **given).with_composer()


def request(rounds: int, path: str = CHAT, **fields: Any) -> Json:
    messages: list[Json] = [{"role": "user", "content": "the task"}]
    for at in range(rounds):
        result = words(200, f"r{at}_")
        if path == CHAT:
            function = {"name": "read", "arguments": json.dumps({"path": f"{at}.py"})}
            calls = [{"id": f"c{at}", "type": "function", "function": function}]
            messages.append({"role": "assistant", "tool_calls": calls})
            messages.append({"role": "tool", "tool_call_id": f"c{at}", "content": result})
        else:
            call = {"type": "tool_use", "id": f"c{at}", "name": "read", "input": {"path": f"{at}.py"}}
            block = {"type": "tool_result", "tool_use_id": f"c{at}", "content": result}
            messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [block]}]
    messages += [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "What is next?"}]
    named = {"model": "gpt-5"} if path == CHAT else {"model": "claude-sonnet-4-5", "max_tokens": 9}
    return {**named, "messages": messages, **fields}


def later(asked: Json, path: str, said: str = "The answer.", then: str = "Thanks. And now?") -> Json:
    messages = [*asked["messages"], {"role": "assistant", "content": said}, {"role": "user", "content": then}]
    return {**asked, "messages": messages}


def read_back(path: str, tokens: int, said: str = "The answer.") -> Any:
    """A weave of two rounds, with so many words read."""
    tool_protocol = WEAVERS["chat" if path == CHAT else "messages"]
    if path == CHAT:
        calls = [{"id": "o1", "type": "function", "function": {"name": "read_artifact", "arguments": "{}"}}]
        first: Json = {"role": "assistant", "content": None, "tool_calls": calls}
    else:
        used = {"type": "tool_use", "id": "o1", "name": "read_artifact", "input": {}}
        first = {"role": "assistant", "content": [used]}
    rounds = (
        ToolRound(
            (json.dumps(first).encode(),),
            tool_protocol.render_results([ArtifactToolResult("o1", words(tokens, "page"))], "read_artifact"),
        ),
        ToolRound((json.dumps({"role": "assistant", "content": said}).encode(),)),
    )
    return lambda anchor: ToolRoundInsertion(anchor, rounds, (), said, 1.0)


def names(of: Json) -> list[str]:
    return [each.get("name") or each["function"]["name"] for each in of.get("tools", [])]


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_our_tool_is_offered_from_the_compaction_on_and_not_before(path: str):
    setup = build_setup()
    await setup.ask(path, request(2, path))
    assert names(sent(setup)) == []
    await setup.ask(path, request(20, path))
    assert header((await setup.ask(path, request(20, path)))[0], "x-accordion-compaction")
    assert names(sent(setup)) == ["read_artifact"]
    await setup.ask(path, later(request(20, path), path))
    assert names(sent(setup)) == ["read_artifact"]


async def test_a_request_without_a_compaction_goes_on_in_its_own_bytes():
    setup = build_setup()
    inbound = setup.inbound(CHAT, request(2))
    await setup.forward(inbound)
    assert setup.upstream.requests[-1].body == inbound.body
    measured = await setup.measure(CHAT, request(2))
    assert (measured.history_with_insertions, measured.tool_name, measured.utilization.insertions) == (None, "", 0)


async def test_a_client_that_has_a_tool_of_our_name_keeps_it():
    setup = build_setup()
    theirs = {"type": "function", "function": {"name": "read_artifact", "parameters": {"type": "object"}}}
    await setup.ask(CHAT, request(20, tools=[theirs]))
    assert names(sent(setup)) == ["read_artifact", "accordion_read_artifact"]
    assert sent(setup)["tools"][0] == theirs
    assert (await setup.measure(CHAT, request(20, tools=[theirs]))).tool_name == "accordion_read_artifact"


async def test_no_tool_is_offered_if_it_cannot_be_or_reading_back_is_off():
    setup = build_setup()
    await setup.ask(CHAT, request(20, n=2))
    assert names(sent(setup)) == []
    assert (await setup.measure(CHAT, request(20, n=2))).tool_name == ""
    setup = InsertionSetup(windows=FakeWindows(3_000)).with_composer(offers=False)
    await setup.ask(CHAT, request(20))
    assert names(sent(setup)) == []
    assert (await setup.measure(CHAT, request(20))).compaction_id


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_tool_rounds_are_sent_again_and_counted_separately(path: str):
    setup = build_setup()
    asked = request(20, path)
    await setup.ask(path, asked)
    before = sent(setup)["messages"]
    plain = await setup.measure(path, later(asked, path))
    await setup.add(path, asked, read_back(path, 300))
    measured = await setup.measure(path, later(asked, path))
    assert measured.compaction_id
    assert 300 <= measured.utilization.insertions <= 330
    assert measured.utilization.tokens == plain.utilization.tokens + measured.utilization.insertions
    assert measured.utilization.messages == plain.utilization.messages
    assert measured.uncorrected_tokens == plain.uncorrected_tokens + measured.utilization.insertions
    assert measured.history == plain.history
    await setup.ask(path, later(asked, path))
    now = sent(setup)["messages"]
    assert now[: len(before)] == before
    assert "page299" in json.dumps(now[len(before) + 1])


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_the_size_is_that_of_the_body_that_goes_out(path: str):
    setup = build_setup()
    asked = request(20, path)
    await setup.ask(path, asked)
    await setup.add(path, asked, read_back(path, 300))
    measured = await setup.measure(path, later(asked, path))
    out = await setup.forward.prepare(measured)
    assert out.rewritten_body is not None
    assert abs(measured.body_size - len(out.rewritten_body)) < 200


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_a_client_that_rewrites_its_history_still_gets_earlier_readings_inserted(path: str):
    setup = build_setup()
    asked = request(20, path)
    await setup.ask(path, asked)
    await setup.add(path, asked, read_back(path, 300))
    more = later(asked, path)
    more["messages"] = [dict(reversed(message.items())) for message in more["messages"]]
    more["messages"][-2]["content"] = [{"type": "text", "text": "The answer."}]
    await setup.ask(path, json.dumps(more, indent=1).encode())
    assert "page299" in json.dumps(sent(setup))


async def test_a_recall_at_the_newest_message_goes_out_with_it():
    setup = build_setup()
    asked = request(20, MESSAGES)
    await setup.ask(MESSAGES, asked)
    text = {"role": "user", "content": [{"type": "text", "text": "Recalled: r3_7."}]}
    await setup.add(MESSAGES, asked, lambda anchor: RecallInsertion(anchor, json.dumps(text).encode(), 1.0))
    await setup.ask(MESSAGES, asked)
    assert [block["text"] for block in sent(setup)["messages"][-1]["content"]] == ["What is next?", "Recalled: r3_7."]


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_an_excerpt_stands_in_front_of_its_turn_and_leaves_with_it(path: str):
    setup = build_setup()
    asked = request(20, path)
    await setup.ask(path, asked)
    wire = json.dumps({"role": "user", "content": "Recalled: r3_7."}).encode()
    await setup.add(path, asked, lambda anchor: RecallInsertion(anchor, wire, 1.0, before=1))
    await setup.ask(path, later(asked, path))
    text = json.dumps(sent(setup))
    assert text.index("Recalled: r3_7.") < text.index("What is next?")
    covering = later(asked, path)
    covering["messages"] = [*covering["messages"], *request(30, path)["messages"]]
    await setup.ask(path, covering)
    assert "Recalled: r3_7." not in json.dumps(sent(setup))


async def test_counting_includes_the_tool_and_the_tool_rounds():
    setup = build_setup()
    asked = request(20, MESSAGES)
    await setup.ask(MESSAGES, asked)
    await setup.add(MESSAGES, asked, read_back(MESSAGES, 300))
    await setup.ask(MESSAGES, later(asked, MESSAGES))
    body = sent(setup)
    await setup.ask(COUNT, later(asked, MESSAGES))
    assert (sent(setup)["messages"], names(sent(setup))) == (body["messages"], names(body))
    assert (await setup.measure(COUNT, later(asked, MESSAGES))).tool_name == ""


async def test_another_worker_finds_what_was_read_back_in_the_store():
    one = build_setup()
    asked = request(20)
    await one.ask(CHAT, asked)
    await one.add(CHAT, asked, read_back(CHAT, 300))
    await one.ask(CHAT, later(asked, CHAT))
    await one.outbox.flush()
    other = build_setup(store=one.store)
    await other.ask(CHAT, later(asked, CHAT))
    assert sent(other) == sent(one)


async def test_while_the_store_is_away_the_request_goes_on():
    store = FickleStore()
    one = build_setup(store=store)
    asked = request(20)
    await one.ask(CHAT, asked)
    await one.add(CHAT, asked, read_back(CHAT, 300))
    store.away = True
    await one.ask(CHAT, later(asked, CHAT))
    assert "page299" in json.dumps(sent(one))


async def test_a_compaction_takes_what_was_read_back_with_what_it_covers():
    setup = build_setup()
    asked = request(20)
    await setup.ask(CHAT, asked)
    await setup.add(CHAT, asked, read_back(CHAT, 1_200))
    more = later(asked, CHAT, then=words(600, "w"))
    assert (await setup.measure(CHAT, more)).decision.action == "compact"
    out, _ = await setup.ask(CHAT, more, {})
    more = later(more, CHAT, said=words(400, "s"), then="Go on.")
    out, _ = await setup.ask(CHAT, more)
    measured = await setup.measure(CHAT, more)
    assert json.loads(header(out, "x-accordion-compaction") or "{}")["generation"] == 2
    assert "page299" not in json.dumps(sent(setup))
    assert measured.utilization.insertions == 0
    assert names(sent(setup)) == ["read_artifact"]


def build_recall(tokens: int) -> Any:
    wire = json.dumps({"role": "user", "content": words(tokens, "page")}).encode()
    return lambda anchor: RecallInsertion(anchor, wire, 1.0)


async def test_tool_rounds_leave_first_when_the_window_is_full():
    setup = build_setup()
    asked = request(20)
    await setup.ask(CHAT, asked)
    await setup.add(CHAT, asked, build_recall(5_000))
    assert (await setup.measure(CHAT, asked)).utilization.tokens > 5_000
    out, _ = await setup.ask(CHAT, asked)
    assert out.status == 200
    assert "page299" not in json.dumps(sent(setup))
    assert names(sent(setup)) == ["read_artifact"]


async def test_without_what_was_read_back_the_last_report_says_nothing():
    setup = build_setup()
    asked = request(20)
    await setup.ask(CHAT, asked)
    bare = (await setup.measure(CHAT, asked)).uncorrected_tokens
    await setup.add(CHAT, asked, build_recall(900))
    setup.upstream.answers = [
        FakeReply(pieces=(json.dumps({"choices": [], "usage": {"prompt_tokens": bare + 900}}).encode(),))
    ]
    await setup.ask(CHAT, asked)
    measured = await setup.measure(CHAT, later(asked, CHAT))
    assert measured.utilization.includes_report
    without = (
        await setup.forward.reader.measurer.list_meter.compose_and_count(
            measured, measured.history, with_insertions=False
        )
    ).utilization
    assert (without.includes_report, without.insertions) == (False, 0)
    assert bare < without.tokens < bare + 50


async def test_tool_rounds_leave_first_after_an_overflow():
    setup = build_setup(20_000)
    asked = request(20)
    reported = FakeReply(pieces=(json.dumps({"choices": [], "usage": {"prompt_tokens": 2_000}}).encode(),))
    setup.upstream.answers = [reported]
    await setup.ask(CHAT, asked, {"x-accordion-compact": "now"})
    more = later(asked, CHAT)
    await setup.add(CHAT, more, build_recall(5_000))
    said = "This model's maximum context length is 4000 tokens. However, your messages resulted in 6000 tokens."
    error = {"error": {"message": said, "type": "invalid_request_error", "code": "context_length_exceeded"}}
    setup.upstream.answers = [FakeReply(400, pieces=(json.dumps(error).encode(),))]
    out, _ = await setup.ask(CHAT, more)
    assert out.status == 200
    assert "page299" not in json.dumps(sent(setup))
    assert "And now?" in json.dumps(sent(setup))


async def test_reported_savings_do_not_include_tool_rounds():
    setup = build_setup()
    asked = request(20)
    await setup.ask(CHAT, asked)
    plain, _ = await setup.ask(CHAT, later(asked, CHAT))
    await setup.add(CHAT, asked, read_back(CHAT, 300))
    out, _ = await setup.ask(CHAT, later(asked, CHAT))
    saved = [json.loads(header(each, "x-accordion-compaction") or "{}")["saved"] for each in (plain, out)]
    assert 300 <= saved[0] - saved[1] <= 330


async def test_a_failing_insertion_leaves_the_list_as_it_was(caplog: pytest.LogCaptureFixture):
    class Failing(ChatArtifactTool):
        def insert_rounds(self, *_: Any) -> Any:
            raise RuntimeError("broken")

    setup = build_setup()
    asked = request(20)
    await setup.ask(CHAT, asked)
    await setup.add(CHAT, asked, read_back(CHAT, 300))
    composer = setup.forward.reader.measurer.list_meter.insertion_composer
    setup.replace_list_meter(insertion_composer=replace(composer, tool_protocols={"chat": Failing()}))
    out, _ = await setup.ask(CHAT, later(asked, CHAT))
    assert out.status == 200
    assert "page299" not in json.dumps(sent(setup))
    assert "could not be put into a request" in caplog.text
