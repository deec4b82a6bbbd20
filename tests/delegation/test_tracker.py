"""Who sits where, by what evidence, and who sees what."""

import pytest

from accordion.model.errors import BadRequest, StoreUnavailable
from accordion.model.tenant import TenantScope
from accordion.stores.memory_store import InMemoryStore
from accordion.stores.sqlite import SqliteStore
from tests.delegation.delegation_worker import (
    ALICE,
    BOB,
    Worker,
    calls,
    declared_metadata,
    metadata,
    result,
    talk,
    user,
)

NONE = TenantScope("none", b"key of none")

MAIN = "11111111-aaaa"
TENANT = ALICE.tenant


class AwayStore(InMemoryStore):
    """A store that does not answer."""

    async def get_many(self, keys):
        raise StoreUnavailable("away")

    async def scan(self, collection, *, prefix="", after="", limit=1000):
        raise StoreUnavailable("away")


@pytest.fixture(params=["ephemeral", "sqlite"])
async def store(request, tmp_path):
    made = InMemoryStore() if request.param == "ephemeral" else SqliteStore(tmp_path / "state.db", timeout=5.0)
    yield made
    await made.close()


TASK = user("the task")


async def write_shared_history(worker: Worker, who=None) -> list:
    """Two siblings write into one history."""
    history = [TASK]
    for name in ("a", "b"):
        made = (f"call_{name}", "search", f'{{"q": "{name}"}}')
        said = who(name) if who else declared_metadata(name, "main")
        await worker.ask(talk(history), said, [made])
        history += [calls(made), result(made[0])]
    return history


# -- what is declared ---------------------------------------------------------


async def test_a_request_without_evidence_sits_at_the_top_and_writes_nothing():
    worker = Worker()
    asked = await worker.ask(talk([TASK]), None, [("c1", "search", "{}")])
    assert (asked.position.node, asked.position.path, asked.position.partition, asked.position.is_subagent) == (
        "",
        (),
        "",
        False,
    )
    assert not asked.hidden.owners
    kept = {put.key.collection.split("/")[0] or put.key.name.split("/")[0] for put in worker.outbox.taken}
    assert not kept & {"node", "tree", "scope", "open", "shown", "handed", "seated"}


async def test_a_declared_delegation_has_its_parents_above_it():
    worker = Worker()
    await worker.ask(talk([TASK]), declared_metadata("team"))
    asked = await worker.ask(talk([TASK]), declared_metadata("a", "team", x_accordion_agent="Anna B."))
    assert asked.position.path == ("x:team", "x:a")
    assert (asked.position.evidence, asked.position.agent, asked.position.partition) == ("header", "Anna B.", "x:a")


async def test_a_declared_delegation_without_a_parent_belongs_to_its_clients_session():
    worker = Worker()
    asked = await worker.ask(talk([TASK]), declared_metadata("a", x_session_id=MAIN))
    assert asked.position.path == (f"m:{MAIN}", "x:a")


async def test_a_session_that_we_gave_out_may_be_a_parent():
    worker = Worker()
    main = await worker.ask(talk([TASK]))
    asked = await worker.ask(talk([user("sub")]), declared_metadata("a", main.session))
    assert asked.position.path == (f"s:{main.session}", "x:a")


async def test_siblings_do_not_see_each_other_and_the_top_and_the_parent_see_both():
    worker = Worker()
    history = await write_shared_history(worker)
    assert (await worker.ask(talk(history), declared_metadata("a", "main"))).hidden_call_ids == {"call_b"}
    assert (await worker.ask(talk(history), declared_metadata("b", "main"))).hidden_call_ids == {"call_a"}
    assert (await worker.ask(talk(history), declared_metadata("c", "a"))).hidden_call_ids == {"call_b"}
    assert (await worker.ask(talk(history), declared_metadata("main"))).hidden_call_ids == set()
    assert (await worker.ask(talk(history))).hidden_call_ids == set()


async def test_calls_that_nobody_noted_are_seen_by_all():
    worker = Worker()
    history = [*await write_shared_history(worker), calls(("old", "search", "{}")), result("old")]
    assert (await worker.ask(talk(history), declared_metadata("a", "main"))).hidden_call_ids == {"call_b"}


async def test_a_half_hidden_batch_keeps_its_visible_half():
    worker = Worker()
    one, two = ("c1", "f", "{}"), ("c2", "f", '{"a": 1.0, "b": [2]}')
    await worker.ask(talk([TASK]), declared_metadata("a", "main"), [one])
    await worker.ask(talk([TASK]), declared_metadata("b", "main"), [two])
    # The client lays the arguments out in another way.
    history = [TASK, calls(one, ("c2", "f", '{"b":[2],"a":1}')), result("c1"), result("c2")]
    asked = await worker.ask(talk(history), declared_metadata("a", "main"))
    assert asked.hidden.positions == {(3, 0)}
    assert asked.hidden.owners == {(3, 0): "x:b"}


async def test_what_was_merged_from_another_list_is_known_by_what_is_declared():
    worker = Worker()
    made = ("c1", "f", '{"q": 1}')
    await worker.ask(talk([user("the task of b")]), declared_metadata("b", "main"), [made])
    history = [TASK, calls(made), result("c1")]
    assert (await worker.ask(talk(history), declared_metadata("a", "main"))).hidden_call_ids == {"c1"}


@pytest.mark.parametrize("first", ["top", "child"])
async def test_ids_that_are_used_again_in_another_conversation_do_not_mix(first):
    worker = Worker()
    made, other = ("call_1", "f", "{}"), [user("another task")]
    asks = [(talk([TASK]), declared_metadata("a", "main")), (talk(other), None)]
    for conversation, said in asks if first == "child" else asks[::-1]:
        await worker.ask(conversation, said, [made])
    asked = await worker.ask(talk([*other, calls(made), result("call_1")]), declared_metadata("b", "main"))
    assert asked.hidden_call_ids == set()


async def test_two_delegations_that_used_the_same_call_say_nothing():
    worker = Worker()
    made = ("call_1", "f", "{}")
    for name in ("a", "b"):
        await worker.ask(talk([TASK]), declared_metadata(name, "main"), [made])
    asked = await worker.ask(talk([TASK, calls(made), result("call_1")]), declared_metadata("c", "main"))
    assert asked.hidden_call_ids == set()


async def test_tenants_have_trees_and_calls_of_their_own():
    worker = Worker()
    history = await write_shared_history(worker)
    asked = await worker.ask(talk(history, caller=BOB), declared_metadata("a", "main"), caller=BOB)
    assert asked.hidden_call_ids == set()
    assert await worker.tracker.load_tree(BOB.tenant, "x:b") == ((await worker.tracker.load_tree(NONE, "x:b"))[0],)


async def test_a_parent_that_is_unknown_is_a_placeholder_until_it_appears():
    worker = Worker()
    await worker.ask(talk([TASK]), declared_metadata("child", "team"))
    tree = await worker.tracker.load_tree(TENANT, "x:child")
    assert [(node.id, node.is_placeholder) for node in tree] == [("x:team", True), ("x:child", False)]
    await worker.ask(talk([TASK]), declared_metadata("team", "main", x_accordion_agent="lead"))
    tree = await worker.tracker.load_tree(TENANT, "x:child")
    assert [(node.id, node.agent, node.is_placeholder) for node in tree] == [
        ("x:main", "", True), ("x:team", "lead", False), ("x:child", "", False),
    ]  # fmt: skip
    assert (await worker.ask(talk([TASK]), declared_metadata("child"))).position.path == ("x:main", "x:team", "x:child")


# -- what is refused ----------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "param"),
    [
        ({"x_accordion_delegation": "a b"}, "x-accordion-delegation"),
        ({"x_accordion_delegation": ""}, "x-accordion-delegation"),
        ({"x_accordion_delegation": "a" * 129}, "x-accordion-delegation"),
        ({"x_accordion_delegation": "a", "x_accordion_parent": "ü"}, "x-accordion-parent"),
        ({"x_accordion_delegation": "a", "x_accordion_parent": "a"}, "x-accordion-parent"),
        ({"x_accordion_parent": "a"}, "x-accordion-parent"),
        ({"x_accordion_agent": "a\x01"}, "x-accordion-agent"),
        ({"x_accordion_agent": "a" * 129}, "x-accordion-agent"),
    ],
)
def test_a_header_of_ours_that_is_malformed_or_names_itself_is_refused_by_its_name(headers, param):
    with pytest.raises(BadRequest) as refused:
        metadata(**headers)
    assert refused.value.param == param
    assert param in refused.value.message


async def refused(worker: Worker, said) -> str:
    written = list(worker.outbox.taken)
    with pytest.raises(BadRequest) as caught:
        await worker.ask(talk([TASK]), said)
    assert worker.outbox.taken == written
    assert caught.value.param in caught.value.message
    return caught.value.param or ""


async def test_a_circle_is_refused_and_nothing_is_written():
    worker = Worker()
    for node, parent in (("b", "a"), ("c", "b")):
        await worker.ask(talk([TASK]), declared_metadata(node, parent))
    assert await refused(worker, declared_metadata("a", "c")) == "x-accordion-parent"


async def test_a_tree_may_be_eight_deep_and_no_deeper():
    worker = Worker()
    for depth in range(1, 8):
        await worker.ask(talk([TASK]), declared_metadata(f"d{depth + 1}", f"d{depth}"))
    assert await refused(worker, declared_metadata("d9", "d8")) == "x-accordion-parent"
    # Nor by putting what is there below something else.
    assert await refused(worker, declared_metadata("d1", "d0")) == "x-accordion-parent"


async def test_a_clients_own_session_does_not_count_as_a_delegation():
    worker = Worker(settings={"max_depth": 1, "max_agents": 2})
    await worker.ask(talk([TASK]), declared_metadata("a", x_session_id=MAIN))
    await worker.ask(talk([TASK]), declared_metadata("b", x_session_id=MAIN))
    assert await refused(worker, declared_metadata("c", x_session_id=MAIN)) == "x-accordion-delegation"


async def of_three(restarted: bool) -> Worker:
    """Three agents under a parent that did not ask yet, where four are allowed."""
    worker = Worker(settings={"max_agents": 4})
    for name in "abc":
        await worker.ask(talk([TASK]), declared_metadata(name, "main"))
    await worker.settle()
    return Worker(worker.store, "w2", {"max_agents": 4}) if restarted else worker


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_tree_may_have_so_many_agents_and_no_more(restarted):
    worker = await of_three(restarted)
    assert await refused(worker, declared_metadata("d", "main")) == "x-accordion-delegation"
    await worker.ask(talk([TASK]), declared_metadata("a", "main"))


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_parent_that_appears_after_those_that_named_it_is_counted_once(restarted):
    worker = await of_three(restarted)
    await worker.ask(talk([TASK]), declared_metadata("main"))
    assert await refused(worker, declared_metadata("d", "main")) == "x-accordion-delegation"


async def test_a_delegation_that_works_for_one_and_then_for_another_is_counted_once():
    worker = Worker(settings={"max_agents": 4})
    for name in "ab":
        await worker.ask(talk([TASK]), declared_metadata(name, "main"))
    for turn in range(6):
        asked = await worker.ask(talk([TASK]), declared_metadata("c", "ab"[turn % 2]))
        assert asked.position.path == ("x:main", f"x:{'ab'[turn % 2]}", "x:c")
    assert await refused(worker, declared_metadata("d", "main")) == "x-accordion-delegation"


async def test_a_delegation_that_left_a_tree_is_not_counted_there_any_more():
    worker = Worker(settings={"max_agents": 3})
    for name in "ab":
        await worker.ask(talk([TASK]), declared_metadata(name, "main"))
    await worker.ask(talk([TASK]), declared_metadata("b", "other"))
    await worker.ask(talk([TASK]), declared_metadata("c", "main"))
    assert await refused(worker, declared_metadata("d", "main")) == "x-accordion-delegation"


# -- what was shown stays shown -----------------------------------------------


async def test_an_edge_that_is_found_late_changes_nothing_before_the_next_compact():
    worker = Worker()
    history = await write_shared_history(worker)
    assert (await worker.ask(talk(history), declared_metadata("b", "main"))).hidden_call_ids == {"call_a"}
    assert (await worker.ask(talk(history), declared_metadata("c", "b"))).hidden_call_ids == {"call_a"}
    # `b` turns out to work for `a`.
    await worker.ask(talk([TASK]), declared_metadata("b", "a"))
    history += [user("more")]
    again = await worker.ask(talk(history), declared_metadata("c", "b"))
    assert again.hidden_call_ids == {"call_a"}
    assert again.hidden.has_late_decisions, "the next compaction is made of what is its to see by now"
    assert (await worker.ask(talk(history), declared_metadata("c", "b"), anew=True)).hidden_call_ids == set()
    assert (await worker.ask(talk([*history, user("and more")]), declared_metadata("c", "b"))).hidden_call_ids == set()


async def test_what_was_shown_and_should_not_have_been_is_said_to_be_late():
    worker = Worker()
    history = await write_shared_history(worker)
    asked = await worker.ask(talk(history), declared_metadata("c", "a"))
    assert (asked.hidden_call_ids, asked.hidden.has_late_decisions) == ({"call_b"}, False)
    # It turns out to work for `b`.
    await worker.ask(talk([TASK]), declared_metadata("c", "b"))
    history.append(user("more"))
    late = await worker.ask(talk(history), declared_metadata("c", "b"))
    assert (late.hidden_call_ids, late.hidden.has_late_decisions) == ({"call_b"}, True)
    late = await worker.ask(talk([*history, user("and more")]), declared_metadata("c", "b"))
    assert (late.hidden_call_ids, late.hidden.has_late_decisions) == ({"call_b"}, True)
    anew = await worker.ask(talk(history), declared_metadata("c", "b"), anew=True)
    assert (anew.hidden_call_ids, anew.hidden.has_late_decisions) == ({"call_a"}, False)


async def test_what_was_hidden_stays_hidden_where_nobody_knows_any_more_whose_it_was():
    worker = Worker()
    history = await write_shared_history(worker)
    assert (await worker.ask(talk(history), declared_metadata("c", "b"))).hidden_call_ids == {"call_a"}
    worker.tracker.call_owners.forget()
    await worker.store.delete([key for key in worker.store._values if key.name.startswith("scope/")])
    assert (
        await worker.ask(talk([*history, user("more")]), declared_metadata("c", "b"), anew=True)
    ).hidden_call_ids == {"call_a"}


async def test_a_list_that_a_viewer_was_shown_before_anything_was_decided_stays_shown():
    worker = Worker()
    history = await write_shared_history(worker)
    asked = await worker.ask(talk(history), declared_metadata("c", "main"), shown=2)
    assert asked.hidden_call_ids == {"call_b"}
    assert asked.hidden.has_late_decisions


async def test_a_result_that_had_to_stay_was_shown_and_stays():
    worker = Worker()
    history = await write_shared_history(worker)
    first = await worker.ask(talk(history), declared_metadata("a", "main"))
    assert first.hidden_call_ids == {"call_b"}
    worker.tracker.record_shown(ALICE, first.position, first.conversation, first.hidden.positions)
    asked = await worker.ask(talk([*history, user("more")]), declared_metadata("a", "main"))
    assert (asked.hidden_call_ids, asked.hidden.has_late_decisions) == (set(), True)


async def test_calls_of_one_id_that_were_made_at_once_are_answered_in_their_order():
    worker = Worker()
    one, two = ("c", "f", '{"q": 1}'), ("c", "f", '{"q": 2}')
    await worker.ask(talk([TASK]), declared_metadata("a", "main"), [one])
    await worker.ask(talk([TASK]), declared_metadata("b", "main"), [two])
    history = [TASK, calls(one, two), result("c", "first"), result("c", "second")]
    assert (await worker.ask(talk(history), declared_metadata("a", "main"))).hidden.positions == {(3, 0)}
    assert (await worker.ask(talk(history), declared_metadata("b", "main"))).hidden.positions == {(2, 0)}


@pytest.mark.parametrize("away", [False, True])
async def test_decisions_outlive_a_restart_unless_the_store_is_away(away):
    worker = Worker(AwayStore() if away else InMemoryStore())
    history = await write_shared_history(worker)
    assert (await worker.ask(talk(history), declared_metadata("a", "main"))).hidden_call_ids == {"call_b"}
    await worker.settle()
    again = Worker(worker.store, "w2")
    asked = await again.ask(talk([*history, user("more")]), declared_metadata("a", "main"))
    assert asked.hidden_call_ids == (set() if away else {"call_b"})


class CountingStore(InMemoryStore):
    """Notes how many values were asked for, each time."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    async def get_many(self, keys):
        self.asked.append(len(keys))
        return await super().get_many(keys)


async def test_the_top_asks_the_store_for_nothing_and_others_for_what_is_new_to_them():
    worker = Worker(CountingStore())
    history = [TASK]
    for turn in range(3):
        made = (f"c{turn}", "f", "{}")
        seat = await worker.tracker.find_position(ALICE, metadata(), talk(history))
        assert not (await worker.tracker.find_hidden(ALICE, seat, talk(history), -1)).owners
        worker.tracker.record_calls(ALICE, seat, "s-1", talk(history), [])
        history += [calls(made), result(made[0])]
    assert worker.store.asked == []
    await worker.ask(talk(history), declared_metadata("a"))
    # Once more: the node, the decisions and the calls are known to be unknown.
    asked = len(worker.store.asked)
    await worker.ask(talk(history), declared_metadata("a"))
    assert len(worker.store.asked) == asked
    history += [calls(("c9", "f", "{}")), result("c9")]
    await worker.ask(talk(history), declared_metadata("a"))
    assert worker.store.asked[asked:][:1] == [2]  # one call, in the list and among all that is declared


# -- several workers ----------------------------------------------------------


async def test_another_worker_knows_the_tree_the_calls_and_what_was_hidden(store):
    one, two = Worker(store), Worker(store, "w2")
    history = await write_shared_history(one)
    await one.settle()
    assert (await two.ask(talk(history), declared_metadata("a", "main"))).hidden_call_ids == {"call_b"}
    assert (await two.ask(talk(history), declared_metadata("c", "b"))).hidden_call_ids == {"call_a"}
    await two.settle()
    ids = [node.id for node in await Worker(store, "w3").tracker.load_tree(TENANT, "x:c")]
    assert ids == ["x:main", "x:a", "x:b", "x:c"]


async def test_the_owner_of_a_call_is_looked_up_again_after_another_worker_wrote_it(store):
    one, two = Worker(store), Worker(store, "w2")
    history = await write_shared_history(one)
    assert (await two.ask(talk(history), declared_metadata("c", "main"))).hidden_call_ids == set()
    await one.settle()
    assert (await two.ask(talk(history), declared_metadata("d", "main"))).hidden_call_ids == {"call_a", "call_b"}
    # What was shown stays shown.
    assert (await two.ask(talk(history), declared_metadata("c", "main"))).hidden_call_ids == set()


# -- marks --------------------------------------------------------------------


def claude(agent: str = "", parent: str = ""):
    named = {"x_claude_code_agent_id": agent} if agent else {}
    above = {"x_claude_code_parent_agent_id": parent} if parent else {}
    return metadata(x_claude_code_session_id=MAIN, **named, **above)


async def test_agents_of_a_known_client_hang_from_its_session_or_from_each_other():
    worker = Worker()
    main = await worker.ask(talk([TASK]), claude(), [("c", "Task", "{}")])
    child = await worker.ask(talk([user("sub")]), claude("agent-one1"))
    below = await worker.ask(talk([user("deep")]), claude("agent-two2", "agent-one1"))
    assert main.position.path == ()
    assert child.position.path == (f"m:{MAIN}", f"m:{MAIN}/agent-one1")
    assert below.position.path == (*child.position.path, f"m:{MAIN}/agent-two2")
    assert (below.position.evidence, below.position.partition, below.position.is_subagent) == ("mark", "", True)
    tree = await worker.tracker.load_tree(TENANT, f"m:{MAIN}/agent-two2")
    assert [node.session for node in tree] == [main.session, child.session, below.session]


@pytest.mark.parametrize(
    "pairs", [[("agent-one1", "agent-one1")], [("agent-one1", "agent-two2"), ("agent-two2", "agent-one1")]]
)
async def test_marks_that_make_a_circle_give_no_edge_and_no_error(pairs):
    worker = Worker()
    for agent, parent in pairs:
        asked = await worker.ask(talk([TASK]), claude(agent, parent))
    assert asked.position.path == ()
    assert asked.position.is_subagent


async def test_agents_of_a_known_client_that_share_a_list_see_their_own_branch():
    worker = Worker()
    history = await write_shared_history(worker, lambda name: claude(f"agent-{name}{name}"))
    assert (await worker.ask(talk(history), claude("agent-aa"))).hidden_call_ids == {"call_b"}
    assert (await worker.ask(talk(history), claude())).hidden_call_ids == set()


async def test_a_call_of_the_main_agent_is_linked_to_the_marked_child_that_it_began():
    worker = Worker()
    task = "Look into all of the files and tell me what they are about."
    main = await worker.ask(talk([TASK]), claude(), [("c1", "Task", f'{{"prompt": "{task}"}}')])
    child = await worker.ask(talk([user(task)]), claude("agent-one1"))
    assert (child.position.evidence, child.position.call_id) == ("mark", "c1")
    begun = await worker.tracker.find_delegations_by_call(ALICE, main.position, main.session)
    assert begun["c1"].session == child.session
