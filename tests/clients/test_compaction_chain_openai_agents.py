"""An agent of the OpenAI Agents SDK that says only what is new (`auto_previous_response_id`) works on over
compactions."""

import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import agents
import pytest
import replies
from client_link import ClientLink, Proxy
from replies import Call, body_of, speak
from test_compaction_agent_clis import FILES, notes, settings, unanswered
from test_delegation_openai_agents import model, run
from upstream import Upstream
from wire import Request

WINDOW = 15_000
_REPORTED = re.compile(rb'("input_tokens": ?)\d+')


@dataclass
class Keeping:
    """A provider that keeps what was said by the ids of its replies; its model reads one file after the other."""

    held: dict[str, list[Any]] = field(default_factory=dict)
    lists: list[list[Any]] = field(default_factory=list)
    """What the model read for each request."""
    went_on: list[bool] = field(default_factory=list)
    """Whether it was asked to go on from a reply."""

    def __call__(self, request: Request) -> Any:
        if request.method != "POST" or not replies.is_generation(request):
            return None
        body, number = body_of(request), len(self.lists)
        previous = body.get("previous_response_id")
        listed = [*(self.held[previous] if previous else ()), *body["input"]]
        self.lists.append(listed)
        self.went_on.append(previous is not None)
        parts: list[Any] = [Call("read", {"topic": f"notes{number}"})] if number < FILES else ["Found it."]
        said = replies.response(body, parts)
        self.held[said["id"]] = [*listed, *said["output"]]
        tokens = b"%d" % (len(json.dumps(listed)) // 4)
        reply = speak(request, parts)
        pieces = (_REPORTED.sub(rb"\g<1>" + tokens, each) if isinstance(each, bytes) else each for each in reply.pieces)
        return replace(reply, pieces=tuple(pieces))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_agent_that_goes_on_from_replies_works_on_over_compactions(
    upstream: Upstream, tmp_path: Path, stream: bool
) -> None:
    def read(topic: str) -> str:
        return notes(int(topic.removeprefix("notes")))

    proxy = Proxy(upstream.port, tmp_path, settings(WINDOW, upstream.port))
    upstream.reset()
    recorder = upstream.record_connections(proxy.port)
    link = ClientLink("through", upstream, recorder)
    upstream.rule = provider = Keeping()
    agent = agents.Agent(name="Reader", model=model(link, "responses"), tools=[agents.function_tool(read)])
    try:
        assert run(agent, stream, auto_previous_response_id=True, max_turns=FILES + 2) == "Found it."
        heads = [dict(one.response.headers) for one in link.exchanges() if one.response is not None]
    finally:
        upstream.call(recorder.stop())
        proxy.stop()
    assert len(provider.lists) == FILES + 1, "nothing was asked twice"
    told = [json.loads(head["x-accordion-compaction"]) for head in heads if "x-accordion-compaction" in head]
    assert [one["state"] for one in told].count("compacted") in range(1, 6)
    assert len({head["x-accordion-session"] for head in heads}) == 1
    first = len(heads) - len(told)
    assert provider.went_on == [0 < at < first for at in range(FILES + 1)]
    for listed in provider.lists:
        assert unanswered({"input": listed}) == []
        assert len(json.dumps(listed)) // 4 < WINDOW
        assert "Tell of the valley" in json.dumps(listed)
