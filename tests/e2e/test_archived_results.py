"""Which tool results become artifacts, and what is kept of each."""

from __future__ import annotations

import json
from typing import Any

from accordion.archive.archive_reader import ArtifactPart
from accordion.archive.artifacts import Artifact
from accordion.archive.reader import ReadRequest
from tests.e2e.test_imitated_references import ID, calls
from tests.fakes import FakeWindows
from tests.pipeline_setup import CHAT, PipelineSetup, header

Json = dict[str, Any]


def asked(calls_made: list[tuple[str, Json, str]]) -> Json:
    """A request with these calls (tool, arguments, result), one after the other."""
    messages: list[Json] = [{"role": "user", "content": "the task"}]
    for at, (name, arguments, result) in enumerate(calls_made):
        function = {"name": name, "arguments": json.dumps(arguments)}
        messages += [
            {"role": "assistant", "tool_calls": [{"id": f"c{at}", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": f"c{at}", "content": result},
        ]
    return {"model": "m", "messages": messages}


def long(name: str, words: int = 150) -> str:
    return " ".join(f"{name}_{at}" for at in range(words))


async def results(setup: PipelineSetup, session: str | None) -> list[Artifact]:
    """The artifacts of results that a session has."""
    tenant = setup.forward.tenants.identify({}).tenant
    page = await setup.builder.archive_reader.list_artifacts(tenant, session or "", limit=1_000)
    return [each for each in page.artifacts if each.kind == "result"]


async def read(setup: PipelineSetup, artifact: Artifact) -> ArtifactPart:
    lent = await setup.builder.archive_reader.read(setup.forward.tenants.identify({}).tenant, ReadRequest(artifact.id))
    assert lent is not None
    return lent


async def test_each_call_makes_one_but_for_empty_results_and_hand_offs() -> None:
    setup = PipelineSetup(windows=FakeWindows(size=2_900))
    kinds = [("read", long("r")), ("run", "  \n"), ("transfer_to_reviewer", long("t")), ("look", long("l"))]
    made = [(name, {"n": at}, result) for at in range(5) for name, result in kinds]
    out, _ = await setup.ask(CHAT, asked(made))
    found = await results(setup, header(out, "x-accordion-session"))
    assert {each.tool for each in found} == {"read", "look"}
    assert len({each.call_id for each in found}) == len(found) > 2


async def test_what_is_skipped_is_a_matter_of_the_config() -> None:
    pipeline = "compaction: {pipeline: [{compact_tool_results: {replacement: reference, skip: [look]}}, summarize]}\n"
    setup = PipelineSetup(windows=FakeWindows(size=2_900), config=pipeline)
    made = [(name, {"n": at}, long(f"{name}{at}")) for at in range(8) for name in ("look", "transfer_to_b")]
    out, _ = await setup.ask(CHAT, asked(made))
    assert {each.tool for each in await results(setup, header(out, "x-accordion-session"))} == {"transfer_to_b"}


async def test_input_and_output_are_archived_and_300_characters_of_the_input_shown() -> None:
    setup = PipelineSetup(windows=FakeWindows(size=3_000))
    made = [("write", {"path": f"{at}.py", "text": long(f"in{at}", 60)}, long(f"out{at}", 100)) for at in range(14)]
    out, _ = await setup.ask(CHAT, asked(made))
    found = await results(setup, header(out, "x-accordion-session"))
    assert found
    for each in found:
        number = int(each.call_id[1:])
        lent = await read(setup, each)
        assert lent.part.text == long(f"out{number}", 100)
        assert json.loads(lent.input) == {"path": f"{number}.py", "text": long(f"in{number}", 60)}
        assert len(each.arguments) <= 300


async def test_what_was_read_back_makes_none() -> None:
    setup = PipelineSetup(windows=FakeWindows(size=2_700))
    request = asked([("read", {"n": at}, long(f"r{at}")) for at in range(14)])
    out, _ = await setup.ask(CHAT, request)
    name = ID.findall(bytes(setup.upstream.requests[-1].body).decode())[0]
    setup.upstream.answers = [calls("read_artifact", {"id": name, "limit": 5})]
    await setup.ask(CHAT, request)
    assert "ours-1" in bytes(setup.upstream.requests[-1].body).decode()
    for more in range(15, 40):
        out, _ = await setup.ask(CHAT, asked([("read", {"n": at}, long(f"r{at}")) for at in range(more)]))
    found = await results(setup, header(out, "x-accordion-session"))
    assert len(found) > 20
    assert {each.tool for each in found} == {"read"}
