"""Workers of one machine hear of each other which places they put on record."""

import hashlib
import multiprocessing
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accordion.stores.worker_sync import (
    SLOTS,
    SharedBoard,
    Slots,
    StoreBoard,
    UnknownWorkers,
    shared_slots,
    worker_sync_for,
)


def place(name: int) -> str:
    return hashlib.sha256(b"%d" % name).hexdigest()[:24]


@pytest.fixture
def slots() -> Slots:
    return shared_slots()


def test_an_unwritten_record_has_no_owner(slots: Slots) -> None:
    assert SharedBoard(slots, 7).is_own(place(1)) is None


def test_the_only_writer_of_a_record_is_known_to_all(slots: Slots) -> None:
    one, other = SharedBoard(slots, 7), SharedBoard(slots, 4_194_303)
    for _ in range(2):
        one.announce(place(1))
        assert (one.is_own(place(1)), other.is_own(place(1))) == (True, False)


def test_a_place_that_several_wrote_is_nobodys_whoever_wrote_it_last(slots: Slots) -> None:
    one, other = SharedBoard(slots, 7), SharedBoard(slots, 8)
    for writer in (one, other, other, one, one):
        writer.announce(place(1))
    assert (one.is_own(place(1)), other.is_own(place(1))) == (False, False)


def test_a_restarted_worker_does_not_take_its_predecessors_records_for_its_own(slots: Slots) -> None:
    SharedBoard(slots, 7).announce(place(1))
    assert SharedBoard(slots, 8).is_own(place(1)) is False


def test_a_record_of_another_worker_nearby_is_announced(slots: Slots) -> None:
    one, other = SharedBoard(slots, 7), SharedBoard(slots, 8)
    far = [worker_sync_for("redis://elsewhere", "", slots), worker_sync_for("redis://elsewhere", "", None)]
    one.announce(place(1))
    assert [each.is_pending(place(1)) for each in (one, other)] == [False, True]
    assert [each.is_pending(place(1)) for each in far if each is not None] == [True, False]
    assert not any(each.is_pending(place(2)) for each in (one, other, *far) if each is not None)
    assert far[0] is not None
    far[0].announce(place(3))
    assert other.is_pending(place(3))


def test_workers_that_share_no_store_know_nothing_of_each_other(slots: Slots) -> None:
    assert worker_sync_for("memory://", "", slots) is None


def test_another_place_on_the_same_slot_is_not_taken_for_it(slots: Slots) -> None:
    board = SharedBoard(slots, 7)
    first, second = f"{SLOTS * 2**10 + 5:016x}{'0' * 8}", f"{SLOTS * 2**11 + 5:016x}{'0' * 8}"
    board.announce(first)
    assert board.is_own(second) is None
    board.announce(second)
    assert (board.is_own(first), board.is_own(second)) == (None, True)


def announce_two(worker_sync: SharedBoard) -> None:
    assert worker_sync.is_own(place(1)) is False
    worker_sync.announce(place(2))


def use_slots(slots: Slots) -> None:
    announce_two(SharedBoard(slots, os.getpid()))


def use_store(store: Path) -> None:
    announce_two(StoreBoard(store))


@pytest.mark.parametrize("has_store", [True, False])
def test_a_process_that_was_spawned_hears_and_is_heard(slots: Slots, tmp_path: Path, has_store: bool) -> None:
    store = tmp_path / "kept.db"
    mine = StoreBoard(store) if has_store else SharedBoard(slots, os.getpid())
    mine.announce(place(1))
    for _ in range(2):  # The second as a supervisor starts a worker again.
        worker = multiprocessing.get_context("spawn").Process(
            target=use_store if has_store else use_slots, args=(store if has_store else slots,)
        )
        worker.start()
        worker.join()
        assert worker.exitcode == 0
        assert mine.is_own(place(2)) is False


def test_workers_share_slots_by_any_path_to_the_store(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "kept.db")
    one, other = StoreBoard(tmp_path / "kept.db"), StoreBoard(tmp_path / "link.db")
    one.announce(place(1))
    assert (one.is_own(place(1)), other.is_own(place(1))) == (True, False)
    assert [path.name for path in tmp_path.iterdir() if "-workers" in path.name] == ["kept.db-workers"]


def test_only_the_owner_may_read_the_file_of_the_slots(tmp_path: Path) -> None:
    StoreBoard(tmp_path / "kept.db")
    assert (tmp_path / "kept.db-workers").stat().st_mode & 0o777 == 0o600


def test_the_first_worker_clears_the_slots_and_a_later_one_does_not(tmp_path: Path) -> None:
    store = tmp_path / "kept.db"
    one = StoreBoard(store)
    one.announce(place(1))
    other = StoreBoard(store)
    one.close()
    third = StoreBoard(store)
    assert third.is_own(place(1)) is False
    other.close()
    third.close()
    assert StoreBoard(store).is_own(place(1)) is None


def test_workers_meet_again_after_the_file_of_the_slots_was_deleted(tmp_path: Path) -> None:
    store = tmp_path / "kept.db"
    one = StoreBoard(store)
    one.announce(place(1))
    (tmp_path / "kept.db-workers").unlink()
    other = StoreBoard(store)
    one.renew()
    assert one.is_own(place(1)) is None  # the store may know more of it
    other.announce(place(2))
    assert one.is_own(place(2)) is False


def test_a_board_stays_as_it_is_while_its_folder_is_away(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    one = StoreBoard(tmp_path / "folder" / "kept.db")
    one.announce(place(1))
    (tmp_path / "folder").rename(tmp_path / "away")
    one.renew()
    assert one.is_own(place(1)) is True


@pytest.mark.parametrize("content", [b"notes of a user", None])
def test_workers_that_cannot_share_slots_look_in_the_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    store = tmp_path / "kept.db"
    if content is None:
        (tmp_path / "kept.db-workers").mkdir()
    else:
        (tmp_path / "kept.db-workers").write_bytes(content)
    assert isinstance(worker_sync_for(f"sqlite:///{store}", str(store), None), UnknownWorkers)
    assert "takes longer" in caplog.text
    assert content is None or (tmp_path / "kept.db-workers").read_bytes() == content


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 200)), max_size=200))
def test_a_known_owner_is_never_wrong(writes: list[tuple[int, int]]) -> None:
    slots = shared_slots()
    boards = {worker: SharedBoard(slots, worker) for worker in (1, 2, 3)}
    wrote: dict[int, set[int]] = {}
    for worker, name in writes:
        boards[worker].announce(place(name))
        wrote.setdefault(name, set()).add(worker)
    for worker, board in boards.items():
        for name, by in wrote.items():
            assert board.is_own(place(name)) in (None, by == {worker})
