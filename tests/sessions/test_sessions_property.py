"""Random trees of conversations: whatever the order of the requests, each branch that lives ends alone.

The same holds for clients that add a text of the moment to each request and leave it out of the next one."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accordion.sessions.tenants import Caller
from accordion.stores.worker_sync import SharedBoard, UnknownWorkers, shared_slots
from tests.fakes import FickleStore
from tests.sessions.test_sessions import ALICE, BOB, Counting, Setup
from tests.sessions.test_transient_messages import Moments
from tests.tiers import examples

ROUNDS = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("uv")), max_size=3)
TREES = st.lists(ROUNDS, min_size=1, max_size=5)
WHO = ((ALICE, ""), (ALICE, "label"), (BOB, ""))
OWN = 4
"""How many lists are a branch's own. With the first it may take a session over, or lose it to the next that comes."""


def lists(rounds: list[tuple[str, str]], leaf: int) -> list[tuple[str, ...]]:
    """The lists that a conversation sends: it grows by its rounds, and by some more that are its own."""
    texts = ["task", *(text for pair in rounds for text in pair), "reply", f"question {leaf}"]
    texts += ["reply", "go on"] * (OWN - 1)
    return [tuple(texts[:end]) for end in range(1, len(texts) + 1, 2)]


class Soon(SharedBoard):
    """Others that have written all they know once they were given a moment."""

    workers: tuple[Setup, ...] = ()

    async def wait_briefly(self) -> None:
        for setup in self.workers:
            await setup.outbox.flush()


class Workers:
    """Who serves the requests, over one store. What they write is in it before the next request comes, as far as
    another run or worker may need it."""

    def __init__(self, draw: Callable[..., bool]) -> None:
        self.draw, self.store, self.slots, self.names = draw, Counting(), shared_slots(), 0
        self.running = [self.another() for _ in range(self.several)]

    several = 1

    def another(self) -> Setup:
        self.names += 1
        return Setup(self.store, f"w{self.names}")

    async def next(self) -> Setup:
        """The worker that serves the next request."""
        return self.running[0]

    async def served(self, setup: Setup) -> None:
        """It did."""


class ManyRuns(Workers):
    async def next(self) -> Setup:
        if self.draw(st.booleans()):
            await self.running[0].outbox.flush()
            self.running = [self.another()]
        return self.running[0]


class LittleMemory(Workers):
    """Less than a look at the store may bring; in real life places leave memory long after they were written."""

    def another(self) -> Setup:
        return Setup(self.store, capacity=6)

    async def served(self, setup: Setup) -> None:
        await setup.outbox.flush()


class Two(Workers):
    several = 2

    def another(self) -> Setup:
        self.names += 1
        return Setup(self.store, f"w{self.names}", Soon(self.slots, self.names))

    async def next(self) -> Setup:
        which = self.draw(st.integers(0, 1))
        if self.draw(st.integers(0, 4)) == 4:  # it was started again
            self.running[which] = self.another()
        return self.running[which]

    async def served(self, setup: Setup) -> None:
        await setup.outbox.flush()


async def ask(
    setup: Setup, texts: Sequence[str], answer: str, *, adds_end: bool, caller: Caller, label: str = ""
) -> str:
    """Sends a list and returns its session; `adds_end`: with a text of the moment at its end, which the next list of
    the conversation does not have."""
    if adds_end:
        return (await Moments(setup).ask(*texts, answer=answer, caller=caller, label=label)).session.id
    return (await setup.ask(*texts, caller=caller, label=label)).session.id


@pytest.mark.parametrize("adds_end", [False, True])
@pytest.mark.parametrize("kind", [Workers, ManyRuns, LittleMemory, Two])
@settings(max_examples=examples(100), deadline=None)
@given(TREES, st.data())
def test_each_branch_that_lives_has_a_session_of_its_own(kind, adds_end, trees, data):
    async def run() -> None:
        workers = kind(data.draw)
        waiting = {(who, leaf): lists(rounds, leaf) for leaf, rounds in enumerate(trees) for who in range(len(WHO))}
        answers = {
            branch: [*(sent[at + 1][len(texts)] for at, texts in enumerate(sent[:-1])), "end"]
            for branch, sent in waiting.items()
        }
        own = {branch: {len(texts) for texts in sent[1 - OWN :]} for branch, sent in waiting.items()}
        found: dict[tuple[int, int], set[str]] = {branch: set() for branch in waiting}
        while waiting:
            branch = data.draw(st.sampled_from(sorted(waiting)))
            (caller, label), texts = WHO[branch[0]], waiting[branch][0]
            # Else it will be sent again. With another end it would be like an edited question, which may be a fork.
            if adds_end or data.draw(st.integers(0, 6)) < 6:
                waiting[branch].pop(0)
            if not waiting[branch]:
                del waiting[branch]
            setup = await workers.next()
            answer = answers[branch][len(texts) // 2]
            session = await ask(setup, texts, answer, adds_end=adds_end, caller=caller, label=label)
            await workers.served(setup)
            if len(texts) in own[branch]:
                found[branch].add(session)
        assert [len(sessions) for sessions in found.values()] == [1] * len(found)
        assert len(set().union(*found.values())) == len(found)

    asyncio.run(run())


class SoonAndMachines(UnknownWorkers):
    """The same beside other machines."""

    def __init__(self, near: Soon) -> None:
        super().__init__(near)
        self.wait_briefly = near.wait_briefly  # type: ignore[method-assign]


def start_workers(machines: bool) -> tuple[Setup, ...]:
    """Returns three workers that hear of each other, beside other machines or alone."""
    store, slots = FickleStore(), shared_slots()
    boards = [Soon(slots, number) for number in (1, 2, 3)]
    workers = tuple(
        Setup(store, f"w{number}", SoonAndMachines(board) if machines else board) for number, board in enumerate(boards)
    )
    for board in boards:
        board.workers = workers
    return workers


@pytest.mark.parametrize("adds_end", [False, True])
@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.sets(st.integers(0, 2))), min_size=2, max_size=40),
    st.booleans(),
)
def test_a_conversation_is_one_session_whoever_serves_it_and_whenever_they_write(adds_end, steps, machines):
    async def run() -> None:
        workers = start_workers(machines)
        talk, size, found = [f"t{number}" for number in range(2 * len(steps) + 1)], 1, []
        for worker, again, writing in steps:
            found.append(await ask(workers[worker], talk[:size], talk[size], adds_end=adds_end, caller=ALICE))
            size += 2 * (adds_end or again > 0)  # else it will be sent again
            for each in writing:
                await workers[each].outbox.flush()
        assert len(set(found)) == 1

    asyncio.run(run())
