"""Words that a client only names afterwards (`item_reference` of Responses): kept as they go by, told by compactions,
erased. In one process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import pytest

from accordion.model.ports import Headers
from tests.fakes import FakeReply, FakeTasks, FakeWindows, FickleStore
from tests.pipeline_setup import RESPONSES, PipelineSetup, header

Json = dict[str, Any]


class Tasks(FakeTasks):
    """Runs what is spawned, too."""

    def __init__(self) -> None:
        super().__init__()
        self.running: list[asyncio.Future[Any]] = []

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        self.running.append(asyncio.ensure_future(work))

    async def done(self) -> None:
        while self.running:
            await self.running.pop()


class Talk:
    """A conversation in one process: what the user says, and what is answered, under the id `msg_…` of the answer.
    `names`: the client names the answers."""

    def __init__(self, setup: PipelineSetup, *, names: bool = True, store: bool = True, **headers: str) -> None:
        self.setup = setup
        self.names = names
        self.store = store
        self.headers = headers
        self.input: list[Json] = []
        self.state = "none"

    async def turn(self, number: int, answer: str) -> None:
        """The user asks, something is read, and the answer comes."""
        call = {"type": "function_call", "call_id": f"c{number}", "name": "read", "arguments": f'{{"at":{number}}}'}
        read = {"type": "function_call_output", "call_id": f"c{number}", "output": " ".join(["words"] * 200)}
        self.input += [{"role": "user", "content": f"part {number}"}, call, read]
        said = item(number, answer)
        whole = {"id": f"resp_{number}", "model": "gpt-5", "status": "completed", "store": self.store, "output": [said]}
        self.setup.upstream.answers.append(FakeReply(pieces=(json.dumps(whole).encode(),)))
        out, _ = await self.setup.ask(
            RESPONSES, {"model": "gpt-5", "input": self.input, "store": self.store}, self.headers
        )
        assert out.status == 200
        self.session = header(out, "x-accordion-session") or ""
        self.state = json.loads(header(out, "x-accordion-compaction") or '{"state":"none"}')["state"]
        self.input.append({"type": "item_reference", "id": said["id"]} if self.names else said)
        await tasks_of(self.setup).done()

    async def load_archived(self, *numbers: int) -> dict[int, str]:
        """What the archive has of these answers for this tenant."""
        pairs: Headers = tuple((name.encode(), value.encode()) for name, value in self.headers.items())
        caller = self.setup.forward.tenants.identify(dict(pairs))
        names = {f"msg_{number}": number for number in numbers}
        found = await self.setup.builder.archive.load_items(caller.tenant, names)
        return {names[name]: json.loads(wire)["content"][0]["text"] for name, wire in found.items()}


def item(number: int, text: str) -> Json:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": [{"token": "x", "logprob": -1.0}]}
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }


def tasks_of(setup: PipelineSetup) -> Tasks:
    assert isinstance(setup.tasks, Tasks)
    return setup.tasks


def setup(**more: Any) -> PipelineSetup:
    return PipelineSetup(tasks=Tasks(), **more)


def answer(number: int) -> str:
    return f"Decided: the table of docs/plan_{number}.md stays, because migration_{number} failed without it."


def forwarded_text(of: PipelineSetup) -> str:
    body = of.upstream.requests[-1].body
    assert isinstance(body, bytes)
    return body.decode()


@pytest.mark.parametrize("window", [9_000, 12_000])
async def test_a_compaction_tells_what_the_client_only_named_as_it_tells_what_is_sent(window: int) -> None:
    told = []
    for names in (True, False):
        made = setup(windows=FakeWindows(window))
        talk = Talk(made, names=names)
        for number in range(100):
            await talk.turn(number, answer(number))
            if talk.state == "compacted":
                break
        body = json.loads(forwarded_text(made))["input"]
        record = next(text for each in body if "Record of messages" in (text := json.dumps(each)))
        told.append({at for at in range(100) if f"plan_{at}.md" in record})
    assert len(told[0]) >= 5
    # Names are shorter than words, so that a little more leaves.
    assert len(told[0] ^ told[1]) <= 2


async def test_referenced_items_are_kept_from_the_first_response_on() -> None:
    talk = Talk(setup())
    await talk.turn(0, answer(0))
    assert await talk.load_archived(0) == {}
    await talk.turn(1, answer(1))
    await talk.turn(2, answer(2))
    assert await talk.load_archived(0, 1, 2) == {at: answer(at) for at in range(3)}


@pytest.mark.parametrize(
    ("config", "names", "store", "headers"),
    [
        ("", False, True, {}),
        ("", True, False, {}),
        ("compaction: {mode: off}", True, True, {}),
        ("", True, True, {"x-accordion-compact": "off"}),
    ],
    ids=["sent", "not stored", "off", "off for once"],
)
async def test_nothing_is_kept_of_who_sends_the_words_or_is_not_compacted(
    config: str, names: bool, store: bool, headers: dict[str, str]
) -> None:
    talk = Talk(setup(config=config), names=names, store=store, **headers)
    for number in range(4):
        await talk.turn(number, answer(number))
    assert await talk.load_archived(*range(4)) == {}


async def test_a_tenant_names_its_own_words_only() -> None:
    made = setup(loopback=False)
    one = Talk(made, authorization="Bearer one")
    for number in range(3):
        await one.turn(number, answer(number))
    other = Talk(made, authorization="Bearer other")
    other.input = list(one.input)
    await other.turn(3, "well")
    assert await one.load_archived(0, 1) == {0: answer(0), 1: answer(1)}
    assert await other.load_archived(0, 1) == {}


async def test_erased_items_are_gone_from_archive_and_memory() -> None:
    made = setup()
    named, fresh = Talk(made), Talk(made)
    for number in range(3):
        await named.turn(number, answer(number))
    await fresh.turn(100, answer(100))
    caller = made.forward.tenants.identify({})
    assert (await named.load_archived(0, 1))[0] == answer(0)
    for each in (named, fresh):
        erased = await made.builder.export_and_erasure.erase(caller.tenant, each.session)
        assert erased.verified
    assert await named.load_archived(0, 1, 2) == {}
    await fresh.turn(101, answer(101))
    assert set(await fresh.load_archived(100, 101)) == {101}


async def test_words_that_came_while_the_store_was_away_are_kept_when_it_is_back() -> None:
    store = FickleStore()
    talk = Talk(setup(store=store))
    await talk.turn(0, answer(0))
    store.away = True
    await talk.turn(1, answer(1))
    store.away = False
    await talk.turn(2, answer(2))
    assert await talk.load_archived(0, 1, 2) == {at: answer(at) for at in range(3)}


async def test_items_not_yet_named_are_bounded_in_memory() -> None:
    """Those that were said last stay."""
    made = setup()
    caller = made.forward.tenants.identify({})
    talks = [Talk(made) for _ in range(200)]
    for number, talk in enumerate(talks):
        await talk.turn(number, f"{number} " + "long words " * 4_000)
    for number in (0, 199):
        await talks[number].turn(number + 1_000, "short")
        assert (await talks[number].load_archived(number) != {}) == (number == 199)
    assert sum(map(len, (await made.builder.archive.load_items(caller.tenant, ["msg_199"])).values())) > 40_000


async def test_the_oldest_words_go_first_where_a_store_stays_away_for_long() -> None:
    store = FickleStore()
    talk = Talk(made := setup(store=store))
    for log in made.spooled._logs:
        log._capacity = 0
    store.away = True
    for number in range(200):
        await talk.turn(number, f"{number} " + "long words " * 4_000)
    store.away = False
    await talk.turn(200, "short")
    load_archived = await talk.load_archived(*range(200))
    assert 50 < len(load_archived) < 150
    assert min(load_archived) > 50
    assert max(load_archived) == 199
