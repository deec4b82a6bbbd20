"""Tools whose results make no artifact of their own are a matter of the config."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes import FakeWindows
from tests.pipeline_setup import CHAT, PipelineSetup

PIPELINE = "compaction: {pipeline: [{compact_tool_results: {replacement: reference, skip: [%s]}}, summarize]}\n"


def grown(calls: int) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "do it"}]
    for at in range(calls):
        call = {"id": f"c{at}", "type": "function", "function": {"name": "look_up", "arguments": json.dumps({"n": at})}}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{at}", "content": " ".join(f"w{at}_{word}" for word in range(120))},
        ]
    return {"model": "m", "messages": messages}


@pytest.mark.parametrize(("skip", "kinds"), [("other", {"range", "result"}), ("look_*", {"range"})])
async def test_results_of_skipped_tools_make_no_artifacts(skip: str, kinds: set[str]) -> None:
    setup = PipelineSetup(windows=FakeWindows(size=6_000), config=PIPELINE % skip)
    out, _ = await setup.ask(CHAT, grown(40))
    session = dict(out.headers)[b"x-accordion-session"].decode()
    tenant = setup.forward.tenants.identify({}).tenant
    artifacts = await setup.builder.archive.list_artifacts(tenant, session)
    assert {artifact.kind for artifact in artifacts} == kinds
