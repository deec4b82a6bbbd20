"""Workers of one machine hear of each other which places they put on record."""

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.storage.others import SLOTS, Anybody, Board, others_of


def place(name: int) -> str:
    return hashlib.sha256(b"%d" % name).hexdigest()[:24]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "places"
    Board.make(path)
    return path


def test_of_a_place_that_nobody_wrote_nobody_is_known(file: Path) -> None:
    assert Board(file, 7).mine(place(1)) is None


def test_who_alone_wrote_a_place_is_known_to_all(file: Path) -> None:
    one, other = Board(file, 7), Board(file, 4_194_303)
    for _ in range(2):
        one.wrote(place(1))
        assert (one.mine(place(1)), other.mine(place(1))) == (True, False)


def test_a_place_that_several_wrote_is_nobodys_whoever_wrote_it_last(file: Path) -> None:
    one, other = Board(file, 7), Board(file, 8)
    for writer in (one, other, other, one, one):
        writer.wrote(place(1))
    assert (one.mine(place(1)), other.mine(place(1))) == (False, False)


def test_the_file_has_no_holes_that_a_full_disk_could_not_fill(file: Path) -> None:
    assert file.stat().st_blocks * 512 >= SLOTS * 8


def test_a_worker_whose_settings_say_by_now_that_it_is_the_only_one_is_still_heard(file: Path) -> None:
    assert isinstance(others_of("sqlite:///kept.db", 1, str(file)), Board)
    assert others_of("sqlite:///kept.db", 1, "") is None


def test_a_worker_that_was_started_again_does_not_take_its_predecessors_places_for_its_own(file: Path) -> None:
    Board(file, 7).wrote(place(1))
    assert Board(file, 8).mine(place(1)) is False


def test_another_place_on_the_same_slot_is_not_taken_for_it(file: Path) -> None:
    board = Board(file, 7)
    first, second = f"{SLOTS * 2**10 + 5:016x}{'0' * 8}", f"{SLOTS * 2**11 + 5:016x}{'0' * 8}"
    board.wrote(first)
    assert board.mine(second) is None
    board.wrote(second)
    assert (board.mine(first), board.mine(second)) == (None, True)


def test_another_process_is_heard_at_once(file: Path) -> None:
    mine = Board(file, 7)
    mine.wrote(place(1))
    program = (
        "import sys; from pathlib import Path; from proxy.storage.others import Board;"
        f"board = Board(Path({str(file)!r}), 8); print(board.mine({place(1)!r})); board.wrote({place(2)!r})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert mine.mine(place(2)) is False


@pytest.mark.parametrize("left", [None, b"", b"cut short"])
def test_a_worker_starts_without_the_file_and_takes_each_place_for_anybodys(file: Path, left: bytes | None) -> None:
    file.unlink()
    if left is not None:
        file.write_bytes(left)
    others = others_of("sqlite:///kept.db", 2, str(file))
    assert isinstance(others, Anybody)
    others.wrote(place(1))
    assert others.mine(place(1)) is False


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 200)), max_size=200))
def test_what_is_known_is_never_wrong(writes: list[tuple[int, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "places"
        Board.make(path)
        boards = {worker: Board(path, worker) for worker in (1, 2, 3)}
        wrote: dict[int, set[int]] = {}
        for worker, name in writes:
            boards[worker].wrote(place(name))
            wrote.setdefault(name, set()).add(worker)
        for worker, board in boards.items():
            for name, by in wrote.items():
                assert board.mine(place(name)) in (None, by == {worker})
