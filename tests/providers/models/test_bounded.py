"""A summarizer is asked a few times at once, is not waited for without end, and its cost is told."""

from __future__ import annotations

import asyncio

import pytest

from accordion.model.errors import SummaryFailed
from accordion.model.summarizer import SummaryCaller, SummaryRequest, SummaryResponse
from accordion.providers.models.bounded_summarizer import BoundedSummarizer
from tests.summarizing import ASKER

REQUEST = SummaryRequest("Sum up.", "What was said.", 100)


class Held:
    """A model that answers once it may."""

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.asked = 0

    def input_limit(self, asker: SummaryCaller) -> int:
        return 7

    async def write(self, request: SummaryRequest, asker: SummaryCaller) -> SummaryResponse:
        self.asked += 1
        await self.may.wait()
        return SummaryResponse("Done.", "its-own-name", 30, 4)


async def test_what_each_answer_took_is_told_under_the_name_that_was_asked_for():
    held, spent = Held(), list[tuple[str, int, int]]()
    held.may.set()
    bounded = BoundedSummarizer(held, lambda *cost: spent.append(cost), max_concurrent=1, seconds=60)
    assert bounded.input_limit(ASKER) == 7
    assert (await bounded.write(REQUEST, ASKER)).text == "Done."
    assert spent == [("gpt-4o", 30, 4)]


async def test_more_than_its_share_is_not_asked_at_once_and_all_have_their_turn():
    held = Held()
    bounded = BoundedSummarizer(held, lambda *cost: None, max_concurrent=2, seconds=60)
    asked = [asyncio.ensure_future(bounded.write(REQUEST, ASKER)) for _ in range(5)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert held.asked == 2
    held.may.set()
    assert len(await asyncio.gather(*asked)) == held.asked == 5


async def test_who_waits_too_long_is_told_so_and_nobody_waits_behind_them():
    held = Held()
    bounded = BoundedSummarizer(held, lambda *cost: None, max_concurrent=1, seconds=0.01)
    for _ in range(3):
        with pytest.raises(SummaryFailed, match="did not answer within"):
            await bounded.write(REQUEST, ASKER)
    assert held.asked == 3
