"""What is of one branch of the tree: a session's own, those above it, those below it, and nobody else's."""

from __future__ import annotations

import pytest

from accordion.delegation.branch_access import BranchAccess, BranchViewer
from accordion.model.boundaries import CallInHistory
from accordion.model.conversation import ToolCall
from tests.delegation.delegation_worker import (
    ALICE,
    BOB,
    ServedRequest,
    Worker,
    calls,
    declared_metadata,
    metadata,
    result,
    talk,
    user,
)
from tests.fakes import FickleStore

MAIN = "11111111-aaaa"
TASK = "a task of more than forty characters, which is handed to a sub-agent word for word"


def branch_access(worker: Worker) -> BranchAccess:
    return BranchAccess(worker.store, worker.tracker.delegation_tree, worker.tracker.call_owners)


async def is_same_branch(worker: Worker, viewer: ServedRequest, other: ServedRequest) -> bool:
    """Whether one sees what left the other's window, to another worker too."""
    await worker.settle()
    answers = []
    for each in (worker, Worker(worker.store, "w2")):
        looks = BranchViewer(ALICE, viewer.position, viewer.session, viewer.conversation)
        answers.append(await branch_access(each).is_same_branch(looks, other.session))
    assert answers[0] == answers[1]
    return answers[0]


async def test_ancestors_and_descendants_are_of_a_branch_and_siblings_are_not():
    worker = Worker()
    asked = {
        name: await worker.ask(talk([user(f"the task of {name}")]), declared_metadata(name, parent))
        for name, parent in {"main": "", "a": "main", "b": "main", "aa": "a", "ab": "a"}.items()
    }
    seen = {
        name: {other for other in asked if await is_same_branch(worker, asked[name], asked[other])} for name in asked
    }  # fmt: skip
    assert seen == {
        "main": {"main", "a", "b", "aa", "ab"},
        "a": {"main", "a", "aa", "ab"},
        "b": {"main", "b"},
        "aa": {"main", "a", "aa"},
        "ab": {"main", "a", "ab"},
    }


async def test_a_conversation_that_a_call_began_is_of_the_callers_branch():
    worker = Worker()
    main = await worker.ask(talk([user("the main task")]), None, [("t1", "Task", f'{{"prompt": "{TASK}"}}')])
    child = await worker.ask(talk([user(TASK)]))
    another = await worker.ask(talk([user("another conversation")]))
    assert child.position.path == (f"s:{main.session}", f"s:{child.session}")
    assert await is_same_branch(worker, child, main)
    assert await is_same_branch(worker, main, child)
    for one, two in ((child, another), (another, child), (main, another), (another, main)):
        assert not await is_same_branch(worker, one, two)


async def test_a_known_clients_main_agent_and_its_sub_agents_are_of_one_branch():
    worker = Worker()
    head = {"x_claude_code_session_id": MAIN}
    main = await worker.ask(talk([user("main")]), metadata(**head), [("t1", "Task", '{"prompt": "look"}')])
    one = await worker.ask(talk([user("one")]), metadata(**head, x_claude_code_agent_id="agent-one-1"))
    two = await worker.ask(talk([user("two")]), metadata(**head, x_claude_code_agent_id="agent-two-2"))
    assert await is_same_branch(worker, main, one)
    assert await is_same_branch(worker, one, main)
    assert not await is_same_branch(worker, one, two)


async def test_whom_a_list_was_handed_to_is_of_the_branch_of_whom_it_was_handed_by():
    worker = Worker()
    handed = ("h1", "transfer_to_reader", "{}")
    main = await worker.ask(talk([user("main")], tools=["transfer_to_reader"]), None, [handed])
    child = await worker.ask(talk([user("main"), calls(handed), result("h1")], tools=["search"]))
    assert child.position.evidence == "handoff"
    assert await is_same_branch(worker, child, main)
    assert await is_same_branch(worker, main, child)


async def test_a_delegation_without_a_known_parent_is_in_no_other_branch():
    worker = Worker()
    main, again = await worker.ask(talk([user("main")])), await worker.ask(talk([user("main, again")]))
    named = await worker.ask(talk([user("main")]), metadata(x_session_id=MAIN))
    a, b = (
        await worker.ask(talk([user("a")]), declared_metadata("a")),
        await worker.ask(talk([user("b")]), declared_metadata("b")),
    )
    everyone = (main, again, named, a, b)
    assert len({each.session for each in everyone}) == 5
    for one in everyone:
        assert [await is_same_branch(worker, one, other) for other in everyone] == [one is other for other in everyone]


async def test_delegations_that_name_no_parent_are_of_the_branch_of_their_clients_session():
    worker = Worker()
    main = await worker.ask(talk([user("main")]), metadata(x_session_id=MAIN), [("t1", "look", "{}")])
    a = await worker.ask(talk([user("a")]), declared_metadata("a", x_session_id=MAIN))
    b = await worker.ask(talk([user("b")]), declared_metadata("b", x_session_id=MAIN))
    for child in (a, b):
        assert await is_same_branch(worker, main, child)
        assert await is_same_branch(worker, child, main)
    assert not await is_same_branch(worker, a, b)


async def test_the_call_that_began_a_delegation_puts_it_into_the_callers_branch():
    worker = Worker()
    main = await worker.ask(talk([user("main")]), None, [("t1", "Task", f'{{"prompt": "{TASK}"}}')])
    a, another = await worker.ask(talk([user(TASK)]), declared_metadata("a")), await worker.ask(talk([user("another")]))
    assert await is_same_branch(worker, main, a)
    assert await is_same_branch(worker, a, main)
    assert not await is_same_branch(worker, another, a)
    assert not await is_same_branch(worker, a, another)


async def test_a_siblings_place_in_the_tree_may_not_be_written_yet():
    worker = Worker()
    a, b = (
        await worker.ask(talk([user("a")]), declared_metadata("a", "main")),
        await worker.ask(talk([user("b")]), declared_metadata("b", "main")),
    )
    looks = BranchViewer(ALICE, a.position, a.session, a.conversation)
    for known in (worker, Worker(worker.store, "w2")):
        assert not await branch_access(known).is_same_branch(looks, b.session)


async def test_an_earlier_conversation_of_a_delegation_belongs_to_it_before_any_write():
    worker = Worker()
    one, two = [await worker.ask(talk([user(text)]), declared_metadata("a", "main")) for text in ("one", "two")]
    assert one.session != two.session
    for mine, other in ((one, two), (two, one)):
        looks = BranchViewer(ALICE, mine.position, mine.session, mine.conversation)
        assert await branch_access(worker).is_same_branch(looks, other.session)


async def test_another_tenants_tree_is_none_of_ones_own():
    worker = Worker()
    a = await worker.ask(talk([user("a")]), declared_metadata("a", x_session_id=MAIN))
    theirs = await worker.ask(talk([user("main")], caller=BOB), declared_metadata("a", x_session_id=MAIN), caller=BOB)
    await worker.settle()
    assert theirs.session != a.session
    assert not await branch_access(worker).is_same_branch(
        BranchViewer(ALICE, a.position, a.session, a.conversation), theirs.session
    )


async def test_calls_of_a_sibling_are_hidden_wherever_they_stand():
    worker = Worker()
    made = [("ca", "search", '{"q": "a"}'), ("cb", "search", '{"q": "b"}')]
    await worker.ask(talk([user("the task")]), declared_metadata("a", "main"), made[:1])
    b = await worker.ask(talk([user("the task")]), declared_metadata("b", "main"), made[1:])
    main = await worker.ask(talk([user("the task")]), declared_metadata("main"))
    standing = [CallInHistory(calls(one).key, 0, ToolCall(*one)) for one in made]
    for looks, seen in ((b, [False, True]), (main, [True, True])):
        viewer = BranchViewer(ALICE, looks.position, looks.session, looks.conversation)
        assert [await branch_access(worker).can_see_results(viewer, [call]) for call in standing] == seen
        assert await branch_access(worker).can_see_results(viewer, standing) == all(seen)


@pytest.mark.parametrize("question", ["related", "unhidden"])
async def test_while_the_store_is_away_nothing_of_others_is_read(question: str):
    store = FickleStore()
    worker = Worker(store)
    a = await worker.ask(talk([user("a")]), declared_metadata("a", "main"))
    main = await worker.ask(talk([user("main")]), declared_metadata("main"))
    await worker.settle()
    viewer, call = BranchViewer(ALICE, a.position, a.session, a.conversation), ToolCall("c9", "search", "{}")
    for store.away in (False, True):
        other = Worker(store, f"w{store.away}")
        if question == "related":
            assert await branch_access(other).is_same_branch(viewer, main.session) != store.away
        else:
            assert await branch_access(other).can_see_results(viewer, [CallInHistory(b"key", 0, call)]) != store.away
