"""What others fell into when they put archived text back: streams that were held up, readings that were archived again,
empty answers."""

import anthropic
import openai
import pytest

from tests.agents import GeminiError
from tests.e2e.reading_agent import prepare_way, start_reading_agent
from tests.e2e.small_window import STREAMS, Proxies
from tests.loopback import Answer
from tests.reading_provider import ProviderExchange


@STREAMS
@pytest.mark.parametrize("round_", ["first", "second"])
async def test_an_answer_that_is_empty_is_told_as_an_error(
    proxies: Proxies, protocol_name: str, stream: bool, round_: str
):
    """A connection that is closed looks like the end of an answer."""
    proxy = proxies[protocol_name]

    async def empty(exchange: ProviderExchange, answer: Answer) -> bool:
        if (exchange.continues is None) == (round_ == "second"):
            return False
        await answer.head(200, [("Content-Type", "text/event-stream" if stream else "application/json")])
        await answer.close()
        return True

    async with start_reading_agent(proxy, protocol_name, f"empty {stream} {round_}", ways=(), stream=stream) as one:
        await prepare_way(one, "wo w")
        before, one.provider.instead = list(one.run.history), empty
        with pytest.raises((openai.OpenAIError, anthropic.AnthropicError, GeminiError, ValueError)):
            await one.run.step()
    assert one.run.history == before
