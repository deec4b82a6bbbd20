"""A summarizer that nobody waits for without end, and whose cost is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from accordion.core.errors import SummaryFailed
from accordion.core.summarizing import Asker, Summarizer, SummaryReply, SummaryRequest

Spent = Callable[[str, int, int], None]
"""Hears of each answer which model gave it, and the tokens that went in and came out."""


class BoundedSummarizer:
    """Another summarizer, asked `at_once` times at once; who asks waits for `seconds` at most, for their turn too."""

    def __init__(self, summarizer: Summarizer, spent: Spent, *, at_once: int, seconds: float) -> None:
        self._summarizer, self._spent = summarizer, spent
        self._turns, self._seconds = asyncio.Semaphore(at_once), seconds

    def room(self, asker: Asker) -> int:
        """As the other one has it."""
        return self._summarizer.room(asker)

    async def write(self, request: SummaryRequest, asker: Asker) -> SummaryReply:
        """Asks once. Raises SummaryFailed, also where it takes too long."""
        try:
            async with asyncio.timeout(self._seconds), self._turns:
                reply = await self._summarizer.write(request, asker)
        except TimeoutError as error:
            raise SummaryFailed(f"the model did not answer within {self._seconds:g} seconds") from error
        self._spent(asker.model, reply.input, reply.output)
        return reply
