"""What was erased of delegations is not known any more; what others know of themselves is."""

import json

import pytest

from accordion.delegation.erasure import forget_delegations
from accordion.delegation.tree import decode_node
from accordion.delegation.visibility_decisions import read_viewer
from accordion.model.ports import Key, KeyValueStore
from accordion.model.tenant import TenantScope
from accordion.stores.memory_store import InMemoryStore
from tests.delegation.delegation_worker import ALICE, BOB, Worker, calls, metadata, result, talk, user
from tests.delegation.test_handoffs import Team

TENANT = ALICE.tenant
COLLECTIONS = ("node", "tree", "seated", "scope", "shown", "handed", "open")
TASK = "Look into all of the files and tell me what they are about, in a table."


async def rows(worker: Worker, tenant: TenantScope = TENANT) -> dict[tuple[str, str], bytes]:
    """All that the store knows of a tenant's delegations."""
    return {
        (kind, name): value
        for kind in COLLECTIONS
        for name, value in await worker.store.scan(f"{kind}/{tenant.delegation_namespace}", limit=10_000)
    }


async def worker_with_delegations(store: KeyValueStore | None = None) -> tuple[Worker, dict[str, tuple[str, str]]]:
    """A worker that met delegations of every kind, by name the session and the node of each."""
    worker = Worker(store or InMemoryStore())
    met = {}
    team = Team(worker, boss=("transfer_to_research", "transfer_to_math"), research=("search",), math=("add",))
    for agent, tool in (
        ("boss", "transfer_to_research"), ("research", "search"), ("research", "transfer_back_to_boss"),
        ("boss", "transfer_to_math"), ("math", "add"),
    ):  # fmt: skip
        asked = await team.says(agent, tool)
        met[agent] = asked.session, asked.position.node or f"s:{asked.session}"
    shared = [user("go")]
    for name in ("a", "b"):
        made = (f"call_{name}", "f", json.dumps({"x": f"{TASK} {name}"}))
        said = metadata(x_accordion_delegation=name, x_accordion_parent="lead", x_accordion_agent=f"agent {name}")
        await worker.ask(talk(shared), said, [made])
        shared += [calls(made), result(made[0])]
        met[name] = (await worker.ask(talk([*shared]), said)).session, f"x:{name}"
    main = metadata(x_claude_code_session_id="main-session")
    said = metadata(x_claude_code_session_id="main-session", x_claude_code_agent_id="agent-one1")
    met["marked"] = (await worker.ask(talk([user("sub")]), said)).session, "m:main-session/agent-one1"
    met["client"] = (await worker.ask(talk([user("top")]), main, [("c", "f", "{}")])).session, "m:main-session"
    tasked = ("c", "Task", json.dumps({"p": TASK}))
    for name, text, made in (("parent", "x", [tasked]), ("child", TASK, [])):
        asked = await worker.ask(talk([user(text)]), None, made)
        met[name] = asked.session, f"s:{asked.session}"
    await worker.settle()
    return worker, met


@pytest.mark.parametrize("name", ["boss", "research", "math", "a", "b", "marked", "client", "parent", "child"])
async def test_of_an_erased_session_only_the_records_of_others_say_anything(name: str):
    worker, met = await worker_with_delegations()
    session, node = met[name]
    before = await rows(worker)
    await forget_delegations(worker.store, ALICE.tenant, session)
    after = await rows(worker)
    assert len(after) < len(before)
    of = {
        "node": lambda row, value: node == row or session == decode_node(value).session,
        "tree": lambda row, value: row.endswith(f" {node}"),
        "seated": lambda row, value: session == row,
        "scope": lambda row, value: node == value.decode(),
        "shown": lambda row, value: node == read_viewer(value),
        "handed": lambda row, value: node.encode() in value,
        "open": lambda row, value: session.encode() in value,
    }
    assert [row for row, value in after.items() if of[row[0]](row[1], value)] == []
    assert {row for row in before if not of[row[0]](row[1], before[row])} == set(after)


async def test_of_an_erased_tenant_nothing_is_known_and_another_keeps_what_is_its_own():
    worker, _ = await worker_with_delegations()
    await worker.ask(
        talk([user("go")], caller=BOB), metadata(x_accordion_delegation="a", x_accordion_parent="b"), caller=BOB
    )
    await worker.settle()
    bobs = await rows(worker, BOB.tenant)
    assert await rows(worker)
    await forget_delegations(worker.store, ALICE.tenant)
    worker.tracker.forget()
    assert await rows(worker) == {}
    assert await rows(worker, BOB.tenant) == bobs != {}
    asked = await worker.ask(talk([user("go")]), metadata(x_accordion_delegation="a"))
    assert asked.position.path == ("x:a",)


async def test_a_delegation_that_continues_in_another_session_outlives_its_erased_first():
    worker = Worker()
    said = metadata(x_accordion_delegation="a", x_accordion_parent="lead")
    first = await worker.ask(talk([user("one")]), said)
    second = await worker.ask(talk([user("two")]), said, [("c", "f", "{}")])
    await worker.settle()
    await forget_delegations(worker.store, ALICE.tenant, first.session)
    left = await rows(worker)
    assert ("seated", first.session) not in left
    assert decode_node(left["node", "x:a"]).session == second.session
    assert any(kind == "scope" for kind, _ in left)


async def test_whatever_is_written_of_delegations_is_among_what_is_erased():
    keys: set[Key] = set()

    class Noting(InMemoryStore):
        async def write(self, batch):
            keys.update(put.key for put in batch)
            await super().write(batch)

    worker, _ = await worker_with_delegations(Noting())
    kinds = {key.collection.partition("/")[0] or key.name.partition("/")[0] for key in keys}
    # Places are found by session, and erased with it; the list of tenants says nothing of them.
    assert kinds - {"point", "points", "tenants"} == set(COLLECTIONS)
    await forget_delegations(worker.store, ALICE.tenant)
    assert [
        key for key in keys if TENANT.delegation_namespace in key.path and await worker.store.get(key) is not None
    ] == []
