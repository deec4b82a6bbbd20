"""Agents on the official SDKs work on over a window that their history outgrows many times, and never see an error."""

import pytest

from tests.e2e.small_window import WINDOW, Proxies, agent, broken_prefixes, compacted_requests, fetch_session
from tests.strict_provider import StrictProvider

CASES = [
    pytest.param("chat", False, 1, id="chat, one turn"),
    pytest.param("chat", True, 4, id="chat, streamed, four turns"),
    pytest.param("responses", False, 4, id="responses, four turns"),
    pytest.param("responses", True, 1, id="responses, streamed, one turn"),
    pytest.param("messages", False, 1, id="messages, one turn"),
    pytest.param("messages", True, 4, id="messages, streamed, four turns"),
    pytest.param("gemini", False, 4, id="gemini, four turns"),
    pytest.param("gemini", True, 1, id="gemini, streamed, one turn"),
]


@pytest.mark.parametrize(("protocol_name", "stream", "turns"), CASES)
async def test_an_agent_of_a_hundred_rounds_never_sees_an_error(
    proxies: Proxies, protocol_name: str, stream: bool, turns: int
):
    proxy = proxies[protocol_name]
    name = f"{protocol_name}, {stream}, {turns}"
    provider = StrictProvider(protocol_name, WINDOW, rounds=104 // turns, thinks=protocol_name != "chat", run=name)
    async with proxy.provider(provider), agent(proxy, protocol_name, stream=stream, name=name) as run:
        await run.turns(turns)
        known = await fetch_session(proxy, run.answers[-1]["x-accordion-session"], len(run.answers))
    assert provider.problems == []
    assert provider.refusals == []
    assert len(provider.taken) >= 104 + turns, "each request was asked once"
    # The history outgrew the window, what was forwarded never did.
    assert run.sent[-1] // 4 > 2 * WINDOW
    assert max(one.tokens for one in provider.taken) <= WINDOW
    assert sum(one.tokens for one in provider.taken) < 0.6 * sum(run.sent) / 4
    # The prefix broke where a compaction was made, and nowhere else.
    assert broken_prefixes(provider.taken) == compacted_requests(run)
    assert 2 <= len(compacted_requests(run)) <= 13
    assert len({run.answers[at]["x-accordion-session"] for at in range(len(run.answers))}) == 1
    # The same is told afterwards.
    for said, shown in zip(reversed(run.compactions), reversed(known["exchanges"]), strict=False):
        assert (said is None) == (shown["compaction"] is None)
        if said is not None:
            names = ("state", "id", "kind", "cause", "before", "after", "saved", "generation", "trigger", "passes")
            assert [shown["compaction"][name] for name in names if name in said] == [
                said[n] for n in names if n in said
            ]
