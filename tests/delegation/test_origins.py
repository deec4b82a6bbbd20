"""Conversations that say nothing of where they come from."""

import json

import pytest

from accordion.delegation.origins import opening_texts, read_string_arguments
from accordion.model.errors import StoreUnavailable
from accordion.stores.memory_store import InMemoryStore
from accordion.stores.sqlite import SqliteStore
from tests.delegation.delegation_worker import (
    ALICE,
    BOB,
    ServedRequest,
    Worker,
    calls,
    message,
    metadata,
    result,
    talk,
    user,
)

TASK = "Look into all of the files and tell me what they are about, in a table."
PARENT = [user("the task")]


def observed_call(argument: object = TASK, tool: str = "ask_expert", call_id: str = "c1") -> tuple[str, str, str]:
    return call_id, tool, json.dumps({"input": argument, "n": 3})


def edge(asked: ServedRequest) -> tuple[str, str, str]:
    return asked.position.evidence, asked.position.parent, asked.position.call_id


NONE = ("none", "", "")


@pytest.mark.parametrize("tool", ["Task", "Agent", "task", "delegate_to_search", "ask_expert"])
async def test_a_conversation_that_opens_with_an_open_calls_argument_is_that_calls(tool):
    worker = Worker()
    parent = await worker.ask(talk(PARENT), None, [observed_call(tool=tool)])
    child = await worker.ask(talk([user(TASK)]))
    assert edge(child) == ("argument" if tool == "ask_expert" else "tool", f"s:{parent.session}", "c1")
    assert child.position.path == (f"s:{parent.session}", f"s:{child.session}")
    assert (child.position.partition, child.position.is_subagent) == ("", True)
    on = await worker.ask(talk([user(TASK), calls(text="a"), user("more")]))
    assert edge(on) == edge(child)
    assert (await worker.tracker.find_delegations_by_call(ALICE, parent.position, parent.session))[
        "c1"
    ].session == child.session
    tree = await worker.tracker.load_tree(ALICE.tenant, f"s:{child.session}")
    assert [node.id for node in tree] == [f"s:{parent.session}", f"s:{child.session}"]


@pytest.mark.parametrize("argument", [[{"deep": [TASK]}], {"a": {"b": TASK}}, f"  {TASK}\n"])
async def test_nested_arguments_count_and_white_space_around_them_does_not(argument):
    worker = Worker()
    await worker.ask(talk(PARENT), None, [observed_call(argument)])
    assert (await worker.ask(talk([user(TASK)]))).position.is_subagent


@pytest.mark.parametrize(
    ("opens", "found"),
    [
        ([TASK + "x" * (len(TASK) // 4)], True),
        ([TASK + "x" * (len(TASK) // 4 + 2)], False),
        (["x" * (len(TASK) // 4) + TASK], True),
        (["a reminder that is much longer than the task itself" * 5, TASK], True),
        ([TASK.replace("files", "Files")], False),
        ([TASK[:-1]], False),
    ],
)
async def test_an_argument_must_stand_there_word_for_word_and_be_four_fifths_of_it(opens, found):
    worker = Worker()
    await worker.ask(talk(PARENT), None, [observed_call()])
    assert (await worker.ask(talk([user(*opens)]))).position.is_subagent is found


@pytest.mark.parametrize(
    ("text", "tool", "opens", "found"),
    [
        ("x" * 39, "ask_expert", "x" * 39, False),
        ("x" * 40, "ask_expert", "x" * 40, True),
        ("x" * 39, "Task", "x" * 39, True),
        ("x" * 8, "Task", "x" * 8, True),
        ("x" * 7, "Task", "x" * 7, False),
        ("x" * 30, "Task", "x" * 31, False),
    ],
)
async def test_short_arguments_count_for_delegating_tools_alone_and_whole(text, tool, opens, found):
    worker = Worker()
    await worker.ask(talk(PARENT), None, [observed_call(text, tool)])
    assert (await worker.ask(talk([user(opens)]))).position.is_subagent is found


async def test_of_two_calls_neither_is_it_and_that_is_said():
    worker = Worker()
    await worker.ask(talk(PARENT), None, [observed_call()])
    await worker.ask(talk([user("another task")]), None, [observed_call(call_id="c2")])
    child = await worker.ask(talk([user(TASK)]))
    assert (edge(child), child.position.candidates, child.position.is_subagent) == (NONE, 2, False)
    assert (await worker.tracker.load_tree(ALICE.tenant, f"s:{child.session}"))[0].candidates == 2


async def test_a_call_that_was_answered_begins_nothing_any_more():
    worker = Worker()
    await worker.ask(talk(PARENT), None, [observed_call()])
    await worker.ask(talk([*PARENT, calls(observed_call()), result("c1")]))
    assert edge(await worker.ask(talk([user(TASK)]))) == NONE
    await worker.settle()
    assert edge(await worker.ask(talk([user(TASK), calls(text="a"), user("b")]))) == NONE


async def test_an_answer_to_a_call_of_the_same_id_elsewhere_closes_nothing():
    worker = Worker()
    await worker.ask(talk(PARENT), None, [observed_call()])
    await worker.ask(talk([user("another task"), calls(observed_call("other")), result("c1")]))
    assert (await worker.ask(talk([user(TASK)]))).position.is_subagent


async def test_a_call_stays_open_for_an_hour():
    worker = Worker()
    await worker.ask(talk(PARENT), None, [observed_call()])
    worker.clock.advance(3_601)
    assert edge(await worker.ask(talk([user(TASK)]))) == NONE


async def test_no_conversation_is_its_own_parent_or_anothers_once_it_has_gone_on():
    worker = Worker()
    await worker.ask(talk([user(TASK)]), None, [observed_call()])
    assert edge(await worker.ask(talk([user(TASK)]))) == NONE
    await worker.ask(talk(PARENT), None, [observed_call("y" * 60, call_id="c2")])
    assert edge(await worker.ask(talk([user("y" * 60), calls(text="a"), user("b")]))) == NONE


async def test_calls_of_other_tenants_begin_nothing():
    worker = Worker()
    await worker.ask(talk(PARENT), None, [observed_call()])
    assert edge(await worker.ask(talk([user(TASK)], caller=BOB), caller=BOB)) == NONE
    await worker.settle()
    asked = await worker.ask(talk([user(TASK), calls(text="a"), user("b")], caller=BOB), caller=BOB)
    assert edge(asked) == NONE


async def test_a_plan_that_an_agent_hands_to_itself_is_no_delegation():
    worker = Worker()
    await worker.ask(talk(PARENT), None, [observed_call(tool="ExitPlanMode")])
    assert edge(await worker.ask(talk([user(f"Do it:\n{TASK}")]))) == NONE


async def test_the_top_of_a_declared_tree_is_linked_to_the_call_that_began_it():
    worker = Worker()
    parent = await worker.ask(talk(PARENT), None, [observed_call()])
    child = await worker.ask(talk([user(TASK)]), metadata(x_accordion_delegation="a"))
    assert edge(child) == ("argument", f"s:{parent.session}", "c1")
    again = await worker.ask(talk([user(TASK), calls(text="a"), user("b")]), metadata(x_accordion_delegation="a"))
    assert again.position.path == (f"s:{parent.session}", "x:a")


async def test_more_than_the_allowed_depth_or_number_is_no_edge_and_no_error():
    worker = Worker(settings={"max_depth": 1, "max_agents": 2})
    tasks = ["a" * 50, "b" * 50, "c" * 50, "d" * 50]
    parent = talk(PARENT)
    await worker.ask(parent, None, [observed_call(task, call_id=task[0]) for task in tasks[:3]])
    one = await worker.ask(talk([user(tasks[0])]), None, [observed_call(tasks[3], call_id="d")])
    assert one.position.is_subagent
    assert edge(await worker.ask(talk([user(tasks[3])]))) == NONE
    assert (await worker.ask(talk([user(tasks[1])]))).position.is_subagent
    assert edge(await worker.ask(talk([user(tasks[2])]))) == NONE


# -- several workers ----------------------------------------------------------


@pytest.mark.parametrize("kind", [InMemoryStore, SqliteStore])
@pytest.mark.parametrize("wrapped", [TASK, f"Do: {TASK} Now."])
async def test_a_call_that_another_worker_saw_is_found_behind_the_requests_back(kind, wrapped, tmp_path):
    store = InMemoryStore() if kind is InMemoryStore else SqliteStore(tmp_path / "state.db", timeout=5.0)
    one, two = Worker(store), Worker(store, "w2")
    parent = await one.ask(talk(PARENT), None, [observed_call()])
    await one.settle()
    child = await two.ask(talk([user(wrapped)]))
    assert edge(child) == NONE
    await two.settle()
    on = await two.ask(talk([user(wrapped), calls(text="a"), user("b")]))
    assert edge(on) == ("argument", f"s:{parent.session}", "c1")
    # And a third one, which meets the conversation in the middle.
    three = Worker(store, "w3")
    await two.settle()
    last = [user(wrapped), calls(text="a"), user("b"), calls(text="c"), user("d")]
    assert edge(await three.ask(talk(last))) == edge(on)
    await store.close()


async def test_a_call_that_another_worker_writes_late_is_found_by_the_next_request():
    store = InMemoryStore()
    one, two = Worker(store), Worker(store, "w2")
    await one.ask(talk(PARENT), None, [observed_call()])
    await two.ask(talk([user(TASK)]))
    await two.settle()
    await one.settle()
    two.clock.advance(0.5)
    history = [user(TASK), calls(text="a"), user("b")]
    assert edge(await two.ask(talk(history))) == NONE
    await two.settle()
    assert (await two.ask(talk([*history, calls(text="c"), user("d")]))).position.is_subagent


async def test_what_two_other_workers_saw_is_two_candidates():
    store = InMemoryStore()
    for number in (1, 2):
        worker = Worker(store, f"w{number}")
        await worker.ask(talk([user(f"task {number}")]), None, [observed_call(call_id=f"c{number}")])
        await worker.settle()
    three = Worker(store, "w3")
    await three.ask(talk([user(TASK)]))
    await three.settle()
    asked = await three.ask(talk([user(TASK), calls(text="a"), user("b")]))
    assert (edge(asked), asked.position.candidates) == (NONE, 2)


async def test_the_store_is_given_no_word_of_what_was_said():
    worker = Worker()
    await worker.ask(talk(PARENT), None, [observed_call()])
    await worker.settle()
    rows = await worker.store.scan(ALICE.tenant.delegation_collection("open"))
    assert len(rows) == 1
    assert b"files" not in rows[0][1]


async def test_a_store_that_is_away_costs_an_edge_and_nothing_else():
    class Away(InMemoryStore):
        async def scan(self, collection, *, prefix="", after="", limit=1000):
            raise StoreUnavailable("away")

        async def get_many(self, keys):
            raise StoreUnavailable("away")

    worker = Worker(Away())
    await worker.ask(talk(PARENT), None, [observed_call("z" * 50)])
    assert (await worker.ask(talk([user("z" * 50)]))).position.is_subagent
    assert edge(await worker.ask(talk([user(TASK)]))) == NONE
    await worker.tasks.run()


async def test_a_conversation_that_goes_on_asks_nobody_for_anything():
    worker = Worker()
    history = [user(TASK)]
    for turn in range(3):
        await worker.ask(talk(history), None, [("c", "f", "{}")])
        # Once where it begins, and once more for what others had not written then.
        assert len(worker.tasks.waiting) == (1 if turn < 2 else 0)
        await worker.tasks.run()
        worker.clock.advance(2)
        history += [calls(text=f"{turn}"), user("more")]


async def test_conversations_that_begin_at_one_moment_are_looked_for_together():
    store = InMemoryStore()
    tasks = [letter * 60 for letter in "abc"]
    one, two = Worker(store), Worker(store, "w2")
    parent = await one.ask(talk(PARENT), None, [observed_call(task, call_id=task[0]) for task in tasks])
    await one.settle()
    for opens in ("x" * 60, *tasks):
        await two.ask(talk([user(opens)]))
        assert len(two.tasks.waiting) == 1
    await two.settle()
    for task in tasks:
        asked = await two.ask(talk([user(task), calls(text="a"), user("b")]))
        assert edge(asked) == ("argument", f"s:{parent.session}", task[0])
    assert not two.tasks.waiting
    await two.ask(talk([user("y" * 60)]))
    assert len(two.tasks.waiting) == 1


async def test_what_others_write_within_a_moment_is_found_by_whoever_is_asked_meanwhile():
    """A parent's and its child's requests take turns between two workers, quicker than these write."""
    store = InMemoryStore()
    one, two = Worker(store), Worker(store, "w2")
    parent = await one.ask(talk(PARENT), None, [observed_call()])
    history = [user(TASK)]
    for worker in (two, one, two):
        assert edge(await worker.ask(talk(history))) == NONE
        await worker.tasks.run()
        history += [calls(text="a"), user("b")]
    await one.settle()
    for worker in (two, one):
        worker.clock.advance(2)
        await worker.ask(talk(history))
        await worker.settle()
        history += [calls(text="a"), user("b")]
    for worker in (two, one):
        assert edge(await worker.ask(talk(history))) == ("argument", f"s:{parent.session}", "c1")
        assert not worker.tasks.waiting


async def test_a_look_waits_for_what_was_seen_just_before_to_be_written():
    store, slept = InMemoryStore(), list[float]()
    one, two = Worker(store), Worker(store, "w2")
    parent = await one.ask(talk(PARENT), None, [observed_call()])

    async def wait(seconds: float) -> None:
        slept.append(seconds)
        await one.settle()

    two.tracker.origin_finder.sleep = wait
    assert edge(await two.ask(talk([user(TASK)]))) == NONE
    await two.settle()
    assert edge(await two.ask(talk([user(TASK), calls(text="a"), user("b")])))[1] == f"s:{parent.session}"
    assert slept


async def test_requests_that_come_quickly_have_others_asked_once():
    worker = Worker()
    history = [user(TASK)]
    await worker.ask(talk(history))
    await worker.settle()
    for again in range(5):
        history += [calls(text=f"{again}"), user("b")]
        await worker.ask(talk(history))
        worker.clock.advance(0.02)
    assert not worker.tasks.waiting


async def test_a_conversation_whose_parent_is_erased_during_the_lookup_has_no_parent():
    class Erasing(InMemoryStore):
        async def get_many(self, keys):
            if any(key.collection.startswith("node/") for key in keys):
                worker.tracker.forget()
            return await super().get_many(keys)

    worker = Worker(Erasing())
    asked = await worker.ask(talk([user(TASK), calls(text="a"), user("b")]))
    assert edge(asked) == NONE


async def test_an_erased_delegation_is_not_known_any_more():
    worker = Worker()
    await worker.ask(talk(PARENT), None, [observed_call()])
    worker.tracker.forget()
    assert edge(await worker.ask(talk([user(TASK)]))) == NONE


async def test_who_fills_the_room_with_open_calls_makes_room_itself():
    worker = Worker()
    openings = worker.tracker.open_calls
    openings.size = 2_000
    await worker.ask(talk(PARENT, caller=BOB), None, [observed_call("b" * 50)], caller=BOB)
    await worker.ask(talk(PARENT), None, [observed_call(letter * 300, call_id=letter) for letter in "wxyz"])
    assert (await worker.ask(talk([user("b" * 50)], caller=BOB), caller=BOB)).position.is_subagent
    assert edge(await worker.ask(talk([user("w" * 300)]))) == NONE
    assert (await worker.ask(talk([user("z" * 300)]))).position.is_subagent


async def test_only_the_newest_open_calls_of_a_tenant_are_held():
    worker = Worker()
    worker.tracker.open_calls.capacity = 2
    await worker.ask(talk(PARENT), None, [observed_call(letter * 50, call_id=letter) for letter in "xyz"])
    assert edge(await worker.ask(talk([user("x" * 50)]))) == NONE
    assert (await worker.ask(talk([user("y" * 50)]))).position.is_subagent


async def test_calls_that_are_alike_in_all_are_held_and_dropped_each_for_itself():
    worker = Worker()
    worker.tracker.open_calls.capacity = 1
    parent = await worker.ask(
        talk(PARENT), None, [observed_call(), observed_call(), observed_call("y" * 50, call_id="y")]
    )
    assert edge(await worker.ask(talk([user(TASK)]))) == NONE
    assert edge(await worker.ask(talk([user("y" * 50)]))) == ("argument", f"s:{parent.session}", "y")


def test_the_strings_of_a_call_are_found_wherever_they_stand_and_bounded():
    assert set(read_string_arguments('{"a": ["xxxxx", {"b": "yyyyy"}], "c": "z"}', 5)) == {"xxxxx", "yyyyy"}
    assert set(read_string_arguments("no json at all", 5)) == {"no json at all"}
    assert len(list(read_string_arguments(json.dumps([f"text {n}" for n in range(500)]), 5))) == 32


def test_an_opening_is_what_the_user_says_before_anybody_answers():
    assert opening_texts(talk([message("developer"), user("one part", "another part")])) == [
        "one part", "another part", "one part\nanother part",
    ]  # fmt: skip
    assert opening_texts(talk([user("a long task"), calls(text="a")])) == []
    assert opening_texts(talk([user("a" * (1 << 20))])) == ["a" * (1 << 20)]
    assert opening_texts(talk([user("a" * (1 << 20) + "a")])) == []
