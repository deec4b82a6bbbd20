"""The user's standing instructions outlast the agent's own compaction, though its summary leaves them out."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes import FakeWindows
from tests.pipeline_setup import PipelineSetup, header
from tests.writers import WRITERS, MadeCall

Json = dict[str, Any]
RULE = "Never push to the main branch without asking me first."
SUMMARY = (
    "This session is being continued from a previous conversation that ran out of context: the parser is repaired."
)
LABEL = {"x-accordion-session": "session-1"}


def rounds(protocol_name: str, count: int) -> list[Json]:
    """So many calls with results of 150 words."""
    writer = WRITERS[protocol_name]
    calls = [MadeCall(f"c{at}", "read", {"n": at}, " ".join(f"r{at}_{n}" for n in range(150))) for at in range(count)]
    return [entry for call in calls for entry in (*writer.calls(call), *writer.results(call))]


@pytest.mark.parametrize("is_compacted_at_once", [False, True])
@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("protocol_name", WRITERS)
async def test_instructions_from_before_the_clients_compaction_are_listed(
    protocol_name: str, is_restarted: bool, is_compacted_at_once: bool
) -> None:
    writer, windows = WRITERS[protocol_name], FakeWindows(2_700)
    setup = PipelineSetup(windows=windows)

    async def send(*entries: Json) -> str | None:
        out, _ = await setup.ask(writer.path("gpt-5"), writer.request("gpt-5", list(entries)), LABEL)
        return header(out, "x-accordion-session")

    opening = [writer.user(RULE), writer.model("Understood."), writer.user("Repair the parser.")]
    prompt = writer.user("Your task is to create a detailed summary of the conversation so far.")
    await send(opening[0])
    before = await send(*opening)
    await send(*opening, writer.model("It is repaired."), prompt)
    await setup.archive.transcripts.flush()
    if is_restarted:
        await setup.outbox.flush()
        setup = PipelineSetup(windows=windows, store=setup.store)
    if not is_compacted_at_once:
        await send(writer.user(SUMMARY), *rounds(protocol_name, 1))
        await setup.archive.transcripts.flush()
    after = await send(writer.user(SUMMARY), *rounds(protocol_name, 14), writer.model("Done."), writer.user("Go on."))
    assert before == after
    assert RULE in bytes(setup.upstream.requests[-1].body).decode()
