"""`python -m bench.outages`: agents at work while workers and the store fail; afterwards everything is compared.

Agents of several kinds loop over tools, each past a window of 8,000 tokens, against a strict provider that reads back.
A schedule of faults kills workers, and kills or freezes the store. When all was quiet for some seconds, the campaign
compares what the agents sent with the transcripts, and what reached the provider with the archive. See README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
from rich.console import Console

from bench import report
from tests.agents import Client, Run
from tests.e2e.storing_provider import StoringProvider
from tests.history_content import content_items
from tests.loopback import Answer, Loopback, Recorded
from tests.proxy_process import Proxy, held_port, start_proxy
from tests.reading_provider import _ARTIFACT, ReadingProvider
from tests.valkey import Valkey, running_valkey
from tests.writers import LISTS

Json = dict[str, Any]

WINDOW = 8_000
KINDS = {"chat": "chat", "responses": "responses", "messages": "messages", "chain": "responses"}
"""The protocol of each kind of agent. A chain sends only what is new, behind the id of the last reply."""
MODELS = {"chat": "small", "responses": "small", "messages": "small-messages"}
FAULTS = {
    "valkey": "kill-worker@6,kill-store@12,kill-worker@20,freeze-store@26,kill-store@42",
    "sqlite": "kill-worker@6,freeze-store@12,kill-worker@30,freeze-store@38",
}
CONFIG = """
server: {{shutdown_seconds: 2}}
summaries: {{writer: extractive}}
archive: {{record: {record}}}
model_list:
- model_name: small
  litellm_params: {{model: openai/small, api_base: "{{upstream}}/v1"}}
  model_info: {{max_input_tokens: {window}, max_output_tokens: 600}}
- model_name: small-messages
  litellm_params: {{model: anthropic/small, api_base: "{{upstream}}"}}
  model_info: {{max_input_tokens: {window}, max_output_tokens: 600}}
"""
INVENTED = "art_00000000dead"
"""The reference that the provider's model makes up."""
ATTEMPTS = 80
"""So many failures in a row and an agent gives up; of refusals (4xx) a tenth."""
NUMBERS = 10_000
"""Replies of each agent are numbered apart, so that no two agents have a message in common."""
RECENT = 40
"""So many of the newest requests are kept whole; a break is only looked for among them."""


@dataclass
class Options:
    """The choices of a campaign."""

    store: str = "valkey"
    kinds: Sequence[str] = tuple(KINDS)
    agents: int = 16
    seconds: float = 60.0
    pause: float = 0.2
    workers: int = 2
    reconnect: bool = False
    starve: int = 0
    faults: str = ""
    quiet: float = 8.0
    record: str = "folded"
    config: str = ""
    folder: Path | None = None
    log: str = "info"


def arguments(given: Sequence[str] | None = None) -> tuple[Options, Path | None]:
    """The options of the command line, and the file for the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.outages", description=(__doc__ or "").partition("\n\n")[2])
    own = Options()
    parser.add_argument("--store", choices=("valkey", "sqlite"), default=own.store)
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"some of {','.join(KINDS)} (default: all)")
    parser.add_argument("--agents", type=int, default=own.agents, help="how many in all; every other one streams")
    parser.add_argument("--seconds", type=float, default=own.seconds, help="how long they work (default 60)")
    parser.add_argument("--pause", type=float, default=own.pause, help="seconds between an agent's requests")
    parser.add_argument("--workers", type=int, default=own.workers)
    parser.add_argument("--reconnect", action="store_true", help="a connection for each request: turns hop")
    parser.add_argument("--starve", type=int, default=0, metavar="N", help="N busy processes beside")
    parser.add_argument(
        "--faults", default=None,
        help="FAULT@SECOND,… of kill-worker, kill-store (3 s), freeze-store (10 s), kill-all; '' for none",
    )  # fmt: skip
    parser.add_argument("--quiet", type=float, default=own.quiet, help="seconds of quiet before all is compared")
    parser.add_argument("--record", default=own.record, help="archive.record (default: folded)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="lines to add to the proxy's config file")
    parser.add_argument("--log", default=own.log, help="log level of the proxy")
    parser.add_argument("--folder", type=Path, help="keep the proxy's log and files in this folder")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures and details as JSON")
    found = parser.parse_args(given)
    kinds = tuple(filter(None, found.kinds.split(",")))
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"no such kind: {', '.join(sorted(unknown))}")
    faults = FAULTS[found.store] if found.faults is None else found.faults
    more = found.config.read_text() if found.config else ""
    values = {name: value for name, value in vars(found).items() if name not in ("json", "kinds", "faults", "config")}
    return Options(**values, kinds=kinds, faults=faults, config=more), found.json


# -- models ------------------------------------------------------------------------------------------------------------


@dataclass
class Remarks:
    """Records problems of lists that are legal all the same."""

    remarks: list[str] = field(default_factory=list)

    def _add_problem(self, problem: str) -> None:
        self.remarks.append(problem)


@dataclass
class WholeListModel(Remarks, ReadingProvider):
    """A provider's model that reads back."""


@dataclass
class ChainModel(Remarks, StoringProvider):
    """The same model behind a provider that stores responses."""


# -- agents ------------------------------------------------------------------------------------------------------------


@dataclass
class Step:
    """One request of an agent that was answered: which of the provider's requests belong to it, whether an attempt
    failed before, and what the answer says of a compaction."""

    first: int
    last: int
    retried: bool
    compaction: Json


@dataclass
class Agent:
    """An agent and its provider's model; `sent` entries of its history were in a request that was answered."""

    number: int
    kind: str
    run: Run
    model: WholeListModel | ChainModel
    steps: list[Step] = field(default_factory=list)
    sessions: dict[str, int] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    references: set[str] = field(default_factory=set)
    newest: set[str] = field(default_factory=set)
    illegal: list[Json] = field(default_factory=list)
    """The list of the first request that broke a rule."""
    sent: int = 0
    gave_up: str = ""

    async def work(self, stop: asyncio.Event, pause: float) -> None:
        """Asks, calls tools and asks again, until `stop`."""
        self.run.begin()
        while not stop.is_set() and not self.gave_up:
            if not await self.answered(stop):
                self.run.begin()
            await asyncio.sleep(pause)

    async def answered(self, stop: asyncio.Event) -> list[str]:
        """Sends a request, again where it fails; gives the calls of the reply."""
        first, failed, refused = len(self.model.taken), 0, 0
        while not self.gave_up:
            count = len(self.run.history)
            try:
                calls = await self.run.step()
            except Exception as error:
                # The SDKs and their HTTP libraries each have exceptions of their own.
                failed, refused = failed + 1, refused + self._failed(error)
                if failed >= ATTEMPTS or refused >= ATTEMPTS // 10:
                    self.gave_up = f"{type(error).__name__}: {error}"[:300]
                if stop.is_set():
                    return ["stopped"]
                await asyncio.sleep(0.25)
                continue
            self.sent = count
            self._count_responses(first, failed)
            return calls
        return []

    def _count_responses(self, first: int, failed: int) -> None:
        head = self.run.answers[-1]
        session = head.get("x-accordion-session", "")
        self.sessions[session] = self.sessions.get(session, 0) + 1
        told = json.loads(head.get("x-accordion-compaction", "{}"))
        self.steps.append(Step(first, len(self.model.taken), failed > 0, told))

    def _failed(self, error: Exception) -> bool:
        """Counts a failure; gives whether it is a refusal."""
        status = getattr(error, "status_code", None)
        text = f" {str(error)[:80]}" if status else ""
        self.failures[f"{type(error).__name__}{text}"] += 1
        response = getattr(error, "response", None)
        if response is not None and (session := response.headers.get("x-accordion-session")):
            self.sessions.setdefault(session, 0)
        return status is not None and 400 <= status < 500

    # -- what is known afterwards -------------------------------------------------

    @property
    def compactions(self) -> int:
        return sum(step.compaction.get("state") == "folded" for step in self.steps)

    @property
    def read_backs(self) -> int:
        return sum(each.continues is not None for each in self.model.exchanges)

    @property
    def odd(self) -> list[str]:
        """What was read back and did not stand in a later list, or other than it was. That an answer says that the
        archive is away is no such thing."""
        return [each for each in self.model.remarks if "cannot be reached at the moment" not in each]

    def breaks(self) -> list[int]:
        """The provider's requests that did not begin with the one before although no compaction was made for them."""
        steps = {at: number for number, step in enumerate(self.steps) for at in range(step.first, step.last)}
        return [at for at in self.model.broke if at in steps and not self._compacted(steps[at])]

    def _compacted(self, number: int) -> bool:
        step = self.steps[number]
        if step.compaction.get("state") == "folded":
            return True
        # The answer that told of it may have been lost.
        earlier = {one.compaction.get("id") for one in self.steps[:number]}
        return step.retried and step.compaction.get("id") not in earlier

    def messages(self) -> list[tuple[int, str]]:
        """All that it sent, each with the index of its entry. A chain sends no replies."""
        entries = json.loads(json.dumps(self.run.history[: self.sent], default=_plain))
        own = [(at, each) for at, each in enumerate(entries) if self.kind != "chain" or _is_input(each)]
        return [(at, _text(atom)) for at, each in own for atom in content_items(KINDS[self.kind], [each])]


def _is_input(entry: Json) -> bool:
    return entry.get("role") == "user" or entry.get("type") == "function_call_output"


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json", exclude_none=True)


def _text(atom: tuple[Any, ...]) -> str:
    return json.dumps(atom, sort_keys=True)


def client_of(url: str, dialect: str, name: str, *, reconnect: bool) -> Client:
    """An official client whose credential names its agent, with no retries of its own."""
    more: Any = {"api_key": f"sk-{name}", "max_retries": 0, "timeout": 60}
    if reconnect:
        more["default_headers"] = {"Connection": "close"}
    if dialect == "messages":
        return anthropic.AsyncAnthropic(base_url=url, **more)
    return openai.AsyncOpenAI(base_url=f"{url}/v1", **more)


def agent_of(number: int, kind: str, url: str, *, reconnect: bool) -> Agent:
    """An agent that has sent nothing yet."""
    dialect, name = KINDS[kind], f"agent-{number}-{kind}"
    chained = kind == "chain"
    run = Run(
        client_of(url, dialect, name, reconnect=reconnect), dialect, name=name, stream=bool(number % 2),
        model=MODELS[dialect], chained=chained, more={"store": True} if chained else {},
    )  # fmt: skip
    make = ChainModel if chained else WholeListModel
    model = make(dialect, WINDOW, rounds=24, run=name, thinks=dialect != "chat", every=4)
    model.given = number * NUMBERS
    return Agent(number, kind, run, model)


# -- the provider ------------------------------------------------------------------------------------------------------


@dataclass
class Provider:
    """Hands each request to the model of its agent, and notes which references reach it."""

    agents: dict[str, Agent]
    behind: Loopback | None = None

    async def __call__(self, request: Recorded, answer: Answer) -> None:
        credential = request.header("x-api-key") or (request.header("authorization") or "").removeprefix("Bearer ")
        agent = self.agents[credential.removeprefix("sk-")]
        before, problems = len(agent.model.taken), len(agent.model.problems)
        try:
            await agent.model(request, answer)
        except (OSError, asyncio.IncompleteReadError):
            raise
        except Exception as error:
            agent.model.problems.append(f"the provider cannot make sense of it: {error!r}")
            await answer.cut()
        if len(agent.model.problems) > problems and not agent.illegal:
            agent.illegal = request.json()[LISTS[KINDS[agent.kind]]]
        if len(agent.model.taken) > before:
            self._note(agent, agent.model.taken[-1].request.json()[LISTS[KINDS[agent.kind]]])
        self._let_go(agent)

    def _note(self, agent: Agent, entries: list[Json]) -> None:
        agent.newest = set(_ARTIFACT.findall(json.dumps(entries))) - {INVENTED}
        agent.references |= agent.newest

    def _let_go(self, agent: Agent) -> None:
        """Keeps what is old no longer in memory."""
        if self.behind is not None:
            self.behind.requests.clear()
            self.behind.answers.clear()
        for old in agent.model.taken[-RECENT - 4 : -RECENT]:
            old.request.raw = old.request.body = b""
        for exchange in agent.model.exchanges[-RECENT - 4 : -RECENT]:
            exchange.entries, exchange.body = [], {}


# -- faults ------------------------------------------------------------------------------------------------------------


@dataclass
class Faults:
    """Carries out a schedule of faults."""

    proxy: Proxy
    valkey: Valkey | None
    began: float = 0.0
    log: list[str] = field(default_factory=list)

    async def follow(self, schedule: str) -> None:
        """Each fault at its second."""
        self.began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for one in filter(None, schedule.split(",")):
                name, _, second = one.partition("@")
                group.create_task(self._at(float(second), name.strip()))

    async def _at(self, second: float, name: str) -> None:
        await asyncio.sleep(max(0.0, self.began + second - time.monotonic()))
        self.log.append(f"{second:g} s: {name}")
        await getattr(self, f"_{name.replace('-', '_')}")()

    async def _kill_worker(self) -> None:
        os.kill(self._alive()[0], signal.SIGKILL)

    async def _kill_all(self) -> None:
        for pid in self._alive():
            os.kill(pid, signal.SIGKILL)

    def _alive(self) -> list[int]:
        return [pid for pid in self.proxy.workers if Path(f"/proc/{pid}").exists()]

    async def _kill_store(self) -> None:
        if self.valkey is None:
            raise SystemExit("kill-store needs --store valkey")
        os.kill(self.valkey.pid, signal.SIGKILL)
        self.valkey.kill()
        await asyncio.sleep(3)
        await asyncio.to_thread(self.valkey.start)

    async def _freeze_store(self) -> None:
        if self.valkey is not None:
            self.valkey.freeze()
            await asyncio.sleep(10)
            self.valkey.thaw()
            return
        with closing(sqlite3.connect(self.proxy.folder / "campaign.db", timeout=30)) as held:
            held.execute("BEGIN EXCLUSIVE")
            await asyncio.sleep(10)


@contextmanager
def starved(count: int) -> Iterator[None]:
    """So many processes that keep the machine busy."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


# -- the campaign ------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """The result of one agent."""

    agent: Agent
    messages: int = 0
    missing: list[tuple[int, str]] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    gone_newest: list[str] = field(default_factory=list)


async def compared(url: str, agent: Agent, record: str) -> Outcome:
    """What of an agent's messages and references can still be read. `record` is `archive.record`: where that is
    `folded`, nothing is expected of an agent whose list was never folded."""
    outcome = Outcome(agent)
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
        there = set[str]()
        for session in filter(None, agent.sessions):
            body = await _json(client, f"/accordion/sessions/{session}/original")
            if body is not None:
                entries = body[LISTS[KINDS[agent.kind]]]
                there |= {_text(atom) for each in entries for atom in content_items(KINDS[agent.kind], [each])}
        sent = agent.messages() if record == "all" or agent.compactions else []
        outcome.messages = len(sent)
        outcome.missing = [(at, text) for at, text in sent if text not in there]
        for reference in sorted(agent.references):
            if (await client.get(f"/accordion/artifacts/{reference}")).status_code != 200:
                outcome.gone.append(reference)
        outcome.gone_newest = [each for each in outcome.gone if each in agent.newest]
    return outcome


async def _json(client: httpx.AsyncClient, path: str) -> Json | None:
    for _ in range(20):
        reply = await client.get(path)
        if reply.status_code in (200, 404):
            found: Json | None = reply.json() if reply.status_code == 200 else None
            return found
        await asyncio.sleep(0.5)
    raise RuntimeError(f"{path}: {reply.status_code} {reply.text[:200]}")


async def campaign(options: Options, proxy: Proxy, valkey: Valkey | None) -> tuple[list[Outcome], list[str]]:
    """Runs the agents through the faults, and compares when all was quiet. Gives the faults, too."""
    await proxy.says("startup complete", options.workers)
    kinds = [options.kinds[number % len(options.kinds)] for number in range(options.agents)]
    agents = [agent_of(at + 1, kind, proxy.url, reconnect=options.reconnect) for at, kind in enumerate(kinds)]
    provider = Provider({agent.run.name: agent for agent in agents})
    stop, faults = asyncio.Event(), Faults(proxy, valkey)
    async with proxy.provider(provider) as provider.behind:
        with starved(options.starve):
            running = [asyncio.create_task(agent.work(stop, options.pause)) for agent in agents]
            following = asyncio.create_task(faults.follow(options.faults))
            await asyncio.sleep(options.seconds)
            stop.set()
            await asyncio.gather(*running)
            await following
        await asyncio.sleep(options.quiet)
        outcomes = [await compared(proxy.url, agent, options.record) for agent in agents]
        for agent in agents:
            await agent.run.client.close()
    return outcomes, faults.log


COLUMNS = (
    *("kind", "agents", "exchanges", "compactions", "read backs", "overflows", "illegal", "odd", "breaks", "gave up"),
    *("messages", "missing", "references", "gone", "gone, newest"),
)


def table_of(title: str, outcomes: Sequence[Outcome]) -> report.Table:
    """The figures by kind of agent."""
    table = report.Table(title, COLUMNS)
    for kind in dict.fromkeys(each.agent.kind for each in outcomes):
        own = [each for each in outcomes if each.agent.kind == kind]
        agents = [each.agent for each in own]
        table.rows.append([
            kind, len(own), sum(len(one.steps) for one in agents), sum(one.compactions for one in agents),
            sum(one.read_backs for one in agents), sum(len(one.model.refusals) for one in agents),
            sum(len(one.model.problems) for one in agents), sum(len(one.odd) for one in agents),
            sum(len(one.breaks()) for one in agents),
            sum(bool(one.gave_up) for one in agents), sum(each.messages for each in own),
            sum(len(each.missing) for each in own), sum(len(one.references) for one in agents),
            sum(len(each.gone) for each in own), sum(len(each.gone_newest) for each in own),
        ])  # fmt: skip
    return table


def details_of(outcome: Outcome) -> Json:
    """The details of an agent that lost something."""
    agent = outcome.agent
    return {
        "agent": agent.run.name, "exchanges": len(agent.steps), "sessions": agent.sessions, "sent": agent.sent,
        "missing": [[at, text[:160]] for at, text in outcome.missing], "gone": outcome.gone,
        "gone_newest": outcome.gone_newest, "gave_up": agent.gave_up, "problems": agent.model.problems[:5],
        "illegal": agent.illegal,
        "odd": [each[:300] for each in agent.odd[:5]],
        "breaks": agent.breaks(), "refusals": len(agent.model.refusals), "failures": dict(agent.failures),
    }  # fmt: skip


def lines_of(outcomes: Sequence[Outcome]) -> list[str]:
    """The losses, a line for each agent, and the errors of requests."""
    lines = []
    for each in outcomes:
        agent, entries = each.agent, sorted({at for at, _ in each.missing})
        if entries:
            lines.append(
                f"{agent.run.name}: {len(each.missing)} missing, of entries {_ranges(entries)} of {agent.sent}; "
                f"requests by session: {agent.sessions}"
            )
        if agent.gave_up or agent.model.problems:
            lines.append(f"{agent.run.name}: {agent.gave_up} {' | '.join(agent.model.problems[:1])}"[:300])
    failures = sum((each.agent.failures for each in outcomes), Counter[str]())
    return [*lines, f"failed attempts: {dict(failures.most_common(12))}"]


def _ranges(numbers: Sequence[int]) -> str:
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in found)


def run(options: Options) -> tuple[list[Outcome], list[str]]:
    """A campaign on a proxy and a store of its own."""
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "valkey").mkdir(parents=True, exist_ok=True)
        valkey = None
        if options.store == "valkey":
            valkey = stack.enter_context(running_valkey(folder / "valkey", appendonly="yes"))
        url = valkey.url if valkey is not None else "sqlite:///campaign.db"
        config = CONFIG.format(window=WINDOW, record=options.record) + options.config
        environ = {"ACCORDION_STORE": url, "ACCORDION_LOG": options.log}
        port = stack.enter_context(held_port())
        proxy = stack.enter_context(
            start_proxy(folder, config, "--workers", str(options.workers), upstream_port=port, **environ)
        )
        return asyncio.run(campaign(options, proxy, valkey))


def main() -> int:
    """Runs a campaign and shows what was lost; 1 where anything was."""
    options, file = arguments()
    began = time.monotonic()
    outcomes, faults = run(options)
    title = f"Outages: {options.store}, {options.workers} workers, {options.agents} agents, {options.seconds:g} s"
    title += ", a connection per request" * options.reconnect + f", {options.starve} busy processes" * bool(
        options.starve
    )
    table = table_of(title, outcomes)
    table.notes = [f"faults: {'; '.join(faults) or 'none'}", *lines_of(outcomes), f"{time.monotonic() - began:.0f} s"]
    report.display([table], Console(width=None if sys.stdout.isatty() else 200))
    if file is not None:
        found = {**report.as_json({"outages": [table]}), "agents": [details_of(each) for each in outcomes]}
        file.write_text(json.dumps(found, indent=1) + "\n")
    lost = any(each.missing or each.gone or each.agent.gave_up or each.agent.model.problems for each in outcomes)
    return int(lost)


if __name__ == "__main__":
    sys.exit(main())
