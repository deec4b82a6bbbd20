"""A team of agents: the responses of each, in order, and the results of others that each was shown."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import replies
from client_link import ClientLink, Proxy
from replies import Part, body_of, is_generation, speak
from upstream import Upstream
from wire import Request


def tool_text(agent: str) -> str:
    """The result of an agent's tool: a text found nowhere else."""
    return f"CANARY-{agent.upper()} was found"


@dataclass
class AgentTeam:
    """A rule for the provider. Whose request it is its system prompt says: `You are NAME.`"""

    parts: dict[str, list[list[Part]]]
    asked: dict[str, list[Request]] = field(default_factory=dict)

    def __call__(self, request: Request) -> replies.Reply | None:
        if request.method != "POST" or not is_generation(request):
            return None
        name = self._whose(body_of(request))
        mine = self.asked.setdefault(name, [])
        mine.append(request)
        return speak(request, self.parts[name][len(mine) - 1])

    def _whose(self, body: dict[str, Any]) -> str:
        first = (body.get("messages") or body.get("input") or [{}])[0]
        said = [body.get("instructions"), body.get("system"), first.get("content")]
        return next(name for name in self.parts if f"You are {name}." in json.dumps(said))

    def requests_with(self, name: str, canary: str) -> list[bool]:
        """In which of an agent's requests, as they were forwarded, a text stands anywhere."""
        return [canary.encode() in request.body for request in self.asked[name]]

    def check_complete(self) -> None:
        """Checks that all scripted responses were requested, and that every forwarded list is complete."""
        assert {name: len(asked) for name, asked in self.asked.items()} == {
            name: len(parts) for name, parts in self.parts.items()
        }
        for asked in self.asked.values():
            for request in asked:
                assert unanswered(body_of(request)) == []


def unanswered(body: dict[str, Any]) -> list[str]:
    """Calls without their result, and results without their call, in Chat Completions, Responses or Messages."""
    calls: list[str] = []
    results: list[str] = []
    for entry in body.get("messages") or body["input"]:
        calls += [entry["call_id"]] if entry.get("type") == "function_call" else []
        calls += [call["id"] for call in entry.get("tool_calls") or ()]
        results += [entry["call_id"]] if entry.get("type") == "function_call_output" else []
        results += [entry["tool_call_id"]] if entry.get("role") == "tool" else []
        for block in entry.get("content") if isinstance(entry.get("content"), list) else ():
            calls += [block["id"]] if block["type"] == "tool_use" else []
            results += [block["tool_use_id"]] if block["type"] == "tool_result" else []
    return sorted({name for name in {*calls, *results} if calls.count(name) != results.count(name)})


@dataclass
class TeamRun:
    """A link for a test's agents, and the headers of its responses."""

    link: ClientLink
    proxy: Proxy

    def heads(self, name: str) -> list[dict[str, str]]:
        """The response headers of an agent's requests."""
        told = []
        for exchange in self.link.exchanges():
            if exchange.response is not None and f"You are {name}.".encode() in exchange.request.body:
                told.append({key.lower(): value for key, value in exchange.response.headers})
        return told

    def sessions(self, name: str) -> list[str]:
        """The sessions that an agent's requests belong to."""
        return list(dict.fromkeys(head["x-accordion-session"] for head in self.heads(name)))

    def edges(self, name: str, count: int) -> list[tuple[str, str]]:
        """The edges of the tree that an agent's session stands in, as its page says once it has so many: who works for
        another, and how that is known."""

        def read_edges() -> list[tuple[str, str]]:
            agents = self.look(f"/accordion/sessions/{self.sessions(name)[0]}/tree").json()["agents"]
            return sorted((each["session"], each["evidence"]) for each in agents if each["parent"] is not None)

        self.link.upstream.wait_for(lambda: len(read_edges()) >= count)
        return read_edges()

    def filtered(self, name: str) -> list[int]:
        """How many results each of an agent's answers said were hidden."""
        return [int(head.get("x-accordion-filtered", 0)) for head in self.heads(name)]

    def look(self, path: str) -> httpx.Response:
        """One of the proxy's own pages."""
        return httpx.get(f"http://127.0.0.1:{self.proxy.port}{path}", timeout=30, trust_env=False)


@contextmanager
def run_team(upstream: Upstream, proxy: Proxy, rule: AgentTeam) -> Iterator[TeamRun]:
    """Links the agents to the provider through the proxy."""
    upstream.reset()
    recorder = upstream.record_connections(proxy.port)
    upstream.rule = rule
    yield TeamRun(ClientLink("through", upstream, recorder), proxy)
    upstream.call(recorder.stop())
