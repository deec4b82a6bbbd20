"""Reading back beside what the client demands: a choice of tools, tools of its own, forms of the answer."""

from typing import Any

from tests.agent_replies import Json
from tests.e2e.reading_agent import ReadingAgent, start_reading_agent
from tests.e2e.small_window import STREAMS, Proxies


def last_body(one: ReadingAgent) -> Json:
    body: Json = one.provider.taken[-1].request.json()
    return body


def function_calling(mode: str, **more: Any) -> Json:
    """Gemini's choice of functions."""
    return {"toolConfig": {"functionCallingConfig": {"mode": mode, **more}}}


# -- which tool the client wants ---------------------------------------------------------------------------------------

SOME: dict[str, Json] = {
    "chat": {"tool_choice": "required"},
    "responses": {"tool_choice": "required"},
    "messages": {"tool_choice": {"type": "any"}},
    "gemini": function_calling("ANY"),
}


@STREAMS
async def test_where_a_tool_must_be_called_reading_goes_on_until_one_of_the_clients_is(
    proxies: Proxies, protocol_name: str, stream: bool
):
    proxy = proxies[protocol_name]
    async with start_reading_agent(
        proxy, protocol_name, f"must {stream}", ways=("o p t",), every=1, stream=stream
    ) as one:
        await one.until_offered()
        one.run.more = SOME[protocol_name]
        await one.rounds(4)
        assert last_body(one).items() >= SOME[protocol_name].items()
    one.whole("o p t")


# -- which tools the client has ----------------------------------------------------------------------------------------


# -- what the client wants of the answer -------------------------------------------------------------------------------
