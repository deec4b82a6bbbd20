"""A summarizer with a time limit, a limit of concurrent requests, and a report of its token usage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from accordion.model.errors import SummaryFailed
from accordion.model.summarizer import Summarizer, SummaryCaller, SummaryRequest, SummaryResponse

TokenUsageCallback = Callable[[str, int, int], None]
"""Receives the model, input tokens and output tokens of each response."""


class BoundedSummarizer:
    """Wraps a summarizer: at most `max_concurrent` requests at once, and `seconds` for each, its wait included."""

    def __init__(
        self, summarizer: Summarizer, on_usage: TokenUsageCallback, *, max_concurrent: int, seconds: float
    ) -> None:
        self._summarizer, self._on_usage = summarizer, on_usage
        self._slots, self._seconds = asyncio.Semaphore(max_concurrent), seconds

    def input_limit(self, caller: SummaryCaller) -> int:
        """Returns the wrapped summarizer's limit."""
        return self._summarizer.input_limit(caller)

    async def write(self, request: SummaryRequest, caller: SummaryCaller) -> SummaryResponse:
        """Requests a summary once. Raises SummaryFailed, also when the time is over."""
        try:
            async with asyncio.timeout(self._seconds), self._slots:
                response = await self._summarizer.write(request, caller)
        except TimeoutError as error:
            raise SummaryFailed(f"the model did not answer within {self._seconds:g} seconds") from error
        self._on_usage(caller.model, response.input, response.output)
        return response
