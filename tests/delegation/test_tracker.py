"""Who sits where, by what evidence, and who sees what."""

import pytest

from accordion.model.errors import BadRequest, StoreUnavailable
from accordion.model.tenant import TenantScope
from accordion.stores.memory_store import InMemoryStore
from accordion.stores.sqlite import SqliteStore
from tests.delegation.delegation_worker import ALICE, BOB, Worker, calls, marks, own, result, talk, user

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
        said = who(name) if who else own(name, "main")
        await worker.ask(talk(history), said, [made])
        history += [calls(made), result(made[0])]
    return history


# -- what is declared ---------------------------------------------------------


async def test_a_request_without_evidence_sits_at_the_top_and_writes_nothing():
    worker = Worker()
    asked = await worker.ask(talk([TASK]), None, [("c1", "search", "{}")])
    assert (asked.seat.node, asked.seat.path, asked.seat.scope, asked.seat.delegated) == ("", (), "", False)
    assert not asked.hidden.owners
    kept = {put.key.collection.split("/")[0] or put.key.name.split("/")[0] for put in worker.outbox.taken}
    assert not kept & {"node", "tree", "scope", "open", "shown", "handed", "seated"}


async def test_a_declared_delegation_has_its_parents_above_it():
    worker = Worker()
    await worker.ask(talk([TASK]), own("team"))
    asked = await worker.ask(talk([TASK]), own("a", "team", x_accordion_agent="Anna B."))
    assert asked.seat.path == ("x:team", "x:a")
    assert (asked.seat.evidence, asked.seat.agent, asked.seat.scope) == ("header", "Anna B.", "x:a")


async def test_a_declared_delegation_without_a_parent_belongs_to_its_clients_session():
    worker = Worker()
    asked = await worker.ask(talk([TASK]), own("a", x_session_id=MAIN))
    assert asked.seat.path == (f"m:{MAIN}", "x:a")


async def test_a_session_that_we_gave_out_may_be_a_parent():
    worker = Worker()
    main = await worker.ask(talk([TASK]))
    asked = await worker.ask(talk([user("sub")]), own("a", main.session))
    assert asked.seat.path == (f"s:{main.session}", "x:a")


async def test_siblings_do_not_see_each_other_and_the_top_and_the_parent_see_both():
    worker = Worker()
    history = await write_shared_history(worker)
    assert (await worker.ask(talk(history), own("a", "main"))).unseen == {"call_b"}
    assert (await worker.ask(talk(history), own("b", "main"))).unseen == {"call_a"}
    assert (await worker.ask(talk(history), own("c", "a"))).unseen == {"call_b"}
    assert (await worker.ask(talk(history), own("main"))).unseen == set()
    assert (await worker.ask(talk(history))).unseen == set()


async def test_calls_that_nobody_noted_are_seen_by_all():
    worker = Worker()
    history = [*await write_shared_history(worker), calls(("old", "search", "{}")), result("old")]
    assert (await worker.ask(talk(history), own("a", "main"))).unseen == {"call_b"}


async def test_a_half_hidden_batch_keeps_its_visible_half():
    worker = Worker()
    one, two = ("c1", "f", "{}"), ("c2", "f", '{"a": 1.0, "b": [2]}')
    await worker.ask(talk([TASK]), own("a", "main"), [one])
    await worker.ask(talk([TASK]), own("b", "main"), [two])
    # The client lays the arguments out in another way.
    history = [TASK, calls(one, ("c2", "f", '{"b":[2],"a":1}')), result("c1"), result("c2")]
    asked = await worker.ask(talk(history), own("a", "main"))
    assert asked.hidden.positions == {(3, 0)}
    assert asked.hidden.owners == {(3, 0): "x:b"}


async def test_what_was_merged_from_another_list_is_known_by_what_is_declared():
    worker = Worker()
    made = ("c1", "f", '{"q": 1}')
    await worker.ask(talk([user("the task of b")]), own("b", "main"), [made])
    history = [TASK, calls(made), result("c1")]
    assert (await worker.ask(talk(history), own("a", "main"))).unseen == {"c1"}


@pytest.mark.parametrize("first", ["top", "child"])
async def test_ids_that_are_used_again_in_another_conversation_do_not_mix(first):
    worker = Worker()
    made, other = ("call_1", "f", "{}"), [user("another task")]
    asks = [(talk([TASK]), own("a", "main")), (talk(other), None)]
    for conversation, said in asks if first == "child" else asks[::-1]:
        await worker.ask(conversation, said, [made])
    asked = await worker.ask(talk([*other, calls(made), result("call_1")]), own("b", "main"))
    assert asked.unseen == set()


async def test_two_delegations_that_used_the_same_call_say_nothing():
    worker = Worker()
    made = ("call_1", "f", "{}")
    for name in ("a", "b"):
        await worker.ask(talk([TASK]), own(name, "main"), [made])
    asked = await worker.ask(talk([TASK, calls(made), result("call_1")]), own("c", "main"))
    assert asked.unseen == set()


async def test_tenants_have_trees_and_calls_of_their_own():
    worker = Worker()
    history = await write_shared_history(worker)
    asked = await worker.ask(talk(history, caller=BOB), own("a", "main"), caller=BOB)
    assert asked.unseen == set()
    assert await worker.lineage.load_tree(BOB.tenant, "x:b") == ((await worker.lineage.load_tree(NONE, "x:b"))[0],)


async def test_a_parent_that_is_unknown_is_a_placeholder_until_it_appears():
    worker = Worker()
    await worker.ask(talk([TASK]), own("child", "team"))
    tree = await worker.lineage.load_tree(TENANT, "x:child")
    assert [(node.id, node.is_placeholder) for node in tree] == [("x:team", True), ("x:child", False)]
    await worker.ask(talk([TASK]), own("team", "main", x_accordion_agent="lead"))
    tree = await worker.lineage.load_tree(TENANT, "x:child")
    assert [(node.id, node.agent, node.is_placeholder) for node in tree] == [
        ("x:main", "", True), ("x:team", "lead", False), ("x:child", "", False),
    ]  # fmt: skip
    assert (await worker.ask(talk([TASK]), own("child"))).seat.path == ("x:main", "x:team", "x:child")


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
        marks(**headers)
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
        await worker.ask(talk([TASK]), own(node, parent))
    assert await refused(worker, own("a", "c")) == "x-accordion-parent"


async def test_a_tree_may_be_eight_deep_and_no_deeper():
    worker = Worker()
    for depth in range(1, 8):
        await worker.ask(talk([TASK]), own(f"d{depth + 1}", f"d{depth}"))
    assert await refused(worker, own("d9", "d8")) == "x-accordion-parent"
    # Nor by putting what is there below something else.
    assert await refused(worker, own("d1", "d0")) == "x-accordion-parent"


async def test_a_clients_own_session_does_not_count_as_a_delegation():
    worker = Worker(settings={"max_depth": 1, "max_agents": 2})
    await worker.ask(talk([TASK]), own("a", x_session_id=MAIN))
    await worker.ask(talk([TASK]), own("b", x_session_id=MAIN))
    assert await refused(worker, own("c", x_session_id=MAIN)) == "x-accordion-delegation"


async def of_three(restarted: bool) -> Worker:
    """Three agents under a parent that did not ask yet, where four are allowed."""
    worker = Worker(settings={"max_agents": 4})
    for name in "abc":
        await worker.ask(talk([TASK]), own(name, "main"))
    await worker.settle()
    return Worker(worker.store, "w2", {"max_agents": 4}) if restarted else worker


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_tree_may_have_so_many_agents_and_no_more(restarted):
    worker = await of_three(restarted)
    assert await refused(worker, own("d", "main")) == "x-accordion-delegation"
    await worker.ask(talk([TASK]), own("a", "main"))


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_parent_that_appears_after_those_that_named_it_is_counted_once(restarted):
    worker = await of_three(restarted)
    await worker.ask(talk([TASK]), own("main"))
    assert await refused(worker, own("d", "main")) == "x-accordion-delegation"


async def test_a_delegation_that_works_for_one_and_then_for_another_is_counted_once():
    worker = Worker(settings={"max_agents": 4})
    for name in "ab":
        await worker.ask(talk([TASK]), own(name, "main"))
    for turn in range(6):
        asked = await worker.ask(talk([TASK]), own("c", "ab"[turn % 2]))
        assert asked.seat.path == ("x:main", f"x:{'ab'[turn % 2]}", "x:c")
    assert await refused(worker, own("d", "main")) == "x-accordion-delegation"


async def test_a_delegation_that_left_a_tree_is_not_counted_there_any_more():
    worker = Worker(settings={"max_agents": 3})
    for name in "ab":
        await worker.ask(talk([TASK]), own(name, "main"))
    await worker.ask(talk([TASK]), own("b", "other"))
    await worker.ask(talk([TASK]), own("c", "main"))
    assert await refused(worker, own("d", "main")) == "x-accordion-delegation"


# -- what was shown stays shown -----------------------------------------------


async def test_an_edge_that_is_found_late_changes_nothing_before_the_next_fold():
    worker = Worker()
    history = await write_shared_history(worker)
    assert (await worker.ask(talk(history), own("b", "main"))).unseen == {"call_a"}
    assert (await worker.ask(talk(history), own("c", "b"))).unseen == {"call_a"}
    # `b` turns out to work for `a`.
    await worker.ask(talk([TASK]), own("b", "a"))
    history += [user("more")]
    again = await worker.ask(talk(history), own("c", "b"))
    assert again.unseen == {"call_a"}
    assert again.hidden.has_late_decisions, "the next fold is made of what is its to see by now"
    assert (await worker.ask(talk(history), own("c", "b"), anew=True)).unseen == set()
    assert (await worker.ask(talk([*history, user("and more")]), own("c", "b"))).unseen == set()


async def test_what_was_shown_and_should_not_have_been_is_said_to_be_late():
    worker = Worker()
    history = await write_shared_history(worker)
    asked = await worker.ask(talk(history), own("c", "a"))
    assert (asked.unseen, asked.hidden.has_late_decisions) == ({"call_b"}, False)
    # It turns out to work for `b`.
    await worker.ask(talk([TASK]), own("c", "b"))
    history.append(user("more"))
    late = await worker.ask(talk(history), own("c", "b"))
    assert (late.unseen, late.hidden.has_late_decisions) == ({"call_b"}, True)
    late = await worker.ask(talk([*history, user("and more")]), own("c", "b"))
    assert (late.unseen, late.hidden.has_late_decisions) == ({"call_b"}, True)
    anew = await worker.ask(talk(history), own("c", "b"), anew=True)
    assert (anew.unseen, anew.hidden.has_late_decisions) == ({"call_a"}, False)


async def test_what_was_hidden_stays_hidden_where_nobody_knows_any_more_whose_it_was():
    worker = Worker()
    history = await write_shared_history(worker)
    assert (await worker.ask(talk(history), own("c", "b"))).unseen == {"call_a"}
    worker.lineage.call_owners.forget()
    await worker.store.delete([key for key in worker.store._values if key.name.startswith("scope/")])
    assert (await worker.ask(talk([*history, user("more")]), own("c", "b"), anew=True)).unseen == {"call_a"}


async def test_a_list_that_a_viewer_was_shown_before_anything_was_decided_stays_shown():
    worker = Worker()
    history = await write_shared_history(worker)
    asked = await worker.ask(talk(history), own("c", "main"), shown=2)
    assert asked.unseen == {"call_b"}
    assert asked.hidden.has_late_decisions


async def test_a_result_that_had_to_stay_was_shown_and_stays():
    worker = Worker()
    history = await write_shared_history(worker)
    first = await worker.ask(talk(history), own("a", "main"))
    assert first.unseen == {"call_b"}
    worker.lineage.record_shown(ALICE, first.seat, first.conversation, first.hidden.positions)
    asked = await worker.ask(talk([*history, user("more")]), own("a", "main"))
    assert (asked.unseen, asked.hidden.has_late_decisions) == (set(), True)


async def test_calls_of_one_id_that_were_made_at_once_are_answered_in_their_order():
    worker = Worker()
    one, two = ("c", "f", '{"q": 1}'), ("c", "f", '{"q": 2}')
    await worker.ask(talk([TASK]), own("a", "main"), [one])
    await worker.ask(talk([TASK]), own("b", "main"), [two])
    history = [TASK, calls(one, two), result("c", "first"), result("c", "second")]
    assert (await worker.ask(talk(history), own("a", "main"))).hidden.positions == {(3, 0)}
    assert (await worker.ask(talk(history), own("b", "main"))).hidden.positions == {(2, 0)}


@pytest.mark.parametrize("away", [False, True])
async def test_decisions_outlive_a_restart_unless_the_store_is_away(away):
    worker = Worker(AwayStore() if away else InMemoryStore())
    history = await write_shared_history(worker)
    assert (await worker.ask(talk(history), own("a", "main"))).unseen == {"call_b"}
    await worker.settle()
    again = Worker(worker.store, "w2")
    asked = await again.ask(talk([*history, user("more")]), own("a", "main"))
    assert asked.unseen == (set() if away else {"call_b"})


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
        seat = await worker.lineage.find_position(ALICE, marks(), talk(history))
        assert not (await worker.lineage.find_hidden(ALICE, seat, talk(history), -1)).owners
        worker.lineage.record_calls(ALICE, seat, "s-1", talk(history), [])
        history += [calls(made), result(made[0])]
    assert worker.store.asked == []
    await worker.ask(talk(history), own("a"))
    # Once more: the node, the decisions and the calls are known to be unknown.
    asked = len(worker.store.asked)
    await worker.ask(talk(history), own("a"))
    assert len(worker.store.asked) == asked
    history += [calls(("c9", "f", "{}")), result("c9")]
    await worker.ask(talk(history), own("a"))
    assert worker.store.asked[asked:][:1] == [2]  # one call, in the list and among all that is declared


# -- several workers ----------------------------------------------------------


async def test_another_worker_knows_the_tree_the_calls_and_what_was_hidden(store):
    one, two = Worker(store), Worker(store, "w2")
    history = await write_shared_history(one)
    await one.settle()
    assert (await two.ask(talk(history), own("a", "main"))).unseen == {"call_b"}
    assert (await two.ask(talk(history), own("c", "b"))).unseen == {"call_a"}
    await two.settle()
    ids = [node.id for node in await Worker(store, "w3").lineage.load_tree(TENANT, "x:c")]
    assert ids == ["x:main", "x:a", "x:b", "x:c"]


async def test_a_call_that_was_looked_for_before_another_worker_wrote_whose_it_is_is_looked_for_again(store):
    one, two = Worker(store), Worker(store, "w2")
    history = await write_shared_history(one)
    assert (await two.ask(talk(history), own("c", "main"))).unseen == set()
    await one.settle()
    assert (await two.ask(talk(history), own("d", "main"))).unseen == {"call_a", "call_b"}
    # What was shown stays shown.
    assert (await two.ask(talk(history), own("c", "main"))).unseen == set()


# -- marks --------------------------------------------------------------------


def claude(agent: str = "", parent: str = ""):
    named = {"x_claude_code_agent_id": agent} if agent else {}
    above = {"x_claude_code_parent_agent_id": parent} if parent else {}
    return marks(x_claude_code_session_id=MAIN, **named, **above)


async def test_agents_of_a_known_client_hang_from_its_session_or_from_each_other():
    worker = Worker()
    main = await worker.ask(talk([TASK]), claude(), [("c", "Task", "{}")])
    child = await worker.ask(talk([user("sub")]), claude("agent-one1"))
    below = await worker.ask(talk([user("deep")]), claude("agent-two2", "agent-one1"))
    assert main.seat.path == ()
    assert child.seat.path == (f"m:{MAIN}", f"m:{MAIN}/agent-one1")
    assert below.seat.path == (*child.seat.path, f"m:{MAIN}/agent-two2")
    assert (below.seat.evidence, below.seat.scope, below.seat.delegated) == ("mark", "", True)
    tree = await worker.lineage.load_tree(TENANT, f"m:{MAIN}/agent-two2")
    assert [node.session for node in tree] == [main.session, child.session, below.session]


@pytest.mark.parametrize(
    "pairs", [[("agent-one1", "agent-one1")], [("agent-one1", "agent-two2"), ("agent-two2", "agent-one1")]]
)
async def test_marks_that_make_a_circle_give_no_edge_and_no_error(pairs):
    worker = Worker()
    for agent, parent in pairs:
        asked = await worker.ask(talk([TASK]), claude(agent, parent))
    assert asked.seat.path == ()
    assert asked.seat.delegated


async def test_agents_of_a_known_client_that_share_a_list_see_their_own_branch():
    worker = Worker()
    history = await write_shared_history(worker, lambda name: claude(f"agent-{name}{name}"))
    assert (await worker.ask(talk(history), claude("agent-aa"))).unseen == {"call_b"}
    assert (await worker.ask(talk(history), claude())).unseen == set()


async def test_a_call_of_the_main_agent_is_linked_to_the_marked_child_that_it_began():
    worker = Worker()
    task = "Look into all of the files and tell me what they are about."
    main = await worker.ask(talk([TASK]), claude(), [("c1", "Task", f'{{"prompt": "{task}"}}')])
    child = await worker.ask(talk([user(task)]), claude("agent-one1"))
    assert (child.seat.evidence, child.seat.call_id) == ("mark", "c1")
    begun = await worker.lineage.find_delegations_by_call(ALICE, main.seat, main.session)
    assert begun["c1"].session == child.session
