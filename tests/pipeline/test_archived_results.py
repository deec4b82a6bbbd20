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


async def test_the_model_finds_words_in_what_a_compaction_removed() -> None:
    setup = PipelineSetup(windows=FakeWindows(size=2_700))
    request = asked([("read", {"n": at}, long(f"r{at}")) for at in range(14)])
    setup.upstream.answers = [calls("read_artifact", {"search": "r3_77"})]
    await setup.ask(CHAT, request)
    first, second = (json.loads(each.body)["messages"] for each in setup.upstream.requests)
    assert "r3_77" not in json.dumps(first)
    assert second[-1]["content"].splitlines()[1].startswith('[8] result of read({"n": 3}), in art_')
    assert "r3_77" in second[-1]["content"]
