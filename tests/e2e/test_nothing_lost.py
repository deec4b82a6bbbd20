"""Nothing is lost: whatever a compaction took out of a request is read again from what the forwarded request itself
shows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accordion.archive.reader import ReadRequest
from accordion.archive.tool_calls import ReadContext
from accordion.model.tenant import TenantScope
from accordion.protocols.tool_loop import ArtifactToolCall
from tests.compaction.compactor_setup import with_long_results
from tests.fakes import FakeWindows
from tests.histories import PROTOCOL_NAMES, History, Json, ProtocolName, body, histories
from tests.pipeline_setup import PATHS, PipelineSetup
from tests.recordings import read_recording, recorded_cases, transcripts, write_entry
from tests.tiers import examples
from tests.writers import LISTS

ID = re.compile(r"art_[0-9a-f]{12}")
NAMING = frozenset(
    {
        *("role", "type", "id", "call_id", "tool_call_id", "tool_use_id", "detail", "media_type", "status"),
        *("toolUseId", "format", "server_name", "server_label", "approval_request_id"),
    }
)
"""Fields that say how a thing is labelled, not what was said."""
PIPELINES = (
    "",
    "compaction: {pipeline: [stale_reasoning, superseded, {compact_tool_results: {replacement: reference}}]}\n",
    "compaction: {pipeline: [stale_reasoning, {compact_tool_results: {replacement: drop, keep_last_n: 1}}]}\n",
    "compaction: {pipeline: [{keep_last_n_turns: {n: 1}}]}\n",
    "compaction: {pipeline: [images, {compact_tool_results: {replacement: reference}}, summarize]}\n",
)


def leaves(value: Any) -> Iterator[str]:
    """All that is said in a piece of JSON; arguments that are JSON in a text are looked into."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name not in NAMING:
                yield from leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner)
    elif isinstance(value, str) and value.strip():
        yield value


async def behind(setup: PipelineSetup, names: Iterable[str]) -> str:
    """What people read of these artifacts: their text, the arguments of their calls, what is no text."""
    told, tenant = [], setup.forward.tenants.identify({}).tenant
    for name in names:
        lent = await setup.builder.archive_reader.read(tenant, ReadRequest(name))
        assert lent is not None, name
        assert not lent.part.next
        told += [lent.part.text, lent.input, *(text for wire in lent.wires for text in leaves(json.loads(wire)))]
    return "\n".join(told)


async def listed(setup: PipelineSetup, session: str) -> list[str]:
    """The ids of what left a session."""
    page = await setup.builder.archive_reader.list_artifacts(
        setup.forward.tenants.identify({}).tenant, session, limit=10_000
    )
    return [each.id for each in page.artifacts]


async def read_back(setup: PipelineSetup, names: Iterable[str], session: str) -> str:
    """What our tool hands over of these artifacts."""
    tenant = setup.forward.tenants.identify({}).tenant
    pairs = [(name, path) for name in names for path in ("", "$input")]
    return "\n".join([await page_by_page(setup, tenant, *each, session) for each in pairs])


async def page_by_page(setup: PipelineSetup, tenant: TenantScope, name: str, path: str, session: str) -> str:
    """All of an artifact as our tool hands it over, put together again."""
    reading = ReadContext(tenant, frozenset({name}), 1_000_000, lambda text: len(text.split()), 0, session)
    desk, whole, offset = setup.forward.tool_loop.artifact_tool, "", 1
    while offset:
        arguments = json.dumps({"id": name, "offset": offset, "path": path})
        [answer] = await desk.answer_calls(reading, [ArtifactToolCall("c", "read_artifact", arguments)])
        if answer.error:
            break
        head, _, text = answer.text.partition("]\n")
        whole += text if "count characters" in head or not whole else "\n" + text
        following = re.search(r"repeat this call with offset=(\d+)", head)
        offset = int(following[1]) if following else 0
    return whole


def there(leaf: str, text: str) -> bool:
    """Whether it stands there, as it is or as it is written in JSON."""
    plain = leaf.encode("utf-8", "replace").decode()
    return any(
        form in text for form in (leaf, plain, json.dumps(leaf)[1:-1], json.dumps(leaf, ensure_ascii=False)[1:-1])
    )


async def nothing_lost(setup: PipelineSetup, protocol_name: ProtocolName, request: Json) -> bool:
    """Sends a request, and looks for all of it; gives whether it went out compacted.

    A model has the text back by the ids that it sees, but for its own old thoughts and what was dropped by config.
    People have all of it: what left the session, and the whole history as it was said.
    """
    before = len(setup.upstream.requests)
    out, _ = await setup.ask(PATHS[protocol_name], json.dumps(request).encode())
    if len(setup.upstream.requests) == before:
        # What fits in no form is refused, and nothing goes out.
        return False
    sent, listing = json.loads(setup.upstream.requests[-1].body), LISTS[protocol_name]
    if sent[listing] == request[listing]:
        return False
    session = dict(out.headers)[b"x-accordion-session"].decode()
    shown = "\n".join(leaves(sent))
    ids = dict.fromkeys(ID.findall(shown))
    model = shown + await read_back(setup, ids, session)
    people = shown + await behind(setup, dict.fromkeys([*ids, *await listed(setup, session)]))
    for entry in request[listing]:
        thoughts = set(thought_in(entry))
        for leaf in leaves(entry):
            assert leaf in thoughts or there(leaf, people), (leaf[:200], entry)
            pictured = leaf in thoughts or "iVBOR" in leaf[:40]
            assert pictured or "drop" in setup.config or there(leaf, model), (leaf[:200], entry)
    await setup.archive.transcripts.flush()
    original = await setup.builder.archive_reader.transcripts.original(
        setup.forward.tenants.identify({}).tenant, session
    )
    assert original is not None
    assert original.missing == 0
    assert json.loads(original.body)[listing] == request[listing]
    return True


def thought_in(entry: Json) -> Iterator[str]:
    """What the model thought, open and sealed."""
    if entry.get("type") == "reasoning":
        yield from leaves(entry)
    yield from (text for text in at(entry, "reasoning_content") if text)
    for part in entry.get("parts") or ():
        yield from at(part, "thoughtSignature")
        yield from at(part, "text") if part.get("thought") else ()
    for block in entry.get("content") or () if isinstance(entry.get("content"), list) else ():
        if block.get("type") in ("thinking", "redacted_thinking") or "reasoningContent" in block:
            yield from leaves(block)


def at(value: Json, name: str) -> Iterator[str]:
    """What stands in a field, where there is one."""
    if name in value:
        yield value[name]


@pytest.mark.parametrize("protocol_name", PROTOCOL_NAMES)
@settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
@given(history=histories(2, 6), pipeline=st.sampled_from(PIPELINES), window=st.integers(700, 2_500))
async def test_whatever_is_said_stands_in_the_request_or_is_found_by_what_it_shows(
    protocol_name: ProtocolName, history: History, pipeline: str, window: int
):
    setup = PipelineSetup(windows=FakeWindows(size=window), config=pipeline)
    for count in range(len(history.turns)):
        grown = History(history.turns[: count + 1], history.system)
        await nothing_lost(setup, protocol_name, body(with_long_results(grown), protocol_name))


@pytest.mark.skipif(not transcripts(), reason="the recorded transcripts are not here")
@pytest.mark.timeout(600)  # the longest take many seconds, and as many minutes on a busy machine
@pytest.mark.parametrize(("path", "protocol_name"), recorded_cases())
async def test_of_a_recorded_conversation_all_is_found_again(path: Path, protocol_name: ProtocolName):
    longest = max(read_recording(path), key=lambda said: len(json.dumps(said)))
    system = "\n".join(entry["content"] for entry in longest if entry["role"] == "system")
    words = sum(len(json.dumps(entry).split()) for entry in longest if entry["role"] != "system")
    setup, compactions = PipelineSetup(windows=FakeWindows(size=len(system.split()) + max(1_500, words // 2))), 0
    for share in (0.5, 0.8, 1.0):
        said = longest[: int(share * len(longest))]
        while said and said[-1]["role"] == "assistant":
            said = said[:-1]
        entries = [one for entry in said for one in write_entry(entry, protocol_name)]
        request: Json = {"model": "m", LISTS[protocol_name]: entries, "max_tokens": 100}
        if system:
            fields: dict[ProtocolName, Json] = {
                "responses": {"instructions": system},
                "gemini": {"systemInstruction": {"parts": [{"text": system}]}},
                "converse": {"system": [{"text": system}]},
            }
            request |= fields.get(protocol_name, {"system": system})
        if protocol_name == "chat" and system:
            request = {"model": "m", "messages": [{"role": "system", "content": system}, *entries]}
        compactions += await nothing_lost(setup, protocol_name, request)
    assert compactions
