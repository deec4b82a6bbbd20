"""Workers of one machine hear of each other which places they put on record."""

import hashlib
import multiprocessing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.stores.worker_sync import SLOTS, SharedBoard, Slots, shared_slots, worker_sync_for


def place(name: int) -> str:
    return hashlib.sha256(b"%d" % name).hexdigest()[:24]


@pytest.fixture
def slots() -> Slots:
    return shared_slots()


def test_of_a_place_that_nobody_wrote_nobody_is_known(slots: Slots) -> None:
    assert SharedBoard(slots, 7).is_own(place(1)) is None


def test_who_alone_wrote_a_place_is_known_to_all(slots: Slots) -> None:
    one, other = SharedBoard(slots, 7), SharedBoard(slots, 4_194_303)
    for _ in range(2):
        one.announce(place(1))
        assert (one.is_own(place(1)), other.is_own(place(1))) == (True, False)


def test_a_place_that_several_wrote_is_nobodys_whoever_wrote_it_last(slots: Slots) -> None:
    one, other = SharedBoard(slots, 7), SharedBoard(slots, 8)
    for writer in (one, other, other, one, one):
        writer.announce(place(1))
    assert (one.is_own(place(1)), other.is_own(place(1))) == (False, False)


def test_a_worker_whose_settings_say_by_now_that_it_is_the_only_one_is_still_heard(slots: Slots) -> None:
    assert isinstance(worker_sync_for("sqlite:///kept.db", 1, slots), SharedBoard)
    assert worker_sync_for("sqlite:///kept.db", 1, None) is None


def test_a_worker_that_was_started_again_does_not_take_its_predecessors_places_for_its_own(slots: Slots) -> None:
    SharedBoard(slots, 7).announce(place(1))
    assert SharedBoard(slots, 8).is_own(place(1)) is False


def test_what_another_worker_nearby_wrote_is_coming(slots: Slots) -> None:
    one, other = SharedBoard(slots, 7), SharedBoard(slots, 8)
    far = [worker_sync_for("redis://elsewhere", 2, slots), worker_sync_for("redis://elsewhere", 1, None)]
    one.announce(place(1))
    assert [each.is_pending(place(1)) for each in (one, other)] == [False, True]
    assert [each.is_pending(place(1)) for each in far if each is not None] == [True, False]
    assert not any(each.is_pending(place(2)) for each in (one, other, *far) if each is not None)
    assert far[0] is not None
    far[0].announce(place(3))
    assert other.is_pending(place(3))


def test_workers_that_share_no_store_know_nothing_of_each_other(slots: Slots) -> None:
    assert worker_sync_for("memory://", 2, slots) is None


def test_another_place_on_the_same_slot_is_not_taken_for_it(slots: Slots) -> None:
    board = SharedBoard(slots, 7)
    first, second = f"{SLOTS * 2**10 + 5:016x}{'0' * 8}", f"{SLOTS * 2**11 + 5:016x}{'0' * 8}"
    board.announce(first)
    assert board.is_own(second) is None
    board.announce(second)
    assert (board.is_own(first), board.is_own(second)) == (None, True)


def other_worker(slots: Slots) -> None:
    others = worker_sync_for("sqlite:///kept.db", 2, slots)
    assert others is not None
    assert others.is_own(place(1)) is False
    others.announce(place(2))


def test_a_process_that_was_spawned_hears_and_is_heard(slots: Slots) -> None:
    mine = worker_sync_for("sqlite:///kept.db", 2, slots)
    assert mine is not None
    mine.announce(place(1))
    for _ in range(2):  # The second as a supervisor starts a worker again.
        worker = multiprocessing.get_context("spawn").Process(target=other_worker, args=(slots,))
        worker.start()
        worker.join()
        assert worker.exitcode == 0
        assert mine.is_own(place(2)) is False


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 200)), max_size=200))
def test_what_is_known_is_never_wrong(writes: list[tuple[int, int]]) -> None:
    slots = shared_slots()
    boards = {worker: SharedBoard(slots, worker) for worker in (1, 2, 3)}
    wrote: dict[int, set[int]] = {}
    for worker, name in writes:
        boards[worker].announce(place(name))
        wrote.setdefault(name, set()).add(worker)
    for worker, board in boards.items():
        for name, by in wrote.items():
            assert board.is_own(place(name)) in (None, by == {worker})
