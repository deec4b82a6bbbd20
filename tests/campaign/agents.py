"""Agents at work that send again what failed, the models of their providers, and what each got for its requests."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.agent_replies import TOOLS
from tests.agents import Client, Run, connected
from tests.campaign.replies import ANSWERED, outcome_of, problems_of
from tests.e2e.storing_provider import StoringProvider
from tests.history_content import ContentItem, content_items, reply_content_items
from tests.loopback import Answer, Loopback, Recorded
from tests.reading_provider import _ARTIFACT, OURS, ReadableArtifact, ReadingProvider
from tests.reply_parts import Piece, ReplyCall, ReplyText, ScriptedReply
from tests.response_recorder import RecordedResponse, ResponseRecorder
from tests.strict_provider import result_of, turn_text

Json = dict[str, Any]

WINDOW = 8_000
TEXT = 260
"""Words of a tool's result: a history outgrows the window in some fifteen requests."""
KINDS = {
    "chat": "chat", "responses": "responses", "messages": "messages", "gemini": "gemini", "chain": "responses",
    "delegating chat": "chat", "delegating messages": "messages",
}  # fmt: skip
"""The protocol of each kind of agent. A chain sends only what is new, behind the id of the last reply. A delegating one
hands parts of its work to sub-agents."""
MODELS = {"chat": "small", "responses": "small", "messages": "small-messages", "gemini": "small-gemini"}
CONFIG = f"""
server: {{shutdown_seconds: 2}}
summaries: {{writer: extractive}}
archive: {{record: all}}
model_list:
- model_name: small
  litellm_params: {{model: openai/small, api_base: "{{upstream}}/v1"}}
  model_info: {{max_input_tokens: {WINDOW}, max_output_tokens: 600}}
- model_name: small-messages
  litellm_params: {{model: anthropic/small, api_base: "{{upstream}}"}}
  model_info: {{max_input_tokens: {WINDOW}, max_output_tokens: 600}}
- model_name: small-gemini
  litellm_params: {{model: gemini/small, api_base: "{{upstream}}"}}
  model_info: {{max_input_tokens: {WINDOW}, max_output_tokens: 600}}
"""
AWAY = "is unavailable at the moment"
"""What our tool answers while the archive is away."""
GONE = "is no longer in the archive"
"""What it answers where an artifact is gone."""
REASONING = "was provided without its required"
"""In a refusal: a list has reasoning, or an item that was reasoned, without the other."""
INVENTED = "art_00000000dead"
"""The reference that a model makes up."""
REFUSALS = 8
"""So many refusals (4xx) in a row and an agent gives up."""
NUMBERS = 10_000
"""Replies of each agent are numbered apart, so that no two agents have a message in common."""
RECENT = 40
"""So many of the newest requests are kept whole; a break is only looked for among them."""


# -- models ------------------------------------------------------------------------------------------------------------


@dataclass
class Remarks:
    """Of a model: what is odd about a list that is legal all the same, and which artifacts it saw."""

    remarks: list[str] = field(default_factory=list)
    referenced: dict[str, set[str]] = field(default_factory=dict)
    """By artifact the calls whose whole results it stands for."""

    def _add_problem(self, problem: str) -> None:
        self.remarks.append(f"request {len(self.taken) - 1}: {problem}")  # type: ignore[attr-defined]

    def artifacts(self, entries: Iterable[bytes]) -> list[ReadableArtifact]:
        found: list[ReadableArtifact] = super().artifacts(entries)  # type: ignore[misc]
        for each in found:
            self.referenced.setdefault(each.id, set()).update(() if each.range else (each.call,))
        return found


@dataclass
class WholeListModel(Remarks, ReadingProvider):
    """A provider's model that reads back."""


@dataclass
class ChainModel(Remarks, StoringProvider):
    """The same where the provider keeps what was said."""


TASK = "delegate_task"
_SCHEMA = {"type": "object", "properties": {"prompt": {"type": "string"}}, "required": ["prompt"]}
_ABOUT = "Hands a task to another agent."
DELEGATING: dict[str, list[Json]] = {
    "chat": [
        *TOOLS["chat"],
        {"type": "function", "function": {"name": TASK, "description": _ABOUT, "parameters": _SCHEMA}},
    ],
    "messages": [*TOOLS["messages"], {"name": TASK, "description": _ABOUT, "input_schema": _SCHEMA}],
}


def sub_agent_of(name: str, call: str) -> str:
    """The name of the sub-agent that a call is for."""
    return f"{name}, for {call}"


@dataclass
class DelegatingModel(WholeListModel):
    """Now and then it calls for a sub-agent instead of a tool."""

    def _plain(self, tokens: int) -> ScriptedReply:
        said = super()._plain(tokens)
        if said.number % 7 or not said.calls:
            return said
        arguments = json.dumps({"prompt": turn_text(0, sub_agent_of(self.run, said.calls[0].id))})
        first = said.pieces.index(said.calls[0])
        made: list[Piece] = [*said.pieces]
        made[first] = ReplyCall(said.calls[0].id, TASK, arguments)
        return ScriptedReply(said.number, tuple(made), said.input, said.output)


@dataclass
class SubAgentModel(WholeListModel):
    """Ends its one turn with a report: what the tool of its parent's call returns."""

    report: str = ""

    def _plain(self, tokens: int) -> ScriptedReply:
        said = super()._plain(tokens)
        if said.calls:
            return said
        others = [each for each in said.pieces if not isinstance(each, ReplyText)]
        return ScriptedReply(said.number, (*others, ReplyText(self.report)), said.input, said.output)


# -- agents ------------------------------------------------------------------------------------------------------------


@dataclass
class Step:
    """One request of an agent that was answered: which of the provider's requests belong to it, whether an attempt
    failed before, and what the answer says of a compaction."""

    first: int
    last: int
    is_retried: bool
    compaction: Json


@dataclass
class Agent:
    """An agent and its provider's model; `sent` entries of its history were in a request that was answered."""

    kind: str
    run: Run
    model: WholeListModel | ChainModel
    witness: ResponseRecorder
    during: Callable[[], str]
    """The fault at this moment; empty: none."""
    steps: list[Step] = field(default_factory=list)
    sessions: set[str] = field(default_factory=set)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often an attempt ended so during a fault."""
    malformed: list[str] = field(default_factory=list)
    """Answers and errors that are none of the protocol's, and replies that are not what the model said."""
    children: list[Agent] = field(default_factory=list)
    references: set[str] = field(default_factory=set)
    """The artifacts that any of its forwarded lists named."""
    sent: int = 0
    gave_up: str = ""
    has_lost_store: bool = False
    """Whether the store was emptied meanwhile: what is not in the window any more need not be stored again, and a model
    that asks for it is told so."""

    async def exchange(self, stop: asyncio.Event) -> list[str]:
        """Sends a request, again where it fails; gives the calls of the reply. Until `stop` is set."""
        first, failed, refused = len(self.model.taken), 0, 0
        while not self.gave_up and not (failed and stop.is_set()):
            count, fault = len(self.run.history), self.during()
            try:
                calls = await self.run.step()
            except Exception as error:
                # The SDKs and their HTTP libraries each have exceptions of their own.
                outcome = self._count(fault, error)
                failed, refused = failed + 1, refused + 1 if outcome.startswith("HTTP 4") else 0
                if refused >= REFUSALS:
                    self.gave_up = f"{outcome}: {error}"[:300]
                await asyncio.sleep(0.1)
                continue
            self._count(fault, None)
            self._compare_reply(first, count)
            self.sent = count
            told = json.loads(self.run.answers[-1].get("x-accordion-compaction", "{}"))
            self.steps.append(Step(first, len(self.model.taken), failed > 0, told))
            return calls
        return []

    def _count(self, fault: str, error: Exception | None) -> str:
        """Counts an attempt that ended, and judges the form of what came; gives its kind."""
        heard: RecordedResponse | None = self.witness.heard[-1] if self.witness.heard else None
        self.witness.heard.clear()
        outcome = outcome_of(heard, error is not None)
        self.outcomes[fault or self.during(), outcome] += 1
        self.malformed += problems_of(self.run.protocol_name, heard, outcome)
        if error is None and outcome != ANSWERED:
            self.malformed.append(f"the SDK took this for an answer: {outcome}")
        self.sessions |= {head["x-accordion-session"] for head in self.run.answers if "x-accordion-session" in head}
        return outcome

    def _compare_reply(self, first: int, count: int) -> None:
        """Looks whether the reply that the client took for whole is one that the model gave."""
        entries = json.loads(json.dumps(self.run.history[count:], default=_plain))
        got = _merged(atom for atom in content_items(self.run.protocol_name, entries) if atom[0] in ("words", "call"))
        if not any(self._reply_content(at) == got for at in range(len(self.model.exchanges) - 1, first - 1, -1)):
            self.malformed.append(f"no such reply was given: {got}"[:400])

    def _reply_content(self, at: int) -> list[ContentItem]:
        """What a reply to the client that ended with this exchange says."""
        exchanges, pieces = self.model.exchanges, list[Piece]()
        one: int | None = at
        while one is not None:
            own = [p for p in exchanges[one].said.pieces if not (isinstance(p, ReplyCall) and p.id.startswith(OURS))]
            pieces, one = [*own, *pieces], exchanges[one].continues
        said = reply_content_items(self.run.protocol_name, ScriptedReply(0, tuple(pieces), 0, 0))
        return _merged(atom for atom in said if atom[0] in ("words", "call"))

    # -- what is known afterwards -------------------------------------------------

    @property
    def compactions(self) -> int:
        return sum(step.compaction.get("state") == "compacted" for step in self.steps)

    @property
    def read_backs(self) -> int:
        return sum(each.continues is not None for each in self.model.exchanges)

    @property
    def mended(self) -> list[str]:
        """Refusals that the client does not hear of: of reasoning whose read-back a worker could not look up, because
        the store was away. The proxy sends the list once more without it."""
        return [each for each in self.model.problems if REASONING in each]

    @property
    def rules_broken(self) -> list[str]:
        """All other rules that a request broke."""
        return [each for each in self.model.problems if REASONING not in each]

    @property
    def wrong_answers(self) -> list[str]:
        """Answers to calls of our tool that do not hold what was asked for. That the archive is away is no such
        answer."""
        plain = (AWAY, GONE) if self.has_lost_store else (AWAY,)
        return [each for each in self._answers if not each.endswith(": ''") and not any(text in each for text in plain)]

    @property
    def offered(self) -> set[str]:
        """The artifacts that must be readable."""
        if not self.has_lost_store:
            return self.references
        return {each.id for each in self.model.artifacts(self.model.taken[-1].entries)}

    @property
    def omissions(self) -> list[str]:
        """What a model said or read back that did not stand in a later list. Lists without it are legal: a worker that
        cannot reach the store does not know what another one added."""
        return [each for each in self.model.remarks if each not in self._answers or each.endswith(": ''")]

    @property
    def _answers(self) -> list[str]:
        return [each for each in self.model.remarks if ": the answer to " in each]

    def breaks(self) -> list[int]:
        """The provider's requests that did not begin with the one before although no compaction was made for them."""
        steps = {at: number for number, step in enumerate(self.steps) for at in range(step.first, step.last)}
        return [at for at in self.model.broke if at in steps and not self._is_compacted(steps[at])]

    def _is_compacted(self, number: int) -> bool:
        step = self.steps[number]
        if step.compaction.get("state") == "compacted":
            return True
        # The answer that told of it may have been lost.
        earlier = {one.compaction.get("id") for one in self.steps[:number]}
        return step.is_retried and step.compaction.get("id") not in earlier

    def entries(self) -> list[Json]:
        """All that it sent in requests that were answered. A chain sends no replies."""
        found: list[Json] = json.loads(json.dumps(self.run.history[: self.sent], default=_plain))
        return found if self.kind != "chain" else [each for each in found if _is_input(each)]


def _merged(said: Iterable[ContentItem]) -> list[ContentItem]:
    """Words in a row as one: what stood between them is left out."""
    out: list[ContentItem] = []
    for atom in said:
        if atom[0] == "words" and out and out[-1][0] == "words":
            out[-1] = ("words", out[-1][1] + atom[1])
        else:
            out.append(atom)
    return out


def _is_input(entry: Json) -> bool:
    return entry.get("role") == "user" or entry.get("type") == "function_call_output"


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json", exclude_none=True)


async def close(client: Client) -> None:
    await (client.aclose() if isinstance(client, httpx.AsyncClient) else client.close())


# -- the provider, and who asks it -------------------------------------------------------------------------------------


@dataclass
class Crew:
    """The agents of a round, and their provider: it hands each request to the model of its agent."""

    url: str
    during: Callable[[], str]
    agents: list[Agent] = field(default_factory=list)
    provider: Loopback | None = None
    _by_credential: dict[str, Agent] = field(default_factory=dict)
    _numbers: int = 0

    def add(self, kind: str) -> Agent:
        """One more agent; every other one streams, and two of four have a connection for each request."""
        agent = self._made(kind, f"agent-{self._numbers + 1}-{kind.replace(' ', '-')}")
        self.agents.append(agent)
        return agent

    def _made(self, kind: str, name: str, parent: Agent | None = None, call: str = "") -> Agent:
        self._numbers += 1
        number, protocol_name, witness = self._numbers, KINDS[kind], ResponseRecorder()
        credential = f"sk-{number}"
        more: Json = {"store": True} if kind == "chain" else {}
        if kind.startswith("delegating") and parent is None:
            more = {"tools": DELEGATING[protocol_name]}
        headers = {"Connection": "close"} if number % 4 > 1 else {}
        client = connected(self.url, protocol_name, witness, key=credential, headers=headers)
        run = Run(client, protocol_name, name=name, stream=bool(number % 2), words=TEXT, model=MODELS[protocol_name],
                  chained=kind == "chain", more=more)  # fmt: skip
        agent = Agent(kind, run, self._model(kind, name, parent, call), witness, self.during)
        agent.model.given = number * NUMBERS
        self._by_credential[credential] = agent
        return agent

    def _model(self, kind: str, name: str, parent: Agent | None, call: str) -> WholeListModel | ChainModel:
        protocol_name = KINDS[kind]
        more: Json = {"rounds": 24, "run": name, "thinks": protocol_name != "chat", "every": 4, "words": TEXT}
        if parent is not None:
            return SubAgentModel(protocol_name, WINDOW, **{**more, "rounds": 4}, report=result_of(call, TEXT))
        if kind.startswith("delegating"):
            return DelegatingModel(protocol_name, WINDOW, **more, tools=DELEGATING[protocol_name])
        return (ChainModel if kind == "chain" else WholeListModel)(protocol_name, WINDOW, **more)

    async def work(self, agent: Agent, stop: asyncio.Event, pause: float) -> None:
        """Asks, calls tools and asks again, until `stop`."""
        agent.run.begin()
        while not stop.is_set() and not agent.gave_up:
            await self.step(agent, stop)
            await asyncio.sleep(pause)

    async def step(self, agent: Agent, stop: asyncio.Event) -> None:
        """One answered request, and what follows from it: a sub-agent's work, or the user's next words."""
        before = len(agent.steps)
        calls = await agent.exchange(stop)
        if len(agent.steps) == before:
            return
        if not calls:
            agent.run.begin()
        for call in calls:
            if agent.kind.startswith("delegating") and _is_delegated(agent.run.history, call):
                await self._delegate(agent, call, stop)

    async def _delegate(self, parent: Agent, call: str, stop: asyncio.Event) -> None:
        child = self._made(parent.kind, sub_agent_of(parent.run.name, call), parent, call)
        parent.children.append(child)
        child.run.begin()
        while await child.exchange(stop):
            pass

    async def __call__(self, request: Recorded, answer: Answer) -> None:
        bearer = (request.header("authorization") or "").removeprefix("Bearer ")
        agent = self._by_credential[request.header("x-api-key") or request.header("x-goog-api-key") or bearer]
        before = len(agent.model.taken)
        try:
            await agent.model(request, answer)
        except (OSError, asyncio.IncompleteReadError):
            raise
        except Exception as error:
            agent.model.problems.append(f"the provider cannot make sense of it: {error!r}")
            await answer.cut()
        if len(agent.model.taken) > before:
            agent.references |= set(_ARTIFACT.findall(agent.model.taken[-1].text)) - {INVENTED}
        self._forget(agent)

    def _forget(self, agent: Agent) -> None:
        """Keeps what is old no longer in memory."""
        if self.provider is not None:
            self.provider.requests.clear()
            self.provider.answers.clear()
        for old in agent.model.taken[-RECENT - 4 : -RECENT]:
            old.request.raw = old.request.body = b""
        for exchange in agent.model.exchanges[-RECENT - 4 : -RECENT]:
            exchange.entries, exchange.body = [], {}

    @property
    def all(self) -> list[Agent]:
        """The agents and their sub-agents."""
        return [each for agent in self.agents for each in (agent, *agent.children)]


def _is_delegated(history: list[Any], call: str) -> bool:
    text = json.dumps(history[-3:], default=_plain)
    return TASK in text and f", for {call}" in text
