"""Agents that name a conversation object of the provider and send only what is new, past the window (OpenAI's SDK)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import Start
from tests.e2e.reading_agent import start_reading_agent
from tests.e2e.small_window import STREAMED, WINDOW, config
from tests.e2e.storing_provider import StoringProvider, shows_our_tool

NAME = "conv_1"
AGENT: dict[str, Any] = {"reader": StoringProvider, "object_id": NAME, "more": {"store": True}}


def comparable(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items without what the provider adds: ids, and fields without a value."""
    plain = json.loads(json.dumps(items, default=lambda value: value.model_dump(exclude_none=True)))
    return [
        {name: value for name, value in item.items() if value is not None and name not in ("id", "status", "type")}
        for item in plain
    ]


@STREAMED
@pytest.mark.parametrize("way", ["", "o", "ot"])
async def test_an_agent_goes_on_past_its_window_and_the_object_stays_whole(start: Start, way: str, stream: bool):
    proxy = start(config("responses"))
    async with start_reading_agent(
        proxy, "responses", f"object {way} {stream}", ways=(), stream=stream, **AGENT
    ) as one:
        if way:
            one.provider.ways = (way,)
        await one.rounds(60)
        assert one.compactions
        assert one.provider.problems == []
        assert one.provider.refusals == []
        assert max(each.tokens for each in one.provider.taken) <= WINDOW
        assert len({head["x-accordion-session"] for head in one.run.answers}) == 1
        if way:
            assert way in one.provider.done
        items, history = one.provider.talks[NAME], one.run.history
        assert not shows_our_tool(items)
        assert comparable(items) == comparable(history[: len(items)])
        # The results of the last calls were not sent yet.
        assert {entry["type"] for entry in history[len(items) :]} <= {"function_call_output"}
