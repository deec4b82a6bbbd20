import asyncio
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec import structs

from accordion.model.conversation import Conversation
from accordion.model.ports import Key, WorkerSync
from accordion.model.tenant import TenantScope
from accordion.protocols.body_reader import BodyReader
from accordion.protocols.openai_chat.protocol import OpenAIChat
from accordion.protocols.openai_responses.protocol import OpenAIResponses
from accordion.sessions.client_metadata import ClientMetadata
from accordion.sessions.prefix_nodes import (
    PrefixNode,
    decode,
    first_node_id,
    merge,
    node_key_by_name,
    session_nodes_collection,
)
from accordion.sessions.sessions import SessionMatch, Sessions
from accordion.sessions.tenants import Caller
from accordion.stores.memory_store import InMemoryStore
from accordion.stores.worker_sync import SharedBoard, UnknownWorkers, shared_slots
from tests.fakes import DirectOutbox, FakeClock, FickleStore, Merge

ALICE = Caller(TenantScope("alice", b"a" * 32), False, "")
BOB = Caller(TenantScope("bob", b"b" * 32), False, "")


class Setup:
    """One worker's sessions over a store that others may share."""

    def __init__(
        self,
        store: InMemoryStore | None = None,
        worker: str = "w1",
        worker_sync: WorkerSync | None = None,
        capacity: int = 2_000,
    ) -> None:
        self.store = store or InMemoryStore()
        self.outbox = DirectOutbox(self.store)
        self.clock = FakeClock()
        self.sessions = Sessions(self.store, self.outbox, self.clock, worker, capacity, worker_sync=worker_sync)
        self.requests = 0

    async def ask(self, *texts: str, caller: Caller = ALICE, label: str = "", agent: str = "") -> SessionMatch:
        self.requests += 1
        read = chat(*texts, caller=caller)
        return await self.sessions.resolve(
            caller, ClientMetadata(label, agent), read, f"{self.sessions.worker}-r{self.requests}"
        )


def chat(*texts: str, caller: Caller = ALICE) -> Conversation:
    """Texts take turns: user, assistant, user, …"""
    messages = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]
    return BodyReader(0).read(OpenAIChat(), json.dumps({"messages": messages, "model": "m"}).encode(), caller.tenant)


def responses(caller: Caller = ALICE, **fields: Any) -> Conversation:
    return BodyReader(0).read(OpenAIResponses(), json.dumps({"model": "m", **fields}).encode(), caller.tenant)


async def test_the_same_opening_after_a_conversation_has_moved_on_is_a_session_of_its_own() -> None:
    setup = Setup()
    one = await setup.ask("task")
    await setup.ask("task", "answer", "more")
    new = await setup.ask("task")
    assert new.session.id != one.session.id
    assert new.session.forked_from == one.session.id


async def test_a_rewound_conversation_that_goes_another_way_is_a_fork() -> None:
    setup = Setup()
    await setup.ask("task")
    await setup.ask("task", "a", "b")
    whole = await setup.ask("task", "a", "b", "c", "d")
    back = await setup.ask("task", "a", "b", "other", "way")
    assert back.session.id != whole.session.id
    assert back.session.forked_from == whole.session.id
    assert (await setup.ask("task", "a", "b", "c", "d", "e", "f")).session.id == whole.session.id


async def test_only_one_of_many_branches_gets_their_session_at_another_worker() -> None:
    first = Setup()
    for question in ("", "one", "two", "three", "four"):
        first_id = (await first.ask("task", *(("reply", question) if question else ()))).session.id
    other_id = (await first.ask("task")).session.id
    await first.outbox.flush()
    second, third = Setup(first.store, "w2"), Setup(first.store, "w3")
    found = [(await second.ask("task", "reply", "one", "reply", "go on")).session.id]
    await second.outbox.flush()
    for question in ("two", "three", "four"):
        found.append((await third.ask("task", "reply", question, "reply", "go on")).session.id)
    assert (found[0], first_id == other_id, len(set(found))) == (first_id, False, 4)


async def test_labels_part_conversations_with_equal_text_at_once() -> None:
    setup = Setup()
    one = await setup.ask("task", label="session-one")
    two = await setup.ask("task", label="session-two")
    child = await setup.ask("task", label="session-one", agent="agent-seven")
    assert len({one.session.id, two.session.id, child.session.id}) == 3
    assert (one.session.label, child.session.agent) == ("session-one", "agent-seven")


async def test_two_workers_name_a_new_conversation_alike() -> None:
    one, two = Setup(worker="w1"), Setup(worker="w2")
    assert (await one.ask("task")).session.id == (await two.ask("task")).session.id


async def test_two_workers_never_write_to_the_same_row() -> None:
    one, two = Setup(worker="w1"), Setup(worker="w2")
    assert (await one.ask("task")).row_name != (await two.ask("task")).row_name


async def test_an_unavailable_store_only_makes_a_known_conversation_a_new_one() -> None:
    store = FickleStore()
    store.away = True
    setup = Setup(store)
    place = await setup.ask("task", "a", "b")
    assert place.base_node is None
    assert (await setup.ask("task", "a", "b", "c", "d")).session.id == place.session.id


async def test_what_a_provider_reported_is_found_at_the_place_it_was_reported_for() -> None:
    setup = Setup()
    place = await setup.ask("task")
    setup.sessions.record_response(place, place.session, reported_tokens=120, counted_tokens=100)
    base = (await setup.ask("task", "a", "b")).base_node
    assert base is not None
    assert (base.reported, base.counted, base.overhead_key) == (120, 100, place.conversation.overhead_key)


def test_a_report_that_is_not_written_yet_is_kept_whole_beside_what_the_store_has() -> None:
    known = PrefixNode("s-1", reported=120, counted=100, overhead_key=b"over", compaction_id="compaction", model="m")
    kept = PrefixNode("s-1", next=b"next", branch=b"branch")
    assert merge(known, kept) == structs.replace(known, next=b"next", branch=b"branch")


def response_node(place: SessionMatch, reported: int) -> PrefixNode:
    """What the response to a request stands for."""
    return PrefixNode(place.session.id, reported=reported, chain=place.conversation.chain[-1])


async def test_a_response_id_leads_back_to_its_session_and_its_usage() -> None:
    setup = Setup()
    place = await setup.ask("task")
    setup.sessions.record_states(ALICE, {"resp_1": response_node(place, 500)})
    read = responses(previous_response_id="resp_1", input="more")
    after = await setup.sessions.resolve(ALICE, ClientMetadata(), read, "r")
    assert after.session.id == place.session.id
    assert after.is_recorded
    assert after.base_node is not None
    assert after.base_node.reported == 500
    assert after.base_index == -1


async def test_a_response_id_of_another_tenant_leads_nowhere() -> None:
    setup = Setup()
    place = await setup.ask("task")
    setup.sessions.record_states(ALICE, {"resp_1": response_node(place, 500)})
    read = responses(BOB, previous_response_id="resp_1", input="more")
    after = await setup.sessions.resolve(BOB, ClientMetadata(), read, "r")
    assert not after.is_recorded
    assert after.session.id != place.session.id


async def test_equal_questions_after_different_responses_are_different_places() -> None:
    setup = Setup()
    one = await setup.ask("one")
    two = await setup.ask("two")
    setup.sessions.record_states(ALICE, {"resp_1": response_node(one, 5)})
    setup.sessions.record_states(ALICE, {"resp_2": response_node(two, 5)})
    after = [
        await setup.sessions.resolve(ALICE, ClientMetadata(), responses(previous_response_id=name, input="and?"), name)
        for name in ("resp_1", "resp_2")
    ]
    assert [place.session.id for place in after] == [one.session.id, two.session.id]
    assert after[0].conversation.chain != after[1].conversation.chain


async def test_memory_of_sessions_and_places_is_bounded() -> None:
    setup = Setup(capacity=10)
    for number in range(200):
        await setup.ask(f"task {number}")
    assert len(setup.sessions._sessions) <= 10
    assert len(setup.sessions.prefix_index.nodes) <= 80
    assert len(setup.sessions.prefix_index._unread_in_store) <= 80


async def test_a_conversation_without_messages_is_a_session_too() -> None:
    setup = Setup()
    read = responses(prompt={"id": "p"})
    one = await setup.sessions.resolve(ALICE, ClientMetadata(), read, "r1")
    two = await setup.sessions.resolve(ALICE, ClientMetadata(), read, "r2")
    assert one.session.id != two.session.id


async def test_places_expire_with_the_retention() -> None:
    setup = Setup()
    await setup.ask("task")
    assert {write.ttl for write in setup.outbox.taken} == {setup.sessions.retention}
    assert all(isinstance(key, Key) for key in [write.key for write in setup.outbox.taken])


async def reported(setup: Setup, place: SessionMatch) -> int:
    kept = decode(await setup.store.get(node_key_by_name(place.scope + place.conversation.chain[-1])))
    return kept.reported if kept is not None else 0


@pytest.mark.parametrize("texts", [("task",), ("task", "a1", "b")])
async def test_what_was_reported_is_kept_where_the_list_ended(texts: tuple[str, ...]) -> None:
    setup = Setup()
    await setup.ask("task")
    place = await setup.ask(*texts, label="other")
    setup.sessions.record_response(place, place.session, 70, 60)
    await setup.outbox.flush()
    assert await reported(setup, place) == 70
    assert await reported(setup, await setup.ask("task")) == 0


async def test_the_place_that_a_session_is_named_after_is_not_listed() -> None:
    setup = Setup()
    session = (await setup.ask("task")).session.id
    await setup.ask("other")
    await setup.ask("task", "a1", "b")
    first, later = chat("task").chain[-1], chat("task", "a1", "b").chain[-1]
    assert node_key_by_name(first).name == f"point/{first_node_id(session)}"
    listed = [write.key for write in setup.outbox.taken if write.key.collection.startswith("points/")]
    assert listed == [Key(session_nodes_collection(session), node_key_by_name(later).name.removeprefix("point/"))]


@pytest.mark.parametrize("noise", [b"", b"\x00", b"\x81\xa1x\xa1y"])
async def test_a_record_that_cannot_be_read_counts_as_none(noise: bytes) -> None:
    here = Setup()
    await here.ask("task", "a", "b")
    for write in here.outbox.taken:
        await here.store.put(write.key, noise)
    there = Setup(here.store)
    assert (await there.ask("task", "a", "b", "c", "d")).base_node is None


# -- another question behind the same reply --------------------------------------------------------------------------


async def ids(setup: Setup, *lists: str) -> list[str]:
    """The session of each list; its texts are divided by blanks."""
    return [(await setup.ask(*texts.split())).session.id for texts in lists]


async def test_an_edited_question_is_a_fork_if_the_first_was_continued() -> None:
    setup = Setup()
    whole = await ids(setup, "u1", "u1 a1 u2", "u1 a1 u2 a2 u3")
    edited = await ids(setup, "u1 a1 edit", "u1 a1 edit b u4")
    old = await ids(setup, "u1 a1 u2 a2 u3 a3 u5")
    assert len({*whole, *old}) == 1
    assert len(set(edited)) == 1
    assert edited[0] != whole[0]
    assert setup.sessions.find_in_memory(edited[0]).forked_from == whole[0]


async def test_an_edited_question_takes_over_the_session_if_the_first_was_not_continued() -> None:
    found = await ids(Setup(), "u1", "u1 a1 typo", "u1 a1 u2", "u1 a1 u2 a2 u3")
    assert len(set(found)) == 1


async def test_a_branch_that_was_taken_over_is_a_fork_if_it_goes_on_after_all() -> None:
    setup = Setup()
    new = await ids(setup, "u1", "u1 a1 old", "u1 a1 new", "u1 a1 new b u3")
    old = await ids(setup, "u1 a1 old a u3", "u1 a1 old a u3 a u4", "u1 a1 old a u3 a side", "u1 a1 old a u3 a u4 a u5")
    assert len(set(new)) == 1
    assert (old[0], old[1], old[3]) == (old[0],) * 3 != (new[0],) * 3
    assert (await ids(setup, "u1 a1 new b u3 b u4")) == new[:1]
    assert len({new[0], *await ids(setup, "u1 a1 third", "u1 a1 third c u")}) == 2


async def test_a_side_request_before_the_main_turn_leaves_the_session_as_it_is() -> None:
    turns = ["u1", "u1 a1 side", "u1 a1 u2", "u1 a1 u2 a2 side", "u1 a1 u2 a2 side2", "u1 a1 u2 a2 u3"]
    assert len(set(await ids(Setup(), *turns, "u1 a1 u2 a2 u3 a3 u4"))) == 1


async def test_a_side_request_after_the_main_turn_leaves_the_session_as_it_is() -> None:
    turns = [
        "u1",
        "u1 a1 u2",
        "u1 a1 side",
        "u1 a1 side2",
        "u1 a1 u2 a2 u3",
        "u1 a1 u2 a2 side",
        "u1 a1 u2 a2 u3 a3 u4",
    ]
    assert len(set(await ids(Setup(), *turns))) == 1


async def test_a_side_request_that_comes_late_is_a_session_of_its_own() -> None:
    setup = Setup()
    main = await ids(setup, "u1", "u1 a1 u2", "u1 a1 u2 a2 u3")
    assert not {*main} & {*await ids(setup, "u1 a1 side")}
    assert await ids(setup, "u1 a1 u2 a2 u3 a3 u4") == main[:1]


async def test_a_retry_of_what_was_taken_over_stays_where_it_was() -> None:
    assert len(set(await ids(Setup(), "u1", "u1 a1 u2", "u1 a1 side", "u1 a1 u2", "u1 a1 u2 a2 u3"))) == 1


async def test_an_edited_question_is_a_fork_although_its_opening_was_sent_again_meanwhile() -> None:
    setup = Setup()
    new = (await ids(setup, "u1", "u1 a1 old", "u1 a1 new", "u1 a1 new b u3"))[2:]
    other = await ids(setup, "u1", "u1 x1 v2")  # has the place now where the two parted
    old = await ids(setup, "u1 a1 old a u4", "u1 a1 old a u4 a u5")
    assert (len({*new}), len({*old}), len({*other}), len({*new, *old, *other})) == (1, 1, 1, 3)


async def test_a_late_continuation_of_a_side_request_is_a_fork() -> None:
    setup = Setup()
    main = await ids(setup, "u1", "u1 a1 u2", "u1 a1 side")
    other = await ids(setup, "u1", "u1 x1 v2")
    main += await ids(setup, "u1 a1 u2 a2 u3")  # takes the session back
    side = await ids(setup, "u1 a1 side b u4", "u1 a1 side b u4 b u5")
    assert await ids(setup, "u1 a1 u2 a2 u3 a3 u6") == main[:1]
    assert (len({*main}), len({*side}), len({*main, *side, *other})) == (1, 1, 3)


async def test_the_first_of_several_edits_is_a_fork_if_the_last_was_continued() -> None:
    lives = Lives()
    await lives.ids("u1", "u1 a1 one", "u1 a1 two", "u1 a1 three", again=False)
    last = await lives.ids("u1 a1 three c u2", "u1", again=False)  # then its opening is sent again
    first = await lives.ids("u1 a1 one b u2", "u1 a1 one b u2 b u3")
    assert (first[0], len({*last, *first})) == (first[1], 3)
    assert await lives.ids("u1 a1 three c u2 c u3") == last[:1]


async def test_an_edit_that_goes_on_last_is_a_fork_where_an_earlier_edit_took_the_session() -> None:
    setup = Setup()
    await ids(setup, "u1", "u1 a1 one", "u1 a1 two", "u1 a1 three")
    await ids(setup, "u1")  # another conversation now has the node at which the edits part
    first = await ids(setup, "u1 a1 one b u2", "u1 a1 one b u2 b u3")
    third = await ids(setup, "u1 a1 three c u2", "u1 a1 three c u2 c u3")
    second = await ids(setup, "u1 a1 two d u2", "u1 a1 two d u2 d u3")
    assert [len({*branch}) for branch in (first, third, second)] == [1, 1, 1]
    assert len({*first, *third, *second}) == 3


async def test_a_record_from_before_there_were_branches_still_counts() -> None:
    old = msgspec.msgpack.encode({"session": "s-old", "next": b"", "reported": 7, "counted": 6, "overhead_key": b"o"})
    setup = Setup()
    await setup.store.put(node_key_by_name(chat("u1").chain[-1]), old)
    place = await setup.ask("u1", "a1", "u2")
    assert (place.session.id, place.base_node.reported) == ("s-old", 7)


# -- an earlier run, and little memory -------------------------------------------------------------------------------


class Counting(FickleStore):
    """Notes how many keys each look asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.looks: list[int] = []

    async def get_many(self, keys: Any) -> Any:
        self.looks.append(len(keys))
        return await super().get_many(keys)


class Lives:
    """One worker over and over: what it had in memory is gone when the next request comes, and all is written."""

    def __init__(self) -> None:
        self.store, self.runs = Counting(), 0

    async def ids(self, *lists: str, again: bool = True) -> list[str]:
        """Each list after a restart, if `again`; else all in one run."""
        found = []
        for texts in lists:
            if again or not found:
                setup = Setup(self.store, f"w{self.runs}")
                self.runs += 1
            found += await ids(setup, texts)
            await setup.outbox.flush()
        return found


@pytest.mark.parametrize("again", [True, False])
async def test_a_conversation_parts_from_one_of_an_earlier_run_where_they_differ(
    again: bool,
) -> None:
    lives = Lives()
    old = await lives.ids("u1", "u1 a1 u2", "u1 a1 u2 a2 u3")
    new = await lives.ids("u1", "u1 b1 v2", "u1 b1 v2 b2 v3", again=again)
    assert len({*old}) == 1
    assert new[0] == old[0]  # nothing tells them apart yet
    assert new[1] == new[2] != old[0]
    assert await lives.ids("u1 a1 u2 a2 u3 a3 u4", "u1 b1 v2 b2 v3 b3 v4") == [old[0], new[1]]


async def test_an_opening_that_was_asked_for_is_not_asked_for_again_where_it_is_written() -> None:
    setup = Setup(worker_sync=UnknownWorkers())
    await setup.ask("u1")
    assert not any(isinstance(write, Merge) for write in setup.outbox.taken)
    setup = Setup()
    await setup.ask("u1")
    assert [isinstance(write, Merge) for write in setup.outbox.taken if write.key.name.startswith("point/")] == [True]


async def test_an_opening_whose_client_leaves_during_the_lookup_is_not_kept() -> None:
    class Slow(InMemoryStore):
        async def get_many(self, keys: Any) -> Any:
            await asyncio.sleep(60)

    setup = Setup(Slow(), worker_sync=UnknownWorkers())
    asking = asyncio.create_task(setup.ask("u1"))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    assert asking.cancelled()
    assert not setup.sessions.prefix_index._unread_in_store


@pytest.mark.parametrize("which", ["one", "all"])
async def test_nothing_is_kept_of_an_opening_that_is_erased_before_it_was_written(which: str) -> None:
    setup = Setup()
    first = (await setup.ask("u1")).session.id
    setup.sessions.forget(first if which == "one" else None)
    assert not setup.sessions.prefix_index.nodes
    assert not setup.sessions.prefix_index._unread_in_store


async def test_a_retry_after_a_restart_is_the_same_session_and_its_reply_may_be_another() -> None:
    lives = Lives()
    found = await lives.ids("u1", "u1", "u1 b1 v2", "u1 b1 v2 b2 v3")
    assert len({*found}) == 1


async def test_a_prefix_continued_by_an_earlier_run_is_looked_up_when_a_branch_returns() -> None:
    lives = Lives()
    await lives.ids("u1", "u1 a1 u2", "u1 a1 u2 a2 u3", again=False)
    setup = Setup(lives.store, "later")
    first = await ids(setup, "u1")
    await setup.outbox.flush()
    back = await ids(setup, "u1 a1 u2")  # again, after the conversation has moved on from there
    assert back[0] != first[0]
    assert await ids(setup, "u1 a1 u2 a2 u3 a3 u4") == first


async def test_what_is_not_written_yet_counts_more_than_what_an_earlier_run_wrote() -> None:
    lives = Lives()
    found = await lives.ids("u1 a1 u2", "u1 a1 u2 a2 old")
    setup = Setup(lives.store, "later")
    new = await ids(setup, "u1 a1 u2 a2 new", "u1 a1 u2 a2 new b u3")
    old = await ids(setup, "u1 a1 u2 a2 old a u3")
    assert {*found, *new} == {found[0]}
    assert old[0] != found[0]


async def test_what_was_reported_for_an_opening_is_kept_where_an_earlier_run_knew_it() -> None:
    lives = Lives()
    await lives.ids("u1")
    setup = Setup(lives.store, "later")
    place = await setup.ask("u1")
    setup.sessions.record_response(place, place.session, 70, 60)
    await setup.outbox.flush()
    assert await reported(setup, place) == 70


async def test_a_conversation_begun_in_an_outage_parts_from_an_older_one_afterwards() -> None:
    lives = Lives()
    old = await lives.ids("u1", "u1 a1 u2", "u1 a1 u2 a2 u3")
    setup = Setup(lives.store, "later")
    lives.store.away = True
    away = await ids(setup, "u1", "u1 b1 v2")
    lives.store.away = False
    await setup.outbox.flush()
    new = await ids(setup, "u1 b1 v2 b2 v3", "u1 b1 v2 b2 v3 b3 v4")
    assert {*away} == {old[0]}  # nothing was known of the older one
    assert new[0] == new[1] != old[0]
    assert await ids(setup, "u1 a1 u2 a2 u3 a3 u4") == [old[0]]


# -- several workers -------------------------------------------------------------------------------------------------


class Unwritten:
    """An outbox that has not come round to writing."""

    def put(self, *_: Any) -> None:
        return

    append = merge = put

    async def flush(self) -> None:
        return


class Pair:
    """Two workers over one store; what one wrote is flushed before the next request. `others`: what each has of the
    other."""

    def __init__(self, worker_sync: Callable[[str], WorkerSync]) -> None:
        self.store = Counting()
        self.workers = {name: Setup(self.store, name, worker_sync(name)) for name in "AB"}

    async def ask(self, worker: str, texts: str) -> str:
        place = await self.workers[worker].ask(*texts.split())
        await self.workers[worker].outbox.flush()
        return place.session.id


@pytest.fixture(params=["unheard", "heard"])
def pair(request: pytest.FixtureRequest) -> Pair:
    slots = shared_slots()
    return Pair(lambda name: SharedBoard(slots, ord(name)) if request.param == "heard" else UnknownWorkers())


async def test_a_conversation_that_grows_at_the_only_worker_never_asks_the_store() -> None:
    store = Counting()
    setup = Setup(store)
    talk = [f"t{n}" for n in range(41)]
    first = (await setup.ask(*talk[:1])).session.id
    await setup.outbox.flush()
    assert {(await setup.ask(*talk[:n])).session.id for n in range(1, 42, 2)} == {first}
    assert store.looks == []


async def test_a_conversation_that_goes_on_before_its_opening_was_written_asks_the_store() -> None:
    store = Counting()
    await ids(Setup(store), "u1", "u1 a1 u2", "u1 a1 u2 a2 u3")
    assert store.looks == [3]


async def test_one_worker_looks_up_the_opening_and_the_first_continuation() -> None:
    store = Counting()
    setup = Setup(store, worker_sync=UnknownWorkers())
    talk = [f"t{n}" for n in range(41)]
    assert len({(await setup.ask(*talk[:n])).session.id for n in range(1, 42, 2)}) == 1
    assert store.looks == [1, 3]


async def test_a_retry_at_one_of_several_workers_asks_for_its_own_place_only() -> None:
    store = Counting()
    await ids(Setup(store, worker_sync=UnknownWorkers()), "u1", "u1 a1 u2", "u1 a1 u2")
    assert store.looks == [1, 3, 1]


async def test_workers_that_hear_each_other_ask_the_store_only_where_another_was() -> None:
    store, slots = Counting(), shared_slots()
    one, other = (Setup(store, name, SharedBoard(slots, ord(name))) for name in "AB")
    talk = [f"t{n}" for n in range(9)]
    for texts in (talk[:1], ["begun here only"]):
        await one.ask(*texts)
    await one.outbox.flush()
    for texts in (talk[:1], talk[:3], talk[:5], talk[:5], talk[:7]):
        await one.ask(*texts)
    assert store.looks == []
    await other.ask(*talk[:1])
    assert store.looks == [1]
    await other.ask(*talk)
    assert len(store.looks) == 2
    await one.outbox.flush()
    await other.ask("begun here only", "answer", "more")
    await other.outbox.flush()
    assert len(store.looks) == 3
    assert (await one.ask("begun here only")).session.forked_from
    assert len(store.looks) == 4


async def resolve_before_flush(pair: Pair, at: str, request: Conversation, late: str) -> SessionMatch:
    """The place of a request that worker `at` is asked for before worker `late` has written what it knows."""
    asked = asyncio.create_task(pair.workers[at].sessions.resolve(ALICE, ClientMetadata(), request, "r"))
    await asyncio.sleep(0.03)
    assert not asked.done()
    await pair.workers[late].outbox.flush()
    return await asked


@pytest.fixture(params=["near, other machines too", "near, and no others"])
def near(request: pytest.FixtureRequest) -> Pair:
    """Workers of one supervisor, over a store that other machines may have too, or not."""
    slots = shared_slots()

    def worker_sync(name: str) -> WorkerSync:
        board = SharedBoard(slots, ord(name))
        return board if "no others" in request.param else UnknownWorkers(board)

    return Pair(worker_sync)


async def test_what_a_worker_nearby_is_about_to_write_is_waited_for(near: Pair) -> None:
    first = await near.workers["A"].ask("u1", "a1", "u2")
    second = await resolve_before_flush(near, "B", chat("u1", "a1", "u2", "a2", "u3"), late="A")
    assert (second.session.id, second.base_index) == (first.session.id, 2)


async def test_the_response_that_a_worker_nearby_is_about_to_write_is_waited_for(near: Pair) -> None:
    place = await near.workers["A"].ask("task")
    near.workers["A"].sessions.record_states(ALICE, {"resp_1": response_node(place, 500)})
    after = await resolve_before_flush(near, "B", responses(previous_response_id="resp_1", input="more"), late="A")
    assert after.base_node is not None
    assert (after.session.id, after.base_node.reported) == (place.session.id, 500)


async def test_a_response_that_another_machine_may_be_about_to_write_is_waited_for() -> None:
    pair = Pair(lambda _: UnknownWorkers())
    place = await pair.workers["A"].ask("task")
    pair.workers["A"].sessions.record_states(ALICE, {"resp_1": response_node(place, 500)})
    asked = pair.workers["B"].sessions.resolve(
        ALICE, ClientMetadata(), responses(previous_response_id="resp_1", input="more"), "r"
    )
    task = asyncio.create_task(asked)
    await asyncio.sleep(0)
    await pair.workers["A"].outbox.flush()
    assert (await task).session.id == place.session.id


async def test_what_never_comes_is_not_waited_for_for_long(near: Pair) -> None:
    first = await near.workers["A"].ask("u1", "a1", "u2")
    async with asyncio.timeout(5):
        second = await near.workers["B"].ask("u1", "a1", "u2", "a2", "u3")
    third = await near.workers["B"].ask("u1", "a1", "u2", "a2", "u3", "a3", "u4")
    assert second.session.id == third.session.id != first.session.id


async def test_nothing_is_waited_for_while_the_store_is_away(near: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    place = await near.workers["A"].ask("u1", "a1", "u2")
    near.workers["A"].sessions.record_states(ALICE, {"resp_1": response_node(place, 500)})
    near.store.away = True
    monkeypatch.setattr(asyncio, "sleep", sleep)
    await near.workers["B"].ask("u1", "a1", "u2", "a2", "u3")
    read = responses(previous_response_id="resp_1", input="more")
    await near.workers["B"].sessions.resolve(ALICE, ClientMetadata(), read, "r")
    assert slept == []


@pytest.mark.parametrize(
    "order",
    ["A1 B2 A1 B2 A1 B2", "A1 B2 B2 A1 B2 A1", "A1 A2 B1 A2 A1 B2", "A1 B1 A2 B2 A1 B2", "A1 A1 B2 B2 A1 B2 B1"],
)
async def test_two_conversations_with_one_opening_part_at_their_first_answer(pair: Pair, order: str) -> None:
    texts, found = {"1": "u1", "2": "u1"}, {"1": set[str](), "2": set[str]()}
    for worker, name in order.split():
        found_id = await pair.ask(worker, texts[name])
        if texts[name] != "u1":
            found[name].add(found_id)
        texts[name] += f" a{name} u{name}"
    assert len(found["1"]) == len(found["2"]) == 1
    assert found["1"] != found["2"]


async def test_an_opening_that_was_sent_again_at_another_worker_is_a_session_of_its_own(pair: Pair) -> None:
    first = [await pair.ask(*step) for step in (("B", "u1"), ("A", "u1 a1 u2"))]
    again = [await pair.ask(*step) for step in (("A", "u1"), ("B", "u1 x1 v2"), ("A", "u1 x1 v2 x2 v3"))]
    assert (len({*first}), len({*again}), len({*first, *again})) == (1, 1, 2)
    assert await pair.ask("B", "u1 a1 u2 a2 u3") == first[0]


async def test_what_was_reported_and_is_not_written_yet_counts_when_the_store_is_asked() -> None:
    setup = Setup(worker_sync=UnknownWorkers())
    place = await setup.ask("task")
    await setup.outbox.flush()
    setup.sessions.prefix_index.outbox = Unwritten()  # what is settled does not reach the store yet
    setup.sessions.record_response(place, place.session, reported_tokens=120, counted_tokens=100)
    base = (await setup.ask("task", "a", "b")).base_node
    assert base is not None
    assert (base.reported, base.counted) == (120, 100)


async def test_side_requests_at_another_worker_leave_the_session_as_it_is(pair: Pair) -> None:
    turns = ["u1", "u1 a1 side", "u1 a1 u2", "u1 a1 late", "u1 a1 u2 a2 u3", "u1 a1 u2 a2 u3 a3 u4"]
    assert len({await pair.ask("AB"[n % 2], texts) for n, texts in enumerate(turns)}) == 1


async def test_an_edit_at_another_worker_than_the_one_that_went_on_is_a_fork(pair: Pair) -> None:
    main = [await pair.ask(*step) for step in (("A", "u1"), ("A", "u1 a u2"), ("B", "u1 a u2 a u3"))]
    edit = [
        await pair.ask(*step) for step in (("A", "u1 a edit"), ("B", "u1 a edit b u4"), ("A", "u1 a edit b u4 b u5"))
    ]
    assert (len({*main}), len({*edit}), len({*main, *edit})) == (1, 1, 2)
    assert await pair.ask("A", "u1 a u2 a u3 a u6") == main[0]


async def test_an_edit_at_another_worker_that_hears_of_it_is_a_fork_at_once() -> None:
    slots = shared_slots()
    pair = Pair(lambda name: SharedBoard(slots, ord(name)))
    for worker, texts in (("A", "u1"), ("A", "u1 a1 old"), ("B", "u1 a1 new"), ("B", "u1 a1 new b u2")):
        new = await pair.ask(worker, texts)
    old = [await pair.ask("A", "u1 a1 old a u3"), await pair.ask("B", "u1 a1 old a u3 a u4")]
    assert old == [old[0]] * 2 != [new] * 2


async def test_a_prefix_that_another_worker_reassigned_is_not_matched_to_the_old_session(
    pair: Pair,
) -> None:
    await pair.ask("B", "u1")
    old = await pair.ask("B", "u1 a1 u2")
    new = await pair.ask("A", "u1")  # again, after the conversation has moved on
    assert new != old
    assert [await pair.ask("B", "u1 a1 v2"), await pair.ask("A", "u1 a1 v2 b v3")] == [new] * 2
    assert await pair.ask("A", "u1 a1 u2 a2 u3") == old


async def test_a_late_reply_does_not_hide_what_another_worker_wrote_of_the_same_place(pair: Pair) -> None:
    place = await pair.workers["A"].ask("u1")
    await pair.workers["A"].outbox.flush()
    main = [place.session.id, await pair.ask("B", "u1 a1 u2")]
    fork = [await pair.ask("B", "u1 x1 v2")]
    pair.workers["A"].sessions.record_response(place, place.session, reported_tokens=120, counted_tokens=100)
    await pair.workers["A"].outbox.flush()
    fork += [
        await pair.ask(*step) for step in (("A", "u1 x1 v2"), ("A", "u1 x1 v2 x2 v3"), ("B", "u1 x1 v2 x2 v3 x3 v4"))
    ]
    assert (len({*main}), len({*fork}), len({*main, *fork})) == (1, 1, 2)


async def test_a_retried_fork_stays_one_session_at_a_worker_that_saw_the_opening_again(pair: Pair) -> None:
    for worker, texts in (("A", "u1"), ("B", "u1 a1 u2"), ("A", "u1")):
        await pair.ask(worker, texts)
    steps = (("B", "u1 x1 v2"), ("A", "u1 x1 v2"), ("A", "u1 x1 v2 x2 v3"), ("B", "u1 x1 v2 x2 v3 x3 v4"))
    assert len({await pair.ask(*step) for step in steps}) == 1


async def test_what_workers_wrote_while_the_store_was_away_is_told_apart_once_it_is_back(pair: Pair) -> None:
    one, other = pair.workers["A"], pair.workers["B"]
    pair.store.away = True
    first = [(await one.ask("u1")).session.id, (await one.ask("u1", "a1", "u2")).session.id]
    await other.ask("u1")
    pair.store.away = False
    await other.outbox.flush()
    await one.outbox.flush()
    second = [await pair.ask("B", "u1 x1 v2"), await pair.ask("B", "u1 x1 v2 x2 v3")]
    assert (len({*first}), len({*second}), len({*first, *second})) == (1, 1, 2)


@pytest.mark.parametrize("first", ["one", "two"])
async def test_conversations_with_one_opening_part_even_if_they_crossed_workers(pair: Pair, first: str) -> None:
    for worker, texts in (("B", "u1"), ("A", "u1 a1 u2"), ("A", "u1"), ("B", "u1 x1 v2")):
        await pair.ask(worker, texts)
    texts = {"one": "u1 a1 u2", "two": "u1 x1 v2"}
    found: dict[str, list[str]] = {"one": [], "two": []}
    order = ["one", "two"] if first == "one" else ["two", "one"]
    for step in range(6):
        for at, name in enumerate(order):
            texts[name] += f" {name}-a{step} {name}-u{step}"
            found[name].append(await pair.ask("BA"[(step + at) % 2], texts[name]))
    assert len({*found["one"]}) == len({*found["two"]}) == 1
    assert not {*found["one"]} & {*found["two"]}


async def test_a_look_at_the_store_is_bounded_and_goes_on_without_it() -> None:
    store = Counting()
    setup = Setup(store)
    first = await setup.ask("t0")
    talk = [f"t{n}" for n in range(1001)]
    store.away = True
    assert (await setup.ask(*talk)).session.id == first.session.id
    assert len(store.looks) == 1
    assert store.looks[0] <= 66
