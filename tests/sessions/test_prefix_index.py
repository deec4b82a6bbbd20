"""Places that the store was not asked for when they were made, and what becomes of them while they are written."""

from collections.abc import Callable, Sequence

import pytest
from msgspec import structs

from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Append, Key, Put
from accordion.sessions.prefix_index import PrefixIndex
from accordion.sessions.prefix_nodes import ENCODER, PrefixNode, decode, node_id, node_key_by_name
from accordion.stores.write_queue import WriteQueue
from tests.fakes import FickleStore
from tests.sessions.test_sessions import chat

OPENING = chat("u1")
NAME = OPENING.chain[-1]
FIRST = PrefixNode("s-1")
ON = PrefixNode("s-1", next=b"n", branch=b"one")
OFF = PrefixNode("s-1", next=b"n", branch=b"two", base=b"b")
"""What `joined` would take for less than what the store has, if that came from somebody else."""


class Meanwhile(FickleStore):
    """A store to which something happens before or after its next writes, and whose answers may be lost."""

    def __init__(self) -> None:
        super().__init__()
        self.before: list[Callable[[], object]] = []
        self.after: list[Callable[[], object]] = []
        self.deaf = False

    async def write(self, batch: Sequence[Put | Append]) -> dict[Key, bytes]:
        while self.before:
            self.before.pop(0)()
        held = await super().write(batch)
        while self.after:
            self.after.pop(0)()
        if self.deaf:
            raise StoreUnavailable("away")
        return held


async def start_index(store: Meanwhile) -> PrefixIndex:
    """A worker that knows nothing yet and was not told, where a conversation begins."""
    record = PrefixIndex(store, WriteQueue(store.write), capacity=100, retention=60.0)
    assert await record.find(b"", OPENING) == (-1, None)
    return record


def write(record: PrefixIndex, point: PrefixNode) -> None:
    record.write(NAME, node_id(NAME), point)


async def load_node(store: Meanwhile) -> PrefixNode | None:
    return decode(await store.get(node_key_by_name(NAME)))


async def test_a_new_place_is_not_taken_for_met_before_the_store_has_answered() -> None:
    store = Meanwhile()
    record = await start_index(store)
    sure: list[bool] = []
    write(record, FIRST)
    store.before.append(lambda: sure.append(record._is_up_to_date(NAME)))
    store.after.append(lambda: sure.append(record._is_up_to_date(NAME)))
    await record.outbox.flush()
    assert [*sure, record._is_up_to_date(NAME)] == [False, False, True]
    assert await load_node(store) == FIRST


async def test_a_place_that_two_workers_met_keeps_what_both_wrote() -> None:
    store = Meanwhile()
    one, two = await start_index(store), await start_index(store)
    write(one, ON)
    write(two, structs.replace(FIRST, reported=7, counted=5))
    await one.outbox.flush()
    await two.outbox.flush()
    both = structs.replace(ON, reported=7, counted=5)
    assert await load_node(store) == two.nodes[NAME] == both
    assert two._is_up_to_date(NAME)


async def test_a_place_that_belongs_to_an_earlier_conversation_stays_its_own() -> None:
    store = Meanwhile()
    await store.put(node_key_by_name(NAME), ENCODER.encode(PrefixNode("s-old", next=b"o")))
    record = await start_index(store)
    write(record, FIRST)
    await record.outbox.flush()
    assert await load_node(store) == record.nodes[NAME] == PrefixNode("s-old", next=b"o")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("deaf", [False, True])
async def test_a_place_that_is_written_again_on_its_way_ends_as_it_was_written_last(when: str, deaf: bool) -> None:
    store = Meanwhile()
    record = await start_index(store)
    write(record, ON)
    getattr(store, when).append(lambda: write(record, OFF))
    store.deaf = deaf
    await record.outbox.flush()
    if deaf:
        assert not record._is_up_to_date(NAME)
        store.deaf = False
    await record.outbox.flush()
    assert await load_node(store) == record.nodes[NAME] == OFF
    assert record._is_up_to_date(NAME)


async def test_what_the_store_has_from_this_worker_does_not_undo_what_it_knows_since() -> None:
    store = Meanwhile()
    record = await start_index(store)
    write(record, ON)
    store.deaf = True
    await record.outbox.flush()
    write(record, OFF)
    assert await record._load([NAME])
    assert record.nodes[NAME] == OFF


@pytest.mark.parametrize("asked", [False, True])
async def test_what_is_learnt_of_a_place_while_an_earlier_record_of_it_is_found_is_kept(asked: bool) -> None:
    store = Meanwhile()
    old = PrefixNode("s-1", next=b"n", branch=b"old")
    await store.put(node_key_by_name(NAME), ENCODER.encode(old))
    record = await start_index(store)
    write(record, FIRST)

    def goes_on() -> None:
        if asked:  # by another request, which has brought it into memory
            record._unread_in_store.pop(NAME)
            record.nodes[NAME] = old
            write(record, OFF)
        else:
            write(record, structs.replace(FIRST, reported=7))

    store.before.append(goes_on)
    await record.outbox.flush()
    await record.outbox.flush()
    expected = OFF if asked else structs.replace(old, reported=7)
    assert await load_node(store) == record.nodes[NAME] == expected
