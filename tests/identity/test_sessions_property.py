"""Random trees of conversations: whatever the order of the requests, each branch that lives ends alone."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.identity.test_sessions import ALICE, BOB, World

ROUNDS = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("uv")), min_size=1, max_size=3)
TREES = st.lists(ROUNDS, min_size=1, max_size=5)
WHO = ((ALICE, ""), (ALICE, "label"), (BOB, ""))


def lists(rounds: list[tuple[str, str]], leaf: int) -> list[tuple[str, ...]]:
    """The lists that a conversation sends: it grows by its rounds, and by one more that is its own."""
    texts = ["task", *(text for pair in rounds for text in pair)]
    texts += ["reply", f"question {leaf}", "reply", "and more"]
    return [tuple(texts[:end]) for end in range(1, len(texts) + 1, 2)]


@settings(max_examples=150, deadline=None)
@given(TREES, st.sampled_from(["one run", "many runs", "little memory"]), st.data())
def test_each_branch_that_lives_ends_with_a_session_of_its_own(trees, life, data):
    async def run() -> None:
        capacity = 1 if life == "little memory" else 2_000
        world = World(capacity=capacity)
        waiting = {(who, leaf): lists(rounds, leaf) for leaf, rounds in enumerate(trees) for who in range(len(WHO))}
        seen: set[tuple[int, tuple[str, ...]]] = set()
        ends = {}
        while waiting:
            branch = data.draw(st.sampled_from(sorted(waiting)))
            who, (caller, label) = branch[0], WHO[branch[0]]
            texts = waiting[branch].pop(0)
            if not waiting[branch]:
                del waiting[branch]
            if (who, texts) in seen:
                continue  # what the branches share is said once
            seen.add((who, texts))
            if life == "little memory" or (life == "many runs" and data.draw(st.booleans())):
                await world.outbox.flush()
            if life == "many runs" and not world.outbox.taken:
                world = World(world.store, f"w{len(seen)}")
            ends[branch] = (await world.ask(*texts, caller=caller, label=label)).session.id
        assert len(set(ends.values())) == len(ends)

    asyncio.run(run())
