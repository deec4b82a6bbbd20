"""Replies that the provider keeps are on record from the moment their client goes on from them by their ids."""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from accordion.archive.erasure_notices import ErasureNotices
from accordion.archive.stored_responses import StoredResponses, link_key
from accordion.model.conversation import Conversation
from accordion.model.errors import StoreUnavailable
from accordion.model.ports import Key, Put
from accordion.model.tenant import TenantScope
from accordion.stores.memory_store import InMemoryStore
from tests.archive.archive_setup import DAY, OTHER, TENANT, ArchiveSetup
from tests.compaction.compactor_setup import read
from tests.fakes import FakeClock, FickleStore

CAPACITY = 1_000_000


class Chain:
    """A client's conversation at one worker's StoredResponses, and what went by."""

    def __init__(
        self, setup: ArchiveSetup, *, session: str = "s-1", tenant: TenantScope = TENANT, capacity: int = CAPACITY
    ) -> None:
        self.archive, self.session, self.tenant = setup, session, tenant
        self.links = StoredResponses(setup.archive, setup.tasks, setup.erasures, capacity)
        self.told: list[Any] = []
        self.queue: list[Put] = []
        """What waits for the store."""

    async def say(
        self, number: int, text: str, after: int | None = None, *, links: StoredResponses | None = None
    ) -> None:
        """A request that goes on from the reply `after` (None: which brings the whole list) is answered."""
        given, said = [{"role": "user", "content": text}], {"type": "message", "role": "assistant", "id": f"m{number}"}
        self.told += [*given, said]
        await self.take(number, read_request(given, after), said, links=links)

    async def take(
        self,
        number: int,
        conversation: Conversation,
        said: Any,
        *,
        links: StoredResponses | None = None,
        known: bool = False,
    ) -> None:
        """A response is taken, and stored as ResponseHistory does it."""
        links, name, began = links or self.links, f"r{number}", self.archive.clock.monotonic()
        link = links.add(
            self.tenant, self.session, conversation, name, (json.dumps(said).encode(),), has_last_response=known
        )
        puts = await links.build_puts(self.tenant, self.session, name, link) if link is not None else []
        self.queue += puts
        if self.archive.erasures.was_erased_since(self.tenant, self.session, began):
            return
        with suppress(StoreUnavailable):
            await self.archive.archive.write(self.queue)
            self.queue = []

    async def before(
        self, number: int, *, links: StoredResponses | None = None, tenant: TenantScope = TENANT
    ) -> list[Any] | None:
        found = await (links or self.links).history_up_to(tenant, f"r{number}")
        return None if found is None else [json.loads(wire) for wire in found]

    async def is_recorded(self, number: int) -> bool:
        return await self.archive.store.get(link_key(self.tenant, f"r{number}")) is not None


def read_request(given: list[Any], after: int | None) -> Conversation:
    goes_on = {} if after is None else {"previous_response_id": f"r{after}"}
    return read({"model": "gpt-5", "input": given, **goes_on}, "responses", TENANT)


def links_of_other_worker(setup: ArchiveSetup) -> StoredResponses:
    """Those of another worker with the same store."""
    there = ArchiveSetup(store=setup.store, clock=setup.clock)
    return StoredResponses(
        there.archive, setup.tasks, ErasureNotices(setup.store, setup.clock, 1.0, _at_once), CAPACITY
    )


async def _at_once(_: float) -> None:
    return


async def test_the_history_of_a_response_is_assembled_in_order() -> None:
    chain = Chain(ArchiveSetup())
    for number in range(5):
        await chain.say(number, f"part {number}", number - 1 if number else None)
    assert await chain.before(4) == chain.told
    assert await chain.before(2) == chain.told[:6]
    assert await chain.before(0) == chain.told[:2]
    assert await chain.before(9) is None


async def test_another_worker_finds_it_in_the_store_where_it_is_sealed() -> None:
    chain = Chain(ArchiveSetup())
    for number in range(3):
        await chain.say(number, f"secret part {number}", number - 1 if number else None)
    assert await chain.before(2, links=links_of_other_worker(chain.archive)) == chain.told
    assert b"secret" not in (await chain.archive.store.get(link_key(TENANT, "r2")) or b"")


async def test_a_branch_has_what_led_to_it() -> None:
    chain = Chain(ArchiveSetup())
    await chain.say(0, "one")
    await chain.say(1, "two", 0)
    await chain.say(2, "another two", 0)
    await chain.say(3, "three", 1)
    first, two, other, three = (chain.told[at : at + 2] for at in range(0, 8, 2))
    assert await chain.before(2) == [*first, *other]
    assert await chain.before(3) == [*first, *two, *three]


async def test_of_a_whole_list_client_only_the_first_request_is_stored() -> None:
    chain, given = Chain(ArchiveSetup()), list[Any]()
    for number in range(6):
        given += [{"role": "user", "content": f"part {number}"}, {"role": "assistant", "content": "well"}]
        await chain.take(number, read_request(given[:-1], None), given[-1], known=number > 0)
    assert [await chain.is_recorded(number) for number in range(6)] == [True, *[False] * 5]
    # Of a session its beginning and its newest may be gone on from.
    assert [await chain.before(number) is not None for number in range(6)] == [True, *[False] * 4, True]
    assert await chain.before(5) == given


async def test_a_list_with_replies_that_nobody_saw_is_stored_as_a_beginning() -> None:
    chain, given = Chain(ArchiveSetup()), [{"role": "user", "content": "one"}, {"role": "assistant", "content": "well"}]
    await chain.take(0, read_request([*given, {"role": "user", "content": "x" * 70_000}], None), {"role": "assistant"})
    await chain.say(1, "two", 0, links=(there := links_of_other_worker(chain.archive)))
    found = await chain.before(1, links=there)
    assert found is not None
    assert found[:2] == given


async def test_conversations_that_begin_alike_keep_their_beginnings() -> None:
    """They are one session until they differ, and what is sent by their ids does not tell."""
    one, two = Chain(setup := ArchiveSetup()), Chain(setup)
    two.links = one.links
    for at, chain in enumerate((one, two)):
        await chain.say(10 * at, "hi")
    for number in range(1, 4):
        for at, chain in enumerate((one, two)):
            await chain.say(10 * at + number, f"part {number} of {at}", 10 * at + number - 1)
    assert [await chain.before(10 * at + 3) for at, chain in enumerate((one, two))] == [one.told, two.told]
    assert one.links._newest == {}


async def test_a_long_list_that_its_client_sends_itself_is_not_even_held() -> None:
    chain = Chain(ArchiveSetup())
    long = {"role": "user", "content": "words " * 20_000}
    listed = read_request([long, {"role": "assistant", "content": "well"}, long], None)
    await chain.take(0, listed, {"role": "assistant"}, known=True)
    await chain.take(1, read_request([long], None), {"role": "assistant"})
    assert await chain.before(0) is None
    assert await chain.before(1) is not None


async def test_the_newest_replies_are_forgotten_with_their_links() -> None:
    links = (chain := Chain(ArchiveSetup(), capacity=20_000)).links
    for number in range(100):
        chain.session = f"s-{number}"
        await chain.take(
            number, read_request([{"role": "user", "content": "hi"}], None), {"role": "assistant"}, known=True
        )
    assert 0 < len(links._newest) <= len(links._links) < 100


async def test_a_link_whose_predecessor_comes_later_leads_to_it_then() -> None:
    chain, late = Chain(setup := ArchiveSetup()), Chain(setup, session="s-1")
    late.links = links_of_other_worker(setup)
    link = late.links.add(
        TENANT,
        "s-1",
        read_request([{"role": "user", "content": "one"}], None),
        "r0",
        (b'{"role":"assistant"}',),
        has_last_response=False,
    )
    assert link is not None
    waiting = await late.links.build_puts(TENANT, "s-1", "r0", link)
    await chain.say(1, "two", 0)
    await chain.say(2, "three", 1)
    assert await chain.before(2) is None
    await setup.archive.write(waiting)
    await chain.say(3, "four", 2)
    for links in (chain.links, links_of_other_worker(setup)):
        found = await chain.before(3, links=links)
        assert found is not None
        assert found[2:] == chain.told
    # It was found, and is kept for as long as the others.
    setup.clock.advance(DAY + 1)
    assert await chain.before(3, links=links_of_other_worker(setup)) is not None


async def test_each_tenant_has_its_own() -> None:
    chain = Chain(ArchiveSetup())
    await chain.say(0, "one")
    await chain.say(1, "two", 0)
    assert await chain.before(1, tenant=OTHER) is None


async def test_one_that_is_too_large_does_not_take_the_place_of_others() -> None:
    setup = ArchiveSetup()
    links = StoredResponses(setup.archive, setup.tasks, setup.erasures, 60_000)
    for number, size in enumerate((100, 30_000, 15_000, 100)):
        await Chain(setup, session=f"s-{number}").say(number, "x" * size, links=links)
    assert [await links.history_up_to(TENANT, f"r{number}") is not None for number in range(4)] == [
        True,
        False,
        False,
        True,
    ]


async def test_a_long_conversation_is_read_in_few_looks() -> None:
    class Counting(InMemoryStore):
        looks = 0

        async def get_many(self, keys: Sequence[Key]) -> list[bytes | None]:
            self.looks += 1
            return await super().get_many(keys)

    store = Counting()
    chain = Chain(ArchiveSetup(store=store))
    for number in range(200):
        await chain.say(number, f"part {number}", number - 1 if number else None)
    store.looks = 0
    assert await chain.before(199, links=links_of_other_worker(chain.archive)) == chain.told
    assert store.looks <= 8


async def test_memory_is_bounded_and_the_oldest_entry_is_evicted() -> None:
    setup = ArchiveSetup(store=(store := FickleStore()))
    links = StoredResponses(setup.archive, setup.tasks, setup.erasures, 36_000)
    store.away = True
    for number in range(10):
        await Chain(setup, session=f"s-{number}").say(number, "x" * 5_000, links=links)
    store.away = False
    there = [await links.history_up_to(TENANT, f"r{number}") is not None for number in range(10)]
    assert there == [False] * 4 + [True] * 6


async def test_stored_links_are_found_with_an_empty_cache() -> None:
    chain = Chain(ArchiveSetup(), capacity=6_000)
    for number in range(6):
        await chain.say(number, "x" * 400, number - 1 if number else None)
    assert await chain.before(5) == chain.told


async def test_links_from_an_outage_are_stored_afterwards() -> None:
    store = FickleStore()
    chain = Chain(ArchiveSetup(store=store))
    await chain.say(0, "one")
    store.away = True
    await chain.say(1, "two", 0)
    await chain.say(2, "three", 1)
    assert await chain.before(2) == chain.told
    store.away = False
    await chain.say(3, "four", 2)
    assert [await chain.is_recorded(number) for number in range(4)] == [True] * 4
    assert await chain.before(3, links=links_of_other_worker(chain.archive)) == chain.told


async def test_an_erased_link_does_not_return() -> None:
    chain = Chain(ArchiveSetup())
    for number in range(3):
        await chain.say(number, f"part {number}", number - 1 if number else None)
    waits = Chain(chain.archive, session="s-2")
    await waits.say(10, "waits", links=chain.links)
    erased = await chain.archive.export_and_erasure.erase(TENANT, "s-1")
    assert erased.verified
    assert [await chain.is_recorded(number) for number in range(3)] == [False] * 3
    assert await chain.before(2) is None
    await chain.say(3, "on", 2)
    assert await chain.before(3) is None
    # What others said stays.
    assert await chain.before(10) == waits.told
    await chain.archive.erasures.publish(OTHER, None)
    assert await chain.before(10) == waits.told
    await chain.archive.export_and_erasure.erase(TENANT, None)
    assert await chain.before(10) is None


async def test_what_is_read_while_it_is_erased_is_not_at_hand_afterwards() -> None:
    class Slow(InMemoryStore):
        async def get_many(self, keys: Sequence[Key]) -> list[bytes | None]:
            found = await super().get_many(keys)
            await setup.erasures.publish(TENANT, "s-1")
            await self.delete(list(keys))
            return found

    setup = ArchiveSetup(store=(store := InMemoryStore()))
    chain = Chain(setup)
    await chain.say(0, "one")
    await chain.say(1, "two", 0)
    chain.links = StoredResponses(setup.archive, setup.tasks, setup.erasures, CAPACITY)
    store.__class__ = Slow
    await chain.before(1)
    store.__class__ = InMemoryStore
    assert await chain.before(1) is None


# -- where several workers serve -----------------------------------------------------------------------------------


def shared(clock: FakeClock) -> ArchiveSetup:
    """One of several with the same store."""
    setup = ArchiveSetup(store=InMemoryStore(now=clock.now), clock=clock)
    setup.erasures = ErasureNotices(setup.store, clock, setup.retention, _at_once)
    return setup


async def test_a_stored_response_is_shared_with_workers_and_outlives_its_continuation() -> None:
    clock = FakeClock()
    chain, alone = Chain(setup := shared(clock)), Chain(setup, session="s-2")
    await chain.say(0, "one")
    await alone.say(10, "one")
    assert [await chain.is_recorded(number) for number in (0, 10)] == [True, True]
    there = links_of_other_worker(setup)
    await chain.say(1, "two", 0, links=there)
    assert await chain.before(1, links=there) == chain.told
    clock.advance(DAY + 1)
    assert [await chain.is_recorded(number) for number in (0, 1, 10)] == [True, True, False]
    assert await chain.before(1, links=links_of_other_worker(setup)) == chain.told


@pytest.mark.parametrize("value", [b"", b"\x00rubbish", b"\x01rubbish"])
async def test_an_unreadable_record_counts_as_missing(value: bytes) -> None:
    setup = ArchiveSetup(sealer=None)
    await setup.store.put(link_key(TENANT, "r0"), value)
    assert (
        await StoredResponses(setup.archive, setup.tasks, setup.erasures, CAPACITY).history_up_to(TENANT, "r0") is None
    )


async def test_replies_that_go_on_from_each_other_for_ever_are_no_conversation() -> None:
    chain = Chain(ArchiveSetup(sealer=None))
    await chain.say(0, "one")
    await chain.say(1, "two", 0)
    value = await chain.archive.store.get(link_key(TENANT, "r1"))
    assert value is not None
    chain.links = links_of_other_worker(chain.archive)
    await chain.archive.store.put(link_key(TENANT, "r0"), value)
    assert await chain.before(1) is None


async def test_replies_that_all_have_one_id_are_not_put_together() -> None:
    """As those of some gateways."""
    chain = Chain(ArchiveSetup())
    await chain.say(0, "one")
    for text in ("two", "three"):
        await chain.say(0, text, 0)
        assert await chain.before(0) is None
